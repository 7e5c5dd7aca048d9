"""What one cell's search may choose from: dimensions, their rounding and their ends.

Pure but for :func:`distribution`, which names Optuna's types.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

from harness.config import TrainConfig
from harness.tuning.config import GeometricSearch, Tune

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from harness.resolve import GridRun
    from harness.tuning.cells import Cell

Side = Literal["low", "high"]
NEEDED = {
    "adamw_lr_scale": ("optimizer", ("muon",)),
    "momentum": ("optimizer", ("muon",)),
    "decay_frac": ("schedule", ("wsd",)),
    "lr_end_frac": ("schedule", ("wsd", "cosine")),
}
"""Fields of train that have an effect only with some values of another."""


@dataclass(frozen=True)
class Geometric:
    """``start * factor**k`` for whole k, as far as the field allows."""

    start: float
    factor: float
    least: float = 0.0
    """Smallest value that may be tried."""
    most: float = math.inf
    """Largest value that may be tried."""
    refine: int = 0
    """How often a bracket halves its step (in k) around the best point."""


@dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``; a bracket steps through it in quarters."""

    low: float
    high: float
    log: bool = False
    start: float | None = None
    """The run's own value; None where it lies outside."""
    least: float = -math.inf
    """Smallest value that may be tried: ``low`` itself unless the range may be widened."""
    most: float = math.inf
    """Largest value that may be tried."""
    refine: int = 0
    """How often a bracket halves its step around the best point."""


@dataclass(frozen=True)
class Choices:
    """Values without an order."""

    values: tuple[Any, ...]
    start: Any = None
    """The run's own value where it is one of them, else the first."""


Dimension = Geometric | Range | Choices


QUARTERS = 4
"""Steps of a bracket from one end of a range to the other."""
REACH = 7
"""Steps of a bracket from its start at most: the first and its extensions."""
SAMPLED = 3
"""Factors on either side of the start that a sampler's range has."""
EDGE = 0.05
"""Share of a range that counts as its end."""


def dimensions(tune: Tune, cell: Cell) -> dict[str, Dimension]:
    """What is searched for one cell, by dotted path, in the order of the grid.

    Fields without effect on the cell are left out. Samplers get a :class:`Range` in place of
    :class:`Geometric`.
    """
    run = cell.template
    paths = [path for path in tune.search if applies(path, run, tune.search)]
    return {path: _dimension(tune, path, run) for path in paths}


def applies(path: str, run: GridRun, searched: Collection[str]) -> bool:
    """Whether a searched field has an effect on a run.

    Parameters
    ----------
    path
        ``train.FIELD`` or ``residual.OPTION``.
    run
        The run before tuning.
    searched
        All searched fields: what depends on another searched one counts as having an effect.
    """
    section, _, name = path.partition(".")
    residual, train = run.residual, run.config.train
    if section == "residual":
        return name in residual.recipe.Options.model_fields
    if name == "residual_lr_scale":
        return residual.recipe.cost(residual.shape, residual.options).params > 0
    if name == "warmup_frac" and train.warmup_tokens is not None:
        return False
    needs, values = NEEDED.get(name, ("", ()))
    return not needs or f"train.{needs}" in searched or getattr(train, needs) in values


def own_value(run: GridRun, path: str) -> Any:
    """Value of a searched field in a run, defaults included."""
    section, _, name = path.partition(".")
    return getattr(run.residual.options if section == "residual" else run.config.train, name)


def _dimension(tune: Tune, path: str, run: GridRun) -> Dimension:
    search, own = tune.search[path], own_value(run, path)
    refine = tune.refine
    if isinstance(search, list):
        return Choices(tuple(search), own if own in search else search[0])
    least, most = _bounds(path, run)
    if isinstance(search, GeometricSearch):
        start = float(own if search.start is None else search.start)
        if tune.method == "bracket":
            return Geometric(start, search.factor, least, most, refine)
        reach = search.factor**SAMPLED
        low, high = max(rounded(start / reach), least), min(rounded(start * reach), most)
        return Range(low, high, True, start, least, most)
    if tune.at_edge == "flag":
        least, most = search.low, search.high
    inside = isinstance(own, int | float) and search.low <= own <= search.high
    start_in = float(own) if inside else None
    return Range(search.low, search.high, search.log, start_in, least, most, refine)


