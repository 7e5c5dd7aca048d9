"""What a page is made of: sections of blocks, each with an anchor for the table of contents.

Data types only; ``report.html.j2`` renders them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from analysis.page.hover_overlay import Target
from analysis.page.table import Table, to_html


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as the page shows it."""

    uri: str
    """Data URI of the image."""
    alt: str
    width: float
    """Inches of the printed figure."""
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """One table, figure, text or list with its heading."""

    title: str = ""
    notes: tuple[str, ...] = ()
    """Sentences above a table or text, below a figure."""
    anchor: str = ""
    table: Markup | None = None
    picture: Picture | None = None
    pre: str = ""
    """Text in fixed pitch, line breaks kept."""
    prose: str = ""
    """A paragraph that is meant to be copied."""
    facts: tuple[tuple[str, str], ...] = ()
    """Name and value."""
    folded: str = ""
    """Words to click on; empty: open."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under one heading."""

    title: str
    short: str = ""
    """Title in the table of contents, where it is to be shorter."""
    notes: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    anchor: str = ""


def table_block(table: Table, *, folded: str = "", title: str | None = None) -> Block:
    """A table under its title with its caption."""
    return Block(
        title=table.title if title is None else title,
        notes=(table.caption,) if table.caption else (),
        table=Markup(to_html(table)),
        folded=folded,
    )


def anchored(sections: Sequence[Section]) -> list[Section]:
    """The same sections, each heading with an anchor of its own, made from its words."""
    taken: set[str] = set()

    def anchor(title: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"
        name, n = stem, 1
        while name in taken:
            n += 1
            name = f"{stem}-{n}"
        taken.add(name)
        return name

    found = []
    for section in sections:
        own = anchor(section.title)
        blocks = [replace(b, anchor=anchor(b.title)) if b.title else b for b in section.blocks]
        found.append(replace(section, anchor=own, blocks=tuple(blocks)))
    return found
