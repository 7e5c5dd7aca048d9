"""The id of a run: what it depends on, and what it does not."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from harness.config import RunConfig, Strict, TrainConfig
from harness.grid import load_grid
from harness.identity import arm_label, canonical_json, cell_label, run_id
from tests.harness.grid_texts import BASE, DATA, describe, load

SHA = "5" * 64
ROOT = Path(__file__).parent.parent.parent


def make(**changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "residual": {"name": "block", "options": {"block_size": 2}},
        "model": {"n_layers": 4, "d_model": 64},
        "data": {"corpus": "sotu", "seq_len": 128},
        "train": {"budget": {"flops": 1e13}, "lr": 0.001},
        "seed": 3,
    }
    return RunConfig.model_validate({**fields, **changes})


def test_the_id_is_sha256_of_sorted_json_of_what_differs_from_defaults() -> None:
    science = {
        "residual": {"name": "block", "options": {"block_size": 2}},
        "model": {"n_layers": 4, "d_model": 64},
        "data": {"seq_len": 128},
        "train": {"budget": {"flops": 1e13}, "lr": 0.001},
        "seed": 3,
    }
    identity = {"schema": 1, "recipe_revision": 7, "corpus": SHA, "science": science}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    assert canonical_json(make(), 7, SHA) == text
    assert run_id(make(), 7, SHA) == hashlib.sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    "train",
    [
        {"lr": 0.001, "budget": {"flops": 1e13}},
        {"budget": {"flops": 10_000_000_000_000}, "lr": 1e-3},
        {"budget": {"flops": 1e13}, "lr": 1e-3, "grad_clip": 1, "weight_decay": 0.1},
        {"budget": {"flops": 1e13}, "lr": 1e-3, "lr_end_frac": -0.0},
        {"budget": {"flops": 1e13, "tokens": None}, "lr": 1e-3},
    ],
)
def test_spelling_and_key_order_do_not_change_the_id(train: dict[str, Any]) -> None:
    assert run_id(make(train=train), 1, SHA) == run_id(make(), 1, SHA)


def test_negative_zero_is_zero() -> None:
    with_zero = make(train={"budget": {"flops": 1e13}, "weight_decay": 0.0})
    negative = make(train={"budget": {"flops": 1e13}, "weight_decay": -0.0})
    assert run_id(with_zero, 1, SHA) == run_id(negative, 1, SHA)


def test_a_derived_default_that_is_spelled_out_is_the_default() -> None:
    plain = make(model={"n_layers": 4, "d_model": 64})
    spelled = make(
        model={"n_layers": 4, "d_model": 64, "n_kv_heads": 2, "d_ff": plain.model.ffn_width}
    )
    assert run_id(spelled, 1, SHA) == run_id(plain, 1, SHA)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 4},
        {"model": {"n_layers": 4, "d_model": 64, "tied_head": True}},
        {"model": {"n_layers": 4, "d_model": 64, "n_kv_heads": 1}},
        {"residual": {"name": "block", "options": {"block_size": 4}}},
        {"residual": {"name": "low_rank", "options": {"block_size": 2}}},
        {"data": {"corpus": "sotu", "seq_len": 256}},
        {"train": {"budget": {"flops": 1e13}, "lr": 0.001, "eval_tokens": 4096}},
        {"train": {"budget": {"tokens": 10**13}, "lr": 0.001}},
    ],
)
def test_every_science_field_changes_the_id(changes: dict[str, Any]) -> None:
    assert run_id(make(**changes), 1, SHA) != run_id(make(), 1, SHA)


def test_the_recipes_revision_and_the_corpus_content_change_the_id() -> None:
    ids = {run_id(make(), 1, SHA), run_id(make(), 2, SHA), run_id(make(), 1, "6" * 64)}
    assert len(ids) == 3


def test_the_name_of_a_corpus_does_not_change_the_id() -> None:
    moved = make(data={"corpus": "/elsewhere/sotu", "seq_len": 128})
    assert run_id(moved, 1, SHA) == run_id(make(), 1, SHA)


def test_a_new_field_with_a_default_keeps_old_ids() -> None:
    class Extra(Strict):
        level: int = 0

    class Train(TrainConfig):
        dropout: float = 0.0

    class Later(RunConfig):
        train: Train
        extra: Extra = Field(default_factory=Extra)
        note: str = ""

    later = Later.model_validate(make().model_dump())
    assert run_id(later, 1, SHA) == run_id(make(), 1, SHA)
    used = Later.model_validate({**make().model_dump(), "extra": {"level": 1}})
    assert run_id(used, 1, SHA) != run_id(make(), 1, SHA)


def test_the_id_survives_the_round_trip_through_json() -> None:
    again = RunConfig.model_validate(json.loads(json.dumps(make().model_dump(mode="json"))))
    assert run_id(again, 1, SHA) == run_id(make(), 1, SHA)


def test_another_process_in_another_folder_finds_the_same_id(tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from harness.config import RunConfig\n"
        "from harness.identity import run_id\n"
        "config = RunConfig.model_validate_json(sys.argv[1])\n"
        f"print(run_id(config, 1, {SHA!r}), 'torch' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", program, make().model_dump_json()]
    out = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [run_id(make(), 1, SHA), "False"]


def test_options_at_their_default_and_int_for_float_give_the_same_run(tmp_path: Path) -> None:
    spelled = "{name: block, frozen_queries: false, query_init_std: 0, tail: short}"
    plain = load(tmp_path, BASE.replace("standard", "block"))
    full = load(tmp_path, BASE.replace("standard", spelled))
    assert [r.run_id for r in full.runs] == [r.run_id for r in plain.runs]
    assert full.runs[0].arm == "block"


# The ids of the contract's example. They change only with the identity rule, a default of a field,
# or the revision of a recipe; then raise SCHEMA_VERSION or the revision, and pin anew.
PINNED = {
    "standard, n_layers=4, d_model=96, flops=1e+13": "f8ca9a3ab553",
    "block(block_size=8), n_layers=12, d_model=192, flops=1e+13": "3c16b1bf53dc",
    "multi_stream, n_layers=8, d_model=128, flops=1e+13": "2eb06b45347e",
    "standard, n_layers=24, d_model=128, flops=1e+13": "4912f5d0262a",
}


def test_ids_of_the_contracts_example_stay_as_they_are() -> None:
    grid = load_grid(DATA / "grids" / "depth_ladder.yaml", describe=describe)
    ids = {run.cell: run.run_id for run in grid.runs if run.config.seed == 0}
    assert {cell: ids[cell] for cell in PINNED} == PINNED


def test_an_arm_is_the_recipe_and_its_changed_options() -> None:
    plain = make(residual={"name": "full"})
    assert arm_label(plain) == "full"
    assert arm_label(make()) == "block(block_size=2)"
    two = make(residual={"name": "block", "options": {"tail": "balanced", "n_blocks": 3}})
    assert arm_label(two) == "block(n_blocks=3, tail=balanced)"


def test_a_cell_names_shape_budget_and_what_else_varies_but_never_the_seed() -> None:
    label = "block(block_size=2), n_layers=4, d_model=64, flops=1e+13"
    assert cell_label(make()) == cell_label(make(seed=9)) == label
    assert cell_label(make(), ["train.lr"]) == f"{label}, lr=0.001"


def test_close_budgets_have_distinct_cells() -> None:
    budgets = [make(train={"budget": {"flops": f}}) for f in (1e13, 1.0000001e13)]
    assert len({cell_label(config) for config in budgets}) == 2
