"""JSON Schema of grid files, for editors.

Derived from the typed fields and from the options of the registered recipes, so that completion and
hover texts never fall behind the code. Editors check types with it; rules about several fields at
once are :func:`harness.grid.load_grid`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from harness.config import Budget, DataConfig, Execution, RunConfig
from harness.fields import BUDGET, LEAVES, MAX_SEED, SECTIONS
from harness.generate import DepthWidth, IsoFlops, Ladder
from harness.grid import Analysis, Limits, Mlflow
from harness.iso_flops import Growth
from harness.slurm.options import Slurm
from harness.tasks import available as tasks_available
from harness.tuning.config import NOT_SEARCHED, GeometricSearch, RangeSearch, Tune
from harness.yaml12 import RESERVED_SWEEPS, SWEEP_NAME
from recipes.base import Residual, available

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def grid_schema(recipes: Mapping[str, type[Residual]] | None = None) -> Schema:
    """Return the JSON Schema (draft 2020-12) of a grid file.

    Parameters
    ----------
    recipes
        Recipes by name; default: all that are registered.
    """
    known = available() if recipes is None else recipes
    definitions = {**_fields(known), **{name: _partial(name) for name in SECTIONS}}
    definitions["data"] = _data()
    refs = {path: {"$ref": f"#/$defs/{path}"} for path in definitions}
    condition = _object(
        {path: _any_of(schema) for path, schema in {**refs, "seed": _seed()}.items()},
        patterns={_OPTION: _any_of({})},
    )
    diff = _object(refs, patterns={_OPTION: {}})
    columns = {path: {"type": "array", "items": s, "minItems": 1} for path, s in refs.items()}
    axes = _object(columns, patterns={_OPTION: {"type": "array", "minItems": 1}})
    rule = {"if": condition, "axes": axes}
    keys: Schema = {
        "sweep": {
            "type": "string",
            "pattern": f"^{SWEEP_NAME}$",
            "not": {"enum": list(RESERVED_SWEEPS)},
            "description": "Name of the sweep: its folder under results.",
        },
        "base": {**diff, "description": "One complete run; every rule is a diff from it."},
        "axes": {**axes, "description": "Fields and their values: the full product."},
        "zip": _list(axes, "Groups of columns that advance together; groups multiply."),
        "ladder": _inlined(Ladder),
        "depth_width": _inlined(DepthWidth),
        "iso_flops": _iso_flops(),
        "when": _list(
            {**_object(rule), "required": ["if", "axes"]}, "Axes that exist only for matching runs."
        ),
        "exclude": _list({**condition, "minProperties": 1}, "Runs to leave out."),
        "include": _list(diff, "Runs to add, as diffs from base."),
        "seeds": {
            "type": "array",
            "items": _seed(),
            "minItems": 1,
            "uniqueItems": True,
            "description": "Replicates, paired across arms; never tuned.",
        },
        "limits": _inlined(Limits),
        "tune": _tune(),
        "slurm": _slurm(condition),
        "mlflow": _inlined(Mlflow),
        "analysis": _inlined(Analysis),
        "execution": _inlined(Execution),
    }
    return {
        "$schema": DIALECT,
        "title": "isoloss grid",
        **_object({**keys, "profiles": _profiles(keys)}),
        "required": ["sweep", "base"],
        "$defs": definitions,
    }


def _iso_flops() -> Schema:
    """Schema of ``iso_flops``, whose sizes and batch have several forms."""
    schema = _inlined(IsoFlops)
    fields = {key: value for key, value in _partial("model").items() if key != "description"}
    ladder = {**_object({"ladder": _inlined(Ladder)}), "required": ["ladder"]}
    schema["properties"]["sizes"] |= {"anyOf": [{"type": "array", "items": fields}, ladder]}
    schema["properties"]["batch"] |= {"anyOf": [_inlined(Growth), {"enum": ["fixed", None]}]}
    return schema


def _profiles(keys: Mapping[str, Schema]) -> Schema:
    """Schema of named parts of a grid; null takes a key away."""
    parts = {key: {"anyOf": [_loose(schema), {"type": "null"}]} for key, schema in keys.items()}
    return {
        "type": "object",
        "additionalProperties": _object(parts),
        "minProperties": 1,
        "description": "Named diffs of the whole grid; the first is the default, `--profile NAME` "
        "chooses another.",
    }


def _loose(schema: Schema) -> Schema:
    """A schema of which any part may be given."""
    return {key: value for key, value in schema.items() if key != "required"}


_THIRD_PARTY: Schema = {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:\w+$"}
_OPTION = r"^residual\.[A-Za-z_][A-Za-z0-9_]*$"


def _fields(recipes: Mapping[str, type[Residual]]) -> dict[str, Schema]:
    """Schemas of all dotted fields, the recipe's options included."""
    fields = {"residual": _residual(recipes)}
    for path in LEAVES:
        section, _, name = path.partition(".")
        fields[path] = _inlined(SECTIONS[section])["properties"][name]
    fields.update((f"data.{name}", schema) for name, schema in _task_fields().items())
    for name, schema in _inlined(Budget)["properties"].items():
        fields[f"{BUDGET}.{name}"] = schema
    options: dict[str, list[Schema]] = {}
    for recipe in recipes.values():
        for name, schema in _inlined(recipe.Options).get("properties", {}).items():
            options.setdefault(f"residual.{name}", []).append(schema)
    fields.update((path, {"anyOf": schemas}) for path, schemas in sorted(options.items()))
    return fields


