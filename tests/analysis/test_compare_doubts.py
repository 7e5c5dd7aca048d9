from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.cells import FLOPS, Currency, MatchedSize, pair_points
from analysis.collect import collect, usable
from analysis.compare.arms import compare_arms
from analysis.compare.doubts import crossing, seed_doubt, seed_spread, slope_doubt
from analysis.compare.fieller import slope_difference
from analysis.compare.matching import match_table
from analysis.compare.pairwise import pairwise_arms, pairwise_sentence
from analysis.compare.sensitivity import SensitivityRow, sensitivity
from analysis.compare.shown import judged_width
from analysis.estimates import Interval, ratio_parts
from analysis.laws import Floats
from tests.analysis.published_losses import delta_runs, draw_pairs, kimi_runs
from tests.analysis.synthetic_sweep import MULTIPLIERS, World, build_sweep, run_id


def test_arm_that_crosses_the_baseline_has_no_single_multiplier() -> None:
    found = {m.arm: m for m in compare_arms(delta_runs(), "baseline", FLOPS)}
    for arm in ("attnres_block", "attnres_full"):
        crossed = found[arm]
        assert crossed.ratio.estimate is None
        assert crossed.ratio.reason is not None
        assert crossed.ratio.reason.startswith("crossing: ")
        assert crossed.verdict == "undefined"
        assert [at.loss_difference < 0 for at in crossed.by_size] == [True, True, False]
        assert crossed.wild.estimate is None
        assert crossed.simultaneous.estimate is None
    # These two are better at every size.
    assert all(found[arm].ratio.estimate for arm in ("delta_block", "delta_attnres"))


def test_arm_without_an_effect_is_not_called_crossing() -> None:
    rng = np.random.default_rng(11)
    drawn = [draw_pairs(rng, 4, 1.0, 0.003, 0.0015) for _ in range(300)]
    flagged = [crossing(pairs, slope_difference(pairs)) is not None for pairs in drawn]
    assert np.mean(flagged) < 0.01


def test_repeats_that_scatter_as_much_as_the_ends_differ_forbid_to_call_it_a_crossing() -> None:
    pairs = draw_pairs(np.random.default_rng(0), 3, 1.0, 0.0, 0.0, trend=0.02)
    pairs = [replace(p, log_excess_arm=p.log_excess_arm + 0.02) for p in pairs]
    trend = slope_difference(pairs)
    assert crossing(pairs, trend) is not None
    quiet, noisy = (seed_spread(repeats(gap)) for gap in (0.001, 0.05))
    assert crossing(pairs, trend, quiet) is not None
    assert crossing(pairs, trend, noisy) is None


def repeats(gap: float, n_sizes: int = 3) -> list[MatchedSize]:
    """Two pairs of runs at each size whose log differences lie ``gap`` apart."""
    losses = np.exp(np.array([0.0, gap]))
    return [MatchedSize(f"s{i}", 0.0, 0.0, losses, np.ones(2), 2) for i in range(n_sizes)]


def test_seed_noise_above_the_scatter_over_sizes_is_noted_and_below_it_too() -> None:
    pairs = draw_pairs(np.random.default_rng(2), 5, 1.2, 0.0, 0.002)
    notes = [seed_doubt(pairs, seed_spread(repeats(gap, 5))) or "" for gap in (0.03, 0.003, 1e-5)]
    assert [note.partition(":")[0] for note in notes] == ["seed_noise", "", "lack_of_fit"]


def test_deviations_that_the_arms_share_are_noted_where_they_dominate() -> None:
    rng = np.random.default_rng(4)
    quiet = [slope_doubt(draw_pairs(rng, 5, 1.25, 0.0, 0.003)) for _ in range(50)]
    loud = [slope_doubt(draw_pairs(rng, 5, 1.25, 0.01, 0.0005)) for _ in range(50)]
    assert sum(note is not None for note in quiet) <= 2
    assert sum(note is not None for note in loud) >= 40


def test_interval_too_wide_to_be_of_use_keeps_its_ends_and_does_not_print_them() -> None:
    wide = judged_width(Interval(estimate=19.4, low=0.001, high=4e5, method="m"))
    assert (wide.low, wide.high) == (0.001, 4e5)
    assert wide.reason is not None
    assert wide.reason.startswith("too wide to be of use: ")
    assert ratio_parts(wide) == ("19.40", "[too wide]")
    narrow = Interval(estimate=1.2, low=1.1, high=1.3, method="m")
    assert judged_width(narrow) == narrow


MATCHED = ["size_key", "pair_key", "seed"]


def merged_sizes(
    used: pd.DataFrame, arm: str, baseline: str, currency: Currency
) -> tuple[MatchedSize, ...]:
    """The same by a merge of two frames."""
    rows = used[used[currency.column].notna()]
    rows = rows[["arm", "size", *MATCHED, "loss_nats", currency.column]]
    base = rows[rows["arm"] == baseline]
    joined = base.merge(rows[rows["arm"] == arm], on=MATCHED, suffixes=("_base", "_arm"))
    matched = [_match(group, currency) for _, group in joined.groupby("size_key")]
    return tuple(sorted(matched, key=lambda match: match.log_compute_base))


