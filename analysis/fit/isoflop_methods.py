"""The minimum of one isoFLOP curve: parabola, cubic, or Akima interpolation over ln N.

Each method takes many noisy copies of the losses at once. A minimum counts only where it is
bracketed; a centred parabola finds the exponent of N*(C) exactly and its level with a bias that
grows with the window, a cubic removes most of it (arXiv 2603.22339).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from analysis.laws import Floats

Method = Literal["parabola", "cubic", "akima"]
METHODS: tuple[Method, ...] = ("parabola", "cubic", "akima")
MIN_SIZES: dict[Method, int] = {"parabola": 3, "cubic": 4, "akima": 5}
"""Distinct sizes that each method needs."""
SAME_SIZE = 1.01
"""Ratio of sizes that interpolation takes for one."""
_GRID = 1001

Minima = tuple[Floats, Floats]
"""``[k]`` ln N* and loss of each copy, NaN where there is no minimum inside the sizes."""


def minima(method: Method, log_size: Floats, losses: Floats) -> Minima:
    """Minimum over ln N of each copy of a curve.

    Parameters
    ----------
    method
        How the curve is joined.
    log_size
        ``[n]`` ln N, not decreasing.
    losses
        ``[n, k]`` k copies of the losses, nats.

    Returns
    -------
    tuple
        ``[k]`` ln N* and the loss there; NaN where the curve has no minimum strictly inside.
    """
    if method == "akima":
        return _akima_minima(log_size, losses)
    return _polynomial_minima(log_size, losses, 2 if method == "parabola" else 3)


def curve(method: Method, log_size: Floats, loss: Floats) -> Callable[[Floats], Floats]:
    """The curve through one budget's losses, as a function of ln N."""
    if method == "akima":
        joined = Akima1DInterpolator(*_means(log_size, np.log(loss)))
        return lambda at: np.asarray(np.exp(joined(at)))
    centre = log_size.mean()
    fitted = np.polyfit(log_size - centre, loss, 2 if method == "parabola" else 3)
    return lambda at: np.asarray(np.polyval(fitted, at - centre))


def _polynomial_minima(log_size: Floats, losses: Floats, degree: int) -> Minima:
    centre = log_size.mean()
    x = log_size - centre
    c = np.polyfit(x, losses, degree)
    third = np.zeros(losses.shape[1]) if degree == 2 else c[0]
    second, first = c[-3], c[-2]
    # Of the cubic's two stationary points the one with rising slope; stable as the cubic vanishes.
    root = second**2 - 3 * third * first
    with np.errstate(invalid="ignore", divide="ignore"):
        at = -first / (second + np.sqrt(root))
    inside = (root > 0) & (at > x[0]) & (at < x[-1])
    at = np.where(inside & np.isfinite(at), at, np.nan)
    value = third * at**3 + second * at**2 + first * at + c[-1]
    # A dip of a cubic that lies above an end of the curve is no minimum of it.
    ends = np.array([np.polyval(c, end) for end in (x[0], x[-1])])
    lowest = value <= ends.min(axis=0)
    return np.where(lowest, at + centre, np.nan), np.where(lowest, value, np.nan)


def _akima_minima(log_size: Floats, losses: Floats) -> Minima:
    """Interpolate ln L over ln N (Porian et al. 2024, arXiv 2406.19146) and search a grid."""
    grid = np.linspace(log_size[0], log_size[-1], _GRID)
    joined = Akima1DInterpolator(*_means(log_size, np.log(losses)))(grid)
    lowest = np.argmin(joined, axis=0)
    inside = (lowest > 0) & (lowest < _GRID - 1)
    value = np.exp(np.take_along_axis(joined, lowest[None], axis=0)[0])
    return np.where(inside, grid[lowest], np.nan), np.where(inside, value, np.nan)


def _means(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Distinct x and the mean of y at each, along the first axis.

    Sizes within 1% are one: interpolation through two noisy losses at nearly one size swings far.
    """
    which = np.concatenate([[0], np.cumsum(np.diff(x) > np.log(SAME_SIZE))])
    first = np.flatnonzero(np.diff(which, prepend=-1))
    count = np.bincount(which)
    total = np.add.reduceat(y, first, axis=0)
    return np.add.reduceat(x, first) / count, total / count.reshape(-1, *[1] * (y.ndim - 1))
