"""A sweep of depth probes with a known truth: how long a word each arm can follow at each depth."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import RunConfig
from harness.paths import SweepPaths, sweep_paths
from harness.records import (
    Manifest,
    PlannedRun,
    Role,
    RunCost,
    RunRecord,
    write_manifest,
    write_record,
)

CHANCE = 1 / 6
LENGTH = 16
STEPS = 500
S3: dict[str, Any] = {"task": "s3_words", "options": {"length": LENGTH}}
MQAR: dict[str, Any] = {"task": "mqar", "options": {"n_pairs": 8}}
Key = tuple[str, str, int, int]
"""Task, arm, depth, seed."""


@dataclass
class ProbeWorld:
    """What the sweep looks like."""

    shifts: Mapping[str, float] = field(
        default_factory=lambda: {"standard": 0.0, "full": -1.5, "delta": 0.0, "deeper": 1.5}
    )
    """By arm: levels by which it goes further than the baseline."""
    depths: Sequence[int] = (1, 2, 4, 8)
    seeds: Sequence[int] = (0, 1, 2)
    tasks: Sequence[Mapping[str, Any]] = (S3,)
    noise: float = 0.15
    """Standard deviation over seeds that arms share, in levels; half of it is an arm's own."""
    statuses: Mapping[Key, str] = field(default_factory=dict)
    """Others are done."""
    equal_shifts: Mapping[str, float] = field(default_factory=dict)
    """By arm with values of its own: its shift at the baseline's."""
    widths: Mapping[int, int] = field(default_factory=dict)
    """Width by depth, where width goes with depth."""


def build_probes(root: Path, world: ProbeWorld | None = None) -> SweepPaths:
    """Write manifest, records and metrics of the sweep."""
    world = world or ProbeWorld()
    paths = sweep_paths(root, "probes")
    rng = np.random.default_rng(5)
    planned = []
    for task in world.tasks:
        for depth in world.depths:
            for seed in world.seeds:
                shared = float(rng.normal(0, world.noise))
                for arm, shift in world.shifts.items():
                    key = (task["task"], arm, depth, seed)
                    reach = reach_of(depth) + shared + float(rng.normal(0, world.noise / 2))
                    tuned = {"train.lr": 0.01 if arm in world.equal_shifts else 0.02}
                    run = _planned(world, task, key, tuned if world.equal_shifts else {})
                    _write(paths, run, world.statuses.get(key, "done"), reach + shift)
                    planned.append(run)
                    if arm in world.equal_shifts:
                        at_equal = _planned(world, task, key, {"train.lr": 0.02}, "equal_rate")
                        _write(paths, at_equal, "done", reach + world.equal_shifts[arm])
                        planned.append(at_equal)
    manifest = Manifest(
        schema_version=1,
        sweep="probes",
        grid_text="sweep: probes\n",
        created_at="2026-01-01T00:00:00+00:00",
        baseline="standard",
        runs=planned,
    )
    write_manifest(paths, manifest)
    return paths


def reach_of(depth: int) -> float:
    """Level at which the baseline's accuracy has fallen half way to chance."""
    return 2.5 + 2.5 * math.sqrt(depth)


def accuracy_at(level: int, reach: float) -> float:
    """Falls from 1 to chance within about two levels of ``reach``."""
    return CHANCE + (1 - CHANCE) / (1 + math.exp((level - reach) / 0.5))


def solved(levels: Mapping[int, float]) -> int:
    """Levels up to which every accuracy is 90% or more, counted one by one."""
    n = 0
    while levels.get(n + 1, 0.0) >= 0.9:
        n += 1
    return n


def levels_of(task: str, depth: int, reach: float) -> dict[int, float]:
    if task == "mqar":
        return {1: 0.4 if depth < 2 else 1 - 1e-3 / (1 + math.exp(reach))}
    return {level: accuracy_at(level, reach) for level in range(1, LENGTH + 1)}


