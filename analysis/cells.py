"""From runs to points: one value per arm and size, and one pair per size.

Seeds are averaged first, so that a fit never counts replicates as sizes. Where a grid varies
another setting (say the learning rate) at one size, those cells are averaged to one value too.
Pure; takes the frame of ``collect``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.laws import Floats, log_excess

# Two budgets closer than this are one compute level; real ladders step by 1.5x or more.
SAME_LEVEL = 1.05


@dataclass(frozen=True)
class Currency:
    """What compute is counted in."""

    name: str
    column: str
    label: str
    unit: str


FLOPS = Currency("flops", "flops", "FLOPs with the variant's own", "FLOPs")
FLOPS_WITHOUT = Currency(
    "flops_without", "flops_without_residual", "FLOPs without the variant's own", "FLOPs"
)
WALL_CLOCK = Currency("wall_clock", "train_s", "wall-clock", "s")
CURRENCIES = (FLOPS, FLOPS_WITHOUT, WALL_CLOCK)


@dataclass(frozen=True)
class CellPoint:
    """One arm at one size, seeds averaged."""

    arm: str
    size: str
    compute: float
    """Geometric mean over seeds, in the currency's unit."""
    loss: float
    """Mean final validation loss, nats."""
    seed_sd: float | None
    """Sample standard deviation over seeds, nats; None for one seed."""
    n_seeds: int
    n_settings: int
    """Cells of this arm at this size that differ in other settings."""
    seed_losses: tuple[float, ...]


@dataclass(frozen=True)
class MatchedSize:
    """Runs of baseline and arm at one size that share configuration and seed, in the same order."""

    size: str
    log_compute_base: float
    """Mean of ln C over the runs."""
    log_compute_arm: float
    losses_base: Floats
    losses_arm: Floats
    n_seeds: int


@dataclass(frozen=True)
class PairPoint:
    """Baseline and arm at one size: means over their common seeds."""

    size: str
    log_compute_base: float
    log_compute_arm: float
    log_excess_base: float
    """Mean of ln(L - E)."""
    log_excess_arm: float
    loss_base: float
    loss_arm: float
    n_seeds: int


def cell_points(used: pd.DataFrame, currency: Currency) -> tuple[CellPoint, ...]:
    """Average the usable runs to one point per arm and size, ordered by arm, then compute.

    Runs without a value in the currency are left out.
    """
    rows = used[used[currency.column].notna()]
    points = [
        _cell(str(key[0]), group, currency) for key, group in rows.groupby(["arm", "size_key"])
    ]
    return tuple(sorted(points, key=lambda point: (point.arm, point.compute)))


def _cell(arm: str, group: pd.DataFrame, currency: Currency) -> CellPoint:
    settings = group.groupby("pair_key")["loss_nats"]
    spreads = settings.std(ddof=1).dropna()
    return CellPoint(
        arm=arm,
        size=str(group["size"].iloc[0]),
        compute=float(np.exp(np.log(group[currency.column].astype(float)).mean())),
        loss=float(settings.mean().mean()),
        seed_sd=float(np.sqrt((spreads**2).mean())) if len(spreads) else None,
        n_seeds=int(group["seed"].nunique()),
        n_settings=int(group["pair_key"].nunique()),
        seed_losses=tuple(float(loss) for loss in group["loss_nats"]),
    )


def match_sizes(
    used: pd.DataFrame, arm: str, baseline: str, currency: Currency
) -> tuple[MatchedSize, ...]:
    """Match the runs of an arm with the baseline's: same seed and configuration but for the recipe.

    Grouped by size, so that further settings at one size are replicates, not sizes. Ordered by the
    baseline's compute.
    """
    rows = used[used[currency.column].notna()]
    rows = rows[["arm", "size", *_MATCHED, "loss_nats", currency.column]]
    base = rows[rows["arm"] == baseline]
    joined = base.merge(rows[rows["arm"] == arm], on=_MATCHED, suffixes=("_base", "_arm"))
    matched = [_match(group, currency) for _, group in joined.groupby("size_key")]
    return tuple(sorted(matched, key=lambda match: match.log_compute_base))


_MATCHED = ["size_key", "pair_key", "seed"]


def _match(group: pd.DataFrame, currency: Currency) -> MatchedSize:
    def column(name: str) -> Floats:
        return np.asarray(group[name], dtype=np.float64)

    return MatchedSize(
        size=str(group["size_base"].iloc[0]),
        log_compute_base=float(np.log(column(f"{currency.column}_base")).mean()),
        log_compute_arm=float(np.log(column(f"{currency.column}_arm")).mean()),
        losses_base=column("loss_nats_base"),
        losses_arm=column("loss_nats_arm"),
        n_seeds=int(group["seed"].nunique()),
    )


def pair_points(matched: Sequence[MatchedSize], asymptote: float = 0.0) -> tuple[PairPoint, ...]:
    """Average matched runs to one pair per size under a pinned E (nats)."""
    return tuple(
        PairPoint(
            size=match.size,
            log_compute_base=match.log_compute_base,
            log_compute_arm=match.log_compute_arm,
            log_excess_base=float(log_excess(match.losses_base, asymptote).mean()),
            log_excess_arm=float(log_excess(match.losses_arm, asymptote).mean()),
            loss_base=float(match.losses_base.mean()),
            loss_arm=float(match.losses_arm.mean()),
            n_seeds=match.n_seeds,
        )
        for match in matched
    )


def n_levels(log_compute: Floats) -> int:
    """Count compute levels that differ by more than :data:`SAME_LEVEL`."""
    if not len(log_compute):
        return 0
    gaps = np.diff(np.sort(np.asarray(log_compute, dtype=np.float64)))
    return 1 + int(np.sum(gaps > np.log(SAME_LEVEL)))
