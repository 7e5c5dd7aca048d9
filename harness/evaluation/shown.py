"""What `isoloss eval` prints: a row per checkpoint, means over seeds, and JSON. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from harness.console import table
from harness.evaluation.base import Entry
from harness.evaluation.runner import Subject, Unevaluated

Column = tuple[str, str]
"""Entry and metric."""


def result_table(subjects: Sequence[Subject], entries: Sequence[Entry]) -> Table:
    """One row for each checkpoint: arm, cell, seed, step and the headline metrics."""
    columns = _columns(entries, subjects)
    head = ["arm", "cell", "run", "seed", "step", *map(_title, columns)]
    rows = [
        [
            subject.run.arm,
            subject.run.cell,
            subject.run.run_id[:6],
            str(subject.run.config["seed"]),
            str(subject.step),
            *(_number(_values(subject).get(column)) for column in columns),
        ]
        for subject in subjects
    ]
    return table(head, rows, left=3)


def means_table(subjects: Sequence[Subject], entries: Sequence[Entry]) -> Table | None:
    """Means over seeds with their standard deviation; None where every cell has one seed."""
    groups: dict[tuple[str, str, int], list[dict[Column, float]]] = {}
    for subject in subjects:
        key = (subject.run.arm, subject.run.cell, subject.step)
        groups.setdefault(key, []).append(_values(subject))
    if all(len(members) < 2 for members in groups.values()):
        return None
    columns = _columns(entries, subjects)
    rows = [
        [arm, cell, str(step), str(len(members))]
        + [_mean([m[column] for m in members if column in m]) for column in columns]
        for (arm, cell, step), members in groups.items()
    ]
    head = ["arm", "cell", "step", "seeds", *(f"{_title(column)} ± SD" for column in columns)]
    return table(head, rows, left=2)


def results_json(
    sweep: str, subjects: Iterable[Subject], not_evaluated: Iterable[Unevaluated]
) -> dict[str, Any]:
    """The same facts for programs, all metrics of what was asked for."""
    return {
        "sweep": sweep,
        "results": [
            {
                "run_id": subject.run.run_id,
                "arm": subject.run.arm,
                "cell": subject.run.cell,
                "seed": subject.run.config["seed"],
                "step": subject.step,
                "evaluations": {
                    result.name: {k: _finite(v) for k, v in result.metrics.items()}
                    for result in subject.stored
                },
            }
            for subject in subjects
        ],
        "not_evaluated": [
            {"run_id": item.run.run_id, "reason": item.reason} for item in not_evaluated
        ],
    }


def measured_text(entry: Entry, metrics: dict[str, float]) -> str:
    """Headline metrics of one result in one line."""
    shown = _headline(entry, metrics)
    return ", ".join(f"{name} {_number(metrics[name])}" for name in shown)


def _columns(entries: Sequence[Entry], subjects: Sequence[Subject]) -> list[Column]:
    """Headline metrics that at least one checkpoint has."""
    found = dict.fromkeys(column for subject in subjects for column in _values(subject))
    of = {
        entry.name: dict.fromkeys(m for name, m in found if name == entry.name) for entry in entries
    }
    return [(entry.name, m) for entry in entries for m in _headline(entry, of[entry.name])]


def _headline(entry: Entry, metrics: Iterable[str]) -> list[str]:
    """Names of an entry's headline metrics, under any filter; those of the tasks of a group or tag
    only where it has none of its own.
    """
    judged = [name for name in metrics if not name.endswith("_stderr")]
    own = [n for head in entry.headline for n in judged if n.split("/")[0] == head]
    return own or [n for head in entry.headline for n in judged if head in n.split("/")]


def _title(column: Column) -> str:
    return "\n".join(column)


def _values(subject: Subject) -> dict[Column, float]:
    return {
        (result.name, metric): value
        for result in subject.stored
        for metric, value in result.metrics.items()
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if not all(map(math.isfinite, values)):
        return "nan"
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
