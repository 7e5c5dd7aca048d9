"""One look for every figure: colours, markers, dashes, captions, deterministic files.

Colours are Okabe and Ito's, told apart by readers with any colour vision; marker and dash differ as
well, so figures also work in grey. Draws without pyplot: no global state, no display.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

# Okabe & Ito (2008) without yellow, which vanishes on white; black is the baseline's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "*", "p")
_DASHES: tuple[Any, ...] = (
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (9, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
)
MUTED = "#555555"
COLUMN_INCHES = 3.35
"""Width of one column of a two-column paper."""
PAGE_INCHES = 6.9
"""Width of both columns."""
TEXT_POINTS = 7.0
"""Smallest text of any figure, at its printed width."""
PNG_DPI = 200
FORMATS = ("svg", "png", "pdf")
RASTERIZE_BEYOND = 2000
"""Points of one artist beyond which a vector file holds them as an image."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
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

    No two of the first 66 arms share colour and marker; two of one colour also differ in dash as
    long as they are fewer than 30 arms apart. (6 colours, 11 markers and 5 dashes have no common
    factor.)
    """
    others = [arm for arm in dict.fromkeys(arms) if arm != baseline]
    return {baseline: _BASELINE} | {arm: _style(i) for i, arm in enumerate(others)}


def palette(n: int) -> tuple[ArmStyle, ...]:
    """Looks of ``n`` things that are no arms, the first of them black."""
    return (_BASELINE, *(_style(i) for i in range(n - 1)))[:n]


def _style(i: int) -> ArmStyle:
    return ArmStyle(
        _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], _DASHES[i % len(_DASHES)]
    )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in the shared style; width and height in inches."""
    with in_style():
        return Figure(figsize=(width, height), layout="constrained")


def caption(figure: Figure, sentences: Sequence[str]) -> None:
    """Print the conventions and counts under a figure, wrapped to its width; it grows with them."""
    per_line = int(figure.get_figwidth() * 72 / (TEXT_POINTS * 0.56))
    lines = [line for text in sentences for line in textwrap.wrap(text, per_line)]
    figure.set_figheight(figure.get_figheight() + TEXT_POINTS * 1.35 / 72 * max(0, len(lines) - 2))
    figure.supxlabel(
        "\n".join(lines), x=0.01, ha="left", fontsize=TEXT_POINTS, color=MUTED, linespacing=1.35
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
            figure.set_layout_engine(None)
        path = folder / f"{name}.{file_format}"
        path.write_bytes(render(figure, file_format))
        written[file_format] = path
    return written
