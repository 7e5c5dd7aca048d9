"""Everything that one table of runs can carry: which laws, which comparisons, and what is refused.

Pure. A fit that is refused is kept as its reason; nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from analysis.cells import (
    CURRENCIES,
    FLOPS,
    SAME_LEVEL,
    TOKENS,
    CellPoint,
    Currency,
    cell_points,
)
from analysis.collect import usable
from analysis.compare.types import Multiplier
from analysis.estimates import FitRefused, TooFewData
from analysis.fit.broken import fit_broken_power
from analysis.fit.isoflop import IsoFlopComparison, IsoFlopPoints, compare_isoflop
from analysis.fit.joint import JointFit, JointPoints, fit_joint
from analysis.fit.power import fit_power
from analysis.fit.power_check import PowerCheck, check_power
from analysis.fit.published import PublishedCheck, check_published
from analysis.fit.rescaled import RescaledArm, rescaled_arms
from analysis.fit.shared import SharedFit, fit_shared
from analysis.intake.options import FitOptions
from analysis.intake.table import StudyTable
from analysis.law_fit import LawFit
from analysis.study import Analysis, analyse, exclusions_of

MIN_JOINT = 8
"""Runs below which a law of two variables is not tried unasked."""
MIN_CURVE = 5
"""Sizes of an isoFLOP curve that is worth a minimum."""
ON_CURVES = 0.75
"""Share of the runs on such curves that makes a table one of isoFLOP curves."""
PARAMS = Currency("params", "n_params", "parameters", "parameters")
Variable = Literal["C", "N", "D"]
_VARIABLES: Mapping[Variable, Currency] = {"C": FLOPS, "N": PARAMS, "D": TOKENS}
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """An arm that is better than the baseline at some sizes and worse at others."""

    arm: str
    better: tuple[str, ...]
    worse: tuple[str, ...]


@dataclass(kw_only=True)
class TableFits:
    """What was fitted to a table, and what was refused; filled while fitting, then only read."""

    table: StudyTable
    options: FitOptions
    asymptote: float = 0.0
    """E of the comparisons, nats."""
    laws: dict[str, LawFit] = field(default_factory=dict)
    """By name: ``joint``, ``shared``, ``power``, ``broken``, with ``[arm]`` where one per arm."""
    analysis: Analysis | None = None
    """Multipliers against the baseline, with the checks on them."""
    rescaled: dict[str, RescaledArm] = field(default_factory=dict)
    isoflop: IsoFlopComparison | None = None
    published: PublishedCheck | PowerCheck | None = None
    crossings: tuple[Crossing, ...] = ()
    refused: list[str] = field(default_factory=list)
    """What was not fitted and why, one line each."""

    @property
    def comparisons(self) -> Mapping[str, tuple[Multiplier, ...]]:
        """Multipliers by currency that every run has, FLOPs first; empty where none is made."""
        if self.analysis is None:
            return {}
        used = usable(self.table.runs)
        complete = [at.name for at in CURRENCIES if used[at.column].notna().all()]
        found = self.analysis.comparisons
        return {name: found[name] for name in complete if found.get(name)}

    def attempt(self, what: str, fit: Callable[[], Found]) -> Found | None:
        """Fit, or note the refusal."""
        try:
            return fit()
        except FitRefused as refusal:
            self.refused.append(f"{what}: {refusal}")
            return None


def fit_table(table: StudyTable, options: FitOptions) -> TableFits:
    """Fit what the table can carry, or the law that was asked for.

    Two variants or more give multipliers against the baseline; N and D that vary apart a joint
    law; several sizes per budget isoFLOP minima; the rest a power law.

    Parameters
    ----------
    table
        The runs.
    options
        Law, objective and the rest.

    Raises
    ------
    FitRefused
        Nothing at all can be fitted, or a law that was asked for by name was refused.
    """
    fits = TableFits(table=table, options=options)
    used, law = usable(table.runs), options.law
    if len(table.arms) > 1 and law in ("auto", "power"):
        _compare(fits, used)
    if law in ("auto", "joint"):
        _joint(fits, used)
    if law == "isoflop" or (law == "auto" and _has_curves(used)):
        _isoflop(fits, used)
    if law == "power" or (law == "auto" and not fits.laws and fits.isoflop is None):
        _per_arm(fits, used, "power")
    if law == "broken":
        _per_arm(fits, used, "broken")
    if not (fits.laws or fits.isoflop or fits.comparisons or fits.crossings):
        raise TooFewData("\n".join([f"{table.source}: nothing can be fitted", *fits.refused]))
    if options.published and fits.published is None:
        raise FitRefused(
            f"{table.source}: --published needs a joint law L(N, D) of one arm, or with "
            "--law power a law of one variable, and there is none"
            + "".join(f"\n{line}" for line in fits.refused)
        )
    return fits


def _compare(fits: TableFits, used: pd.DataFrame) -> None:
    """Multipliers of every variant, with the checks on them."""
    baseline, options = fits.table.baseline, fits.options
    if baseline is None:
        return
    fits.crossings = tuple(_crossings(used, baseline))
    if not used["flops"].notna().all():
        fits.refused.append(
            "multipliers: a ratio of compute needs C, and the table has neither C nor both N and "
            "D; name the column with --c (or --d)"
        )
        return
    if used["cluster"].notna().any():
        fits.refused.append(
            "multipliers: checkpoints of one run are not sizes; keep the last of each with "
            "--last-checkpoint"
        )
        return
    fits.asymptote = _pinned(fits, used)
    fits.analysis = found = analyse(
        fits.table.runs,
        baseline,
        fits.asymptote,
        flop_convention=fits.table.flop_convention,
        extrapolate_to=options.extrapolate_to,
        level=options.level,
    )
    law = found.laws[FLOPS.name]
    if isinstance(law, str):
        fits.refused.append(f"L(C) with one exponent for all variants: {law}")
    elif options.asymptote != "free":
        fits.laws["shared"] = law
    for what, result in (("variants among themselves", found.pairwise), ("slopes", found.slopes)):
        if isinstance(result, str) and len(fits.table.arms) > 2:
            fits.refused.append(f"{what}: {result}")
    for arm, curve in found.curves.items():
        if isinstance(curve, str) and options.extrapolate_to is not None:
            fits.refused.append(f"multiplier of {arm} along compute: {curve}")


def _pinned(fits: TableFits, used: pd.DataFrame) -> float:
    """E of the comparisons: the one given, or the best of the shared law's profile."""
    if not isinstance(fits.options.asymptote, str):
        return fits.options.asymptote
    found: SharedFit | None = fits.attempt(
        "L(C) with one exponent and a free E",
        lambda: fit_shared(
            cell_points(used, FLOPS),
            FLOPS,
            asymptote="profile",
            exclusions=exclusions_of(fits.table.runs),
            level=fits.options.level,
        ),
    )
    if found is None:
        return 0.0
    fits.laws["shared"] = replace(found, flop_convention=fits.table.flop_convention)
    return found.asymptote


