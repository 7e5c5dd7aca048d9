"""How far the multiplier of one arm depends on choices that the data do not settle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.cells import CURRENCIES, FLOPS, Currency, MatchedSize, pair_points
from analysis.collect import usable
from analysis.compare.fieller import iso_loss_ratio, iso_loss_ratio_by_size
from analysis.compare.matching import MatchTable, match_table
from analysis.compare.shown import judged_width
from analysis.compare.types import MIN_SIZES
from analysis.compare.unpaired import unpaired_ratio
from analysis.compare.wild import wild_bootstrap
from analysis.estimates import FitRefused, Interval, undefined
from analysis.fit.shared import PROFILE_SHARES

Kind = Literal[
    "headline",
    "E",
    "currency",
    "flop_convention",
    "drop_smallest",
    "drop_largest",
    "with_excluded",
    "unpaired",
    "wild",
    "slope_by_size",
]
SIX_ND = Currency("flops_6nd", "flops_6nd", "C = 6 N D", "FLOPs")


@dataclass(frozen=True, kw_only=True)
class SensitivityRow:
    """The multiplier under one other choice."""

    kind: Kind
    label: str
    """The choice in words: ``E = 0.86 nats (45% of the lowest loss)``."""
    ratio: Interval
    n_sizes: int


def sensitivity(
    runs: pd.DataFrame,
    arm: str,
    baseline: str,
    *,
    currency: Currency = FLOPS,
    asymptote: float = 0.0,
    level: float = 0.95,
) -> tuple[SensitivityRow, ...]:
    """Recompute one multiplier under every other choice, one at a time.

    Parameters
    ----------
    runs
        All runs, the unusable ones too: those of the arm that diverged or failed are counted in
        one row as if they had ended at the worst loss that any run of their size ended at.
    arm, baseline
        Whose multiplier.
    currency
        Of the headline.
    asymptote
        Pinned E of the headline, nats.
    level
        Confidence level.

    Returns
    -------
    tuple
        The headline first. A choice that these runs do not offer (no failed run, no 6ND count,
        three sizes of which none can be spared) has no row; one that is refused says why.
    """
    used = usable(runs)
    both = used[used["arm"].isin([arm, baseline])]
    table = match_table(both, currency)
    matched = table.match(arm, baseline)
    rows = [_row("headline", "as in the headline", matched, asymptote, level)]
    rows += _asymptotes(matched, both, level)
    for other in (*CURRENCIES, SIX_ND):
        if other != currency and other.column in both and both[other.column].notna().any():
            kind: Kind = "flop_convention" if other == SIX_ND else "currency"
            counted = match_table(both, other).match(arm, baseline)
            rows.append(_row(kind, f"counted in {other.label}", counted, asymptote, level))
    if len(matched) > MIN_SIZES:
        first, *later = matched
        *earlier, last = matched
        rows.append(_row("drop_smallest", f"without {first.size}", later, asymptote, level))
        rows.append(_row("drop_largest", f"without {last.size}", earlier, asymptote, level))
    rows += _with_excluded(runs, arm, baseline, currency, asymptote, level)
    rows.append(_unpaired(table, arm, baseline, asymptote, level))
    pairs = pair_points(matched, asymptote)
    others: tuple[tuple[Kind, str, Interval], ...] = (
        ("wild", "wild paired bootstrap", wild_bootstrap(pairs, level=level)),
        ("slope_by_size", "slope's variance by size", iso_loss_ratio_by_size(pairs, level)),
    )
    rows += [
        SensitivityRow(kind=kind, label=label, ratio=judged_width(ratio), n_sizes=len(pairs))
        for kind, label, ratio in others
    ]
    return tuple(rows)


def _row(
    kind: Kind, label: str, matched: Sequence[MatchedSize], asymptote: float, level: float
) -> SensitivityRow:
    try:
        ratio = judged_width(iso_loss_ratio(pair_points(matched, asymptote), level))
    except FitRefused as refusal:
        ratio = undefined(str(refusal), method="paired Fieller", level=level)
    return SensitivityRow(kind=kind, label=label, ratio=ratio, n_sizes=len(matched))


def _asymptotes(
    matched: Sequence[MatchedSize], both: pd.DataFrame, level: float
) -> Iterator[SensitivityRow]:
    lowest = float(both["loss_nats"].min())
    for share in PROFILE_SHARES:
        label = f"E = {share * lowest:.3g} nats ({100 * share:.0f}% of the lowest loss)"
        yield _row("E", label, matched, share * lowest, level)


def _with_excluded(
    runs: pd.DataFrame,
    arm: str,
    baseline: str,
    currency: Currency,
    asymptote: float,
    level: float,
) -> Iterator[SensitivityRow]:
    """Diverged and failed runs of the arm at the worst loss that any run of their size ended at."""
    lost = (runs["arm"] == arm) & runs["status"].isin(["diverged", "failed"]) & runs["in_grid"]
    if not lost.any():
        return
    worst = usable(runs).groupby("size_key")["loss_nats"].max()
    imputed = runs.copy()
    imputed.loc[lost, "loss_nats"] = runs.loc[lost, "size_key"].map(worst)
    counted = lost & imputed["loss_nats"].notna()
    imputed.loc[counted, "excluded_because"] = None
    kept = usable(imputed)
    matched = match_table(kept[kept["arm"].isin([arm, baseline])], currency).match(arm, baseline)
    label = f"worst case: {counted.sum()} diverged or failed runs at the worst loss of their size"
    unknown = int((lost & ~counted).sum())
    if unknown:
        label += f"; {unknown} left out, no run of their size ended"
    yield _row("with_excluded", label, matched, asymptote, level)


def _unpaired(
    table: MatchTable, arm: str, baseline: str, asymptote: float, level: float
) -> SensitivityRow:
    base, own = table.sizes(baseline), table.sizes(arm)
    ratio, _ = unpaired_ratio(base, own, asymptote=asymptote, level=level)
    return SensitivityRow(
        kind="unpaired",
        label="without pairing",
        ratio=judged_width(ratio),
        n_sizes=min(len(base), len(own)),
    )