def _bounds(path: str, run: GridRun) -> tuple[float, float]:
    """Smallest and largest number that a field's type allows."""
    section, _, name = path.partition(".")
    owner: type[BaseModel] = run.residual.recipe.Options if section == "residual" else TrainConfig
    most = sys.float_info.max
    least = -most
    for rule in owner.model_fields[name].metadata:
        if isinstance(rule, Ge):
            least = max(least, _number(rule.ge))
        elif isinstance(rule, Gt):
            least = max(least, math.nextafter(_number(rule.gt), math.inf))
        elif isinstance(rule, Le):
            most = min(most, _number(rule.le))
        elif isinstance(rule, Lt):
            most = min(most, math.nextafter(_number(rule.lt), -math.inf))
    return least, most


def _number(bound: Any) -> float:
    return float(bound)


def distribution(dimension: Dimension, *, bracket: bool = False) -> BaseDistribution:
    """The same as Optuna's type.

    Parameters
    ----------
    bracket
        Cover every point that a bracket may come to, beyond ``low`` and ``high`` too.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.values)
    log = isinstance(dimension, Geometric) or dimension.log
    if isinstance(dimension, Range) and not bracket:
        return FloatDistribution(dimension.low, dimension.high, log=log)
    points = [v for k in range(-REACH, REACH + 1) if (v := point(dimension, k)) is not None]
    return FloatDistribution(min(points), max(points), log=log)


def point(dimension: Geometric | Range, k: float) -> float | None:
    """The value ``k`` steps of a bracket above the start; None beyond what may be tried.

    ``k`` is whole until the bracket halves its step.
    """
    if isinstance(dimension, Geometric):
        start = dimension.start
        value = start if k == 0 else rounded(start * dimension.factor**k)
    else:
        value = _quarter(dimension, _start_quarter(dimension) + k)
    return value if dimension.least <= value <= dimension.most else None


def _quarter(dimension: Range, k: float) -> float:
    low, high = dimension.low, dimension.high
    if k in (0, QUARTERS):
        return low if k == 0 else high
    if dimension.log:
        return rounded(low * (high / low) ** (k / QUARTERS))
    step = (high - low) / QUARTERS
    return round(low + k * step, 2 - math.floor(math.log10(step)))


def _start_quarter(dimension: Range) -> int:
    """Quarter next to the run's own value; the middle without one."""
    low, high, start = dimension.low, dimension.high, dimension.start
    if start is None:
        return QUARTERS // 2
    if dimension.log:
        share = math.log(start / low) / math.log(high / low)
    else:
        share = (start - low) / (high - low)
    return round(QUARTERS * share)


def rounded(value: float) -> float:
    """Three significant digits, so that values and ids stay readable."""
    return float(f"{value:.3g}")


def at_edge(dimension: Range, value: float) -> Side | None:
    """The end that a value is next to: within a twentieth of the range (of its log)."""
    low, high = dimension.low, dimension.high
    if dimension.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    share = (value - low) / (high - low)
    return "low" if share <= EDGE else "high" if share >= 1 - EDGE else None


def widened(dimension: Range, side: Side) -> Range:
    """The range with one end moved out by half its width; unchanged where the field forbids it."""
    low, high = dimension.low, dimension.high
    if dimension.log:
        ratio = math.sqrt(high / low)
        below, above = rounded(low / ratio), rounded(high * ratio)
    else:
        below, above = low - (high - low) / 2, high + (high - low) / 2
    if side == "low":
        return replace(dimension, low=min(low, max(below, dimension.least)))
    return replace(dimension, high=max(high, min(above, dimension.most)))
