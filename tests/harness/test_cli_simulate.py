"""`isoloss simulate`, and the forecast of `isoloss plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import IsolossError
from tests.analysis.synthetic_sweep import World, build_sweep

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "recipes" / "grids" / "quickstart.yaml")


def isoloss(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_shipped_grid_is_played_from_end_to_end(tmp_path: Path) -> None:
    done = isoloss("simulate", QUICKSTART, "--results", str(tmp_path), "--studies", "60")
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert "48 runs of 6 arms at 4 sizes" in text
    assert "multi_stream" in text
    assert "as declared" in text
    assert "assumed" in text
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_json_holds_world_arms_and_designs_and_runs_of_another_sweep_teach_it(
    tmp_path: Path,
) -> None:
    build_sweep(tmp_path, World(noise=0.004, seeds=(0, 1, 2)))
    options = ("--results", str(tmp_path), "--studies", "40", "--json", "--seed-sd", "0.01")
    done = isoloss("simulate", QUICKSTART, "--like", "synthetic", *options)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["world"]["seed_sd"] == {"value": 0.01, "source": "given"}
    assert told["world"]["alpha"]["source"] == "measured in synthetic"
    assert told["world"]["alpha"]["value"] == pytest.approx(0.1, rel=0.1)
    assert told["world"]["shared_sd"]["value"] == pytest.approx(0.004, rel=0.5)
    assert len(told["arms"]) == 5
    assert len(told["designs"]) == 30
    own = next(design for design in told["designs"] if design["declared"])
    assert own["flops"] == pytest.approx(told["grid"]["flops"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--alpha", "0"), "alpha must be above 0"),
        (("--asymptote", "4"), "asymptote must be at least 0 and below the loss"),
        (("--effect", "-1"), "effect is a multiplier"),
        (("--power", "1"), "power must lie between"),
        (("--studies", "0"), "studies must be 1 to"),
        (("--like", "never-run"), "never-run"),
    ],
)
def test_a_bad_value_is_one_message(options: tuple[str, ...], told: str, tmp_path: Path) -> None:
    done = isoloss("simulate", QUICKSTART, *options, "--results", str(tmp_path))
    assert isinstance(done.exception, IsolossError)
    assert told in str(done.exception)
    assert done.stdout == ""


def test_a_grid_of_one_arm_has_nothing_to_compare(tmp_path: Path) -> None:
    grid = tmp_path / "one.yaml"
    grid.write_text(
        "sweep: one\nbase: {residual: standard, model: {n_layers: 2, d_model: 32},"
        " data: {corpus: sotu, seq_len: 128}, train: {budget: {flops: 1e10}, batch_tokens: 1024}}\n"
    )
    done = isoloss("simulate", str(grid), "--results", str(tmp_path))
    assert "another arm" in str(done.exception)
    planned = isoloss("plan", str(grid), "--results", str(tmp_path), "--json")
    assert json.loads(planned.stdout)["forecast"] is None


def test_plan_forecasts_the_interval_with_its_assumptions(tmp_path: Path) -> None:
    shown = isoloss("plan", QUICKSTART, "--results", str(tmp_path)).stdout
    assert "Forecast: 95% interval of a multiplier about ±" in shown
    assert "assumed: alpha 0.1" in shown
    told = json.loads(isoloss("plan", QUICKSTART, "--results", str(tmp_path), "--json").stdout)
    expected = told["forecast"]
    assert (expected["n_sizes"], expected["n_pairs"], expected["n_arms"]) == (4, 2, 5)
    assert expected["source"] == "assumed"
    assert 1 < expected["detectable"] < 2


def test_help_has_an_example() -> None:
    text = " ".join(isoloss("simulate", "--help").stdout.split())
    assert "Example: isoloss simulate" in text
