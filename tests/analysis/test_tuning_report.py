"""What a report says of a search, on sweeps whose best rates and multipliers are known."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.cells import FLOPS
from analysis.collect import collect, of_the_sweep, usable
from analysis.compare.arms import compare_arms
from analysis.compare.holm import holm
from analysis.estimates import undefined
from analysis.figures import style
from analysis.figures.style import ArmStyle, arm_styles
from analysis.figures.tuned_values import (
    tuned_values_data,
    tuned_values_figure,
    tuned_values_hover,
)
from analysis.page.gallery_tuning import gains_forest, tuning_figures
from analysis.page.report import ReportResult, report
from analysis.page.run_card import run_card
from analysis.page.tuning_section import gain_sentence, optima_sentence, search_sentence
from analysis.page.wording import shared_rate_sentences
from analysis.study import analyse
from analysis.study_json import fits_json
from analysis.trunks import on_shared_trunks, trunk_sentences
from analysis.tuning.brackets import trial_brackets
from analysis.tuning.evidence import tuning_of
from analysis.tuning.gains import tuning_gains
from analysis.tuning.read import read_search
from analysis.tuning.types import Tuning as Evidence
from harness.errors import DataError
from harness.paths import SweepPaths
from harness.records import read_manifest, write_manifest
from harness.tuned import read_tuned, write_tuned
from tests.analysis.synthetic_sweep import World, build_sweep
from tests.analysis.synthetic_tuning import (
    LR,
    TRIAL_SEED,
    Tuning,
    build_tuned,
    expected_due,
    stop,
    without_equal,
)
from tests.analysis.test_figures_legible import assert_legible

TWO = {"standard": 1.0, "full": 1.3}
STOPPED = "at step 40 of 310: loss 3.9, worse than the median of 4 trials"


def evidence(paths: SweepPaths) -> Evidence:
    manifest, runs = read_manifest(paths), collect(paths)
    search = read_search(paths, manifest, runs)
    assert search is not None
    return tuning_of(search, runs, manifest.baseline)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepPaths, ReportResult]:
    """Three sizes searched of four, one trial stopped, one run at the baseline's rate diverged."""
    made = Tuning(noise=0.002, searched=3, statuses={("full", 1, 0): "diverged"})
    paths = build_tuned(tmp_path_factory.mktemp("tuned"), made)
    stop(paths, read_manifest(paths.tuning).runs[0], 40, STOPPED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "FORMATS", ("svg",))
        patch.setattr("analysis.study_shapes.MIN_JOINT", 99)  # not what is tested here
        return paths, report(paths)


@pytest.fixture(scope="module")
def found(noisy: tuple[SweepPaths, ReportResult]) -> Evidence:
    return evidence(noisy[0])


@pytest.fixture(scope="module")
def looks() -> dict[str, ArmStyle]:
    return arm_styles(["standard", "full", "low_rank"], "standard")


def test_loss_at_the_baselines_rate_is_undone_by_the_own_best(tmp_path: Path) -> None:
    full, low_rank = evidence(build_tuned(tmp_path)).gains
    assert full.due.estimate == pytest.approx(expected_due("full"), rel=1e-6)
    assert full.own.estimate == pytest.approx(1.0, rel=1e-3)
    assert full.equal.estimate == pytest.approx(1 / expected_due("full"), rel=2e-3)
    assert full.verdict == "tuning helps"
    assert (full.n_sizes, full.n_same) == (4, 0)
    assert low_rank.due.estimate == pytest.approx(1.0)
    assert (low_rank.n_same, low_rank.verdict) == (4, "same values")


def test_intervals_hold_the_truth_and_lost_runs_are_told(found: Evidence) -> None:
    full = found.gains[0]
    for ratio, truth in (
        (full.due, expected_due("full")),
        (full.equal, 1 / expected_due("full")),
        (full.own, 1.0),
    ):
        assert ratio.low is not None
        assert ratio.high is not None
        assert ratio.low < truth < ratio.high
        assert math.log(ratio.high / ratio.low) < 0.2
    assert full.n_lost == 1
    assert any("1 of full" in doubt for doubt in found.doubts)


def test_no_gain_is_claimed_where_noise_covers_it(tmp_path: Path) -> None:
    best = {"standard": 0.02, "full": 0.019}
    made = Tuning(best=best, multipliers={"standard": 1.0, "full": 1.1}, noise=0.004)
    tuning = evidence(build_tuned(tmp_path, made))
    assert tuning.gains[0].verdict == "no gain found"
    assert gain_sentence(tuning).startswith("No difference between the baseline's values")


