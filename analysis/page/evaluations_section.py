"""The section of the page for evaluations, and its tables."""

from __future__ import annotations

import io

import pandas as pd

from analysis.collect import usable
from analysis.estimates import Interval
from analysis.evaluations import (
    TIDY,
    Comparison,
    comparable,
    compared,
    final,
    read_evaluations,
)
from analysis.page.layout import Section, table_block
from analysis.page.numerals import DASH, ends, estimate_texts, listed, number
from analysis.page.table import Cell, Table, save_tables
from harness.paths import SweepPaths

_SHOWN_ROWS = 12
"""Rows from which on a table is folded."""


def evaluations_section(paths: SweepPaths, runs: pd.DataFrame, baseline: str) -> Section | None:
    """Write ``tables/evaluations.*`` and ``evaluation_differences.*``; None where nothing was
    measured.

    Parameters
    ----------
    runs
        Rows of :func:`analysis.collect.collect`.
    """
    values = read_evaluations(paths, runs)
    if values.empty:
        return None
    known = usable(runs)["run_id"]
    counted = values[values["run_id"].isin(known)]
    found = compared(counted, baseline)
    tidy, means = tidy_table(values), means_table(counted)
    differences = differences_table(found, baseline)
    save_tables([tidy, means, *([differences] if found else [])], paths.tables)
    _save_parquet(values[list(TIDY)], paths)
    blocks = [table_block(differences)] if found else []
    if means.raw:
        blocks.append(
            table_block(
                means, folded=f"{len(means.raw)} rows" if len(means.raw) > _SHOWN_ROWS else ""
            )
        )
    return Section(
        title="Evaluations", notes=_notes(counted, found, baseline), blocks=tuple(blocks)
    )


def tidy_table(values: pd.DataFrame) -> Table:
    """Every value, one a row."""
    rows = [dict(row) for row in values[list(TIDY)].to_dict("records")]
    cells = tuple(
        tuple(
            Cell(number(row[name], ".6g") if name == "value" else str(row[name])) for name in TIDY
        )
        for row in rows
    )
    return Table("evaluations", "Evaluations of every checkpoint", TIDY, cells, tuple(rows))


def means_table(values: pd.DataFrame) -> Table:
    """Means over seeds at the last step, of the metrics that arms are compared by."""
    shown = comparable(final(values))
    keys = ["evaluation", "metric", "size", "arm"]
    raw, cells = [], []
    for key, rows in shown.groupby(keys, sort=False):
        mean, sd, n = rows["value"].mean(), rows["value"].std(ddof=1), len(rows)
        named = dict(zip(keys, key, strict=True))
        raw.append({**named, "mean": mean, "sd": None if n < 2 else sd, "runs": n})
        spread = f"± {sd:.4f}" if n > 1 else ""
        cells.append((*map(Cell, key), Cell(f"{mean:.4f}", spread), Cell(str(n))))
    return Table(
        name="evaluation_means",
        title="Evaluations by arm",
        header=(*keys, "mean ± SD over runs", "runs"),
        cells=tuple(cells),
        raw=tuple(raw),
        caption="At the last step of each run. accuracy: share of right answers; bits_per_byte: "
        "bits per byte of text.",
    )


def differences_table(found: tuple[Comparison, ...], baseline: str) -> Table:
    """Every arm against the baseline."""
    cells = tuple(
        (
            *map(Cell, (at.evaluation, at.metric, at.size, at.arm)),
            Cell(number(at.value, ".4f")),
            Cell(number(at.baseline, ".4f")),
            Cell(*_difference(at.difference)),
            Cell(number(at.p_holm, ".2g")),
            Cell(at.verdict),
            Cell(str(len(at.seeds))),
        )
        for at in found
    )
    raw = tuple(
        {
            "evaluation": at.evaluation,
            "metric": at.metric,
            "size": at.size,
            "arm": at.arm,
            "value": at.value,
            "baseline": at.baseline,
            **ends(at.difference, "difference"),
            "p_value": at.p_value,
            "p_holm": at.p_holm,
            "verdict": at.verdict,
            "seeds": len(at.seeds),
        }
        for at in found
    )
    return Table(
        name="evaluation_differences",
        title=f"Evaluations against {baseline}",
        header=(
            *("evaluation", "metric", "size", "arm", "value", baseline),
            *("difference [95%]", "Holm p", "verdict", "seeds"),
        ),
        cells=cells,
        raw=raw,
        caption=f"Arm minus {baseline} at equal size, settings and seed, at the last step; Student "
        "t interval over seeds, before correction; p adjusted over the arms of one metric and "
        "size. Better or worse only where both exclude 0. One seed has no interval.",
    )


def _difference(interval: Interval) -> tuple[str, str]:
    return estimate_texts(interval, "+.4f")


def _notes(values: pd.DataFrame, found: tuple[Comparison, ...], baseline: str) -> tuple[str, ...]:
    n_runs, names = values["run_id"].nunique(), list(dict.fromkeys(values["evaluation"]))
    who = "1 run was" if n_runs == 1 else f"{n_runs} runs were"
    notes = [f"{who} evaluated: {listed(names)}."]
    for verdict in ("better", "worse"):
        named = [at for at in found if at.verdict == verdict]
        for evaluation in dict.fromkeys(at.evaluation for at in named):
            arms = [
                f"{at.arm} ({at.size}, {' '.join(_difference(at.difference))} {at.metric})"
                for at in named
                if at.evaluation == evaluation
            ]
            notes.append(f"{evaluation}: {verdict} than {baseline}: {listed(arms)}.")
    if found and len(notes) == 1:
        judged = any(at.p_holm is not None for at in found)
        why = "no difference found" if judged else "no verdict, since no arm has two paired seeds"
        notes.append(f"Against {baseline}: {why}.")
    return (*notes, *_chance(values))


def _chance(values: pd.DataFrame) -> list[str]:
    """What guessing gives, where an evaluation says so."""
    known = {"chance": "by chance", "accuracy_by_count": "by the commonest word of each context"}
    told = values[values["metric"].isin(list(known))]
    parts: dict[str, list[str]] = {}
    for (evaluation, metric), rows in told.groupby(["evaluation", "metric"], sort=False):
        value = number(float(rows["value"].iloc[-1]), ".3g", DASH)
        parts.setdefault(str(evaluation), []).append(f"{value} {known[str(metric)]}")
    said = [f"{evaluation} {' and '.join(texts)}" for evaluation, texts in parts.items()]
    return [f"Accuracy of guessing: {'; '.join(said)}."] if said else []


def _save_parquet(frame: pd.DataFrame, paths: SweepPaths) -> None:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    scratch = paths.tables / ".evaluations.parquet"
    scratch.write_bytes(buffer.getvalue())
    scratch.replace(paths.tables / "evaluations.parquet")
