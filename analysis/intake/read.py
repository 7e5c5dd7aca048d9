"""A file of runs as it is written: cells as they stand, each row with its name for messages.

csv, tsv and the like (the delimiter is taken from the header), json lines, parquet. Understands no
column; that is ``columns``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.intake.options import BadTable, named_rows

MAX_ROWS = 100_000
"""A table of runs has one row a run; more than this is a table of steps."""
DELIMITERS = (",", "\t", ";", "|")
MAX_CELL_CHARS = 10_000_000
"""A cell may hold the text of a whole dictionary."""
_SIGNATURES = {
    b"\x1f\x8b": "is compressed with gzip; unpack it first (gunzip)",
    b"PK\x03\x04": "is a spreadsheet or a zip archive; save the sheet as CSV",
}


def read_raw(
    source: str, delimiter: str | None = None, *, may_be_long: bool = False
) -> pd.DataFrame:
    """Read a file without understanding it.

    Parameters
    ----------
    source
        Path of the file.
    delimiter
        Between fields; None: the one that the header shows.
    may_be_long
        Whether more than :data:`MAX_ROWS` rows are allowed.

    Returns
    -------
    DataFrame
        Text, numbers or None by column; the index names each row as messages do (``line 4``).

    Raises
    ------
    BadTable
        No such file, a directory, empty, not UTF-8, not a table, or far too long.
    """
    path = Path(source)
    content = _bytes(path, source)
    if content[:4] == b"PAR1":
        frame = _parquet(content, source)
        _check_length(len(frame), source, may_be_long)
        return frame
    _check_length(content.count(b"\n") - 1, source, may_be_long)
    text = _text(content, source)
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json") or text.lstrip()[:1] in ("{", "["):
        return frame_of(list(_json_rows(text, source)), source)
    return _delimited(text, source, path.suffix.lower(), delimiter)


def frame_of(rows: Sequence[tuple[str, Mapping[str, Any]]], source: str) -> pd.DataFrame:
    """Rows as ``(name, values)``, in any shape of dictionary; nested ones get dotted names.

    Raises
    ------
    BadTable
        There is no row.
    """
    if not rows:
        raise BadTable(source, ["holds no row; a table of runs has one row a run"])
    flat = [dict(_leaves("", values)) for _, values in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    data = {name: [row.get(name) for row in flat] for name in columns}
    return pd.DataFrame(data, index=[name for name, _ in rows], dtype=object)


def _bytes(path: Path, source: str) -> bytes:
    if path.is_dir():
        raise BadTable(
            source,
            [
                "is a directory; name the table in it (a sweep of isoloss: isoloss report NAME, "
                "or its runs.parquet)"
            ],
        )
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadTable(source, ["no such file"]) from None
    except OSError as error:
        raise BadTable(source, [f"cannot be read: {error.strerror}"]) from error
    if not content.strip():
        raise BadTable(source, ["is empty; a table has a header and one row a run"])
    for signature, what in _SIGNATURES.items():
        if content.startswith(signature):
            raise BadTable(source, [what])
    return content


def _check_length(n_rows: int, source: str, may_be_long: bool) -> None:
    if n_rows > MAX_ROWS and not may_be_long:
        raise BadTable(
            source,
            [
                f"has about {n_rows:,} rows; a table of runs has one row a run (at most "
                f"{MAX_ROWS:,}). If these are checkpoints, keep the last of each run: "
                "--last-checkpoint --cluster COLUMN (the column that names the run)"
            ],
        )


def _text(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadTable(
            source,
            [
                f"line {line}: is not UTF-8 (byte 0x{content[error.start]:02x}); save it as UTF-8, "
                "or convert it: iconv -f latin1 -t utf-8"
            ],
        ) from None
    if "\0" in text:
        raise BadTable(source, ["is not text: it holds null bytes; export it as CSV in UTF-8"])
    return text


def _parquet(content: bytes, source: str) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except Exception as error:  # pyarrow raises many kinds
        raise BadTable(source, [f"is a damaged parquet file: {error}"]) from error
    if frame.empty:
        raise BadTable(source, ["holds no row; a table of runs has one row a run"])
    frame.index = pd.Index([f"row {i + 1}" for i in range(len(frame))])
    return frame


def _json_rows(text: str, source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise BadTable(source, [f"is not JSON: {error}"]) from None
        named = [(f"item {i + 1}", item) for i, item in enumerate(listed)]
    else:
        lines = [(f"line {i + 1}", line) for i, line in enumerate(text.splitlines())]
        named = [(name, _json_line(name, line, source)) for name, line in lines if line.strip()]
    for name, item in named:
        if not isinstance(item, dict):
            raise BadTable(source, [f"{name}: must be an object with one value a column"])
        yield name, item


def _json_line(name: str, line: str, source: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadTable(
            source, [f"{name}: is not JSON ({error}); json lines hold one object a line"]
        ) from None


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict):
            yield from _leaves(name, value)
        else:
            yield name, json.dumps(value) if isinstance(value, list) else value


def _delimited(text: str, source: str, suffix: str, delimiter: str | None) -> pd.DataFrame:
    header_line = next(line for line in text.splitlines() if line.strip())
    chosen = delimiter or _sniff(header_line, suffix)
    header, rows = _fields(text, chosen, source)
    _check_header(header, header_line, chosen, source)
    uneven = [f"line {line} ({len(row)})" for line, row in rows if len(row) != len(header)]
    if uneven:
        raise BadTable(
            source,
            [
                f"{len(header)} columns in the header, but another number of fields at "
                f"{named_rows(uneven)}; quote texts that hold {chosen!r}, or give --delimiter"
            ],
        )
    if not rows:
        raise BadTable(source, ["has a header but no row; a table of runs has one row a run"])
    data = {name: [row[i].strip() for _, row in rows] for i, name in enumerate(header)}
    return pd.DataFrame(data, index=[f"line {line}" for line, _ in rows], dtype=object)


def _sniff(header_line: str, suffix: str) -> str:
    if suffix in (".tsv", ".tab"):
        return "\t"
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([header_line], delimiter=mark))))


def _fields(
    text: str, delimiter: str, source: str
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header, and the fields of each row with its line; blank lines are left out."""
    former = csv.field_size_limit(MAX_CELL_CHARS)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        numbered, begun = [], 1
        for row in reader:
            if any(cell.strip() for cell in row):
                numbered.append((begun, row))
            begun = reader.line_num + 1
    except (csv.Error, TypeError) as error:
        raise BadTable(source, [f"is not a table delimited by {delimiter!r}: {error}"]) from None
    finally:
        csv.field_size_limit(former)
    return [name.strip() for name in numbered[0][1]], numbered[1:]


def _check_header(header: list[str], line: str, delimiter: str, source: str) -> None:
    if len(header) == 1:
        found = next((mark for mark in DELIMITERS if mark != delimiter and mark in line), None)
        hint = "a table needs a column of losses and one of N, D or C: give --delimiter"
        if found:
            hint = f"it looks delimited by {found!r}: --delimiter {found!r}"
        raise BadTable(
            source,
            [f"read with the delimiter {delimiter!r} it has one column, {line[:60]!r}; {hint}"],
        )
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise BadTable(source, [f"two columns are named {twice[0]!r}; rename one"])