def _crossings(used: pd.DataFrame, baseline: str) -> list[Crossing]:
    """Arms whose loss difference to the baseline changes sign over the sizes."""
    means = used.groupby(["size", "arm"], sort=False)["loss_nats"].mean().unstack()
    found = []
    for arm in means.columns:
        gaps = (means[arm] - means[baseline]).dropna()
        better, worse = gaps.index[gaps < 0], gaps.index[gaps > 0]
        if arm != baseline and len(better) and len(worse):
            found.append(Crossing(arm=str(arm), better=tuple(better), worse=tuple(worse)))
    return found


def _joint(fits: TableFits, used: pd.DataFrame) -> None:
    options, what = fits.options, "joint law L(N, D)"
    if not used[["n_params", "tokens"]].notna().all(axis=None):
        if options.law == "joint" or options.published:
            fits.refused.append(f"{what}: needs N and D of every run; name them with --n and --d")
        return
    if len(used) < MIN_JOINT and options.law == "auto":
        fits.refused.append(f"{what}: {len(used)} runs; not tried below {MIN_JOINT}")
        return
    points = _joint_points(fits.table, used)
    fit: JointFit | None = fits.attempt(
        what,
        lambda: fit_joint(
            points,
            objective=options.objective,
            delta=options.delta,
            level=options.level,
            replicates=options.bootstrap,
            exclusions=exclusions_of(fits.table.runs),
        ),
    )
    if fit is None:
        return
    fits.laws["joint"] = fit
    if options.published and not fit.arms:
        delta = options.delta if options.objective == "huber" else None
        fits.published = check_published(points, options.published, fit, delta=delta)
    baseline = fits.table.baseline
    if fit.arms and baseline is not None:
        found = fits.attempt("efficiency in N and D", lambda: rescaled_arms(fit, baseline))
        fits.rescaled = found or {}


