"""Step times that were measured, and the hours that follow from them, computed by hand here."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness import pace
from harness.bench.plan import BenchPlan, parse_recipe, parse_shape
from harness.bench.rows import BenchStore, section_rows
from harness.bench.rows import Subject as BenchSubject
from harness.config import ModelConfig, ResidualConfig
from harness.grid import Grid
from harness.model import Transformer
from harness.pace import read_pace
from harness.paths import SweepPaths, sweep_paths
from harness.plan import plan, to_manifest
from harness.rates import Rate, suggested_minutes
from harness.records import PlannedRun, write_manifest
from tests.harness.grid_texts import load

GRID = """\
sweep: {sweep}
base:
  residual: standard
  model: {{n_layers: 2, d_model: 32}}
  data: {{seq_len: 64}}
  train: {{budget: {{tokens: {tokens}}}, batch_tokens: 512, precision: {precision}}}
axes: {{residual: [standard, full], model.n_layers: [{layers}]}}
seeds: [0, 1, 2, 3, 4, 5, 6]
"""
TOKENS = 51200
"""100 steps."""


@dataclass
class Lab:
    """A results folder, and sweeps in it."""

    folder: Path

    def sweep(self, name: str = "here", **changes: Any) -> Sweep:
        told = {"tokens": TOKENS, "precision": "fp32", "layers": "2, 4", **changes}
        grid = load(self.folder, GRID.format(sweep=name, **told))
        paths = sweep_paths(self.folder / "results", name)
        write_manifest(paths, to_manifest(grid, plan(grid)))
        return Sweep(paths, grid)


@dataclass
class Sweep:
    paths: SweepPaths
    grid: Grid

    def run(self, arm: str, n_layers: int, seed: int = 0) -> PlannedRun:
        (found,) = (
            run
            for run in plan(self.grid).runs
            if (run.arm, run.config["model"]["n_layers"], run.config["seed"])
            == (arm, n_layers, seed)
        )
        return found

    def finish(self, run: PlannedRun, step_s: float, **changes: Any) -> None:
        """Write what a record says of time; validation and the like took 7 seconds."""
        record: dict[str, Any] = {
            "status": "done",
            "steps": run.cost.steps,
            "flops": run.cost.flops,
            "step_time_s": step_s,
            "wall_s": run.cost.steps * step_s + 7.0,
            "attempts": 1,
            "hardware": {"device": "A", "threads": 1},
        }
        folder = self.paths.run(run.run_id)
        folder.root.mkdir(parents=True)
        folder.record.write_text(json.dumps({**record, **changes}))

    def rate(self, arm: str, n_layers: int, device: str | None = "A", threads: int = 1) -> Rate:
        return read_pace(self.paths, device).rate(self.run(arm, n_layers), threads)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_run_like_finished_ones_takes_their_step_time_and_what_they_spent_beside(
    lab: Lab,
) -> None:
    sweep = lab.sweep()
    for seed, step_s in enumerate((0.2, 0.3, 0.9)):
        sweep.finish(sweep.run("full", 4, seed), step_s)
    rate = sweep.rate("full", 4)
    assert (rate.evidence, rate.source) == ("measured", "runs of here")
    assert rate.device_s(100) == pytest.approx(100 * 0.3 + 7.0)
    # Ten times the steps hold as many validations: what was spent on them stays.
    assert rate.device_s(1000) == pytest.approx(1000 * 0.3 + 7.0)


def test_nothing_measured_is_no_estimate(lab: Lab) -> None:
    rate = lab.sweep().rate("full", 4)
    assert (rate.evidence, rate.device_s(100)) == ("none", None)


def test_another_size_of_the_same_arm_is_scaled_by_flops(lab: Lab) -> None:
    sweep = lab.sweep()
    small, large = sweep.run("full", 2), sweep.run("full", 4)
    sweep.finish(small, 0.2)
    sweep.finish(sweep.run("standard", 4), 0.1)
    rate = sweep.rate("full", 4)
    assert rate.evidence == "scaled"
    factor = large.cost.flops_per_token / small.cost.flops_per_token
    assert rate.step_s == pytest.approx(0.2 * factor)


def test_another_arm_is_scaled_by_flops_where_its_own_was_never_measured(lab: Lab) -> None:
    sweep = lab.sweep()
    standard, full = sweep.run("standard", 4), sweep.run("full", 2)
    sweep.finish(standard, 0.2)
    rate = sweep.rate("full", 2)
    assert rate.evidence == "scaled"
    factor = full.cost.flops_per_token / standard.cost.flops_per_token
    assert rate.step_s == pytest.approx(0.2 * factor)
    assert rate.overhead_s == pytest.approx(7.0 * factor)


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": {"device": "B", "threads": 1}},
        {"status": "failed"},
        {"step_time_s": None},
        {"flops": 0, "steps": 0},
        {"hardware": {}},
        {"hardware": None},
    ],
    ids=["other device", "failed", "no step time", "no steps", "unknown device", "no hardware"],
)
def test_what_says_nothing_about_the_device_is_no_evidence(
    lab: Lab, changes: dict[str, Any]
) -> None:
    sweep = lab.sweep()
    sweep.finish(sweep.run("full", 4), 0.2, **changes)
    assert sweep.rate("full", 4).evidence == "none"


def test_another_precision_is_no_evidence(lab: Lab) -> None:
    other = lab.sweep("other", precision="bf16")
    other.finish(other.run("full", 4), 0.2)
    assert lab.sweep().rate("full", 4).evidence == "none"


def test_torn_files_are_no_evidence_and_no_error(lab: Lab) -> None:
    sweep, other, empty = lab.sweep(), lab.sweep("other"), lab.sweep("empty")
    sweep.finish(sweep.run("full", 4), 0.2)
    sweep.paths.run(sweep.run("full", 4).run_id).record.write_text('{"status": "done", "st')
    other.finish(other.run("full", 4), 0.2)
    other.paths.manifest.write_text("[1]")
    empty.paths.manifest.write_text("")
    bench = sweep.paths.root.parent / "bench" / "torn" / "bench.json"
    bench.parent.mkdir(parents=True)
    bench.write_text('{"rows": [{}], "plan": {}, "hardware": {"device": "A"}}')
    assert sweep.rate("full", 4).evidence == "none"


def test_a_neighbouring_sweep_is_evidence_and_this_sweep_is_better(lab: Lab) -> None:
    other = lab.sweep("other", tokens=2 * TOKENS)
    other.finish(other.run("full", 4), 0.4)
    sweep = lab.sweep()
    rate = sweep.rate("full", 4)
    assert (rate.evidence, rate.source, rate.step_s) == ("measured", "runs of other", 0.4)
    sweep.finish(sweep.run("full", 4), 0.2)
    assert sweep.rate("full", 4).step_s == 0.2


def test_a_resumed_run_tells_its_step_time_but_not_what_it_spent_beside(lab: Lab) -> None:
    sweep = lab.sweep()
    sweep.finish(sweep.run("full", 4), 0.2, attempts=3, wall_s=1e6)
    rate = sweep.rate("full", 4)
    assert (rate.step_s, rate.overhead_s) == (0.2, 0.0)


def test_other_threads_are_the_next_best_evidence(lab: Lab) -> None:
    sweep = lab.sweep()
    sweep.finish(sweep.run("full", 4), 0.2)
    rate = sweep.rate("full", 4, threads=2)
    assert rate.evidence == "scaled"
    assert rate.step_s == pytest.approx(0.2)


def test_a_run_shared_by_processes_costs_the_time_of_all_of_them(lab: Lab) -> None:
    sweep = lab.sweep()
    run = sweep.run("full", 4)
    sweep.finish(run, 0.05, hardware={"device": "A", "threads": 1, "processes": 4})
    found = read_pace(sweep.paths, "A")
    assert found.rate(run, processes=4).step_s == pytest.approx(0.2)
    assert found.rate(run, processes=4).overhead_s == pytest.approx(28.0)
    assert found.rate(run).evidence == "scaled"
    assert found.rate(run).step_s == pytest.approx(0.2)


def test_without_a_device_that_of_most_measurements_of_this_sweep_counts(lab: Lab) -> None:
    other, sweep = lab.sweep("other"), lab.sweep()
    for seed in range(7):
        other.finish(other.run("full", 4, seed), 0.4)
    for seed, device in enumerate("BBA"):
        hardware = {"device": device, "threads": 1}
        sweep.finish(sweep.run("full", 4, seed), 0.1 if device == "A" else 0.2, hardware=hardware)
    assert read_pace(sweep.paths).device == "B"
    assert sweep.rate("full", 4, device=None).step_s == 0.2


def test_only_the_newest_few_of_runs_that_are_alike_are_opened(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = lab.sweep()
    for seed in range(7):
        run = sweep.run("full", 4, seed)
        sweep.finish(run, 1.0 + seed)
        os.utime(sweep.paths.run(run.run_id).root, (seed, seed))
    assert sweep.rate("full", 4).step_s == 5.0  # the median of the newest five: 3 to 7
    monkeypatch.setattr(pace, "MAX_OPENED", 1)
    assert sweep.rate("full", 4).step_s == 7.0


def write_bench(results: Path, seconds: dict[str, float], shape: str = "2x32x512") -> None:
    """Write what `isoloss bench` writes, one round long."""
    chosen = parse_shape(shape, 64)
    recipes = tuple(parse_recipe(label) for label in seconds)
    asked = BenchPlan(recipes=recipes, shapes=(chosen,), parts=("step",), vocab_size=257)
    subjects = [BenchSubject(label, rounds_s=(s,)) for label, s in seconds.items()]
    about = {
        "hardware": {"device": "A"},
        "library_versions": {"torch": "2"},
        "plan": asdict(asked),
    }
    store = BenchStore(results / "bench" / "first", json.loads(json.dumps(about)))
    store.update(section_rows("step", chosen, subjects, "fp32", None))


def test_bench_at_the_same_size_is_a_measurement(lab: Lab) -> None:
    sweep = lab.sweep()
    write_bench(sweep.paths.root.parent, {"standard": 0.1, "full": 0.3})
    rate = sweep.rate("full", 2)
    assert (rate.evidence, rate.source) == ("measured", "bench first")
    assert rate.device_s(100) == pytest.approx(30.0)
    # Another size of the arm: by the FLOPs that torch counts in a forward pass of both.
    factor = counted_flops(4) / counted_flops(2)
    assert sweep.rate("full", 4).step_s == pytest.approx(0.3 * factor, rel=1e-6)


def counted_flops(n_layers: int) -> int:
    model = Transformer(
        ModelConfig(n_layers=n_layers, d_model=32), ResidualConfig(name="full"), 257, seed=0
    )
    model.residual.use_countable_ops()
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 64, dtype=torch.long))
    return int(counter.get_total_flops())


def test_the_standard_arm_times_the_ratio_of_bench_beats_far_sizes(lab: Lab) -> None:
    sweep = lab.sweep(layers="2, 40")
    write_bench(sweep.paths.root.parent, {"standard": 0.1, "full": 0.3})
    sweep.finish(sweep.run("standard", 40), 5.0)
    rate = sweep.rate("full", 40)
    assert rate.evidence == "scaled"
    assert rate.step_s == pytest.approx(15.0)
    shutil.rmtree(sweep.paths.root.parent / "bench")
    flops = sweep.run("full", 40).cost.flops / sweep.run("standard", 40).cost.flops
    assert sweep.rate("full", 40).step_s == pytest.approx(5.0 * flops)


def test_runs_that_trained_beat_bench(lab: Lab) -> None:
    sweep = lab.sweep()
    write_bench(sweep.paths.root.parent, {"standard": 0.1, "full": 0.3})
    sweep.finish(sweep.run("full", 2), 0.5)
    assert sweep.rate("full", 2).step_s == 0.5


@pytest.mark.parametrize(
    ("seconds", "runs", "at_once", "minutes"),
    [(600, 1, 1, 15), (600, 4, 1, 54), (600, 4, 2, 28), (600, 5, 2, 41), (1, 1, 1, 3)],
)
def test_a_time_limit_holds_the_rounds_of_a_job_a_margin_and_its_start(
    seconds: float, runs: int, at_once: int, minutes: int
) -> None:
    assert suggested_minutes(seconds, runs, at_once) == minutes  # 2 min + 1.3 x rounds x run
