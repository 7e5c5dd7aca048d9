"""The tables of a sweep: rows once, rendered as csv, markdown, LaTeX and html.

csv carries full precision and separate columns for interval ends; the other three show the same
rows rounded for reading. Pure but for ``save_tables``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.cells import CURRENCIES, FLOPS, cell_points
from analysis.collect import usable
from analysis.compare import Multiplier
from analysis.estimates import ratio_parts
from harness.records import write_text_atomically

Raw = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """A value for reading, with a smaller second part (an interval, a spread)."""

    main: str
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """One table: ``raw`` for csv, ``header`` and ``cells`` for reading; same rows, same order."""

    name: str
    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    raw: tuple[dict[str, Raw], ...]


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
    rows = []
    for arm in arms:
        losses = {p.size: CellLoss(p.loss, p.seed_sd, p.n_seeds) for p in points if p.arm == arm}
        found = {
            currency: multiplier
            for currency, multipliers in comparisons.items()
            for multiplier in multipliers
            if multiplier.arm == arm
        }
        n_used, n_runs = int((used["arm"] == arm).sum()), int((grid["arm"] == arm).sum())
        rows.append(HeadlineRow(arm, n_used, n_runs, losses, found, *_costs(used, arm, baseline)))
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

    def ratio(a: pd.Series, b: pd.Series) -> float | None:
        value = float(a.astype(float).median()) / float(b.astype(float).median())
        return value if np.isfinite(value) else None

    params = ratio(own["n_params"], base["n_params"])
    flops = ratio(own["flops"] / own["tokens"], base["flops"] / base["tokens"])
    step_time = ratio(own["step_time_s"], base["step_time_s"])
    return _extra(params), _extra(flops), step_time


def _extra(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * (ratio - 1.0)


def headline_table(rows: Sequence[HeadlineRow], sizes: Sequence[str]) -> Table:
    """Arm, final loss per size, multiplier with interval per currency, costs."""
    header = (
        "arm",
        "runs",
        *(f"loss {size}" for size in sizes),
        *(f"multiplier, {currency.label}" for currency in CURRENCIES),
        "verdict",
        "extra params %",
        "extra FLOPs %",
        "rel. step time",
    )
    return Table(
        "headline",
        "Arms against the baseline",
        header,
        tuple(_headline_cells(row, sizes) for row in rows),
        tuple(_headline_raw(row, sizes) for row in rows),
    )


def _corrected(head: Multiplier | None) -> str:
    return f"Holm p {head.p_holm:.2g}" if head and head.p_holm is not None else ""


def _headline_cells(row: HeadlineRow, sizes: Sequence[str]) -> tuple[Cell, ...]:
    head = row.multipliers.get(FLOPS.name)
    verdict = head.verdict if head else "baseline"
    return (
        Cell(row.arm),
        Cell(f"{row.n_used} of {row.n_runs}"),
        *(loss_cell(row.losses.get(size)) for size in sizes),
        *(ratio_cell(row.multipliers.get(currency.name)) for currency in CURRENCIES),
        Cell(verdict if row.n_used or head else "no usable run", _corrected(head)),
        Cell(_number(row.extra_params_pct, "+.2f")),
        Cell(_number(row.extra_flops_pct, "+.2f")),
        Cell(_number(row.relative_step_time, ".2f")),
    )


def _headline_raw(row: HeadlineRow, sizes: Sequence[str]) -> dict[str, Raw]:
    raw: dict[str, Raw] = {"arm": row.arm, "n_used": row.n_used, "n_runs": row.n_runs}
    for size in sizes:
        loss = row.losses.get(size)
        raw[f"loss_nats {size}"] = loss.mean if loss else None
        raw[f"seed_sd {size}"] = loss.seed_sd if loss else None
    for currency in CURRENCIES:
        found = row.multipliers.get(currency.name)
        raw[f"multiplier_{currency.name}"] = found.ratio.estimate if found else None
        raw[f"multiplier_{currency.name}_low"] = found.ratio.low if found else None
        raw[f"multiplier_{currency.name}_high"] = found.ratio.high if found else None
    head = row.multipliers.get(FLOPS.name)
    return raw | {
        "p_holm": head.p_holm if head else None,
        "n_sizes": head.n_sizes if head else None,
        "verdict": head.verdict if head else "baseline",
        "extra_params_pct": row.extra_params_pct,
        "extra_flops_pct": row.extra_flops_pct,
        "relative_step_time": row.relative_step_time,
    }


def by_size_table(multipliers: Sequence[Multiplier], sizes: Sequence[str]) -> Table:
    """The multiplier at each size: read off the measured baseline, and from the law."""
    header = ("arm", *sizes, "trend of exponent", "for other E")
    raw: list[dict[str, Raw]] = []
    for found in multipliers:
        raw += [
            {
                "arm": found.arm,
                "size": at.size,
                "measured": at.measured,
                "undefined_because": at.undefined_because,
                "from_law": at.from_law,
                "loss_difference_nats": at.loss_difference,
                "n_seeds": at.n_seeds,
            }
            for at in found.by_size
        ]
    cells = tuple(_by_size_cells(found, sizes) for found in multipliers)
    return Table("multipliers_by_size", "Multiplier by size", header, cells, tuple(raw))


def _by_size_cells(found: Multiplier, sizes: Sequence[str]) -> tuple[Cell, ...]:
    at = {ratio.size: ratio for ratio in found.by_size}
    cells = [Cell(found.arm)]
    for size in sizes:
        here = at.get(size)
        if here is None:
            cells.append(Cell("–"))
            continue
        measured = "undefined" if here.measured is None else f"{here.measured:.2f}"
        cells.append(Cell(measured, f"law {_number(here.from_law, '.2f')}"))
    trend = found.slope_difference
    ends = "" if trend.low is None else f"[{trend.low:+.4f}, {trend.high:+.4f}]"
    values = [rho for _, rho in found.by_asymptote if rho is not None]
    spread = f"{min(values):.2f} to {max(values):.2f}" if values else "–"
    return (*cells, Cell(_number(trend.estimate, "+.4f"), ends), Cell(spread))


def runs_table(runs: pd.DataFrame) -> Table:
    """Every run with its status, loss and, where it enters no fit, the reason."""
    header = (
        "run",
        "arm",
        "size",
        "seed",
        "status",
        "loss",
        "FLOPs",
        "seconds",
        "excluded because",
    )
    raw = tuple(
        {
            "run_id": str(row["run_id"]),
            "arm": _text(row["arm"]),
            "size": _text(row["size"]),
            "seed": _whole(row["seed"]),
            "status": _text(row["status"]),
            "loss_nats": _real(row["loss_nats"]),
            "flops": _real(row["flops"]),
            "wall_s": _real(row["wall_s"]),
            "excluded_because": _text(row["excluded_because"]),
        }
        for row in runs.to_dict("records")
    )
    formats = {"loss_nats": ".4f", "flops": ".3g", "wall_s": ".0f"}
    cells = tuple(
        tuple(Cell(_shown(value, formats.get(name))) for name, value in row.items()) for row in raw
    )
    return Table("runs", "Runs", header, cells, raw)


def loss_cell(loss: CellLoss | None) -> Cell:
    """Mean loss, and its spread over seeds where there are two or more."""
    if loss is None:
        return Cell("–")
    return Cell(f"{loss.mean:.4f}", "" if loss.seed_sd is None else f"± {loss.seed_sd:.4f}")


def ratio_cell(multiplier: Multiplier | None) -> Cell:
    """Multiplier and interval; a dash for the baseline."""
    if multiplier is None:
        return Cell("–")
    return Cell(*ratio_parts(multiplier.ratio))


def to_csv(table: Table) -> str:
    """Full precision; empty where a value is null."""
    buffer = io.StringIO()
    columns = list(dict.fromkeys(name for row in table.raw for name in row))
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.raw)
    return buffer.getvalue()


def to_markdown(table: Table) -> str:
    """A pipe table."""
    lines = [_pipes(table.header), _pipes(["---"] * len(table.header))]
    lines += [_pipes([_joined(cell) for cell in row]) for row in table.cells]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs tabular (needs the package booktabs)."""
    lines = [rf"\begin{{tabular}}{{{'l' * len(table.header)}}}", r"\toprule"]
    lines += [" & ".join(_tex(name) for name in table.header) + r" \\", r"\midrule"]
    lines += [" & ".join(_tex(_joined(cell)) for cell in row) + r" \\" for row in table.cells]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_html(table: Table) -> str:
    """A bare html table; every text is escaped."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in table.header)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>\n" for row in table.cells)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def save_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write every table as csv, markdown and LaTeX."""
    writers = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    for table in tables:
        for suffix, render in writers.items():
            write_text_atomically(folder / f"{table.name}.{suffix}", render(table))


def _html_cell(cell: Cell) -> str:
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    return f"<td>{escape(cell.main)}{detail}</td>"


def _joined(cell: Cell) -> str:
    return f"{cell.main} {cell.detail}".strip()


def _pipes(values: Sequence[str]) -> str:
    return (
        "| " + " | ".join(value.replace("|", r"\|").replace("\n", " ") for value in values) + " |"
    )


def _tex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ").replace("\n", " ")
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return (
        text.replace("±", r"$\pm$").replace("–", "--").replace("^", r"\^{}").replace("~", r"\~{}")
    )


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def _shown(value: Raw, spec: str | None) -> str:
    if value is None:
        return "–" if spec else ""
    return format(value, spec) if spec else str(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _real(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)
