"""Shipped grids plan without a remark, ask what their header says, and cost what it says."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.grid import Grid, load_grid
from harness.plan import Plan
from harness.plan import plan as make_plan
from harness.yaml12 import read_yaml

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "grids"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
Arm = tuple[str, dict[str, Any]]

PUBLISHED_ROWS: list[tuple[Arm, float]] = [
    (("standard", {}), 1.766),
    (("dense_former", {}), 1.767),
    (("mhc", {"mixing": "permutations"}), 1.747),
    (("full", {}), 1.737),
    (("full", {"query": "input_dependent"}), 1.731),
    (("full", {"query": "none"}), 1.749),
    (("full", {"weighting": "sigmoid"}), 1.741),
    (("full", {"key_norm": "none"}), 1.743),
    (("full", {"window": 8}), 1.764),
    (("block", {"block_size": 4}), 1.746),
    (("block", {"block_size": 4, "heads": 16}), 1.752),
    (("block", {"block_size": 4, "key_norm": "none"}), 1.750),
    (("block", {"block_size": 2}), 1.746),
    (("block", {"block_size": 8}), 1.748),
    (("block", {"block_size": 16}), 1.753),
    (("block", {"block_size": 32}), 1.757),
]
"""Ablations of arXiv 2603.15031 (16 layers, 436M active parameters): setting, validation loss."""


@cache
def load(name: str) -> Grid:
    return load_grid(FOLDER / f"{name}.yaml")


@cache
def priced(name: str) -> Plan:
    return make_plan(load(name))


def header(name: str) -> dict[str, str]:
    """The parts of the header comment by their first word, each on one line."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    comment = text[: text.index("\nsweep:")].replace("\n#", " ").removeprefix("#")
    parts = re.split(r"\s*\b(Asks|Command|Cost|Finding):\s+", " ".join(comment.split()))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def arms(name: str) -> list[Arm]:
    """Every arm once, in the order of the grid."""
    residuals = {run.arm: run.config.residual for run in load(name).runs}
    return [(residual.name, residual.options) for residual in residuals.values()]


@pytest.mark.parametrize("name", NAMES)
def test_it_plans_without_a_remark_within_its_limits(name: str) -> None:
    grid = load(name)
    assert priced(name).notices == ()
    assert grid.sweep == name.replace("_", "-")
    if name != "quickstart":
        assert grid.limits.runs == len(grid.runs)


@pytest.mark.parametrize("name", NAMES)
def test_its_header_says_what_it_asks_how_to_run_it_and_what_that_costs(name: str) -> None:
    said = header(name)
    assert list(said) == ["Asks", "Command", "Cost", "Finding"]
    assert said["Command"].startswith(f"isoloss run recipes/grids/{name}.yaml")
    n_runs, flops = re.findall(r"^(\d+) runs, ([\d.e]+) FLOPs; .* minutes on 2 CPU", said["Cost"])[
        0
    ]
    assert int(n_runs) == len(load(name).runs)
    assert float(flops) == pytest.approx(priced(name).flops, rel=0.02)


def test_every_ablation_of_the_attention_residuals_paper_is_one_line_with_its_loss() -> None:
    path = FOLDER / "attnres_ablations.yaml"
    document = read_yaml(path)
    text = path.read_text(encoding="utf-8").splitlines()
    places = [document.line(("axes", "residual", i)) for i in range(len(PUBLISHED_ROWS))]
    assert len(set(places)) == len(document.value["axes"]["residual"]) == len(PUBLISHED_ROWS)
    losses = [float(text[line - 1].split()[-1]) for line in places]
    assert list(zip(arms("attnres_ablations"), losses, strict=True)) == PUBLISHED_ROWS


def test_the_ablations_have_a_block_of_every_published_size() -> None:
    sizes = {
        run.residual.recipe.block_size(run.residual.shape, run.residual.options)
        for run in load("attnres_ablations").runs
        if run.config.residual.name == "block"
    }
    assert sizes == {2, 4, 8, 16, 32}
    assert {run.config.model.n_sublayers for run in load("attnres_ablations").runs} == {32}


def test_the_delta_factorial_is_full_and_has_the_released_code_beside_it() -> None:
    found = arms("delta_factorial")
    settings = {
        (
            options.get("combine", "add"),
            options.get("query_init_std", 0.0),
            options.get("source", "sublayer"),
        )
        for name, options in found
        if name == "delta" and "as_released" not in options
    }
    assert settings == set(product(("add", "replace"), (0.0, 0.02), ("sublayer", "block_sum")))
    released = {"source": "block_sum", "n_blocks": 4, "as_released": True, "query_init_std": 0.02}
    assert ("delta", released) in found
    assert ("standard", {}) in found
    assert len(found) == 10


def test_the_released_arm_has_the_blocks_of_the_factorial() -> None:
    ends = {
        run.residual.options.ends(run.residual.shape)
        for run in load("delta_factorial").runs
        if run.config.residual.options.get("source") == "block_sum"
    }
    assert ends == {(4, 8, 12, 16)}
