from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.collect import (
    COLUMNS,
    collect,
    compact,
    read_diagnostics,
    read_loss_curve,
    usable,
    write_table,
)
from harness.errors import DataError
from harness.paths import sweep_paths
from harness.records import read_manifest, write_manifest
from tests.analysis.synthetic_sweep import MULTIPLIERS, World, build_sweep, run_id

REQUIRED = {
    *("run_id", "sweep", "residual", "residual_options", "n_layers", "d_model", "block_size"),
    *("seq_len", "seed", "lr", "batch_tokens", "steps", "tokens", "n_params"),
    *("n_params_non_embedding", "flops", "flops_6nd", "loss_nats", "bits_per_byte", "loss_curve"),
    *("tokens_per_s", "wall_s", "peak_bytes", "status", "excluded_because", "attempts"),
    *("code_version", "library_versions"),
}


def test_every_run_of_the_grid_appears_whatever_became_of_it(tmp_path: Path) -> None:
    statuses = {
        run_id("full", 0, 0): "planned",
        run_id("full", 0, 1): "running",
        run_id("full", 1, 0): "diverged",
        run_id("full", 1, 1): "failed",
        run_id("full", 2, 0): "cancelled",
    }
    runs = collect(build_sweep(tmp_path, World(statuses=statuses))).set_index("run_id")
    assert len(runs) == len(MULTIPLIERS) * 4 * 2
    assert {key: runs.loc[key, "status"] for key in statuses} == statuses
    reasons = [runs.loc[key, "excluded_because"] for key in statuses]
    assert reasons == [
        "not started",
        "not finished",
        "diverged in a test",
        "failed in a test",
        "cancelled in a test",
    ]
    assert runs["excluded_because"].notna().sum() == len(statuses)


def test_contract_columns_are_there_and_nulls_stay_null(tmp_path: Path) -> None:
    waiting = run_id("full", 0, 0)
    runs = collect(build_sweep(tmp_path, World(statuses={waiting: "planned"})))
    assert set(runs.columns) >= REQUIRED
    row = runs.set_index("run_id").loc[waiting]
    assert row[["loss_nats", "wall_s", "peak_bytes", "code_version"]].isna().all()
    assert row["flops"] > 0
    assert runs["peak_bytes"].isna().all()


def test_parquet_gives_back_the_frame(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path)
    runs = collect(paths)
    write_table(runs, paths)
    back = pd.read_parquet(paths.table)
    assert list(back.columns) == list(COLUMNS)
    pd.testing.assert_frame_equal(back, runs, check_dtype=False)
    assert [path.name for path in paths.root.glob(".runs*")] == []


def test_record_that_the_grid_no_longer_asks_for_is_kept_and_excluded(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path)
    manifest = read_manifest(paths)
    gone = manifest.runs[-1].run_id
    write_manifest(paths, manifest.model_copy(update={"runs": manifest.runs[:-1]}))
    runs = collect(paths)
    row = runs.iloc[-1]
    assert (row["run_id"], row["excluded_because"]) == (gone, "no longer in the grid")
    assert row["loss_nats"] > 0
    assert gone not in set(usable(runs)["run_id"])


def test_damaged_record_excludes_its_run_and_spoils_no_other(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path)
    hurt = run_id("full", 0, 0)
    paths.run(hurt).record.write_text('{"run_id": ')
    runs = collect(paths).set_index("run_id")
    assert runs.loc[hurt, "excluded_because"].startswith("unreadable record: ")
    assert runs["excluded_because"].notna().sum() == 1


def test_sweep_that_was_never_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such sweep"):
        collect(sweep_paths(tmp_path, "absent"))


def test_sizes_are_labelled_by_what_tells_them_apart(tmp_path: Path) -> None:
    shapes = collect(build_sweep(tmp_path / "a"))
    assert list(dict.fromkeys(shapes["size"])) == ["2x64", "4x96", "6x128", "8x160"]
    one_shape = collect(build_sweep(tmp_path / "b", World(shapes=[(2, 64)] * 3)))
    labels = list(dict.fromkeys(one_shape["size"]))
    assert labels == ["2x64 1e12 FLOPs", "2x64 3e12 FLOPs", "2x64 9e12 FLOPs"]


def test_sizes_that_differ_in_what_no_label_shows_are_numbered(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path, World(shapes=((2, 64),), seeds=(0, 1)))
    manifest = read_manifest(paths)
    for run in manifest.runs:
        run.config["model"]["d_ff"] = 100 + run.config["seed"]
    write_manifest(paths, manifest)
    assert list(dict.fromkeys(collect(paths)["size"])) == ["2x64", "2x64 #2"]


def test_numbers_in_labels_have_no_padded_exponent() -> None:
    assert [compact(value) for value in (4.1e5, 1e12, 20.0)] == ["4.1e5", "1e12", "20"]


def test_loss_curve_and_diagnostics_are_read_in_order_of_steps(tmp_path: Path) -> None:
    run = build_sweep(tmp_path).run(run_id("full", 0, 0))
    curve = read_loss_curve(run)
    assert curve["step"].is_monotonic_increasing
    assert set(curve["kind"]) == {"train", "val"}
    assert [row["kind"] for row in read_diagnostics(run)] == ["diagnostics"]
    assert read_diagnostics(sweep_paths(tmp_path, "none").run("absent")) == []
