"""The shared read: softmax attention over depth sources.

``read(q; v_1..v_m) = sum_i a_i v_i`` with ``a = softmax_i(q . rms(v_i))`` over sources, apart
at every (batch, token). Keys are RMS-normalised, values are not, logits are not divided by
sqrt(d). Source: Kimi Team, Attention Residuals, arXiv 2603.15031, equations 2 to 4.

Two formulations of one result: :data:`CACHED`, the portable default, and :data:`COUNTABLE`, the
textbook form in which every multiply-add is a matmul or a convolution, for FLOP counters and as
a reference. Knows no recipe, no state and no parameters.

Shapes: B batch, T tokens, D d_model, R key rank, S sources, K taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-8
"""Epsilon of the key RMS, the backbone's own default: a larger one would show in small models."""


class Source(NamedTuple):
    """One entry of the depth axis, with the statistic that every reader of it shares."""

    value: Tensor
    """What is mixed, [B, T, D], un-normalised."""
    inverse_rms: Tensor
    """1 / sqrt(mean(key^2) + EPS), [B, T, 1], in fp32 at least."""
    views: tuple[Source, ...] = ()
    """The source as each head sees it, for recipes that transform it once for all readers."""


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Keep autocast from lowering the matmuls of a read."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def widen(x: Tensor) -> Tensor:
    """Cast to fp32 at least; fp64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def key_of(value_BTD: Tensor, rank: int) -> Tensor:
    """Slice the last ``rank`` entries that serve as key before normalisation; a view, [B, T, R].

    Source: Su, LR-AttnRes, arXiv 2607.09694 (slice first, then RMS over the slice).
    """
    return value_BTD[..., value_BTD.shape[-1] - rank :]


def enter(value_BTD: Tensor, rank: int) -> Source:
    """Make a source of a tensor: its key's inverse RMS is taken here, once for all readers."""
    key_BTR = key_of(widen(value_BTD), rank)
    inverse_rms_BT1 = key_BTR.square().mean(-1, keepdim=True).add(EPS).rsqrt()
    return Source(value_BTD, inverse_rms_BT1)


def logits_cached(sources: Sequence[Source], query_R: Tensor) -> Tensor:
    """Score sources as ``(key . q) * inverse_rms``, without a normalised copy; [S, B, T, 1]."""
    scores = []
    for source in sources:
        key_BTR = key_of(widen(source.value), query_R.shape[0])
        scores.append((key_BTR @ query_R.to(key_BTR.dtype)[:, None]) * source.inverse_rms)
    return torch.stack(scores)


def logits_countable(sources: Sequence[Source], query_R: Tensor) -> Tensor:
    """Score stacked, normalised keys by one batched matmul; [S, B, T, 1]."""
    rank = query_R.shape[0]
    keys = [key_of(widen(s.value), rank) * s.inverse_rms for s in sources]
    keys_SNR = torch.stack(keys).flatten(1, 2)
    query_SR1 = query_R.to(keys_SNR.dtype).expand(len(keys), rank)[..., None]
    return torch.bmm(keys_SNR, query_SR1).view(len(keys), *keys[0].shape[:2], 1)


def mix_cached(weights_SBT1: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum values by weight, one source after the other and without stacking them; [B, T, D]."""
    weights = weights_SBT1.unbind(0)
    mixed_BTD = weights[0] * widen(values[0])
    for weight_BT1, value_BTD in zip(weights[1:], values[1:], strict=True):
        mixed_BTD = torch.addcmul(mixed_BTD, weight_BT1, widen(value_BTD))
    return mixed_BTD


def mix_countable(weights_SBT1: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum stacked values by one batched matmul; [B, T, D]."""
    batch, tokens, _ = values[0].shape
    values_NSD = torch.stack([widen(v) for v in values], dim=2).flatten(0, 1)
    weights_N1S = weights_SBT1.flatten(1).t()[:, None, :]
    return torch.bmm(weights_N1S, values_NSD).view(batch, tokens, -1)


def convolve_cached(x_BTD: Tensor, taps_DK: Tensor) -> Tensor:
    """Convolve channels over past tokens, as shifted sums; the last tap sees the token itself."""
    taps = taps_DK.to(x_BTD.dtype).unbind(1)
    reach, tokens = len(taps) - 1, x_BTD.shape[1]
    padded = F.pad(x_BTD, (0, 0, reach, 0))
    out_BTD = x_BTD * taps[-1]
    for lag in range(1, len(taps)):
        past = padded.narrow(1, reach - lag, tokens)
        out_BTD = torch.addcmul(out_BTD, past, taps[-1 - lag])
    return out_BTD


def convolve_countable(x_BTD: Tensor, taps_DK: Tensor) -> Tensor:
    """Convolve every channel over past tokens by a depthwise convolution, left-padded."""
    width = taps_DK.shape[1]
    padded_BDT = F.pad(x_BTD.transpose(1, 2), (width - 1, 0))
    kernel_D1K = taps_DK.to(x_BTD.dtype)[:, None, :]
    return F.conv1d(padded_BDT, kernel_D1K, groups=x_BTD.shape[-1]).transpose(1, 2)


class DepthOps(NamedTuple):
    """One formulation of the read."""

    logits: Callable[[Sequence[Source], Tensor], Tensor]
    mix: Callable[[Tensor, Sequence[Tensor]], Tensor]
    convolve: Callable[[Tensor, Tensor], Tensor]


CACHED = DepthOps(logits_cached, mix_cached, convolve_cached)
"""No stacked, no normalised copies: what autograd keeps grows with depth, not its square."""

COUNTABLE = DepthOps(logits_countable, mix_countable, convolve_countable)
"""Stacked matmuls and convolutions only; slow, and counted in full by a FLOP counter."""


def read_flops(n_sources: int, d_model: int, rank: int) -> int:
    """Forward FLOPs per token of one read: rank for a logit and D for the mix, times two.

    A single source is returned as it is and costs nothing. Statistics and softmax are not matmuls.
    """
    return 2 * n_sources * (rank + d_model) if n_sources > 1 else 0
