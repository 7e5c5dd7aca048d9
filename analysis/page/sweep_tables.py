"""The tables of what was run: arms with their losses and costs, runs, exclusions.

Pure; take the frame of ``collect`` or of a foreign table, which may lack columns of a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.cells import CURRENCIES, FLOPS, Currency, cell_points
from analysis.collect import usable
from analysis.compare.types import Multiplier
from analysis.page.numerals import DASH, ends, listed, number, ratio_cell
from analysis.page.table import Cell, Raw, Table


@dataclass(frozen=True)
class CellLoss:
    """Final loss of one arm at one size."""

    mean: float
    seed_sd: float | None
    n_seeds: int


@dataclass(frozen=True)
class HeadlineRow:
    """One arm: what it reaches and what it costs."""

    arm: str
    n_used: int
    n_runs: int
    losses: Mapping[str, CellLoss]
    multipliers: Mapping[str, Multiplier]
    extra_params_pct: float | None
    """Against the baseline at the largest size both finished."""
    extra_flops_pct: float | None
    """FLOPs per token against the baseline, there."""
    relative_step_time: float | None
    """Median step time over the baseline's, there."""


def column(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column of the runs; nulls where a foreign table has none of that name."""
    if name in runs.columns:
        return runs[name]
    return pd.Series(np.nan, index=runs.index, dtype="object")


def sizes_of(runs: pd.DataFrame) -> list[str]:
    """Labels of all sizes of the grid, by compute."""
    grid = runs[runs["in_grid"]]
    rank = "flops" if grid["flops"].notna().any() else "n_params"
    return [str(size) for size in grid.groupby("size")[rank].mean().sort_values().index]


def headline_rows(
    runs: pd.DataFrame, comparisons: Mapping[str, Sequence[Multiplier]], baseline: str
) -> tuple[HeadlineRow, ...]:
    """One row per arm of the grid, the baseline first, then in the grid's order.

    Parameters
    ----------
    runs
        All rows of :func:`analysis.collect.collect`.
    comparisons
        Currency name to the multipliers of every arm.
    baseline
        Arm compared with.
    """
    grid = runs[runs["in_grid"]]
    used = usable(runs)
    points = cell_points(used, FLOPS)
    arms = sorted(dict.fromkeys(str(arm) for arm in grid["arm"]), key=lambda arm: arm != baseline)
    n_used, n_runs = used["arm"].value_counts(), grid["arm"].value_counts()
    rows = []
    for arm in arms:
        losses = {p.size: CellLoss(p.loss, p.seed_sd, p.n_seeds) for p in points if p.arm == arm}
        found = {
            currency: multiplier
            for currency, multipliers in comparisons.items()
            for multiplier in multipliers
            if multiplier.arm == arm
        }
        counts = int(n_used.get(arm, 0)), int(n_runs.get(arm, 0))
        rows.append(HeadlineRow(arm, *counts, losses, found, *_costs(used, arm, baseline)))
    return tuple(rows)


def _costs(
    used: pd.DataFrame, arm: str, baseline: str
) -> tuple[float | None, float | None, float | None]:
    """Extra parameters %, FLOPs per token %, step time ratio, at the largest common size."""
    base, own = used[used["arm"] == baseline], used[used["arm"] == arm]
    common = base[base["size_key"].isin(own["size_key"])]
    if common.empty:
        return None, None, None
    size = str(common.sort_values("flops")["size_key"].iloc[-1])
    base, own = base[base["size_key"] == size], own[own["size_key"] == size]

    def ratio(name: str, per: str | None = None) -> float | None:
        medians = []
        for rows in (own, base):
            values = column(rows, name).astype(float)
            medians.append(float((values / column(rows, per) if per else values).median()))
        value = medians[0] / medians[1] if medians[1] else np.nan
        return value if np.isfinite(value) else None

    return _extra(ratio("n_params")), _extra(ratio("flops", "tokens")), ratio("step_time_s")


def _extra(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * (ratio - 1.0)


_SHORT = {"flops": "FLOPs", "flops_without": "FLOPs without own"}
"""Currencies in a narrow column; the caption says what they count."""


def headline_table(rows: Sequence[HeadlineRow], sizes: Sequence[str]) -> Table:
    """Arm, final loss per size, multiplier with interval per currency, costs."""
    known = {name for row in rows for name in row.multipliers}
    currencies = [currency for currency in CURRENCIES if currency.name in known]
    header = (
        "arm",
        "runs",
        *(f"loss {size}" for size in sizes),
        *(f"multiplier, {_SHORT.get(currency.name, currency.label)}" for currency in currencies),
        "verdict",
        "extra params %",
        "extra FLOPs %",
        "rel. step time",
    )
    counted = f", in {listed([c.label for c in currencies])}" if currencies else ""
    return Table(
        "headline",
        "Arms against the baseline",
        header,
        tuple(_headline_cells(row, sizes, currencies) for row in rows),
        tuple(_headline_raw(row, sizes) for row in rows),
        "Loss: final validation, nats per token, mean ± standard deviation over seeds. Multiplier: "
        f"value and 95% interval{counted}. Extra parameters, FLOPs per token and step time: "
        "against the baseline at the largest size both finished.",
    )


def _corrected(head: Multiplier | None) -> str:
    return f"Holm p {head.p_holm:.2g}" if head and head.p_holm is not None else ""


def _headline_cells(
    row: HeadlineRow, sizes: Sequence[str], currencies: Sequence[Currency]
) -> tuple[Cell, ...]:
    head = row.multipliers.get(FLOPS.name)
    verdict = head.verdict if head else "baseline"
    ratios = [row.multipliers.get(currency.name) for currency in currencies]
    return (
        Cell(row.arm),
        Cell(f"{row.n_used} of {row.n_runs}"),
        *(loss_cell(row.losses.get(size)) for size in sizes),
        *(ratio_cell(found.ratio if found else None) for found in ratios),
        Cell(verdict if row.n_used or head else "no usable run", _corrected(head)),
        Cell(number(row.extra_params_pct, "+.2f")),
        Cell(number(row.extra_flops_pct, "+.2f")),
        Cell(number(row.relative_step_time, ".2f")),
    )


def _headline_raw(row: HeadlineRow, sizes: Sequence[str]) -> dict[str, Raw]:
    raw: dict[str, Raw] = {"arm": row.arm, "n_used": row.n_used, "n_runs": row.n_runs}
    for size in sizes:
        loss = row.losses.get(size)
        raw[f"loss_nats {size}"] = loss.mean if loss else None
        raw[f"seed_sd {size}"] = loss.seed_sd if loss else None
    for currency in CURRENCIES:
        found = row.multipliers.get(currency.name)
        raw |= ends(found.ratio if found else None, f"multiplier_{currency.name}")
    head = row.multipliers.get(FLOPS.name)
    return raw | {
        "p_holm": head.p_holm if head else None,
        "n_sizes": head.n_sizes if head else None,
        "verdict": head.verdict if head else "baseline",
        "extra_params_pct": row.extra_params_pct,
        "extra_flops_pct": row.extra_flops_pct,
        "relative_step_time": row.relative_step_time,
    }


_RUN_COLUMNS = {
    "run_id": ("run", None),
    "arm": ("arm", None),
    "size": ("size", None),
    "seed": ("seed", None),
    "status": ("status", None),
    "loss_nats": ("loss", ".4f"),
    "flops": ("FLOPs", ".3g"),
    "wall_s": ("seconds", ".0f"),
    "excluded_because": ("excluded because", None),
}
_PROBE_COLUMNS = {
    "corpus": ("task", None),
    "accuracy": ("accuracy", ".4f"),
    "solved_difficulty": ("solved", None),
    "steps_to_90": ("steps to 90%", None),
}
"""Besides, where runs are of a generated task."""


def runs_table(runs: pd.DataFrame) -> Table:
    """Every run with its status, loss and, where it enters no fit, the reason."""
    shown = _RUN_COLUMNS
    if column(runs, "task").notna().any():
        known = list(_RUN_COLUMNS.items())
        shown = dict([*known[:6], *_PROBE_COLUMNS.items(), *known[6:]])
    columns = {name: [_plain(value) for value in column(runs, name)] for name in shown}
    raw = tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    specs = [spec for _, spec in shown.values()]
    cells = tuple(
        tuple(Cell(_shown(value, spec)) for value, spec in zip(row.values(), specs, strict=True))
        for row in raw
    )
    header = tuple(label for label, _ in shown.values())
    return Table("runs", "Runs", header, cells, raw)


def exclusions_table(runs: pd.DataFrame) -> Table:
    """Why runs enter no fit: how many by arm and reason, with up to four ids.

    Reasons that differ in their numbers alone (``diverged after step 120``) count as one.
    """
    gone = runs[runs["excluded_because"].notna()]
    reasons = gone["excluded_because"].astype(str)
    kinds = reasons.str.replace(r"\d+", "#", regex=True)
    groups = gone.assign(_kind=kinds, _reason=reasons).groupby(["arm", "_kind"], dropna=False)
    raw: list[dict[str, Raw]] = []
    for (arm, _), rows in groups:
        ids = [str(name) for name in rows["run_id"]]
        raw.append(
            {
                "arm": None if pd.isna(arm) else str(arm),
                "n_runs": len(rows),
                "reason": str(rows["_reason"].iloc[0]),
                "status": ", ".join(str(status) for status in rows["status"].unique()),
                "run_ids": " ".join(ids),
            }
        )
    raw.sort(key=lambda row: (-int(row["n_runs"] or 0), str(row["arm"])))
    cells = tuple(
        (
            Cell(str(row["arm"] or DASH)),
            Cell(str(row["n_runs"])),
            Cell(str(row["reason"])),
            Cell(_few(str(row["run_ids"]).split())),
        )
        for row in raw
    )
    header = ("arm", "runs", "reason", "which")
    caption = "Runs that enter no fit, with the reason recorded for each."
    return Table("exclusions", "Exclusions", header, cells, tuple(raw), caption)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def loss_cell(loss: CellLoss | None) -> Cell:
    """Mean loss, and its spread over seeds where there are two or more."""
    if loss is None:
        return Cell(DASH)
    return Cell(f"{loss.mean:.4f}", "" if loss.seed_sd is None else f"± {loss.seed_sd:.4f}")


def _plain(value: Any) -> Raw:
    """A value of a frame as csv and cells take it."""
    if value is None or pd.isna(value):
        return None
    if isinstance(value, str | int | float):
        return value
    return int(value) if float(value).is_integer() else float(value)


def _shown(value: Raw, spec: str | None) -> str:
    if value is None:
        return DASH if spec else ""
    return format(value, spec) if spec else str(value)
