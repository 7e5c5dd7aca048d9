"""The standard pre-norm residual: every output is added to one running sum.

Paper: He et al. 2016, Identity Mappings in Deep Residual Networks, equation 5; pre-norm as in Xiong
et al. 2020. Equation: ``u_t = R_t``, ``R_{t+1} = R_t + y_t``, ``R_0 = x0``.
Deviations: none. The baseline of every comparison.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.base import Options, Residual, ResidualCost, Shape, recipe
from recipes.depth_attention import widen


class RunningSum(Residual):
    """Base of the recipes whose state is one tensor R, [batch, tokens, d_model], read as it is."""

    def start(self, embedding: Tensor) -> Tensor:
        """Return the embedding: R_0."""
        return embedding

    def read(self, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Return R."""
        return state, state

    def finish(self, state: Tensor) -> Tensor:
        """Return R."""
        return state

    def stream(self, state: Tensor) -> Tensor:
        """Return R."""
        return state


def add_scaled(state: Tensor, scale: Tensor, output: Tensor) -> Tensor:
    """Return ``R + scale * y`` in the dtype of R, computed in fp32 at least.

    ``scale`` is a scalar or a gain per channel, [d_model].
    """
    wide = widen(state)
    return torch.addcmul(wide, scale.to(wide.dtype), output.to(wide.dtype)).to(state.dtype)


@recipe("standard", revision=1)
class Standard(RunningSum):
    """One running sum of the embedding and all sublayer outputs; the state is that tensor."""

    equation = "u_t = x0 + sum_{s<t} y_s"
    source = "He et al. 2016, arXiv 1603.05027, eq. 5; Xiong et al. 2020, arXiv 2002.04745"
    transfer_note = (
        "This is the residual that muP (width) and CompleteP (depth) are derived for; it has no "
        "parameters of its own."
    )

    def write(self, state: Tensor, output: Tensor, t: int) -> Tensor:
        """Add an output to the running sum."""
        return state + output

    @classmethod
    def cost(cls, shape: Shape, options: Options) -> ResidualCost:
        """No parameters and no matmuls; per sublayer read R and y, write R: 3 d."""
        return ResidualCost(
            params=0,
            flops_per_token=0,
            elements_moved_per_token=3 * shape.d_model * shape.n_sublayers,
            state_elements_per_token=shape.d_model,
        )

    @classmethod
    def equals_standard_at_init(cls, options: Options) -> bool:
        """True by definition."""
        return True
