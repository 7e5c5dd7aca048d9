"""From the best values at small sizes to values at large ones: a power law per arm.

Parabola in the log of the value for the optimum between points; least squares in logs for the law
(as lr*(C) in Bi et al. 2024, arXiv 2401.02954), with Student's interval from the scatter of all
arms together: three sizes of one arm leave a single degree of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.tuned import TransferLaw, TunedCell
from harness.tuning.space import Choices, Dimension, Geometric, rounded

if TYPE_CHECKING:
    from harness.tuning.cells import Cell

Over = Literal["flops", "n_params"]

MIN_FOR_INTERVAL = 3
"""Sizes below which a line through them leaves no degree of freedom."""


def optimum(values: Sequence[float], losses: Sequence[float]) -> float:
    """Minimum of the parabola in ln(value) through the best point and its two neighbours.

    Clamped between the neighbours. The best point itself where it has no neighbour on one side, or
    one that diverged.

    Parameters
    ----------
    values
        Positive values tried, in any order.
    losses
        Their losses, nats/token; inf where diverged.
    """
    points = sorted(zip(values, losses, strict=True))
    at = min(range(len(points)), key=lambda i: (points[i][1], i))
    best = points[at][0]
    if at in (0, len(points) - 1):
        return best
    near = points[at - 1 : at + 2]
    (a, b, c), (fa, fb, fc) = [math.log(v) for v, _ in near], [loss for _, loss in near]
    left, right = (fa - fb) / (b - a), (fc - fb) / (c - b)
    if not math.isfinite(left + right) or left + right <= 0:
        return best
    # Slopes are -left at the middle of (a, b) and right at that of (b, c); zero lies between.
    lower, upper = (a + b) / 2, (b + c) / 2
    return math.exp(lower + (upper - lower) * left / (left + right))


@dataclass(frozen=True)
class Scatter:
    """How far best values lie from the lines of their arms, all arms together."""

    squares: float = 0.0
    """Sum of squared residuals of ln(best)."""
    freedom: int = 0
    """Degrees of freedom left by a slope and an intercept per arm."""

    def __add__(self, other: Scatter) -> Scatter:
        return Scatter(self.squares + other.squares, self.freedom + other.freedom)


def scatter(x: Sequence[float], best: Sequence[float]) -> Scatter:
    """Scatter of one arm's best values around its own line; none below three sizes."""
    if len(x) < MIN_FOR_INTERVAL or len(set(x)) == 1:
        return Scatter()
    logs = [math.log(v) for v in x], [math.log(v) for v in best]
    slope, intercept, _ = _line(*logs)
    misses = (y - intercept - slope * at for at, y in zip(*logs, strict=True))
    return Scatter(sum(miss**2 for miss in misses), len(x) - 2)


def fit_transfer(
    arm: str,
    path: str,
    over: Over,
    x: Sequence[float],
    best: Sequence[float],
    around: Scatter | None = None,
) -> TransferLaw:
    """Fit ``best = coefficient * x**exponent`` by least squares in logs.

    Where the 95% interval of the exponent holds zero the sizes show no trend: the law is the
    geometric mean then, because a slope of noise is extrapolated without bound.

    Parameters
    ----------
    x
        FLOPs or parameters of the searched sizes; at least one.
    best
        Best value at each, positive.
    around
        Scatter that the interval rests on, of all arms; default: this arm's own.
    """
    mean = math.exp(sum(math.log(v) for v in best) / len(best))
    law = TransferLaw(
        arm=arm, path=path, over=over, coefficient=mean, exponent=0.0, x=tuple(x), best=tuple(best)
    )
    if len(set(x)) == 1 or len(set(best)) == 1:
        alike = over if len(set(x)) == 1 else path
        note = f"the searched sizes have one {alike}: every size gets the same {path}"
        return law.model_copy(update={"notes": (note,)})
    slope, intercept, spread = _line([math.log(v) for v in x], [math.log(v) for v in best])
    found = {"coefficient": math.exp(intercept), "exponent": slope}
    error = scatter(x, best) if around is None else around
    if not error.freedom:
        note = f"{len(x)} sizes: the exponent has no interval"
        return law.model_copy(update={**found, "notes": (note,)})
    half = _quantile(error.freedom) * math.sqrt(error.squares / error.freedom / spread)
    interval = {"exponent_interval": (slope - half, slope + half)}
    if abs(slope) > half:
        return law.model_copy(update=found | interval)
    note = (
        f"no trend over the sizes (exponent {slope:.2g}, 95% {slope - half:.2g} to "
        f"{slope + half:.2g}): their mean"
    )
    return law.model_copy(update={**interval, "notes": (note,)})


