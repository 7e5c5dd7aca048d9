"""Questions about held-out Python code whose right answer stands in the file.

Two kinds, both built from Python's own tokens, so that strings and comments do not count:

* identifier reuse: which of four identifiers, all of which stand in the text before, comes next;
* bracket closing: which of ``)`` ``]`` ``}`` closes the bracket that was opened in the text before.

A pure function of the documents and their order. Knows neither torch nor tokenizers of models.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

CONTEXT_BYTES = 224
"""Most text before a question: with the answer it fits into a context of 256 bytes."""
N_CANDIDATES = 4
"""Identifiers to choose from."""
MAX_DOCUMENT_BYTES = 65_536
"""Longer files are mostly tables and generated code."""
PER_DOCUMENT = 2
"""Identifier questions of one file; at most one for each kind of bracket."""
CLOSING = {"(": ")", "[": "]", "{": "}"}
_CONVENTIONAL = ("self", "cls")
"""Names that the grammar of a method nearly fixes."""


@dataclass(frozen=True)
class Item:
    """One question."""

    context: bytes
    """Text before it, from the beginning of a line where one fits."""
    candidates: tuple[bytes, ...]
    answer: int
    """Index of the right candidate."""
    guess: int | None = None
    """Index of the candidate that a count would give: the one most often in the context, of
    several the latest. None for brackets."""


@dataclass(frozen=True)
class _Word:
    """An identifier, or a closing bracket with the place of its opening one."""

    text: str
    first: int
    """Index of its first character."""
    group: str
    """Identifiers: ``.`` after a dot, else empty. Brackets: empty."""
    opened: int = 0


def identifier_items(documents: Iterable[bytes], n: int) -> list[Item]:
    """Questions for identifiers that stand in the text before, ``n`` or fewer.

    All candidates are of one group, attributes (after a dot) or other names, so that the dot does
    not give the answer away. Keywords, ``self``, ``cls`` and names of one character are left out.
    """
    items: list[Item] = []
    for text in _readable(documents):
        if len(items) >= n:
            break
        names, _ = _words(text)
        asked = _chosen(text, _answerable(text, names), PER_DOCUMENT)
        items += [_identifier_item(text, names, at) for at in asked]
    return items[:n]


def bracket_items(documents: Iterable[bytes], n: int) -> list[Item]:
    """Questions for closing brackets: equally many of each kind, ``n // 3`` or fewer of each,
    but one of each where ``n`` is smaller.

    The opening bracket stands in the context, something stands between the two, and no blank
    stands before the answer.
    """
    most = max(1, n // 3)
    by_kind: dict[str, list[Item]] = {closing: [] for closing in CLOSING.values()}
    for text in _readable(documents):
        if all(len(items) >= most for items in by_kind.values()):
            break
        _, closings = _words(text)
        for kind, items in by_kind.items():
            places = [w.first for w in closings if w.text == kind and _is_open_question(text, w)]
            items += [_bracket_item(text, at) for at in _chosen(text, places, 1)]
    each = min(most, *map(len, by_kind.values()))
    return [item for items in by_kind.values() for item in items[:each]]


def _readable(documents: Iterable[bytes]) -> Iterator[str]:
    """Short documents of plain ASCII, in which a character is a byte in every tokenizer."""
    for document in documents:
        if len(document) <= MAX_DOCUMENT_BYTES and document.isascii():
            yield document.decode("ascii")


def _words(text: str) -> tuple[list[_Word], list[_Word]]:
    """Identifiers and closing brackets of a document; none where Python cannot read it."""
    names: list[_Word] = []
    closings: list[_Word] = []
    try:
        for word in _tokens(text):
            (closings if word.text in CLOSING.values() else names).append(word)
    except (tokenize.TokenError, SyntaxError, IndexError):
        return [], []
    return names, closings


def _tokens(text: str) -> Iterator[_Word]:
    starts = _line_starts(text)
    stack: list[int] = []
    before, in_fstring = "", 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first = starts[token.start[0] - 1] + token.start[1]
        name = tokenize.tok_name[token.type]
        in_fstring += (name == "FSTRING_START") - (name == "FSTRING_END")
        if in_fstring:  # Python 3.12 looks into them, 3.11 does not
            continue
        if token.type == tokenize.OP and token.string in CLOSING:
            stack.append(first)
        elif token.type == tokenize.OP and token.string in CLOSING.values():
            yield _Word(token.string, first, "", stack.pop())
        elif token.type == tokenize.NAME and _is_choice(token.string):
            yield _Word(token.string, first, "." if before == "." else "")
        before = token.string


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _is_choice(name: str) -> bool:
    reserved = keyword.iskeyword(name) or keyword.issoftkeyword(name)
    return len(name) > 1 and not reserved and name not in _CONVENTIONAL


def _context_start(text: str, at: int) -> int:
    """Beginning of the context of a question: of the first whole line, where there is one."""
    earliest = max(0, at - CONTEXT_BYTES)
    if not earliest:
        return 0
    line = text.find("\n", earliest - 1, at) + 1
    return line if 0 < line < at else earliest


def _before(text: str, names: Sequence[_Word], at: int) -> list[_Word]:
    """Identifiers of a question's context, of its own group, in their order."""
    asked, start = names[at], _context_start(text, names[at].first)
    found = []
    for word in reversed(names[:at]):
        if word.first < start:
            break
        if word.group == asked.group:
            found.append(word)
    return found[::-1]


def _answerable(text: str, names: Sequence[_Word]) -> list[int]:
    """Indices of identifiers whose context holds them and enough others."""
    found = []
    for at, word in enumerate(names):
        distinct = {other.text for other in _before(text, names, at)}
        if word.text in distinct and len(distinct) >= N_CANDIDATES:
            found.append(at)
    return found


def _identifier_item(text: str, names: Sequence[_Word], at: int) -> Item:
    right = names[at]
    before = [word.text for word in _before(text, names, at)]
    others = [t for t in _by_hash(text, right.first, sorted(set(before))) if t != right.text]
    candidates = _by_hash(text, -right.first, [right.text, *others[: N_CANDIDATES - 1]])
    counts = Counter(before)
    latest = {word: place for place, word in enumerate(before)}
    guess = max(candidates, key=lambda word: (counts[word], latest[word]))
    return Item(
        context=_context(text, right.first),
        candidates=tuple(word.encode() for word in candidates),
        answer=candidates.index(right.text),
        guess=candidates.index(guess),
    )


def _is_open_question(text: str, closing: _Word) -> bool:
    inside = text[closing.opened + 1 : closing.first]
    near = closing.opened >= _context_start(text, closing.first)
    return near and bool(inside) and not inside[-1].isspace()


def _bracket_item(text: str, at: int) -> Item:
    kinds = tuple(CLOSING.values())
    return Item(
        context=_context(text, at),
        candidates=tuple(kind.encode() for kind in kinds),
        answer=kinds.index(text[at]),
    )


def _context(text: str, at: int) -> bytes:
    return text[_context_start(text, at) : at].encode()


def _chosen(text: str, places: Sequence[int], n: int) -> list[int]:
    """``n`` of the places in random order, always the same for a document."""
    return sorted(places, key=lambda place: _hash(text, place, "place"))[:n]


def _by_hash(text: str, place: int, words: Sequence[str]) -> list[str]:
    return sorted(words, key=lambda word: _hash(text, place, word))


def _hash(text: str, place: int, word: str) -> bytes:
    return hashlib.sha256(f"{len(text)} {place} {word}".encode()).digest()
