"""Everything computed from one set of runs: laws, multipliers, their doubts.

Pure; takes the frame of ``collect`` or of ``intake``. What is refused is kept as its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis.cells import CURRENCIES, FLOPS, CellPoint, cell_points, pair_points
from analysis.collect import of_the_sweep, usable
from analysis.compare.arms import compare_arms
from analysis.compare.curve import MultiplierCurve, multiplier_curve
from analysis.compare.matching import match_table
from analysis.compare.pairwise import PairwiseTest, pairwise_arms
from analysis.compare.sensitivity import SensitivityRow, sensitivity
from analysis.compare.types import Multiplier
from analysis.estimates import Exclusion, FitRefused, NotComparable
from analysis.fit.block_size import BlockSizeFit
from analysis.fit.isoflop import IsoFlopComparison
from analysis.fit.joint import JointFit
from analysis.fit.joint_profile import JointProfile
from analysis.fit.noise import NoiseModel, fit_noise, lack_of_fit, variance_trend
from analysis.fit.rescaled import RescaledArm, rescaled_arms
from analysis.fit.shared import SharedFit, fit_shared
from analysis.fit.slope_test import SlopeTest, slope_test
from analysis.fit.surface import GainTest, SurfaceFit
from analysis.probes.study import probes_of
from analysis.probes.types import NO_LOSS_LAWS, Probes
from analysis.study_shapes import (
    block_size_curve,
    isoflop_curves,
    joint_law,
    shape_gains,
    shape_surfaces,
)
from analysis.trunks import trunk_note
from harness.cost import FLOP_CONVENTION

Found = TypeVar("Found")
_NOTHING = "nothing is compared"
_PAIRS_MOST = 40
"""Arms beyond which they are not compared among themselves: 780 pairs find nothing."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything computed from one set of runs; a text in place of a result says why none."""

    runs: pd.DataFrame
    baseline: str
    asymptote: float
    """Pinned E, nats."""
    flop_convention: str
    laws: Mapping[str, SharedFit | str]
    """By currency: one exponent, a coefficient per arm."""
    comparisons: Mapping[str, tuple[Multiplier, ...]]
    """By currency, the headline currency first."""
    curves: Mapping[str, MultiplierCurve | str] = field(default_factory=dict)
    """By arm, in FLOPs."""
    sensitivity: Mapping[str, tuple[SensitivityRow, ...]] = field(default_factory=dict)
    """By arm, in FLOPs."""
    pairwise: tuple[PairwiseTest, ...] | str = _NOTHING
    slopes: SlopeTest | str = _NOTHING
    noise: NoiseModel | str = _NOTHING
    joint: JointFit | str = _NOTHING
    joint_profile: JointProfile | None = None
    rescaled: Mapping[str, RescaledArm] = field(default_factory=dict)
    """By arm: what it is worth in parameters and tokens under the joint law."""
    isoflop: Mapping[str, IsoFlopComparison | str] = field(default_factory=dict)
    """By arm; only arms that ran several sizes at one budget."""
    surfaces: Mapping[str, SurfaceFit | str] = field(default_factory=dict)
    """By arm; only where one budget was run over depth and width."""
    gains: Mapping[str, GainTest] = field(default_factory=dict)
    """By arm: whether its gain is the same at all shapes; only where both arms have a map."""
    block_size: BlockSizeFit | str = _NOTHING
    refusal: str | None = None
    """Why nothing is compared at all: the runs measured different losses."""
    probes: Probes | None = None
    """What the runs of generated tasks can compute; then no law and no multiplier is given."""


