"""The ``profiles:`` of a grid: named diffs of the whole file, laid over it before it is read.

A profile is the same study at another scale, such as ``tiny`` for two CPU cores and ``cluster`` for
GPUs. Mappings merge, lists and scalars replace, null takes a key away. What is one value is
replaced whole: a budget, a recipe, a field written with dots. The first profile is the default;
any other runs as a sweep of its own, ``<sweep>-<name>``. A file with a ``slurm`` block, kept beside
grids, is chosen by the same option (:func:`harness.slurm.block.lay_over_profile`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.errors import GridError
from harness.problems import Problems, show, unknown_key
from harness.yaml12 import SWEEP_NAME, Document, Loc, dotted

KEY = "profiles"
_ONE_VALUE = ("budget", "residual", "baseline")
"""Mappings that are one value: of two budgets or recipes nothing can be merged."""


def choose(
    document: Document, given: Sequence[str], file: Path | None
) -> tuple[str | None, Path | None]:
    """Split what ``--profile`` was given into a profile of the grid and a file.

    Parameters
    ----------
    document
        The grid.
    given
        Names among its profiles, or files; at most one of each.
    file
        The file to use where none is given.

    Raises
    ------
    GridError
        A name that the grid does not have and that is no file, or two of a kind.
    """
    profiles = document.value.get(KEY)
    names = [str(name) for name in profiles] if isinstance(profiles, dict) else []
    own = [name for name in given if name in names]
    files = [name for name in given if name not in names]
    for name in files:
        if not Path(name).exists() and "/" not in name and not Path(name).suffix:
            raise GridError([_unknown(document, name, names)])
    for kind, found in (("profile of the grid", own), ("file", files)):
        if len(found) > 1:
            listed = " and ".join(found)
            raise GridError([f"--profile: takes one {kind}, got {listed}. Leave one out."])
    return own[0] if own else None, Path(files[0]) if files else file


def _unknown(document: Document, name: str, names: list[str]) -> str:
    place = f"--profile {name}"
    if not names:
        return f"{place}: no such file, and {document.file} has no profiles. Check the name."
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "Name one of them, or a file."
    return f"{place}: {document.file} has the profiles {', '.join(names)}; {hint}"


def lay_profile(problems: Problems, chosen: str | None, known: Collection[str] = ()) -> str | None:
    """Lay a profile over the document, and take the key ``profiles`` out of it.

    What a profile contributed keeps its own line.

    Parameters
    ----------
    problems
        Gets every mistake of the block; holds the document.
    chosen
        Name of the profile; None: the first.
    known
        Keys of a grid, to check every profile by; none: they were checked before.

    Returns
    -------
    str
        Name of the profile that was laid over; None where the grid has none.
    """
    document = problems.document
    profiles = document.value.pop(KEY, None)
    if not _sound(problems, profiles, known):
        return None
    first = next(iter(profiles))
    name = first if chosen is None else chosen
    profile = profiles[name]
    sweep = document.value.get("sweep")
    _merge(problems, (), profile, (KEY, name))
    if name != first and "sweep" not in profile and isinstance(sweep, str):
        document.value["sweep"] = f"{sweep}-{name}"
    return str(name)


def _sound(problems: Problems, profiles: Any, known: Collection[str]) -> bool:
    if profiles is None:
        if (KEY,) in problems.document.lines:
            problems.add((KEY,), "is empty. Write {NAME: {KEY: VALUE}}, or remove it.")
        return False
    if not isinstance(profiles, dict) or not profiles:
        rule = "must be a mapping of names to parts of a grid, such as {tiny: {…}, cluster: {…}}"
        problems.add((KEY,), f"{rule}, got {show(profiles)}.")
        return False
    before = bool(problems)
    for name, profile in profiles.items():
        loc = (KEY, name)
        if not re.fullmatch(SWEEP_NAME, name):
            rule = "a profile's name is letters, digits, '.', '_' or '-', as it names a folder"
            problems.add(loc, f"{rule}. Rename it.")
        if not isinstance(profile, dict):
            problems.add(loc, f"must be a mapping of a grid's keys, got {show(profile)}.")
            continue
        for key in profile:
            if key == KEY:
                problems.add((*loc, key), "profiles do not nest. Write them side by side.")
            elif known and key not in known:
                problems.add((*loc, key), unknown_key(key, [k for k in known if k != KEY]))
    return bool(problems) == before


def _merge(problems: Problems, loc: Loc, above: dict[str, Any], source: Loc) -> None:
    """Lay a mapping, found at ``source``, over the one at ``loc``."""
    document = problems.document
    target = _at(document.value, loc)
    for key, value in above.items():
        here, there = (*loc, key), (*source, key)
        if value is None and target.get(key) is None:
            problems.add(
                there, f"{dotted(here)} is not set, so null takes nothing away. Remove it."
            )
        elif value is None:
            del target[key]
        elif _merges(key, value) and _merges(key, target.get(key)):
            target[key] = dict(target[key])  # an alias may hold the same mapping elsewhere
            _merge(problems, here, value, there)
        else:
            for place in _places(target.get(key), here):
                document.lines.pop(place, None)
            target[key] = value
            for place in _places(value, there):
                document.lines[here + place[len(there) :]] = document.line(place)


def _merges(key: str, value: Any) -> bool:
    return isinstance(value, dict) and key not in _ONE_VALUE and "." not in key


def _at(value: Any, loc: Loc) -> Any:
    for part in loc:
        value = value[part]
    return value


def _places(value: Any, loc: Loc) -> Iterator[Loc]:
    """The location of a value and of everything in it."""
    yield loc
    if isinstance(value, dict | list):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*loc, part))
