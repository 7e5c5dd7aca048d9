"""Every arm of a sweep against the baseline, in one currency.

``rho = C_baseline(L) / C_arm(L)``: above 1, the arm reaches the same loss with less compute.
Pure; takes the frame of ``collect``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.cells import CellPoint, Currency, MatchedSize, PairPoint, cell_points, pair_points
from analysis.compare.doubts import crossing, reading_notes, seed_doubt, seed_spread, slope_doubt
from analysis.compare.fieller import (
    Paired,
    exp,
    iso_loss_ratio,
    p_value,
    paired_moments,
    slope_difference,
)
from analysis.compare.holm import holm
from analysis.compare.matching import MatchTable, match_table
from analysis.compare.measured import measured_ratio, overlap_range
from analysis.compare.shown import judged_width
from analysis.compare.simultaneous import simultaneous
from analysis.compare.types import Multiplier, SizeRatio, Verdict
from analysis.compare.unpaired import size_pairs, unpaired_ratio
from analysis.compare.wild import wild_bootstrap
from analysis.estimates import Interval, undefined
from analysis.fit.shared import PROFILE_SHARES
from analysis.laws import log_multiplier

UNPAIRED = (
    "unpaired: no seed and settings in common with the baseline, so deviations that the arms "
    "share at a size count as noise"
)


@dataclass(frozen=True, kw_only=True)
class _Study:
    """What all arms are compared under."""

    baseline: str
    currency: str
    asymptote: float
    level: float
    table: MatchTable
    curve: Sequence[CellPoint]
    """Of the baseline."""
    lowest: float
    """Lowest loss of all runs, nats."""


def compare_arms(
    used: pd.DataFrame,
    baseline: str,
    currency: Currency,
    *,
    asymptote: float = 0.0,
    level: float = 0.95,
) -> tuple[Multiplier, ...]:
    """Compare every other arm with the baseline in one currency.

    A verdict of better or worse needs an interval that excludes 1 and a Holm-adjusted p below
    1 - level; otherwise no difference was found. An arm that crosses the baseline has no single
    multiplier (:func:`analysis.compare.doubts.crossing`); one that shares no run with it is
    compared unpaired, and says so.

    Parameters
    ----------
    used
        Usable runs (:func:`analysis.collect.usable`).
    baseline
        Arm compared with.
    currency
        What compute is counted in.
    asymptote
        Pinned E, nats.
    level
        Confidence level.
    """
    study = _Study(
        baseline=baseline,
        currency=currency.name,
        asymptote=asymptote,
        level=level,
        table=match_table(used, currency),
        curve=cell_points(used[used["arm"] == baseline], currency),
        lowest=float(used["loss_nats"].min()),
    )
    arms = [str(arm) for arm in dict.fromkeys(used["arm"]) if arm != baseline]
    matched = {arm: study.table.match(arm, baseline) for arm in arms}
    found = [
        _paired(study, arm, matched[arm]) if matched[arm] else _unpaired(study, arm) for arm in arms
    ]
    family = _family(study, found, matched)
    tested = [i for i, m in enumerate(found) if m.p_value is not None]
    adjusted = dict(zip(tested, holm([found[i].p_value or 0.0 for i in tested]), strict=True))
    return tuple(
        _with_verdict(replace(m, simultaneous=family[m.arm]), adjusted.get(i), level)
        for i, m in enumerate(found)
    )


def _paired(study: _Study, arm: str, matched: Sequence[MatchedSize]) -> Multiplier:
    level, pairs = study.level, pair_points(matched, study.asymptote)
    ratio, wild = iso_loss_ratio(pairs, level), wild_bootstrap(pairs, level=level)
    trend, spread = slope_difference(pairs, level), seed_spread(matched, study.asymptote)
    crosses = crossing(pairs, trend, spread)
    if crosses:
        ratio, wild = (undefined(crosses, method=one.method, level=level) for one in (ratio, wild))
    doubts = (crosses, seed_doubt(pairs, spread), None if crosses else slope_doubt(pairs, level))
    return _multiplier(
        study,
        arm,
        pairs,
        ratio=ratio,
        wild=wild,
        trend=trend,
        p=p_value(pairs),
        paired=True,
        by_asymptote=_by_asymptote(matched, study.lowest),
        notes=tuple(note for note in doubts if note),
    )


def _unpaired(study: _Study, arm: str) -> Multiplier:
    """From each arm's own runs; where these are too few, the reason is that nothing is paired."""
    base, own = study.table.sizes(study.baseline), study.table.sizes(arm)
    ratio, p = unpaired_ratio(base, own, asymptote=study.asymptote, level=study.level)
    if ratio.estimate is None:
        ratio = iso_loss_ratio((), study.level)
        return _multiplier(study, arm, (), ratio=ratio, wild=ratio, trend=ratio, p=None)
    why = undefined(UNPAIRED, method="none without pairs", level=study.level)
    pairs = size_pairs(base, own, study.asymptote)
    return _multiplier(study, arm, pairs, ratio=ratio, wild=why, trend=why, p=p, notes=(UNPAIRED,))