def analyse(
    runs: pd.DataFrame,
    baseline: str,
    asymptote: float = 0.0,
    *,
    flop_convention: str = FLOP_CONVENTION,
    extrapolate_to: float | None = None,
    level: float = 0.95,
) -> Analysis:
    """Fit and compare in every currency; what is refused becomes its reason.

    Parameters
    ----------
    runs
        All runs; those with ``excluded_because`` enter no fit, and those of another role than the
        sweep's own are left out altogether.
    baseline
        Arm compared with.
    asymptote
        Pinned E, nats.
    flop_convention
        How the FLOPs of the runs were counted.
    extrapolate_to
        FLOPs up to which multipliers are extrapolated, as a band over E; None: not at all.
    level
        Confidence level.

    Raises
    ------
    FitRefused
        The pinned E lies at or above a loss.
    """
    probes = probes_of(runs, baseline, level=level)
    runs = of_the_sweep(runs)
    used = usable(runs)
    empty = Analysis(
        runs=runs,
        baseline=baseline,
        asymptote=asymptote,
        flop_convention=flop_convention,
        laws={currency.name: _NOTHING for currency in CURRENCIES},
        comparisons={currency.name: () for currency in CURRENCIES},
    )
    if probes is not None:
        return replace(_refused(empty, NO_LOSS_LAWS), comparisons={}, probes=probes)
    try:
        _same_loss(used)
    except NotComparable as refusal:
        return _refused(empty, str(refusal))
    noise = _or_reason(lambda: fit_noise(used["loss_nats"], used["cell"], level=level))
    laws = _laws(runs, used, asymptote, flop_convention, level)
    compared = replace(
        empty,
        laws=laws | {FLOPS.name: doubted(laws[FLOPS.name], used)},
        comparisons={
            currency.name: tuple(
                replace(m, notes=(*m.notes, *trunk_note(used)))
                for m in compare_arms(used, baseline, currency, asymptote=asymptote, level=level)
            )
            for currency in CURRENCIES
            if _has(used, currency.column)
        },
        pairwise=_pairwise(used, baseline, asymptote, level),
        noise=noise,
        slopes=_or_reason(lambda: slope_test(cell_points(used, FLOPS), asymptote, level=level)),
    )
    return _with_shapes(_with_curves(compared, used, extrapolate_to, level), used, level)


def _refused(empty: Analysis, reason: str) -> Analysis:
    none = dict.fromkeys(empty.laws, reason)
    return replace(empty, laws=none, refusal=reason, slopes=reason, noise=reason, joint=reason)


def _laws(
    runs: pd.DataFrame, used: pd.DataFrame, asymptote: float, flop_convention: str, level: float
) -> dict[str, SharedFit | str]:
    exclusions = exclusions_of(runs)

    def law(points: tuple[CellPoint, ...], at: int) -> SharedFit:
        found = fit_shared(
            points, CURRENCIES[at], asymptote=asymptote, exclusions=exclusions, level=level
        )
        counted = CURRENCIES[at].unit == "FLOPs"
        return replace(
            found,
            flop_convention=flop_convention if counted else None,
            notes=(*found.notes, *trunk_note(used)),
        )

    found: dict[str, SharedFit | str] = {}
    for i, currency in enumerate(CURRENCIES):
        points = cell_points(used, currency)
        found[currency.name] = _or_reason(lambda points=points, i=i: law(points, i))  # type: ignore[misc]
    return found


def doubted(law: SharedFit | str, used: pd.DataFrame) -> SharedFit | str:
    """The law with what its residuals say against it: lack of fit, variance along compute.

    Arms trained at one size share its deviation, so both are asked of the means over arms: sizes
    are the observations, seeds their replicates.
    """
    if isinstance(law, str):
        return law
    rows = used[used["flops"].notna()]
    compute = rows["flops"].to_numpy(dtype=np.float64)
    fitted = [float(law.loss(arm, at)) for arm, at in zip(rows["arm"], compute, strict=True)]
    misses = rows.assign(miss=rows["loss_nats"] - fitted, log_compute=np.log(compute))
    by_seed = misses.groupby(["size_key", "pair_key", "seed"], dropna=False)["miss"].mean()
    sizes = by_seed.groupby(level="size_key").agg(["mean", "size"])
    notes: list[str | None] = []
    with suppress(FitRefused):
        # The level of the losses is added because a noise model is one of losses.
        around = by_seed + float(rows["loss_nats"].mean())
        noise = fit_noise(around, list(by_seed.index.get_level_values("size_key")))
        # Seeds without any spread are copies: nothing can be held against them.
        if noise.sd_nats.estimate:
            n_seeds = [int(n) for n in sizes["size"]]
            notes.append(lack_of_fit(sizes["mean"], 2, noise, n_seeds=n_seeds).note)
    with suppress(FitRefused):
        at = misses.groupby("size_key")["log_compute"].mean().reindex(sizes.index)
        notes.append(variance_trend(np.exp(at), sizes["mean"]).note)
    return replace(law, notes=(*law.notes, *(note for note in notes if note)))