def _task_fields() -> dict[str, Schema]:
    """Schemas of ``task`` and of the options that stand beside it."""
    tasks = tasks_available()
    options: dict[str, list[Schema]] = {}
    for task in tasks.values():
        for name, schema in _inlined(task.Options).get("properties", {}).items():
            options.setdefault(name, []).append(schema)
    description = DataConfig.model_fields["task"].description
    named = {"anyOf": [{"enum": list(tasks)}, _THIRD_PARTY], "description": description}
    return {"task": named} | {name: {"anyOf": found} for name, found in sorted(options.items())}


def _data() -> Schema:
    """Schema of the section ``data``: a corpus, or a task with its options."""
    known = _partial("data")
    del known["properties"]["options"]
    known["properties"].update(_task_fields())
    foreign = {"type": "object", "properties": {"task": _THIRD_PARTY}, "required": ["task"]}
    return {"anyOf": [known, foreign], "description": known.pop("description")}


def _residual(recipes: Mapping[str, type[Residual]]) -> Schema:
    named = [
        {**_object({"name": {"const": name}, **_options(recipe)}), "required": ["name"]}
        for name, recipe in recipes.items()
    ]
    foreign = {"type": "object", "properties": {"name": _THIRD_PARTY}, "required": ["name"]}
    description = RunConfig.model_fields["residual"].description
    choices: list[Schema] = [{"enum": list(recipes)}, _THIRD_PARTY, *named, foreign]
    return {"anyOf": choices, "description": description}


def _options(recipe: type[Residual]) -> Schema:
    properties: Schema = _inlined(recipe.Options).get("properties", {})
    return properties


def _slurm(condition: Schema) -> Schema:
    """Schema of the ``slurm`` block, whose overrides choose runs as ``when`` does."""
    schema = _inlined(Slurm)
    override = schema["properties"]["overrides"]["items"]["properties"]
    override["if"] = {**condition, "minProperties": 1, "description": override["if"]["description"]}
    return schema


def _tune() -> Schema:
    """Schema of the ``tune`` block, whose search names fields of train and options of recipes."""
    schema = _inlined(Tune)
    ways: list[Schema] = [{"type": "array", "minItems": 2}]
    how: Schema = {"anyOf": [_inlined(GeometricSearch), _inlined(RangeSearch), *ways]}
    names = (name for name in SECTIONS["train"].model_fields if name not in NOT_SEARCHED)
    search = _object({f"train.{name}": how for name in names}, patterns={_OPTION: how})
    description = schema["properties"]["search"]["description"]
    schema["properties"]["search"] = {**search, "minProperties": 1, "description": description}
    about = "Search of hyperparameters by arm and size, before the runs."
    return {**schema, "description": about}


def _partial(section: str) -> Schema:
    """Schema of a section of which any part may be given."""
    return {key: value for key, value in _inlined(SECTIONS[section]).items() if key != "required"}


def _object(
    properties: Mapping[str, Schema], *, patterns: Mapping[str, Schema] | None = None
) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    if patterns:
        schema["patternProperties"] = dict(patterns)
    return schema


def _list(items: Schema, description: str) -> Schema:
    return {"type": "array", "items": items, "description": description}


def _any_of(schema: Schema) -> Schema:
    """One value, or a list of values of which any will do."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _seed() -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": MAX_SEED}


def _inlined(model: type[BaseModel]) -> Schema:
    """Schema of a model with its references resolved and its titles dropped."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = definitions[node["$ref"].rpartition("/")[2]]
            return resolve({**target, **{k: v for k, v in node.items() if k != "$ref"}})
        return {
            key: resolve(value)
            for key, value in node.items()
            if key != "title" or isinstance(value, dict)
        }

    resolved: Schema = resolve(schema)
    return resolved
