"""The command line: help, exit codes, one clear message for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import isoloss

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "recipes" / "grids" / "quickstart.yaml"
COMMANDS = (
    *("plan", "run", "status", "logs", "retry", "sync", "report", "recipes", "tasks"),
    *("show", "diff", "failures", "cancel", "fit", "export", "simulate"),
    *("prepare", "schema", "doctor", "new-recipe", "bench"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = isoloss(command, "--help")
    assert done.returncode == 0
    assert f"Example: isoloss {command}" in " ".join(done.stdout.split())


def test_help_lists_every_command() -> None:
    shown = isoloss("--help").stdout
    assert all(command in shown for command in COMMANDS)


def test_plan_starts_nothing(tmp_path: Path) -> None:
    done = isoloss("plan", QUICKSTART, "--results", tmp_path / "results")
    assert done.returncode == 0
    assert "48 runs: 48 new" in done.stdout
    assert "2 per multiply-add" in done.stdout
    assert not (tmp_path / "results").exists()


def test_plan_json_holds_every_run_with_its_cost(tmp_path: Path) -> None:
    told = json.loads(isoloss("plan", QUICKSTART, "--results", tmp_path, "--json").stdout)
    assert len(told["runs"]) == len(set(told["todo"])) == 48
    assert all(run["cost"]["flops"] > 0 for run in told["runs"])
    assert told["flops"] == pytest.approx(sum(run["cost"]["flops"] for run in told["runs"]))


@pytest.mark.parametrize("command", ["plan", "run", "status", "report", "retry", "sync"])
def test_an_absent_grid_is_one_message_and_exit_code_2(command: str, tmp_path: Path) -> None:
    done = isoloss(command, "absent.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "absent.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["status", "report", "retry", "sync", "logs"])
def test_an_unknown_sweep_says_how_to_start_it(command: str, tmp_path: Path) -> None:
    extra = ["abc"] if command == "logs" else []
    done = isoloss(command, "never-run", *extra, "--results", tmp_path)
    assert done.returncode == 2
    assert "never-run" in done.stderr
    assert "isoloss run" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", QUICKSTART, "--set", "train.lrr=1"],
        ["plan", QUICKSTART, "--set", "nonsense"],
        ["run", QUICKSTART, "--on", "moon"],
        ["run", QUICKSTART, "--workers", "0"],
        ["recipes", "blokc"],
        ["new-recipe", "Not A Name"],
        ["prepare", "absent.txt", "-o", "out"],
        ["no-such-command"],
    ],
    ids=lambda arguments: " ".join(map(str, arguments))[:40],
)
def test_bad_input_is_exit_code_2_without_traceback(
    arguments: list[str | Path], tmp_path: Path
) -> None:
    done = isoloss(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (b"", 1, "empty"),
        (b"sweep: x\n\tbase: {}\n", 2, "tab"),
        (b"sweep: \xff\xfe\x00", 1, "UTF-8"),
        (b"sweep: x\nbase: &a {residual: *a}\n", 2, "itself"),
        (b"sweep: x\nbase: {model: {n_layer: 4}}\n", 2, "n_layers"),
    ],
    ids=["empty", "tab", "binary", "cycle", "unknown key"],
)
def test_a_malformed_grid_starts_nothing(text: bytes, line: int, told: str, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_bytes(text)
    done = isoloss("run", grid, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{grid}:{line}: " in done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [grid]


def test_a_results_folder_that_is_a_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for arguments in (["run", QUICKSTART], ["report", "tiny"], ["status", "tiny"]):
        done = isoloss(*arguments, "--results", file)
        assert done.returncode == 2
        assert str(file) in done.stderr
        assert "Traceback" not in done.stderr


def test_the_next_command_repeats_what_it_depends_on(tmp_path: Path) -> None:
    results = tmp_path / "elsewhere"
    done = isoloss("plan", QUICKSTART, "--set", "train.lr=1e-3", "--results", results)
    assert f"Next: isoloss run {QUICKSTART} --set train.lr=1e-3 --results {results}" in " ".join(
        done.stdout.split()
    )


def test_recipes_state_no_cost_for_a_shape_they_refuse() -> None:
    assert isoloss("recipes", "--n-layers", "1").returncode == 0
    refused = isoloss("recipes", "block", "--n-layers", "1")
    assert refused.returncode == 2
    assert "sublayers" in refused.stderr
    assert isoloss("recipes", "--n-layers", "0").returncode == 2


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = isoloss("plan", "absent.yaml", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr


def test_tasks_lists_all_and_shows_one_in_full() -> None:
    from harness.tasks import available

    shown = isoloss("tasks").stdout
    assert all(name in shown for name in available())
    page = isoloss("tasks", "s3_words").stdout
    assert "length            16" in page
    assert "labels ." in page
    refused = isoloss("tasks", "s3_wrds")
    assert refused.returncode == 2
    assert "did you mean 's3_words'?" in refused.stderr


def test_recipes_lists_all_and_shows_one_in_full() -> None:
    names = ("standard", "full", "block", "delta", "low_rank", "multi_stream")
    shown = isoloss("recipes").stdout
    assert all(name in shown for name in names)
    page = isoloss("recipes", "block").stdout
    assert "block_size" in page
    assert "2603.15031" in page


def test_doctor_finds_a_working_environment(tmp_path: Path) -> None:
    done = isoloss("doctor", "--results", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "checksum verified" in done.stdout


WITHOUT_TRAINING = """
import sys
for name in ("torch", "lightning", "mlflow", "optuna", "sotu", "tokenizers", "zstandard"):
    sys.modules[name] = None
