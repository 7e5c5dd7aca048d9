"""ReZero: every output enters the running sum through a learned scalar that starts at zero.

Paper: Bachlechner et al. 2020, ReZero is All You Need, arXiv 2003.04887, equation 1; code
majumderb/rezero. Equation: ``R_{t+1} = R_t + alpha_t y_t``, ``u_t = R_t``, ``R_0 = x0``, alpha 0 at
first: the residual stream is then the embedding throughout, and sublayers get no gradient until
alpha has moved. One alpha per transformer layer, for attention and MLP both, as in the paper's
Transformer.

Deviations: the paper drops the norms; the backbone's pre-norm stays in front of every sublayer, as
for all recipes, so that sublayers see inputs of one scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recipes.base import AnyOptions, Options, ResidualCost, Shape, recipe
from recipes.standard import RunningSum, add_scaled


class ReZeroOptions(Options):
    """Options of ReZero."""

    per_sublayer: bool = False
    """Attention and MLP have an alpha each; false: one per transformer layer, as in the paper."""

    def n_scales(self, shape: Shape) -> int:
        """Number of scalars in a model."""
        return shape.n_sublayers if self.per_sublayer else shape.n_layers


@recipe("rezero", revision=1)
class ReZero(RunningSum):
    """One running sum of outputs times scalars that start at zero; the state is that tensor."""

    Options = ReZeroOptions
    options: ReZeroOptions
    equation = "u_t = x0 + sum_{s<t} alpha_s y_s, alpha = 0 at first"
    source = "Bachlechner et al. 2020, arXiv 2003.04887, eq. 1"
    transfer_note = (
        "Width: the scalars keep their rate. Depth: the factor base_n_layers / n_layers of every "
        "output is applied on top of alpha. The scalars move by one rate per step at any depth, "
        "so without the factor the stream would move in proportion to the depth; with it "
        "CompleteP's count holds (our argument). CompleteP's branches start alive and these at "
        "zero: of how long alpha takes to open them it says nothing."
    )

    def __init__(self, shape: Shape, options: ReZeroOptions) -> None:
        super().__init__(shape, options)
        self.scales = nn.Parameter(torch.empty(options.n_scales(shape)))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set every scalar to zero; draws nothing."""
        self.scales.zero_()

    def write(self, state: Tensor, output: Tensor, t: int) -> Tensor:
        """Add an output times its scalar."""
        scale = self.scales[t if self.options.per_sublayer else t // 2]
        return add_scaled(state, scale, output)

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """A scalar per layer or sublayer and no matmuls; 3 d moved per sublayer as ``standard``."""
        return ResidualCost(
            params=options.n_scales(shape),
            flops_per_token=0,
            elements_moved_per_token=3 * shape.d_model * shape.n_sublayers,
            state_elements_per_token=shape.d_model,
        )

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, and a scalar per sublayer."""
        return [ReZeroOptions(), ReZeroOptions(per_sublayer=True)]
