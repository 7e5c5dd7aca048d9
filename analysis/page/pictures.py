"""Figures written to disk and made into blocks of the page, values to be read off included."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.figures.style import save
from analysis.page.drawn import Drawn
from analysis.page.hover_overlay import overlay
from analysis.page.layout import Block, Picture

MAX_SVG_BYTES = 600_000
"""Above this the page shows the png: thousands of marks are no lighter as vectors."""
# Screen width of an inch of figure, in rem: text of 8 points reads like the page's small print.
_REM_PER_INCH = 7.2


@dataclass(frozen=True)
class SavedPicture:
    """One figure on disk and on the page."""

    svg: Path
    block: Block
    folded: bool


def save_pictures(drawn: Sequence[Drawn], folder: Path) -> list[SavedPicture]:
    """Write every figure in all formats and embed it."""
    return [_save(item, folder) for item in drawn]


def blocks_of(saved: Sequence[SavedPicture], *, folded: bool = False) -> list[Block]:
    """The blocks of the open or of the folded figures."""
    return [item.block for item in saved if item.folded == folded]


def _save(item: Drawn, folder: Path) -> SavedPicture:
    written = save(item.figure, folder, item.name)
    values = overlay(item.figure, item.hover)
    notes = [note for note in (item.text, values.note) if note]
    picture = Picture(
        uri=_data_uri(written),
        alt=" ".join(part for part in (f"{item.title}.", item.definition, item.text) if part),
        width=round(item.figure.get_figwidth() * _REM_PER_INCH, 1),
        targets=values.targets,
    )
    block = Block(
        title=item.title,
        notes=tuple(notes),
        picture=picture,
        folded="Show the figure" if item.folded else "",
    )
    return SavedPicture(written["svg"], block, item.folded)


def _data_uri(written: dict[str, Path]) -> str:
    kind, path = "svg+xml", written["svg"]
    if path.stat().st_size > MAX_SVG_BYTES:
        kind, path = "png", written["png"]
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
