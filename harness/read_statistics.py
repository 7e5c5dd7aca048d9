"""Statistics of one depth read or one mixing of streams, from its tensors alone.

Pure: tensors in, numbers out; knows no model, no recipe and no file. Thresholds are our choice, as
the papers give none. Shapes: S sources, B batch, T tokens, N sampled tokens, D d_model, n streams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NEWEST_IS_COLLAPSED = 0.9
"""Mean weight on the newest source above which a read counts as collapsed to it (our choice)."""
UNIFORM_IS_COLLAPSED = 0.95
"""Normalised entropy above which a read counts as collapsed to the uniform mean (our choice)."""
FLAT_IS_COLLAPSED = 1.2
"""Largest weight times number of sources below which it does too; 1 is uniform (our choice)."""

Read = dict[str, Any]
"""What is known of one read: JSON values by name."""


def read_statistics(weights: Tensor, t: int, labels: list[str]) -> Read:
    """Summarise the depth weights of one read, averaged over tokens.

    All but ``mean_weights`` and ``total_weight`` are of the shares ``|a_i| / sum_j |a_j|``, so that
    sigmoid and signed weights compare with softmax, where shares are the weights.

    Parameters
    ----------
    weights
        [n_sources, batch, tokens], oldest source first.
    t
        Sublayer of the read; n_sublayers for the final one.
    labels
        Names of the sources.

    Returns
    -------
    dict
        ``mean_weights`` by source; ``total_weight``, their sum; ``normalised_entropy`` =
        -sum a ln a / ln n_sources, null for one source; ``max_weight`` = mean over tokens of the
        largest share, ``max_weight_times_sources``; ``newest_mass``, ``embedding_mass``,
        ``partial_mass`` (null where there is no such source; the partial, where there is one, is
        the newest) and ``older_mass`` of all that is neither newest nor embedding;
        ``token_variance`` = sum over sources of the variance over tokens, 0 for a read that ignores
        its input.
    """
    wide = weights.detach().double()
    shares = wide.abs()
    shares = shares / shares.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    n_sources = shares.shape[0]
    mass = shares.mean(dim=(1, 2)).tolist()
    by_label = dict(zip(labels, mass, strict=True))
    largest = shares.amax(0).mean().item()
    entropy = -torch.special.xlogy(shares, shares).sum(0).mean().item()
    means = wide.mean(dim=(1, 2))
    return {
        "t": t,
        "labels": labels,
        "mean_weights": means.tolist(),
        "total_weight": means.sum().item(),
        "normalised_entropy": entropy / math.log(n_sources) if n_sources > 1 else None,
        "max_weight": largest,
        "max_weight_times_sources": largest * n_sources,
        "newest_mass": mass[-1],
        "embedding_mass": by_label.get("embedding"),
        "partial_mass": by_label.get("partial"),
        "older_mass": sum(mass[:-1]) - (by_label.get("embedding", 0.0) if n_sources > 1 else 0.0),
        "token_variance": shares.var(dim=(1, 2), correction=0).sum().item(),
    }


def source_statistics(weights_SN: Tensor, values_SND: Tensor) -> Read:
    """Say what the sources of one read contribute, and how alike they are.

    Parameters
    ----------
    weights_SN
        Weight of every source at every token.
    values_SND
        The sources, un-normalised, oldest first.

    Returns
    -------
    dict
        ``contributions`` by source: mean over tokens of rms(a_i v_i) over features;
        ``adjacent_cosine``: mean over tokens and over neighbours in depth of cos(v_i, v_{i+1}),
        null for one source; ``effective_rank``: participation ratio (sum l)^2 / sum l^2 of the
        eigenvalues l of the sources' Gram matrix, mean over tokens, between 1 (all alike) and
        n_sources (orthogonal). Sources are scaled to unit length first, as keys are: a long source
        would otherwise count as the only one.
    """
    values = values_SND.detach().float()
    weights = weights_SN.detach().float()
    rms_SN = values.square().mean(-1).sqrt()
    unit_NSD = torch.nn.functional.normalize(values, dim=-1).movedim(0, 1)
    gram_NSS = (unit_NSD @ unit_NSD.mT).double()
    neighbours = gram_NSS.diagonal(offset=1, dim1=1, dim2=2)
    traces = gram_NSS.diagonal(dim1=1, dim2=2).sum(-1)
    ranks = traces.square() / gram_NSS.square().sum((1, 2)).clamp_min(1e-30)
    return {
        "contributions": (weights.abs() * rms_SN).double().mean(1).tolist(),
        "adjacent_cosine": neighbours.mean().item() if neighbours.numel() else None,
        "effective_rank": ranks.mean().item(),
    }


def mixing_statistics(mixing_BTnn: Tensor) -> dict[str, float]:
    """Say how far a mixing of parallel streams is from doubly stochastic, and from the identity.

    Returns
    -------
    dict
        ``row_sum_error`` and ``column_sum_error``: largest distance of a row or column sum from 1;
        ``off_diagonal_mass``: mean over tokens and rows of ``sum_{j != i} |m_ij|``, 0 for streams
        that never mix.
    """
    wide = mixing_BTnn.detach().double()
    off_diagonal = wide.abs().sum((-2, -1)) - wide.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
    return {
        "row_sum_error": (wide.sum(-1) - 1).abs().max().item(),
        "column_sum_error": (wide.sum(-2) - 1).abs().max().item(),
        "off_diagonal_mass": (off_diagonal / wide.shape[-1]).mean().item(),
    }


def collapse(reads: Sequence[Read], n_sublayers: int) -> dict[str, float | None]:
    """Share of reads with two sources or more that collapsed to the newest source, or to the mean.

    Returns
    -------
    dict
        ``collapsed_to_newest``: newest mass above 0.9. ``collapsed_to_uniform``: normalised entropy
        above 0.95. ``collapsed_to_uniform_deep``: among reads of the deeper half of the model,
        normalised entropy above 0.95 or largest weight times sources below 1.2. Null without such
        reads.
    """
    choosing = [read for read in reads if read["normalised_entropy"] is not None]
    deep = [read for read in choosing if 2 * read["t"] >= n_sublayers]
    return {
        "collapsed_to_newest": _share(
            [read["newest_mass"] > NEWEST_IS_COLLAPSED for read in choosing]
        ),
        "collapsed_to_uniform": _share([_is_even(read) for read in choosing]),
        "collapsed_to_uniform_deep": _share(
            [
                _is_even(read) or read["max_weight_times_sources"] < FLAT_IS_COLLAPSED
                for read in deep
            ]
        ),
    }


def _is_even(read: Read) -> bool:
    return bool(read["normalised_entropy"] > UNIFORM_IS_COLLAPSED)


def _share(verdicts: Sequence[bool]) -> float | None:
    return sum(verdicts) / len(verdicts) if verdicts else None
