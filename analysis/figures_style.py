"""One look for every figure: colours, markers, dashes, captions, deterministic files.

Colours are Okabe and Ito's, told apart by readers with any colour vision; marker and dash differ as
well, so figures also work in grey. Draws without pyplot: no global state, no display.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Okabe & Ito (2008) without yellow, which vanishes on white; black is the baseline's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "*", "p")
_DASHES: tuple[Any, ...] = ((0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 1.5)))
MUTED = "#555555"
PNG_DPI = 200
FORMATS = ("svg", "png", "pdf")
_CAPTION_POINTS = 7.0

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 5.0,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "isoloss",
    "pdf.fonttype": 42,
}


def in_style() -> AbstractContextManager[None]:
    """Context in which artists take the shared style."""
    return mpl.rc_context(STYLE)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ArmStyle:
    """How one arm is drawn, the same in every figure."""

    colour: str
    marker: str
    dash: Any

    def line(self, n_points: int) -> dict[str, Any]:
        """Keywords of a line through ``n_points`` with at most a dozen small markers."""
        every = max(1, n_points // 12)
        look = {"color": self.colour, "ls": self.dash, "marker": self.marker}
        return look | {"markersize": 3.5, "markevery": every}


_BASELINE = ArmStyle("#000000", "o", "-")


def arm_styles(arms: Iterable[str], baseline: str) -> dict[str, ArmStyle]:
    """Give every arm a style of its own; the baseline alone is black, round and solid.

    No two of the first 60 arms share colour and marker.
    """
    others = [arm for arm in dict.fromkeys(arms) if arm != baseline]
    return {baseline: _BASELINE} | {arm: _style(i) for i, arm in enumerate(others)}


def _style(i: int) -> ArmStyle:
    return ArmStyle(
        _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], _DASHES[i % len(_DASHES)]
    )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in the shared style; width and height in inches."""
    with in_style():
        return Figure(figsize=(width, height), layout="constrained")


def arm_legend(figure: Figure, arms: Sequence[str], styles: Mapping[str, ArmStyle]) -> None:
    """Name the arms above the panels, in as many columns as fit; the figure grows with the rows."""
    if len(arms) < 2:
        return
    looks = [(arm, styles[arm]) for arm in arms]
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, ls=look.dash, label=arm)
        for arm, look in looks
    ]
    width = figure.get_figwidth() * 72
    columns = min(len(arms), max(1, int(width / (45 + 4.4 * max(map(len, arms))))))
    rows = -(-len(arms) // columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * max(0, rows - 1))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns)


def plain_log_ticks(axes: Axes) -> None:
    """Ticks of a logarithmic y axis in plain numbers, a handful whatever its range."""
    low, high = axes.get_ylim()
    span = high / low
    subs = (1.0,) if span > 300 else (1.0, 2.0, 5.0) if span > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))


def compute_axis(axes: Axes) -> None:
    """A logarithmic x axis of training FLOPs with few, unequivocal labels: ``5e10``, ``1e11``."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_scientific))
    axes.set_xlabel("training FLOPs")


def _scientific(value: float, _: object = None) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _plain(value: float, _: object = None) -> str:
    if 1e-3 <= value < 1e4:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def caption(figure: Figure, sentences: Sequence[str]) -> None:
    """Print the conventions and counts under a figure, wrapped to its width."""
    per_line = int(figure.get_figwidth() * 72 / (_CAPTION_POINTS * 0.56))
    lines = [line for text in sentences for line in textwrap.wrap(text, per_line)]
    figure.supxlabel(
        "\n".join(lines), x=0.01, ha="left", fontsize=_CAPTION_POINTS, color=MUTED, linespacing=1.35
    )


def render(figure: Figure, file_format: str) -> bytes:
    """Bytes of a figure: the same for the same data on the same machine (no dates inside)."""
    buffer = io.BytesIO()
    undated: dict[str, dict[str, Any]] = {
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
        "png": {"Software": None},
    }
    with in_style():
        figure.savefig(buffer, format=file_format, dpi=PNG_DPI, metadata=undated.get(file_format))
    return buffer.getvalue()


def save(figure: Figure, folder: Path, name: str) -> dict[str, Path]:
    """Write a figure as svg, png and pdf; returns the paths by format."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    for file_format in FORMATS:
        # The layout is solved by the first rendering; solving it again takes a third of the time.
        if written:
            figure.set_layout_engine("none")
        path = folder / f"{name}.{file_format}"
        path.write_bytes(render(figure, file_format))
        written[file_format] = path
    return written
