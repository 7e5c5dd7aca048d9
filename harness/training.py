"""Trains one run through Lightning's Trainer, resuming where an earlier attempt stopped.

The same code runs in one process, or in each of several that share the run.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from harness import provenance
from harness.branching import begin, trunk_to_serve
from harness.callbacks import (
    Checkpointer,
    Diagnostics,
    Fence,
    Journal,
    Progress,
    StepCallback,
    Validator,
    even_steps,
)
from harness.checkpoints import CheckpointFiles, step_of
from harness.config import RUNAWAY, Execution, RunConfig
from harness.distributed import RankEnvironment, Ranks, ranks_of, strategy_of
from harness.errors import DataError
from harness.launch.ranks import sequences_per_rank
from harness.lean_lightning import Trainer, _SignalConnector
from harness.memory import within_memory
from harness.module import Batch, LanguageModel
from harness.paths import RunPaths
from harness.probing import Measure, measure_answers
from harness.recording import build_record
from harness.records import PlannedRun, RunRecord, read_record, write_record
from harness.source import Batches, Source, TaskSource, open_source
from harness.stop import Stop
from recipes.base import Shape, get

LIGHTNING_PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}
EVAL_SEQUENCES = 32
"""Sequences per forward pass of a validation."""
DIAGNOSTIC_SEQUENCES = 8
"""Validation sequences that diagnostics look at."""


class StepDataset(IterableDataset[Batch]):
    """The batches of steps ``first`` .. ``steps - 1``, each a pure function of (seed, step).

    Parameters
    ----------
    rows
        Sequences of every global batch to yield.
    """

    def __init__(self, batches: Batches, first: int, steps: int, rows: slice) -> None:
        self.batches, self.first, self.steps, self.rows = batches, first, steps, rows

    def __iter__(self) -> Iterator[Batch]:
        """Yield this process's share of one global batch per optimiser step."""
        for step in range(self.first, self.steps):
            tokens = self.batches.batch(step)[self.rows]
            yield {"step": step, "tokens": torch.from_numpy(tokens)}


def train(
    run: PlannedRun,
    sweep: str,
    paths: RunPaths,
    execution: Execution,
    stop: Stop,
    attempt: int = 1,
    microbatch_seqs: int | None = None,
) -> RunRecord | None:
    """Train one run to its end, or to the next step boundary after a stop request.

    A run of several processes is trained by calling this in each of them, which
    :func:`harness.launch.ranks.train_in_ranks` does.

    Parameters
    ----------
    attempt
        Number of this try; its folder exists.
    microbatch_seqs
        Sequences per forward pass of one process, in place of ``execution.microbatch_seqs``.

    Returns
    -------
    RunRecord or None
        The record, also written to ``record.json`` as the last act; None when the run was
        interrupted and can be resumed, and on all processes but the first.

    Raises
    ------
    DataError
        The corpus is not the one that the run was planned with.
    CheckpointError
        The run's folder holds a checkpoint of another run.
    IsolossError
        The batch cannot be split evenly over the processes.
    OutOfMemory
        The micro-batch was too large.
    LeaseLost
        Another process owns the run now; nothing has been written since that was noticed.
    OSError
        The run's folder cannot be written; carries the path.
    """
    config = RunConfig.model_validate(run.config)
    ranks = ranks_of(execution)
    share = sequences_per_rank(config, execution)
    asked = microbatch_seqs or execution.microbatch_seqs or share
    source = _planned_source(config, run)
    _quiet_lightning()
    torch.set_num_threads(execution.threads)
    provenance.reset_peak_memory()
    progress = _progress(run, config, source, paths, execution, stop, attempt, ranks)
    progress.trunk = ranks.told(lambda: trunk_to_serve(run, paths))
    microbatch = min(asked, share)

    def fit() -> None:
        module = LanguageModel(
            *(config, run.run_id, run.vocab_size, run.cost.steps),
            *(execution, microbatch, ranks, run.trunk),
        )
        _fit(module, run, config, source, progress, execution)

    within_memory(fit, microbatch)
    if progress.interrupted:
        return None
    return _record(run, sweep, progress, execution, microbatch if microbatch < share else None)


def _fit(
    module: LanguageModel,
    run: PlannedRun,
    config: RunConfig,
    source: Source,
    progress: Progress,
    execution: Execution,
) -> None:
    checkpoint = progress.ranks.told(lambda: begin(run, progress))
    first = step_of(checkpoint) if checkpoint else 0
    loader = _loader(source, progress, first)
    trainer = _build_trainer(config, source, progress, execution)
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=checkpoint is not None or None)
    progress.branched = module.branched


def _planned_source(config: RunConfig, run: PlannedRun) -> Source:
    source = open_source(config)
    if source.info.sha256 != run.corpus_sha256:
        kind = "corpus" if config.data.task is None else "task"
        raise DataError(
            f"{kind} '{config.data.label}' has changed since the run was planned "
            f"(sha256 {source.info.sha256[:12]}, planned {run.corpus_sha256[:12]}). "
            "Run the grid again to plan with the new content, or restore the old one."
        )
    return source


