"""The memory-lean read: autograd functions that keep references and per-token statistics only.

What plain autograd does for a read of m sources costs m gradient tensors and m additions, m^2 / 2
over the model. Here :class:`_Mix` keeps references to its sources, and in its backward leaves each
of them a note (weights, gradient of the mix) instead of a gradient. When all readers of a source
have left theirs, :class:`_Enter` folds the notes into one gradient, together with the gradient
through the keys, which it recomputes from the source and its inverse RMS: two matmuls for all
readers. Nothing of size [sources, tokens, d_model] is ever made.

The notes lie on the autograd node of the source, so they live as long as the graph and cross
activation checkpointing; a source whose node cannot be reached (detached by a reentrant checkpoint)
gets its gradient the usual way. Results are those of :data:`recipes.depth_attention.CACHED`, to
which torch.compile is sent, since it fuses these operations itself.

Limits, all absent from ``cached``: no second derivatives and no torch.func, which are refused; the
gradient of a source itself, asked for by hook or ``autograd.grad``, lacks what travels by note; the
number of the walk under way comes from a private function of torch (``_current_graph_task_id``).

Shapes: N = batch x tokens, D d_model, S sources, K readers, H heads, R key entries per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recipes.depth_attention import (
    DepthOps,
    Keys,
    by_head,
    convolve_cached,
    enter_cached,
    full_precision,
    mix_cached,
    score_cached,
    widen,
)


def enter_lean(
    value_BTD: Tensor, queries_KHR: Tensor, keys: Keys
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Score a source for K readers; return it, as its readers must see it, and K logits [B, T, H].

    Same result as :func:`recipes.depth_attention.enter_cached`.
    """
    if torch.compiler.is_compiling():
        return enter_cached(value_BTD, queries_KHR, keys)
    value, *scores = _Enter.apply(value_BTD, queries_KHR, keys)  # type: ignore[no-untyped-call]
    return value, tuple(scores)


