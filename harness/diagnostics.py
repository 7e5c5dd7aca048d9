"""What happens inside a model: norms, gradients and depth attention, sublayer by sublayer.

One extra forward and backward pass on a fixed validation batch, a few times a run: nothing is
hooked into the training step, and training gradients are left alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from harness.model import Transformer
from harness.module import next_token_loss
from recipes.base import State

NEWEST_IS_COLLAPSED = 0.9
"""Mean weight on the newest source above which a read counts as collapsed to it (our choice)."""
UNIFORM_IS_COLLAPSED = 0.95
"""Normalised entropy above which a read counts as collapsed to the uniform mean (our choice)."""


class _Trace:
    """Collects what an observer sees; outputs stay attached to the graph."""

    def __init__(self, model: Transformer) -> None:
        self.residual = model.residual
        self.inputs: list[float] = []
        self.states: list[float] = []
        self.outputs: list[Tensor] = []
        self.reads: list[dict[str, Any]] = []
        self.last: State = None

    def __call__(self, t: int, before: State, u: Tensor, y: Tensor, after: State) -> None:
        self.inputs.append(_rms(u))
        self.outputs.append(y)
        self.states.append(_rms(self.residual.stream(after)))
        self.add_read(before, t)
        self.last = after

    @torch.no_grad()
    def add_read(self, state: State, t: int) -> None:
        weights = self.residual.depth_weights(state, t)
        if weights is not None:
            self.reads.append(read_statistics(weights, t, self.residual.source_labels(t)))


def _rms(x: Tensor) -> float:
    return float(x.detach().float().square().mean().sqrt())


def read_statistics(weights: Tensor, t: int, labels: list[str]) -> dict[str, Any]:
    """Summarise the depth weights of one read, averaged over tokens.

    Parameters
    ----------
    weights
        [n_sources, batch, tokens], summing to one over sources, oldest source first.
    t
        Sublayer of the read; n_sublayers for the final one.
    labels
        Names of the sources.

    Returns
    -------
    dict
        ``mean_weights``; ``normalised_entropy`` = -sum a ln a / ln n_sources, null for one source;
        ``max_weight`` = mean over tokens of the largest weight; ``newest_mass``;
        ``embedding_mass``.
    """
    wide = weights.double()
    n_sources = wide.shape[0]
    entropy = -torch.special.xlogy(wide, wide).sum(0).mean().item()
    means = wide.mean(dim=(1, 2)).tolist()
    return {
        "t": t,
        "labels": labels,
        "mean_weights": means,
        "normalised_entropy": entropy / math.log(n_sources) if n_sources > 1 else None,
        "max_weight": wide.amax(0).mean().item(),
        "newest_mass": means[-1],
        "embedding_mass": means[0],
    }


def collapse(reads: list[dict[str, Any]]) -> dict[str, float | None]:
    """Share of reads with two sources or more that collapsed to the newest source, or to the
    mean.
    """
    choosing = [read for read in reads if read["normalised_entropy"] is not None]
    if not choosing:
        return {"collapsed_to_newest": None, "collapsed_to_uniform": None}
    newest = sum(read["newest_mass"] > NEWEST_IS_COLLAPSED for read in choosing)
    uniform = sum(read["normalised_entropy"] > UNIFORM_IS_COLLAPSED for read in choosing)
    return {
        "collapsed_to_newest": newest / len(choosing),
        "collapsed_to_uniform": uniform / len(choosing),
    }


def measure(model: Transformer, tokens: Tensor) -> dict[str, Any]:
    """Measure one model on one batch.

    Parameters
    ----------
    tokens
        [sequences, seq_len + 1].

    Returns
    -------
    dict
        Lists over sublayers: ``input_rms`` of u_t before its pre-norm, ``output_rms`` of y_t,
        ``state_rms`` of the state leaving the sublayer, ``grad_rms`` of dLoss/dy_t (which is the
        gradient of the running sum or partial that y_t enters); ``reads`` after
        :func:`read_statistics`; the two shares of :func:`collapse`.
    """
    trace = _Trace(model)
    with torch.enable_grad():
        loss = next_token_loss(functools.partial(model, observer=trace), tokens)
        gradients = torch.autograd.grad(loss, trace.outputs)
    trace.add_read(trace.last, model.config.n_sublayers)
    return {
        "input_rms": trace.inputs,
        "output_rms": [_rms(y) for y in trace.outputs],
        "state_rms": trace.states,
        "grad_rms": [_rms(gradient) for gradient in gradients],
        "reads": trace.reads,
        **collapse(trace.reads),
    }
