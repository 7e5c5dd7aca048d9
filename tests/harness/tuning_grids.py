"""Small grids to tune, and a search of them on losses that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from harness.grid import Grid
from harness.tuned import Tuned
from harness.tuning.apply import conclude
from harness.tuning.bracket import Result, next_points
from harness.tuning.cells import Cell, cells_of
from harness.tuning.space import dimensions

GRID = """\
sweep: small
base:
  residual: standard
  model: {n_layers: 4, d_model: 64}
  train: {budget: {flops: 1e12}, lr: 2e-2}
axes:
  residual: [standard, full, delta]
zip:
  - model.n_layers: [8, 4, 6]
    train.budget: [{flops: 9e12}, {flops: 1e12}, {flops: 3e12}]
seeds: [0, 1]
"""
RATE = "tune: {search: {train.lr: {factor: 2}}, refine: 0}\n"
TWO = """\
tune:
  search: {train.lr: {factor: 2}, train.residual_lr_scale: {factor: 2}}
  refine: 0
"""
Loss = Callable[[Cell, Mapping[str, Any]], float]


def searched(grid: Grid, loss: Loss, sweep: str = "small") -> Tuned:
    """Search every cell to its end on a known loss."""
    assert grid.tune is not None
    results = {}
    for cell in cells_of(grid):
        found: list[Result] = []
        dims = dimensions(grid.tune, cell)
        while points := next_points(dims, found, grid.tune.trials) if cell.searched else None:
            found += [Result(values, loss(cell, values)) for values in points]
        results[cell.key] = found
    return conclude(cells_of(grid), results, grid.tune, sweep=sweep, optuna="5.0.0")


def best_rates(**by_arm: float) -> Loss:
    """A loss whose best learning rate depends on the arm; scales are best at 0.3."""

    def loss(cell: Cell, values: Mapping[str, Any]) -> float:
        off = math.log(values["train.lr"] / by_arm[cell.arm]) ** 2
        scale = values.get("train.residual_lr_scale", 0.3)
        return 3 + off + math.log(scale / 0.3) ** 2

    return loss