def test_a_gain_that_is_one_of_many_needs_more_than_its_own_interval(found: Evidence) -> None:
    (gain,) = (gain for gain in found.gains if gain.arm == "full")
    assert gain.verdict == "tuning helps"
    assert gain.due.excludes(1.0)
    assert replace(gain, p_holm=0.06).verdict == "no gain found"
    assert replace(gain, n_sizes=0, n_same=0, due=undefined("", method="")).verdict == ""


def test_tests_of_a_gain_are_corrected_over_the_arms_that_differ(tmp_path: Path) -> None:
    best = {"standard": 0.02, "full": 0.015, "delta": 0.014, "low_rank": 0.02}
    made = Tuning(best=best, multipliers=dict.fromkeys(best, 1.0), noise=0.002)
    paths = build_tuned(tmp_path, made)
    full, delta, low_rank = evidence(paths).gains
    runs = collect(paths)
    alone = [
        tuning_gains(runs[runs["arm"].isin(["standard", arm])], "standard")[0].p_holm
        for arm in ("full", "delta")
    ]
    assert [full.p_holm, delta.p_holm] == pytest.approx(holm([p or 0.0 for p in alone]))
    assert full.p_holm != alone[0] or delta.p_holm != alone[1]
    assert low_rank.p_holm is None


def test_runs_at_values_of_an_older_search_are_told(tmp_path: Path) -> None:
    paths = build_tuned(tmp_path, Tuning(multipliers=TWO))
    assert not any("do not carry" in doubt for doubt in evidence(paths).doubts)
    tuned = read_tuned(paths.tuned)
    assert tuned is not None
    cells = (tuned.cells[0].model_copy(update={"values": {LR: 0.04}}), *tuned.cells[1:])
    write_tuned(paths.tuned, tuned.model_copy(update={"cells": cells}))
    assert any("2 of 16 runs do not carry" in doubt for doubt in evidence(paths).doubts)


def test_an_arm_without_anything_to_search_carries_the_search_all_the_same(tmp_path: Path) -> None:
    paths = build_tuned(tmp_path, Tuning(multipliers=TWO))
    manifest, tuned = read_manifest(paths), read_tuned(paths.tuned)
    assert tuned is not None
    runs = [
        run.model_copy(update={"tuned": {} if run.arm == "standard" else run.tuned})
        for run in manifest.runs
    ]
    write_manifest(paths, manifest.model_copy(update={"runs": runs}))
    cells = tuple(
        cell.model_copy(update={"values": {} if cell.arm == "standard" else cell.values})
        for cell in tuned.cells
    )
    write_tuned(paths.tuned, tuned.model_copy(update={"cells": cells}))
    for run in runs:
        record = paths.run(run.run_id).record
        record.write_text(json.dumps({**json.loads(record.read_text()), "tuned": run.tuned}))
    assert not any("do not carry" in doubt for doubt in evidence(paths).doubts)


def test_runs_at_the_baselines_rate_change_no_fit(
    tmp_path: Path,
) -> None:
    made = Tuning(multipliers=TWO, noise=0.002, sizes=3, statuses={("full", 1, 0): "diverged"})
    paths = build_tuned(tmp_path / "with", made)
    runs = collect(paths)
    extra = runs[runs["role"] == "equal_rate"]
    assert len(extra) == 6
    assert extra["excluded_because"].notna().all()
    assert "baseline's values" in extra["excluded_because"].iloc[0]
    with_them = fits_json(analyse(runs, "standard"), "s")
    without_equal(paths)
    assert set(collect(paths)["role"]) == {"main"}
    assert with_them == fits_json(analyse(collect(paths), "standard"), "s")
    assert "worst case" not in with_them


def test_arms_at_their_own_rates_still_pair_by_size_and_seed(
    noisy: tuple[SweepPaths, ReportResult],
) -> None:
    used = usable(collect(noisy[0]))
    assert used.groupby("arm")["lr"].unique().map(list).to_dict() == {
        "standard": [0.02],
        "full": [0.005],
        "low_rank": [0.02],
    }
    assert used["pair_key"].nunique() == used["size_key"].nunique() == 4
    for multiplier in compare_arms(used, "standard", FLOPS):
        assert multiplier.paired
        assert multiplier.n_sizes == 4


