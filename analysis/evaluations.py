"""Evaluations of a sweep's language models: a tidy table, and arms against the baseline.

Differences are paired by size, settings and seed, at the last step of each run; the replicate is
the seed. Reads records, which repeat what ``isoloss eval`` measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from analysis.compare.holm import holm
from analysis.estimates import Interval
from analysis.probes.differences import NO_SPREAD, paired_t
from harness.errors import DataError
from harness.paths import SweepPaths
from harness.records import read_record

TIDY = (
    *("run_id", "arm", "cell", "n_layers", "d_model", "seed", "step"),
    *("evaluation", "metric", "value"),
)
"""Columns of ``evaluations.parquet``."""
_PAIRING = ("size", "size_key", "pair_key", "steps")
HIGHER_IS_BETTER = {
    **dict.fromkeys(("accuracy", "acc", "acc_norm", "exact_match", "f1"), True),
    **dict.fromkeys(("bits_per_byte", "perplexity", "word_perplexity"), False),
}
"""Metrics that arms are compared by, by base name; the others are told in the tidy table alone."""

Verdict = Literal["better", "worse", "no difference found", "no verdict"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One arm against the baseline by one metric at one size."""

    evaluation: str
    metric: str
    size: str
    arm: str
    seeds: tuple[int, ...]
    """Those that both have."""
    value: float
    """Mean of the arm over them."""
    baseline: float
    """Mean of the baseline over them."""
    difference: Interval
    """Arm minus baseline, mean over them."""
    p_value: float | None
    p_holm: float | None = None
    """Adjusted for the arms compared by this metric at this size."""
    verdict: Verdict = "no verdict"


def higher_is_better(metric: str) -> bool | None:
    """Which way is better: ``exact_match/strict-match`` goes by ``exact_match``.

    None of a metric that arms are not compared by, standard errors among them.
    """
    is_error = metric.endswith("_stderr")
    return None if is_error else HIGHER_IS_BETTER.get(metric.partition("/")[0])


def comparable(values: pd.DataFrame) -> pd.DataFrame:
    """Keep the metrics that say which way is better."""
    names = [name for name in values["metric"].unique() if higher_is_better(name) is not None]
    return values[values["metric"].isin(names)]


def read_evaluations(paths: SweepPaths, runs: pd.DataFrame) -> pd.DataFrame:
    """Every value measured of the runs of a sweep, one a row.

    Parameters
    ----------
    runs
        Rows of :func:`analysis.collect.collect`.

    Returns
    -------
    DataFrame
        Columns :data:`TIDY`, then those by which runs are paired.
    """
    rows = [row for run in runs.to_dict("records") for row in _rows(paths, run)]
    return pd.DataFrame(rows, columns=[*TIDY, *_PAIRING])


def _rows(paths: SweepPaths, run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        record = read_record(paths.run(str(run["run_id"])).record)
    except DataError:  # its row of the table of runs says so
        return
    shared = {name: run.get(name) for name in (*TIDY[:6], *_PAIRING)}
    for checkpoint, evaluations in (record.evaluations if record else {}).items():
        step = int(checkpoint.removeprefix("step-"))
        for evaluation, metrics in evaluations.items():
            for metric, value in metrics.items():
                measured = {"evaluation": evaluation, "metric": metric, "value": value}
                yield shared | {"step": step} | measured


def final(values: pd.DataFrame) -> pd.DataFrame:
    """Keep what was measured at the last step of each run."""
    return values[values["step"] == values["steps"]]


def compared(values: pd.DataFrame, baseline: str, *, level: float = 0.95) -> tuple[Comparison, ...]:
    """Compare every arm with the baseline, by every metric that says which way is better.

    Mean of the paired differences with its Student t interval over seeds; p-values are adjusted
    over arms (Holm). Better or worse only where the interval excludes 0, before and after that.

    Parameters
    ----------
    values
        Of usable runs, from :func:`read_evaluations`.
    """
    judged = comparable(final(values))
    found: list[Comparison] = []
    for _, rows in judged.groupby(["evaluation", "metric", "size"], sort=False):
        found += _judged(_against(rows, baseline, level), level)
    return tuple(found)


def _against(rows: pd.DataFrame, baseline: str, level: float) -> list[Comparison]:
    """Every other arm against the baseline, in one metric at one size."""
    slot = ["size_key", "pair_key", "seed"]
    base = rows[rows["arm"] == baseline][[*slot, "value"]]
    found = []
    for arm in dict.fromkeys(rows["arm"]):
        own = rows[rows["arm"] == arm]
        both = own.merge(base, on=slot, suffixes=("", "_base"))
        if arm == baseline or both.empty:
            continue
        by_seed = both.groupby("seed")[["value", "value_base"]].mean()
        interval, p = paired_t(list(by_seed["value"] - by_seed["value_base"]), level)
        first = rows.iloc[0]
        found.append(
            Comparison(
                evaluation=str(first["evaluation"]),
                metric=str(first["metric"]),
                size=str(first["size"]),
                arm=str(arm),
                seeds=tuple(int(seed) for seed in by_seed.index),
                value=float(by_seed["value"].mean()),
                baseline=float(by_seed["value_base"].mean()),
                difference=interval,
                p_value=p,
            )
        )
    return found


def _judged(comparisons: Sequence[Comparison], level: float) -> list[Comparison]:
    """Adjust p-values over the arms and give verdicts."""
    tested = [i for i, at in enumerate(comparisons) if at.p_value is not None]
    adjusted = dict(zip(tested, holm([comparisons[i].p_value or 0.0 for i in tested]), strict=True))
    return [
        replace(at, p_holm=adjusted.get(i), verdict=_verdict(at, adjusted.get(i), level))
        for i, at in enumerate(comparisons)
    ]


def _verdict(at: Comparison, p_holm: float | None, level: float) -> Verdict:
    estimate = at.difference.estimate or 0.0
    if p_holm is None:
        same = at.difference.reason == NO_SPREAD and estimate == 0
        return "no difference found" if same else "no verdict"
    if not at.difference.excludes(0.0) or p_holm >= 1 - level:
        return "no difference found"
    return "better" if (estimate > 0) == higher_is_better(at.metric) else "worse"
