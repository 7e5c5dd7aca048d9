"""Arms against the baseline over depths: accuracy and solved length, each with its interval.

``forest_rows`` is pure; drawing neither filters nor fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.figures.hover import HoverPoint, interval_text
from analysis.figures.labels import legend_above
from analysis.figures.style import MUTED, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import even_ticks, few
from analysis.probes.types import Comparison, Difference

_ROW_INCHES = 0.24
_LOOKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "ms": 4.5, "lw": 1.6},
    {"marker": "o", "ms": 4.0, "lw": 1.0, "fillstyle": "none", "mew": 0.9},
)
_GAP = 0.3


@dataclass(frozen=True, kw_only=True)
class ProbeForest:
    """Bars by arm: one, or one for each set of values."""

    baseline: str
    graded_by: str
    arms: tuple[str, ...]
    kinds: tuple[str, ...]
    """What the bars of one arm are; the first is filled."""
    bars: tuple[tuple[Comparison, ...], ...]
    """By arm, then by kind."""
    level: float = 0.95

    @property
    def drawable(self) -> bool:
        """Some arm has a difference."""
        return any(bar.accuracy.interval.estimate is not None for bars in self.bars for bar in bars)


def probe_forest(
    bars: Mapping[str, Sequence[Comparison]], baseline: str, graded_by: str, kinds: Sequence[str]
) -> ProbeForest:
    """Arms by their difference in accuracy under the first kind, the largest first."""

    def rank(arm: str) -> float:
        value = bars[arm][0].accuracy.interval.estimate
        return float("inf") if value is None else -value

    arms = tuple(sorted(bars, key=rank))
    return ProbeForest(
        baseline=baseline,
        graded_by=graded_by,
        arms=arms,
        kinds=tuple(kinds),
        bars=tuple(tuple(bars[arm]) for arm in arms),
    )


def probe_forest_figure(data: ProbeForest, styles: Mapping[str, ArmStyle]) -> Figure:
    """Two panels that share their rows."""
    step = _ROW_INCHES * (1 if len(data.kinds) == 1 else 1.35)
    figure = new_figure(PAGE_INCHES, 0.95 + step * len(data.arms))
    with in_style():
        left, right = figure.subplots(1, 2, sharey=True)
        _draw(data, left, styles, "accuracy", 100.0)
        _draw(data, right, styles, "solved", 1.0)
        left.set_xlabel(f"accuracy minus {data.baseline}'s, % points")
        right.set_xlabel(f"solved {data.graded_by} minus {data.baseline}'s")
        left.set_yticks(range(len(data.arms)), data.arms)
        left.set_ylim(len(data.arms) - 0.4, -0.6)
        left.tick_params(axis="y", length=0)
        legend_above(figure, _key(data))
    return figure


def _draw(
    data: ProbeForest, axes: Axes, styles: Mapping[str, ArmStyle], measure: str, scale: float
) -> None:
    values, widths = [0.0], [0.0]
    for i, bars in enumerate(data.bars):
        colour = styles[data.arms[i]].colour
        for k, bar in enumerate(bars):
            difference: Difference = getattr(bar, measure)
            at = difference.interval
            if at.estimate is None:
                continue
            values.append(scale * at.estimate)
            if at.low is not None and at.high is not None:
                widths.append(scale * (at.high - at.low))
                axes.plot(
                    [scale * at.low, scale * at.high], [_row(i, k)] * 2, color=colour,
                    lw=_LOOKS[k]["lw"],
                )  # fmt: skip
            axes.plot(scale * at.estimate, _row(i, k), color=colour, **_LOOKS[k])
    axes.axvline(0.0, color="black", lw=0.8)
    # A few wide intervals run off the panel, so that the others can be read.
    span = max(max(values) - min(values), 0.6 * median(widths[1:] or [0.0])) or 1.0
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, min(values) - span), min(high, max(values) + span))
    few(axes.xaxis, even_ticks, 6)
    axes.xaxis.set_major_formatter(FuncFormatter(_signed))
    axes.grid(visible=False, axis="y")


def _signed(value: float, _: object = None) -> str:
    return f"{value:+g}".replace("-", "−") if value else "0"


def _row(i: int, k: int) -> float:
    return i + _GAP * k


def _key(data: ProbeForest) -> list[Line2D]:
    if len(data.kinds) < 2:
        return []
    return [
        Line2D([], [], color=MUTED, label=kind, **look)
        for kind, look in zip(data.kinds, _LOOKS, strict=False)
    ]


def probe_forest_hover(data: ProbeForest) -> tuple[HoverPoint, ...]:
    """Every difference with its interval."""
    found = []
    for axes, (measure, scale, unit) in enumerate(
        (("accuracy", 100.0, "points of accuracy"), ("solved", 1.0, f"solved {data.graded_by}"))
    ):
        for i, bars in enumerate(data.bars):
            for k, bar in enumerate(bars):
                at = getattr(bar, measure).interval
                if at.estimate is None:
                    continue
                low, high = (None if v is None else scale * v for v in (at.low, at.high))
                kind = f", {data.kinds[k]}" if len(data.kinds) > 1 else ""
                text = (
                    f"{data.arms[i]}{kind}: {scale * at.estimate:+.2f} {unit} "
                    f"{interval_text(low, high, 2)}, {len(bar.seeds)} seeds"
                )
                found.append(HoverPoint(axes=axes, x=scale * at.estimate, y=_row(i, k), text=text))
    return tuple(found)
