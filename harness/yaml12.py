"""YAML 1.2 to plain Python values, with the line of every key and item.

Reads grid files and ``--set`` values. Scalars follow the core schema of YAML 1.2.2 section 10.3:
``1e-3`` is a float, ``no`` and ``12:00:00`` are strings. Built on the event stream of ruamel.yaml,
so that nothing is constructed that the file did not spell out. Limits: one document, keys are text,
no custom tags, no merge keys, no tabs, at most :data:`MAX_VALUES` values and :data:`MAX_DEPTH`
levels.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from harness.errors import GridError

Loc = tuple[str | int, ...]
"""Keys and indices that lead from the top of a document to a value."""
MAX_BYTES = 4_000_000
MAX_VALUES = 100_000
MAX_DEPTH = 30

SWEEP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
RESERVED_SWEEPS = ("published", "bench", "mlartifacts", "mlflow.db")
"""Names that the results folder uses for other things."""

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_BINARY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_CORE = "tag:yaml.org,2002:"
_ADVICE = (
    ("'\\t' that cannot", "a tab stands here; YAML is indented with spaces only"),
    ("mapping values are not allowed", "a second ': ' in one value; indent it, or quote the text"),
    ("that cannot start any token", "the character cannot start a value; put the text in quotes"),
    ("but got '<stream end>'", "a bracket is opened here and never closed"),
    ("unexpected end of stream", "a quote is opened here and never closed"),
    ("expected ',' or", "a comma or the closing bracket is missing"),
    ("expected <block end>", "the indentation does not match the lines above"),
    ("could not find expected ':'", "a ':' is missing after the key"),
)


@dataclass
class Document:
    """A parsed document and where its values stand."""

    file: str
    text: str
    value: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    """Line (from 1) of every key and item."""
    origins: dict[Loc, str] = field(default_factory=dict)
    """Values that came from elsewhere than the file, such as ``--set train.lr=1e-3``."""

    def line(self, loc: Loc) -> int:
        """Line of a value, or of the closest parent that the file spells out."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def where(self, loc: Loc) -> str:
        """``file:line`` of a value, or the override that set it."""
        parts = loc
        while parts:
            if parts in self.origins:
                return self.origins[parts]
            parts = parts[:-1]
        return f"{self.file}:{self.line(loc)}"

    def problem(self, loc: Loc, message: str) -> str:
        """One mistake in a line: ``file:line: dotted.path: message``."""
        return f"{self.where(loc)}: {dotted(loc)}: {message}"