def _quiet_lightning() -> None:
    """Keep the trainer's notices out of worker logs; errors still show."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def _progress(
    run: PlannedRun,
    config: RunConfig,
    source: Source,
    paths: RunPaths,
    execution: Execution,
    stop: Stop,
    attempt: int,
    ranks: Ranks,
) -> Progress:
    return Progress(
        paths=paths,
        attempt=attempt,
        steps=run.cost.steps,
        batch_tokens=config.train.batch_tokens,
        flops_per_token=run.cost.flops_per_token,
        bits_per_byte_per_nat=source.bits_per_byte_per_nat,
        stop=stop,
        checkpoint_every_s=execution.checkpoint_every_s,
        ranks=ranks,
        branch_step=run.branch_step,
        kept=even_steps(run.cost.steps, execution.n_checkpoints),
    )


def _loader(source: Source, progress: Progress, first: int) -> DataLoader[Batch]:
    batches = source.batches()
    rows = progress.ranks.rows(batches.n_sequences)
    return DataLoader(StepDataset(batches, first, progress.steps, rows), batch_size=None)


class _NoSignals(_SignalConnector):
    """Leaves the signals of the process alone.

    Lightning's handler of SIGTERM broadcasts between processes from inside the handler and ends the
    process unsaved at the next batch.
    """

    def register_signal_handlers(self) -> None:
        """Register nothing."""


def _build_trainer(
    config: RunConfig, source: Source, progress: Progress, execution: Execution
) -> Trainer:
    """Build a Trainer that owns the loop and nothing else: logs, checkpoints, processes and
    signals are ours.
    """
    alone = progress.ranks.size == 1
    trainer = Trainer(
        accelerator="auto",
        strategy="auto" if alone else strategy_of(execution),
        devices=execution.devices,
        num_nodes=execution.nodes,
        precision=LIGHTNING_PRECISION[config.train.precision],  # type: ignore[arg-type]
        max_steps=progress.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        # No such folder: under Slurm, Lightning resumes by itself from one that holds hpc_ckpt_N.
        default_root_dir=progress.paths.root / "none",
        plugins=[RankEnvironment(progress.ranks), CheckpointFiles()],
        callbacks=list(_callbacks(source, progress, execution)),
    )
    trainer._signal_connector = _NoSignals(trainer)
    return trainer


def _callbacks(source: Source, progress: Progress, execution: Execution) -> list[StepCallback]:
    batches = functools.cache(functools.partial(_validation, source))
    loss_limit = RUNAWAY * math.log(source.info.vocab_size)
    diagnostic = even_steps(progress.steps, execution.n_diagnostics)
    validated = even_steps(progress.steps, execution.n_evals)
    return [
        Fence(progress),
        Journal(progress, execution.log_every, loss_limit),
        Validator(progress, validated, batches, _answers(source)),
        Diagnostics(progress, diagnostic, lambda: batches()[0][:DIAGNOSTIC_SEQUENCES]),
        Checkpointer(progress),
    ]


def _validation(source: Source) -> list[Tensor]:
    return [torch.from_numpy(batch) for batch in source.validation(EVAL_SEQUENCES)]


def _answers(source: Source) -> Measure | None:
    """What is measured of the answers to a task; nothing of text."""
    if not isinstance(source, TaskSource):
        return None
    return functools.partial(measure_answers, source.held_out())


def _record(
    run: PlannedRun,
    sweep: str,
    progress: Progress,
    execution: Execution,
    microbatch_seqs: int | None,
) -> RunRecord | None:
    peak_bytes = progress.ranks.largest(provenance.peak_memory_bytes() or 0)
    if not progress.ranks.first:
        return None
    machine = {"peak_bytes": int(peak_bytes) or None, "microbatch_seqs": microbatch_seqs}
    why = progress.diverged_because
    record = build_record(
        run,
        sweep,
        progress.paths,
        status="diverged" if why else "done",
        block_size=depth_block_size(run),
        provenance=describe_machine(execution) | machine | progress.branched,
        reason=f"diverged: {why}" if why else None,
    )
    progress.check_owner()
    written = write_record(progress.paths.record, record)
    return record if written else read_record(progress.paths.record)


def describe_machine(execution: Execution) -> dict[str, Any]:
    """Collect the provenance fields of a record; the peak speed is that of all processes."""
    processes = execution.devices * execution.nodes
    return {
        "code_version": provenance.code_version(),
        "library_versions": provenance.library_versions(),
        "hardware": provenance.hardware(execution.threads, processes),
        "peak_bytes": provenance.peak_memory_bytes(),
        "peak_flops_per_s": provenance.peak_flops_per_s() * processes,
    }


def depth_block_size(run: PlannedRun) -> int | None:
    """Sublayers per depth block of a run's recipe; None for recipes without blocks."""
    config = RunConfig.model_validate(run.config)
    cls = get(config.residual.name)
    shape = Shape(n_layers=config.model.n_layers, d_model=config.model.d_model)
    return cls.block_size(shape, cls.Options.model_validate(config.residual.options))