def mix_lean(weights_SBTH: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum values by weight, [B, T, D]; as :func:`recipes.depth_attention.mix_cached`."""
    if torch.compiler.is_compiling():
        return mix_cached(weights_SBTH, values)
    mixed: Tensor = _Mix.apply(weights_SBTH, *values)  # type: ignore[no-untyped-call]
    return mixed


CACHED_ELEMENTS = 2**18
"""1 MiB of fp32. On one CPU (512 KiB of second-level cache per core) within 5% of the best of 2^14
to 2^22, for sources of 2^17 and of 2^21 elements."""

LEAN = DepthOps(enter_lean, score_cached, mix_lean, convolve_cached)
"""The default: linear memory in depth, and no gradient tensor per reader."""


class _Enter(torch.autograd.Function):
    """Hand a source to its readers, with its logits for all of them."""

    @staticmethod
    def forward(ctx: Any, value_BTD: Tensor, queries_KHR: Tensor, keys: Keys) -> tuple[Tensor, ...]:
        wide_ND = widen(value_BTD).flatten(0, -2)
        scores_KNH = _raw_scores(wide_ND, queries_KHR.to(wide_ND.dtype), keys)
        inverse_NH = keys.inverse_rms(wide_ND)
        if inverse_NH is not None:
            scores_KNH.mul_(inverse_NH)
        ctx.save_for_backward(value_BTD, queries_KHR, scores_KNH, inverse_NH)
        ctx.set_materialize_grads(False)
        ctx.keys, ctx.notes, ctx.task = keys, [], None
        shape = (*value_BTD.shape[:-1], keys.heads)
        return value_BTD.view_as(value_BTD), *(s_NH.view(shape) for s_NH in scores_KNH.unbind(0))

    @staticmethod
    def backward(
        ctx: Any, grad_value: Tensor | None, *grad_scores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        value_BTD, queries_KHR, scores_KNH, inverse_NH = ctx.saved_tensors
        wide_BTD = widen(value_BTD)
        notes = ctx.notes if ctx.task == torch._C._current_graph_task_id() else []
        ctx.notes, ctx.task = [], None
        total_BTD = _sum_of_notes(notes, wide_BTD, grad_value)
        if all(grad is None for grad in grad_scores):
            return total_BTD.to(value_BTD.dtype), None, None
        wide_ND, total_ND = wide_BTD.flatten(0, -2), total_BTD.flatten(0, -2)
        grad_queries = None
        with full_precision(value_BTD):
            grads_KNH = _stacked(grad_scores, scores_KNH)
            raw_KNH = grads_KNH if inverse_NH is None else grads_KNH * inverse_NH
            if ctx.needs_input_grad[1]:
                grad_queries = _query_gradient(raw_KNH, wide_ND, ctx.keys).to(queries_KHR.dtype)
            if not ctx.needs_input_grad[0]:
                return None, grad_queries, None
            _add_key_gradient(total_ND, raw_KNH, queries_KHR.to(wide_ND.dtype), ctx.keys)
            if inverse_NH is not None:
                _add_norm_gradient(total_ND, wide_ND, grads_KNH, scores_KNH, inverse_NH, ctx.keys)
        return total_BTD.to(value_BTD.dtype), grad_queries, None


def _raw_scores(wide_ND: Tensor, queries_KHR: Tensor, keys: Keys) -> Tensor:
    """Dot every key with every query, [K, N, H]."""
    key_NX = keys.of(wide_ND)
    if keys.heads == 1:
        return torch.mm(queries_KHR[:, 0], key_NX.t())[..., None]
    return torch.einsum("nhr,khr->knh", keys.split(key_NX), queries_KHR).contiguous()


def _sum_of_notes(
    notes: list[tuple[Tensor, Tensor]], wide_BTD: Tensor, grad_value: Tensor | None
) -> Tensor:
    """Gradient through the values: sum over readers of weight times the gradient of the mix."""
    if notes:
        weights, grads = zip(*notes, strict=True)
        total_BTD = _weighted_sum(weights, grads)
    else:
        total_BTD = wide_BTD.new_zeros(wide_BTD.shape)
    return total_BTD if grad_value is None else total_BTD.add_(grad_value)


def _stacked(grads: Sequence[Tensor | None], like_KNH: Tensor) -> Tensor:
    if any(grad is None for grad in grads):
        zero_NH = torch.zeros_like(like_KNH[0])
        grads = [zero_NH if grad is None else grad for grad in grads]
    return torch.stack([grad.reshape(like_KNH.shape[1:]) for grad in grads if grad is not None])


def _add_key_gradient(total_ND: Tensor, raw_KNH: Tensor, queries_KHR: Tensor, keys: Keys) -> None:
    """Add the gradient through the dot products with all queries."""
    out_NX = keys.of(total_ND)
    if keys.heads == 1:
        out_NX.addmm_(raw_KNH[..., 0].t(), queries_KHR[:, 0])
    else:
        out_NX.add_(torch.einsum("knh,khr->nhr", raw_KNH, queries_KHR).flatten(1))


def _add_norm_gradient(
    total_ND: Tensor,
    wide_ND: Tensor,
    grads_KNH: Tensor,
    scores_KNH: Tensor,
    inverse_NH: Tensor,
    keys: Keys,
) -> None:
    """Add the gradient through the RMS: ``-x / n / rms^2`` per unit of ``grad . score``."""
    pull_NH = (grads_KNH * scores_KNH).sum(0)
    if keys.whole_norm:
        pull_NH, out, x = pull_NH.sum(-1, keepdim=True), total_ND, wide_ND
    elif keys.heads == 1:
        out, x = keys.of(total_ND), keys.of(wide_ND)
    else:
        out, x = keys.split(total_ND), keys.split(wide_ND)
        pull_NH, inverse_NH = pull_NH[..., None], inverse_NH[..., None]
    out.addcmul_(x, pull_NH * inverse_NH.square() * (-1.0 / x.shape[-1]))


def _query_gradient(raw_KNH: Tensor, wide_ND: Tensor, keys: Keys) -> Tensor:
    """Gradient of the queries, [K, H, R]."""
    key_NX = keys.of(wide_ND)
    if keys.heads == 1:
        return torch.mm(raw_KNH[..., 0], key_NX)[:, None]
    return torch.einsum("knh,nhr->khr", raw_KNH, keys.split(key_NX))


class _Mix(torch.autograd.Function):
    """Mix sources by weight; leave each its note on the way back."""

    @staticmethod
    def forward(ctx: Any, weights_SBTH: Tensor, *values: Tensor) -> Tensor:
        ctx.save_for_backward(weights_SBTH, *values)
        return _weighted_sum(weights_SBTH.unbind(0), values)

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        weights_SBTH, *values = ctx.saved_tensors
        grad_weights = None
        if ctx.needs_input_grad[0]:
            grad_weights = _dots(grad_BTD, values, weights_SBTH)
        edges, needed = ctx.next_functions[1:], ctx.needs_input_grad[1:]
        weights = weights_SBTH.unbind(0)
        grads = [
            _leave_note(edges[i], weights[i], grad_BTD, values[i]) if needed[i] else None
            for i in range(len(values))
        ]
        return grad_weights, *grads


def _parts(x_BTD: Tensor) -> list[slice]:
    """Sequences to work on at a time: on a CPU, few enough for a sum to stay in its cache."""
    batch = x_BTD.shape[0]
    if x_BTD.device.type != "cpu" or x_BTD.numel() <= CACHED_ELEMENTS:
        return [slice(0, batch)]
    step = max(1, CACHED_ELEMENTS * batch // x_BTD.numel())
    return [slice(first, first + step) for first in range(0, batch, step)]


def _weighted_sum(weights: Sequence[Tensor], terms: Sequence[Tensor]) -> Tensor:
    """Sum ``weights[i] * terms[i]``, [B, T, H] times [B, T, D] by head; [B, T, D]."""
    # Contiguous, whatever the source is.
    out_BTD = torch.empty(terms[0].shape, dtype=weights[0].dtype, device=terms[0].device)
    heads, out, parts = weights[0].shape[-1], out_BTD, _parts(out_BTD)
    if heads > 1:
        out, terms = by_head(out, heads), [by_head(term, heads) for term in terms]
        weights = [weight[..., None] for weight in weights]
    if len(parts) == 1:
        _accumulate(out, weights, terms)
    else:
        for part in parts:
            _accumulate(out[part], [w[part] for w in weights], [x[part] for x in terms])
    return out_BTD


def _accumulate(out: Tensor, weights: Sequence[Tensor], terms: Sequence[Tensor]) -> None:
    torch.mul(widen(terms[0]), weights[0], out=out)
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        out.addcmul_(widen(term), weight)


def _dots(grad_BTD: Tensor, values: Sequence[Tensor], like_SBTH: Tensor) -> Tensor:
    """Dot a gradient with every value, token by token and head by head; [S, B, T, H]."""
    heads = like_SBTH.shape[-1]
    grad, terms = by_head(grad_BTD, heads), [by_head(value, heads) for value in values]
    out_SBTH = torch.empty_like(like_SBTH)
    # A product allocated anew for every source would cost more than its arithmetic.
    parts = _parts(grad_BTD)
    scratch = torch.empty_like(grad[parts[0]])
    for part in parts:
        product = scratch[: grad[part].shape[0]]
        for out_BTH, term in zip(out_SBTH.unbind(0), terms, strict=True):
            torch.mul(grad[part], widen(term[part]), out=product)
            torch.sum(product, dim=-1, out=out_BTH[part])
    return out_SBTH


def _leave_note(
    edge: tuple[Any, int], weight_BTH: Tensor, grad_BTD: Tensor, value_BTD: Tensor
) -> Tensor | None:
    """Leave (weight, gradient) on the source's node, or return the gradient if it has none."""
    node, output = edge
    if output != 0 or not hasattr(node, "notes"):
        return _weighted_sum([weight_BTH], [grad_BTD]).to(value_BTD.dtype)
    task = torch._C._current_graph_task_id()
    if node.task != task:  # a backward that stopped short of this node left its notes behind
        node.notes, node.task = [], task
    # A view of what autograd saved would tie the node to the graph that holds it: a cycle, and a
    # leak where a walk never reaches the node.
    node.notes.append((weight_BTH.detach().clone(), grad_BTD.detach()))
    return None


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "depth reads of kernel 'torch' have no second derivative; use kernel 'cached'"
        )
