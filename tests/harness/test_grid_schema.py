"""The editor schema: valid JSON Schema that accepts shipped grids and sees typed mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.schema import grid_schema
from harness.yaml12 import parse_yaml, read_yaml
from tests.harness.grid_texts import BASE, DATA

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parent.parent.parent
GRIDS = [*sorted((ROOT / "recipes" / "grids").glob("*.yaml")), DATA / "grids" / "depth_ladder.yaml"]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return grid_schema()


def _errors(schema: dict[str, Any], value: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def test_the_schema_is_json_and_a_schema(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(schema)))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.name)
def test_shipped_grids_are_valid(schema: dict[str, Any], path: Path) -> None:
    assert _errors(schema, read_yaml(path).value) == []


@pytest.mark.parametrize(
    "rule",
    [
        "axis: {}",
        "axes: {train.lr: []}",
        "axes: {train.lr: [fast]}",
        "axes: {block_size: [2]}",
        "axes: {residual: [blok]}",
        "axes: {residual: [{name: block, block_size: four}]}",
        "zip: {train.lr: [1]}",
        "when: [{axes: {train.lr: [1]}}]",
        "exclude: [{model.depth: 3}]",
        "include: [{model: {n_layer: 2}}]",
        "seeds: [0, 0]",
        "seeds: [-1]",
        "execution: {threads: two}",
        "mlflow: {mode: maybe}",
        "slurm: {time: [1]}",
        "slurm: {nodes: 2}",
        "slurm: {signal: KILL}",
        "slurm: {container: {image: x, runtime: docker}}",
        "slurm: {overrides: [{time: 5}]}",
        "slurm: {overrides: [{if: {}, time: 5}]}",
        "slurm: {overrides: [{if: {model.d_modle: 5}, time: 5}]}",
    ],
)
def test_an_editor_sees_a_typed_mistake(schema: dict[str, Any], rule: str) -> None:
    assert _errors(schema, parse_yaml(BASE, "g").value) == []
    assert len(_errors(schema, parse_yaml(f"{BASE}{rule}\n", "g").value)) >= 1


def test_a_slurm_block_is_valid(schema: dict[str, Any]) -> None:
    block = (
        "slurm:\n  time: 12:00:00\n  mem: 4000\n  gpus_per_node: a100:2\n  mail_type: [END, FAIL]\n"
        "  setup: [module load cuda]\n  extra: {exclusive: true, nice: 5}\n"
        "  overrides: [{if: {model.d_model: [64, 128], residual: block}, time: 90}]\n"
    )
    assert _errors(schema, parse_yaml(BASE + block, "g").value) == []


def test_fields_carry_their_docstrings(schema: dict[str, Any]) -> None:
    definitions = schema["$defs"]
    assert definitions["model.d_model"]["description"] == "Width of the residual stream."
    assert "Sublayers per depth block" in json.dumps(definitions["residual.block_size"])
