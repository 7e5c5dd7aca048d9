"""Lightning callbacks of one run: journal, divergence guard, validation, diagnostics, checkpoints.

Each does one thing at the end of a training step, in the order in which ``training`` lists them.
All are functions of the step count, never of an epoch, so that a resumed run does what an
undisturbed one does.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from harness.checkpoints import save_checkpoint
from harness.diagnostics import measure
from harness.module import LanguageModel, next_token_loss
from harness.paths import RunPaths
from harness.records import append_jsonl

Outputs = Tensor | Mapping[str, Any] | None


@dataclass
class StopSignal:
    """Asks a run to stop at the next step boundary: by a signal, or because its parent is gone."""

    parent: int | None = None
    requested: bool = False
    installed: bool = False
    """Whether this process's signals are ours."""

    def install(self) -> None:
        """Take SIGINT and SIGTERM; the handler only raises a flag."""
        self.installed = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.requested = True

    def __bool__(self) -> bool:
        return self.requested or (self.parent is not None and os.getppid() != self.parent)


@dataclass
class Progress:
    """What the callbacks of one run share."""

    paths: RunPaths
    attempt: int
    """Number of this try, from 1; stands in every row."""
    steps: int
    batch_tokens: int
    flops_per_token: int
    nats_to_bits_per_byte: float
    """bits_per_byte / loss_nats of the corpus."""
    stop: StopSignal
    diverged_because: str | None = None
    interrupted: bool = False
    began: float = field(default_factory=time.perf_counter)

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
        append_jsonl(self.progress.paths.metrics, row)
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
        self, progress: Progress, at_steps: frozenset[int], batches: Callable[[], list[Tensor]]
    ) -> None:
        super().__init__(progress)
        self.at_steps, self.batches = at_steps, batches

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Write a ``val`` row when the step is due."""
        if step not in self.at_steps or self.progress.diverged_because:
            return
        loss = evaluate(trainer, module, self.batches())
        if not math.isfinite(loss):
            self.progress.diverged_because = f"validation loss {loss} at step {step}"
            trainer.should_stop = True
            return
        row = self.progress.row(
            "val",
            step,
            loss_nats=loss,
            bits_per_byte=loss * self.progress.nats_to_bits_per_byte,
        )
        append_jsonl(self.progress.paths.metrics, row)


@torch.no_grad()
def evaluate(trainer: Trainer, module: LanguageModel, batches: list[Tensor]) -> float:
    """Mean loss per token in nats over batches of token windows, each [sequences, seq_len + 1]."""
    total, count = 0.0, 0
    module.eval()
    with trainer.precision_plugin.val_step_context():
        for tokens in batches:
            on_device = tokens.to(module.device)
            targets = tokens.shape[0] * (tokens.shape[1] - 1)
            total += next_token_loss(module.model, on_device).item() * targets
            count += targets
    module.train()
    return total / count


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
        module.eval()
        with trainer.precision_plugin.val_step_context():
            tokens = self.batch().to(module.device)
            values = measure(module.model, tokens, causal=step == max(self.at_steps))
        module.train()
        row = {"kind": "diagnostics", "step": step, **values, "attempt": self.progress.attempt}
        append_jsonl(self.progress.paths.diagnostics, row)


class Checkpointer(StepCallback):
    """Saves the state by wall-clock interval, when asked to stop, and at the end."""

    def __init__(self, progress: Progress, every_s: float) -> None:
        super().__init__(progress)
        self.every_s = every_s
        self.saved_at = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals back from the trainer, which would end the process on SIGTERM."""
        if self.progress.stop.installed:
            self.progress.stop.install()

    def after_step(
        self, trainer: Trainer, module: LanguageModel, outputs: Mapping[str, Any], step: int
    ) -> None:
        """Save when due; on a stop request, save and end the run as interrupted."""
        if self.progress.diverged_because:
            return
        ended = step == self.progress.steps
        stopping = bool(self.progress.stop) and not ended
        if ended or stopping or time.perf_counter() - self.saved_at >= self.every_s:
            save_checkpoint(trainer, self.progress.paths)
            self.saved_at = time.perf_counter()
        if stopping:
            self.progress.interrupted = True
            trainer.should_stop = True
