"""The tables of what was compared: intervals, sizes, curve, pairs of arms, other choices.

Pure; every estimate stands with its interval, and an undefined one with its reason in the csv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from analysis.collect import compact
from analysis.compare.curve import CurveAt, MultiplierCurve
from analysis.compare.pairwise import PairwiseTest
from analysis.compare.sensitivity import SensitivityRow
from analysis.compare.types import Multiplier, SizeRatio
from analysis.estimates import Interval, too_wide
from analysis.fit.isoflop import IsoFlopComparison, IsoFlopMinimum
from analysis.fit.rescaled import RescaledArm
from analysis.page.numerals import DASH, ends, estimate_cell, number, ratio_cell
from analysis.page.table import Cell, Raw, Table


def intervals_table(multipliers: Sequence[Multiplier]) -> Table:
    """The multiplier of every arm under three intervals, and what it rests on."""
    header = ("arm", "multiplier", "wild bootstrap", "simultaneous", "Holm p", "sizes", "overlap")
    cells, raw = [], []
    for found in multipliers:
        pairing = f"{found.n_sizes} paired" if found.paired else f"{found.n_sizes}, unpaired"
        cells.append(
            (
                Cell(found.arm),
                ratio_cell(found.ratio),
                ratio_cell(found.wild),
                ratio_cell(found.simultaneous),
                Cell(number(found.p_holm, ".2g")),
                Cell(pairing),
                Cell("none" if found.overlap is None else _span(found.overlap)),
            )
        )
        raw.append(_intervals_raw(found))
    caption = (
        "Multiplier: paired Fieller interval, 95%, one arm at a time. Wild bootstrap: the same "
        "without assuming normal deviations. Simultaneous: 95% for all arms at once. Overlap: the "
        "arm's training FLOPs at losses the baseline was measured at; outside it the multiplier "
        "extrapolates the baseline's law."
    )
    return Table("multiplier_intervals", "Intervals", header, tuple(cells), tuple(raw), caption)


def _intervals_raw(found: Multiplier) -> dict[str, Raw]:
    low, high = found.overlap or (None, None)
    kinds = {"fieller": found.ratio, "wild": found.wild, "simultaneous": found.simultaneous}
    raw: dict[str, Raw] = {"arm": found.arm, "baseline": found.baseline, "currency": found.currency}
    for name, interval in kinds.items():
        raw |= ends(interval, f"multiplier_{name}") | {f"{name}_reason": interval.reason}
    return raw | {
        "p_value": found.p_value,
        "p_holm": found.p_holm,
        "verdict": found.verdict,
        "n_sizes": found.n_sizes,
        "paired": str(found.paired).lower(),
        "overlap_low": low,
        "overlap_high": high,
    }


def by_size_table(multipliers: Sequence[Multiplier], sizes: Sequence[str]) -> Table:
    """The multiplier at each size: read off the measured baseline, and from the law."""
    header = ("arm", *sizes, "trend of exponent", "for other E")
    raw: list[dict[str, Raw]] = []
    for found in multipliers:
        raw += [
            {
                "arm": found.arm,
                "size": at.size,
                "measured": at.measured,
                "undefined_because": at.undefined_because,
                "above": at.above,
                "below": at.below,
                "from_law": at.from_law,
                "loss_difference_nats": at.loss_difference,
                "n_seeds": at.n_seeds,
            }
            for at in found.by_size
        ]
    cells = tuple(_by_size_cells(found, sizes) for found in multipliers)
    caption = (
        "Upper: read off the measured baseline curve; outside its range a bound (> or <) where one "
        "follows. Lower: from the law. Trend: exponent of the arm minus the baseline's, 95% "
        "interval. Other E: range of the multiplier as E is pinned at 0 to 0.9 of the lowest loss."
    )
    return Table("multipliers_by_size", "Multiplier by size", header, cells, tuple(raw), caption)


def _by_size_cells(found: Multiplier, sizes: Sequence[str]) -> tuple[Cell, ...]:
    at = {ratio.size: ratio for ratio in found.by_size}
    values = [rho for _, rho in found.by_asymptote if rho is not None]
    spread = f"{min(values):.2f} to {max(values):.2f}" if values else DASH
    trend = found.slope_difference
    return (
        Cell(found.arm),
        *(_size_cell(at.get(size)) for size in sizes),
        estimate_cell(trend, "+.4f") if trend.estimate is not None else Cell(DASH),
        Cell(spread),
    )


def _size_cell(here: SizeRatio | None) -> Cell:
    if here is None:
        return Cell(DASH)
    measured = "undefined"
    if here.measured is not None:
        measured = f"{here.measured:.2f}"
    elif here.above is not None:
        measured = f">{here.above:.2f}"
    elif here.below is not None:
        measured = f"<{here.below:.2f}"
    return Cell(measured, f"law {number(here.from_law, '.2f')}")


def curve_table(curves: Mapping[str, MultiplierCurve | str]) -> Table:
    """The multiplier at the smallest, middle and largest compute of the overlap."""
    found = [curve for curve in curves.values() if not isinstance(curve, str)]
    places = ("smallest", "middle", "largest")
    header = ("arm", *(f"at {place} C" for place in places), "overlap", "notes")
    cells, raw = [], []
    for curve in found:
        points: dict[str, CurveAt] = {place: getattr(curve, place) for place in places}
        cells.append(
            (
                Cell(curve.arm),
                *(_curve_cell(at) for at in points.values()),
                Cell(_span(curve.overlap)),
                Cell("; ".join(note.partition(":")[0] for note in curve.notes) or DASH),
            )
        )
        for place, at in points.items():
            row: dict[str, Raw] = {"arm": curve.arm, "place": place, "flops": at.compute}
            raw.append({**row, **ends(at.ratio, "multiplier")})
    caption = (
        "Multiplier with its pointwise 95% interval where the arm's losses were also the "
        "baseline's. Equal values: one number will do; unequal ones: the gain depends on compute."
    )
    return Table(
        "multiplier_curve", "Multiplier along compute", header, tuple(cells), tuple(raw), caption
    )


def _curve_cell(at: CurveAt) -> Cell:
    cell = ratio_cell(at.ratio)
    return Cell(cell.main, f"{cell.detail} at {compact(at.compute)}".strip())


def pairwise_table(tests: Sequence[PairwiseTest]) -> Table:
    """Every pair of arms: compute ratio, loss difference, corrected p."""
    header = ("first", "second", "ratio", "loss difference", "p", "Holm p", "sizes")
    cells = tuple(
        (
            Cell(test.first),
            Cell(test.second),
            ratio_cell(test.ratio),
            Cell(f"{test.loss_difference:+.4f}"),
            Cell(number(test.p_value, ".2g")),
            Cell(number(test.p_holm, ".2g")),
            Cell(str(test.n_sizes)),
        )
        for test in tests
        if test.p_value is not None
    )
    raw = tuple(
        {
            "first": test.first,
            "second": test.second,
            **ends(test.ratio, "ratio"),
            "loss_difference_nats": test.loss_difference,
            "p_value": test.p_value,
            "p_holm": test.p_holm,
            "n_sizes": test.n_sizes,
        }
        for test in tests
    )
    caption = (
        "Ratio: compute the first needs over what the second needs for the same loss, 95% interval "
        "before correction; above 1 the second is cheaper. Loss difference: second minus first, "
        "nats. Holm p: over all pairs tested."
    )
    return Table("pairwise", "Arms among themselves", header, cells, raw, caption)


def sensitivity_table(by_arm: Mapping[str, Sequence[SensitivityRow]]) -> Table:
    """The multiplier of every arm under every other choice, a column per arm."""
    arms = [arm for arm, rows in by_arm.items() if rows]
    by_choice: dict[tuple[str, str], dict[str, SensitivityRow]] = {}
    for arm in arms:
        for row in by_arm[arm]:
            by_choice.setdefault((row.kind, _choice(row)), {})[arm] = row
    cells = tuple(
        (
            Cell(label, _KINDS.get(kind, kind.replace("_", " "))),
            *(ratio_cell(rows[arm].ratio if arm in rows else None) for arm in arms),
        )
        for (kind, label), rows in by_choice.items()
    )
    raw: list[dict[str, Raw]] = []
    for (kind, _), rows in by_choice.items():
        for arm, row in rows.items():
            raw.append(
                {"arm": arm, "kind": kind, "choice": row.label, **ends(row.ratio, "multiplier")}
                | {"reason": row.ratio.reason, "n_sizes": row.n_sizes}
            )
    caption = (
        "The multiplier in training FLOPs if one choice had been another, the rest as in the "
        "headline; 95% intervals. A finding that a row overturns rests on that choice."
    )
    return Table(
        "sensitivity", "Sensitivity to choices", ("choice", *arms), cells, tuple(raw), caption
    )


def _choice(row: SensitivityRow) -> str:
    """The choice in words that all arms share: a pinned E as its share of the lowest loss."""
    share = re.search(r"\((.* of the lowest loss)\)", row.label) if row.kind == "E" else None
    return f"E at {share.group(1)}" if share else row.label


_KINDS = {
    "headline": "as reported",
    "E": "pinned E",
    "currency": "currency",
    "flop_convention": "FLOP convention",
    "drop_smallest": "fewer sizes",
    "drop_largest": "fewer sizes",
    "with_excluded": "exclusions",
    "unpaired": "pairing",
    "wild": "interval",
}


def isoflop_table(comparisons: Mapping[str, IsoFlopComparison | str]) -> Table:
    """Best parameters and tokens per budget by every method; refused budgets with their reason."""
    raw: list[dict[str, Raw]] = []
    for arm, comparison in comparisons.items():
        if isinstance(comparison, str):
            continue
        for method, fit in comparison.fits.items():
            raw += [_minimum_raw(arm, method, at) for at in fit.minima]
            raw += [
                {"arm": arm, "flops": flops, "method": method, "refused": reason}
                for flops, reason in fit.refused
            ]
    raw.sort(key=lambda row: (str(row["arm"]), float(row["flops"] or 0.0)))
    cells = tuple(
        (
            Cell(str(row["arm"])),
            Cell(compact(float(row["flops"] or 0.0))),
            Cell(str(row["method"])),
            *(_compact_cell(row.get(name)) for name in ("n_star", "d_star")),
            Cell(f"{loss:.4f}" if isinstance(loss := row.get("loss_star"), float) else DASH),
            Cell(str(row.get("refused") or "")),
        )
        for row in raw
    )
    header = ("arm", "FLOPs", "method", "N*", "D*", "loss", "refused")
    caption = (
        "Minima of loss over parameters at equal compute. Methods that disagree bound what the "
        "data say; a budget whose lowest loss lies at the edge has no minimum."
    )
    return Table("isoflop_minima", "IsoFLOP minima", header, cells, tuple(raw), caption)


def _minimum_raw(arm: str, method: str, at: IsoFlopMinimum) -> dict[str, Raw]:
    return {
        "arm": arm,
        "flops": at.flops,
        "method": method,
        "n_star": at.n_star,
        "d_star": at.d_star,
        "loss_star": at.loss_star,
        "n_points": at.n_points,
    }


def rescaled_table(worth: Mapping[str, RescaledArm]) -> Table:
    """What every arm is worth in parameters and in tokens, under the joint law."""
    cells = tuple(
        (Cell(arm), _factor_cell(found.rho_n), _factor_cell(found.rho_d))
        for arm, found in worth.items()
    )
    raw: list[dict[str, Raw]] = []
    for arm, found in worth.items():
        row: dict[str, Raw] = {"arm": arm}
        raw.append({**row, **ends(found.rho_n, "rho_n"), **ends(found.rho_d, "rho_d")})
    caption = (
        "Under the law of N and D with shared exponents an arm behaves like the baseline with so "
        "many times the parameters and so many times the tokens; above 1 it needs less. 95% "
        "intervals, one arm at a time; a factor that the data hardly bound is not printed."
    )
    header = ("arm", "parameters", "tokens")
    return Table("efficiency", "Efficiency in N and in D", header, cells, tuple(raw), caption)


def _factor_cell(factor: Interval) -> Cell:
    """A factor with its interval; of one that the data hardly bound, nothing but that."""
    return Cell(DASH, "[too wide]") if too_wide(factor) else ratio_cell(factor)


def _compact_cell(value: Raw) -> Cell:
    return Cell(compact(value) if isinstance(value, float) else DASH)


def _span(span: tuple[float, float]) -> str:
    return f"{compact(span[0])} to {compact(span[1])}"
