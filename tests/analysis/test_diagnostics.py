"""Tidy diagnostics, the choice of runs, and what figures of diagnostics are drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.collect import collect, usable
from analysis.diagnostics import (
    COLUMNS,
    Chosen,
    Measurement,
    choose,
    kind_of,
    measurements,
    read_all,
    save_tidy,
    tidy,
)
from analysis.figures.depth import depth_profile, run_figures
from analysis.figures.depth_reads import depth_attention, merge_labels, read_profile
from analysis.figures.depth_sources import (
    Causes,
    causes,
    contributions,
    labels,
    mixing_profile,
    source_mass,
)
from analysis.page.diagnostics_table import reads_table
from harness.paths import RunPaths, SweepPaths
from harness.records import append_jsonl
from tests.analysis.synthetic_diagnostics import row_of
from tests.analysis.synthetic_sweep import MULTIPLIERS, World, build_sweep, run_id


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    return build_sweep(tmp_path_factory.mktemp("sweep"), World(shapes=((2, 64), (3, 96))))


def of(name: str, n_sublayers: int = 8, **changes: Any) -> Measurement:
    return Measurement(name, row_of(name, n_sublayers) | changes)


def test_one_run_per_arm_is_chosen_at_the_largest_size_with_the_lowest_seed(
    paths: SweepPaths,
) -> None:
    runs = collect(paths)
    chosen = choose(read_all(paths, runs), usable(runs), list(MULTIPLIERS))
    assert chosen is not None
    assert chosen.size == "3x96"
    assert [run.arm for run in chosen.runs] == list(MULTIPLIERS)
    assert {run.n_sublayers for run in chosen.runs} == {6}


def test_the_choice_falls_back_to_the_largest_size_most_arms_finished(tmp_path: Path) -> None:
    statuses = {
        run_id(arm, 1, seed): "failed" for arm in MULTIPLIERS if arm != "full" for seed in (0, 1)
    }
    paths = build_sweep(tmp_path, World(shapes=((2, 64), (3, 96)), statuses=statuses))
    runs = collect(paths)
    chosen = choose(read_all(paths, runs), usable(runs), list(MULTIPLIERS))
    assert chosen is not None
    assert (chosen.size, len(chosen.runs)) == ("2x64", 6)


def test_a_step_measured_twice_counts_once(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for step, attempt in ((10, 1), (20, 1), (10, 2), (20, 2)):
        append_jsonl(run.diagnostics, row_of("full", 4, step) | {"attempt": attempt})
    rows = measurements(run)
    assert [(row["step"], row["attempt"]) for row in rows] == [(10, 2), (20, 2)]


def test_tidy_rows_hold_every_number_once(paths: SweepPaths) -> None:
    runs = collect(paths)
    frame = tidy(read_all(paths, runs), runs)
    assert list(frame.columns) == list(COLUMNS)
    keys = ["run_id", "step", "t", "metric", "source"]
    assert not frame.duplicated(keys).any()
    assert set(frame["run_id"]) == set(runs["run_id"])
    block = frame[(frame["run_id"] == run_id("block(block_size=4)", 1, 0))]
    assert set(block["arm"]) == {"block(block_size=4)"}
    weights = block[(block["metric"] == "mean_weight") & (block["t"] == 5)]
    assert list(weights["source"]) == ["embedding", "block 1", "partial"]
    assert weights["value"].sum() == pytest.approx(1.0)
    gradients = block[block["metric"] == "layer_grad_rms"]
    assert list(gradients["t"]) == [1, 3, 5]
    changes = block[block["metric"] == "loss_change_nats"]
    assert changes["t"].isna().all()
    assert changes["source"].iloc[0] == "embedding"
    head = block[(block["metric"] == "n_sources") & (block["kind"] == "head")]
    assert [(r.t, r.value) for r in head.itertuples()] == [(6, 3.0)]


def test_tidy_rows_by_source_come_from_the_last_measurement() -> None:
    rows = [row_of("full", 4, step) for step in (10, 20)]
    runs = pd.DataFrame([{"run_id": "a", "arm": "full", "size": "2x8", "seed": 0}])
    frame = tidy({"a": rows}, runs)
    assert set(frame["step"]) == {10, 20}
    assert set(frame.loc[frame["metric"] == "mean_weight", "step"]) == {20}
    assert set(frame.loc[frame["metric"] == "contribution", "step"]) == {20}


def test_tidy_takes_stream_mixing_and_rows_of_older_versions() -> None:
    runs = pd.DataFrame(
        [{"run_id": name, "arm": name, "size": "2x8", "seed": 0} for name in ("mhc", "old")]
    )
    old = {"step": 5, "input_rms": [1.0, 2.0], "grad_rms": [3.0, None], "reads": []}
    frame = tidy({"mhc": [row_of("mhc", 4)], "old": [old]}, runs)
    mass = frame[frame["metric"] == "mixing_off_diagonal_mass"]
    assert list(mass["value"]) == pytest.approx([0.05, 0.06, 0.07, 0.08])
    assert list(mass["kind"]) == ["attention", "mlp"] * 2
    few = frame[frame["run_id"] == "old"]
    assert list(few["metric"]) == ["input_rms"] * 2 + ["grad_rms"] * 2
    assert few["value"].isna().sum() == 1


def test_tidy_files_hold_the_same_rows(tmp_path: Path) -> None:
    runs = pd.DataFrame([{"run_id": "a", "arm": "full", "size": "2x8", "seed": 0}])
    frame = tidy({"a": [row_of("full", 4)]}, runs)
    save_tidy(frame, tmp_path)
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    save_tidy(frame, tmp_path)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "diagnostics.csv",
        "diagnostics.parquet",
    ]
    read = pd.read_csv(tmp_path / "diagnostics.csv", dtype={"run_id": str})
    assert list(read["value"]) == pytest.approx(list(frame["value"]), nan_ok=True)
    stored = pd.read_parquet(tmp_path / "diagnostics.parquet")
    assert stored.to_csv(index=False) == (tmp_path / "diagnostics.csv").read_text()


def test_reads_are_told_by_what_they_feed() -> None:
    assert [kind_of(t, 4) for t in range(5)] == ["attention", "mlp", "attention", "mlp", "head"]


def test_heat_maps_split_reads_before_attention_mlp_and_head() -> None:
    found = depth_attention(of("block"))
    assert found.sources == ("embedding", "block 1", "block 2", "partial")
    assert found.maps["attention"].layers == (0, 1, 2, 3)
    assert found.maps["mlp"].layers == (0, 1, 2, 3)
    assert found.maps["head"].weights.shape == (1, 4)
    for heat_map in found.maps.values():
        assert np.nansum(heat_map.weights, axis=1) == pytest.approx(1.0)
    # Read 4 opens a block: no partial yet. Read 5 sees one.
    assert np.isnan(found.maps["attention"].weights[2, 3])
    assert np.isfinite(found.maps["mlp"].weights[2, 3])


def test_sources_keep_the_order_of_every_reader() -> None:
    rows = [["embedding"], ["embedding", "partial"], ["embedding", "block 1"]]
    rows += [["embedding", "block 1", "partial"], ["embedding", "block 1", "block 2", "partial"]]
    assert merge_labels(rows) == ["embedding", "block 1", "block 2", "partial"]


def test_read_profiles_leave_out_reads_without_a_choice() -> None:
    found = read_profile(of("full", 4))
    assert list(found.t) == [1, 2, 3, 4]
    assert list(found.n_sources) == [2, 3, 4, 5]
    assert found.kinds == ("mlp", "attention", "mlp", "head")
    assert found.values["rank_share"] == pytest.approx([1.5 / 2, 2 / 3, 2.5 / 4, 3 / 5])
    assert found.values["query_norm"] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_contributions_are_shares_of_their_read() -> None:
    found = contributions(of("full", 4))
    assert len(found.roles) == 2 + 3 + 4 + 5
    assert found.roles[2:5] == ("embedding", "older", "newest")
    assert found.share[:2].sum() == pytest.approx(1.0)
    assert found.share[5:9].sum() == pytest.approx(1.0)
    # Contributions fall from 3 to 1 times the weight, so that old sources lie above the diagonal.
    assert found.share[0] > found.weight[0]
    assert found.share[-1] < found.weight[-1]


def test_causes_pair_the_loss_with_the_mass_where_a_source_is_seen() -> None:
    run = of("block")
    found = causes(run)
    assert found.sources == ("embedding", "partial", "block 1", "block 2")
    assert list(found.loss_change) == pytest.approx([0.5, 0.25, 0.5 / 3, 0.125])
    partial = [r["mean_weights"][-1] for r in run.reads if r["labels"][-1] == "partial"]
    assert found.mass[1] == pytest.approx(np.mean(partial))
    # The embedding is alone at read 0, which says nothing of it.
    assert source_mass(run)["embedding"] == pytest.approx(
        np.mean([read["mean_weights"][0] for read in run.reads[1:]])
    )


def test_outstanding_sources_are_named_away_from_the_edge_and_each_other() -> None:
    changes = np.array([1.0, 0.2, 0.1, 0.001, 0.002])
    data = Causes("a", tuple("abcde"), np.array([0.1, 0.4, 0.38, 0.2, 0.3]), changes)
    placed = {label.text: label for label in labels(data)}
    assert set(placed) == {"a", "b", "c"}
    assert (placed["a"].on_left, placed["b"].on_left) == (False, True)
    assert (placed["b"].above, placed["c"].above) == (True, False)


def test_norms_and_gradients_go_by_layer() -> None:
    row = row_of("standard", 8)
    found = depth_profile(Measurement("standard", row))
    assert list(found.layer_state_rms) == row["state_rms"][1::2]
    assert list(found.layer_grad_rms) == row["layer_grad_rms"]
    assert list(found.attention_grad_l2) == row["param_grad_l2"][::2]
    assert list(found.mlp_grad_l2) == row["param_grad_l2"][1::2]


def test_runs_of_older_versions_show_the_gradient_of_their_outputs() -> None:
    row = row_of("full", 8)
    del row["layer_grad_rms"], row["param_grad_l2"]
    found = depth_profile(Measurement("full", row))
    assert list(found.layer_grad_rms) == row["grad_rms"][1::2]
    assert len(found.mlp_grad_l2) == 0


def test_mixing_goes_by_read_and_is_empty_for_one_stream() -> None:
    found = mixing_profile(of("mhc", 4))
    assert list(found.t) == [0, 1, 2, 3]
    assert found.values["grad_norm"] == pytest.approx([0, 1e-4, 2e-4, 3e-4])
    assert len(mixing_profile(of("full")).t) == 0


def test_the_table_of_reads_names_the_heaviest_and_the_most_missed_source() -> None:
    changes = [{"source": "embedding", "loss_change_nats": 0.1}]
    changes += [{"source": "t1", "loss_change_nats": 0.7}]
    chosen = Chosen("4x8", (of("standard"), of("full", masking=changes), of("block")))
    table = reads_table(chosen)
    assert [row["arm"] for row in table.raw] == ["full", "block"]
    full = table.raw[0]
    assert full["n_reads"] == 8
    assert (full["largest_loss_change_source"], full["largest_loss_change"]) == ("t1", 0.7)
    reads = row_of("full", 8)["reads"][1:]
    assert full["normalised_entropy"] == pytest.approx(
        np.mean([read["normalised_entropy"] for read in reads])
    )
    assert full["largest_mass_source"] == "t0"
    assert len(table.header) == len(table.cells[0])


def test_figures_of_a_run_come_from_its_own_files(paths: SweepPaths) -> None:
    reading = run_figures(paths.run(run_id("full", 0, 0)))
    assert set(reading) == {
        "loss_curve",
        "norms_by_depth",
        "gradient_by_depth",
        "depth_attention",
    }
    plain = run_figures(paths.run(run_id("standard", 0, 0)))
    assert set(plain) == {"loss_curve", "norms_by_depth", "gradient_by_depth"}
    assert run_figures(paths.run("absent")) == {}
