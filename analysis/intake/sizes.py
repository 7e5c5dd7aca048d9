"""Which runs stand at one size: what pairs a variant with its baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.cells import SAME_LEVEL
from analysis.collect import compact
from analysis.laws import Floats

WIDEST_LEVEL = 1.2
"""Values that chain into a wider group than this are no ladder: each stands for itself."""


def with_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Add size (a label), size_key, pair_key and seed (an integer) to parsed rows.

    A size is what its column says; without one, runs whose N and D (or whatever of N, D, C is
    given) agree within 5% stand at one size, because a variant's own parameters change N a
    little. Runs of one arm and size are numbered as seeds where no seed is given.
    """
    named = rows.copy()
    if "size_key" not in named or named["size_key"].isna().any():
        named["size_key"] = _size_keys(rows, exact=True)
    short = _size_keys(rows, exact=False)
    named["size"] = [
        label if isinstance(label, str) else mark
        for label, mark in zip(rows["size"], short, strict=True)
    ]
    if "pair_key" not in named or named["pair_key"].isna().any():
        named["pair_key"] = named["size_key"]
    named["seed"] = _seeds(named)
    return named


def _size_keys(rows: pd.DataFrame, *, exact: bool) -> list[str]:
    several_arms = rows["arm"].nunique() > 1
    # C follows from N and D, and holds the variant's own FLOPs: it separates only without them.
    given = [name for name in ("n", "d") if rows[name].notna().any()]
    if len(given) < 2 and rows["c"].notna().any():
        given.append("c")
    levels = {name: _levels(rows[name].to_numpy(dtype=np.float64), several_arms) for name in given}
    labels = [label if isinstance(label, str) else "" for label in rows["size"]]
    if not any(labels):
        return _marks(levels, len(rows), exact)
    # One label may stand for several budgets; its N is its own affair.
    marks = _marks({name: at for name, at in levels.items() if name != "n"}, len(rows), exact)
    if len(set(zip(labels, marks, strict=True))) == len(set(labels)):
        return labels
    return [f"{label} {mark}".strip() for label, mark in zip(labels, marks, strict=True)]


def _marks(levels: dict[str, list[float]], n_rows: int, exact: bool) -> list[str]:
    """``N=1.94e8 D=3.87e10`` for each row."""
    return [
        " ".join(
            f"{name.upper()}={at[row] if exact else _short(at[row])}" for name, at in levels.items()
        )
        for row in range(n_rows)
    ]


def _levels(values: Floats, grouped: bool) -> list[float]:
    """Each value's level: the smallest value of its group, or the value itself."""
    if not grouped:
        return [float(value) for value in values]
    order = np.argsort(values)
    levels = values.copy()
    start = 0
    for i in range(1, len(order) + 1):
        ends = i == len(order) or not values[order[i]] <= values[order[i - 1]] * SAME_LEVEL
        if not ends:
            continue
        group = order[start:i]
        if values[group[-1]] <= values[group[0]] * WIDEST_LEVEL:
            levels[group] = values[group[0]]
        start = i
    return [float(level) for level in levels]


def _seeds(rows: pd.DataFrame) -> list[int]:
    counted = rows.groupby(["arm", "size_key"]).cumcount()
    if rows["seed"].isna().all():
        return [int(number) for number in counted]
    try:
        return [int(seed) for seed in rows["seed"].fillna("0")]
    except ValueError:
        codes, _ = pd.factorize(rows["seed"].fillna(""))
        return [int(code) for code in codes]


def _short(value: float) -> str:
    return "?" if np.isnan(value) else compact(value)
