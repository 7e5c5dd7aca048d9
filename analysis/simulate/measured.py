"""The world of runs that were made: exponent and scatter, for simulations of more of them.

Pure; takes the frame of ``collect``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.cells import FLOPS, cell_points, n_levels
from analysis.collect import usable
from analysis.compare.matching import match_table
from analysis.estimates import BadValue, TooFewData
from analysis.fit.shared import pooled_slope
from analysis.laws import Floats

MIN_DOF = 3
"""Degrees of freedom below which a scatter is not taken for known."""


def measured(runs: pd.DataFrame, baseline: str) -> Mapping[str, float]:
    """Estimate the fields of :class:`analysis.simulate.world.World` from runs, at E = 0.

    ``alpha``: pooled slope of ln L in ln C. ``seed_sd``: the paired differences of ln L scatter
    with ``2 sigma^2`` about their mean over sizes. ``shared_sd``: what seeds of one cell scatter
    beyond sigma, or, with one seed each, what the points scatter about their lines.

    Parameters
    ----------
    runs
        Frame of :func:`analysis.collect.collect`.
    baseline
        Arm that the others pair with.

    Raises
    ------
    TooFewData
        Fewer than three compute levels, or fewer than three degrees of freedom of the scatter.
    BadValue
        Loss does not fall with compute, or repeats exactly.
    """
    used = usable(runs)
    lines = _lines(used)
    alpha, total_of_lines = _slope(lines)
    own = _own_variance(used, baseline, alpha)
    total = _variance_between_seeds(used)
    total = total_of_lines if total is None else total
    base = [p.loss for p in cell_points(used[used["arm"] == baseline], FLOPS)]
    ended = runs["status"].isin(["done", "diverged"]).sum()
    return {
        "alpha": alpha,
        "loss": math.exp(float(np.mean(np.log(base)))),
        "shared_sd": math.sqrt(max(0.0, total - own)),
        "seed_sd": math.sqrt(own),
        "divergence": float((runs["status"] == "diverged").sum() / ended),
    }


def _lines(used: pd.DataFrame) -> list[tuple[Floats, Floats]]:
    """Points (ln C, ln L) of each arm that has two sizes or more."""
    points = cell_points(used, FLOPS)
    if n_levels(np.log([point.compute for point in points])) < 3:
        raise TooFewData("runs at fewer than 3 sizes or budgets: their exponent is not known")
    lines = []
    for arm in dict.fromkeys(point.arm for point in points):
        own = [point for point in points if point.arm == arm]
        if len(own) > 1:
            lines.append((np.log([p.compute for p in own]), np.log([p.loss for p in own])))
    return lines


def _slope(lines: list[tuple[Floats, Floats]]) -> tuple[float, float]:
    """Pooled exponent, and the variance of the points about their lines."""
    if not lines or sum(len(x) for x, _ in lines) - len(lines) < 2:
        raise TooFewData("no arm has runs at enough sizes: their exponent is not known")
    alpha, variance = pooled_slope(lines)
    if alpha <= 0:
        raise BadValue("loss does not fall with compute in these runs")
    s_xx = sum(float(((x - x.mean()) ** 2).sum()) for x, _ in lines)
    return alpha, variance * s_xx


def _own_variance(used: pd.DataFrame, baseline: str, alpha: float) -> float:
    """sigma^2: half the variance of the paired differences, pooled over arms."""
    squares, dof, table = 0.0, 0, match_table(used, FLOPS)
    for arm in dict.fromkeys(used["arm"]):
        if arm == baseline:
            continue
        z = [
            np.log(at.losses_base / at.losses_arm)
            + alpha * (at.log_compute_base - at.log_compute_arm)
            for at in table.match(str(arm), baseline)
        ]
        values = np.concatenate(z) if z else np.empty(0)
        if len(values) > 1:
            squares += float(((values - values.mean()) ** 2).sum())
            dof += len(values) - 1
    if dof < MIN_DOF:
        raise TooFewData(f"{dof} degrees of freedom of the paired scatter, {MIN_DOF} needed")
    if squares == 0:
        raise BadValue("the paired differences repeat exactly: no noise to learn from")
    return squares / dof / 2


def _variance_between_seeds(used: pd.DataFrame) -> float | None:
    """tau^2 + sigma^2: of ln L between the seeds of a cell, pooled; None below three dof."""
    log_loss = np.log(used["loss_nats"].astype(float))
    cells = log_loss.groupby([used["arm"], used["size_key"], used["pair_key"]])
    dof = int((cells.count() - 1).sum())
    squares = float(((log_loss - cells.transform("mean")) ** 2).sum())
    return squares / dof if dof >= MIN_DOF else None