def test_sweep_at_one_rate_keeps_its_pairs_and_says_that_none_was_searched(
    tmp_path: Path,
) -> None:
    paths = build_sweep(tmp_path, World(multipliers=TWO, shapes=((2, 64), (4, 96)), seeds=(0,)))
    runs = collect(paths)
    assert all('"lr":' in key for key in runs["pair_key"])
    assert read_search(paths, read_manifest(paths), runs) is None
    alone = analyse(runs, "standard")
    rate = runs["lr"].iloc[0]
    assert shared_rate_sentences(alone)[0].startswith(f"All arms share one learning rate, {rate}:")
    assert "tuning" not in json.loads(fits_json(alone, "s"))
    assert of_the_sweep(runs).equals(runs)


def test_optimum_at_the_edge_is_flagged_everywhere(
    tmp_path: Path, looks: dict[str, ArmStyle]
) -> None:
    made = Tuning(factors=(1.0, 2.0), multipliers={"standard": 1.0, "full": 1.0})
    paths = build_tuned(tmp_path, made)
    tuning = evidence(paths)
    assert all(cell.at_edge == (LR,) for cell in tuning.cells)
    assert optima_sentence(tuning) == "0 of 8 optima are interior."
    assert any("lies at the edge" in doubt for doubt in tuning.doubts)
    brackets = trial_brackets(tuning, "standard")[LR].brackets
    assert not any(bracket.interior for bracket in brackets)
    values = tuned_values_data(tuning)
    assert not any(point.interior for panel in values.panels for point in panel.points)
    assert_legible(tuned_values_figure(values, looks), tuned_values_hover(values))


def test_lost_trials_are_told_with_step_and_reason(
    found: Evidence, noisy: tuple[SweepPaths, ReportResult]
) -> None:
    assert {outcome: found.count(outcome) for outcome in ("done", "stopped early")} == {
        "done": 35,
        "stopped early": 1,
    }
    assert "36 trials at 9 of 12 pairs of arm and size: 35 done, 1 stopped early" in (
        search_sentence(found)
    )
    (row,) = csv.DictReader((noisy[0].tables / "tuning_lost.csv").open())
    assert (row["outcome"], row["last_step"], row["size"]) == ("stopped early", "40", "2x64")
    assert row["why"] == f"stopped early {STOPPED}"
    bracket = trial_brackets(found, "standard")[LR].brackets[0]
    assert bracket.lost == pytest.approx((0.005,))
    assert bracket.interior


def test_transferred_values_say_how_far_their_law_was_carried(found: Evidence) -> None:
    law = found.laws[0]
    assert law.law.arm == "standard"
    assert law.beyond == pytest.approx(3.0, rel=0.01)
    assert any("standard at 8x160; full at 8x160" in doubt for doubt in found.doubts)
    panel = tuned_values_data(found).panels[0]
    line = panel.lines[0]
    assert line.measured[1] < line.reach == law.used_at[0]
    assert [point.searched for point in panel.points[:4]] == [True, True, True, False]


def test_law_of_two_sizes_is_doubted(tmp_path: Path) -> None:
    made = Tuning(searched=2, multipliers={"standard": 1.0, "full": 1.0})
    tuning = evidence(build_tuned(tmp_path, made))
    assert [at.beyond for at in tuning.laws] == pytest.approx([9.0, 9.0], rel=0.01)
    assert any("without an interval" in doubt for doubt in tuning.doubts)


def test_trials_of_cells_that_the_grid_dropped_are_not_told(tmp_path: Path) -> None:
    paths = build_tuned(tmp_path, Tuning(multipliers={"standard": 1.0, "full": 1.0}))
    tuned = read_tuned(paths.tuned)
    assert tuned is not None
    cells = (tuned.cells[0].model_copy(update={"key": "f" * 12}), *tuned.cells[1:])
    write_tuned(paths.tuned, tuned.model_copy(update={"cells": cells}))
    assert len(evidence(paths).cells) == 7


