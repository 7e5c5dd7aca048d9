"""The LightningModule of one run: loss, optimiser step, and its identity in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.config import Execution, RunConfig
from harness.distributed import Ranks, accumulating, whole_model
from harness.lean_lightning import LightningModule
from harness.model import Transformer
from harness.optimiser import JointOptimizer, build_optimizer, clip_gradients, set_lr
from harness.schedule import lr_fraction
from harness.tasks import IGNORED

Batch = dict[str, Any]
"""``step``: int; ``tokens``: int64, as for :func:`inputs_and_labels`."""


def inputs_and_labels(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Split a batch into what the model reads and what it must say, each [sequences, seq_len].

    Parameters
    ----------
    batch
        Windows of text, [sequences, seq_len + 1], whose labels are the next tokens; or the
        sequences of a task, [sequences, 2, seq_len], inputs over labels.
    """
    if batch.dim() == 3:
        return batch[:, 0], batch[:, 1]
    return batch[:, :-1], batch[:, 1:]


def token_loss(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Mean cross-entropy over all positions with a label, in nats.

    Parameters
    ----------
    model
        Token ids [sequences, seq_len] to logits [sequences, seq_len, vocab_size].
    batch
        As for :func:`inputs_and_labels`.

    Returns
    -------
    Tensor
        Scalar; the logits are cast to fp32 at least before the softmax.
    """
    inputs, labels = inputs_and_labels(batch)
    return _cross_entropy(model(inputs), labels)


def loss_and_hits(model: Callable[[Tensor], Tensor], batch: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`token_loss`, and whether the likeliest token is the label, [sequences, seq_len]."""
    inputs, labels = inputs_and_labels(batch)
    logits = model(inputs)
    return _cross_entropy(logits, labels), logits.argmax(dim=-1) == labels


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class LanguageModel(LightningModule):
    """One run under Lightning, optimised by hand so that one batch is one optimiser step.

    Every process gets its rows of the global batch, and cuts them into micro-batches here; the
    gradients add up to the gradient of the whole batch, however it is split.

    Parameters
    ----------
    execution
        Which kernel, and whether sublayers are recomputed.
    microbatch_seqs
        Sequences per forward pass of this process.
    ranks
        The processes that share the run.
    trunk
        Id of the training that the run shares with runs of other budgets; None where it shares
        none.
    """

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        vocab_size: int,
        steps: int,
        execution: Execution,
        microbatch_seqs: int,
        ranks: Ranks,
        trunk: str | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.run_id = run_id
        self.vocab_size = vocab_size
        self.steps = steps
        self.execution = execution
        self.microbatch_seqs = microbatch_seqs
        self.ranks = ranks
        self.trunk = trunk
        self.branched: dict[str, Any] = {}
        """``branched_at`` and ``branched_from`` of the record, for a run that went on from another
        one's state."""
        self.model = self._build()

    def _build(self) -> Transformer:
        config = self.config
        model = Transformer(config.model, config.residual, self.vocab_size, config.seed)
        model.residual.use_kernel(self.execution.kernel)
        model.recompute = self.execution.recompute
        # Lightning converts only after it has restored a checkpoint, which fp32 would round.
        return model.double() if config.train.precision == "fp64" else model

    def whole_model(self) -> Transformer | None:
        """The model on the first process, None on the others; see :func:`whole_model`."""
        return whole_model(self.model, self.ranks, self._build)

    def configure_optimizers(self) -> JointOptimizer:
        """One optimiser over all groups; the schedule is a pure function of the step."""
        return build_optimizer(self.model, self.config.train)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """Take one optimiser step; return its loss, gradient norm and learning rate.

        All three are those of the global batch, and equal on every process.
        """
        step = self.global_step
        if batch["step"] != step:
            raise RuntimeError(f"batch of step {batch['step']} reached optimiser step {step}")
        optimizer = self.optimizers()
        lr = self.config.train.lr * lr_fraction(self.config.train, step, self.steps)
        set_lr(optimizer, lr)  # type: ignore[arg-type]
        optimizer.zero_grad()  # type: ignore[union-attr]
        loss = self.ranks.mean(self._accumulate(batch["tokens"]))
        grad_norm = clip_gradients(self.model, self.config.train.grad_clip)
        optimizer.step()  # type: ignore[union-attr]
        return {"loss_nats": loss, "grad_norm": grad_norm, "lr": lr}

    def _accumulate(self, tokens: Tensor) -> Tensor:
        """Back-propagate the batch in micro-batches; return the mean loss, detached."""
        total = torch.zeros((), device=tokens.device)
        parts = torch.split(tokens, self.microbatch_seqs)
        for part in parts:
            share = part.shape[0] / tokens.shape[0]
            with accumulating(self.trainer.strategy, last=part is parts[-1]):
                loss = token_loss(self.model, part) * share
                self.manual_backward(loss)
            total = total + loss.detach()
        return total

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Sign the checkpoint, so that no run resumes from it but this one and, up to the branch,
        those of its trunk.
        """
        checkpoint["run_id"] = self.run_id
        checkpoint["trunk"] = self.trunk
        checkpoint["branched"] = self.branched

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note whose training this run goes on with."""
        owner = checkpoint["run_id"]
        if owner != self.run_id:
            self.branched = {"branched_at": checkpoint["global_step"], "branched_from": owner}
        else:
            self.branched = checkpoint.get("branched", {})