def _match(group: pd.DataFrame, currency: Currency) -> MatchedSize:
    def column(name: str) -> Floats:
        return np.asarray(group[name], dtype=np.float64)

    return MatchedSize(
        size=str(group["size_base"].iloc[0]),
        log_compute_base=float(np.log(column(f"{currency.column}_base")).mean()),
        log_compute_arm=float(np.log(column(f"{currency.column}_arm")).mean()),
        losses_base=column("loss_nats_base"),
        losses_arm=column("loss_nats_arm"),
        n_seeds=int(group["seed"].nunique()),
    )


def test_matching_all_arms_at_once_gives_what_merging_two_frames_does(tmp_path: Path) -> None:
    statuses = {run_id("full", 1, 0): "failed", run_id("standard", 3, 1): "diverged"}
    used = usable(collect(build_sweep(tmp_path, World(statuses=statuses, noise=0.01))))
    table = match_table(used, FLOPS)
    for arm in MULTIPLIERS:
        expected = merged_sizes(used, arm, "standard", FLOPS)
        found = table.match(arm, "standard")
        assert pair_points(found) == pytest.approx(pair_points(expected))


def test_published_variants_do_not_separate_from_each_other() -> None:
    runs = kimi_runs()
    tests = pairwise_arms(runs[runs["arm"] != "baseline"])
    p = {(test.first, test.second): test.p_value for test in tests}
    # Paired t on ln L over the five sizes, computed independently of this code base.
    assert p["block_attnres", "full_attnres"] == pytest.approx(0.05, abs=0.005)
    assert p["block_attnres", "mhc_lite"] > 0.2
    assert p["full_attnres", "mhc_lite"] > 0.2
    assert all((test.p_holm or 0.0) > 0.05 for test in tests)
    assert pairwise_sentence(tests).startswith("The variants do not separate from each other")


def test_pairs_that_do_separate_are_named_with_the_better_one_first(tmp_path: Path) -> None:
    used = usable(collect(build_sweep(tmp_path, World(noise=0.0005))))
    tests = pairwise_arms(used[used["arm"].isin(["full", "multi_stream"])])
    assert pairwise_sentence(tests).startswith(
        "After Holm's correction over the pair, these variants differ: full below multi_stream"
    )
    assert pairwise_sentence([]) == ""


def rows_of(runs: pd.DataFrame, arm: str = "full") -> dict[str, list[SensitivityRow]]:
    found: dict[str, list[SensitivityRow]] = {}
    for row in sensitivity(runs, arm, "standard"):
        found.setdefault(row.kind, []).append(row)
    return found


def test_every_choice_recovers_the_multiplier_of_a_noise_free_law(tmp_path: Path) -> None:
    rows = rows_of(collect(build_sweep(tmp_path)))
    assert "with_excluded" not in rows
    for kind in ("headline", "drop_smallest", "drop_largest", "unpaired", "wild", "slope_by_size"):
        assert rows[kind][0].ratio.estimate == pytest.approx(1.3, rel=1e-4), kind
    assert rows["drop_smallest"][0].label == "without 2x64"
    assert rows["drop_largest"][0].label == "without 8x160"
    by_label = {row.label: row.ratio.estimate for row in rows["currency"]}
    assert by_label["counted in wall-clock"] == pytest.approx(1.3 / 1.1, rel=1e-4)
    assert "counted in tokens" in by_label
    assert rows["flop_convention"][0].ratio.estimate is not None
    assert rows["E"][0].ratio.estimate == pytest.approx(1.3, rel=1e-4)
    assert len(rows["E"]) == 7


def test_diverged_run_counts_in_the_worst_case_at_the_worst_loss_of_its_size(
    tmp_path: Path,
) -> None:
    gone = run_id("full", 2, 1)
    runs = collect(build_sweep(tmp_path, World(statuses={gone: "diverged"})))
    (worst,) = rows_of(runs)["with_excluded"]
    # The same by hand: the run takes the loss of the worst arm there, multi_stream.
    by_hand = runs.copy()
    at_size = by_hand["size"] == "6x128"
    at = by_hand["run_id"] == gone
    by_hand.loc[at, "loss_nats"] = by_hand.loc[at_size & ~at, "loss_nats"].max()
    by_hand.loc[at, "excluded_because"] = None
    full = next(m for m in compare_arms(usable(by_hand), "standard", FLOPS) if m.arm == "full")
    assert worst.ratio.estimate == pytest.approx(full.ratio.estimate)
    assert worst.ratio.estimate < 1.3
    assert worst.label.startswith("worst case: 1 diverged or failed runs")


def test_run_that_nothing_is_known_of_is_left_out_of_the_worst_case_and_it_is_said(
    tmp_path: Path,
) -> None:
    statuses = {run_id(arm, 3, seed): "failed" for arm in MULTIPLIERS for seed in (0, 1)}
    runs = collect(build_sweep(tmp_path, World(statuses=statuses)))
    (worst,) = rows_of(runs)["with_excluded"]
    assert worst.label.endswith("; 2 left out, no run of their size ended")
