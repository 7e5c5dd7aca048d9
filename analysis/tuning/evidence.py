"""Everything that is told of a search, put together; what to doubt of it in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.collect import compact
from analysis.probes.read import has_tasks
from analysis.tuning.gains import tuning_gains, values_of
from analysis.tuning.read import Search
from analysis.tuning.types import ChosenCell, LawReach, Tuning, TuningGain
from harness.tuned import Tuned

_NAMED = 6
"""Cells that a doubt names; more are counted."""


def tuning_of(
    search: Search,
    runs: pd.DataFrame,
    baseline: str,
    *,
    asymptote: float = 0.0,
    level: float = 0.95,
) -> Tuning:
    """Put together what a search found and what it is worth.

    Parameters
    ----------
    search
        What was read.
    runs
        All runs of the sweep, those at the baseline's values too.
    baseline
        Arm listed first, whose values are the equal ones.
    asymptote
        Pinned E, nats.
    level
        Confidence level.
    """
    cells = _cells(search, runs, baseline)
    laws = _laws(search.tuned, cells, baseline)
    # Those of tasks are differences of accuracies: analysis.probes.tuning.
    gains = (
        () if has_tasks(runs) else tuning_gains(runs, baseline, asymptote=asymptote, level=level)
    )
    return Tuning(
        tuned=search.tuned,
        cells=cells,
        trials=search.trials,
        laws=laws,
        gains=gains,
        doubts=(
            *_cell_doubts(cells),
            *_law_doubts(laws),
            *_gain_doubts(gains),
            *_stale(runs, cells),
        ),
    )


def _cells(search: Search, runs: pd.DataFrame, baseline: str) -> tuple[ChosenCell, ...]:
    arms = [baseline, *dict.fromkeys(str(arm) for arm in runs["arm"] if arm != baseline)]
    found = [
        ChosenCell(arm=arm, size=size, chosen=cell)
        for cell in search.tuned.cells
        for arm, size in [search.places.get(cell.key, ("", ""))]
        if arm
    ]
    return tuple(sorted(found, key=lambda at: (arms.index(at.arm), at.chosen.flops)))


def _laws(tuned: Tuned, cells: Sequence[ChosenCell], baseline: str) -> tuple[LawReach, ...]:
    found = []
    for law in sorted(tuned.transfer, key=lambda law: law.arm != baseline):
        used_at = sorted(
            float(cell.chosen.flops if law.over == "flops" else cell.chosen.n_params)
            for cell in cells
            if cell.chosen.arm == law.arm and cell.chosen.by == "transfer"
        )
        found.append(LawReach(law=law, used_at=tuple(used_at)))
    return tuple(found)


def _cell_doubts(cells: Sequence[ChosenCell]) -> Iterator[str]:
    edges = [
        f"{path} of {cell.arm} at {cell.size}" for cell in cells for path in sorted(cell.at_edge)
    ]
    if edges:
        yield (
            f"The best value lies at the edge of those tried, so a better one may lie beyond: "
            f"{_few(edges)}."
        )
    by_transfer = [f"{cell.arm} at {cell.size}" for cell in cells if cell.chosen.by == "transfer"]
    if by_transfer:
        yield f"Values not searched but transferred from smaller sizes: {_few(by_transfer)}."


def _law_doubts(laws: Sequence[LawReach]) -> Iterator[str]:
    bare = [f"{at.law.path} of {at.law.arm}" for at in laws if at.law.exponent_interval is None]
    if bare:
        yield (f"Laws of transfer without an interval, from fewer than three sizes: {_few(bare)}.")
    far = [at.beyond for at in laws if at.beyond is not None]
    if far and max(far) > 1:
        yield (
            "Laws of transfer are extrapolated, up to a factor of "
            f"{compact(max(far))} beyond the largest searched size."
        )


def _gain_doubts(gains: Sequence[TuningGain]) -> Iterator[str]:
    lost = [f"{gain.n_lost} of {gain.arm}" for gain in gains if gain.n_lost]
    if lost:
        yield (
            "Runs at the baseline's values diverged or failed and are missing from the multipliers "
            f"at equal values, which favours those: {_few(lost)}."
        )
    waiting = [f"{gain.n_waiting} of {gain.arm}" for gain in gains if gain.n_waiting]
    if waiting:
        yield f"Runs at the baseline's values that have not ended: {_few(waiting)}."


def _stale(runs: pd.DataFrame, cells: Sequence[ChosenCell]) -> Iterator[str]:
    chosen = {(cell.arm, cell.size): dict(cell.chosen.values) for cell in cells}
    rows = runs[(runs["role"] == "main") & runs["in_grid"]]
    held = zip(zip(rows["arm"], rows["size"], strict=True), rows["tuned"], strict=True)
    n = sum(values_of(text) != chosen.get(place) for place, text in held)
    if n > 0:
        yield (
            f"{n} of {len(rows)} runs do not carry values of this search: plan and run the grid "
            "again."
        )


def _few(texts: Sequence[str]) -> str:
    shown = list(texts[:_NAMED])
    more = [f"and {len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return "; ".join([*shown, *more])
