"""Muon with the Newton-Schulz iteration batched over matrices of equal shape.

The algorithm, coefficients and update scaling are those of ``torch.optim.Muon``, which iterates in
bf16 one matrix after the other. On a CPU that costs more than the model's own forward and backward
pass at small width, and rounds runs apart that should be equal; here matrices of one shape go
through the iteration together, in their own precision on a CPU and in bf16 on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.sharding import by_matrix, local

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Quintic iteration of Jordan et al. 2024, which maps singular values to about 0.7 .. 1.2."""
NS_STEPS = 5


def orthogonalise(matrices: Tensor, eps: float = 1e-7) -> Tensor:
    """Move the singular values of every matrix to about one, by Newton-Schulz.

    ``X <- a X + (b A + c A^2) X`` with ``A = X X^T``, from ``X = M / |M|_F`` (Jordan et al. 2024).

    Parameters
    ----------
    matrices
        [batch, rows, columns].
    eps
        Smallest norm that is divided by.
    """
    a, b, c = NS_COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(NS_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


class BatchedMuon(Optimizer):
    """Nesterov momentum, orthogonalised, scaled by 0.2 sqrt(max(rows, columns)).

    The scaling matches the update's RMS to AdamW's (Liu et al. 2025, arXiv 2502.16982, equation 4);
    weight decay is decoupled.

    Parameters
    ----------
    params
        Matrices, or groups of them.
    lr
        Learning rate.
    weight_decay
        Decoupled decay, multiplied by the learning rate.
    momentum
        Decay of the moving average of gradients.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momentum, lr, shape = group["momentum"], group["lr"], parameters[0].shape
        gradients = local([p.grad for p in parameters if p.grad is not None])
        averages = local([self._average(parameter) for parameter in parameters])
        rows = local(parameters)
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        directions = torch.stack(torch._foreach_lerp(gradients, averages, momentum))
        if directions.is_cuda:
            directions = directions.bfloat16()
        moved = by_matrix(orthogonalise, directions, parameters[0], shape[0])
        updates = moved.to(rows[0].dtype).unbind()
        scale = 0.2 * max(shape) ** 0.5
        torch._foreach_mul_(rows, 1 - lr * group["weight_decay"])
        torch._foreach_add_(rows, updates, alpha=-lr * scale)

    def _average(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer
