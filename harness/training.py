"""Trains one run through Lightning's Trainer, resuming where an earlier attempt stopped."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from harness import provenance
from harness.callbacks import (
    Checkpointer,
    Diagnostics,
    Journal,
    Progress,
    StepCallback,
    StopSignal,
    Validator,
    even_steps,
)
from harness.checkpoints import last_step, newest_checkpoint
from harness.config import Execution, RunConfig
from harness.corpora import TokenCorpus, open_corpus
from harness.data import (
    TokenBatches,
    bits_per_byte,
    validation_batches,
    validation_bytes_per_token,
)
from harness.errors import DataError
from harness.module import Batch, LanguageModel
from harness.paths import RunPaths
from harness.recording import build_record, utc_now
from harness.records import (
    PlannedRun,
    RunRecord,
    end_torn_line,
    write_record,
    write_text_atomically,
)
from recipes.base import Shape, get

LIGHTNING_PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}
RUNAWAY = 2.0
"""A training loss above this many times ln(vocab_size), the loss of a uniform guess, ends the
run."""
EVAL_SEQUENCES = 32
"""Sequences per forward pass of a validation."""
DIAGNOSTIC_SEQUENCES = 8
"""Validation sequences that diagnostics look at."""


class StepDataset(IterableDataset[Batch]):
    """The batches of steps ``first`` .. ``steps - 1``, each a pure function of (seed, step)."""

    def __init__(self, batches: TokenBatches, first: int, steps: int) -> None:
        self.batches, self.first, self.steps = batches, first, steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield one global batch per optimiser step."""
        for step in range(self.first, self.steps):
            yield {"step": step, "tokens": torch.from_numpy(self.batches.batch(step))}


def train(
    run: PlannedRun,
    sweep: str,
    paths: RunPaths,
    execution: Execution,
    stop: StopSignal,
    attempt: int = 1,
) -> RunRecord | None:
    """Train one run to its end, or to the next step boundary after a stop request.

    Parameters
    ----------
    attempt
        Number of this try, as :func:`open_attempt` gave it.

    Returns
    -------
    RunRecord or None
        The record, also written to ``record.json`` as the last act; None when the run was
        interrupted and can be resumed.

    Raises
    ------
    DataError
        The corpus is not the one that the run was planned with.
    CheckpointError
        The run's folder holds a checkpoint of another run.
    """
    config = RunConfig.model_validate(run.config)
    corpus = _planned_corpus(config, run)
    _quiet_lightning()
    torch.set_num_threads(execution.threads)
    provenance.reset_peak_memory()
    progress = _progress(run, config, corpus, paths, stop, attempt)
    checkpoint = newest_checkpoint(paths)
    module = _build_module(run, config, execution)
    loader = _loader(corpus, config, run, last_step(paths) if checkpoint else 0)
    trainer = _build_trainer(config, corpus, progress, execution)
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=checkpoint is not None or None)
    if progress.interrupted:
        return None
    return _record(run, sweep, paths, execution, progress.diverged_because)


def _planned_corpus(config: RunConfig, run: PlannedRun) -> TokenCorpus:
    corpus = open_corpus(config.data.corpus)
    if corpus.info.sha256 != run.corpus_sha256:
        raise DataError(
            f"corpus '{config.data.corpus}' has changed since the run was planned "
            f"(sha256 {corpus.info.sha256[:12]}, planned {run.corpus_sha256[:12]}). "
            "Run the grid again to plan with the new content, or restore the old one."
        )
    return corpus


