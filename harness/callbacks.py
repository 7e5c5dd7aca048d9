"""Lightning callbacks of one run: fence, journal, divergence guard, validation, diagnostics,
checkpoints.

Each does one thing at the end of a training step, in the order in which ``training`` lists them.
All are functions of the step count, never of an epoch, so that a resumed run does what an
undisturbed one does. Every process of a run decides alike; the first one writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.checkpoints import leave_in_trunk, naming, save_checkpoint
from harness.diagnostics import measure
from harness.distributed import Ranks, release
from harness.errors import LeaseLost
from harness.lean_lightning import Callback, LightningModule, Trainer
from harness.module import LanguageModel, inputs_and_labels, loss_and_hits, token_loss
from harness.paths import RunPaths
from harness.probing import Measure
from harness.records import append_jsonl
from harness.stop import Stop
from harness.tasks import IGNORED

Outputs = Tensor | Mapping[str, Any] | None


@dataclass
class Progress:
    """What the callbacks of one run share."""

    paths: RunPaths
    attempt: int
    """Number of this try, from 1; stands in every row."""
    steps: int
    batch_tokens: int
    flops_per_token: int
    bits_per_byte_per_nat: float | None
    """bits_per_byte / loss_nats of the corpus; None for a task."""
    stop: Stop
    checkpoint_every_s: float
    ranks: Ranks = field(default_factory=Ranks)
    branch_step: int | None = None
    """Step after which longer runs of the trunk go on from this run's state."""
    trunk: Path | None = None
    """Folder where it is left for them; None where none will."""
    kept: frozenset[int] = frozenset()
    """Steps whose checkpoints stay, for evaluation."""
    branched: dict[str, Any] = field(default_factory=dict)
    """``branched_at`` and ``branched_from`` of the record."""
    stopping: bool = False
    """Whether a stop was asked for, as all processes agreed at the last step boundary."""
    save_due: bool = False
    """Whether the time for a checkpoint had come, likewise."""
    diverged_because: str | None = None
    interrupted: bool = False
    began: float = field(default_factory=time.perf_counter)
    saved_at: float = field(default_factory=time.perf_counter)

    def agree(self) -> None:
        """Agree with the other processes on what this step boundary brings.

        Raises
        ------
        LeaseLost
            Another process owns the run now.
        """
        due = time.perf_counter() - self.saved_at >= self.checkpoint_every_s
        stopping, self.save_due, lost = self.ranks.any(bool(self.stop), due, self.stop.lost)
        if lost:
            raise self._replaced()
        self.stopping = stopping

    def check_owner(self) -> None:
        """Refuse to write into a run that another process owns; raises as :meth:`agree`."""
        if self.stop.lost:
            raise self._replaced()

    def _replaced(self) -> LeaseLost:
        return LeaseLost(
            f"{self.paths.root}: attempt {self.attempt} has been replaced by another; nothing more "
            "is written by this one"
        )

    def append(self, path: Path, row: dict[str, Any]) -> None:
        """Append a row to a file of the run, on the first process."""
        if self.ranks.first:
            self.check_owner()
            with naming(path):
                append_jsonl(path, row)

    def row(self, kind: str, step: int, **values: Any) -> dict[str, Any]:
        """One line of a metrics file."""
        tokens = step * self.batch_tokens
        return {
            "kind": kind,
            "step": step,
            "tokens": tokens,
            "flops": float(tokens * self.flops_per_token),
            **values,
            "elapsed_s": time.perf_counter() - self.began,
            "attempt": self.attempt,
        }


def even_steps(steps: int, count: int) -> frozenset[int]:
    """``count`` steps evenly spaced over 1..steps, the last at the end; none for count 0."""
    return frozenset(math.ceil(steps * k / count) for k in range(1, count + 1))


class StepCallback(Callback):
    """A callback that acts when a training step has ended."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Outputs,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Hand over to :meth:`after_step` with the number of completed steps."""
        assert isinstance(pl_module, LanguageModel)
        assert isinstance(outputs, Mapping)
        self.after_step(trainer, pl_module, outputs, trainer.global_step)

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Act on completed step ``step`` (from 1)."""
        raise NotImplementedError


class Fence(StepCallback):
    """Comes first: learns what is asked of the run, and ends it before anybody writes if it was
    taken over.
    """

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Agree with the other processes; raises LeaseLost."""
        self.progress.agree()


