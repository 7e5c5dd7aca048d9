"""Faults of a table of runs that no fit could survive, each as one line: row, rule, got, remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.cells import n_levels
from analysis.intake.columns import CONVENTIONS, Column, all_known, normal
from analysis.intake.numbers import empty, number
from analysis.intake.options import SHOWN, Role, TableOptions, named_rows
from analysis.intake.wide import LARGEST_LOSS
from analysis.laws import Floats

UNITS_APART = 100.0
"""C beyond this factor from 6 N D is in another unit."""
SYMBOLS: Mapping[Role, str] = {"n": "N", "d": "D", "c": "C", "time": "time"}
COUNTED: tuple[Role, ...] = ("n", "d", "c")


def missing_columns(
    given: Collection[str], names: Sequence[str], *, losses_judged: bool = False
) -> list[str]:
    """Say which of loss and N, D, C the table lacks.

    Parameters
    ----------
    given
        Roles that have a column, or were given one.
    names
        Columns of the table.
    losses_judged
        Whether something was said of the losses already.
    """
    problems = []
    shown = ", ".join(name for name in list(names)[:12] if name)
    if not {"loss", "ppl"} & set(given) and not losses_judged:
        problems.append(
            "no column of losses: name it with --loss (nats) or --ppl (perplexity), or the loss "
            f"column of each variant with --variants a,b,c. Columns: {shown}"
        )
    if not {"n", "d", "c"} & set(given):
        problems.append(
            "no column of N (parameters), D (tokens) or C (training FLOPs): name one or more with "
            f"--n, --d, --c. Columns: {shown}"
        )
    return problems


def wrong_values(rows: pd.DataFrame, chosen: Mapping[Role, Column]) -> list[str]:
    """Losses and sizes that are empty, not positive or not finite, in rows that would be used."""
    used = rows[rows["excluded"].isna() & ~rows["garbled"]]
    problems = []
    loss = chosen.get("loss") or chosen.get("ppl")
    if loss is not None:
        problems += _wrong_losses(used, loss)
    for role, symbol in SYMBOLS.items():
        column = chosen.get(role)
        if column is None:
            continue
        values = used[role]
        if role != "time":
            problems += _fault(
                used,
                values.isna(),
                f"no {symbol} (column {column.name!r} is empty); "
                "fill it in, or leave the rows out with --where",
            )
        bad = values.notna() & ~((values > 0) & np.isfinite(values))
        problems += _fault(
            used,
            bad,
            f"{symbol} (column {column.name!r}) must be positive, got {_first(values, bad)}",
        )
    return problems


def wrong_rows(
    raw: pd.DataFrame, rows: pd.DataFrame, chosen: Mapping[Role, Column], options: TableOptions
) -> list[str]:
    """Faults between rows: repeated, of mixed evaluations, checkpoints, units, one size only."""
    used = rows["excluded"].isna().to_numpy()
    return [
        *_repeated(raw[used]),
        *_mixed(raw[used], chosen.get("eval")),
        *_checkpoints(rows[used], chosen, options),
        *_units(rows[used]),
    ]


def one_size(rows: pd.DataFrame) -> list[str]:
    """Say when nothing varies that a law could be fitted to."""
    used = rows[rows["excluded"].isna()]
    if used.empty:
        reasons = rows["excluded"].value_counts()
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        return [f"no run can be used: {listed}"]
    found = {role: _logs(used, role) for role in COUNTED}
    found = {role: logs for role, logs in found.items() if len(logs)}
    if any(n_levels(logs) > 1 for logs in found.values()):
        return []
    at = ", ".join(f"{SYMBOLS[role]} = {np.exp(logs[0]):.4g}" for role, logs in found.items())
    return [
        f"all {len(used)} runs have one size ({at}): a law needs at least 3 sizes or budgets; "
        "add runs, or check the columns with --n, --d, --c"
    ]


def suspicions(rows: pd.DataFrame) -> list[str]:
    """Doubts that forbid nothing: runs that agree in every number."""
    used = rows[rows["excluded"].isna()]
    same = used.duplicated(["arm", "n", "d", "c", "loss", "seed"], keep=False)
    if not same.any():
        return []
    first = used[same].groupby(["arm", "loss"], sort=False)
    listed = [" and ".join(str(run) for run in _names(group)[:SHOWN]) for _, group in first]
    return [f"equal in every number, the same run twice? {named_rows(listed)}"]


def _names(rows: pd.DataFrame) -> list[str]:
    return [str(run) if run else str(at) for at, run in zip(rows.index, rows["run"], strict=True)]


def _wrong_losses(used: pd.DataFrame, column: Column) -> list[str]:
    loss, name = used["loss"], f"column {column.name!r}"
    below = loss.notna() & ~(loss > 0)
    above = loss > LARGEST_LOSS
    kind = "a loss" if column.role == "loss" else "a perplexity above 1"
    return [
        *_fault(
            used,
            loss.isna(),
            f"no loss ({name} is empty or NaN); fill it in, give the run a "
            "status (--status: diverged, failed), or leave it out with --where",
        ),
        *_fault(used, below, f"{kind} must be positive ({name}), got {_first(loss, below)}"),
        *_fault(
            used,
            above,
            f"a loss of {_first(loss, above)} nats ({name}) is more than any "
            f"vocabulary allows; a perplexity? --ppl {column.name!r}",
        ),
    ]


def _fault(used: pd.DataFrame, bad: pd.Series, rule: str) -> list[str]:
    rows = [str(at) for at in used.index[bad.to_numpy(dtype=bool)]]
    return [f"{named_rows(rows)}: {rule}"] if rows else []


def _first(values: pd.Series, bad: pd.Series) -> str:
    found = values[bad.to_numpy(dtype=bool)]
    return f"{found.iloc[0]:.6g}" if len(found) else ""


def _repeated(raw: pd.DataFrame) -> list[str]:
    written = raw.astype(str)
    again = written.duplicated(keep="first").to_numpy()
    if not again.any():
        return []
    at = int(np.argmax(again))
    same = (written == written.iloc[at]).all(axis=1).to_numpy()
    first = raw.index[int(np.argmax(same))]
    rows = named_rows([str(name) for name in raw.index[again]])
    return [
        f"{rows}: repeats an earlier row ({raw.index[at]} is {first} again); a run counts once: "
        "remove it, or add the column that tells them apart (seed)"
    ]


def _mixed(raw: pd.DataFrame, named: Column | None) -> list[str]:
    """Columns that name an evaluation or a way of counting, and hold more than one."""
    problems = []
    evals = [name for name in all_known("eval", list(raw.columns)) if _is_text(raw[name])]
    if named is not None and named.by_option and named.name not in evals:
        evals.append(named.name)
    counts = [name for name in raw.columns if normal(name) in CONVENTIONS]
    for names, what in ((evals, "evaluation sets"), (counts, "ways of counting")):
        for name in names:
            held = raw[name].map(lambda cell: "" if empty(cell) else str(cell)).value_counts()
            if len(held) < 2:
                continue
            shown = ", ".join(f"{value or 'empty'} ({n})" for value, n in list(held.items())[:5])
            problems.append(
                f"losses of different {what} are not comparable: column {name!r} holds {shown}; "
                f"choose one with --where '{name}={held.index[0]}'"
            )
    return problems


def _is_text(cells: pd.Series) -> bool:
    return any(number(cell) is None for cell in cells)


def _checkpoints(
    used: pd.DataFrame, chosen: Mapping[Role, Column], options: TableOptions
) -> list[str]:
    """Rows of one run name, variant and N that differ in D or C."""
    column = chosen.get("cluster")
    if column is None or column.by_option:
        return []
    keys = used[["run", "arm", "n"]].fillna("-").astype(str).agg("|".join, axis=1)
    progress = used["d"].where(used["d"].notna(), used["c"])
    differing = progress.groupby(keys.to_numpy()).transform("nunique") > 1
    if not differing.any():
        return []
    at = used.index[differing.to_numpy()]
    name = used["run"][differing.to_numpy()].iloc[0]
    return [
        f"{named_rows([str(row) for row in at])}: several checkpoints of one run ({column.name} "
        f"{name!r}) are not independent: --cluster {column.name!r} counts each run as one cluster, "
        "--last-checkpoint keeps its last row; --cluster none if each row is a run of its own"
    ]


def _units(used: pd.DataFrame) -> list[str]:
    ratio = used["c"] / (6 * used["n"] * used["d"])
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(np.log(ratio.to_numpy(dtype=np.float64))) > np.log(UNITS_APART)
    if not apart.any():
        return []
    first = used.iloc[int(np.argmax(apart))]
    rows = named_rows([str(row) for row in used.index[apart]])
    return [
        f"{rows}: C = {first['c']:.4g} but 6 N D = {6 * first['n'] * first['d']:.4g} (N "
        f"{first['n']:.4g}, D {first['d']:.4g}): more than {UNITS_APART:.0f}x apart; different "
        "units? give factors, as in --c 'COLUMN*1e15' or --d 'COLUMN*1e9'"
    ]


def _logs(used: pd.DataFrame, role: str) -> Floats:
    values: Floats = used[role].to_numpy(dtype=np.float64)
    logs: Floats = np.log(values[np.isfinite(values) & (values > 0)])
    return logs
