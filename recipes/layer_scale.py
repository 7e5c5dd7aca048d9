"""LayerScale: every output enters the running sum through a learned gain per channel.

Paper: Touvron et al. 2021, Going Deeper with Image Transformers, arXiv 2103.17239, section 2 and
equation 4. Equation: ``R_{t+1} = R_t + lambda_t * y_t``, ``u_t = R_t``, ``R_0 = x0``, with lambda_t
in R^d, one per sublayer, all entries epsilon at first. The paper's epsilon follows depth in
transformer layers: 0.1 up to 18, 1e-5 up to 24, 1e-6 beyond.

Deviations: none; the paper is pre-norm too. With ``init_value: 1`` the model starts as the standard
residual bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from recipes.base import AnyOptions, Options, ResidualCost, Shape, recipe
from recipes.standard import RunningSum, add_scaled


class LayerScaleOptions(Options):
    """Options of LayerScale."""

    init_value: float | None = Field(default=None, gt=0)
    """Initial entries of lambda, close to but not zero. Default: by depth, as in the paper."""

    def init_at(self, n_layers: int) -> float:
        """Return the initial entries for a depth: as given, or the paper's rule."""
        if self.init_value is not None:
            return self.init_value
        if n_layers <= 18:
            return 0.1
        return 1e-5 if n_layers <= 24 else 1e-6


@recipe("layer_scale", revision=1)
class LayerScale(RunningSum):
    """One running sum of outputs times a gain per channel; the state is that tensor."""

    Options = LayerScaleOptions
    options: LayerScaleOptions
    equation = "u_t = x0 + sum_{s<t} lambda_s * y_s, lambda in R^d small at first"
    source = "Touvron et al. 2021, arXiv 2103.17239, eq. 4"
    transfer_note = (
        "Width: gains per channel keep their rate, as muP's vectors do. Depth: the factor "
        "base_n_layers / n_layers of every output is CompleteP's and is applied on top of "
        "lambda. The default lambda steps with depth (0.1, 1e-5, 1e-6), which no parametrisation "
        "can follow: give init_value where rates are to transfer over depth."
    )

    def __init__(self, shape: Shape, options: LayerScaleOptions) -> None:
        super().__init__(shape, options)
        self.gains = nn.Parameter(torch.empty(shape.n_sublayers, shape.d_model))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set every gain to epsilon; draws nothing."""
        self.gains.fill_(self.options.init_at(self.shape.n_layers))

    def write(self, state: Tensor, output: Tensor, t: int) -> Tensor:
        """Add an output times its gains."""
        return add_scaled(state, self.gains[t], output)

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """A gain per channel and sublayer, no matmuls; 3 d moved per sublayer as ``standard``."""
        return ResidualCost(
            params=shape.n_sublayers * shape.d_model,
            flops_per_token=0,
            elements_moved_per_token=3 * shape.d_model * shape.n_sublayers,
            state_elements_per_token=shape.d_model,
        )

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """Whether every gain is one."""
        return bool(options.init_value == 1.0)

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """The paper's rule, another value, and the standard residual at first."""
        return [
            LayerScaleOptions(),
            LayerScaleOptions(init_value=1e-3),
            LayerScaleOptions(init_value=1.0),
        ]