class Journal(StepCallback):
    """Writes training losses and step times, and ends a run that diverged.

    Step times are means over a window of ``log_every`` steps, validation and checkpoints
    excluded; the first step of an attempt warms up and is left out.
    """

    def __init__(self, progress: Progress, log_every: int, loss_limit: float) -> None:
        super().__init__(progress)
        self.log_every, self.loss_limit = log_every, loss_limit
        self.started = 0.0
        self.window: list[float] = []
        self.warm = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock of a step."""
        self.started = time.perf_counter()

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Close the clock, check the loss, and write a row when one is due.

        The check runs at every step: whether a run diverged must not depend on how it is logged.
        """
        loss = outputs["loss_nats"].item()
        if self.warm:
            self.window.append(time.perf_counter() - self.started)
        self.warm = True
        if step % self.log_every == 0 or step == self.progress.steps:
            self._write(outputs, step, loss)
        self._guard(trainer, step, loss)

    def _write(self, outputs: Mapping[str, Any], step: int, loss: float) -> None:
        row = self.progress.row(
            "train",
            step,
            loss_nats=loss if math.isfinite(loss) else None,
            lr=outputs["lr"],
            grad_norm=_finite(outputs["grad_norm"].item()),
            step_time_s=sum(self.window) / len(self.window) if self.window else None,
        )
        self.progress.append(self.progress.paths.metrics, row)
        self.window.clear()

    def _guard(self, trainer: Trainer, step: int, loss: float) -> None:
        if math.isfinite(loss) and loss <= self.loss_limit:
            return
        rule = "not finite" if not math.isfinite(loss) else f"above {self.loss_limit:.2f} nats"
        self.progress.diverged_because = f"training loss {loss:.4g} {rule} at step {step}"
        trainer.should_stop = True


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Validator(StepCallback):
    """Evaluates the fixed validation set at given steps."""

    def __init__(
        self,
        progress: Progress,
        at_steps: frozenset[int],
        batches: Callable[[], list[Tensor]],
        measure: Measure | None = None,
    ) -> None:
        super().__init__(progress)
        self.at_steps, self.batches, self.measure = at_steps, batches, measure

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Write a ``val`` row when the step is due."""
        if step not in self.at_steps or self.progress.diverged_because:
            return
        loss, hits = evaluate(
            *(trainer, module, self.batches(), self.progress.ranks), with_hits=bool(self.measure)
        )
        if not math.isfinite(loss):
            self.progress.diverged_because = f"validation loss {loss} at step {step}"
            trainer.should_stop = True
            return
        per_nat = self.progress.bits_per_byte_per_nat
        row = self.progress.row(
            "val",
            step,
            loss_nats=loss,
            bits_per_byte=None if per_nat is None else loss * per_nat,
            **({} if self.measure is None or hits is None else self.measure(hits.numpy())),
        )
        self.progress.append(self.progress.paths.metrics, row)


@torch.no_grad()
def evaluate(
    trainer: Trainer,
    module: LanguageModel,
    batches: list[Tensor],
    ranks: Ranks,
    *,
    with_hits: bool = False,
) -> tuple[float, Tensor | None]:
    """Mean loss per label in nats over validation batches, and which labels were hit.

    The processes share the batches. All make equally many passes, since a sharded model needs all
    of them for each; a pass too many is not counted.

    Returns
    -------
    float
        Mean cross-entropy.
    Tensor or None
        Whether the likeliest token is the label, [sequences, seq_len], 0 or 1, on the processor;
        None unless asked for.
    """
    total, count = 0.0, 0.0
    hits = [torch.zeros_like(inputs_and_labels(batch)[1], dtype=torch.int32) for batch in batches]
    module.eval()
    with trainer.precision_plugin.val_step_context():
        for first in range(0, len(batches), ranks.size):
            mine = first + ranks.rank
            batch = batches[mine if mine < len(batches) else first].to(module.device)
            if with_hits:
                loss, found = loss_and_hits(module.model, batch)
            else:
                loss, found = token_loss(module.model, batch), None
            if mine < len(batches):
                labels = int((inputs_and_labels(batch)[1] != IGNORED).sum())
                total += loss.item() * labels
                count += labels
                if found is not None:
                    hits[mine] = found.to("cpu", torch.int32)
    module.train()
    release(module.model)
    total, count = ranks.sums(total, count)
    return total / count, ranks.summed(torch.cat(hits)) if with_hits else None


class Diagnostics(StepCallback):
    """Measures the inside of the model at given steps, on one fixed batch; causes at the last."""

    def __init__(
        self, progress: Progress, at_steps: frozenset[int], batch: Callable[[], Tensor]
    ) -> None:
        super().__init__(progress)
        self.at_steps, self.batch = at_steps, batch

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Write a diagnostics row when the step is due."""
        if step not in self.at_steps or self.progress.diverged_because:
            return
        model = module.whole_model()
        if model is None:
            return
        model.eval()
        with trainer.precision_plugin.val_step_context():
            tokens = self.batch().to(module.device)
            values = measure(model, tokens, causal=step == max(self.at_steps))
        model.train()
        row = {"kind": "diagnostics", "step": step, **values, "attempt": self.progress.attempt}
        self.progress.append(self.progress.paths.diagnostics, row)


class Checkpointer(StepCallback):
    """Saves the state by wall-clock interval, when asked to stop, and at the end; at the branch for
    longer runs of the trunk, and at steps that are to be evaluated, too.
    """

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Save when due; on a stop request, save and end the run as interrupted."""
        if self.progress.diverged_because:
            return
        ended = step == self.progress.steps
        stopping = self.progress.stopping and not ended
        branching = self.progress.trunk is not None and step == self.progress.branch_step
        if ended or stopping or branching or self.progress.save_due or step in self.progress.kept:
            saved = self._save(trainer)
            if branching and self.progress.trunk and trainer.is_global_zero:
                leave_in_trunk(saved, self.progress.trunk)
        if stopping:
            self.progress.interrupted = True
            trainer.should_stop = True

    def _save(self, trainer: Trainer) -> Path:
        progress = self.progress
        saved = save_checkpoint(
            trainer, progress.paths, progress.attempt, progress.check_owner, progress.kept
        )
        progress.saved_at = time.perf_counter()
        return saved
