"""Cells of a search: one per arm and size, with a run to stand for it; and the trials of a cell.

Pure: from a :class:`~harness.grid.Grid` to runs that are not in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness.config import ResidualConfig, RunConfig, TrainConfig
from harness.cost import run_cost
from harness.errors import GridError
from harness.identity import run_id
from harness.problems import Problems, explain, show
from harness.records import Role, RunCost
from harness.resolve import GridRun, ResolvedResidual
from harness.tuned import cell_key
from harness.tuning.config import GeometricSearch, Tune
from harness.tuning.space import applies, own_value

if TYPE_CHECKING:
    from harness.grid import Grid


@dataclass(frozen=True)
class Cell:
    """One arm at one size."""

    key: str
    """:func:`harness.tuned.cell_key`: all but the seed and the searched fields."""
    arm: str
    cell: str
    """Label of arm, shape and budget."""
    template: GridRun
    """One of its runs, before tuning."""
    cost: RunCost
    """Of that run."""
    searched: bool
    """Whether trials choose its values; False: by transfer, or nothing applies to its arm."""
    size: str = ""
    """Key of its size: equal for the arms at one size."""


@dataclass
class Keys:
    """Keys of runs' cells; what runs share is hashed once."""

    searched: Collection[str]
    _dumps: dict[int, Any] = field(default_factory=dict)
    _keys: dict[tuple[int, ...], tuple[str, str]] = field(default_factory=dict)

    def of(self, run: GridRun) -> tuple[str, str]:
        """Key of a run's cell, and of its size: the same for all arms."""
        config = run.config
        parts = (config.residual, config.model, config.data, config.train)
        known = tuple(map(id, parts))
        if known not in self._keys:
            names = ("residual", "model", "data", "train")
            dumped = dict(zip(names, map(self._dump, parts), strict=True))
            sha256, revision = run.corpus.sha256, run.residual.recipe.revision
            nameless = {**dumped, "residual": {"name": "", "options": {}}}
            self._keys[known] = (
                cell_key(dumped, self.searched, sha256, revision),
                cell_key(nameless, self.searched, sha256, 0),
            )
        return self._keys[known]

    def _dump(self, section: Any) -> Any:
        if id(section) not in self._dumps:
            self._dumps[id(section)] = section.model_dump(mode="json")
        return self._dumps[id(section)]


def cells_of(grid: Grid) -> tuple[Cell, ...]:
    """Cells of a grid with a ``tune`` block, in the order of its runs.

    Of each arm, ``tune.sizes`` cells are searched, the cheapest first: sizes are ranked by the
    baseline's FLOPs, or the mean of the arms where the baseline has no such size. Works on a tuned
    grid, too, whose cells are those before tuning.
    """
    if grid.tune is None:
        return ()
    searched, keys = grid.tune.search, Keys(grid.tune.search)
    found: dict[str, Cell] = {}
    for run in grid.untuned or grid.runs:
        key, size = keys.of(run)
        if key not in found:
            anything = any(applies(path, run, searched) for path in searched)
            found[key] = Cell(key, run.arm, run.cell, run, _cost(run), anything, size)
    kept = _cheapest(list(found.values()), grid.baseline, grid.tune.sizes)
    return tuple(replace(c, searched=c.searched and c.key in kept) for c in found.values())


def _cost(run: GridRun) -> RunCost:
    residual = run.residual
    price = residual.recipe.cost(residual.shape, residual.options)
    return run_cost(run.config, price, run.corpus.vocab_size)


def _cheapest(cells: Sequence[Cell], baseline: str, sizes: int | None) -> set[str]:
    """Keys of so many of the cheapest sizes of every arm."""
    members: dict[str, list[Cell]] = {}
    arms: dict[str, list[Cell]] = {}
    for cell in cells:
        members.setdefault(cell.size, []).append(cell)
        arms.setdefault(cell.arm, []).append(cell)
    flops = {size: _flops_of(group, baseline) for size, group in members.items()}
    ranked = [sorted(own, key=lambda cell: flops[cell.size])[:sizes] for own in arms.values()]
    return {cell.key for own in ranked for cell in own}


def _flops_of(group: Sequence[Cell], baseline: str) -> float:
    own = [cell.cost.flops for cell in group if cell.arm == baseline]
    every = own or [cell.cost.flops for cell in group]
    return sum(every) / len(every)


