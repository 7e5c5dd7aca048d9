"""The slurm block: values as sbatch reads them, and the options of each run.

What sbatch makes of a value was seen on Slurm 22.05: `sbatch --hold --time=…` and `--mem=…`, then
TimeLimit and MinMemoryNode of `scontrol show job`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import GridError
from harness.grid import Grid
from harness.slurm.block import groups_to_submit
from harness.slurm.options import Resources, Slurm, by_resources
from harness.slurm.values import PLAIN, seconds_of, time_limit
from tests.harness.grid_texts import BASE, load

SIZES = "axes: {residual: [standard, block], model.d_model: [64, 128, 256]}\nseeds: [0, 1]\n"
MINUTES: dict[str | int, int] = {
    90: 90, "90": 90, "0:10": 1, "1:30": 2, "90:00": 90, "2:00:00": 120, "04:00:00": 240,
    "12:00:00": 720, "1:75:00": 135, "1:00:75": 62, "100:00:00": 6000, "1-2": 1560, "1-36": 3600,
    "1-2:30": 1590, "1-2:30:15": 1591, "0-0:0:1": 1, "01:02:03": 63, "31-0": 44640, 999999: 999999,
    "1-90:90:90": 6932,
}  # fmt: skip
MEMORY: dict[str | int, str] = {
    "16G": "16G", "16g": "16G", "16GB": "16G", "16Gb": "16G", 4000: "4000M", "4000": "4000M",
    "1024K": "1024K", "1T": "1T", 0: "0", " 5": "5M", "5MB": "5M",
}  # fmt: skip


@pytest.mark.parametrize("given", MINUTES)
def test_a_time_limit_means_what_it_means_to_sbatch(given: str | int) -> None:
    options = Slurm.model_validate({"time": given, "signal_lead_s": 1})
    assert options.time_s == 60 * MINUTES[given]
    assert Slurm.model_validate({"time": options.time, "signal_lead_s": 1}) == options


def test_equal_time_limits_have_one_form() -> None:
    given = ["1440", 1440, "24:00:00", "1-0", "0-24", "1440:00", "1-00:00"]
    assert {time_limit(text) for text in given} == {"1-00:00:00"}
    assert time_limit(90) == "01:30:00"


@given(st.integers(0, 400), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_the_one_form_keeps_the_seconds(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if total:
        assert seconds_of(time_limit(f"{days}-{hours}:{minutes}:{seconds}")) == total


@pytest.mark.parametrize("given", MEMORY)
def test_memory_is_what_sbatch_reads(given: str | int) -> None:
    assert Slurm.model_validate({"mem": given}).mem == MEMORY[given]


@pytest.mark.parametrize(
    ("block", "execution", "path", "fragment"),
    [
        ("runs_at_once: 2, runs_per_job: 2", "devices: 2", "runs_at_once", "runs of 2 processes"),
        ("runs_at_once: 2, runs_per_job: 2", "nodes: 3", "runs_at_once", "runs of 3 processes"),
        ("gpus_per_node: 2", "devices: 4", "gpus_per_node", "needs 4 GPUs on a node, got 2"),
        ("gres: gpu:1", "devices: 2", "gres", "Ask for 2"),
        (
            "overrides: [{if: {model.d_model: 64}, runs_at_once: 2, runs_per_job: 2}]",
            "devices: 2",
            "overrides[0].runs_at_once",
            "Set it to 1",
        ),
    ],
)
def test_packing_and_gpus_must_fit_the_processes_of_a_run(
    tmp_path: Path, block: str, execution: str, path: str, fragment: str
) -> None:
    with pytest.raises(GridError) as caught:
        load(tmp_path, f"{BASE}execution: {{{execution}}}\nslurm: {{{block}}}\n")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:7: slurm.{path}: ")
    assert fragment in problem


def test_a_run_per_device_may_ask_for_one_gpu_each(tmp_path: Path) -> None:
    text = f"{BASE}execution: {{devices: 4}}\nslurm: {{gpus_per_task: 1}}\n"
    options = load(tmp_path, text).slurm
    assert options is not None
    assert options.n_gpus(devices=4) == 4


@pytest.mark.parametrize(
    ("block", "n_gpus", "workers", "cpus"),
    [
        ({}, 0, 1, 2),
        ({"runs_at_once": 3, "runs_per_job": 5}, 0, 3, 6),
        ({"gpus_per_node": "a100:2", "runs_per_gpu": 3, "runs_per_job": 6}, 2, 6, 12),
        ({"gres": "nvme:1,gpu:a100:2", "runs_per_gpu": 2, "runs_per_job": 4}, 2, 4, 8),
        ({"gres": "gpu", "cpus_per_task": 5}, 1, 1, 5),
        ({"gpus_per_task": 1, "cpus_per_gpu": 4}, 1, 1, None),
    ],
)
def test_workers_and_cpus_follow_from_what_is_asked(
    block: dict[str, Any], n_gpus: int, workers: int, cpus: int | None
) -> None:
    options = Slurm.model_validate(block)
    assert (options.n_gpus(), options.workers, options.cpus(threads=2)) == (n_gpus, workers, cpus)


def test_the_interpreter_is_ours_except_in_a_container() -> None:
    assert Slurm().interpreter == sys.executable
    assert Slurm.model_validate({"container": {"image": "x"}}).interpreter == "python"
    assert Slurm(python="/opt/py").interpreter == "/opt/py"


def _configs(grid: Grid) -> list[Any]:
    return [run.config for run in grid.runs]


def _options(grid: Grid) -> list[Slurm]:
    """What each run asks for, in the order of the runs."""
    assert grid.slurm is not None
    groups = by_resources(grid.slurm, _configs(grid))
    found = {i: options for options, indices in groups for i in indices}
    return [found[i] for i in range(len(grid.runs))]


def test_runs_with_equal_demands_are_one_group(tmp_path: Path) -> None:
    block = (
        "slurm:\n  time: 60\n  mem: 4G\n  overrides:\n"
        "    - {if: {model.d_model: [128, 256]}, time: 2:00:00}\n"
        "    - {if: {model.d_model: 256, residual: block}, mem_per_cpu: 2G, time: 1-0}\n"
        "    - {if: {residual: block, model.d_model: 128}, time: 1:00:00}\n"
    )
    grid = load(tmp_path, BASE + SIZES + block)
    assert grid.slurm is not None
    seen = {
        (run.config.residual.name, run.config.model.d_model): options
        for run, options in zip(grid.runs, _options(grid), strict=True)
    }
    times = {key: (options.time, options.mem, options.mem_per_cpu) for key, options in seen.items()}
    assert times == {
        ("standard", 64): ("01:00:00", "4G", None),
        ("standard", 128): ("02:00:00", "4G", None),
        ("standard", 256): ("02:00:00", "4G", None),
        ("block", 64): ("01:00:00", "4G", None),
        ("block", 128): ("01:00:00", "4G", None),
        ("block", 256): ("1-00:00:00", None, "2G"),
    }
    groups = by_resources(grid.slurm, _configs(grid))
    assert [len(indices) for _, indices in groups] == [6, 4, 2]
    for options, indices in groups:
        assert options.overrides == []
        assert indices == sorted(indices)
    assert sorted(i for _, indices in groups for i in indices) == list(range(12))


def test_an_override_knows_defaults_budgets_and_options(tmp_path: Path) -> None:
    text = BASE + (
        "axes: {residual: [standard, block, {name: block, block_size: 2}]}\n"
        "slurm:\n  overrides:\n    - {if: {train.optimizer: muon}, qos: a}\n"
        "    - {if: {train: {budget: {flops: 1e13}}, residual.block_size: 2}, qos: b}\n"
    )
    assert [options.qos for options in _options(load(tmp_path, text))] == ["a", "a", "b"]


def test_an_override_that_matches_no_run_is_a_notice(tmp_path: Path) -> None:
    text = (
        f"{BASE}slurm:\n  overrides:\n    - {{if: {{model.d_model: 64}}, time: 5}}\n"
        "    - {if: {model.d_model: 65}, time: 5}\n"
    )
    grid = load(tmp_path, text)
    (notice,) = (n for n in grid.notices if "slurm" in n)
    assert notice.startswith(f"{tmp_path / 'grid.yaml'}:9: slurm.overrides[1]: matches no run")


def test_a_time_limit_is_required_to_submit_only(tmp_path: Path) -> None:
    block = "slurm: {overrides: [{if: {model.d_model: 64}, time: 5}]}\n"
    grid = load(tmp_path, BASE + SIZES + block)
    place = f"{tmp_path / 'grid.yaml'}:8: slurm.time: is required to submit"
    with pytest.raises(GridError) as caught:
        groups_to_submit(grid.document, grid.slurm, _configs(grid))
    (problem,) = caught.value.problems
    assert problem.startswith(place)
    assert "for 8 of 12 runs" in problem
    with pytest.raises(GridError, match="is required to submit"):
        groups_to_submit(grid.document, None, _configs(grid))
    small = [c for c in _configs(grid) if c.model.d_model == 64]
    assert len(groups_to_submit(grid.document, grid.slurm, small)) == 1


def test_plain_options_are_fields_and_the_block_loads_no_torch() -> None:
    assert set(PLAIN) <= set(Resources.model_fields)
    check = "import sys, harness.slurm.options, harness.slurm.script; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