def _quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope and intercept by least squares, and the sum of squares of x around its mean."""
    from scipy.stats import linregress

    fit, mean = linregress(x, y), sum(x) / len(x)
    return float(fit.slope), float(fit.intercept), sum((at - mean) ** 2 for at in x)


def predicted(law: TransferLaw, x: float) -> float:
    """Value that the law gives at ``x``, three significant digits."""
    return rounded(law.coefficient * x**law.exponent)


@dataclass(frozen=True)
class Searched:
    """What the trials of one cell say."""

    row: TunedCell
    dims: Mapping[str, Dimension]
    optima: Mapping[str, float]
    """Optimum between the points of a bracket, by numeric path; else the best value."""


def transferred(
    arm: str,
    over: Over,
    searched: Sequence[Searched],
    rest: Sequence[tuple[Cell, Mapping[str, Dimension]]],
    around: Mapping[str, Scatter],
) -> tuple[list[TransferLaw], list[TunedCell]]:
    """Carry the values of an arm's searched sizes to its others.

    Positive fields that were searched by ratios follow a law; others take the value of the largest
    searched size.

    Parameters
    ----------
    rest
        The cells without a search, and what would be searched there.
    around
        By path, :func:`pooled` of all arms.
    """
    laws = {
        path: fit_transfer(arm, path, over, x, best, around[path])
        for path, (x, best) in _points(over, searched).items()
    }
    known = [one.row for one in searched if one.row.values]
    rows = [_carried(cell, dims, over, laws, known) for cell, dims in rest]
    return list(laws.values()), rows


def pooled(over: Over, arms: Iterable[Sequence[Searched]]) -> dict[str, Scatter]:
    """Scatter of best values around the lines of their arms, by path."""
    found: dict[str, Scatter] = {}
    for searched in arms:
        for path, (x, best) in _points(over, searched).items():
            found[path] = found.get(path, Scatter()) + scatter(x, best)
    return found


def _points(over: Over, searched: Sequence[Searched]) -> dict[str, tuple[list[float], list[float]]]:
    """Sizes and best values of one arm, by the paths that follow a law."""
    paths = dict.fromkeys(path for one in searched for path, d in one.dims.items() if _by_ratio(d))
    found = {}
    for path in paths:
        points = [one for one in searched if path in one.optima]
        found[path] = [_size(one.row, over) for one in points], [one.optima[path] for one in points]
    return found


def _by_ratio(dimension: Dimension) -> bool:
    return isinstance(dimension, Geometric) or (
        not isinstance(dimension, Choices) and dimension.log
    )


def _size(row: TunedCell, over: Over) -> float:
    return float(row.flops if over == "flops" else row.n_params)


def _carried(
    cell: Cell,
    dims: Mapping[str, Dimension],
    over: Over,
    laws: Mapping[str, TransferLaw],
    known: Sequence[TunedCell],
) -> TunedCell:
    x = float(cell.cost.flops if over == "flops" else cell.cost.n_params)
    values: dict[str, Any] = {}
    notes: list[str] = []
    for path, dimension in dims.items():
        rows = sorted((row for row in known if path in row.values), key=lambda r: _size(r, over))
        if path in laws and not isinstance(dimension, Choices):
            value = predicted(laws[path], x)
            values[path] = min(max(value, dimension.least), dimension.most)
            notes += _law_notes(laws[path], x, rows)
        elif rows:
            values[path] = rows[-1].values[path]
            notes.append(f"{path}: as at the largest searched size")
        else:
            notes.append(f"{path}: stays as in the grid; no searched size of the arm has it")
    return TunedCell(
        key=cell.key,
        arm=cell.arm,
        cell=cell.cell,
        values=values,
        by="transfer",
        flops=cell.cost.flops,
        n_params=cell.cost.n_params,
        notes=tuple(notes),
    )


def _law_notes(law: TransferLaw, x: float, rows: Sequence[TunedCell]) -> list[str]:
    words = "FLOPs" if law.over == "flops" else "parameters"
    largest, smallest = max(law.x), min(law.x)
    where = "within them"
    if x > largest:
        where = f"extrapolated to {x / largest:.3g}x the {words} of the largest"
    elif x < smallest:
        where = f"extrapolated down to {x / smallest:.3g}x the {words} of the smallest"
    notes = [f"{law.path}: by a law of {len(law.x)} searched sizes, {where}"]
    at_end = sum(not row.interior.get(law.path, True) for row in rows)
    if at_end:
        notes.append(f"{law.path}: at {at_end} of {len(rows)} sizes the best value is at an end")
    return notes
