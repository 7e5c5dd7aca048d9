"""Which rows of a table are read: conditions on columns, and the last checkpoint of each run."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.intake.numbers import number
from analysis.intake.options import BadTable

_CONDITION = re.compile(r"^\s*(?P<column>.+?)\s*(?P<sign>!=|<=|>=|=|<|>)\s*(?P<value>.*?)\s*$")
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def keep_where(raw: pd.DataFrame, conditions: Sequence[str], source: str) -> pd.DataFrame:
    """Keep the rows that meet every condition.

    Parameters
    ----------
    conditions
        ``column=value``, ``column!=value``, or ``<``, ``<=``, ``>``, ``>=`` with a number. Equal
        are equal texts and equal numbers.

    Raises
    ------
    BadTable
        No such column, no condition at all, or no row is left.
    """
    problems = []
    kept = np.ones(len(raw), dtype=bool)
    for condition in conditions:
        found = _CONDITION.match(condition)
        if found is None:
            problems.append(f"--where {condition!r}: write column=value")
        elif found["column"] not in raw.columns:
            problems.append(_no_column(condition, found["column"], list(raw.columns)))
        else:
            meets = _meets(found["sign"], found["value"])
            kept &= np.array([meets(cell) for cell in raw[found["column"]]], dtype=bool)
    if problems:
        raise BadTable(source, problems)
    if not kept.any():
        raise BadTable(
            source, [f"no row is left by {_listed(conditions)}{_values(raw, conditions)}"]
        )
    return raw[kept]


def last_checkpoints(run: pd.Series, progress: pd.Series) -> NDArray[np.intp]:
    """Positions of the row of most progress (tokens or compute) of every run, in their order."""
    by_position = progress.reset_index(drop=True)
    last = by_position.groupby(run.reset_index(drop=True)).idxmax().dropna()
    return np.sort(last.to_numpy().astype(np.intp))


def _meets(sign: str, value: str) -> Callable[[object], bool]:
    wanted = number(value)
    if sign in _ORDER:
        compare = _ORDER[sign]
        return lambda cell: (
            (got := number(cell)) is not None and wanted is not None and compare(got, wanted)
        )

    def equal(cell: object) -> bool:
        if str(cell).strip() == value or (cell is None and not value):
            return True
        got = number(cell)
        return got is not None and wanted is not None and got == wanted

    return equal if sign == "=" else lambda cell: not equal(cell)


def _no_column(condition: str, column: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(column, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; columns: {', '.join(names[:12])}"
    return f"--where {condition!r}: no column {column!r}{hint}"


def _listed(conditions: Sequence[str]) -> str:
    return " ".join(f"--where {condition!r}" for condition in conditions)


def _values(raw: pd.DataFrame, conditions: Sequence[str]) -> str:
    """What the first column asked about holds."""
    found = _CONDITION.match(conditions[0])
    if found is None:
        return ""
    held = list(dict.fromkeys(str(cell) for cell in raw[found["column"]]))[:8]
    return f"; {found['column']} holds {', '.join(held)}"
