"""Names of arms: a legend above the panels for a few, beside the lines where there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.style import MUTED, TEXT_POINTS, ArmStyle

LEGEND_MOST = 8
"""Arms that a reader can look up in a legend; more are named beside their lines."""


def key_of(arm: str, look: ArmStyle) -> Line2D:
    """Legend entry of one arm."""
    return Line2D([], [], color=look.colour, marker=look.marker, ls=look.dash, label=arm)


def legend_above(figure: Figure, handles: Sequence[Line2D], columns: int | None = None) -> None:
    """Place a key above the panels, in as many columns as fit; the figure grows with the rows."""
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    width = figure.get_figwidth() * 72
    fitting = max(1, int(width / (42 + 0.58 * TEXT_POINTS * longest)))
    columns = min(len(handles), columns or fitting)
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.16 * max(0, rows - 1))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, borderaxespad=0.2)


def arm_legend(figure: Figure, arms: Sequence[str], styles: Mapping[str, ArmStyle]) -> None:
    """Name the arms above the panels; a lone arm needs no name."""
    if len(arms) > 1:
        legend_above(figure, [key_of(arm, styles[arm]) for arm in arms])


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move values apart to at least ``gap`` within ``[low, high]``, in their order.

    Blocks of touching values are centred on their mean (pool adjacent violators), so that each
    moves as little as possible; where they do not all fit they are spaced evenly.
    """
    n = len(values)
    order = sorted(range(n), key=lambda i: values[i])
    if n > 1 and (n - 1) * gap >= high - low:
        places = [low + (high - low) * k / (n - 1) for k in range(n)]
    else:
        places = _pooled(
            [values[i] - k * gap for k, i in enumerate(order)], low, high - (n - 1) * gap
        )
        places = [place + k * gap for k, place in enumerate(places)]
    moved = [0.0] * n
    for place, i in zip(places, order, strict=True):
        moved[i] = place
    return moved


def _pooled(values: Sequence[float], low: float, high: float) -> list[float]:
    """Least-squares values that never decrease, clipped to the range."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    return [min(max(total / count, low), high) for total, count in blocks for _ in range(count)]


def label_ends(
    axes: Axes,
    ends: Mapping[str, tuple[float, float]],
    styles: Mapping[str, ArmStyle],
    height: float,
) -> None:
    """Name lines at the right edge of their panel, moved apart, joined to them by thin leaders.

    Parameters
    ----------
    axes
        With its final limits.
    ends
        Arm to the last point of its line, in data coordinates.
    styles
        Look of each arm.
    height
        Height of the panel, inches.
    """
    axes.get_xlim(), axes.get_ylim()  # Settles limits that matplotlib computes lazily.
    place = axes.transData + axes.transAxes.inverted()
    at = {arm: place.transform(end) for arm, end in ends.items()}
    gap = 1.25 * TEXT_POINTS / (72 * height)
    targets = spread([float(y) for _, y in at.values()], gap, 0.01, 0.99)
    for (arm, (x, y)), target in zip(at.items(), targets, strict=True):
        look = styles[arm]
        axes.plot(
            [x, 1.02, 1.045], [y, target, target], color=look.colour, lw=0.6, clip_on=False,
            transform=axes.transAxes, scalex=False, scaley=False,
        )  # fmt: skip
        axes.plot(
            1.065, target, look.marker, color=look.colour, ms=4, clip_on=False,
            transform=axes.transAxes, scalex=False, scaley=False,
        )  # fmt: skip
        axes.annotate(
            arm, (1.09, target), xycoords="axes fraction", va="center", fontsize=TEXT_POINTS,
            annotation_clip=False, color="black",
        )  # fmt: skip


def note_in(axes: Axes, text: str, *, x: float = 0.98, y: float = 0.03) -> None:
    """A small remark in a corner of a panel."""
    axes.text(
        x, y, text, transform=axes.transAxes, fontsize=TEXT_POINTS, color=MUTED,
        ha="right" if x > 0.5 else "left", va="bottom" if y < 0.5 else "top", zorder=5,
        bbox={"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 1},
    )  # fmt: skip
