"""One table, four renderings: csv for programs; markdown, LaTeX and html for reading.

csv carries full precision and separate columns for interval ends; the other three show the same
rows rounded. Pure but for :func:`save_tables`.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from harness.records import write_text_atomically

Raw = str | int | float | None

_NUMBER = re.compile(r"[-+<>±]?\d[\d.,]*(e[-+]?\d+)?%?$")
_NO_NUMBER = ("", "–", "undefined")
_LONG = 34
"""Characters beyond which a cell is a text that wraps."""


@dataclass(frozen=True)
class Cell:
    """A value for reading, with a smaller second part (an interval, a spread)."""

    main: str
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """One table: ``raw`` for csv, ``header`` and ``cells`` for reading."""

    name: str
    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    raw: tuple[dict[str, Raw], ...]
    caption: str = ""
    """What the columns mean, in what unit; above the table on the page, beside it in LaTeX."""


def to_csv(table: Table) -> str:
    """Full precision; empty where a value is null or NaN."""
    buffer = io.StringIO()
    columns = list(dict.fromkeys(name for row in table.raw for name in row))
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _null(value) for name, value in row.items()} for row in table.raw)
    return buffer.getvalue()


def to_markdown(table: Table) -> str:
    """A pipe table, columns padded to one width."""
    rows = [[_pipe(name) for name in table.header]]
    rows += [[_pipe(_joined(cell)) for cell in row] for row in table.cells]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_pipes(_padded(row, widths)) for row in rows]
    lines.insert(1, _pipes(["-" * width for width in widths]))
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs tabular (needs the package booktabs), numbers to the right, texts to the left."""
    rows = [[_tex(name) for name in table.header]]
    rows += [[_tex(_joined(cell)) for cell in row] for row in table.cells]
    rows = [[_guarded(first), *others] for first, *others in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = [_tex_row(_padded(row, widths)) for row in rows]
    columns = "".join("r" if numeric else "l" for numeric in _numeric(table))
    lines = [
        "% needs \\usepackage{booktabs}",
        rf"% \caption{{{_tex(f'{table.title}. {table.caption}'.strip())}}}",
        rf"% \label{{tab:{table.name.replace('_', '-')}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        *(r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"),
    ]
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> str:
    """A bare html table; every text is escaped."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in table.header)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>\n" for row in table.cells)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def save_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write every table as csv, markdown and LaTeX."""
    writers = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    for table in tables:
        for suffix, render in writers.items():
            write_text_atomically(folder / f"{table.name}.{suffix}", render(table))


def _null(value: Raw) -> Raw:
    return None if isinstance(value, float) and math.isnan(value) else value


def _html_cell(cell: Cell) -> str:
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    kind = " class='text'" if len(cell.main) > _LONG or len(cell.detail) > _LONG else ""
    # An arm's name may break before its options.
    main = escape(cell.main).replace("(", "<wbr>(") if " " not in cell.main else escape(cell.main)
    return f"<td{kind}>{main}{detail}</td>"


def _joined(cell: Cell) -> str:
    """Both parts in one line; an interval or a spread follows its value without a comma."""
    if not cell.detail:
        return cell.main
    return f"{cell.main}{' ' if cell.detail[0] in '[±' else ', '}{cell.detail}"


def _pipe(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", r"\|").replace("\n", " ")


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [text.ljust(width) for text, width in zip(row, widths, strict=True)]


def _pipes(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"


def _numeric(table: Table) -> list[bool]:
    """By column: all that is no gap is a number."""
    columns = list(zip(*table.cells, strict=True)) or [()] * len(table.header)
    values = [[cell.main for cell in column if cell.main not in _NO_NUMBER] for column in columns]
    return [bool(texts) and all(_NUMBER.match(text) for text in texts) for texts in values]


_TEX = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "\n": " "},
        **{"<": "$<$", ">": "$>$", "|": "$|$", "±": r"$\pm$", "×": r"$\times$"},
        **{"–": "--", "…": r"\ldots{}", "²": "$^2$", "→": r"$\to$", "≤": r"$\le$", "≥": r"$\ge$"},
        **{"ρ": r"$\rho$", "α": r"$\alpha$", "β": r"$\beta$"},
    }
)
# A hyphen before a digit is a minus unless it belongs to a word or an exponent.
_MINUS = re.compile(r"(?<![\w.\-])-(?=\d)")


def _tex(text: str) -> str:
    return _MINUS.sub("\0", text).translate(_TEX).replace("\0", "$-$")


def _guarded(first: str) -> str:
    """A first cell that the end of the row above does not take for its own argument."""
    return "{}" + first if first[:1] in ("[", "*") else first


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
