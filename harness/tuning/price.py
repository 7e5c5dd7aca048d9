"""What a search costs, and what it chose, as `plan` tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.tuned import Tuned
from harness.tuning.bracket import most_points
from harness.tuning.cells import Cell
from harness.tuning.config import Tune
from harness.tuning.space import dimensions


@dataclass(frozen=True)
class TuningPrice:
    """The search of a grid with a ``tune`` block."""

    tuned: bool
    """Whether the runs have chosen values; the search is paid then."""
    cells: int
    """Arms and sizes that are searched."""
    transferred: int
    """Arms and sizes that get their values by a law."""
    trials: int
    """Trials of all searched cells, at most."""
    flops: float
    """Training FLOPs of them, at most."""
    hours: float | None
    """Device hours of them, at most; None while a step time is not known."""
    equal_rate_runs: int
    """Runs at the baseline's values that follow the search, at most; 0 once it is done, as they
    are runs of the grid then."""
    equal_rate_flops: float
    """Training FLOPs of them."""
    values: Mapping[str, Mapping[str, str]]
    """Chosen values by arm and field, as text; empty before the search."""


def tuning_price(
    tune: Tune,
    cells: Sequence[Cell],
    seconds: Sequence[float | None],
    tuned: Tuned | None,
    others: Sequence[float],
) -> TuningPrice:
    """Price the search of a grid.

    Parameters
    ----------
    cells
        Of the grid.
    seconds
        Device seconds of one run of each; None where no step time is known.
    tuned
        What the runs have from an earlier search.
    others
        FLOPs of every run of the arms that are no baseline.
    """
    searched = [(c, s) for c, s in zip(cells, seconds, strict=True) if c.searched]
    trials = [_trials(tune, cell) for cell, _ in searched]
    compared = others if tune.equal_rate and tuned is None else ()
    known = [n * s for n, (_, s) in zip(trials, searched, strict=True) if s is not None]
    return TuningPrice(
        tuned=tuned is not None,
        cells=len(searched),
        transferred=sum(not cell.searched and bool(dimensions(tune, cell)) for cell in cells),
        trials=sum(trials),
        flops=sum(n * cell.cost.flops for n, (cell, _) in zip(trials, searched, strict=True)),
        hours=sum(known) / 3600 if len(known) == len(searched) else None,
        equal_rate_runs=len(compared),
        equal_rate_flops=sum(compared),
        values={} if tuned is None else _values(tuned),
    )


def _trials(tune: Tune, cell: Cell) -> int:
    if tune.method != "bracket":
        return tune.trials
    return min(tune.trials, most_points(dimensions(tune, cell)))


def _values(tuned: Tuned) -> dict[str, dict[str, str]]:
    """By arm and field: one value, or the values of its sizes from the cheapest up."""
    found: dict[str, dict[str, list[str]]] = {cell.arm: {} for cell in tuned.cells}
    for cell in sorted(tuned.cells, key=lambda cell: cell.flops):
        for path, value in cell.values.items():
            text = f"{value:g}" if isinstance(value, float) else str(value)
            found[cell.arm].setdefault(path, []).append(text)
    return {
        arm: {path: _listed(texts) for path, texts in fields.items()}
        for arm, fields in found.items()
    }


SHOWN_VALUES = 6
"""Values of one arm that stand in a line; of more, the first and the last."""


def _listed(texts: Sequence[str]) -> str:
    if len(set(texts)) == 1:
        return texts[0]
    return ", ".join(texts) if len(texts) <= SHOWN_VALUES else f"{texts[0]} … {texts[-1]}"
