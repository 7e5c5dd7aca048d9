"""A sweep folder made from a known law: losses are computed, never measured."""

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
    RunCost,
    RunRecord,
    append_jsonl,
    write_manifest,
    write_record,
)
from tests.analysis.synthetic_diagnostics import diagnostics_row

ALPHA = 0.1
LOG_A = 4.0
LAYERS_AND_WIDTHS = ((2, 64), (4, 96), (6, 128), (8, 160))
MULTIPLIERS = {
    "standard": 1.0,
    "full": 1.3,
    "block(block_size=4)": 1.2,
    "low_rank": 1.0,
    "multi_stream": 0.85,
    "delta": 1.05,
}


@dataclass
class World:
    """What the sweep looks like."""

    multipliers: Mapping[str, float] = field(default_factory=lambda: dict(MULTIPLIERS))
    shapes: Sequence[tuple[int, int]] = LAYERS_AND_WIDTHS
    seeds: Sequence[int] = (0, 1)
    noise: float = 0.0
    budget: str = "flops"
    residual_share: float = 0.01
    slowdown: float = 1.1
    statuses: Mapping[str, str] = field(default_factory=dict)
    """Status by run id (see :func:`run_id`); others are done. "planned" writes no record."""
    diagnostics: str = "new"
    """``old``: as version 0.1 wrote them; ``none``: switched off."""


def run_id(arm: str, size: int, seed: int) -> str:
    return f"{list(MULTIPLIERS).index(arm):04x}{size:04x}{seed:04x}"


def build_sweep(root: Path, world: World | None = None) -> SweepPaths:
    """Write manifest, records, metrics and diagnostics of a sweep that follows the law."""
    world = world or World()
    paths = sweep_paths(root, "synthetic")
    rng = np.random.default_rng(7)
    planned = []
    for size, (n_layers, d_model) in enumerate(world.shapes):
        for seed in world.seeds:
            shared = float(rng.normal(0, world.noise))
            for arm, multiplier in world.multipliers.items():
                run = _planned(world, arm, size, n_layers, d_model, seed)
                planned.append(run)
                own = float(rng.normal(0, world.noise / 2))
                loss = law(run.cost.flops, multiplier) * math.exp(shared + own)
                _write_run(paths, run, world.statuses.get(run.run_id, "done"), loss, world)
    manifest = Manifest(
        schema_version=1,
        sweep="synthetic",
        grid_text="sweep: synthetic\n# <b>not markup</b>\n",
        created_at="2026-01-01T00:00:00+00:00",
        baseline="standard",
        unigram_entropy_nats={"synthetic": 3.1},
        runs=planned,
    )
    write_manifest(paths, manifest)
    return paths


def law(flops: float, multiplier: float) -> float:
    """Loss in nats: exp(LOG_A) (multiplier C)^-ALPHA."""
    return math.exp(LOG_A - ALPHA * math.log(multiplier * flops))


def _planned(
    world: World, arm: str, size: int, n_layers: int, d_model: int, seed: int
) -> PlannedRun:
    name, options = arm.partition("(")[0], {}
    if "block_size" in arm:
        options = {"block_size": 4}
    own = 0.0 if arm == "standard" else world.residual_share
    params = 12 * n_layers * d_model**2
    base_flops_per_token = 6 * params + 12 * n_layers * d_model * 128
    per_token = int(base_flops_per_token * (1 + own))
    if world.budget == "flops":
        budget: dict[str, Any] = {"flops": 1e12 * 3.0**size}
        steps = round(budget["flops"] / per_token / 4096)
    else:
        budget = {"tokens": 4096 * 100 * 2**size}
        steps = 100 * 2**size
    config = RunConfig.model_validate(
        {
            "residual": {"name": name, "options": options},
            "model": {"n_layers": n_layers, "d_model": d_model},
            "data": {"seq_len": 128},
            "train": {"budget": budget, "batch_tokens": 4096},
            "seed": seed,
        }
    )
    tokens = steps * 4096
    return PlannedRun(
        run_id=run_id(arm, size, seed),
        arm=arm,
        cell=f"{arm} L{n_layers} d{d_model}",
        config=config.model_dump(mode="json"),
        recipe_revision=1,
        corpus_sha256="c" * 64,
        vocab_size=256,
        cost=RunCost(
            n_params=params + 512 * d_model + (0 if own == 0 else 2 * n_layers * d_model),
            n_params_non_embedding=params,
            n_params_residual=0 if own == 0 else 2 * n_layers * d_model,
            flops_per_token=per_token,
            flops_per_token_residual=per_token - base_flops_per_token,
            steps=steps,
            tokens=tokens,
            flops=float(per_token * tokens),
            flops_residual=float((per_token - base_flops_per_token) * tokens),
            flops_6nd=float(6 * params * tokens),
            state_bytes=16 * params,
        ),
    )


