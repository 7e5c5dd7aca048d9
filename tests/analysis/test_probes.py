"""Depth probes compared: known truths, scipy's t-test, one seed, lost runs, several settings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.cells import FLOPS
from analysis.collect import collect, usable
from analysis.page.probe_tables import probe_tables
from analysis.page.probe_wording import (
    control_sentence,
    difference_sentences,
    lost_sentence,
    probe_headline,
)
from analysis.page.wording import cannot_sentences
from analysis.probes.differences import (
    NO_SPREAD,
    ONE_SEED,
    compare_over_depths,
    judged,
    paired_t,
)
from analysis.probes.read import accuracy_by_difficulty, read_accuracy_curves
from analysis.probes.study import probes_of
from analysis.probes.types import NO_LOSS_LAWS, Comparison, Difference, Probe, Probes
from analysis.study import analyse
from analysis.study_json import fits_json
from tests.analysis.synthetic_probes import (
    MQAR,
    S3,
    ProbeWorld,
    accuracy_at,
    build_probes,
    levels_of,
    reach_of,
    solved,
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Four arms at four depths on both tasks; one run diverged, one failed, two are not done."""
    statuses = {
        ("s3_words", "full", 8, 1): "diverged",
        ("s3_words", "full", 4, 0): "failed",
        ("s3_words", "deeper", 8, 2): "running",
        ("mqar", "delta", 8, 2): "planned",
    }
    world = ProbeWorld(tasks=(MQAR, S3), statuses=statuses)
    return collect(build_probes(tmp_path_factory.mktemp("probes"), world))


@pytest.fixture(scope="module")
def probes(swept: pd.DataFrame) -> Probes:
    found = probes_of(swept, "standard")
    assert found is not None
    return found


def probe_of(root: Path, world: ProbeWorld) -> Probe:
    found = probes_of(collect(build_probes(root, world)), "standard")
    assert found is not None
    return found.items[0]


def comparison(each: Sequence[float], arm: str = "arm") -> Comparison:
    interval, p = paired_t(each)
    difference = Difference(interval=interval, each=tuple(each), p_value=p)
    return Comparison(arm=arm, depths=(1,), seeds=(0, 1, 2), accuracy=difference, solved=difference)


def test_known_shifts_are_found_with_their_sign_and_equal_arms_are_not(tmp_path: Path) -> None:
    probe = probe_of(tmp_path, ProbeWorld(seeds=range(5)))
    verdicts = {at.arm: at.accuracy.verdict for at in probe.pooled}
    assert verdicts == {"full": "worse", "delta": "no difference found", "deeper": "better"}
    deeper = next(at for at in probe.pooled if at.arm == "deeper").solved.interval
    assert deeper.low is not None
    assert deeper.high is not None
    assert deeper.low < 1.5 < deeper.high
    assert probe.arms[0] == probe.baseline == "standard"


def test_intervals_and_p_values_are_those_of_scipy(swept: pd.DataFrame, probes: Probes) -> None:
    rows = usable(swept[swept["task"] == "s3_words"])
    found = next(at for at in probes.items[0].by_depth if (at.arm, at.depths) == ("delta", (4,)))
    at_four = rows[rows["n_layers"] == 4].sort_values("seed")
    delta, standard = (
        at_four.loc[at_four["arm"] == arm, "accuracy"].to_numpy() for arm in ("delta", "standard")
    )
    truth = stats.ttest_rel(delta, standard)
    ends = truth.confidence_interval(0.95)
    interval = found.accuracy.interval
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert found.accuracy.p_value == pytest.approx(truth.pvalue)


def test_seeds_are_the_replicates_over_depths(swept: pd.DataFrame, probes: Probes) -> None:
    rows = usable(swept[swept["task"] == "s3_words"])
    means = rows.groupby(["arm", "seed"])["accuracy"].mean()
    truth = stats.ttest_rel(means["delta"], means["standard"])
    found = next(at for at in probes.items[0].pooled if at.arm == "delta")
    assert (found.depths, found.seeds) == ((1, 2, 4, 8), (0, 1, 2))
    assert found.accuracy.p_value == pytest.approx(truth.pvalue)
    assert found.accuracy.interval.estimate == pytest.approx(
        (means["delta"] - means["standard"]).mean()
    )


