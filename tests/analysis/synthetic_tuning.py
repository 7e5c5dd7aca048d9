"""A tuned sweep made from a known law: loss has a known best learning rate for each arm."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.paths import SweepPaths
from harness.records import Manifest, PlannedRun, Role, read_manifest, write_manifest
from harness.tuned import TransferLaw, Tuned, TunedCell, cell_key, write_tuned
from tests.analysis.synthetic_sweep import World, _planned, _write_run, build_sweep, law, run_id

CURVATURE = 0.01
"""ln L rises by this times the square of ln(lr / best)."""
LR = "train.lr"
BEST = {"standard": 0.02, "full": 0.005, "low_rank": 0.02}
MULTIPLIERS = {"standard": 1.0, "full": 1.0, "low_rank": 1.2}
"""At own best rate: ``full`` gains nothing by itself, ``low_rank`` does and has the same rate."""
TRIAL_SEED = 1000
Place = tuple[str, int]


@dataclass
class Tuning:
    """What was searched."""

    best: Mapping[str, float] = field(default_factory=lambda: dict(BEST))
    multipliers: Mapping[str, float] = field(default_factory=lambda: dict(MULTIPLIERS))
    searched: int = 4
    """Smallest sizes that were searched; the others get the arm's rate by transfer."""
    factors: Sequence[float] = (0.25, 0.5, 1.0, 2.0)
    noise: float = 0.0
    seeds: Sequence[int] = (0, 1)
    sizes: int = 4
    equal_rate: bool = True
    statuses: Mapping[tuple[str, int, int], str] = field(default_factory=dict)
    """Of runs at the baseline's rate, by arm, size and seed."""


def expected_due(arm: str, tuning: Tuning | None = None) -> float:
    """Compute at the baseline's rate over that at the arm's own best, for equal loss."""
    best = (tuning or Tuning()).best
    return math.exp(CURVATURE * math.log(best["standard"] / best[arm]) ** 2 / 0.1)


def build_tuned(root: Path, tuning: Tuning | None = None) -> SweepPaths:
    """Write a sweep at tuned rates, its trials and its ``tuned.yaml``."""
    tuning = tuning or Tuning()
    world = World(multipliers=tuning.multipliers, seeds=tuning.seeds, diagnostics="none")
    paths = build_sweep(root, World(multipliers={}, seeds=()))
    rng = np.random.default_rng(11)
    main, trials, cells = [], [], []
    for size in range(tuning.sizes):
        for arm in tuning.multipliers:
            for seed in tuning.seeds:
                noise = rng.normal(0, tuning.noise, 2)
                made = _run(world, arm, size, seed, tuning.best[arm], "main")
                _train(paths, made, tuning, "done", noise[0])
                main.append(made)
                if tuning.equal_rate and tuning.best[arm] != tuning.best["standard"]:
                    at_equal = _run(world, arm, size, seed, tuning.best["standard"], "equal_rate")
                    status = tuning.statuses.get((arm, size, seed), "done")
                    _train(paths, at_equal, tuning, status, noise[1])
                    main.append(at_equal)
            searched = size < tuning.searched
            if searched:
                for factor in tuning.factors:
                    made = _run(world, arm, size, TRIAL_SEED, factor * tuning.best[arm], "trial")
                    _train(paths.tuning, made, tuning, "done", 0.0)
                    trials.append(made)
            cells.append(_cell(main[-1], arm, size, tuning, searched))
    _manifest(paths, main, read_manifest(paths))
    _manifest(paths.tuning, trials, read_manifest(paths))
    write_tuned(paths.tuned, _tuned(tuning, cells))
    return paths


def stop(paths: SweepPaths, at: PlannedRun, step: int, why: str) -> None:
    """Make the record of a trial one that was stopped early."""
    record = paths.tuning.run(at.run_id).record
    content = json.loads(record.read_text())
    content |= {"status": "cancelled", "excluded_because": f"stopped early {why}"}
    content |= {"last_step": step, "loss_nats": None}
    record.write_text(json.dumps(content))


def without_equal(paths: SweepPaths) -> None:
    """Take the runs at the baseline's rate out of the sweep."""
    manifest = read_manifest(paths)
    kept = [run for run in manifest.runs if run.role == "main"]
    for run in manifest.runs:
        if run.role != "main":
            paths.run(run.run_id).record.unlink()
    write_manifest(paths, manifest.model_copy(update={"runs": kept}))


def _run(world: World, arm: str, size: int, seed: int, lr: float, role: Role) -> PlannedRun:
    planned = _planned(world, arm, size, *world.shapes[size], seed)
    config = planned.config | {"train": planned.config["train"] | {"lr": lr}}
    label = ", at the baseline's values" if role == "equal_rate" else ""
    return planned.model_copy(
        update={
            "run_id": f"{run_id(arm, size, seed)[:8]}{seed % 256:02x}{hash_of(lr, role):02x}",
            "config": config,
            "cell": planned.cell + label,
            "role": role,
            "tuned": {LR: lr},
        }
    )


def hash_of(lr: float, role: str) -> int:
    return (round(lr * 1e6) + len(role)) % 256


def _train(paths: SweepPaths, run: PlannedRun, tuning: Tuning, status: str, noise: float) -> None:
    off = math.log(run.config["train"]["lr"] / tuning.best[run.arm])
    loss = law(run.cost.flops, tuning.multipliers[run.arm])
    world = World(diagnostics="none")
    _write_run(paths, run, status, loss * math.exp(CURVATURE * off**2 + noise), world)


def _cell(run: PlannedRun, arm: str, size: int, tuning: Tuning, searched: bool) -> TunedCell:
    inside = min(tuning.factors) < 1.0 < max(tuning.factors)
    return TunedCell(
        key=cell_key(run.config, [LR], run.corpus_sha256, run.recipe_revision),
        arm=arm,
        cell=run.cell,
        values={LR: tuning.best[arm]},
        by="search" if searched else "transfer",
        flops=run.cost.flops,
        n_params=run.cost.n_params,
        loss_nats=law(run.cost.flops, tuning.multipliers[arm]) if searched else None,
        trials=len(tuning.factors) if searched else 0,
        interior={LR: inside} if searched else {},
    )


def _tuned(tuning: Tuning, cells: Sequence[TunedCell]) -> Tuned:
    laws = []
    for arm in tuning.multipliers:
        own = [cell for cell in cells if cell.arm == arm]
        x = tuple(cell.flops for cell in own if cell.by == "search")
        if len(x) == len(own):
            continue
        laws.append(
            TransferLaw(
                arm=arm,
                path=LR,
                over="flops",
                coefficient=tuning.best[arm],
                exponent=0.0,
                exponent_interval=(-0.02, 0.02) if len(x) > 2 else None,
                x=x,
                best=(tuning.best[arm],) * len(x),
            )
        )
    return Tuned(
        sweep="synthetic",
        method="bracket",
        searched=(LR,),
        seed=TRIAL_SEED,
        optuna="5.0.0",
        cells=tuple(cells),
        transfer=tuple(laws),
    )


def _manifest(paths: SweepPaths, runs: Sequence[PlannedRun], like: Manifest) -> None:
    changed: dict[str, Any] = {"runs": list(runs), "sweep": paths.root.name}
    write_manifest(paths, like.model_copy(update=changed))
