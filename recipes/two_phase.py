"""The two-phase schedule of depth reads: earlier sources for many reads at once, the rest later.

A static query does not wait for activations. So the reads of a depth block can all attend over the
sources completed before it in one pass, which touches each of these once and not once per read
(:func:`earlier_blocks`). What the block itself adds is merged into each read when it exists, by
online softmax (:func:`merge`). The result is that of one softmax, up to rounding. Source: Kimi
Team, Attention Residuals, arXiv 2603.15031, algorithm 1.

The mix of the first phase is normalised there, where algorithm 1 keeps it unnormalised: it then is
a convex combination of sources, as large as they are however flat or long the softmax, and so may
be stored in a lower precision. Everything is computed in fp32 at least, and fp64 stays.

Plain differentiable operations that torch.compile traces. Limits: softmax reads with queries that
do not depend on activations; scores are finite. Knows no recipe, no state and no parameters.

Shapes: Q reads, S completed sources, B batch, T tokens, D d_model, H heads over consecutive groups
of D / H channels (1: none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recipes.depth_attention import by_head, mix_cached, widen


class Phase(NamedTuple):
    """What reads know of the sources completed before their block."""

    mixed: Tensor
    """Softmax-weighted mean of these sources, [Q, B, T, D]; of one read, [B, T, D]."""
    peak: Tensor
    """Largest score, [Q, B, T, H]; of one read, [B, T, H]. Carries no gradient: results do not
    depend on it."""
    mass: Tensor
    """Sum of ``exp(score - peak)``, at least 1; shaped as ``peak``."""

    def reads(self) -> tuple[Phase, ...]:
        """Split into the phases of single reads.

        All at once: of reads that are indexed one by one, each has a gradient as large as all.
        """
        by_read = zip(self.mixed.unbind(), self.peak.unbind(), self.mass.unbind(), strict=True)
        return tuple(Phase(*parts) for parts in by_read)


def earlier_blocks(scores: Tensor, values: Sequence[Tensor]) -> Phase:
    """Attend over the completed sources for all reads of a block: phase 1.

    ``mixed_q = sum_s softmax_s(scores_qs) v_s``. Sources are taken one after the other, each for
    all reads at once; none is copied or stacked.

    Parameters
    ----------
    scores
        Logits of every read on every source, [Q, S, B, T, H].
    values
        The S sources, each [B, T, D].
    """
    scores_QSBTH = widen(scores)
    peak_QBTH = scores_QSBTH.detach().amax(1)
    powers_QSBTH = (scores_QSBTH - peak_QBTH[:, None]).exp()
    mass_QBTH = powers_QSBTH.sum(1)
    weights_SQBTH = (powers_QSBTH / mass_QBTH[:, None]).movedim(1, 0)
    return Phase(mix_cached(weights_SQBTH, values), peak_QBTH, mass_QBTH)


def merge(phase: Phase, score: Tensor, value: Tensor) -> Tensor:
    """Merge the block under way into one read: phase 2, [B, T, D] in fp32 at least.

    ``a p + (1 - a) mixed`` with ``a = e^(z - m) / (mass e^(peak - m) + e^(z - m))`` and ``m =
    max(peak, z)``, for the score z of the partial sum p.

    Parameters
    ----------
    phase
        One read of phase 1, see :meth:`Phase.reads`.
    score
        Logit of the partial sum, [B, T, H].
    value
        The partial sum, [B, T, D].
    """
    score_BTH = widen(score)
    peak_BTH = torch.maximum(phase.peak, score_BTH.detach())
    earlier_BTH = phase.mass * (phase.peak - peak_BTH).exp()
    own_BTH = (score_BTH - peak_BTH).exp()
    share_BTH1 = (own_BTH / (earlier_BTH + own_BTH))[..., None]
    heads = share_BTH1.shape[-2]
    mixed_BTHC, value_BTHC = (by_head(widen(x), heads) for x in (phase.mixed, value))
    return torch.lerp(mixed_BTHC, value_BTHC, share_BTH1).flatten(-2)