def _multiplier(
    study: _Study,
    arm: str,
    pairs: Sequence[PairPoint],
    *,
    ratio: Interval,
    wild: Interval,
    trend: Interval,
    p: float | None,
    paired: bool = False,
    by_asymptote: tuple[tuple[float, float | None], ...] = (),
    notes: tuple[str, ...] = (),
) -> Multiplier:
    moments = paired_moments(pairs)
    logs = [pair.log_compute_arm for pair in pairs]
    return Multiplier(
        arm=arm,
        baseline=study.baseline,
        currency=study.currency,
        asymptote=study.asymptote,
        ratio=judged_width(ratio),
        wild=judged_width(wild),
        simultaneous=ratio,
        slope=None if isinstance(moments, str) else moments.slope,
        slope_difference=trend,
        p_value=p,
        p_holm=None,
        verdict="undefined",
        paired=paired,
        n_sizes=len(pairs),
        domain=(math.exp(min(logs)), math.exp(max(logs))) if logs else None,
        overlap=overlap_range(pairs, study.curve),
        by_size=tuple(_size_ratio(pair, moments, study.curve) for pair in pairs),
        by_asymptote=by_asymptote,
        notes=notes,
    )


def _family(
    study: _Study, found: Sequence[Multiplier], matched: Mapping[str, Sequence[MatchedSize]]
) -> dict[str, Interval]:
    """Family-wise intervals: Sidak over the paired arms, Bonferroni for each unpaired one."""
    counted = [m for m in found if m.p_value is not None]
    share = (1 - study.level) / max(1, len(counted))
    pairs = {m.arm: pair_points(matched[m.arm], study.asymptote) for m in found if m.paired}
    n_paired = sum(m.paired for m in counted)
    together = simultaneous(pairs, 1 - share * max(1, n_paired))
    for m in found:
        crosses = next((note for note in m.notes if note.startswith("crossing: ")), None)
        if m.paired and crosses:
            together[m.arm] = undefined(crosses, method=together[m.arm].method)
        elif not m.paired:
            together[m.arm] = _bonferroni(study, m, share)
    return {arm: judged_width(replace(one, level=study.level)) for arm, one in together.items()}


def _bonferroni(study: _Study, found: Multiplier, share: float) -> Interval:
    if found.ratio.estimate is None:
        return found.ratio
    base, own = study.table.sizes(study.baseline), study.table.sizes(found.arm)
    ratio, _ = unpaired_ratio(base, own, asymptote=study.asymptote, level=1 - share)
    return replace(ratio, method=f"{ratio.method}, Bonferroni over arms")


def _by_asymptote(
    matched: Sequence[MatchedSize], lowest: float
) -> tuple[tuple[float, float | None], ...]:
    pinned = [share * lowest for share in PROFILE_SHARES]
    return tuple((e, iso_loss_ratio(pair_points(matched, e)).estimate) for e in pinned)


def _size_ratio(pair: PairPoint, paired: Paired | str, curve: Sequence[CellPoint]) -> SizeRatio:
    found = measured_ratio(pair, curve)
    from_law = None
    if not isinstance(paired, str):
        gap = pair.log_excess_base - pair.log_excess_arm
        from_law = exp(
            log_multiplier(gap, paired.slope, pair.log_compute_base - pair.log_compute_arm)
        )
    return SizeRatio(
        size=pair.size,
        compute=math.exp(pair.log_compute_arm),
        from_law=from_law,
        measured=found.ratio,
        undefined_because=found.undefined_because,
        above=found.above,
        below=found.below,
        loss_difference=pair.loss_arm - pair.loss_base,
        n_seeds=pair.n_seeds,
    )


def _with_verdict(found: Multiplier, p_holm: float | None, level: float) -> Multiplier:
    verdict: Verdict = "undefined"
    if p_holm is not None and found.ratio.estimate is not None:
        sure = p_holm < 1 - level and found.ratio.excludes(1.0)
        direction: Verdict = "better" if found.ratio.estimate > 1 else "worse"
        verdict = direction if sure else "no difference found"
    notes = (*found.notes, *reading_notes(found))
    return replace(found, p_holm=p_holm, verdict=verdict, notes=notes)
