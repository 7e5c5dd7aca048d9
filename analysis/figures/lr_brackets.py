"""Loss against a searched value by size: whether each arm's best is bracketed by worse ones.

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
from analysis.figures.ticks import even_ticks, few, log_ticks, loss_axis

_COLUMNS = 3
_INTERIOR: dict[str, Any] = {"marker": "o", "fillstyle": "none", "ms": 7.5, "mew": 1.0}
_EDGE: dict[str, Any] = {"marker": "x", "ms": 7.5, "mew": 1.3}
_LOST: dict[str, Any] = {"marker": 11, "ms": 5.0}
_LABELS = {
    "lr": "peak learning rate",
    "residual_lr_scale": "rate of the residual parameters",
    "warmup_frac": "share of warm-up",
    "decay_frac": "share of decay",
}


@dataclass(frozen=True)
class LrBracket:
    """Losses of one arm at one size by the value of one field."""

    arm: str
    size: str
    values: tuple[float, ...]
    """Increasing."""
    loss: tuple[float, ...]
    n_seeds: tuple[int, ...]
    lost: tuple[float, ...] = ()
    """Values without a loss: every run there diverged or was stopped early."""

    @property
    def best(self) -> int:
        """Index of the lowest loss."""
        return self.loss.index(min(self.loss))

    @property
    def interior(self) -> bool:
        """The best value has a worse one on either side; where runs were lost it is worse."""
        tried, best = (*self.values, *self.lost), self.values[self.best]
        return min(tried) < best < max(tried)


@dataclass(frozen=True)
class LrBracketsData:
    """All arms and sizes that ran at two values or more."""

    baseline: str
    sizes: tuple[str, ...]
    """By compute."""
    brackets: tuple[LrBracket, ...]
    field: str = "lr"
    """What was varied."""
    joined: bool = True
    """Points of one arm are one curve; False: other fields varied with this one."""

    @property
    def drawable(self) -> bool:
        """Some arm ran at two values."""
        return bool(self.brackets)

    @property
    def arms(self) -> tuple[str, ...]:
        """The baseline first, then in the order of the runs."""
        return tuple(dict.fromkeys(bracket.arm for bracket in self.brackets))

    @property
    def log(self) -> bool:
        """Values can stand on a logarithmic axis."""
        return all(min(*b.values, *b.lost) > 0 for b in self.brackets)


def lr_brackets_data(
    runs: pd.DataFrame,
    baseline: str,
    *,
    field: str = "lr",
    least: bool = False,
    joined: bool = True,
) -> LrBracketsData:
    """Loss by arm, size and value of a field, where there are two values or more.

    Parameters
    ----------
    runs
        ``arm``, ``size``, the field, ``loss_nats``, ``flops``, ``seed``. A null loss is one that
        was lost: the run diverged or was stopped early.
    baseline
        Arm listed first.
    field
        Column of the values: numbers; nulls are left out.
    least
        Of runs at one value take the lowest loss, as other fields were searched, too; else their
        mean, as they are seeds.
    joined
        Whether the points of one arm make a curve.
    """
    if field not in runs:
        return LrBracketsData(baseline, (), (), field, joined)
    rows = runs[runs[field].notna()]
    arms = sorted(dict.fromkeys(map(str, rows["arm"])), key=lambda arm: arm != baseline)
    order = rows.groupby("size")["flops"].mean().sort_values().index
    found = [
        _bracket(rows[(rows["arm"] == arm) & (rows["size"] == size)], field, least)
        for arm in arms
        for size in order
    ]
    brackets = tuple(bracket for bracket in found if bracket is not None)
    shown = {bracket.size for bracket in brackets}
    sizes = tuple(str(size) for size in order if str(size) in shown)
    return LrBracketsData(baseline, sizes, brackets, field, joined)


def _bracket(rows: pd.DataFrame, field: str, least: bool) -> LrBracket | None:
    ended = rows[rows["loss_nats"].notna()]
    if ended.empty or rows[field].nunique() < 2:
        return None
    group = ended.groupby(field)
    loss = group["loss_nats"].min() if least else group["loss_nats"].mean()
    tried = sorted({float(value) for value in rows[field]})
    values = tuple(float(value) for value in loss.index)
    return LrBracket(
        str(rows["arm"].iloc[0]),
        str(rows["size"].iloc[0]),
        values,
        tuple(float(value) for value in loss),
        tuple(int(n) for n in group["seed"].nunique()),
        tuple(value for value in tried if value not in values),
    )


def field_label(field: str) -> str:
    """A field in words: ``peak learning rate``, ``weight decay``."""
    name = field.rpartition(".")[2]
    return _LABELS.get(name, name.replace("_", " "))


def draw_lr_bracket(
    data: LrBracketsData, size: str, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Loss against value at one size; the lowest is ringed inside, crossed at the edge."""
    if data.log:
        axes.set_xscale("log")
    few(axes.xaxis, log_ticks if data.log else even_ticks, 4)
    if data.log:
        axes.xaxis.set_major_formatter(FuncFormatter(rate_text))
    loss_axis(axes, log=False, most=5)
    for bracket in data.brackets:
        if bracket.size != size:
            continue
        look = styles[bracket.arm]
        if data.joined:
            axes.plot(bracket.values, bracket.loss, color=look.colour, ls=look.dash, lw=1.0)
        marks.points(axes, bracket.values, bracket.loss, look, size=3.5)
        axes.plot(
            bracket.lost,
            [0.99] * len(bracket.lost),
            ls="",
            color=look.colour,
            transform=axes.get_xaxis_transform(),
            **_LOST,
        )
        mark = _INTERIOR if bracket.interior else _EDGE
        best = bracket.values[bracket.best], bracket.loss[bracket.best]
        axes.plot(*best, color=look.colour, zorder=4, **mark)
    axes.set_title(size)


def rate_text(value: float, _: object = None) -> str:
    """A rate on an axis: ``2e-2``."""
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
                axes.set_xlabel(field_label(data.field))
                axes.xaxis.set_tick_params(labelbottom=True)
            if i % columns == 0:
                axes.set_ylabel("validation loss, nats")
        legend_above(figure, [*(key_of(arm, styles[arm]) for arm in data.arms), *_key(data)])
    return figure


def _key(data: LrBracketsData) -> list[Line2D]:
    entries = [
        ("lowest, bracketed", _INTERIOR | {"ms": 6.0}),
        ("lowest at the edge", _EDGE | {"ms": 6.0}),
    ]
    if any(bracket.lost for bracket in data.brackets):
        entries.append(("diverged or stopped", _LOST))
    return [Line2D([], [], ls="", color=MUTED, label=text, **look) for text, look in entries]


def lr_brackets_hover(data: LrBracketsData) -> tuple[HoverPoint, ...]:
    """Every value tried that has a loss."""
    found = []
    for bracket in data.brackets:
        panel = data.sizes.index(bracket.size)
        name = data.field.rpartition(".")[2]
        for i, (value, loss) in enumerate(zip(bracket.values, bracket.loss, strict=True)):
            text = (
                f"{bracket.arm}, {bracket.size}, {name} {value:.3g}: {loss:.4f} nats "
                f"({seeds_text(bracket.n_seeds[i], None)})"
            )
            if i == bracket.best:
                text += "; lowest" + ("" if bracket.interior else ", at the edge")
            found.append(HoverPoint(axes=panel, x=value, y=loss, text=text))
    return tuple(found)
