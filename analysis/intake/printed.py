"""What was read and fitted as a report of about a screen. Text only; computes nothing new."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from analysis.collect import compact
from analysis.compare.pairwise import pairwise_sentence
from analysis.compare.types import Multiplier
from analysis.estimates import Interval, too_wide
from analysis.intake.fit_table import TableFits
from analysis.intake.options import named_rows
from analysis.intake.printed_laws import isoflop_lines, law_blocks, prediction_lines
from analysis.intake.table import StudyTable

CURRENCY_WORDS = {
    "flops_without": "FLOPs without the variant's own",
    "wall_clock": "training time",
    "tokens": "tokens",
}


def fits_text(fits: TableFits) -> str:
    """Everything about a table: what was read, multipliers, laws, doubts, refusals."""
    blocks = [
        list(read_lines(fits.table)),
        list(_comparison_lines(fits)),
        *law_blocks(fits),
        list(isoflop_lines(fits)),
        list(prediction_lines(fits)),
        [f"not fitted: {line}" for line in fits.refused],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def read_lines(table: StudyTable) -> Iterator[str]:
    """Rows used and excluded with the reasons, columns, how C was counted."""
    runs = table.runs
    left = runs[runs["excluded_because"].notna()]
    arms = f", {len(table.arms)} variants" if len(table.arms) > 1 else ""
    yield f"{table.source}: {len(runs) - len(left)} of {len(runs)} runs used{arms}"
    for reason, group in left.groupby("excluded_because", sort=False):
        yield f"  excluded    {len(group)} {reason}: {named_rows(list(group['run_id']))}"
    columns = ", ".join(f"{role} = {name}" for role, name in table.columns.items())
    yield f"  columns     {columns}" + ("; one column of losses per variant" if table.wide else "")
    yield f"  compute     {table.flop_convention}"
    for note in table.notes:
        yield f"  note        {note}"


def _comparison_lines(fits: TableFits) -> Iterator[str]:
    multipliers = fits.comparisons.get("flops", ())
    if multipliers:
        width = max(len(m.arm) for m in multipliers)
        yield from _title(fits, multipliers[0])
        yield from (_multiplier_line(multiplier, width) for multiplier in multipliers)
        yield from _checks(fits, multipliers, width)
        yield from _sentences(fits)
    yield from _crossing_lines(fits)
    for name, others in fits.comparisons.items():
        if name != "flops" and others:
            listed = ", ".join(f"{m.arm} {interval_text(m.ratio)}" for m in others)
            yield f"  in {CURRENCY_WORDS.get(name, name)}: {listed}"


def _title(fits: TableFits, first: Multiplier) -> Iterator[str]:
    found = " (best of its profile)" if fits.options.asymptote == "free" else ", pinned"
    yield f"Iso-loss multipliers against {first.baseline}: its FLOPs over the variant's at one loss"
    yield (
        f"  {100 * fits.options.level:g}% intervals, {first.ratio.method}; "
        f"E = {fits.asymptote:.4g} nats{found}"
    )


def _multiplier_line(found: Multiplier, width: int) -> str:
    tested = ""
    if found.p_value is not None:
        tested = f"  p {found.p_value:.2g}"
    if found.p_holm is not None:
        tested += f" (Holm {found.p_holm:.2g})"
    sizes = "size" if found.n_sizes == 1 else "sizes"
    return (
        f"  {found.arm:<{width}}  {interval_text(found.ratio)}{tested}  {found.verdict}; "
        f"{found.n_sizes} {sizes}{'' if found.paired else ', unpaired'}"
    )


def _checks(fits: TableFits, multipliers: Sequence[Multiplier], width: int) -> Iterator[str]:
    """Other intervals, sensitivity, and values read off the measured baseline."""
    yield "  family-wise over the variants, and by wild bootstrap:"
    for found in multipliers:
        yield (
            f"    {found.arm:<{width}}  {interval_text(found.simultaneous)}; "
            f"{interval_text(found.wild)}"
        )
    yield "  by size from the measured baseline, and over other choices (E, sizes, exclusions):"
    for found in multipliers:
        yield f"    {found.arm:<{width}}  {_measured_text(found)}; {_range_text(fits, found)}"


def _measured_text(found: Multiplier) -> str:
    parts = []
    for at in found.by_size:
        if at.measured is not None:
            parts.append(f"{at.measured:.3f}")
        elif at.above is not None:
            parts.append(f"undefined (> {at.above:.3f})")
        elif at.below is not None:
            parts.append(f"undefined (< {at.below:.3f})")
        else:
            parts.append("undefined")
    return ", ".join(parts)


def _range_text(fits: TableFits, found: Multiplier) -> str:
    choices = fits.analysis.sensitivity.get(found.arm, ()) if fits.analysis else ()
    # Another currency asks another question; it is no other answer to this one.
    rows = [row for row in choices if row.kind not in ("headline", "currency")]
    values = [row.ratio.estimate for row in rows if row.ratio.estimate is not None]
    if not values:
        return "no other choice gives one"
    return f"{min(values):.3f} to {max(values):.3f} over {len(values)} choices"


def _sentences(fits: TableFits) -> Iterator[str]:
    if fits.analysis is None:
        return
    pairwise, slopes = fits.analysis.pairwise, fits.analysis.slopes
    if not isinstance(pairwise, str):
        sentence = pairwise_sentence(pairwise, fits.options.level)
        if sentence:
            yield f"  variants    {sentence}"
    if not isinstance(slopes, str):
        yield f"  exponents   {slopes.text}"
    doubts: dict[str, list[str]] = {}
    for found in fits.comparisons.get("flops", ()):
        for note in found.notes:
            doubts.setdefault(note, []).append(found.arm)
    yield from (f"  doubt       {', '.join(arms)}: {note}" for note, arms in doubts.items())


def _crossing_lines(fits: TableFits) -> Iterator[str]:
    for crossing in fits.crossings:
        verb = "no single ratio describes it" if not fits.comparisons else "read it by size"
        yield (
            f"  crossing    {crossing.arm} is better than {fits.table.baseline} at "
            f"{named_rows(crossing.better)}, worse at {named_rows(crossing.worse)}: {verb}"
        )


def interval_text(interval: Interval) -> str:
    """``1.239 [1.187, 1.295]``, or what of it is defined."""
    if interval.estimate is None:
        return f"undefined ({interval.reason})"
    value = _fixed(interval.estimate)
    if interval.low is None or interval.high is None:
        return f"{value} [no interval: {interval.reason}]"
    if too_wide(interval):
        return f"{value} [too wide: {compact(interval.low)} to {compact(interval.high)}]"
    return f"{value} [{_fixed(interval.low)}, {_fixed(interval.high)}]"


def _fixed(value: float) -> str:
    return f"{value:.3f}" if 0.01 <= value < 100 and math.isfinite(value) else f"{value:.4g}"