def _planned(
    world: ProbeWorld,
    task: Mapping[str, Any],
    key: Key,
    tuned: Mapping[str, float],
    role: Role = "main",
) -> PlannedRun:
    name, arm, depth, seed = key
    d_model = world.widths.get(depth, 64)
    config = RunConfig.model_validate(
        {
            "residual": {"name": arm},
            "model": {"n_layers": depth, "d_model": d_model},
            "data": {"seq_len": 16},
            "train": {"budget": {"tokens": STEPS * 2048}, "batch_tokens": 2048},
            "seed": seed,
        }
    ).model_dump(mode="json")
    config["data"] |= {**task, "seq_len": LENGTH + 1}
    config["train"]["lr"] = tuned.get("train.lr", 0.02)
    params = 12 * depth * d_model**2
    flops = 6.0 * params * STEPS * 2048
    place = f"{list(world.shifts).index(arm):02x}{depth:02x}{seed:02x}"
    return PlannedRun(
        run_id=f"{name.encode().hex()[:4]}{place}{'ee' if role == 'equal_rate' else 'aa'}",
        arm=arm,
        cell=f"{name} {arm} L{depth}",
        config=config,
        recipe_revision=1,
        corpus_sha256=name.encode().hex().ljust(64, "0"),
        vocab_size=8,
        role=role,
        tuned=dict(tuned),
        cost=RunCost(
            n_params=params,
            n_params_non_embedding=params,
            n_params_residual=0,
            flops_per_token=6 * params,
            flops_per_token_residual=0,
            steps=STEPS,
            tokens=STEPS * 2048,
            flops=flops,
            flops_residual=0.0,
            flops_6nd=flops,
            state_bytes=16 * params,
        ),
    )


def _write(paths: SweepPaths, planned: PlannedRun, status: str, reach: float) -> None:
    run = paths.run(planned.run_id)
    if status == "planned":
        return
    run.attempt(1).mkdir(parents=True)
    task, depth = planned.config["data"]["task"], planned.config["model"]["n_layers"]
    passed: dict[str, int | None] = {}
    rows = []
    for k in range(1, 11):
        step = STEPS * k // 10
        levels = levels_of(task, depth, reach * (1 - math.exp(-4 * k / 10)))
        accuracy = float(np.mean(list(levels.values())))
        for name, value in {"all": accuracy, **{str(k): v for k, v in levels.items()}}.items():
            passed[name] = (passed.get(name) or step) if value >= 0.9 else None
        row = {"kind": "val", "step": step, "tokens": step * 2048, "attempt": 1}
        rows.append(json.dumps({**row, "loss_nats": 1.0, "accuracy": accuracy}))
    run.metrics.write_text("\n".join(rows) + "\n")
    if status != "running":
        final = levels_of(task, depth, reach)
        write_record(run.record, _record(planned, status, final, passed))


def _record(
    planned: PlannedRun, status: str, levels: Mapping[int, float], passed: dict[str, int | None]
) -> RunRecord:
    config, cost = planned.config, planned.cost
    done, text = status == "done", {str(level): value for level, value in levels.items()}
    train = config["train"]
    return RunRecord(
        schema_version=1,
        run_id=planned.run_id,
        sweep="probes",
        arm=planned.arm,
        cell=planned.cell,
        status=status,  # type: ignore[arg-type]
        excluded_because=None if done else f"{status} in a test",
        residual=config["residual"]["name"],
        residual_options={},
        recipe_revision=1,
        n_layers=config["model"]["n_layers"],
        d_model=config["model"]["d_model"],
        seq_len=config["data"]["seq_len"],
        vocab_size=8,
        corpus="as the harness labels it",
        corpus_sha256=planned.corpus_sha256,
        task=config["data"]["task"],
        task_options=config["data"]["options"],
        graded_by="length" if config["data"]["task"] == "s3_words" else "pairs",
        chance=CHANCE,
        accuracy=float(np.mean(list(levels.values()))) if done else None,
        accuracy_by_difficulty=text if done else {},
        accuracy_by_position={str(int(k) + 1): v for k, v in text.items()} if done else {},
        solved_difficulty=solved(levels) if done else None,
        steps_to_90=passed["all"],
        steps_to_90_by_difficulty={name: passed[name] for name in text},
        seed=config["seed"],
        lr=train["lr"],
        optimizer=train["optimizer"],
        schedule=train["schedule"],
        precision=train["precision"],
        batch_tokens=2048,
        budget_kind="tokens",
        budget_value=train["budget"]["tokens"],
        steps=cost.steps,
        tokens=cost.tokens,
        n_params=cost.n_params,
        n_params_non_embedding=cost.n_params_non_embedding,
        n_params_residual=0,
        flops=cost.flops,
        flops_residual=0.0,
        flops_6nd=cost.flops_6nd,
        loss_nats=1.0 if done else None,
        eval_tokens=4096,
        step_time_s=0.01,
        tokens_per_s=204800.0,
        wall_s=5.0,
        attempts=1,
        last_step=cost.steps,
        code_version="0.1.0+test",
        library_versions={"python": "3.11.2"},
        hardware={"cpu": "synthetic"},
        role=planned.role,
        tuned=planned.tuned,
    )
