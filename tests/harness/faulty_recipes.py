"""Recipes that are difficult in a known way; runs name them by module and class."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recipes.base import AnyOptions, Shape
from recipes.standard import Standard

TOO_MUCH = 2**46
"""Bytes: half of what a process can address."""


class Hungry(Standard):
    """Needs more memory than there is for more than two sequences at once."""

    def read(self, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        if state.shape[0] > 2:
            torch.empty(TOO_MUCH, dtype=torch.int8)
        return super().read(state, t)


class Failing(Standard):
    """Raises in the third forward pass, in the second of several processes only."""

    passes = 0

    def read(self, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        self.passes += t == 0
        if self.passes == 3 and dist.get_rank() == 1:
            raise ValueError("the third batch is cursed")
        return super().read(state, t)


class Idle(Standard):
    """Has parameters that no loss depends on."""

    def __init__(self, shape: Shape, options: AnyOptions) -> None:
        super().__init__(shape, options)
        self.unused = nn.Parameter(torch.ones(shape.d_model))
