"""Anybody's table of runs, checked and given this project's column names.

``read_table`` is the way in; every fault of a table is found in one pass and raised as
:class:`analysis.intake.options.BadTable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.collect import COLUMNS
from analysis.intake import mlflow, wandb
from analysis.intake.checks import missing_columns, one_size, suspicions, wrong_rows, wrong_values
from analysis.intake.columns import Column, choose, normal
from analysis.intake.options import BadTable, Role, TableOptions
from analysis.intake.own import is_own, mixed_losses, typed
from analysis.intake.parse import parse
from analysis.intake.read import read_raw
from analysis.intake.select import keep_where, last_checkpoints
from analysis.intake.sizes import with_sizes
from analysis.intake.wide import LOSS, VARIANT, loss_columns, melt
from harness.cost import FLOP_CONVENTION

BASELINES = ("baseline", "standard", "prenorm", "pre_norm", "prenorm_baseline")
"""Names that a baseline goes by."""
SIX_ND = "C = 6 N D"
AS_GIVEN = "as given in the table"
_FRACTIONAL = ("n_params", "tokens")
"""Whole numbers in our own tables; elsewhere read off figures or derived."""


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """Runs of one table, ready to be fitted."""

    source: str
    runs: pd.DataFrame
    """Columns of :data:`analysis.collect.COLUMNS` (n_params and tokens as float64), and
    ``cluster``: what rows are not independent of each other, None where each is."""
    baseline: str | None
    """None where there is one arm."""
    flop_convention: str
    wide: bool
    """Whether each variant had a column of losses."""
    columns: Mapping[str, str]
    """What stands for what, for reading: ``{"N": "active_params"}``."""
    notes: tuple[str, ...] = ()
    """What was derived or left out on the way."""
    own: bool = False
    """Whether it is a table of this project."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms with a usable run, the baseline first."""
        used = self.runs[self.runs["excluded_because"].isna()]
        found = [str(arm) for arm in dict.fromkeys(used["arm"])]
        return tuple(sorted(found, key=lambda arm: arm != self.baseline))


def read_table(source: str, options: TableOptions) -> StudyTable:
    """Read a table of runs from a file or an MLflow store.

    Parameters
    ----------
    source
        Path of a csv, tsv, json lines or parquet file, or ``mlflow:URI#experiment``.
    options
        What was said about it.

    Raises
    ------
    BadTable
        Every fault that was found.
    MissingExtraError
        An MLflow store without MLflow.
    """
    raw = _load(source, options)
    n_read = len(raw)
    notes: list[str] = []
    if options.where:
        raw = keep_where(raw, options.where, source)
        notes.append(f"{n_read - len(raw)} of {n_read} rows left out by --where")
    if is_own(raw) and not options.columns:
        return _own_table(raw, source, options, notes)
    return _foreign_table(raw, source, options, notes)


def _load(source: str, options: TableOptions) -> pd.DataFrame:
    if mlflow.is_store(source):
        return mlflow.read_store(source)
    raw = read_raw(source, options.delimiter, may_be_long=options.last_checkpoint)
    if wandb.is_api_export(raw):
        return wandb.unfold(raw, source)
    return raw


def _foreign_table(
    raw: pd.DataFrame, source: str, options: TableOptions, notes: list[str]
) -> StudyTable:
    chosen, problems = _chosen(raw, options)
    names = [str(name) for name in raw.columns]
    raw, wide, faults = _widened(raw, chosen, options)
    problems += faults
    # What was looked for in vain, or found twice over, has its own message.
    problems += missing_columns({*chosen, *options.columns}, names, losses_judged=bool(faults))
    rows, faults = parse(raw, chosen)
    problems += faults
    if options.last_checkpoint:
        raw, rows = _last_only(raw, rows, chosen, problems, notes)
    if wide:
        rows.loc[rows["loss"].isna() & rows["excluded"].isna(), "excluded"] = "no loss given"
    problems += wrong_values(rows, chosen)
    problems += wrong_rows(raw, rows, chosen, options)
    arms = list(dict.fromkeys(rows["arm"]))
    baseline, faults = _baseline(arms, options)
    problems += faults
    problems = problems or one_size(rows)
    if problems:
        raise BadTable(source, problems)
    convention = _derive(rows, chosen, options, notes)
    notes += suspicions(rows)
    _drop_highest(rows, options.drop_highest)
    return StudyTable(
        source=source,
        runs=_runs(with_sizes(rows), source),
        baseline=baseline,
        flop_convention=convention,
        wide=wide,
        columns=_readable(chosen, wide),
        notes=tuple(notes),
    )


def _chosen(raw: pd.DataFrame, options: TableOptions) -> tuple[dict[Role, Column], list[str]]:
    mapped = dict(options.columns)
    separate = mapped.get("cluster") == "none"
    if separate:
        del mapped["cluster"]
    chosen, problems = choose([str(name) for name in raw.columns], mapped)
    if separate:
        chosen.pop("cluster", None)
    return chosen, problems


def _widened(
    raw: pd.DataFrame, chosen: dict[Role, Column], options: TableOptions
) -> tuple[pd.DataFrame, bool, list[str]]:
    """Turn a table with a column of losses per variant into one row per run; adds to ``chosen``."""
    if not options.variants and {"loss", "ppl"} & {*chosen, *options.columns}:
        return raw, False, []
    losses, problems = loss_columns(raw, chosen, options.variants)
    if not losses or problems:
        return raw, False, problems
    if len(losses) == 1 and not options.variants:
        chosen["loss"] = Column("loss", losses[0])
        return raw, False, []
    chosen |= {"loss": Column("loss", LOSS), "variant": Column("variant", VARIANT)}
    chosen.pop("ppl", None)
    return melt(raw, losses), True, []


