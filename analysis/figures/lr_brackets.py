"""Loss against learning rate by size: whether each arm's best rate is bracketed by worse ones.

``lr_brackets_data`` is pure and tested on numbers; ``draw_lr_bracket`` neither filters nor fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.figures import marks
from analysis.figures.hover import HoverPoint, seeds_text
from analysis.figures.labels import key_of, legend_above
from analysis.figures.style import COLUMN_INCHES, MUTED, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import few, log_ticks, loss_axis

_COLUMNS = 3
_INTERIOR: dict[str, Any] = {"marker": "o", "fillstyle": "none", "ms": 7.5, "mew": 1.0}
_EDGE: dict[str, Any] = {"marker": "x", "ms": 7.5, "mew": 1.3}


@dataclass(frozen=True)
class LrBracket:
    """Losses of one arm at one size by learning rate, seeds averaged."""

    arm: str
    size: str
    lr: tuple[float, ...]
    """Increasing; at least two."""
    loss: tuple[float, ...]
    n_seeds: tuple[int, ...]

    @property
    def best(self) -> int:
        """Index of the lowest loss."""
        return self.loss.index(min(self.loss))

    @property
    def interior(self) -> bool:
        """The best rate has a worse one on either side."""
        return 0 < self.best < len(self.lr) - 1


@dataclass(frozen=True)
class LrBracketsData:
    """All arms and sizes that ran at two rates or more."""

    baseline: str
    sizes: tuple[str, ...]
    """By compute."""
    brackets: tuple[LrBracket, ...]

    @property
    def drawable(self) -> bool:
        """Some arm ran at two rates."""
        return bool(self.brackets)

    @property
    def arms(self) -> tuple[str, ...]:
        """The baseline first, then in the order of the runs."""
        return tuple(dict.fromkeys(bracket.arm for bracket in self.brackets))


def lr_brackets_data(used: pd.DataFrame, baseline: str) -> LrBracketsData:
    """Mean loss over seeds by arm, size and learning rate, where there are two rates or more.

    Parameters
    ----------
    used
        Usable runs: ``arm``, ``size``, ``lr``, ``loss_nats``, ``flops``, ``seed``.
    baseline
        Arm listed first.
    """
    if "lr" not in used:
        return LrBracketsData(baseline, (), ())
    rows = used[used["lr"].notna() & used["loss_nats"].notna()]
    arms = sorted(dict.fromkeys(map(str, rows["arm"])), key=lambda arm: arm != baseline)
    order = rows.groupby("size")["flops"].mean().sort_values().index
    brackets = []
    for arm in arms:
        for size in order:
            group = rows[(rows["arm"] == arm) & (rows["size"] == size)].groupby("lr")
            if len(group) < 2:
                continue
            loss, seeds = group["loss_nats"].mean(), group["seed"].nunique()
            brackets.append(
                LrBracket(
                    arm,
                    str(size),
                    tuple(float(lr) for lr in loss.index),
                    tuple(float(value) for value in loss),
                    tuple(int(n) for n in seeds),
                )
            )
    shown = {bracket.size for bracket in brackets}
    return LrBracketsData(
        baseline, tuple(str(size) for size in order if str(size) in shown), tuple(brackets)
    )


def draw_lr_bracket(
    data: LrBracketsData, size: str, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Loss against rate at one size; the lowest is ringed inside, crossed at the edge."""
    axes.set_xscale("log")
    few(axes.xaxis, log_ticks, 4)
    axes.xaxis.set_major_formatter(FuncFormatter(_rate))
    loss_axis(axes, log=False, most=5)
    for bracket in data.brackets:
        if bracket.size != size:
            continue
        look = styles[bracket.arm]
        axes.plot(bracket.lr, bracket.loss, color=look.colour, ls=look.dash, lw=1.0)
        marks.points(axes, bracket.lr, bracket.loss, look, size=3.5)
        mark = _INTERIOR if bracket.interior else _EDGE
        axes.plot(
            bracket.lr[bracket.best],
            bracket.loss[bracket.best],
            color=look.colour,
            zorder=4,
            **mark,
        )
    axes.set_title(size)


def _rate(value: float, _: object = None) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def lr_brackets_figure(data: LrBracketsData, styles: Mapping[str, ArmStyle]) -> Figure:
    """One panel per size."""
    columns = min(_COLUMNS, len(data.sizes))
    rows = -(-len(data.sizes) // columns)
    figure = new_figure(COLUMN_INCHES if columns == 1 else PAGE_INCHES, 0.6 + 1.9 * rows)
    with in_style():
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for i, axes in enumerate(grid.flat):
            if i >= len(data.sizes):
                axes.remove()
                continue
            draw_lr_bracket(data, data.sizes[i], axes, styles)
            if i + columns >= len(data.sizes):
                axes.set_xlabel("peak learning rate")
                axes.xaxis.set_tick_params(labelbottom=True)
            if i % columns == 0:
                axes.set_ylabel("validation loss, nats")
        legend_above(figure, [*(key_of(arm, styles[arm]) for arm in data.arms), *_key()])
    return figure


def _key() -> list[Line2D]:
    texts = ("lowest, bracketed", "lowest at the edge")
    looks = (_INTERIOR | {"ms": 6.0}, _EDGE | {"ms": 6.0})
    return [
        Line2D([], [], ls="", color=MUTED, label=text, **look)
        for text, look in zip(texts, looks, strict=True)
    ]


def lr_brackets_hover(data: LrBracketsData) -> tuple[HoverPoint, ...]:
    """Every rate tried."""
    found = []
    for bracket in data.brackets:
        panel = data.sizes.index(bracket.size)
        for i, (lr, loss) in enumerate(zip(bracket.lr, bracket.loss, strict=True)):
            text = (
                f"{bracket.arm}, {bracket.size}, lr {lr:.3g}: {loss:.4f} nats "
                f"({seeds_text(bracket.n_seeds[i], None)})"
            )
            if i == bracket.best:
                text += "; lowest" + ("" if bracket.interior else ", at the edge")
            found.append(HoverPoint(axes=panel, x=lr, y=loss, text=text))
    return tuple(found)