def _joint_points(table: StudyTable, used: pd.DataFrame) -> JointPoints:
    return JointPoints(
        n_params=used["n_params"].to_numpy(dtype=np.float64),
        tokens=used["tokens"].to_numpy(dtype=np.float64),
        loss_nats=used["loss_nats"].to_numpy(dtype=np.float64),
        arms=[str(arm) for arm in used["arm"]] if len(table.arms) > 1 else None,
        clusters=_clusters(used),
    )


def _clusters(used: pd.DataFrame) -> list[str] | None:
    """What is not independent: checkpoints of one run, else replicates of one N and D."""
    if used["cluster"].notna().any():
        return [str(name) for name in used["cluster"].fillna(used["run_id"])]
    if not used.duplicated(["arm", "n_params", "tokens"]).any():
        return None
    groups = used.groupby(["arm", "n_params", "tokens"], sort=False).ngroup()
    return [f"cell {number}" for number in groups]


def _budgets(used: pd.DataFrame) -> list[pd.DataFrame]:
    """Runs by budget: FLOPs that agree within 5%."""
    if used["flops"].isna().any() or used["n_params"].isna().any():
        return []
    ordered = used.sort_values("flops")
    steps = np.diff(np.log(ordered["flops"].to_numpy(dtype=np.float64)), prepend=np.nan)
    return [group for _, group in ordered.groupby(np.cumsum(steps > np.log(SAME_LEVEL)))]


def _has_curves(used: pd.DataFrame) -> bool:
    """Whether most runs stand on budgets that were each spent at several sizes."""
    curves = [
        len(group)
        for group in _budgets(used)
        if group["n_params"].nunique() >= MIN_CURVE
        and group["flops"].max() <= group["flops"].min() * SAME_LEVEL
    ]
    one_arm = used["arm"].nunique() == 1
    return one_arm and len(curves) >= 2 and sum(curves) >= ON_CURVES * len(used)


def _isoflop(fits: TableFits, used: pd.DataFrame) -> None:
    if not used[["flops", "n_params"]].notna().all(axis=None) or len(fits.table.arms) > 1:
        fits.refused.append(
            "isoFLOP minima: need C and N of every run, of one variant; choose it with --where"
        )
        return
    joint = fits.laws.get("joint")
    tokens = used["tokens"].to_numpy(dtype=np.float64) if used["tokens"].notna().all() else None
    fits.isoflop = fits.attempt(
        "isoFLOP minima",
        lambda: compare_isoflop(
            IsoFlopPoints(
                flops=used["flops"].to_numpy(dtype=np.float64),
                size=used["n_params"].to_numpy(dtype=np.float64),
                loss_nats=used["loss_nats"].to_numpy(dtype=np.float64),
                tokens=tokens,
            ),
            joint=joint if isinstance(joint, JointFit) else None,
        ),
    )


def _per_arm(fits: TableFits, used: pd.DataFrame, law: Literal["power", "broken"]) -> None:
    """A law of one variable for each arm: of C, else of N, else of D."""
    variable = next(v for v, at in _VARIABLES.items() if used[at.column].notna().all())
    several = len(fits.table.arms) > 1
    for arm in fits.table.arms:
        points = [p for p in cell_points(used, _VARIABLES[variable]) if p.arm == arm]
        what = f"{law} law L({variable})" + (f" of {arm}" if several else "")
        found = fits.attempt(what, partial(_one_variable, fits, points, law, variable))
        if found is None:
            continue
        fits.laws[f"{law}[{arm}]" if several else law] = found
        if law == "power" and fits.options.published and not several:
            fits.published = _check_power(fits.options, points)


def _check_power(options: FitOptions, points: list[CellPoint]) -> PowerCheck:
    """A published law of one variable, in ln L where the objective is one of logarithms."""
    return check_power(
        [point.compute for point in points],
        [point.loss for point in points],
        options.published or {},
        objective="log" if options.objective == "huber" else "mse",
    )


def _one_variable(
    fits: TableFits, points: list[CellPoint], law: Literal["power", "broken"], variable: Variable
) -> LawFit:
    x, losses = [point.compute for point in points], [point.loss for point in points]
    options = fits.options
    convention = fits.table.flop_convention if variable == "C" else None
    fit = fit_power if law == "power" else fit_broken_power
    return fit(
        x,
        losses,
        variable=variable,
        asymptote=options.asymptote,
        level=options.level,
        exclusions=exclusions_of(fits.table.runs),
        flop_convention=convention,
    )
