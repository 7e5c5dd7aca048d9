"""Computed rules of a grid: compute within 1%, ladders, depth-width grids, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import Budget, DataConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig
from harness.cost import run_cost
from harness.errors import GridError
from harness.grid import Grid
from harness.iso_flops import Growth, backbone_flops_per_token, batch_tokens
from harness.plan import plan
from recipes.base import Shape, get, parse_options
from tests.harness.grid_texts import BASE, load

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("standard", {}),
    ("full", {}),
    ("full", {"query": "input_dependent"}),
    ("block", {"block_size": 2}),
    ("block", {"block_size": 4, "heads": 4}),
    ("delta", {}),
    ("low_rank", {}),
    ("multi_stream", {}),
    ("mhc", {}),
    ("dense_former", {}),
]
ISO = BASE + "iso_flops: "
LADDER = BASE + "ladder: "
MAP = BASE + "depth_width: "
SIZES = "sizes: [{n_layers: 2, d_model: 32}, {n_layers: 4, d_model: 64}]"


@settings(max_examples=1000, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    n_layers=st.integers(2, 40),
    n_heads=st.integers(1, 40),
    seq_len=st.sampled_from([128, 512, 2048]),
    vocab_size=st.sampled_from([257, 50257]),
    declared=st.integers(1, 1024),
    sequences=st.floats(1, 1e5),
    growth=st.none() | st.floats(0.1, 0.9),
)
def test_whole_steps_meet_the_declared_compute_within_one_percent(
    variant: tuple[str, dict[str, Any]],
    n_layers: int,
    n_heads: int,
    seq_len: int,
    vocab_size: int,
    declared: int,
    sequences: float,
    growth: float | None,
) -> None:
    model = ModelConfig(n_layers=n_layers, d_model=32 * n_heads)
    per_token = backbone_flops_per_token(model, seq_len, vocab_size)
    budget = 100 * per_token * seq_len * sequences
    rule = Growth(tokens=8192, at_flops=1e13, exponent=growth) if growth else None
    batch = batch_tokens(rule, budget, per_token, seq_len, declared * seq_len)
    assert batch is not None
    assert batch % seq_len == 0 < batch
    name, options = variant
    shape = Shape(n_layers, model.d_model)
    config = RunConfig(
        residual=ResidualConfig(name=name, options=options),
        model=model,
        data=DataConfig(seq_len=seq_len),
        train=TrainConfig(budget=Budget(flops=budget), batch_tokens=batch, eval_tokens=seq_len),
    )
    recipe = get(name)
    cost = run_cost(config, recipe.cost(shape, parse_options(name, options, shape)), vocab_size)
    assert cost.flops == pytest.approx(budget, rel=0.01)
    assert cost.tokens == cost.steps * batch


def test_the_batch_is_as_declared_where_it_leaves_a_hundred_steps() -> None:
    assert batch_tokens(None, 1e6 * 100 * 4096, 1e6, 128, 4096) == 4096
    assert batch_tokens(None, 1e6 * 100 * 4095, 1e6, 128, 4096) == 4096 - 128
    assert batch_tokens(None, 1e6 * 100 * 127, 1e6, 128, 4096) is None
    assert batch_tokens("fixed", 1e6, 1e6, 128, 4096) == 4096


def test_the_default_exponent_gives_the_batches_of_deepseek_llm() -> None:
    """Equation 1 of arXiv 2401.02954: B = 0.2920 C^0.3271 tokens."""
    rule = Growth(tokens=round(0.2920 * 1e18**0.3271), at_flops=1e18)
    for flops in (1e17, 1e20):
        batch = batch_tokens(rule, flops, 1.0, 1, 1)
        assert batch == pytest.approx(0.2920 * flops**0.3271, rel=1e-4)


def flops_grid(folder: Path, rules: str) -> Grid:
    return load(folder, ISO + "{budgets: [1e11, 3e12], " + SIZES + f"{rules}}}\n" + AXES)


AXES = "axes: {residual: [standard, full, multi_stream]}\nanalysis: {baseline: standard}\n"


def test_every_arm_runs_every_size_at_every_compute_with_one_batch(tmp_path: Path) -> None:
    grid = flops_grid(tmp_path, "")
    made = plan(grid)
    assert len(made.runs) == 3 * 2 * 2
    batches: dict[tuple[int, float], set[int]] = {}
    for run, planned in zip(grid.runs, made.runs, strict=True):
        budget = run.config.train.budget
        assert planned.cost.flops == pytest.approx(budget.value, rel=0.01)
        size = (run.config.model.n_layers, budget.value)
        batches.setdefault(size, set()).add(run.config.train.batch_tokens)
    assert {budget for _, budget in batches} == {1e11, 3e12}
    assert len(batches) == 4
    assert all(len(found) == 1 for found in batches.values())
    assert {rule.rule: rule.matched for rule in grid.rules} == {
        "axes.residual": 3,
        "iso_flops.budgets": 2,
        "iso_flops.sizes": 2,
    }


def test_another_arm_leaves_the_runs_of_the_others_as_they_are(tmp_path: Path) -> None:
    few = flops_grid(tmp_path, "")
    text = (tmp_path / "grid.yaml").read_text(encoding="utf-8")
    more = load(tmp_path, text.replace("full,", "full, mhc,"))
    assert {run.run_id for run in few.runs} < {run.run_id for run in more.runs}


def test_a_batch_kept_fixed_is_refused_by_plan_where_it_misses_the_compute(tmp_path: Path) -> None:
    grid = flops_grid(tmp_path, ", batch: fixed")
    with pytest.raises(GridError) as caught:
        plan(grid)
    first = caught.value.problems[0]
    assert first.startswith(f"{tmp_path / 'grid.yaml'}:6: iso_flops.budgets[0]: standard, ")
    assert "miss 1e+11 FLOPs by" in first
    assert "Lower train.batch_tokens to" in first


def test_sizes_may_come_from_a_ladder(tmp_path: Path) -> None:
    sizes = "{ladder: {from: 3e5, to: 3e6, rungs: 3, aspect: 32}}"
    grid = load(tmp_path, ISO + f"{{budgets: [1e12, 1e13], sizes: {sizes}}}\n")
    assert len(plan(grid).runs) == 6
    assert len({run.config.model.d_ff for run in grid.runs}) == 3


def test_a_ladder_is_a_dimension_of_the_product(tmp_path: Path) -> None:
    text = LADDER + "{from: 3e5, to: 3e6, rungs: 3, aspect: 32}\n" + AXES
    grid = load(tmp_path, text)
    made = plan(grid)
    standard = [run.cost.n_params for run in made.runs if run.arm == "standard"]
    assert standard == pytest.approx([3e5, 3e5 * 10**0.5, 3e6], rel=0.02)
    assert (grid.rules[-1].rule, grid.rules[-1].line, grid.rules[-1].runs) == ("ladder", 6, 9)


def test_a_depth_width_grid_has_one_size_and_one_compute(tmp_path: Path) -> None:
    ratios = "width_per_layer: [8, 16, 32], heads_per_layer: [0.5, 1]"
    grid = load(tmp_path, MAP + f"{{params: 2e6, flops: 1e12, {ratios}}}\n" + AXES)
    made = plan(grid)
    assert len(made.runs) == 3 * 6
    standard = [run for run in made.runs if run.arm == "standard"]
    assert [run.cost.n_params for run in standard] == pytest.approx([2e6] * 6, rel=0.02)
    assert {run.config["train"]["budget"]["flops"] for run in made.runs} == {1e12}


ONE_MISTAKE: dict[str, tuple[str, int, str, str]] = {
    "ladder a list": (LADDER + "[1e6]\n", 6, "ladder", "must be a mapping"),
    "ladder unknown": (
        LADDER + "{from: 1e6, to: 1e7, rungs: 3, aspct: 3, aspect: 9}\n",
        6, "ladder.aspct", "did you mean 'aspect'?",
    ),
    "ladder without from": (
        LADDER + "{to: 1e7, rungs: 3, aspect: 64}\n", 6, "ladder.from", "is required; add it"
    ),
    "ladder backwards": (
        LADDER + "{from: 1e7, to: 1e6, rungs: 3, aspect: 64}\n",
        6, "ladder.to", "must be greater than from",
    ),
    "ladder ill-typed": (
        LADDER + "\n  from: 1e6\n  to: 1e7\n  rungs: '6'\n  aspect: 64\n",
        9, "ladder.rungs", "Write 6",
    ),
    "ladder too small": (
        LADDER + "{from: 20000, to: 1e6, rungs: 3, aspect: 64}\n",
        6, "ladder", "the nearest has 76352",
    ),
    "ladder and axis": (
        LADDER + "{from: 1e6, to: 1e7, rungs: 3, aspect: 64}\naxes: {model.d_model: [64, 96]}\n",
        6, "ladder.rungs", "model.d_model is already varied by axes.model.d_model (line 7)",
    ),
    "ladder and head_dim": (
        LADDER + "{from: 1e6, to: 1e7, rungs: 2, aspect: 64}\naxes: {model.head_dim: [16, 32]}\n",
        7, "axes.model.head_dim", "the shapes of ladder (line 6) follow the model.head_dim of base",
    ),
    "ladder misspelt": (
        BASE + "lader: {from: 1e6}\n", 6, "lader", "did you mean 'ladder'?"
    ),
    "map without params": (
        MAP + "{width_per_layer: [8], heads_per_layer: [1]}\n",
        6, "depth_width.params", "is required; add it",
    ),
    "map of negative ratios": (
        MAP + "{params: 1e6, width_per_layer: [8, -1], heads_per_layer: [1]}\n",
        6, "depth_width.width_per_layer[1]", "must be at least 0.01",
    ),
    "map without ratios": (
        MAP + "{params: 1e6, width_per_layer: [], heads_per_layer: [1]}\n",
        6, "depth_width.width_per_layer", "at least 1 item",
    ),
    "map out of reach": (
        MAP + "{params: 1e5, width_per_layer: [16], heads_per_layer: [0.05]}\n",
        6, "depth_width", "Raise params, or change the ratios",
    ),
    "map at equal tokens": (
        BASE.replace("flops: 1e13", "tokens: 10000000")
        + "depth_width: {params: 2e6, width_per_layer: [8], heads_per_layer: [1]}\n",
        6, "depth_width", "Add flops: … here",
    ),
    "iso without sizes": (ISO + "{budgets: [1e11]}\n", 6, "iso_flops.sizes", "is required"),
    "iso without budgets": (
        ISO + f"{{budgets: [], {SIZES}}}\n", 6, "iso_flops.budgets", "at least 1 item"
    ),
    "iso budget ill-typed": (
        ISO + f"\n  budgets:\n    - 1e11\n    - lots\n  {SIZES}\n",
        9, "iso_flops.budgets[1]", "must be a number",
    ),
    "iso sizes a number": (
        ISO + "{budgets: [1e11], sizes: 3}\n", 6, "iso_flops.sizes", "must be a list of shapes"
    ),
    "iso size misspelt": (
        ISO + "{budgets: [1e11], sizes: [{n_layers: 4, d_modle: 64}]}\n",
        6, "iso_flops.sizes[0].d_modle", "did you mean 'model.d_model'?",
    ),
    "iso sizes uneven": (
        ISO + "\n  budgets: [1e11]\n  sizes:\n    - {n_layers: 4, d_model: 64}\n"
        "    - {n_layers: 4}\n",
        10, "iso_flops.sizes[1]", "sets n_layers and the first size d_model, n_layers",
    ),
    "iso ladder unknown": (
        ISO + "{budgets: [1e11], sizes: {ladder: {from: 1e6, to: 1e7, rungs: 2}}}\n",
        6, "iso_flops.sizes.ladder.aspect", "is required",
    ),
    "iso budget too small": (
        ISO + "{budgets: [1e6], sizes: [{n_layers: 4, d_model: 64}]}\n",
        6, "iso_flops.budgets[0]", "less than 100 steps of one sequence",
    ),
    "iso batch unknown": (
        ISO + f"{{budgets: [1e12], {SIZES}, batch: free}}\n", 6, "iso_flops.batch", "must be fixed"
    ),
    "iso batch without tokens": (
        ISO + f"{{budgets: [1e12], {SIZES}, batch: {{at_flops: 1e12}}}}\n",
        6, "iso_flops.batch.tokens", "is required",
    ),
    "iso and another budget": (
        ISO + f"{{budgets: [1e12], {SIZES}}}\naxes: {{train.budget.flops: [1e12, 2e12]}}\n",
        6, "iso_flops.budgets", "already varied by axes.train.budget.flops (line 7)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_MISTAKE)
def test_one_mistake_gives_one_message_with_its_place_and_the_way_out(
    name: str, tmp_path: Path
) -> None:
    text, line, path, fragment = ONE_MISTAKE[name]
    with pytest.raises(GridError) as caught:
        load(tmp_path, text)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:{line}: {path}: ")
    assert fragment in problem


def test_two_rules_for_the_same_shapes_are_refused(tmp_path: Path) -> None:
    ratios = "width_per_layer: [32], heads_per_layer: [1]"
    text = (
        MAP + f"{{params: 2e6, {ratios}}}\nladder: {{from: 1e6, to: 2e6, rungs: 2, aspect: 64}}\n"
    )
    with pytest.raises(GridError) as caught:
        load(tmp_path, text)
    assert all("already varied by ladder.rungs (line 7)" in p for p in caught.value.problems)


def test_a_declaration_can_be_overridden_on_the_command_line(tmp_path: Path) -> None:
    text = LADDER + "{from: 1e6, to: 1e7, rungs: 3, aspect: 64}\n"
    assert len(load(tmp_path, text, ["ladder.rungs=2"]).runs) == 2
    with pytest.raises(GridError, match=r"--set ladder\.rungs=x: ladder\.rungs: must be an int"):
        load(tmp_path, text, ["ladder.rungs=x"])