def _last_only(
    raw: pd.DataFrame,
    rows: pd.DataFrame,
    chosen: dict[Role, Column],
    problems: list[str],
    notes: list[str],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Keep the last row of each run and variant; each is then a run of its own."""
    if "cluster" not in chosen:
        problems.append("--last-checkpoint: no column names the run; give it with --cluster")
        return raw, rows
    progress = rows["d"].where(rows["d"].notna(), rows["c"])
    run = rows["run"].fillna("") + "|" + rows["arm"]
    at = last_checkpoints(run, progress)
    notes.append(f"{len(rows) - len(at)} earlier checkpoints left out (--last-checkpoint)")
    rows = rows.iloc[at].copy()
    rows["cluster"] = None
    return raw.iloc[at], rows


def _baseline(arms: list[str], options: TableOptions) -> tuple[str | None, list[str]]:
    listed = ", ".join(arms[:12])
    if options.baseline is not None:
        if options.baseline in arms:
            return options.baseline, []
        return None, [f"no variant {options.baseline!r} (--baseline); the table has {listed}"]
    if len(arms) < 2:
        return None, []
    found = [arm for name in BASELINES for arm in arms if normal(arm) == name]
    if found:
        return found[0], []
    return None, [f"which of the variants is the baseline? --baseline NAME, one of {listed}"]


def _derive(
    rows: pd.DataFrame, chosen: dict[Role, Column], options: TableOptions, notes: list[str]
) -> str:
    """Fill in C or D from the other two; returns how C was counted."""
    if "c" in chosen:
        if "n" in chosen and "d" not in chosen:
            rows["d"] = rows["c"] / (6 * rows["n"])
            notes.append("no column of tokens: D = C / (6 N)")
        return options.flop_convention or AS_GIVEN
    if {"n", "d"} <= set(chosen):
        rows["c"] = 6 * rows["n"] * rows["d"]
        notes.append(f"no column of FLOPs: {SIX_ND}")
        return options.flop_convention or SIX_ND
    return options.flop_convention or "none: the table gives no C"


def _drop_highest(rows: pd.DataFrame, n: int) -> None:
    """Exclude the n highest losses, ties with the lowest of them included."""
    used = rows["excluded"].isna()
    if n > 0 and used.sum() > n:
        bound = rows.loc[used, "loss"].nlargest(n).iloc[-1]
        reason = f"among the {n} highest losses (--drop-highest {n})"
        rows.loc[used & (rows["loss"] >= bound), "excluded"] = reason


def _runs(rows: pd.DataFrame, source: str) -> pd.DataFrame:
    """Parsed rows under this project's column names and types."""
    names = {"n": "n_params", "d": "tokens", "c": "flops", "time": "train_s", "loss": "loss_nats"}
    runs = rows.rename(columns=names | {"excluded": "excluded_because"}).reset_index(drop=True)
    unique = rows["run"].notna().all() and rows["run"].is_unique
    runs["run_id"] = list(rows["run"] if unique else rows.index)
    runs["sweep"] = Path(source.partition("#")[2] or source).stem
    runs["cell"] = runs["arm"] + " " + runs["size"]
    runs["in_grid"] = True
    runs["status"] = np.where(runs["excluded_because"].isna(), "done", runs["excluded_because"])
    runs["flops_6nd"] = 6 * runs["n_params"] * runs["tokens"]
    types = COLUMNS | dict.fromkeys(_FRACTIONAL, "float64")
    runs = runs.reindex(columns=[*COLUMNS, "cluster"])
    runs["flops_without_residual"] = pd.to_numeric(runs["flops_without_residual"], errors="coerce")
    runs["excluded_because"] = (
        runs["excluded_because"].astype(object).where(runs["excluded_because"].notna(), None)
    )
    return runs.astype(types)


def _own_table(
    raw: pd.DataFrame, source: str, options: TableOptions, notes: list[str]
) -> StudyTable:
    """A table of this project: nothing to guess."""
    runs = typed(raw, source)
    runs["cluster"] = None
    rows = runs.rename(columns={"excluded_because": "excluded", "loss_nats": "loss"})
    _drop_highest(rows, options.drop_highest)
    runs["excluded_because"] = rows["excluded"]
    arms = [str(arm) for arm in dict.fromkeys(runs["arm"].dropna())]
    baseline, problems = _baseline(arms, options)
    problems += mixed_losses(runs)
    if problems:
        raise BadTable(source, problems)
    return StudyTable(
        source=source,
        runs=runs,
        baseline=baseline,
        flop_convention=options.flop_convention or FLOP_CONVENTION,
        wide=False,
        columns={"N": "n_params", "D": "tokens", "C": "flops", "loss": "loss_nats"},
        notes=tuple(notes),
        own=True,
    )


def _readable(chosen: Mapping[Role, Column], wide: bool) -> dict[str, str]:
    symbols = {"n": "N", "d": "D", "c": "C", "ppl": "loss = ln", "cluster": "run"}
    found: dict[str, str] = {}
    for role, column in chosen.items():
        if wide and role in ("loss", "variant"):
            continue
        factor = "" if column.factor == 1 else f" * {column.factor:g}"
        found[symbols.get(role, role)] = f"{column.name}{factor}"
    return found
