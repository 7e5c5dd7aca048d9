"""Axes with few, unequivocal tick labels: logarithmic compute and sizes, losses, multipliers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, NullLocator

from analysis.cells import FLOPS, Currency

_MANTISSAS = (
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 6),
    (1, 2, 5),
    (1, 3),
    (1,),
)
_RATIO_DIGITS = (
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 5, 7),
    (1, 2, 5),
    (1, 3),
    (1,),
)
_AXIS_LABELS = {
    "flops": "training FLOPs",
    "flops_without": "training FLOPs without the variant's own",
    "wall_clock": "training time, s",
    "tokens": "training tokens",
}


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values of a logarithmic axis, at most ``most`` of them, evenly spaced to the eye."""
    if not 0 < low < high:
        return []
    inside: list[float] = []
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _MANTISSAS:
        values = [m * 10.0**decade for decade in decades for m in mantissas]
        inside = [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(inside) <= most:
            break
    inside = inside[:: -(-len(inside) // most)] if len(inside) > most else inside
    return inside if len(inside) > 1 else even_ticks(low, high, most)


def even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Evenly spaced round values within a range, at most ``most``."""
    if not high > low:
        return [low]
    magnitude = 10.0 ** math.floor(math.log10((high - low) / most))
    steps = (m * magnitude for m in (1, 2, 5, 10, 20, 50))
    slack = 1e-9 * (high - low)
    for step in steps:
        first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
        if last - first < most:
            return [round(step * k, 12) for k in range(first, last + 1)]
    return [low, high]


class FewTicks(Locator):
    """Ticks chosen from the limits that the axis has when it is drawn."""

    def __init__(self, choose: Callable[[float, float, int], Sequence[float]], most: int) -> None:
        self._choose, self._most = choose, most

    def __call__(self) -> Sequence[float]:
        """Ticks within the present limits."""
        assert self.axis is not None
        low, high = sorted(self.axis.get_view_interval())
        return self._choose(low, high, self._most)

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """Ticks within given limits."""
        return self._choose(vmin, vmax, self._most)


def few(axis: Axis, choose: Callable[[float, float, int], Sequence[float]], most: int) -> None:
    """Put a handful of ticks on one axis, none in between."""
    axis.set_major_locator(FewTicks(choose, most))
    axis.set_minor_locator(NullLocator())


def compute_axis(axes: Axes, currency: Currency = FLOPS, most: int = 6) -> None:
    """Logarithmic x axis of compute: ``5e10``, ``1e11``."""
    axes.set_xscale("log")
    few(axes.xaxis, log_ticks, most)
    axes.xaxis.set_major_formatter(FuncFormatter(scientific))
    axes.set_xlabel(_AXIS_LABELS[currency.name])


def size_axis(axis: Axis, most: int = 6) -> None:
    """Ticks of a logarithmic axis of counts: ``50M``, ``1B``, ``3e14``."""
    few(axis, log_ticks, most)
    axis.set_major_formatter(FuncFormatter(counted))


def loss_axis(axes: Axes, *, log: bool, most: int = 6) -> None:
    """Y axis of losses in evenly spaced plain numbers."""
    if log:
        axes.set_yscale("log")
    few(axes.yaxis, even_ticks, most)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))


def ratio_axis(axis: Axis, most: int = 8) -> None:
    """Ticks of a logarithmic axis of multipliers, 1 among them: ``0.9x``, ``1x``."""
    few(axis, lambda low, high, most: ratio_ticks(low, high, most), most)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def ratio_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Ticks that include 1: evenly spaced over narrow ranges, 1-2-5 over wide ones."""
    if high / low > 2.5:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks: list[float] = []
        for digits in _RATIO_DIGITS:
            ticks = [digit * 10.0**decade for decade in decades for digit in digits]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) <= most:
                break
        return ticks
    span = high - low
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if span / s <= most)
    first, last = math.ceil((low - 1) / step), math.floor((high - 1) / step)
    return [round(1 + step * k, 4) for k in range(first, last + 1)]


def plain_log_ticks(axes: Axes) -> None:
    """Ticks of a logarithmic y axis in plain numbers, a handful whatever its range."""
    low, high = axes.get_ylim()
    span = high / low
    subs = (1.0,) if span > 300 else (1.0, 2.0, 5.0) if span > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))


def scientific(value: float, _: object = None) -> str:
    """``5e10``: a power of ten without sign or padding; plain below a hundred thousand."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    mantissa, exponent = f"{value:.4e}".split("e")
    return f"{mantissa.rstrip('0').removesuffix('.')}e{int(exponent)}"


def counted(value: float, _: object = None) -> str:
    """A count in thousands, millions, billions or trillions: ``1.5M``."""
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if 1 <= value / factor < 1000:
            return f"{value / factor:.3g}{unit}"
    return scientific(value)


def _plain(value: float, _: object = None) -> str:
    if 1e-3 <= value < 1e4:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def padded(
    values: Sequence[float], share: float = 0.06, *, log: bool = False
) -> tuple[float, float]:
    """Limits around finite values with some air; a lone value gets a little on either side."""
    found = np.asarray([v for v in values if math.isfinite(v)], dtype=float)
    if not len(found):
        return (0.5, 2.0) if log else (0.0, 1.0)
    found = np.log(found) if log else found
    low, high = float(found.min()), float(found.max())
    air = share * (high - low) or (0.05 if log else 0.05 * abs(low) or 1.0)
    ends = (low - air, high + air)
    return (math.exp(ends[0]), math.exp(ends[1])) if log else ends
