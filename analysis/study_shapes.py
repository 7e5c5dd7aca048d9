"""Which runs of a study carry a law in N and D, an isoFLOP curve, a shape map, a block-size curve.

Chooses rows and hands numbers to the fits; computes nothing itself. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.cells import SAME_LEVEL
from analysis.estimates import Exclusion, FitRefused, TooFewData
from analysis.fit.block_size import BlockSizeFit, fit_block_size
from analysis.fit.isoflop import IsoFlopComparison, IsoFlopPoints, compare_isoflop
from analysis.fit.joint import JointFit, fit_joint
from analysis.fit.joint_points import JointPoints
from analysis.fit.joint_profile import JointProfile, joint_profile
from analysis.fit.noise import NoiseModel
from analysis.fit.surface import GainTest, SurfaceFit, SurfacePoints, fit_surface, gain_test
from analysis.laws import Floats
from analysis.trunks import on_shared_trunks, trunk_note

MIN_JOINT = 8
"""Cells below which no law of two variables is tried."""
MIN_CURVE = 3
"""Sizes at one budget that make a curve."""
SHAPE = ["n_layers", "d_model"]
RATIOS = ["heads_per_layer", "width_per_layer"]
"""Axes of a grid's ``depth_width`` as it declares them; whole layers and heads are only near."""
JOINT_ARMS_MOST = 20
"""Arms in one joint law; more would make it slow and say nothing more."""


def joint_law(
    used: pd.DataFrame, exclusions: Sequence[Exclusion] = (), *, level: float = 0.95
) -> tuple[JointFit, JointProfile] | str:
    """Fit ``L(N, D)`` with shared exponents over all arms, and its profile over (alpha, beta).

    Returns
    -------
    tuple or str
        The fit and its profile, or why there is none.
    """
    rows = used.dropna(subset=["n_params", "tokens", "loss_nats"])
    arms = list(dict.fromkeys(rows["arm"]))
    if len(arms) > JOINT_ARMS_MOST:
        return f"{len(arms)} arms: a joint law is tried for up to {JOINT_ARMS_MOST}"
    rows = rows.assign(shared=on_shared_trunks(rows))
    by_cell = rows.groupby(["arm", "n_params", "tokens"], sort=False)
    cells = by_cell.agg(loss_nats=("loss_nats", "mean"), shared=("shared", "any")).reset_index()
    if len(cells) < MIN_JOINT:
        return f"{len(cells)} cells: a law in N and D is tried from {MIN_JOINT}"
    points = JointPoints(
        n_params=numbers(cells, "n_params"),
        tokens=numbers(cells, "tokens"),
        loss_nats=numbers(cells, "loss_nats"),
        arms=[str(arm) for arm in cells["arm"]] if len(arms) > 1 else None,
        clusters=_trunks(cells, 2 * len(arms) + 3),
    )
    notes = _left_out(len(used) - len(rows), "without N or D")
    if points.clusters is None:
        notes += trunk_note(rows)
    try:
        fit = fit_joint(points, exclusions=exclusions, level=level)
        return replace(fit, notes=(*fit.notes, *notes)), joint_profile(points)
    except FitRefused as refusal:
        return str(refusal)


def _trunks(cells: pd.DataFrame, n_unknowns: int) -> list[str] | None:
    """One label for the budgets of a trunk: an arm at a size; None where too few for an interval.

    Seeds were averaged, so all trunks of an arm at a size count as one.
    """
    if not cells["shared"].any():
        return None
    names = [
        f"{cell.arm} {cell.n_params}" + ("" if cell.shared else f" {cell.tokens}")
        for cell in cells.itertuples()
    ]
    return names if len(set(names)) > n_unknowns + 1 else None


def isoflop_curves(
    used: pd.DataFrame,
    law: JointFit | str,
    noise: NoiseModel | str = "",
    *,
    level: float = 0.95,
) -> dict[str, IsoFlopComparison | str]:
    """IsoFLOP minima of every arm that ran three sizes or more at two budgets or more.

    Where seeds were repeated, their noise says how sure a minimum is and what it weighs.
    """
    spread = noise.sd_at if isinstance(noise, NoiseModel) and noise.sd_nats.estimate else None
    rows = used.dropna(subset=["flops", "n_params", "loss_nats"])
    found: dict[str, IsoFlopComparison | str] = {}
    for arm, own in rows.groupby("arm", sort=False):
        budget = _declared(own)
        sizes = own.groupby(budget)["n_params"].nunique()
        if (sizes >= MIN_CURVE).sum() < 2:
            continue
        kept = own.assign(_budget=budget)[budget.isin(sizes.index[sizes >= MIN_CURVE])]
        curves = at_best_rate(kept, ["_budget", "n_params"])
        notes = (
            *_left_out(len(own) - len(kept), f"at budgets of fewer than {MIN_CURVE} sizes"),
            *_left_out(len(kept) - len(curves), "at another learning rate than the best"),
        )
        points = IsoFlopPoints(
            flops=numbers(curves, "_budget"),
            size=numbers(curves, "n_params"),
            loss_nats=numbers(curves, "loss_nats"),
            tokens=numbers(curves, "tokens"),
        )
        # The joint law of several arms has no optimum that holds for one of them alone.
        joint = law if isinstance(law, JointFit) and not law.arms else None
        try:
            compared = compare_isoflop(points, joint=joint, noise_sd=spread, level=level)
            found[str(arm)] = replace(compared, notes=(*compared.notes, *notes))
        except FitRefused as refusal:
            found[str(arm)] = str(refusal)
    return found


