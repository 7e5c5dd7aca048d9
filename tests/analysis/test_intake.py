"""Anybody's table of runs: read, mapped, turned into runs that the fits take."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.collect import COLUMNS, collect, usable, write_table
from analysis.fit.joint import JointFit
from analysis.intake.columns import choose
from analysis.intake.fit_table import fit_table
from analysis.intake.mlflow import read_store
from analysis.intake.options import FitOptions, TableOptions
from analysis.intake.table import StudyTable, read_table
from harness.mirror_view import view_run
from harness.records import read_manifest
from tests.analysis.synthetic_sweep import World, build_sweep

DATA = Path(__file__).resolve().parent.parent / "data"
TABLE_2 = DATA / "attnres_kimi2026" / "table2_losses.csv"
EXPECTED = json.loads((DATA / "expected.json").read_text())
PUBLISHED = {"A": 482.01, "B": 2085.43, "E": 1.8169, "alpha": 0.34781, "beta": 0.36585}


def read(path: Path | str, **options: Any) -> StudyTable:
    return read_table(str(path), TableOptions(**options))


def written(folder: Path, text: str, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def losses(table: StudyTable) -> dict[tuple[str, float], float]:
    used = usable(table.runs)
    return {
        (str(arm), float(n)): float(loss)
        for arm, n, loss in zip(used["arm"], used["n_params"], used["loss_nats"], strict=True)
    }


@pytest.fixture(scope="module")
def table_2() -> dict[tuple[str, float], float]:
    with TABLE_2.open() as file:
        rows = list(csv.DictReader(file))
    arms = [name for name in rows[0] if name not in ("active_params", "tokens")]
    return {(a, float(r["active_params"])): float(r[a]) for r in rows for a in arms}


def test_a_wide_table_gives_one_run_per_cell(table_2: dict[tuple[str, float], float]) -> None:
    table = read(TABLE_2)
    assert losses(table) == table_2
    assert table.baseline == "baseline"
    assert table.wide
    assert list(table.runs.columns) == [*COLUMNS, "cluster"]
    first = table.runs.iloc[0]
    assert first["flops"] == pytest.approx(6 * 194e6 * 38.7e9, rel=1e-14)
    assert table.flop_convention == "C = 6 N D"


@pytest.mark.parametrize("export", ["wandb_page.csv", "wandb_api.csv"])
def test_an_export_of_wandb_holds_the_same_runs(
    export: str, table_2: dict[tuple[str, float], float]
) -> None:
    assert losses(read(DATA / "tables" / export)) == table_2


def test_a_state_of_wandb_becomes_the_reason_of_an_exclusion() -> None:
    runs = read(DATA / "tables" / "wandb_page.csv").runs.set_index("run_id")
    excluded = runs["excluded_because"].dropna()
    assert dict(excluded) == {"full_attnres-5": "crashed", "mhc_lite-5": "not finished"}


@pytest.mark.parametrize("kind", ["tsv", "semicolon", "jsonl", "parquet"])
def test_every_kind_of_file_holds_the_same_runs(
    kind: str, tmp_path: Path, table_2: dict[tuple[str, float], float]
) -> None:
    frame = pd.read_csv(TABLE_2)
    path = tmp_path / f"table.{'csv' if kind == 'semicolon' else kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, sep="\t" if kind == "tsv" else ";", index=False)
    assert losses(read(path)) == table_2


def test_units_in_names_and_options_are_obeyed(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "params_m,tokens (B),flops_pf_days,xx,loss_bits,train_time_h\n"
        "194,38.7,0.5,2,2.0,1\n241,45.4,0.8,3,1.9,2\n",
    )
    row = read(path).runs.iloc[0]
    assert row["n_params"] == 194e6
    assert row["tokens"] == 38.7e9
    assert row["flops"] == pytest.approx(0.5 * 8.64e19)
    assert row["loss_nats"] == pytest.approx(2.0 * math.log(2))
    assert row["train_s"] == 3600
    assert read(path, columns={"n": "xx*1e8"}).runs["n_params"].tolist() == [2e8, 3e8]


def test_sizes_written_with_a_letter_are_counts(tmp_path: Path) -> None:
    path = written(tmp_path, "Model Size,D,val_loss\n194M,38.7B,1.9\n1.2B,0.1T,1.8\n")
    runs = read(path).runs
    assert runs["n_params"].tolist() == [194e6, 1.2e9]
    assert runs["tokens"].tolist() == [38.7e9, 0.1e12]


def test_a_perplexity_is_its_logarithm() -> None:
    table = read(DATA / "delta_attnres2026" / "val_ppl.csv")
    assert table.runs["loss_nats"].iloc[0] == pytest.approx(math.log(38.71), rel=1e-15)
    assert table.columns["loss = ln"] == "val_ppl"


@pytest.mark.parametrize(
    ("names", "role", "expected"),
    [
        (["Model Size", "Training FLOP", "loss"], "c", "Training FLOP"),
        (["train_loss", "val/loss"], "loss", "val/loss"),
        (["c4_ce_last", "c4_ce_last5mean"], "loss", "c4_ce_last5mean"),
        (["n_params_non_embedding", "N"], "n", "N"),
        (["Name", "State"], "status", "State"),
    ],
)
def test_columns_are_known_by_their_names(names: list[str], role: Any, expected: str) -> None:
    chosen, problems = choose(names, {})
    assert chosen[role].name == expected
    assert not problems


def test_missing_tokens_follow_from_compute() -> None:
    runs = read(DATA / "chinchilla_epoch" / "svg_extracted_data.csv").runs
    ratio = runs["flops"] / (6 * runs["n_params"] * runs["tokens"])
    assert np.allclose(ratio, 1, rtol=1e-14)


def test_the_highest_losses_are_excluded_with_ties(tmp_path: Path) -> None:
    path = written(tmp_path, "N,D,loss\n1e8,1e9,5\n2e8,1e9,4\n3e8,1e9,4\n4e8,1e9,3\n5e8,1e9,2\n")
    runs = read(path, drop_highest=2).runs
    assert runs["excluded_because"].notna().tolist() == [True, True, True, False, False]
    assert "--drop-highest 2" in runs["excluded_because"].iloc[0]


def test_conditions_choose_rows() -> None:
    path = DATA / "porian2024" / "isoflop_points.csv"
    table = read(path, where=("hparams=tuned", "warmup=short", "val=val", "flops<1e17"))
    with path.open() as file:
        truth = [
            float(row["loss"])
            for row in csv.DictReader(file)
            if (row["hparams"], row["warmup"], row["val"]) == ("tuned", "short", "val")
            and float(row["flops"]) < 1e17
        ]
    assert sorted(table.runs["loss_nats"]) == sorted(truth)
    assert "left out by --where" in table.notes[0]


def test_the_last_checkpoint_of_each_run_is_kept() -> None:
    path = DATA / "gemstones" / "wandb_df_for_fitting_hot.jsonl"
    last: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["tokens"] > last.get(row["run_name"], {"tokens": 0})["tokens"]:
            last[row["run_name"]] = row
    runs = read(path, last_checkpoint=True).runs.set_index("run_id")
    assert dict(runs["loss_nats"]) == {name: row["final_loss"] for name, row in last.items()}


def test_a_variant_with_parameters_of_its_own_is_paired_by_size(tmp_path: Path) -> None:
    lines = [
        f"{arm},{n * (1.02 if arm == 'wide' else 1)},{20 * n},{seed},{3 - 0.1 * i}"
        for i, n in enumerate((1e8, 2e8, 4e8))
        for arm in ("standard", "wide")
        for seed in (3, 7)
    ]
    runs = read(written(tmp_path, "method,N,D,seed,loss\n" + "\n".join(lines))).runs
    assert runs.groupby("size_key").size().tolist() == [4, 4, 4]
    assert sorted(runs["seed"].unique()) == [3, 7]


def test_a_table_of_a_sweep_is_taken_as_it_is(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path)
    runs = collect(paths)
    write_table(runs, paths)
    table = read(paths.table)
    assert table.own
    assert table.baseline == "standard"
    for name in COLUMNS:
        assert known(table.runs[name]) == known(runs[name]), name


class Client:
    """An MLflow store of given runs that hands out a few at a time."""

    def __init__(self, runs: list[Any], page: int) -> None:
        self.runs, self.page, self.asked = runs, page, 0

    def search_experiments(self, **_: Any) -> Any:
        names = {"Default": "0", "synthetic": "7"}
        found = [SimpleNamespace(name=n, experiment_id=i) for n, i in names.items()]
        return _Page(found, None)

    def search_runs(self, ids: list[str], max_results: int, page_token: str | None) -> Any:
        assert ids == ["7"]
        self.asked += 1
        start = int(page_token or 0)
        end = start + self.page
        return _Page(self.runs[start:end], str(end) if end < len(self.runs) else None)


class _Page(list[Any]):
    def __init__(self, found: list[Any], token: str | None) -> None:
        super().__init__(found)
        self.token = token


def test_our_own_mirror_in_mlflow_holds_the_sweep(tmp_path: Path) -> None:
    world = World(seeds=(0,), statuses={"000100000000": "diverged"})
    paths = build_sweep(tmp_path, world)
    manifest = read_manifest(paths)
    mirrored = []
    for run in manifest.runs:
        view = view_run(run, "synthetic", paths.run(run.run_id), time.time())
        assert view is not None
        metrics = {point.key: point.value for point in view.points}
        data = SimpleNamespace(params=view.params, tags=view.tags, metrics=metrics)
        info = SimpleNamespace(run_id=f"mlflow-{run.run_id}", status=view.status)
        mirrored.append(SimpleNamespace(data=data, info=info))
    client = Client(mirrored, page=10)
    raw = read_store("mlflow:sqlite:///x.db#synthetic", client)
    assert client.asked == 3
    path = tmp_path / "mirror.parquet"
    raw.to_parquet(path)
    found = read(path, baseline="standard").runs
    truth = collect(paths)
    for name in ("run_id", "arm", "flops", "tokens", "train_s", "excluded_because"):
        assert known(found[name]) == known(truth[name]), name
    assert known(usable(found)["loss_nats"]) == known(usable(truth)["loss_nats"])


def known(values: pd.Series) -> list[Any]:
    return [None if pd.isna(value) else value for value in values]


def test_runs_of_an_mlflow_store_are_read(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from harness.mirror_database import ensure_sqlite

    database = tmp_path / "mlflow.db"
    ensure_sqlite(database)
    uri = f"sqlite:///{database}"
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("mine", artifact_location=str(tmp_path))
    for n, loss in ((1e8, 3.1), (2e8, 2.9), (4e8, 2.75)):
        run = client.create_run(experiment).info.run_id
        client.log_param(run, "model.params", n)
        client.log_param(run, "tokens", 20 * n)
        client.log_metric(run, "eval.loss", loss)
        client.set_terminated(run)
    lost = client.create_run(experiment).info.run_id
    client.set_terminated(lost, "FAILED")
    table = read(f"mlflow:{uri}#mine", columns={"n": "model.params"})
    assert sorted(losses(table).values()) == [2.75, 2.9, 3.1]
    assert table.runs.set_index("run_id")["excluded_because"][lost] == "failed"


def test_multipliers_of_the_published_table_are_the_published_ones() -> None:
    fits = fit_table(read(TABLE_2), FitOptions())
    expected = EXPECTED["attnres_ratio_shared_exponent"]
    by_arm = {m.arm: m for m in fits.comparisons["flops"]}
    for arm, name in (("block_attnres", "block"), ("full_attnres", "full"), ("mhc_lite",) * 2):
        assert round(by_arm[arm].ratio.estimate or 0, 3) == expected[name]
    block = by_arm["block_attnres"].ratio
    assert [round(block.low or 0, 3), round(block.high or 0, 3)] == expected[
        "block_paired_fieller95"
    ]
    assert any("not separable" in line for line in fits.refused)


def test_no_variant_of_the_published_table_separates_from_another() -> None:
    fits = fit_table(read(TABLE_2), FitOptions())
    assert fits.analysis is not None
    tests = fits.analysis.pairwise
    assert not isinstance(tests, str)
    assert len(tests) == 3
    assert all(test.p_holm is not None and test.p_holm > 0.05 for test in tests)


def test_chinchilla_points_give_the_optimum_and_refute_the_published_point() -> None:
    table = read(DATA / "chinchilla_epoch" / "svg_extracted_data.csv", drop_highest=5)
    fits = fit_table(table, FitOptions(published=PUBLISHED))
    law, expected = fits.laws["joint"], EXPECTED["chinchilla_epoch_huber"]
    assert law.n_points == expected["n_points"]
    for name, digits in (("A", 3), ("B", 3), ("E", 6), ("alpha", 5), ("beta", 6)):
        assert law.value(name) == pytest.approx(expected[name], abs=10.0**-digits)
    assert fits.published is not None
    assert not fits.published.is_minimum


def test_a_single_arm_of_isoflop_curves_gets_minima_and_the_joint_law() -> None:
    path = DATA / "porian2024" / "isoflop_points.csv"
    where = ("hparams=tuned", "warmup=short", "param_count=standard")
    fits = fit_table(read(path, where=where), FitOptions())
    assert fits.isoflop is not None
    assert set(fits.isoflop.fits) == {"parabola", "cubic", "akima"}
    with path.open() as file:
        budgets = {
            float(row["flops"])
            for row in csv.DictReader(file)
            if [row[part.split("=")[0]] for part in where] == ["tuned", "short", "standard"]
        }
    for fit in fits.isoflop.fits.values():
        named = [at.flops for at in fit.minima] + [flops for flops, _ in fit.refused]
        assert sorted(named) == pytest.approx(sorted(budgets))
    assert isinstance(fits.laws["joint"], JointFit)


def test_checkpoints_are_clusters_of_their_run() -> None:
    path = DATA / "gemstones" / "wandb_df_for_fitting_hot.jsonl"
    fits = fit_table(read(path, columns={"cluster": "run_name"}), FitOptions())
    law, expected = fits.laws["joint"], EXPECTED["gemstones_hot_1e-3"]
    assert law.value("alpha") == pytest.approx(expected["alpha"], abs=5e-5)
    assert law.certificate.objective <= expected["objective"] * (1 + 1e-6)
    assert "22 clusters" in law.method


def test_the_olmo_ladder_chosen_by_conditions_gives_the_published_prediction() -> None:
    path = DATA / "olmo_ladder" / "c4_final_losses.csv"
    with path.open() as file:
        names = [row["run"] for row in csv.DictReader(file)]
    sizes = ("190M", "370M", "760M", "1B")
    ladder = [f"{size}-{k}xC" for size in sizes for k in (1, 2, 5, 10)]
    where = tuple(f"run!={name}" for name in names if name not in ladder)
    law = fit_table(read(path, where=where), FitOptions()).laws["joint"]
    assert isinstance(law, JointFit)
    predicted = law.predict(np.array([13202396160.0]), np.array([5000088518656.0]))
    expected = EXPECTED["olmo_ladder_c4"]["prediction_13B_5T"]
    assert float(predicted[0]) == pytest.approx(expected, abs=5e-8)


def test_curves_that_cross_without_compute_give_no_multiplier() -> None:
    fits = fit_table(read(DATA / "delta_attnres2026" / "val_ppl.csv"), FitOptions())
    assert not fits.comparisons
    crossing = {found.arm: found for found in fits.crossings}
    assert crossing["attnres_full"].better == ("220M", "533M")
    assert crossing["attnres_full"].worse == ("1044M",)
    assert "delta_attnres" not in crossing
    assert any(line.startswith("multipliers: a ratio of compute needs C") for line in fits.refused)


def test_a_sweep_gives_back_the_multipliers_of_its_world(tmp_path: Path) -> None:
    truth = {"standard": 1.0, "full": 1.3, "multi_stream": 0.85}
    paths = build_sweep(tmp_path, World(multipliers=truth, seeds=(0,)))
    write_table(collect(paths), paths)
    fits = fit_table(read(paths.table), FitOptions(law="power"))
    found = {m.arm: m.ratio.estimate for m in fits.comparisons["flops"]}
    assert found == {arm: pytest.approx(truth[arm], rel=1e-6) for arm in ("full", "multi_stream")}
