"""Arm minus baseline at each size, paired by seed, with an interval over seeds.

``paired_differences_data`` is pure and tested on numbers; ``draw_paired_differences`` neither
filters nor fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from analysis.cells import FLOPS, Currency
from analysis.compare.matching import match_table
from analysis.estimates import Interval
from analysis.figures import marks
from analysis.figures.hover import HoverPoint, interval_text
from analysis.figures.labels import arm_legend
from analysis.figures.style import COLUMN_INCHES, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import loss_axis

METHOD = "t interval over paired seeds"
_SPAN = 0.8
"""Share of a size's room that its arms fill."""
_CHARACTER_INCHES = 0.062
"""Width of a character of a tick label."""


@dataclass(frozen=True)
class PairedDifference:
    """One arm at one size."""

    arm: str
    size: str
    difference: Interval
    """Mean of arm minus baseline over paired runs, nats."""
    n_pairs: int
    each: tuple[float, ...]
    """The difference of every pair."""


@dataclass(frozen=True)
class PairedDifferencesData:
    """All arms at all sizes where they can be paired."""

    baseline: str
    sizes: tuple[str, ...]
    """By compute of the baseline."""
    arms: tuple[str, ...]
    differences: tuple[PairedDifference, ...]

    @property
    def drawable(self) -> bool:
        """Some arm was paired somewhere."""
        return bool(self.differences)


def paired_differences_data(
    used: pd.DataFrame, baseline: str, *, level: float = 0.95, currency: Currency = FLOPS
) -> PairedDifferencesData:
    """Differences in nats at the budgets as run, with t intervals where there are two pairs.

    Parameters
    ----------
    used
        Usable runs.
    baseline
        Arm subtracted.
    level
        Confidence level.
    currency
        Orders the sizes.
    """
    arms = tuple(arm for arm in dict.fromkeys(map(str, used["arm"])) if arm != baseline)
    places: dict[str, float] = {}
    found = []
    table = match_table(used, currency)
    for arm in arms:
        for match in table.match(arm, baseline):
            places.setdefault(match.size, match.log_compute_base)
            each = match.losses_arm - match.losses_base
            found.append(
                PairedDifference(
                    arm, match.size, mean_interval(each, level), len(each), tuple(map(float, each))
                )
            )
    sizes = tuple(sorted(places, key=lambda size: places[size]))
    shown = {at.arm for at in found}
    return PairedDifferencesData(
        baseline, sizes, tuple(arm for arm in arms if arm in shown), tuple(found)
    )


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Mean with ``mean +- t sd / sqrt(n)``, n - 1 degrees of freedom; no ends for one value."""
    numbers = np.asarray(values, dtype=np.float64)
    n, mean = len(numbers), float(numbers.mean())
    if n < 2:
        return Interval(estimate=mean, level=level, method=METHOD, reason="one pair: no interval")
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * float(numbers.std(ddof=1)) / math.sqrt(n)
    return Interval(estimate=mean, low=mean - half, high=mean + half, level=level, method=METHOD)


def positions(data: PairedDifferencesData) -> dict[tuple[str, str], float]:
    """Place of every arm and size along x: sizes at whole numbers, arms side by side."""
    step = _SPAN / len(data.arms) if data.arms else 0.0
    first = -(len(data.arms) - 1) * step / 2
    return {
        (at.arm, at.size): data.sizes.index(at.size) + first + step * data.arms.index(at.arm)
        for at in data.differences
    }


def draw_paired_differences(
    data: PairedDifferencesData, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Means with intervals, single pairs small; below zero the arm is better."""
    places = positions(data)
    axes.axhline(0.0, color="black", lw=0.8)
    for i in range(1, len(data.sizes)):
        axes.axvline(i - 0.5, color="#e4e4e4", lw=0.6)
    for arm in data.arms:
        look = styles[arm]
        own = [at for at in data.differences if at.arm == arm]
        x = [places[arm, at.size] for at in own]
        ends = [(p, at.difference.low, at.difference.high) for p, at in zip(x, own, strict=True)]
        bounded = [end for end in ends if end[1] is not None and end[2] is not None]
        if bounded:
            where, low, high = np.array(bounded).T
            marks.error_bars(axes, where, low, high, look.colour)
        marks.points(axes, x, [at.difference.estimate or 0.0 for at in own], look, size=4)
        each = [(p, v) for p, at in zip(x, own, strict=True) for v in at.each if at.n_pairs > 1]
        if each:
            where, value = np.array(each).T
            marks.points(axes, where, value, look, size=1.6, alpha=0.6)
    axes.set_ylim(*_limits(data))
    loss_axis(axes, log=False)
    axes.set_xticks(range(len(data.sizes)), data.sizes)
    if _upright(data):
        axes.tick_params(axis="x", rotation=90)
    axes.set_xlim(-0.5, len(data.sizes) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("size, by compute")
    axes.set_ylabel(f"loss minus {data.baseline}, nats")


def _limits(data: PairedDifferencesData) -> tuple[float, float]:
    """Room for every pair; intervals of two seeds, twelve times their spread, may run out."""
    values = [0.0, *(v for at in data.differences for v in at.each)]
    span = (max(values) - min(values)) or 0.01
    low, high = min(values) - 0.6 * span, max(values) + 0.6 * span
    ends = [e for at in data.differences for e in (at.difference.low, at.difference.high)]
    within = [min(max(e, low), high) for e in ends if e is not None] + values
    return min(within) - 0.05 * span, max(within) + 0.05 * span


def _width(data: PairedDifferencesData) -> float:
    return PAGE_INCHES if len(data.arms) * len(data.sizes) > 12 else COLUMN_INCHES


def _upright(data: PairedDifferencesData) -> bool:
    """The names of the sizes do not fit beside each other."""
    needed = sum(len(size) + 2 for size in data.sizes) * _CHARACTER_INCHES
    return needed > _width(data) - 0.6


def paired_differences_figure(
    data: PairedDifferencesData, styles: Mapping[str, ArmStyle]
) -> Figure:
    """All arms in one panel."""
    taller = _CHARACTER_INCHES * max(map(len, data.sizes)) if _upright(data) else 0.0
    figure = new_figure(_width(data), 2.8 + taller)
    with in_style():
        axes = figure.subplots()
        draw_paired_differences(data, axes, styles)
        arm_legend(figure, data.arms, styles)
        if len(data.arms) == 1:
            axes.set_title(data.arms[0])
    return figure


def paired_differences_hover(data: PairedDifferencesData) -> tuple[HoverPoint, ...]:
    """Every mean with its interval."""
    places = positions(data)
    found = []
    for at in data.differences:
        mean = at.difference.estimate or 0.0
        pairs = f"{at.n_pairs} pair" + "s" * (at.n_pairs != 1)
        ends = interval_text(at.difference.low, at.difference.high)
        text = f"{at.arm}, {at.size}: {mean:+.4f} nats {ends} ({pairs})"
        found.append(HoverPoint(axes=0, x=places[at.arm, at.size], y=mean, text=text))
    return tuple(found)