def check_cells(problems: Problems, tune: Tune | None, runs: Sequence[GridRun]) -> None:
    """Note where the search contradicts the runs: nothing to act on, or nothing to tell apart."""
    if tune is None:
        return
    keys, first = Keys(tune.search), dict[str, GridRun]()
    for path, how in tune.search.items():
        loc = ("tune", "search", path)
        affected = [run for run in _one_per_arm(runs) if applies(path, run, tune.search)]
        if not affected:
            problems.add(loc, "has no effect on any run of this sweep. Remove it.")
        elif isinstance(how, GeometricSearch) and how.start is None:
            own = own_value(affected[0], path)
            if not isinstance(own, int | float) or own <= 0:
                rule = f"needs a start above 0; the run's own value is {show(own)}"
                problems.add(loc, f"{rule}. Write {{start: …, factor: {how.factor:g}}}.")
    for run in runs:
        other = first.setdefault(keys.of(run)[0], run)
        for path in tune.search if other is not run else ():
            _check_pair(problems, path, other, run)


def _one_per_arm(runs: Iterable[GridRun]) -> list[GridRun]:
    return list({(run.arm, id(run.config.train)): run for run in runs}.values())


def _check_pair(problems: Problems, path: str, one: GridRun, two: GridRun) -> None:
    """Refuse that runs of one cell differ in a searched field: tuning would undo it."""
    if not all(applies(path, run, (path,)) for run in (one, two)):
        return
    values = [own_value(run, path) for run in (one, two)]
    if values[0] != values[1]:
        rule = f"the grid varies it, too ({show(values[0])} and {show(values[1])})"
        advice = "a search would undo that. Give it one value, or take it out of tune.search"
        problems.add(("tune", "search", path), f"{rule}; {advice}.")


def trial(cell: Cell, values: Mapping[str, Any], seed: int) -> GridRun:
    """Return the run that tries some values: role trial, labels of its cell, an id of its own.

    Parameters
    ----------
    values
        By dotted path, those of :func:`harness.tuning.space.dimensions`.
    seed
        ``tune.seed``.

    Raises
    ------
    GridError
        The values make no run together, such as a warm-up and a decay longer than the run. A
        search counts them as diverged.
    """
    config = cell.template.config.model_copy(update={"seed": seed})
    return AtValues().run(replace(cell.template, config=config), values, "trial")


@dataclass
class AtValues:
    """Runs at other values; sections that many runs share are checked and hashed once."""

    _trains: dict[tuple[Any, ...], TrainConfig] = field(default_factory=dict)
    _residuals: dict[tuple[Any, ...], ResolvedResidual] = field(default_factory=dict)
    _memo: dict[int, str] = field(default_factory=dict)

    def run(self, run: GridRun, values: Mapping[str, Any], role: Role) -> GridRun:
        """Return a run at other values, with an id of its own and the labels that it had.

        Raises
        ------
        GridError
            A value does not fit its field, or the values do not fit together.
        """
        try:
            train = self._train(run.config.train, _of_section(values, "train"))
            residual = self._residual(run.residual, _of_section(values, "residual"))
            old = run.config
            config = RunConfig(
                residual=residual.config,
                model=old.model,
                data=old.data,
                train=train,
                seed=old.seed,
            )
        except ValueError as error:
            raise GridError([_refusal(run, values, error)]) from error
        revision, sha256 = residual.recipe.revision, run.corpus.sha256
        identity = run_id(config, revision, sha256, memo=self._memo)
        tuned = dict(values)
        return replace(
            run, run_id=identity, config=config, residual=residual, role=role, tuned=tuned
        )

    def _train(self, train: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
        known = (id(train), repr(values))
        if known not in self._trains:
            fields = {name: getattr(train, name) for name in type(train).model_fields}
            self._trains[known] = TrainConfig.model_validate({**fields, **values})
        return self._trains[known]

    def _residual(self, residual: ResolvedResidual, values: Mapping[str, Any]) -> ResolvedResidual:
        if not values:
            return residual
        known = (id(residual), repr(values))
        if known not in self._residuals:
            given = {**residual.config.options, **values}
            options = residual.recipe.Options.model_validate(given)
            options.check(residual.shape)
            kept = options.model_dump(mode="json", exclude_defaults=True)
            config = ResidualConfig(name=residual.config.name, options=kept)
            self._residuals[known] = replace(residual, config=config, options=options)
        return self._residuals[known]


def _of_section(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    prefix = f"{section}."
    return {path[len(prefix) :]: v for path, v in values.items() if path.startswith(prefix)}


def _refusal(run: GridRun, values: Mapping[str, Any], error: ValueError) -> str:
    why = str(error)
    if isinstance(error, ValidationError):
        why = explain(error.errors(include_url=False)[0])
    listed = ", ".join(f"{path} {value}" for path, value in values.items())
    return f"tune: {run.cell} with {listed}: {why.rstrip('.')}."