def test_p_values_are_adjusted_over_the_arms_as_holm_does_by_hand() -> None:
    each = ([0.9, 1.0, 1.1], [0.2, 0.5, 0.9], [0.3, 0.5, 0.4])
    found = judged([comparison(values, f"arm {i}") for i, values in enumerate(each)])
    p = [float(stats.ttest_1samp(values, 0.0).pvalue) for values in each]
    assert p[0] < p[2] < p[1]
    by_hand = [3 * p[0], max(2 * p[2], p[1]), 2 * p[2]]
    assert [at.accuracy.p_holm for at in found] == pytest.approx(by_hand)


def test_equal_arms_are_called_different_in_one_of_twenty_sweeps_at_most() -> None:
    rng = np.random.default_rng(3)
    n, wrong_one, wrong_family = 600, 0, 0
    for _ in range(n):
        baseline = rng.normal(0, 1, 3)
        arms = [comparison(list(rng.normal(0, 1, 3) - baseline)) for _ in range(4)]
        wrong_one += judged(arms[:1])[0].accuracy.verdict != "no difference found"
        verdicts = {at.accuracy.verdict for at in judged(arms)}
        wrong_family += verdicts != {"no difference found"}
    assert 0.03 < wrong_one / n < 0.07
    assert wrong_family / n < 0.07


def test_one_seed_gives_no_interval_and_says_so(tmp_path: Path) -> None:
    probe = probe_of(tmp_path, ProbeWorld(seeds=(0,)))
    for at in (*probe.pooled, *probe.by_depth):
        assert at.accuracy.interval.estimate is not None
        assert not at.accuracy.interval.bounded
        assert at.accuracy.verdict == "no verdict"
    said = probe_headline(Probes(baseline="standard", level=0.95, items=(probe,)))
    assert f"No verdict ({ONE_SEED}): full, delta and deeper." in said


def test_an_interval_without_zero_that_fails_the_correction_is_told_as_such() -> None:
    lower = comparison([-0.5, -0.7, -0.6], "lower")
    assert judged([lower])[0].accuracy.verdict == "worse"
    others = [comparison([0.1, -0.1, 0.02], f"arm {i}") for i in range(9)]
    probe = Probe(
        label="s3",
        task="s3_words",
        graded_by="length",
        chance=None,
        baseline="standard",
        arms=("standard", "lower"),
        depths=(1,),
        levels=(),
        cells=(),
        pooled=judged([lower, *others]),
        by_depth=(),
    )
    first, second = difference_sentences(probe)
    assert first.startswith("Interval without 0, yet no verdict after Holm's correction over 10")
    assert "lower -60.0 [-84.8, -35.2] (Holm p 0.091)" in first
    assert second.startswith("No difference from standard found for arm 0")
    assert second.endswith("; 3 more.")


def test_whole_levels_that_differ_alike_in_every_seed_give_no_verdict() -> None:
    interval, p = paired_t([-2.0, -2.0, -2.0])
    assert (interval.estimate, interval.bounded, p) == (-2.0, False, None)
    assert interval.reason == NO_SPREAD


def test_lost_runs_are_counted_and_named_and_enter_no_mean(probes: Probes) -> None:
    probe = probes.items[0]
    cell = probe.cell("full", 8)
    assert cell is not None
    assert (len(cell.runs), cell.n_planned, cell.lost) == (2, 3, (("diverged", 1),))
    full = next(at for at in probe.pooled if at.arm == "full")
    # Seed 0 lacks depth 4 and seed 1 depth 8: three depths with two seeds beat two with three.
    assert (full.depths, full.seeds) == ((1, 2, 4), (1, 2))
    said = lost_sentence(probe)
    assert "full (1 failed, 1 diverged) and deeper (1 running)" in said
    assert "flatters" in said
    table = probe_tables(probe)["solved"]
    row = next(cells for cells in table.cells if cells[0].main == "full")
    assert row[4].detail.endswith("2 of 3 runs: 1 diverged")


