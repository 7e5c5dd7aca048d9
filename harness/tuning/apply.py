"""Chosen values: from the results of the trials, and into the runs of a grid.

Pure: reading and writing of ``tuned.yaml`` is :mod:`harness.tuned`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.errors import GridError
from harness.resolve import GridRun
from harness.tuned import TransferLaw, Tuned, TunedCell
from harness.tuning.bracket import Result, bracket_of
from harness.tuning.cells import AtValues, Cell, Keys
from harness.tuning.config import Tune
from harness.tuning.space import Choices, Dimension, Range, at_edge, dimensions
from harness.tuning.transfer import Searched, optimum, pooled, transferred

if TYPE_CHECKING:
    from harness.grid import Grid

EQUAL_RATE = ", at the baseline's values"
"""Ends the cell labels of runs at the baseline's values."""


def conclude(
    cells: Sequence[Cell],
    results: Mapping[str, Sequence[Result]],
    tune: Tune,
    *,
    sweep: str,
    optuna: str,
) -> Tuned:
    """Choose the values of every cell from its trials, or by its arm's law.

    Parameters
    ----------
    results
        Trials by :attr:`Cell.key`; running ones are left out of account.
    sweep
        Name of the sweep, not of its trials.
    optuna
        Version of Optuna.

    Raises
    ------
    GridError
        A searched cell has no trial with a finite loss.
    """
    problems: list[str] = []
    searched: dict[str, list[Searched]] = {cell.arm: [] for cell in cells}
    rest: dict[str, list[tuple[Cell, Mapping[str, Dimension]]]] = {arm: [] for arm in searched}
    for cell in cells:
        dims = dimensions(tune, cell)
        if dims and not cell.searched:
            rest[cell.arm].append((cell, dims))
            continue
        found = _finished(results.get(cell.key, ()), dims)
        if dims and not any(math.isfinite(loss) for _, loss in found):
            why = "every trial diverged" if found else "no trial has finished"
            problems.append(f"tune: {cell.cell}: {why}; there is nothing to conclude.")
            continue
        searched[cell.arm].append(_concluded(cell, dims, found, tune))
    if problems:
        raise GridError(problems)
    rows = {one.row.key: one.row for found_ in searched.values() for one in found_}
    laws: list[TransferLaw] = []
    if tune.transfer:
        around = pooled(tune.transfer, searched.values())
        for arm, own in searched.items():
            fitted, carried = transferred(arm, tune.transfer, own, rest[arm], around)
            laws += fitted
            rows.update((row.key, row) for row in carried)
    return Tuned(
        sweep=sweep,
        method=tune.method,
        searched=tuple(sorted(tune.search)),
        seed=tune.seed,
        optuna=optuna,
        cells=tuple(rows[cell.key] for cell in cells),
        transfer=tuple(laws),
    )


Finished = list[tuple[Mapping[str, Any], float]]
"""Values and losses of finished trials; inf where diverged."""


def _finished(results: Iterable[Result], dims: Mapping[str, Dimension]) -> Finished:
    found = [(r.values, r.loss) for r in results if r.loss is not None]
    known = [(v, math.inf if math.isnan(loss) else loss) for v, loss in found]
    return [(v, loss) for v, loss in known if v.keys() == dims.keys()]


def _concluded(cell: Cell, dims: Mapping[str, Dimension], found: Finished, tune: Tune) -> Searched:
    """The best trial of a cell, with what is known around it."""
    values, loss = _best(found) if dims else ({}, None)
    notes = [] if dims else ["nothing that is searched has an effect on this arm"]
    interior, optima = {}, {}
    lines = _lines(dims, found, tune)
    for path, dimension in dims.items():
        line = lines[path]
        if len({repr(value) for value, _ in line}) < 2:
            notes.append(f"{path}: not searched, the trials were used up before")
        if isinstance(dimension, Choices):
            continue
        end = _end(dimension, values[path], [value for value, _ in line], tune)
        interior[path] = end is None
        optima[path] = float(values[path])
        if tune.method == "bracket" and end is None and min(v for v, _ in line) > 0:
            optima[path] = optimum(*zip(*line, strict=True))
        if end is not None and len(line) > 1:
            notes.append(f"{path}: {end}; a better value may lie beyond")
    lost = sum(math.isinf(other) for _, other in found)
    if lost:
        notes.append(f"{lost} of {len(found)} trials diverged or were stopped early")
    row = TunedCell(
        key=cell.key,
        arm=cell.arm,
        cell=cell.cell,
        values={path: values[path] for path in dims},
        by="search",
        flops=cell.cost.flops,
        n_params=cell.cost.n_params,
        loss_nats=loss,
        trials=len(found),
        interior=interior,
        notes=tuple(notes),
    )
    return Searched(row, dims, optima)