def _quiet_lightning() -> None:
    """Keep the trainer's notices out of worker logs; errors still show."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def open_attempt(paths: RunPaths) -> int:
    """Begin a new try at a run: number it, say who makes it, mend files that a kill left torn."""
    number = paths.n_attempts() + 1
    about = {
        "attempt": number,
        "started_at": utc_now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "code_version": provenance.code_version(),
        "library_versions": provenance.library_versions(),
    }
    paths.attempt(number).mkdir(parents=True)
    write_text_atomically(
        paths.attempt(number) / "attempt.json", json.dumps(about, indent=2) + "\n"
    )
    for file in (paths.metrics, paths.diagnostics):
        end_torn_line(file)
    return number


def _progress(
    run: PlannedRun,
    config: RunConfig,
    corpus: TokenCorpus,
    paths: RunPaths,
    stop: StopSignal,
    attempt: int,
) -> Progress:
    bytes_per_token = validation_bytes_per_token(
        corpus, seq_len=config.data.seq_len, eval_tokens=config.train.eval_tokens
    )
    return Progress(
        paths=paths,
        attempt=attempt,
        steps=run.cost.steps,
        batch_tokens=config.train.batch_tokens,
        flops_per_token=run.cost.flops_per_token,
        nats_to_bits_per_byte=bits_per_byte(1.0, bytes_per_token),
        stop=stop,
    )


def _build_module(run: PlannedRun, config: RunConfig, execution: Execution) -> LanguageModel:
    sequences = config.train.batch_tokens // config.data.seq_len
    module = LanguageModel(
        config,
        run.run_id,
        run.vocab_size,
        run.cost.steps,
        microbatch_seqs=execution.microbatch_seqs or sequences,
    )
    module.model.residual.use_kernel(execution.kernel)
    module.model.recompute = execution.recompute
    return module


def _loader(
    corpus: TokenCorpus, config: RunConfig, run: PlannedRun, first: int
) -> DataLoader[Batch]:
    batches = TokenBatches(
        corpus,
        seq_len=config.data.seq_len,
        batch_tokens=config.train.batch_tokens,
        seed=config.seed,
    )
    return DataLoader(StepDataset(batches, first, run.cost.steps), batch_size=None)


def _build_trainer(
    config: RunConfig, corpus: TokenCorpus, progress: Progress, execution: Execution
) -> Trainer:
    """Build a Trainer that owns the loop and nothing else: logs, checkpoints and signals are
    ours.
    """
    return Trainer(
        accelerator="auto",
        devices=1,
        precision=LIGHTNING_PRECISION[config.train.precision],  # type: ignore[arg-type]
        max_steps=progress.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=progress.paths.root,
        plugins=[LightningEnvironment()],
        callbacks=list(_callbacks(config, corpus, progress, execution)),
    )


def _callbacks(
    config: RunConfig, corpus: TokenCorpus, progress: Progress, execution: Execution
) -> list[StepCallback]:
    batches = functools.cache(functools.partial(_validation, config, corpus))
    loss_limit = RUNAWAY * math.log(corpus.info.vocab_size)
    diagnostic = even_steps(progress.steps, execution.n_diagnostics)
    return [
        Journal(progress, execution.log_every, loss_limit),
        Validator(progress, even_steps(progress.steps, execution.n_evals), batches),
        Diagnostics(progress, diagnostic, lambda: batches()[0][:DIAGNOSTIC_SEQUENCES]),
        Checkpointer(progress, execution.checkpoint_every_s),
    ]


def _validation(config: RunConfig, corpus: TokenCorpus) -> list[Tensor]:
    windows = validation_batches(
        corpus,
        seq_len=config.data.seq_len,
        eval_tokens=config.train.eval_tokens,
        batch_seqs=EVAL_SEQUENCES,
    )
    return [torch.from_numpy(window) for window in windows]


def _record(
    run: PlannedRun,
    sweep: str,
    paths: RunPaths,
    execution: Execution,
    diverged_because: str | None,
) -> RunRecord:
    record = build_record(
        run,
        sweep,
        paths,
        status="diverged" if diverged_because else "done",
        block_size=depth_block_size(run),
        provenance=describe_machine(execution),
        reason=f"diverged: {diverged_because}" if diverged_because else None,
    )
    write_record(paths.record, record)
    return record


def describe_machine(execution: Execution) -> dict[str, Any]:
    """Collect the provenance fields of a record."""
    return {
        "code_version": provenance.code_version(),
        "library_versions": provenance.library_versions(),
        "hardware": provenance.hardware(execution.threads),
        "peak_bytes": provenance.peak_memory_bytes(),
        "peak_flops_per_s": provenance.peak_flops_per_s(),
    }


def depth_block_size(run: PlannedRun) -> int | None:
    """Sublayers per depth block of a run's recipe; None for recipes without blocks."""
    config = RunConfig.model_validate(run.config)
    cls = get(config.residual.name)
    shape = Shape(n_layers=config.model.n_layers, d_model=config.model.d_model)
    return cls.block_size(shape, cls.Options.model_validate(config.residual.options))
