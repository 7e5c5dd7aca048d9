"""Tables of this project: `runs.parquet` of a sweep, and what `isoloss export` writes."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.collect import COLUMNS
from analysis.intake.numbers import empty, numbers
from analysis.intake.options import BadTable, named_rows

KNOWN_BY = frozenset(
    {"run_id", "arm", "size_key", "pair_key", "loss_nats", "excluded_because", "in_grid"}
)
"""Columns that no other table has together."""


def is_own(raw: pd.DataFrame) -> bool:
    """Whether the table is one of ours."""
    return set(raw.columns) >= KNOWN_BY


def typed(raw: pd.DataFrame, source: str) -> pd.DataFrame:
    """Give every cell the type of its column in :data:`analysis.collect.COLUMNS`.

    Raises
    ------
    BadTable
        A text stands for a number.
    """
    runs, problems = pd.DataFrame(index=range(len(raw))), []
    for name, kind in COLUMNS.items():
        if name not in raw.columns:
            runs[name] = pd.Series([None] * len(raw), dtype=object).astype(kind)
        elif kind in ("float64", "Int64"):
            values, texts = numbers([_number_cell(cell) for cell in raw[name]])
            if texts:
                where = named_rows([str(raw.index[i]) for i in texts])
                cell = str(raw[name].iloc[texts[0]])[:40]
                problems.append(f"{where}: column {name!r} must hold a number, got {cell!r}")
            runs[name] = pd.Series(values).astype(kind)
        elif kind == "bool":
            runs[name] = [str(cell) == "True" for cell in raw[name]]
        else:
            cells = [None if _nothing(cell) else cell for cell in raw[name]]
            runs[name] = pd.Series(cells, dtype=object)
    if problems:
        raise BadTable(source, problems)
    return runs


def mixed_losses(runs: pd.DataFrame) -> list[str]:
    """Say which of corpus, vocabulary and validation set the usable runs do not share."""
    used = runs[runs["excluded_because"].isna()]
    problems = []
    for name in ("corpus_sha256", "vocab_size", "eval_tokens"):
        held = used[name].dropna().astype(str).value_counts()
        if len(held) > 1:
            shown = ", ".join(f"{value[:12]} ({n})" for value, n in held.items())
            problems.append(
                f"losses of different evaluations are not comparable: column {name!r} holds "
                f"{shown}; choose one with --where '{name}={held.index[0]}'"
            )
    return problems


def _number_cell(cell: Any) -> Any:
    return None if _nothing(cell) else cell


def _nothing(cell: Any) -> bool:
    return cell is pd.NA or empty(cell)