@pytest.mark.parametrize(
    ("seeds_at", "depths", "seeds"),
    [
        pytest.param({1: "012", 2: "012", 4: "0"}, (1, 2), (0, 1, 2), id="more seeds"),
        pytest.param({1: "012", 2: "01", 4: "01", 8: "01"}, (1, 2, 4, 8), (0, 1), id="more depths"),
        pytest.param({1: "012", 2: "012", 4: "01"}, (1, 2, 4), (0, 1), id="equal tables"),
        pytest.param({1: "01234", 4: "0134", 12: "0124"}, (1, 4, 12), (0, 1, 4), id="crossing"),
        pytest.param(
            dict.fromkeys(range(1, 14), "01") | {7: "0"},
            (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13),
            (0, 1),
            id="too many depths to try all",
        ),
    ],
)
def test_over_depths_the_largest_complete_table_is_averaged(
    seeds_at: dict[int, str], depths: tuple[int, ...], seeds: tuple[int, ...]
) -> None:
    rows = [(depth, int(seed)) for depth, names in seeds_at.items() for seed in names]
    base = pd.DataFrame(rows, columns=["n_layers", "seed"]).assign(
        pair_key="k", accuracy=0.5, solved_difficulty=3
    )
    own = base.assign(accuracy=0.5 + base["seed"] / 100)
    found = compare_over_depths(base, own, "arm")
    assert (found.depths, found.seeds) == (depths, seeds)
    assert found.accuracy.interval.estimate == pytest.approx(np.mean(seeds) / 100)


def test_pooled_verdicts_follow_the_level_asked_for(tmp_path: Path) -> None:
    runs = collect(
        build_probes(tmp_path, ProbeWorld({"standard": 0.0, "full": 0.0}, (1,), (0, 1, 2)))
    )
    arms = {"standard": [0.5, 0.5, 0.5], "full": [0.6, 0.7, 0.8]}
    for arm, values in arms.items():
        runs.loc[runs["arm"] == arm, "accuracy"] = values
    p = stats.ttest_rel(arms["full"], arms["standard"]).pvalue
    assert 0.05 < p < 0.1
    verdicts = {}
    for level in (0.9, 0.95):
        found = probes_of(runs, "standard", level=level)
        assert found is not None
        verdicts[level] = found.items[0].pooled[0].accuracy.verdict
    assert verdicts == {0.9: "better", 0.95: "no difference found"}


def test_a_sweep_without_a_finished_run_is_told(tmp_path: Path) -> None:
    world = ProbeWorld(depths=(1,), seeds=(0,))
    keys = [("s3_words", arm, 1, 0) for arm in world.shifts]
    probe = probe_of(tmp_path, replace(world, statuses=dict.fromkeys(keys, "planned")))
    assert probe.levels == ()
    said = probe_headline(Probes(baseline="standard", level=0.95, items=(probe,)))
    assert "no usable run of standard" in said


def test_solved_levels_and_accuracies_are_those_of_the_runs(tmp_path: Path) -> None:
    probe = probe_of(tmp_path, ProbeWorld(noise=0.0))
    for cell in probe.of_arm("standard"):
        levels = levels_of("s3_words", cell.depth, reach_of(cell.depth))
        assert cell.solved is not None
        assert cell.accuracy is not None
        assert cell.solved.mean == solved(levels)
        assert cell.accuracy.low == pytest.approx(np.mean(list(levels.values())))
        at_five = cell.at_level(5)
        assert at_five is not None
        assert at_five.mean == pytest.approx(accuracy_at(5, reach_of(cell.depth)))


def test_controls_come_last_and_pass_or_fail_with_every_seed(probes: Probes) -> None:
    first, control = probes.items
    assert (first.is_control, control.is_control, control.pooled) == (False, True, ())
    table = probe_tables(control)["control"]
    passed = {(row["arm"], row["n_layers"]): row["passed"] for row in table.raw}
    assert passed["standard", 1] == "false"
    assert passed["standard", 2] == "true"
    assert passed["delta", 8] == "false"
    assert probe_headline(probes).endswith(
        "(99% or more in every seed at 2 layers or more): passed so far; not complete: "
        "delta at 8 layers (2 of 3 runs)."
    )


def test_a_control_run_that_diverged_or_failed_has_not_passed(tmp_path: Path) -> None:
    ends = {("full", 0): "diverged", ("full", 1): "failed", ("delta", 2): "running"}
    ends |= {("deeper", seed): "diverged" for seed in range(3)}
    world = ProbeWorld(
        depths=(2,),
        tasks=(MQAR,),
        statuses={("mqar", arm, 2, seed): status for (arm, seed), status in ends.items()},
    )
    probe = probe_of(tmp_path, world)
    assert control_sentence(probe).endswith(
        ": not passed by full at 2 layers (1 of 3 runs diverged, 1 of 3 runs failed) and deeper at "
        "2 layers (3 of 3 runs diverged); not complete: delta at 2 layers (2 of 3 runs)."
    )
    cells = {row[0].main: row[1].detail for row in probe_tables(probe)["control"].cells}
    assert cells["standard"].endswith("; passed")
    assert cells["full"].endswith("; not passed; 1 of 3 runs: 1 diverged, 1 failed")
    assert cells["deeper"] == "not passed; 0 of 3 runs: 3 diverged"
    assert cells["delta"].endswith("%; 2 of 3 runs: 1 running")


