"""Cells as numbers, and which of them are none."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.laws import Floats

_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_COMMA = re.compile(r"^[+-]?[0-9]+(,[0-9]+)+(\.[0-9]+)?$")


def numbers(cells: Sequence[Any], *, counts: bool = False) -> tuple[Floats, list[int]]:
    """Read cells as numbers.

    Parameters
    ----------
    cells
        ``[n]`` text, numbers or None.
    counts
        Whether ``194M`` is 194e6 (parameters, tokens).

    Returns
    -------
    tuple
        ``[n]`` values, NaN where a cell is empty or no number, and the positions of the texts that
        are no number.
    """
    values = np.full(len(cells), np.nan)
    texts = []
    for i, cell in enumerate(cells):
        value = number(cell, counts=counts)
        if value is None:
            texts.append(i)
        else:
            values[i] = value
    return values, texts


def number(cell: Any, *, counts: bool = False) -> float | None:
    """One cell: NaN when empty, None when it is no number."""
    if empty(cell):
        return math.nan
    if isinstance(cell, bool):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        pass
    text = str(cell).strip().lower()
    if counts and text[-1:] in _SUFFIXES:
        try:
            return float(text[:-1]) * _SUFFIXES[text[-1]]
        except ValueError:
            return None
    return None


def empty(cell: Any) -> bool:
    """Nothing is written there."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return True
    return isinstance(cell, float) and math.isnan(cell)


def hint(cell: Any) -> str:
    """What may be wrong with a text that should be a number."""
    if _COMMA.match(str(cell).strip()):
        return " (a decimal comma or a thousands mark? write 1234.5)"
    return ""
