"""`isoloss fit` and `isoloss export` at the command line: what is printed, what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.collect import collect
from harness.cli import app
from tests.analysis.synthetic_sweep import World, build_sweep

DATA = Path(__file__).resolve().parent.parent / "data"
TABLE_2 = str(DATA / "attnres_kimi2026" / "table2_losses.csv")
PUBLISHED = "A=482.01,B=2085.43,E=1.8169,alpha=.34781,beta=.36585"


def isoloss(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def lines_of(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip().startswith(start)]


def test_the_published_table_prints_the_multipliers() -> None:
    text = isoloss("fit", TABLE_2)
    for arm, interval in (
        ("block_attnres", "1.239 [1.187, 1.295]"),
        ("full_attnres", "1.306 [1.237, 1.383]"),
        ("mhc_lite", "1.264 [1.220, 1.312]"),
    ):
        assert interval in lines_of(text, arm)[0]
    assert "20 of 20 runs used, 4 variants" in text
    assert "no column of FLOPs: C = 6 N D" in text
    assert "not separable" in lines_of(text, "not fitted: joint law")[0]


def test_the_published_table_says_that_variants_do_not_separate() -> None:
    said = lines_of(isoloss("fit", TABLE_2), "variants")[0]
    assert "not separate" in said or "no pair" in said or "not told apart" in said, said


def test_the_report_fits_a_screen() -> None:
    assert len(isoloss("fit", TABLE_2).splitlines()) < 60


def test_chinchilla_prints_the_optimum_and_refutes_the_published_point() -> None:
    points = str(DATA / "chinchilla_epoch" / "svg_extracted_data.csv")
    text = isoloss("fit", points, "--drop-highest", "5", "--published", PUBLISHED)
    for symbol, value in (
        ("E", "1.81722"),
        ("A", "477.826"),
        ("B", "2143.42"),
        ("alpha", "0.34731"),
        ("beta", "0.367172"),
    ):
        assert lines_of(text, f"{symbol} ")[0].split()[1] == value
    assert "not the minimum" in lines_of(text, "published")[0]
    assert "5 among the 5 highest losses" in lines_of(text, "excluded")[0]


def test_an_extrapolation_is_made_only_when_asked_for() -> None:
    points = str(DATA / "chinchilla_epoch" / "svg_extracted_data.csv")
    asked = isoloss("fit", points, "--drop-highest", "5", "--extrapolate-to", "5.76e23")
    assert "extrapolated" in lines_of(asked, "joint law: N*")[0]
    assert "extrapolated" not in isoloss("fit", points, "--drop-highest", "5")


def test_json_holds_everything_at_full_precision() -> None:
    found = json.loads(isoloss("fit", TABLE_2, "--json"))
    block = found["multipliers"]["flops"][0]
    assert block["arm"] == "block_attnres"
    assert block["ratio"]["estimate"] == pytest.approx(1.239, abs=5e-4)
    assert len(repr(block["ratio"]["estimate"])) > 10
    assert found["n_used"] == 20
    assert found["laws"]["shared"]["covariance"] is not None


def test_a_free_asymptote_is_said_to_be_one() -> None:
    text = isoloss("fit", TABLE_2, "--asymptote", "free")
    assert "best of its profile" in text
    assert isoloss("fit", TABLE_2, "--asymptote", "1.2").count("E = 1.2 nats, pinned") == 1


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_export_writes_every_run_with_its_reason(kind: str, tmp_path: Path) -> None:
    paths = build_sweep(tmp_path, World(seeds=(0,), statuses={"000100000000": "diverged"}))
    file = tmp_path / f"tidy.{kind}"
    text = isoloss("export", "synthetic", "--results", str(tmp_path), "-o", str(file))
    assert text == f"{file}: 24 runs, 1 excluded\n"
    table = pd.read_csv(file) if kind == "csv" else pd.read_parquet(file)
    truth = collect(paths)
    assert list(table.columns) == list(truth.columns)
    assert table["loss_nats"].tolist() == pytest.approx(truth["loss_nats"].tolist(), nan_ok=True)
    assert table["excluded_because"].dropna().tolist() == ["diverged in a test"]


def test_what_export_writes_fit_reads_back(tmp_path: Path) -> None:
    build_sweep(tmp_path, World(multipliers={"standard": 1.0, "full": 1.3}, seeds=(0,)))
    file = tmp_path / "tidy.csv"
    file.write_text(isoloss("export", "synthetic", "--results", str(tmp_path)))
    text = isoloss("fit", str(file))
    assert lines_of(text, "full")[0].split()[1] == "1.300"


def test_fit_loads_no_training_library() -> None:
    check = (
        "import sys; from typer.testing import CliRunner; from harness.cli import app; "
        f"done = CliRunner().invoke(app, ['fit', {TABLE_2!r}]); assert done.exit_code == 0; "
        "print(sorted({'torch', 'lightning', 'mlflow', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_published_fit_that_never_left_its_start_is_named(tmp_path: Path) -> None:
    optima = pd.read_csv(DATA / "porian2024" / "isoflop_optima.csv")
    setting = {"hparams": "tuned", "warmup": "short", "decay": "const", "param_count": "standard"}
    chosen = (optima[list(setting)] == list(setting.values())).all(axis=1)
    chosen &= optima["flops"].between(1e16, 5e17)
    table = tmp_path / "optima.csv"
    optima[chosen].to_csv(table, index=False)
    options = ("--c", "flops", "--loss", "loss", "--law", "power", "--asymptote", "free")
    stored = isoloss("fit", str(table), *options, "--published", "A=148.41316,E=1,alpha=0.1")
    assert "fit_equals_start" in lines_of(stored, "published")[0]
    sound = isoloss("fit", str(table), *options, "--published", "A=128.93,E=2.00557,alpha=0.10597")
    assert "the minimum" in lines_of(sound, "published")[0]
