"""Fixtures shared by all tests: one thread, one cache of corpora, planned runs of any shape."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from harness.config import RunConfig
from harness.cost import run_cost
from harness.identity import run_id
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun
from harness.source import describe_source
from recipes.base import Shape, get

PlanRun = Callable[..., PlannedRun]


LONGEST = (
    "slurm/test_sweep_under_faults.py",
    "slurm/test_random_kills.py",
    "slurm/test_reconciliation.py",
    "harness/test_local.py",
)
"""Minutes each. Those on Slurm mostly wait, so not all of the first files may be such."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that none of them is left alone at the end."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, bool]:
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    return LONGEST.index(file) if file in LONGEST else len(LONGEST), "slurm/" not in file


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_config(
    residual: str = "standard",
    options: dict[str, Any] | None = None,
    *,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    seq_len: int = 32,
    seed: int = 0,
) -> RunConfig:
    """A small run on the embedded text: two layers of width 32, twelve steps of 256 tokens."""
    return RunConfig.model_validate(
        {
            "residual": {"name": residual, "options": options or {}},
            "model": {"n_layers": 2, "d_model": 32, "head_dim": 16, **(model or {})},
            "data": {"corpus": "sotu", "seq_len": seq_len, **(data or {})},
            "train": {
                "budget": {"tokens": 12 * 256},
                "batch_tokens": 256,
                "eval_tokens": 1024,
                **(train or {}),
            },
            "seed": seed,
        }
    )


def plan_run(*args: Any, **kwargs: Any) -> PlannedRun:
    """Plan one run; arguments as for :func:`make_config`."""
    config = make_config(*args, **kwargs)
    recipe, info = get(config.residual.name), describe_source(config.data)
    options = recipe.Options.model_validate(config.residual.options)
    shape = Shape(n_layers=config.model.n_layers, d_model=config.model.d_model)
    return PlannedRun(
        run_id=run_id(config, recipe.revision, info.sha256),
        arm=config.residual.name,
        cell=f"{config.residual.name} {config.model.n_layers}x{config.model.d_model}",
        config=config.model_dump(mode="json"),
        recipe_revision=recipe.revision,
        corpus_sha256=info.sha256,
        vocab_size=info.vocab_size,
        cost=run_cost(config, recipe.cost(shape, options), info.vocab_size),
    )


@pytest.fixture
def planned() -> PlanRun:
    """Factory of planned runs."""
    return plan_run


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    """An empty sweep folder of its own."""
    paths = SweepPaths(tmp_path / "results" / "test-sweep")
    paths.runs.mkdir(parents=True)
    return paths


def run_folder(sweep: SweepPaths, run: PlannedRun) -> RunPaths:
    """The folder of a run, created."""
    paths = sweep.run(run.run_id)
    paths.root.mkdir(parents=True, exist_ok=True)
    return paths