def _pairwise(
    used: pd.DataFrame, baseline: str, asymptote: float, level: float
) -> tuple[PairwiseTest, ...] | str:
    others = used[used["arm"] != baseline]
    n = others["arm"].nunique()
    if n < 2:
        return "one arm beside the baseline"
    if n > _PAIRS_MOST:
        return f"{n} arms: more than {_PAIRS_MOST} are not compared among themselves"
    return _or_reason(lambda: pairwise_arms(others, FLOPS, asymptote=asymptote, level=level))


def _with_curves(
    found: Analysis, used: pd.DataFrame, extrapolate_to: float | None, level: float
) -> Analysis:
    """Multipliers along compute, and how they move with what the data do not settle."""
    points, table = cell_points(used, FLOPS), match_table(used, FLOPS)
    base = [point for point in points if point.arm == found.baseline]
    arms = [multiplier.arm for multiplier in found.comparisons.get(FLOPS.name, ())]

    def curve(arm: str) -> MultiplierCurve:
        pairs = pair_points(table.match(arm, found.baseline), found.asymptote)
        return multiplier_curve(pairs, base, arm=arm, level=level, extrapolate_to=extrapolate_to)

    return replace(
        found,
        curves={arm: _or_reason(lambda arm=arm: curve(arm)) for arm in arms},  # type: ignore[misc]
        sensitivity={
            arm: sensitivity(
                found.runs, arm, found.baseline, asymptote=found.asymptote, level=level
            )
            for arm in arms
        },
    )


def _with_shapes(found: Analysis, used: pd.DataFrame, level: float) -> Analysis:
    """Laws in N and D, isoFLOP curves, depth against width, block size."""
    joint = joint_law(used, exclusions_of(found.runs), level=level)
    law = joint if isinstance(joint, str) else joint[0]
    worth: Mapping[str, RescaledArm] | str = {}
    if not isinstance(law, str) and found.baseline in law.arms:
        worth = _or_reason(lambda: rescaled_arms(law, found.baseline))
    return replace(
        found,
        joint=law,
        joint_profile=None if isinstance(joint, str) else joint[1],
        isoflop=isoflop_curves(used, law, found.noise, level=level),
        rescaled={} if isinstance(worth, str) else worth,
        surfaces=shape_surfaces(used, level=level),
        gains=shape_gains(used, found.baseline, level=level),
        block_size=block_size_curve(used, level=level),
    )


def exclusions_of(runs: pd.DataFrame) -> tuple[Exclusion, ...]:
    """Runs that enter no fit, each with its reason."""
    left = runs[runs["excluded_because"].notna()]
    return tuple(
        Exclusion(str(run.run_id), str(run.arm), str(run.excluded_because))
        for run in left.itertuples()
    )


def _same_loss(used: pd.DataFrame) -> None:
    """Refuse runs that do not share corpus, vocabulary and validation set.

    Raises
    ------
    NotComparable
        They differ.
    """
    for column in ("corpus_sha256", "vocab_size", "eval_tokens"):
        values = used[column].dropna().unique() if column in used else ()
        if len(values) > 1:
            shown = ", ".join(str(value)[:12] for value in values)
            raise NotComparable(
                f"losses are not comparable, the runs differ in {column} ({shown}); give each "
                "its own sweep"
            )


def _has(used: pd.DataFrame, column: str) -> bool:
    """Tell whether the currency was recorded, or there is nothing to record yet."""
    return used.empty or bool(used[column].notna().any())


def _or_reason(fit: Callable[[], Found]) -> Found | str:
    try:
        return fit()
    except FitRefused as refusal:
        return str(refusal)
