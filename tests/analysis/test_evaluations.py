"""Evaluations in the analysis: every value in a tidy table, differences against scipy's t-test."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from analysis.collect import collect
from analysis.evaluations import TIDY, Comparison, compared, read_evaluations
from analysis.page.evaluations_section import evaluations_section
from analysis.page.report import report
from harness.paths import SweepPaths
from harness.records import read_record
from tests.analysis.synthetic_sweep import World, build_sweep, run_id

SEEDS = (0, 1, 2, 3)
ARMS = ("standard", "full", "delta")
BITS = {
    "standard": (2.10, 2.14, 2.09, 2.12),
    "full": (2.01, 2.06, 2.00, 2.02),
    "delta": (2.11, 2.13, 2.08, 2.13),
}
RIGHT = {
    "standard": (0.50, 0.52, 0.49, 0.51),
    "full": (0.61, 0.60, 0.62, 0.61),
    "delta": (0.40, 0.39, 0.41, 0.38),
}


def evaluate(
    paths: SweepPaths, run: str, evaluations: dict[str, dict[str, float]], step: int
) -> None:
    here = paths.run(run)
    record = json.loads(here.record.read_text())
    record["evaluations"][f"step-{step}"] = evaluations
    here.record.write_text(json.dumps(record))


def steps_of(paths: SweepPaths, run: str) -> int:
    record = read_record(paths.run(run).record)
    assert record is not None
    return record.steps


@pytest.fixture
def paths(tmp_path: Path) -> SweepPaths:
    """Three arms at one size with four seeds, evaluated at the last step and at an earlier one."""
    world = World(dict.fromkeys(ARMS, 1.0), shapes=[(2, 64)], seeds=SEEDS)
    made = build_sweep(tmp_path, world)
    for arm in ARMS:
        for seed in SEEDS:
            run = run_id(arm, 0, seed)
            bits = {"bits_per_byte": BITS[arm][seed], "n_tokens": 512.0, "loss_nats": 1.0}
            right = {"accuracy": RIGHT[arm][seed], "chance": 0.25, "n_items": 255.0}
            last = {"domains:sotu": bits, "code_cloze:identifiers": right}
            evaluate(made, run, last, steps_of(made, run))
            evaluate(made, run, {"domains:sotu": {"bits_per_byte": 9.0 - seed}}, 7)
    return made


def values(paths: SweepPaths) -> pd.DataFrame:
    return read_evaluations(paths, collect(paths))


def found(paths: SweepPaths) -> dict[tuple[str, str], Comparison]:
    return {(at.metric, at.arm): at for at in compared(values(paths), "standard")}


def test_every_value_has_a_row(paths: SweepPaths) -> None:
    tidy = values(paths)
    assert len(tidy) == len(ARMS) * len(SEEDS) * 7
    row = tidy[
        (tidy["run_id"] == run_id("full", 0, 2))
        & (tidy["metric"] == "bits_per_byte")
        & (tidy["step"] > 7)
    ]
    assert row[["arm", "n_layers", "d_model", "seed", "evaluation", "value"]].values.tolist() == [
        ["full", 2, 64, 2, "domains:sotu", 2.00]
    ]


@pytest.mark.parametrize(("metric", "told"), [("bits_per_byte", BITS), ("accuracy", RIGHT)])
@pytest.mark.parametrize("arm", ["full", "delta"])
def test_differences_are_those_of_a_paired_t_test(
    paths: SweepPaths, metric: str, told: dict[str, tuple[float, ...]], arm: str
) -> None:
    at = found(paths)[metric, arm]
    test = ttest_rel(told[arm], told["standard"])
    low, high = test.confidence_interval(0.95)
    assert at.difference.estimate == pytest.approx(np.mean(told[arm]) - np.mean(told["standard"]))
    assert (at.difference.low, at.difference.high) == pytest.approx((low, high))
    assert at.p_value == pytest.approx(test.pvalue)
    assert (at.value, at.baseline) == pytest.approx((np.mean(told[arm]), np.mean(told["standard"])))
    assert at.seeds == SEEDS


def test_verdicts_follow_the_direction_of_the_metric(paths: SweepPaths) -> None:
    verdicts = {key: at.verdict for key, at in found(paths).items()}
    assert verdicts == {
        ("bits_per_byte", "full"): "better",
        ("bits_per_byte", "delta"): "no difference found",
        ("accuracy", "full"): "better",
        ("accuracy", "delta"): "worse",
    }


def test_metrics_of_filtered_answers_go_by_their_base_name(paths: SweepPaths) -> None:
    renamed = {"accuracy": "exact_match/strict-match", "chance": "exact_match/strict-match_stderr"}
    filtered = values(paths).replace({"metric": renamed})
    verdicts = {
        (at.metric, at.arm): at.verdict
        for at in compared(filtered, "standard")
        if at.evaluation == "code_cloze:identifiers"
    }
    assert verdicts == {
        ("exact_match/strict-match", "full"): "better",
        ("exact_match/strict-match", "delta"): "worse",
    }


def test_p_values_are_adjusted_over_the_arms_of_one_metric(paths: SweepPaths) -> None:
    at = found(paths)
    raw = [at["bits_per_byte", arm].p_value for arm in ("full", "delta")]
    assert at["bits_per_byte", "full"].p_holm == pytest.approx(2 * raw[0])
    assert at["bits_per_byte", "delta"].p_holm == pytest.approx(raw[1])


def test_one_paired_seed_gives_no_interval_and_no_verdict(paths: SweepPaths) -> None:
    one = values(paths)
    one = one[(one["seed"] == 1) | (one["arm"] == "standard")]
    for at in compared(one, "standard"):
        assert at.seeds == (1,)
        assert (at.difference.low, at.p_holm, at.verdict) == (None, None, "no verdict")


def test_runs_evaluated_only_before_their_end_are_not_compared(paths: SweepPaths) -> None:
    early = values(paths)
    assert compared(early[early["step"] == 7], "standard") == ()


def test_the_report_of_an_evaluated_sweep_says_so(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path, World({"standard": 1.0}, shapes=[(2, 64)], diagnostics="none"))
    run = run_id("standard", 0, 0)
    evaluate(paths, run, {"domains:sotu": {"bits_per_byte": 2.5}}, steps_of(paths, run))
    page = report(paths).report_path.read_text()
    assert "1 run was evaluated: domains:sotu." in page


def test_the_section_says_what_differs_and_saves_its_tables(paths: SweepPaths) -> None:
    section = evaluations_section(paths, collect(paths), "standard")
    assert section is not None
    assert section.blocks[0].title == "Evaluations against standard"
    said = " ".join(section.notes)
    assert "domains:sotu: better than standard: full (2x64, -0.0900 [" in said
    assert "code_cloze:identifiers: worse than standard: delta (2x64, -0.1100 [" in said
    assert "code_cloze:identifiers 0.25 by chance" in said
    with (paths.tables / "evaluations.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == TIDY
    parquet = pd.read_parquet(paths.tables / "evaluations.parquet")
    assert list(parquet["value"]) == [float(row["value"]) for row in rows]
    for name in ("evaluations", "evaluation_means", "evaluation_differences"):
        assert (paths.tables / f"{name}.md").exists()
        assert (paths.tables / f"{name}.tex").exists()


def test_a_sweep_without_evaluations_has_no_section(tmp_path: Path) -> None:
    bare = build_sweep(tmp_path, World({"standard": 1.0}, shapes=[(2, 64)]))
    assert evaluations_section(bare, collect(bare), "standard") is None
    assert not bare.tables.exists()


def test_a_damaged_record_spoils_no_other(paths: SweepPaths) -> None:
    whole = len(values(paths))
    paths.run(run_id("full", 0, 0)).record.write_text("{")
    assert len(values(paths)) == whole - 7
