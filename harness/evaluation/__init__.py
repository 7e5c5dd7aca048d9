"""Evaluations of trained language models: one file here per evaluation.

A module ``harness/evaluation/NAME.py`` that defines ``EVALUATION`` adds the evaluation NAME; no
other file changes. It is asked for as ``NAME`` or ``NAME:ARGUMENT``. Importing this package imports
no torch.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path

from harness.errors import IsolossError
from harness.evaluation.base import Entry, Evaluation, Metrics, Settings

__all__ = ["Entry", "Evaluation", "Metrics", "Settings", "available", "entries_of", "get"]


def available() -> list[str]:
    """Names of the evaluations, sorted; found by what files define, nothing is imported."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(f.stem for f in files if "\nEVALUATION = " in f.read_text(encoding="utf-8"))


def get(name: str) -> Evaluation:
    """Return the evaluation of this name.

    Raises
    ------
    IsolossError
        There is none; the message lists those there are.
    """
    known = available()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        lines = (f"  {each}: {_load(each).summary}" for each in known)
        raise IsolossError("\n".join([f"unknown evaluation '{name}'{hint} There are:", *lines]))
    return _load(name)


def _load(name: str) -> Evaluation:
    found = importlib.import_module(f"{__name__}.{name}").EVALUATION
    assert isinstance(found, Evaluation)
    return found


def entries_of(asked: Sequence[str], settings: Settings) -> list[Entry]:
    """Everything to measure, each once.

    Parameters
    ----------
    asked
        ``NAME`` or ``NAME:ARGUMENT``.

    Raises
    ------
    IsolossError
        A name or an argument is malformed, or two different measurements have one name.
    MissingExtraError
        A package that one of them needs is not installed.
    """
    found: dict[str, Entry] = {}
    for text in asked:
        name, colon, argument = text.partition(":")
        for entry in get(name).entries(argument if colon else None, settings):
            known = found.setdefault(entry.name, entry)
            if known.identity != entry.identity:
                raise IsolossError(
                    f"two different evaluations are called '{entry.name}', and a result has one "
                    "file: ask for them one after the other, or rename a folder"
                )
    return list(found.values())
