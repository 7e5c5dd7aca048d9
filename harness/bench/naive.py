"""The depth read as the paper's pseudocode has it: stack, normalise, einsum, softmax, einsum.

Source: Kimi Team, Attention Residuals, arXiv 2603.15031, figure 2. What most reimplementations do,
and what ours is timed against: every read copies all its sources twice, and autograd keeps the
copies, so that memory grows with the square of the depth.

Shapes: S sources, B batch, T tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harness.bench.steps import stand_in

EPS = 1e-8


def naive_read(sources: Sequence[Tensor], query_D: Tensor, norm: nn.Module) -> Tensor:
    """Return ``sum_i softmax_i(q . norm(v_i)) v_i`` over stacked sources, [B, T, D]."""
    values_SBTD = torch.stack(list(sources))
    logits_SBT = torch.einsum("d, s b t d -> s b t", query_D, norm(values_SBTD))
    return torch.einsum("s b t, s b t d -> b t d", logits_SBT.softmax(0), values_SBTD)


class NaiveFull(nn.Module):
    """Full Attention Residuals, a read before every sublayer and one at the end."""

    def __init__(self, n_sublayers: int, d_model: int) -> None:
        super().__init__()
        reads = range(n_sublayers + 1)
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(d_model)) for _ in reads)
        self.norms = nn.ModuleList(nn.RMSNorm(d_model, eps=EPS) for _ in reads)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return what the final norm would see, [B, T, D]."""
        sources, read_BTD = [x_BTD], x_BTD
        for t, (query_D, norm) in enumerate(zip(self.queries, self.norms, strict=True)):
            if t > 0:
                sources.append(stand_in(read_BTD))
            read_BTD = naive_read(sources, query_D, norm)
        return read_BTD