def test_width_that_goes_with_depth_makes_one_probe_and_several_widths_make_several(
    tmp_path: Path,
) -> None:
    world = ProbeWorld(shifts={"standard": 0.0}, depths=(1, 2), seeds=(0,), widths={1: 32, 2: 64})
    paths = build_probes(tmp_path, world)
    runs = collect(paths)
    found = probes_of(runs, "standard")
    assert found is not None
    assert [(probe.label, probe.depths) for probe in found.items] == [
        ("s3_words(length=16)", (1, 2))
    ]
    wider = collect(build_probes(tmp_path / "wide", replace(world, widths={1: 128, 2: 128})))
    wider["run_id"] = [f"w{name[1:]}" for name in wider["run_id"]]
    found = probes_of(pd.concat([runs, wider]), "standard")
    assert found is not None
    labels = {probe.label for probe in found.items}
    assert {"s3_words(length=16), d_model 32", "s3_words(length=16), d_model 128"} <= labels


def test_losses_of_tasks_get_a_reason_in_place_of_laws(swept: pd.DataFrame) -> None:
    found = analyse(swept, "standard")
    assert set(found.laws.values()) == {NO_LOSS_LAWS}
    assert not found.comparisons.get(FLOPS.name)
    content = json.loads(fits_json(found, "probes"))
    item = content["probes"]["items"][0]
    assert item["pooled"][0]["accuracy"]["interval"]["low"] < 0
    assert len(item["cells"]) == 16


def test_runs_on_text_beside_tasks_are_named_as_left_out(swept: pd.DataFrame) -> None:
    mixed = swept.copy()
    mixed.loc[mixed["corpus"].str.startswith("mqar"), "task"] = None
    (said,) = cannot_sentences(analyse(mixed, "standard"))
    assert said.startswith("Laws and multipliers of 48 runs on text:")


def test_tidy_tables_hold_every_level_of_every_run(swept: pd.DataFrame) -> None:
    tidy = accuracy_by_difficulty(swept)
    assert len(tidy) == 45 * 16 + 47
    row = tidy[(tidy["arm"] == "standard") & (tidy["n_layers"] == 8) & (tidy["difficulty"] == 1)]
    assert row["steps_to_90"].notna().all()
    assert set(tidy["task"]) == {"s3_words(length=16)", "mqar(n_pairs=8)"}


def test_learning_curves_are_read_of_unfinished_runs_too(tmp_path: Path) -> None:
    key = ("s3_words", "standard", 1, 0)
    world = ProbeWorld({"standard": 0.0}, (1,), (0, 1), statuses={key: "running"})
    paths = build_probes(tmp_path, world)
    curves = read_accuracy_curves(collect(paths), paths)
    assert curves.groupby("status").size().to_dict() == {"done": 10, "running": 10}
    assert curves["accuracy"].between(0, 1).all()


def test_tuning_is_told_apart_from_the_arm(tmp_path: Path) -> None:
    world = ProbeWorld(
        shifts={"standard": 0.0, "full": 0.5, "delta": 0.0}, equal_shifts={"full": -1.5}
    )
    probe = probe_of(tmp_path, world)
    full, delta = probe.tuning
    estimates = [at.solved.interval.estimate for at in (full.equal, full.own, full.due)]
    assert estimates[2] == pytest.approx((estimates[1] or 0) - (estimates[0] or 0))
    assert (full.equal.accuracy.verdict, full.due.accuracy.verdict) == ("worse", "better")
    assert (delta.n_runs, delta.n_same, delta.due.accuracy.p_holm) == (12, 12, None)
    table = probe_tables(probe)["tuning"]
    assert [row[5].main for row in table.cells] == ["tuning helps", "same values"]
    said = probe_headline(Probes(baseline="standard", level=0.95, items=(probe,)))
    assert re.search(r"full -\d.* at equal values, .* at own best, \+\d.* due to tuning", said)