def dotted(loc: Loc) -> str:
    """Spell a location as ``axes.model.n_layers[1]``; the top of a document is ``(top level)``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith("--"):
            text += f".{part}" if text else part
    return text or "(top level)"


def read_yaml(path: Path) -> Document:
    """Read a YAML 1.2 file.

    Raises
    ------
    GridError
        The file is absent, not UTF-8 text, or not one YAML document of plain values.
    """
    return parse_yaml(_read_text(path), str(path))


def parse_yaml(text: str, file: str) -> Document:
    """Parse the text of a document; ``file`` is the name to use in messages.

    Raises
    ------
    GridError
        Not one YAML document of plain values. Lists every mistake that does not stop the parser.
    """
    document = Document(file, text)
    _Builder(document).build()
    return document


def scalar(text: str) -> Any:
    """Resolve a plain (unquoted) scalar by the core schema of YAML 1.2.

    Source: YAML 1.2.2, section 10.3.2, tag resolution table.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base) if len(text) < 400 else float(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    infinity = _INF.fullmatch(text)
    return float(f"{infinity[1]}inf") if infinity else text


def sweep_name(path: Path) -> str:
    """Read only the name of a grid's sweep, for commands that need its results and not its runs.

    Of a grid with profiles it is the sweep of the first; others are named by their sweep.

    Raises
    ------
    GridError
        The file is not YAML, or its name is missing or unfit.
    """
    document = read_yaml(path)
    value = document.value
    profiles = value.get("profiles") if isinstance(value, dict) else None
    first = next(iter(profiles.values()), None) if isinstance(profiles, dict) else None
    if isinstance(first, dict) and "sweep" in first:
        value = {**value, "sweep": first["sweep"]}
    fault = sweep_name_fault(value)
    if fault:
        raise GridError([document.problem(("sweep",), fault)])
    return str(value["sweep"])


def sweep_name_fault(value: Any) -> str | None:
    """Say why the name of a grid's sweep is missing or unfit; None when it is fit."""
    name = value.get("sweep") if isinstance(value, dict) else None
    rule = "must be 1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"
    if not isinstance(value, dict) or "sweep" not in value:
        return "is required and not set: the sweep's folder in results. Add it."
    if not isinstance(name, str) or not re.fullmatch(SWEEP_NAME, name):
        return f"{rule}, as it names a folder; got {name!r}."
    if name in RESERVED_SWEEPS:
        return f"'{name}' is kept for other use under results. Rename the sweep."
    return None


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise GridError([f"{path}: is a folder. Name the grid file in it."])
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise GridError(
            [f"{path}: no such file. Check the path; shipped grids are in recipes/grids."]
        ) from error
    except OSError as error:
        raise GridError(
            [f"{path}: cannot be read ({error.strerror}). Check the path and its permissions."]
        ) from error
    if len(raw) > MAX_BYTES:
        raise GridError(
            [f"{path}: is larger than {MAX_BYTES} bytes. A grid is a few kilobytes of text."]
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        problem = f"not UTF-8 text (byte {error.start}). Save the grid as UTF-8."
        raise GridError([f"{path}:{line}: (top level): {problem}"]) from error
    return text


class _Builder:
    """Builds values from parser events; keeps the mistakes that do not stop it."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[str] = []
        self.anchors: dict[str, tuple[Any, Loc, int]] = {}
        self.open_anchors: set[str] = set()
        self.n_values = 0
        self.loc: Loc = ()

    def build(self) -> None:
        self._refuse_binary()
        # ruamel warns where a document claims another version; scalars are resolved here anyway.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._document(YAML(typ="safe", pure=True).parse(self.document.text))
            except MarkedYAMLError as error:
                self._syntax(error)
            except (YAMLError, ValueError) as error:
                self._stop(1, f"not YAML ({' '.join(str(error).split())}).")
        if self.problems:
            raise GridError(self.problems)

    def _refuse_binary(self) -> None:
        text = self.document.text
        control = _BINARY.search(text)
        if control:
            line = text.count("\n", 0, control.start()) + 1
            self._stop(line, "a binary file or a control character. A grid is plain text.")

    def _document(self, events: Iterator[Any]) -> None:
        next(events)
        if isinstance(next(events), StreamEndEvent):
            self._stop(1, "the file is empty. A grid needs at least the keys sweep and base.")
        self.document.value = self._value(next(events), events)
        next(events)
        after = next(events)
        if isinstance(after, DocumentStartEvent):
            self.loc = ()
            self._stop(
                after.start_mark.line + 1, "a second document starts here. Keep one grid a file."
            )

    def _value(self, event: Any, events: Iterator[Any]) -> Any:
        self.n_values += 1
        line = event.start_mark.line + 1
        if self.n_values > MAX_VALUES:
            self._stop(line, f"more than {MAX_VALUES} values. Shorten the grid.")
        if len(self.loc) > MAX_DEPTH:
            self._stop(line, f"nested deeper than {MAX_DEPTH} levels. Flatten it with dotted keys.")
        self.document.lines.setdefault(self.loc, line)
        if isinstance(event, AliasEvent):
            return self._alias(event, line)
        if event.anchor is None:
            return self._node(event, events, line)
        before, loc = self.n_values, self.loc
        self.open_anchors.add(event.anchor)
        value = self._node(event, events, line)
        self.open_anchors.discard(event.anchor)
        self.anchors[event.anchor] = (value, loc, self.n_values - before + 1)
        return value

    def _node(self, event: Any, events: Iterator[Any], line: int) -> Any:
        if isinstance(event, ScalarEvent):
            return self._scalar(event, line)
        kind = "map" if isinstance(event, MappingStartEvent) else "seq"
        if event.tag not in (None, "!", _CORE + kind):
            self._note(
                line, f"the tag {_short(event.tag)} is unknown. Remove it; grids hold plain values."
            )
        return self._mapping(events) if kind == "map" else self._sequence(events)

    def _scalar(self, event: Any, line: int) -> Any:
        tag = event.tag
        if tag is None:
            return scalar(event.value) if event.style in (None, "") else event.value
        if tag in ("!", _CORE + "str"):
            return event.value
        wanted = {"int": int, "float": float, "bool": bool, "null": type(None)}.get(
            tag.removeprefix(_CORE) if tag.startswith(_CORE) else ""
        )
        value = scalar(event.value)
        if wanted is float and type(value) is int:
            return float(value)
        if wanted is None:
            self._note(
                line, f"the tag {_short(tag)} is unknown. Remove it; grids hold plain values."
            )
        elif type(value) is not wanted:
            self._note(line, f"'{event.value}' does not fit its tag {_short(tag)}. Remove the tag.")
        return value

    def _mapping(self, events: Iterator[Any]) -> dict[str, Any]:
        parent, result = self.loc, dict[str, Any]()
        first: dict[str, int] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, events, line)
            self.loc = (*parent, key)
            if key in result:
                self._note(
                    line, f"is given twice, first on line {first[key]}. Keep one of the two."
                )
                self._value(next(events), events)
            else:
                first[key] = self.document.lines[self.loc] = line
                result[key] = self._value(next(events), events)
            self.loc = parent
        return result

    def _key(self, event: Any, events: Iterator[Any], line: int) -> str:
        value = self._value(event, events)
        if not isinstance(value, str):
            shown = f"'{event.value}'" if isinstance(event, ScalarEvent) else "a list or mapping"
            self._note(line, f"{shown} cannot be a key. Keys are text: put it in quotes.")
            return str(value)[:40]
        return value

    def _sequence(self, events: Iterator[Any]) -> list[Any]:
        parent, result = self.loc, list[Any]()
        while not isinstance(event := next(events), SequenceEndEvent):
            self.loc = (*parent, len(result))
            result.append(self._value(event, events))
        self.loc = parent
        return result

    def _alias(self, event: Any, line: int) -> Any:
        name = event.anchor
        if name in self.open_anchors:
            self._stop(line, f"the alias *{name} holds itself. Write the values out.")
        if name not in self.anchors:
            self._stop(line, f"the alias *{name} has no anchor &{name} above it.")
        value, source, size = self.anchors[name]
        self.n_values += size - 1
        if self.n_values > MAX_VALUES:
            self._stop(line, f"the aliases expand to more than {MAX_VALUES} values. Write fewer.")
        self._copy_lines(source, value)
        return value

    def _copy_lines(self, source: Loc, value: Any) -> None:
        """Give the values behind an alias the lines on which they are spelled out."""
        if not isinstance(value, dict | list):
            return
        here = self.loc
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            self.loc = (*here, part)
            self.document.lines[self.loc] = self.document.line((*source, part))
            self._copy_lines((*source, part), inner)
        self.loc = here

    def _syntax(self, error: MarkedYAMLError) -> NoReturn:
        problem = str(error.problem)
        advice = next((text for sign, text in _ADVICE if sign in problem), problem)
        opened = "stream end" in problem or "end of stream" in problem
        mark = (error.context_mark if opened else None) or error.problem_mark or error.context_mark
        self._stop(mark.line + 1 if mark else 1, f"not YAML: {advice}.")

    def _note(self, line: int, message: str) -> None:
        self.problems.append(f"{self.document.file}:{line}: {dotted(self.loc)}: {message}")

    def _stop(self, line: int, message: str) -> NoReturn:
        self._note(line, message)
        raise GridError(self.problems)


def _short(tag: str) -> str:
    return tag.replace(_CORE, "!!")