def _best(found: Finished) -> tuple[Mapping[str, Any], float]:
    """The lowest loss; of equals the one of the smallest values, in whatever order they came."""
    lowest = min(loss for _, loss in found)
    equal = [values for values, loss in found if loss == lowest]
    return min(equal, key=lambda values: [_order(values[path]) for path in sorted(values)]), lowest


def _order(value: Any) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, repr(value))


def _lines(
    dims: Mapping[str, Dimension], found: Finished, tune: Tune
) -> dict[str, list[tuple[Any, float]]]:
    """Values of each field with their losses: those that a bracket compared, else all."""
    if tune.method != "bracket":
        return {path: [(values[path], loss) for values, loss in found] for path in dims}
    brackets = bracket_of(dims, [Result(values, loss) for values, loss in found])
    return {
        path: [(r.values[path], r.loss) for r in line if r.loss is not None]
        for path, line in brackets.items()
    }


def _end(dimension: Dimension, value: float, tried: Sequence[float], tune: Tune) -> str | None:
    """Say at which end of what was tried a value is; None where it is inside."""
    below, above = min((*tried, value)), max((*tried, value))
    side = "low" if below == value else "high" if above == value else None
    if isinstance(dimension, Range) and tune.method != "bracket" and side is None:
        low, high = min(below, dimension.low), max(above, dimension.high)
        side = at_edge(replace(dimension, low=low, high=high), value)
    if side is None:
        return None
    name = "lower" if side == "low" else "upper"
    span = f"{below:.3g} to {above:.3g}"
    return f"the best value, {value:.3g}, is at the {name} end of what was tried ({span})"


def missing(grid: Grid, tuned: Tuned) -> tuple[str, ...]:
    """Labels of the cells that have no chosen values yet."""
    if grid.tune is None:
        return ()
    keys, known = Keys(grid.tune.search), {cell.key for cell in tuned.cells}
    runs = grid.untuned or grid.runs
    return tuple(dict.fromkeys(run.cell for run in runs if keys.of(run)[0] not in known))


def apply_tuned(grid: Grid, tuned: Tuned) -> Grid:
    """Return the grid with every run at its cell's values.

    Ids change with the values, labels do not. With ``tune.equal_rate``, arms whose values differ
    from the baseline's at the same size run at the baseline's as well, role ``equal_rate``.
    ``Grid.tuned`` holds the values; None there means that a grid is not tuned.

    Raises
    ------
    GridError
        A cell has no values: which, and that `isoloss tune` finds them.
    """
    assert grid.tune is not None
    before = grid.untuned or grid.runs
    keys, at_values = Keys(grid.tune.search), AtValues()
    rows = {cell.key: cell for cell in tuned.cells}
    placed = [(run, *keys.of(run)) for run in before]
    _refuse_missing(grid, [run.cell for run, key, _ in placed if key not in rows])
    runs: dict[str, GridRun] = {}
    for run, key, _ in placed:
        new = at_values.run(run, rows[key].values, "main")
        runs.setdefault(new.run_id, new)
    baseline = {size: rows[key].values for run, key, size in placed if run.arm == grid.baseline}
    for run, key, size in placed if grid.tune.equal_rate else ():
        values = _baselines(rows[key].values, baseline.get(size, {}))
        if run.arm != grid.baseline and values != rows[key].values:
            renamed = replace(run, cell=run.cell + EQUAL_RATE)
            new = at_values.run(renamed, values, "equal_rate")
            runs.setdefault(new.run_id, new)
    _refuse_too_many(grid, len(runs))
    return replace(grid, runs=tuple(runs.values()), tuned=tuned, untuned=before)


def _baselines(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline's values of the fields that have an effect on both, the rest as they are."""
    return {path: baseline.get(path, value) for path, value in own.items()}


def _refuse_missing(grid: Grid, cells: Sequence[str]) -> None:
    labels = list(dict.fromkeys(cells))
    if labels:
        more = f" and {len(labels) - 1} more cells" if len(labels) > 1 else ""
        rule = f"no values were chosen for {labels[0]}{more}"
        advice = f"Search them with: isoloss tune {grid.file}"
        raise GridError([grid.document.problem(("tune",), f"{rule}. {advice}")])


def _refuse_too_many(grid: Grid, n_runs: int) -> None:
    limit = grid.limits.runs
    if limit is not None and n_runs > limit:
        rule = f"with the runs at the baseline's values there are {n_runs}, more than {limit}"
        advice = "Raise the limit, or write tune.equal_rate: false"
        raise GridError([grid.document.problem(("limits", "runs"), f"{rule}. {advice}.")])
