"""Which overrides of a ``slurm:`` block hold for which runs, by the rules of the grid's ``when``.

Conditions were checked when the grid was read; here they are evaluated on typed runs. Loads torch,
because defaults of a recipe's options count and recipes are modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.config import RunConfig
from harness.fields import LEAVES, Choice, Condition, Point, Reader, Setting
from harness.problems import Problems
from harness.yaml12 import Document, Loc
from recipes.base import get

SEED = "seeds of one cell share their resources. Remove seed."


def matches(conditions: Sequence[Any], configs: Sequence[RunConfig]) -> list[tuple[int, ...]]:
    """Give, for every run, the indices of the conditions that hold for it."""
    reader = Reader(Problems(Document("slurm", "")))
    reader.recipes.update((name, get(name)) for name in {c.residual.name for c in configs})
    # An option that no recipe here has matches nothing, and reads as None.
    read = [(i, reader.condition(test, ())) for i, test in enumerate(conditions)]
    asked = [(i, condition) for i, condition in read if condition is not None]
    tested = {path for _, condition in asked for path, _ in condition.tests}
    leaves = [leaf for leaf in LEAVES if any(f"{path}.".startswith(f"{leaf}.") for path in tested)]
    chosen = []
    for config in configs:
        point = _point(config, leaves, reader)
        chosen.append(tuple(i for i, condition in asked if condition.matches(point)))
    return chosen


def _point(config: RunConfig, leaves: Sequence[str], reader: Reader) -> Point:
    residual = config.residual
    choice = Choice(residual.name, residual.options, reader.recipes[residual.name])
    values: dict[str, Any] = {"residual": choice}
    for leaf in leaves:
        section, _, name = leaf.partition(".")
        values[leaf] = getattr(getattr(config, section), name)
    return {path: Setting(path, value, (), "") for path, value in values.items()}


def check_condition(reader: Reader, mapping: Any, loc: Loc) -> Condition | None:
    """Read an override's ``if`` and note its mistakes; None after one."""
    condition = reader.condition(mapping, loc)
    if condition is not None and condition.seeds is not None:
        reader.problems.add((*loc, "seed"), SEED)
        return None
    return condition