def test_page_tables_fits_and_card_tell_of_the_search(
    noisy: tuple[SweepPaths, ReportResult],
) -> None:
    paths, result = noisy
    page = paths.report.read_text()
    assert {"tuning_gain", "lr_brackets", "tuned_values"} <= {p.stem for p in result.figures}
    for text in ("Tuning", "What tuning is worth", "Tuned values", "Laws of transfer"):
        assert f">{text}</h" in page, text
    assert f"seed {TRIAL_SEED}, which no fit uses" in page
    assert "8 more at the baseline&#39;s values" in page
    assert "All arms share one learning rate" not in page
    for stem in ("tuning_gain", "tuned_values", "tuning_laws", "tuning_lost"):
        for suffix in ("csv", "md", "tex"):
            assert (paths.tables / f"{stem}.{suffix}").exists()
    part = json.loads(paths.fits.read_text())["tuning"]
    assert set(part) >= {"brackets", "laws", "multipliers", "doubts", "chosen"}
    assert len(part["brackets"]) == 9
    at_own = {m["arm"]: m["own"]["estimate"] for m in part["multipliers"]}
    comparisons = json.loads(paths.fits.read_text())["comparisons"]["flops"]
    low_rank = next(m for m in comparisons if m["arm"] == "low_rank")
    assert at_own["low_rank"] == low_rank["ratio"]["estimate"]
    card = json.loads((paths.tables / "run_card.json").read_text())["parts"]
    tuned_for = card["Training setup"]["Hyperparameters tuned for"]
    assert tuned_for.startswith("train.lr for each of 3 arms at each size, by bracket")
    assert "3 of 12 by a law over smaller sizes" in tuned_for
    assert "extrapolated" in card["Fit algorithm"]["Doubts"]
    assert "runs.csv" in {path.name for path in paths.tables.iterdir()}
    listed = list(csv.DictReader((paths.tables / "runs.csv").open()))
    assert len(listed) == result.n_runs + 8


def test_figures_of_a_search_are_legible(found: Evidence, looks: dict[str, ArmStyle]) -> None:
    for drawn in tuning_figures(found, "standard", looks, "FLOPs counted."):
        assert_legible(drawn.figure, drawn.hover)
    rows = gains_forest(found.gains, "standard").rows
    assert [row.arm for row in rows] == ["full", "low_rank"]
    assert rows[1].text == "same values"
    assert [bar.currency for bar in rows[0].bars] == ["own", "equal"]


def test_trials_have_no_report_of_their_own(noisy: tuple[SweepPaths, ReportResult]) -> None:
    paths = noisy[0]
    with pytest.raises(DataError, match=f"isoloss report {paths.root.name}$"):
        report(paths.tuning)


def test_two_searched_fields_have_brackets_of_their_own(found: Evidence) -> None:
    rate = "train.residual_lr_scale"
    trials = tuple(
        replace(trial, values={**trial.values, rate: 0.1 * (1 + i % 3)})
        for i, trial in enumerate(found.trials)
        if trial.arm == "full"
    )
    curves = trial_brackets(replace(found, trials=trials), "standard")
    assert list(curves) == [LR, rate]
    assert curves[rate].joined
    sampled = found.tuned.model_copy(update={"method": "tpe"})
    scattered = trial_brackets(replace(found, trials=trials, tuned=sampled), "standard")
    assert not scattered[rate].joined


def test_budgets_of_one_trunk_are_told_and_count_once_in_the_law_of_n_and_d() -> None:
    runs = pd.DataFrame(
        [
            {
                "run_id": f"{arm}{n:g}{d:g}",
                "arm": arm,
                "cell": f"{arm}{n:g}{d:g}",
                "size": f"{n:g} {d:g}",
                "size_key": f"{n:g} {d:g}",
                "pair_key": f"{n:g} {d:g}",
                "seed": 0,
                "n_params": n,
                "tokens": d,
                "flops": 6.0 * n * d,
                "flops_without_residual": 6.0 * n * d,
                "train_s": math.nan,
                "loss_nats": 1.5 + 400 * n**-0.35 + 400 * d**-0.35 - shift,
                "status": "done",
                "excluded_because": None,
                "in_grid": True,
                "role": "main",
                "trunk": f"{arm}{n:g}",
                "branched_at": math.nan if d == 8e8 else 10,
            }
            for arm, shift in (("standard", 0.0), ("full", 0.05))
            for n in (1e6, 2e6, 4e6, 8e6, 1.6e7)
            for d in (1e8, 2e8, 4e8, 8e8)
        ]
    )
    assert on_shared_trunks(runs).all()
    said = trunk_sentences(runs, runs)
    assert said[0].startswith("30 runs branched from 10 shared trunks")
    assert "10 trunks with several budgets each" in said[1]
    study = analyse(runs, "standard")
    assert not isinstance(study.joint, str)
    assert "10 clusters independent" in study.joint.method
    (full,) = study.comparisons["flops"]
    assert any(note.startswith("shared_trunk:") for note in full.notes)
    lone = analyse(runs.assign(trunk=None, branched_at=math.nan), "standard")
    assert not isinstance(lone.joint, str)
    assert "points independent" in lone.joint.method
    assert not any("shared_trunk" in n for m in lone.comparisons["flops"] for n in m.notes)
    assert run_card(lone, "s").n_entries == run_card(study, "s").n_entries
