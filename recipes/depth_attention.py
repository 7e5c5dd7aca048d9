"""The shared read: attention over depth sources, one token at a time.

``read(q; v_1..v_m) = sum_i a_i v_i`` with ``a = softmax_i(q . rms(v_i))`` over sources, apart
at every (batch, token). Keys are RMS-normalised, values are not, logits are not divided by
sqrt(d). Source: Kimi Team, Attention Residuals, arXiv 2603.15031, equations 2 to 4.

A query is a parameter, so a source is scored for all its readers at once when it appears
(:func:`enter_cached`); a read then only weighs and mixes. Two formulations are here:
:data:`CACHED`, plain operations that torch.compile can trace, and :data:`COUNTABLE`, in which every
multiply-add is a matmul or a convolution, for FLOP counters. The third, memory-lean one is in
``lean_read``. Knows no recipe, no state and no parameters.

Shapes: B batch, T tokens, D d_model, S sources, K readers of a source, H heads, R key entries per
head, C = D / H channels per head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-8
"""Epsilon of the key RMS, the backbone's own default: a larger one would show in small models."""

WIDE = (torch.float32, torch.float64)
"""Precisions that a read computes in."""


@dataclass(frozen=True)
class Keys:
    """Which entries of a source are its key, and how they are normalised."""

    heads: int
    """Heads over consecutive groups of entries; each head has a softmax of its own."""
    width: int
    """Entries per head (R). One head takes the last R entries of a source; several split it."""
    normalised: bool = True
    """Divide by the RMS."""
    whole_norm: bool = False
    """Take the RMS over all D entries of the source, not over each head's own R."""

    def of(self, value: Tensor) -> Tensor:
        """Slice the key out of a source; a view, [..., H R]."""
        return value[..., value.shape[-1] - self.heads * self.width :]

    def split(self, key: Tensor) -> Tensor:
        """View a key by head, [..., H, R]."""
        return key.view(*key.shape[:-1], self.heads, self.width)

    def inverse_rms(self, wide: Tensor) -> Tensor | None:
        """Return 1 / sqrt(mean(x^2) + EPS), [..., H] or [..., 1]; None for raw keys.

        Source: Su, LR-AttnRes, arXiv 2607.09694 (slice first, then RMS over the slice).
        """
        if not self.normalised:
            return None
        if self.whole_norm or self.heads == 1:
            normed = wide if self.whole_norm else self.of(wide)
            return normed.square().mean(-1, keepdim=True).add_(EPS).rsqrt_()
        return self.split(self.of(wide)).square().mean(-1).add_(EPS).rsqrt_()


class Source(NamedTuple):
    """One entry of the depth axis, scored for those who will read it."""

    value: Tensor
    """What is mixed, [B, T, D], un-normalised."""
    scores: tuple[Tensor, ...] = ()
    """Logits by reader, each [B, T, H], in fp32 at least."""
    first_row: int = 0
    """Row of the query behind ``scores[0]``."""
    views: tuple[Source, ...] = ()
    """The source as each head sees it, for recipes that transform it once for all readers."""

    def score(self, row: int) -> Tensor:
        """Return the logits for the reader that owns query ``row``."""
        return self.scores[row - self.first_row]


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Keep autocast from lowering the matmuls of a read."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def widen(x: Tensor) -> Tensor:
    """Cast to fp32 at least; fp64 stays."""
    return x if x.dtype in WIDE else x.float()


def rms_normalised(x: Tensor) -> Tensor:
    """Divide by the RMS over the last axis, in fp32 at least."""
    wide = widen(x)
    return wide * wide.square().mean(-1, keepdim=True).add_(EPS).rsqrt_()


def enter_cached(
    value_BTD: Tensor, queries_KHR: Tensor, keys: Keys
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Score a source for K readers by one matmul; return it and K logits, each [B, T, H].

    ``(key . q) / rms(key)``: no normalised copy of the source is made.
    """
    if not len(queries_KHR):
        return value_BTD, ()
    wide = widen(value_BTD)
    queries = queries_KHR.to(wide.dtype)
    if keys.heads == 1:
        scores_KBTH = (keys.of(wide) @ queries[:, 0].t()).movedim(-1, 0)[..., None]
    else:
        scores_KBTH = torch.einsum("bthr,khr->kbth", keys.split(keys.of(wide)), queries)
    inverse = keys.inverse_rms(wide)
    return value_BTD, (scores_KBTH if inverse is None else scores_KBTH * inverse).unbind(0)


def score_cached(value_BTD: Tensor, query_BTHR: Tensor, keys: Keys) -> Tensor:
    """Score a source by queries that differ from token to token; [B, T, H]."""
    wide = widen(value_BTD)
    scores_BTH = (keys.split(keys.of(wide)) * query_BTHR).sum(-1)
    inverse = keys.inverse_rms(wide)
    return scores_BTH if inverse is None else scores_BTH * inverse


def score_countable(value_BTD: Tensor, query_BTHR: Tensor, keys: Keys) -> Tensor:
    """Score as :func:`score_cached`, by one batched matmul."""
    wide = widen(value_BTD)
    key_BTHR = keys.split(keys.of(wide))
    flat = torch.bmm(key_BTHR.flatten(0, 2)[:, None, :], query_BTHR.flatten(0, 2)[:, :, None])
    scores_BTH = flat.view(key_BTHR.shape[:-1])
    inverse = keys.inverse_rms(wide)
    return scores_BTH if inverse is None else scores_BTH * inverse


def by_head(value_BTD: Tensor, heads: int) -> Tensor:
    """View channels by head, [B, T, H, C]."""
    return value_BTD.view(*value_BTD.shape[:-1], heads, -1)


def mix_cached(weights_SBTH: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum values by weight, one source after the other and without stacking them; [B, T, D]."""
    heads = weights_SBTH.shape[-1]
    weights = weights_SBTH.unsqueeze(-1).unbind(0)
    mixed_BTHC = weights[0] * by_head(widen(values[0]), heads)
    for weight_BTH1, value_BTD in zip(weights[1:], values[1:], strict=True):
        mixed_BTHC = torch.addcmul(mixed_BTHC, weight_BTH1, by_head(widen(value_BTD), heads))
    return mixed_BTHC.flatten(-2)


def mix_countable(weights_SBTH: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum stacked values by one batched matmul; [B, T, D]."""
    heads = weights_SBTH.shape[-1]
    values_NSC = torch.stack([by_head(widen(v), heads) for v in values], dim=3).flatten(0, 2)
    weights_N1S = weights_SBTH.flatten(1).t()[:, None, :]
    return torch.bmm(weights_N1S, values_NSC).view(values[0].shape)


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

    enter: Callable[[Tensor, Tensor, Keys], tuple[Tensor, tuple[Tensor, ...]]]
    score: Callable[[Tensor, Tensor, Keys], Tensor]
    mix: Callable[[Tensor, Sequence[Tensor]], Tensor]
    convolve: Callable[[Tensor, Tensor], Tensor]


CACHED = DepthOps(enter_cached, score_cached, mix_cached, convolve_cached)
"""No stacked, no normalised copies: what autograd keeps grows with depth, not its square."""

COUNTABLE = DepthOps(enter_cached, score_countable, mix_countable, convolve_countable)
"""Matmuls and convolutions only; slow, and counted in full by a FLOP counter."""


def read_flops(n_sources: int, d_model: int, key_width: int) -> int:
    """Forward FLOPs per token of one read: key_width for a logit and D for the mix, times two.

    A single source is returned as it is and costs nothing. Statistics and softmax are not matmuls.
    """
    return 2 * n_sources * (key_width + d_model) if n_sources > 1 else 0
