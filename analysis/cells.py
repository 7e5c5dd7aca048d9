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
# What two runs of different arms must share to be compared.
_MATCHED = ["size_key", "pair_key", "seed"]


@dataclass(frozen=True)
class Currency:
    """What compute is counted in."""

    name: str
    column: str
    label: str
    unit: str


FLOPS = Currency("flops", "flops", "training FLOPs", "FLOPs")
FLOPS_WITHOUT = Currency(
    "flops_without", "flops_without_residual", "training FLOPs without the variant's own", "FLOPs"
)
WALL_CLOCK = Currency("wall_clock", "train_s", "wall-clock", "s")
TOKENS = Currency("tokens", "tokens", "tokens", "tokens")
CURRENCIES = (FLOPS, FLOPS_WITHOUT, WALL_CLOCK, TOKENS)


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
    rows = used.loc[used[currency.column].notna(), ["arm", "size", *_MATCHED, "loss_nats"]]
    if rows.empty:
        return ()
    rows = rows.assign(log_compute=np.log(used[currency.column].astype(float)))
    settings = rows.groupby(["arm", "size_key", "pair_key"], sort=True)["loss_nats"]
    spread = settings.agg(mean="mean", variance="var").groupby(level=["arm", "size_key"])
    cells = rows.groupby(["arm", "size_key"], sort=True)
    table = pd.DataFrame(
        {
            "size": cells["size"].first(),
            "compute": np.exp(cells["log_compute"].mean()),
            "loss": spread["mean"].mean(),
            # NaN where no setting has two runs: the mean leaves those out.
            "seed_sd": np.sqrt(spread["variance"].mean()),
            "n_seeds": cells["seed"].nunique(),
            "n_settings": cells["pair_key"].nunique(),
            "seed_losses": cells["loss_nats"].agg(tuple),
        }
    )
    points = [
        CellPoint(
            arm=str(key[0]),
            size=str(cell.size_),
            compute=float(cell.compute),
            loss=float(cell.loss),
            seed_sd=None if np.isnan(cell.seed_sd) else float(cell.seed_sd),
            n_seeds=int(cell.n_seeds),
            n_settings=int(cell.n_settings),
            seed_losses=tuple(float(loss) for loss in cell.seed_losses),
        )
        for key, cell in zip(
            table.index, table.rename(columns={"size": "size_"}).itertuples(), strict=True
        )
    ]
    return tuple(sorted(points, key=lambda point: (point.arm, point.compute)))


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
    """Count compute levels: one ends where ln C exceeds its first value by ln 1.05.

    The factor is :data:`SAME_LEVEL`.
    """
    count, first = 0, -np.inf
    logs = np.asarray(log_compute, dtype=np.float64)
    for x in np.sort(logs[np.isfinite(logs)]):
        if x - first > np.log(SAME_LEVEL):
            count, first = count + 1, x
    return count
