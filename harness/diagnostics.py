"""What happens inside a model: norms, gradients and depth attention, sublayer by sublayer.

One extra forward and backward pass on a fixed validation batch, a few times a run, and once a run
the causal check, in forward passes alone. Nothing is hooked into the training step, and training
gradients are left alone. Statistics themselves are in ``read_statistics``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_map

from harness.model import Transformer
from harness.module import token_loss
from harness.read_statistics import (
    Read,
    collapse,
    mixing_statistics,
    read_statistics,
    source_statistics,
)
from recipes.base import Residual, State

SAMPLED_TOKENS = 256
"""Tokens of the batch, evenly spaced, at which sources are compared with each other."""


class _Trace:
    """Collects what an observer sees; outputs and streams stay attached to the graph."""

    def __init__(self, residual: Residual) -> None:
        self.residual = residual
        self.states: list[State] = []
        self.inputs: list[float] = []
        self.outputs: list[Tensor] = []
        self.streams: list[Tensor] = []
        self.last: State = None

    def __call__(self, t: int, before: State, u: Tensor, y: Tensor, after: State) -> None:
        self.states.append(_detached(before))
        self.inputs.append(_rms(u))
        self.outputs.append(y)
        self.streams.append(self.residual.stream(after))
        self.last = after

    def close(self) -> None:
        """Keep the state that the final read sees."""
        self.states.append(_detached(self.last))


class Gradients:
    """Gradients of the loss with respect to tensors inside the model, by identity."""

    def __init__(self, loss: Tensor, wanted: Sequence[Tensor]) -> None:
        reachable = [tensor for tensor in wanted if tensor.requires_grad]
        found = torch.autograd.grad(loss, reachable, allow_unused=True)
        self.found = {id(x): grad for x, grad in zip(reachable, found, strict=True)}

    def __call__(self, tensor: Tensor) -> Tensor | None:
        """Return the gradient of a tensor; None where the loss does not depend on it."""
        return self.found.get(id(tensor))

    def norm(self, parameters: Iterator[Tensor]) -> float:
        """L2 norm over all of ``parameters``; those without gradient count as zero."""
        norms = [grad.float().norm() for p in parameters if (grad := self(p)) is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0


def measure(model: Transformer, tokens: Tensor, *, causal: bool = False) -> dict[str, Any]:
    """Measure one model on one batch.

    Parameters
    ----------
    tokens
        [sequences, seq_len + 1].
    causal
        Also mask every source in turn, see :func:`loss_changes`.

    Returns
    -------
    dict
        Lists over sublayers: ``input_rms`` of u_t before its pre-norm, ``output_rms`` of y_t,
        ``state_rms`` of the state leaving the sublayer, ``grad_rms`` of dLoss/dy_t,
        ``param_grad_l2`` of the sublayer's parameters. Over layers: ``layer_grad_rms`` of
        dLoss/d(state leaving the layer). All unclipped, losses being means over tokens. ``reads``
        after :func:`read_statistics`, with what their sources contribute and their query's norms;
        ``mixing`` of parallel streams by read; the shares of :func:`collapse`;
        ``batch_loss_nats``; ``masking`` after :func:`loss_changes`, null unless asked for;
        ``cost`` in passes over the batch.
    """
    residual, trace = model.residual, _Trace(model.residual)
    with torch.enable_grad():
        loss = token_loss(functools.partial(model, observer=trace), tokens)
        wanted = [*trace.outputs, *trace.streams, *model.parameters()]
        gradients = Gradients(loss, wanted)
    trace.close()
    reads = _reads(residual, trace.states, gradients)
    masking = loss_changes(model, tokens, trace.states, reads, loss.item()) if causal else None
    return {
        "input_rms": trace.inputs,
        "output_rms": [_rms(y) for y in trace.outputs],
        "state_rms": [_rms(stream) for stream in trace.streams],
        "grad_rms": [_rms(gradients(y)) for y in trace.outputs],
        "layer_grad_rms": _layer_gradients(trace, gradients),
        "param_grad_l2": [gradients.norm(part.parameters()) for part in model.sublayers],
        "reads": reads,
        "mixing": mixing_health(residual, trace.states, gradients),
        **collapse(reads, model.config.n_sublayers),
        "batch_loss_nats": loss.item(),
        "masking": masking,
        "cost": {
            "sequences": tokens.shape[0],
            "forward_passes": 1.0 + _masked_passes(masking, reads, model.config.n_sublayers),
            "backward_passes": 1,
        },
    }


def _layer_gradients(trace: _Trace, gradients: Gradients) -> list[float]:
    """RMS of dLoss/d(state leaving a layer), by layer.

    Where the state is no tensor of the graph (parallel streams summed up), or one whose gradient
    may bypass the graph (custom functions of lean reads), that of the layer's last output stands
    in: what is added to the state moves the loss as the state does.
    """
    found = []
    for stream, y in zip(trace.streams[1::2], trace.outputs[1::2], strict=True):
        custom = isinstance(stream.grad_fn, BackwardCFunction)
        gradient = None if custom else gradients(stream)
        found.append(_rms(gradients(y) if gradient is None else gradient))
    return found


@torch.no_grad()
def _reads(residual: Residual, states: Sequence[State], gradients: Gradients) -> list[Read]:
    reads = []
    for t, state in enumerate(states):
        weights = residual.depth_weights(state, t)
        if weights is None:
            continue
        read = read_statistics(weights, t, residual.source_labels(t))
        values = residual.depth_values(state, t)
        if values is not None:
            at = _sample(weights[0].numel()).to(weights.device)
            sampled = torch.stack([value.flatten(0, 1)[at].float() for value in values])
            read |= source_statistics(weights.flatten(1)[:, at], sampled)
        reads.append(read)
    for read, health in zip(reads, query_health(residual, reads, gradients), strict=True):
        read |= health
    return reads


def _sample(n_tokens: int) -> Tensor:
    """Evenly spaced token indices, all of a small batch."""
    count = min(n_tokens, SAMPLED_TOKENS)
    return torch.arange(count) * n_tokens // count


def query_health(
    residual: Residual, reads: Sequence[Read], gradients: Gradients
) -> list[dict[str, float | None]]:
    """L2 norms of every read's query and of its gradient; null where a read owns none.

    Queries are the residual's parameters whose name begins with ``quer``: a row per read of two
    sources or more, in order, or a row per source of these. A read of one source has nothing to
    choose and owns none.
    """
    owners = [read for read in reads if len(read["labels"]) > 1]
    found: dict[int, dict[str, float | None]] = {}
    for name, query in residual.named_parameters():
        if not name.rpartition(".")[2].startswith("quer") or not query.ndim:
            continue
        for read, rows in zip(owners, _rows(query.shape[0], owners), strict=False):
            gradient = gradients(query)
            found[read["t"]] = {
                "query_norm": float(query.detach()[rows].float().norm()),
                "query_grad_norm": None if gradient is None else float(gradient[rows].norm()),
            }
    nothing: dict[str, float | None] = {"query_norm": None, "query_grad_norm": None}
    return [found.get(read["t"], nothing) for read in reads]


def _rows(n_rows: int, owners: Sequence[Read]) -> list[slice]:
    """Rows of each owner in a table of one row per owner, or per source of an owner."""
    sizes = [len(read["labels"]) for read in owners]
    if n_rows == len(owners):
        sizes = [1] * n_rows
    elif n_rows != sum(sizes):
        return []
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def mixing_health(
    residual: Residual, states: Sequence[State], gradients: Gradients
) -> list[dict[str, Any]]:
    """Say of every sublayer's mixing of parallel streams how it mixes and whether it can train.

    Parameters
    ----------
    states
        State before every read, the final one included.

    Returns
    -------
    list
        One dict per read that mixes streams: ``t``, the numbers of :func:`mixing_statistics`, and
        ``grad_norm``, the L2 norm of the loss's gradient over the parameter entries that move the
        matrix; 0 where none can, null where the recipe gives the matrix without its graph.
    """
    found = []
    for t, state in enumerate(states[:-1]):
        with torch.enable_grad():
            mixing = residual.stream_mixing(state, t)
            if mixing is None:
                continue
            norm = _mixing_gradient(residual, mixing, gradients)
        found.append({"t": t, **mixing_statistics(mixing), "grad_norm": norm})
    return found


def _mixing_gradient(residual: Residual, mixing: Tensor, gradients: Gradients) -> float | None:
    """Norm of the gradient over what moves a mixing matrix, whatever the names of its parameters.

    Saturated logits (a softmax that underflowed to the identity) move nothing.
    """
    if not mixing.requires_grad:
        return None
    parameters = [p for p in residual.parameters() if p.requires_grad]
    # A generic direction: rows and columns of a doubly stochastic matrix sum to one, so that a
    # plain sum would move with nothing.
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(mixing.shape, generator=generator).to(mixing)
    moved = torch.autograd.grad((mixing * probe).sum(), parameters, allow_unused=True)
    total = 0.0
    for parameter, movement in zip(parameters, moved, strict=True):
        gradient = gradients(parameter)
        if movement is not None and gradient is not None:
            total += float(gradient[movement != 0].float().square().sum())
    return math.sqrt(total)


def loss_changes(
    model: Transformer,
    tokens: Tensor,
    states: Sequence[State],
    reads: Sequence[Read],
    loss_nats: float,
) -> list[dict[str, Any]]:
    """Mask one source everywhere, renormalise, and say how much the loss changes; source by source.

    Forward passes only, each from the first read that sees the source: what comes before it is the
    same. Empty for recipes that cannot mask.

    Parameters
    ----------
    tokens
        [sequences, seq_len + 1].
    states
        State before every read on the inputs of ``tokens``, the final read included.
    reads
        Reads of :func:`measure`; those of one source keep it.
    loss_nats
        Loss without a mask.

    Returns
    -------
    list
        One dict per source, oldest first: ``source``, ``loss_change_nats``, masked minus unmasked.
    """
    residual = model.residual
    if type(residual).masking is Residual.masking:
        return []
    changes = []
    for label, t in first_reads(reads).items():
        with torch.no_grad(), residual.masking(label):
            resumed = functools.partial(_resume, model, states[t], t)
            masked = token_loss(resumed, tokens).item()
        changes.append({"source": label, "loss_change_nats": masked - loss_nats})
    return changes


def first_reads(reads: Sequence[Read]) -> dict[str, int]:
    """First read by source that has another source beside it."""
    first: dict[str, int] = {}
    for read in reads:
        if len(read["labels"]) > 1:
            for label in read["labels"]:
                first.setdefault(label, read["t"])
    return first


def _resume(model: Transformer, state: State, first: int, inputs: Tensor) -> Tensor:
    """Logits of a forward pass from before read ``first``; ``inputs`` are in the state already."""
    residual = model.residual
    for t in range(first, model.config.n_sublayers):
        u, state = residual.read(state, t)
        state = residual.write(state, model.output(t, u), t)
    return model.logits(residual.finish(state))


def _masked_passes(
    masking: Sequence[dict[str, Any]] | None, reads: Sequence[Read], n_sublayers: int
) -> float:
    """Forward passes that masking cost, as shares of the model's depth."""
    if not masking:
        return 0.0
    return sum(1 - t / n_sublayers for t in first_reads(reads).values())


def _detached(state: State) -> State:
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, state)


def _rms(x: Tensor | None) -> float:
    """Root mean square; zero for a gradient that is None."""
    return 0.0 if x is None else float(x.detach().float().square().mean().sqrt())
