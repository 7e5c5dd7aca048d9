"""Which values to try next: one field after the other, outwards until worse on both sides, then
closer to the best.

Pure and deterministic: the same results lead to the same points in whatever order they came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.tuning.space import Choices, Dimension, Geometric, Range, point

MAX_EXTENSIONS = 6
"""Points beyond the first three of a field before its search gives up."""


@dataclass(frozen=True)
class Result:
    """What is known of one trial."""

    values: Mapping[str, Any]
    """By dotted path; every searched one."""
    loss: float | None
    """Final validation loss, nats/token; None while it runs; inf: diverged or stopped early."""


def next_points(
    dimensions: Mapping[str, Dimension], results: Sequence[Result], trials: int | None = None
) -> list[dict[str, Any]] | None:
    """Points to try now.

    Fields are searched in their order, each at the best values of those before it and at the start
    of those after it: three points around the start, then one more on the side of a best end point,
    at most :data:`MAX_EXTENSIONS` times; then the points half a step on either side of the best, as
    often as the field says (``refine``), the step halved each time. Choices once each. While all
    points diverge, it goes down.

    Parameters
    ----------
    results
        Trials so far, in any order, running ones included.
    trials
        Most points in all; None: no limit.

    Returns
    -------
    list[dict[str, Any]] | None
        Points that no result has yet; empty: wait for those that run; None: finished.
    """
    lines = list(_walk(dimensions, results))
    last = lines[-1] if lines else _Line((), ())
    if not last.untried:
        return [] if last.running else None
    left = len(last.untried) if trials is None else max(0, trials - len(results))
    if left == 0:
        return [] if any(result.loss is None for result in results) else None
    return [dict(values) for values in last.untried[:left]]


def bracket_of(
    dimensions: Mapping[str, Dimension], results: Sequence[Result]
) -> dict[str, tuple[Result, ...]]:
    """Finished trials that a bracket compared for each field, by rising value.

    Empty for fields that it did not come to.
    """
    lines = [line.finished for line in _walk(dimensions, results)]
    lines += [()] * (len(dimensions) - len(lines))
    return dict(zip(dimensions, lines, strict=True))


def most_points(dimensions: Mapping[str, Dimension]) -> int:
    """Points that a bracket comes to at most, the shared ones counted once."""
    return sum(_most(dimension) - 1 for dimension in dimensions.values()) + bool(dimensions)


def _most(dimension: Dimension) -> int:
    if isinstance(dimension, Choices):
        return len(dimension.values)
    first = [k for k in (-1, 0, 1) if point(dimension, k) is not None]
    reach = range(2, 2 + MAX_EXTENSIONS)
    beyond = [k for i in reach for k in (-i, i) if point(dimension, k) is not None]
    return len(first) + min(MAX_EXTENSIONS, len(beyond)) + 2 * dimension.refine


@dataclass(frozen=True)
class _Line:
    """The search of one field, the others fixed."""

    untried: tuple[Mapping[str, Any], ...]
    finished: tuple[Result, ...]
    """By rising value; choices in the order of the grid."""
    running: bool = False
    best: Any = None
    """Value of the best point; None while the search goes on or where all diverged."""


Look = Callable[[Any], Result | None]


def _walk(dimensions: Mapping[str, Dimension], results: Sequence[Result]) -> Iterator[_Line]:
    """The searches of the fields in their order, up to the first that is not finished."""
    paths = tuple(dimensions)
    known: dict[tuple[str, ...], Result] = {}
    for result in results:
        key = _key(paths, result.values)
        if key not in known or known[key].loss is None:
            known[key] = result
    fixed = {path: _start(dimension) for path, dimension in dimensions.items()}
    for path, dimension in dimensions.items():

        def look(value: Any, path: str = path) -> Result | None:
            return known.get(_key(paths, {**fixed, path: value}))

        values, best = _tried(dimension, look)
        found = [(value, look(value)) for value in values]
        yield _Line(
            tuple({**fixed, path: value} for value, result in found if result is None),
            tuple(r for _, r in found if r is not None and r.loss is not None),
            any(result is not None and result.loss is None for _, result in found),
            best,
        )
        if best is None:
            return
        fixed[path] = best


def _key(paths: Sequence[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(repr(values.get(path)) for path in paths)


def _start(dimension: Dimension) -> Any:
    return dimension.start if isinstance(dimension, Choices) else point(dimension, 0)


def _tried(dimension: Dimension, look: Look) -> tuple[list[Any], Any]:
    """Values that the search of one field wants so far, and the best once it wants no more."""
    if isinstance(dimension, Choices):
        order: dict[float, Any] = dict(enumerate(dimension.values))
        losses = _losses(order, look)
        first = dimension.values.index(dimension.start)
        best = _best(losses, first) if losses else None
        return list(dimension.values), None if best is None else order[best]
    steps, best = _outwards(dimension, look)
    for halving in range(1, dimension.refine + 1):
        if best is None:
            break
        beside = (best - 0.5**halving, best + 0.5**halving)
        steps |= {k: v for k in beside if (v := point(dimension, k)) is not None}
        losses = _losses(steps, look)
        best = None if losses is None else _best(losses, best)
    return list(steps.values()), None if best is None else steps[best]


def _outwards(
    dimension: Geometric | Range, look: Look
) -> tuple[dict[float, float | None], float | None]:
    """Whole steps that the search of one field wants so far, and the best of them at its end."""
    low = min(k for k in (-1, 0, 1) if point(dimension, k) is not None)
    high = max(k for k in (-1, 0, 1) if point(dimension, k) is not None)
    for left in range(MAX_EXTENSIONS, -1, -1):
        steps: dict[float, float | None] = {k: point(dimension, k) for k in range(low, high + 1)}
        losses = _losses(steps, look)
        if losses is None:
            return steps, None
        best = _best(losses, 0)
        if not left:
            break
        if best in (low, None) and point(dimension, low - 1) is not None:
            low -= 1
        elif best == high and point(dimension, high + 1) is not None:
            high += 1
        else:
            break
    return steps, best


def _losses(values: Mapping[float, Any], look: Look) -> dict[float, float] | None:
    """Losses of points; None while one is not known."""
    losses: dict[float, float] = {}
    for k, value in values.items():
        result = look(value)
        if result is None or result.loss is None:
            return None
        losses[k] = math.inf if math.isnan(result.loss) else result.loss
    return losses


def _best(losses: Mapping[float, float], start: float) -> float | None:
    """The best point, of equals the one next to the start; None where all diverged."""
    best = min(losses, key=lambda k: (losses[k], abs(k - start), k))
    return None if math.isinf(losses[best]) else best