def shape_axes(used: pd.DataFrame) -> list[str]:
    """Columns that a map of shapes is over: declared ratios where there are any."""
    declared = set(RATIOS) <= set(used.columns) and used[RATIOS].notna().all(axis=1).any()
    return RATIOS if declared else SHAPE


def shape_surfaces(used: pd.DataFrame, *, level: float = 0.95) -> dict[str, SurfaceFit | str]:
    """Loss over depth and width per arm, at the budget that ran most often; {} without such."""
    found: dict[str, SurfaceFit | str] = {}
    first, second = shape_axes(used)
    for arm, (shapes, notes) in _maps(used).items():
        points = SurfacePoints(
            first=numbers(shapes, first),
            second=numbers(shapes, second),
            loss_nats=numbers(shapes, "loss_nats"),
            names=(first, second),
        )
        try:
            fit = fit_surface(points, level=level)
            found[arm] = replace(fit, notes=(*fit.notes, *notes))
        except FitRefused as refusal:
            found[arm] = str(refusal)
    return found


def shape_gains(used: pd.DataFrame, baseline: str, *, level: float = 0.95) -> dict[str, GainTest]:
    """Whether an arm gains the same at all shapes, where it and the baseline have a map."""
    axes = shape_axes(used)
    maps = {arm: shapes.set_index(axes) for arm, (shapes, _) in _maps(used).items()}
    found = {}
    for arm in maps:
        if arm == baseline or baseline not in maps:
            continue
        gain = (maps[baseline]["loss_nats"] - maps[arm]["loss_nats"]).dropna().reset_index()
        with suppress(FitRefused):
            found[arm] = gain_test(*(numbers(gain, name) for name in gain.columns), level=level)
    return found


def _maps(used: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, tuple[str, ...]]]:
    """By arm: mean loss over two axes of shape that fill a map, and what is left out of it.

    The map is of the budget that ran most often.
    """
    axes = shape_axes(used)
    if not set(axes) <= set(used.columns):
        return {}
    rows = used.dropna(subset=[*axes, "flops", "loss_nats"])
    found = {}
    for arm, own in rows.groupby("arm", sort=False):
        budget = _declared(own)
        here = own[budget == budget.mode().iloc[0]]
        best = at_best_rate(here, axes)
        shapes = best.groupby(axes)["loss_nats"].mean().reset_index()
        notes = (
            *_left_out(len(own) - len(here), "at other budgets"),
            *_left_out(len(here) - len(best), "at another learning rate than the best"),
        )
        if fills_a_map(*(shapes[axis] for axis in axes)):
            found[str(arm)] = (shapes, notes)
    return found


def _left_out(n: int, where: str) -> tuple[str, ...]:
    """A note of runs that do not enter; none of none."""
    return (f"left_out: {n} runs {where}",) if n else ()


def fills_a_map(depths: Sequence[float] | pd.Series, widths: Sequence[float] | pd.Series) -> bool:
    """Shapes fill half of a rectangle of three by three or more; a ladder fills a diagonal."""
    n_depths, n_widths = len(set(depths)), len(set(widths))
    shapes = len(set(zip(depths, widths, strict=True)))
    return min(n_depths, n_widths) >= 3 and 2 * shapes >= n_depths * n_widths


def at_best_rate(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Of each group the runs at the learning rate of the lowest mean loss; all without rates."""
    if "lr" not in rows or rows["lr"].isna().any() or rows["lr"].nunique() < 2:
        return rows
    means = rows.groupby([*by, "lr"])["loss_nats"].mean().reset_index()
    best = means.loc[means.groupby(list(by))["loss_nats"].idxmin(), [*by, "lr"]]
    return rows.merge(best, on=[*by, "lr"])


def block_size_curve(used: pd.DataFrame, *, level: float = 0.95) -> BlockSizeFit | str:
    """Loss against block size, replicates being sizes and seeds."""
    if "block_size" not in used or used["block_size"].nunique() < 2:
        return "the block size does not vary"
    rows = used[used["block_size"].notna()]
    means = rows.groupby(["block_size", "size_key", "pair_key", "seed"], dropna=False)["loss_nats"]
    table = means.mean().reset_index()
    replicate = [tuple(key) for key in table[["size_key", "pair_key", "seed"]].to_numpy()]
    # A replicate with one block size compares nothing.
    often = table.groupby(["size_key", "pair_key", "seed"], dropna=False)["loss_nats"]
    kept = often.transform("size") > 1
    try:
        if not kept.any():
            raise TooFewData("no size and seed ran two block sizes")
        names = [name for name, keep in zip(replicate, kept, strict=True) if keep]
        fit = fit_block_size(
            numbers(table[kept], "block_size"),
            numbers(table[kept], "loss_nats"),
            names,
            level=level,
        )
        notes = _left_out(int((~kept).sum()), "whose size and seed ran one block size")
        return replace(fit, notes=(*fit.notes, *notes))
    except FitRefused as refusal:
        return str(refusal)


def numbers(frame: pd.DataFrame, column: str) -> Floats:
    """A column as float64."""
    return np.asarray(frame[column], dtype=np.float64)


def _declared(rows: pd.DataFrame) -> pd.Series:
    """The budget of each run in FLOPs: as declared where it is one of FLOPs, else as counted."""
    counted = rows["flops"].astype(np.float64)
    if "budget_kind" in rows and (rows["budget_kind"] == "flops").all():
        return rows["budget_value"].astype(np.float64)
    order = counted.sort_values(kind="stable")
    level, levels = 0.0, []
    for flops in order:
        level = flops if flops > SAME_LEVEL * level else level
        levels.append(level)
    return pd.Series(levels, index=order.index).reindex(rows.index)