sys.argv = ["isoloss", *sys.argv[1:]]
from harness.cli import main
main()
"""


@pytest.mark.parametrize("command", ["plan", "run", "recipes", "schema"])
def test_a_command_that_lacks_its_extra_says_which(command: str, tmp_path: Path) -> None:
    grid = [str(QUICKSTART)] if command in ("plan", "run") else []
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRAINING, command, *grid],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert f"'isoloss {command}' needs the module 'torch'" in done.stderr
    assert "pip install -e '.[train]'" in done.stderr


RECIPE_GRID = """
sweep: edited
base:
  residual: "my_rule:Rule"
  model: {n_layers: 1, d_model: 16, head_dim: 8}
  data: {corpus: sotu, seq_len: 16}
  train: {budget: {tokens: 256}, batch_tokens: 64, eval_tokens: 64}
mlflow: {mode: off}
"""
RECIPE = """
from recipes.standard import Standard


class Rule(Standard):
    def write(self, state, output, t):
        return state + 0.5 * output
"""


@pytest.mark.slow
def test_an_edited_recipe_is_pointed_out_and_its_results_are_kept(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(RECIPE_GRID)
    rule = tmp_path / "my_rule.py"
    rule.write_text(RECIPE)

    def told(command: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "harness.cli", command, "grid.yaml"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        return subprocess.run(
            arguments, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=240
        )

    first = told("run")
    assert first.returncode == 0, first.stdout
    assert "was edited" not in told("plan").stdout
    rule.write_text(RECIPE.replace("0.5", "0.25"))
    for command in ("plan", "run"):
        shown = " ".join(told(command).stdout.split())
        assert "recipe 'my_rule:Rule' was edited after runs of this sweep were trained" in shown
        assert "raise `revision`" in shown
    rule.write_text(RECIPE.replace("(Standard):", "(Standard):\n    revision = 2"))
    assert "1 new" in told("plan").stdout
    rule.write_text("syntax error (")
    broken = told("plan")
    assert broken.returncode == 2
    assert "my_rule:Rule" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_plan_says_before_it_is_paid_for_what_cannot_be_compared(tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    axes = "axes: {residual: [standard, {name: delta}]}"
    grid.write_text(RECIPE_GRID.replace('"my_rule:Rule"', "standard") + axes)
    shown = " ".join(isoloss("plan", grid, "--results", tmp_path / "r").stdout.split())
    assert "no interval and no verdict below 3 sizes or budgets per arm; standard has 1" in shown


@pytest.mark.parametrize(
    "flags",
    [
        ("--follow",),
        ("--dry-run",),
        ("--on", "slurm", "--workers", "2"),
        ("--on", "slurm", "--follow", "--limit", "1"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    grid = ROOT / "recipes/grids/quickstart.yaml"
    done = isoloss("run", grid, *flags, "--results", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("run: --")
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_does_not_divide_over_the_processes_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    grid = ROOT / "recipes/grids/quickstart.yaml"
    done = isoloss("run", grid, "--set", "execution.devices=3", "--results", tmp_path)
    assert done.returncode == 2
    assert "do not divide over 3 processes" in done.stderr
    assert list(tmp_path.iterdir()) == []