def _write_run(
    paths: SweepPaths, planned: PlannedRun, status: str, loss: float, world: World
) -> None:
    run = paths.run(planned.run_id)
    if status == "planned":
        return
    run.attempt(1).mkdir(parents=True)
    _write_metrics(run.metrics, planned, loss)
    if status == "running":
        return
    if world.diagnostics != "none":
        append_jsonl(run.diagnostics, diagnostics_row(planned, world.diagnostics == "old"))
    write_record(run.record, _record(planned, status, loss, world))


def _record(planned: PlannedRun, status: str, loss: float, world: World) -> RunRecord:
    config, cost, done = planned.config, planned.cost, status == "done"
    slow = 1.0 if planned.arm == "standard" else world.slowdown
    step_time = 1e-12 * cost.flops_per_token * 4096 * slow
    train = config["train"]
    return RunRecord(
        schema_version=1,
        run_id=planned.run_id,
        sweep="synthetic",
        arm=planned.arm,
        cell=planned.cell,
        status=status,  # type: ignore[arg-type]
        excluded_because=None if done else f"{status} in a test",
        residual=config["residual"]["name"],
        residual_options=config["residual"]["options"],
        recipe_revision=1,
        n_layers=config["model"]["n_layers"],
        d_model=config["model"]["d_model"],
        seq_len=128,
        vocab_size=256,
        corpus="sotu",
        corpus_sha256=planned.corpus_sha256,
        seed=config["seed"],
        lr=train["lr"],
        optimizer=train["optimizer"],
        schedule=train["schedule"],
        precision=train["precision"],
        batch_tokens=4096,
        budget_kind=next(k for k, v in train["budget"].items() if v is not None),
        budget_value=next(v for v in train["budget"].values() if v is not None),
        steps=cost.steps,
        tokens=cost.tokens,
        n_params=cost.n_params,
        n_params_non_embedding=cost.n_params_non_embedding,
        n_params_residual=cost.n_params_residual,
        flops=cost.flops,
        flops_residual=cost.flops_residual,
        flops_6nd=cost.flops_6nd,
        # A diverged run has a loss too; it must never enter a fit.
        loss_nats=loss if done else 20.0 if status == "diverged" else None,
        bits_per_byte=loss / math.log(2) if done else None,
        eval_tokens=131072,
        step_time_s=step_time,
        tokens_per_s=4096 / step_time,
        wall_s=cost.steps * step_time,
        attempts=1,
        last_step=cost.steps,
        code_version="0.1.0+test",
        library_versions={"torch": "2.13.0", "python": "3.11.2"},
        hardware={"cpu": "synthetic", "threads": 1},
    )


def _write_metrics(path: Path, planned: PlannedRun, loss: float) -> None:
    steps = planned.cost.steps
    path.parent.mkdir(parents=True, exist_ok=True)
    marks = sorted({max(1, round(steps * k / 20)) for k in range(1, 21)})
    for i, step in enumerate(marks):
        tokens = step * 4096
        shared = {"step": step, "tokens": tokens, "attempt": 1}
        shared["flops"] = tokens * planned.cost.flops_per_token
        value = loss + 2.5 * math.exp(-8 * step / steps)
        ripple = 0.02 * math.sin(3.0 * i)
        train = {"kind": "train", "loss_nats": value + ripple, "lr": 1e-2, "grad_norm": 0.5}
        append_jsonl(path, {**shared, **train, "step_time_s": 0.01})
        if i % 5 == 4:
            val = {"kind": "val", "loss_nats": value, "bits_per_byte": value / math.log(2)}
            append_jsonl(path, {**shared, **val})


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
