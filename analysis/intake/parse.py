"""From cells to runs: numbers with their units, statuses, names; faults by row and column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.intake.columns import Column, normal
from analysis.intake.numbers import empty, hint, numbers
from analysis.intake.options import Role, named_rows

NUMBER_ROLES: tuple[Role, ...] = ("n", "d", "c", "time")
EVERYTHING = "all"
"""The arm of a table without variants."""
_DONE = frozenset({"", "done", "finished", "finish", "completed", "complete", "success", "ok"})
_UNFINISHED = frozenset(
    {"running", "queued", "pending", "planned", "scheduled", "preempting", "preempted"}
)
_DIVERGED = frozenset({"diverged", "divergence", "diverge"})
_FAILED = frozenset(
    {"crashed", "failed", "killed", "error", "oom", "cancelled", "canceled", "aborted", "failure"}
)
PASSED_ON = ("size_key", "pair_key", "excluded_because", "flops_without_residual")
"""Columns of this project's own tables that are taken as they are."""


def parse(raw: pd.DataFrame, chosen: Mapping[Role, Column]) -> tuple[pd.DataFrame, list[str]]:
    """Give every row its typed values.

    Parameters
    ----------
    raw
        One row per run, as written.
    chosen
        Columns by role.

    Returns
    -------
    tuple
        A frame with the index of ``raw`` and the columns n, d, c, time, loss (float64, NaN when not
        given), arm, seed, size, run, cluster (text or None), excluded (why, or None), garbled
        (whether a text stands for a number) and those of :data:`PASSED_ON` that exist; and one
        line per column that holds texts for numbers.
    """
    rows = pd.DataFrame(index=raw.index)
    problems: list[str] = []
    rows["excluded"] = _objects(_excluded(raw, chosen.get("status"), problems), raw)
    rows["garbled"] = False
    for role in NUMBER_ROLES:
        rows[role] = _numbers(raw, chosen.get(role), rows, problems)
    rows["loss"] = _losses(raw, chosen, rows, problems)
    rows["arm"] = _texts(raw, chosen.get("variant"), EVERYTHING)
    rows["seed"] = _texts(raw, chosen.get("seed"), None)
    rows["size"] = _texts(raw, chosen.get("size"), None)
    rows["run"] = _texts(raw, chosen.get("cluster"), None)
    clusters = "cluster" in chosen and chosen["cluster"].by_option
    rows["cluster"] = rows["run"] if clusters else None
    for name in PASSED_ON:
        if name in raw.columns and name != "excluded_because":
            rows[name] = raw[name]
    return rows, problems


def _numbers(
    raw: pd.DataFrame, column: Column | None, rows: pd.DataFrame, problems: list[str]
) -> Any:
    if column is None:
        return np.nan
    values, texts = numbers(list(raw[column.name]), counts=column.role in ("n", "d"))
    wrong = [i for i in texts if rows["excluded"].iloc[i] is None]
    _report(raw, column, wrong, rows, problems)
    return values * column.factor


def _losses(
    raw: pd.DataFrame, chosen: Mapping[Role, Column], rows: pd.DataFrame, problems: list[str]
) -> Any:
    """Losses in nats; a status written in place of a loss excludes its row."""
    column = chosen.get("loss") or chosen.get("ppl")
    if column is None:
        return np.nan
    cells = list(raw[column.name])
    values, texts = numbers(cells)
    wrong = []
    for i in texts:
        reason = _reason(str(cells[i]))
        if reason:
            rows.iloc[i, rows.columns.get_loc("excluded")] = rows["excluded"].iloc[i] or reason
        elif rows["excluded"].iloc[i] is None:
            wrong.append(i)
    _report(raw, column, wrong, rows, problems)
    if column.role == "loss":
        return values * column.factor
    with np.errstate(invalid="ignore", divide="ignore"):
        # A perplexity below 1 is no perplexity: it stays visible as a loss that is not positive.
        return np.where(values > 0, np.log(values), values)


def _report(
    raw: pd.DataFrame,
    column: Column,
    at: Sequence[int],
    rows: pd.DataFrame,
    problems: list[str],
) -> None:
    if not at:
        return
    rows.iloc[list(at), rows.columns.get_loc("garbled")] = True
    cell = raw[column.name].iloc[at[0]]
    where = named_rows([str(raw.index[i]) for i in at])
    problems.append(
        f"{where}: column {column.name!r} must hold a number, got {str(cell)[:40]!r}{hint(cell)}"
    )


def _texts(raw: pd.DataFrame, column: Column | None, default: str | None) -> Any:
    if column is None:
        return _objects([default] * len(raw), raw)
    return _objects([default if empty(c) else _tidy(c) for c in raw[column.name]], raw)


def _objects(cells: Sequence[str | None], raw: pd.DataFrame) -> Any:
    """A column whose None stay None, whatever stands beside them."""
    return pd.Series(cells, index=raw.index, dtype=object)


def _tidy(cell: Any) -> str:
    """Text of a label; a whole number without its ``.0``."""
    if isinstance(cell, float) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell).strip()


def _excluded(raw: pd.DataFrame, status: Column | None, problems: list[str]) -> list[str | None]:
    reasons: list[str | None] = [None] * len(raw)
    if status is not None:
        words = [normal(str(cell)) if not empty(cell) else "" for cell in raw[status.name]]
        reasons = [_reason(word) for word in words]
        strange = [i for i, word in enumerate(words) if word not in _DONE and reasons[i] is None]
        if strange:
            problems.append(
                f"{named_rows([str(raw.index[i]) for i in strange])}: column {status.name!r} "
                f"holds {words[strange[0]]!r}, which is no known status (finished, running, "
                "crashed, failed, killed, diverged); rename it, or choose rows with --where"
            )
    if "excluded_because" in raw.columns:
        given = raw["excluded_because"]
        reasons = [
            reason if empty(cell) else str(cell)
            for reason, cell in zip(reasons, given, strict=True)
        ]
    return reasons


def _reason(word: str) -> str | None:
    """Why a run of this status enters no fit; None for a finished one and for other words."""
    known = normal(word)
    if known in _DIVERGED:
        return "diverged"
    if known in _UNFINISHED:
        return "not finished"
    return known if known in _FAILED else None
