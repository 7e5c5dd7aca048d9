"""The post-norm residual: the running sum is normalised after every addition.

Paper: Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762, section 3.1; with the
analysis of Xiong et al. 2020, arXiv 2002.04745. Equation: ``R_{t+1} = g_t * rms(R_t + y_t)``,
``u_t = R_t``, ``R_0 = x0``, with a learned gain g_t per sublayer, 1 at first.

Deviations: RMSNorm where the paper has LayerNorm. The backbone's pre-norm stays in front of every
sublayer, and its final norm in front of the head. Behind a post-norm with gain 1 they change
nothing (a normalised vector is its own RMSNorm), so at initialisation this is the paper's post-norm
but for the first sublayer, which sees the embedding normalised. Later the pre-norm divides
``g_t * rms(.)`` by its RMS, one number per token near the RMS of g_t: a sublayer does not see the
overall scale of a gain, the residual path does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.base import Options, ResidualCost, Shape, recipe
from recipes.depth_attention import EPS, full_precision, widen
from recipes.standard import RunningSum


@recipe("post_norm", revision=1)
class PostNorm(RunningSum):
    """One running sum, normalised after every addition; the state is that tensor."""

    equation = "u_t = R_t; R_{t+1} = g_t * rms(R_t + y_t)"
    source = "Vaswani et al. 2017, arXiv 1706.03762, sec. 3.1; Xiong et al. 2020, arXiv 2002.04745"
    transfer_note = (
        "Width: gains per channel keep their rate, as muP's vectors do. Depth: CompleteP is "
        "derived for a pre-norm sum; of a stream that is normalised after every addition it says "
        "nothing. Every output carries the factor base_n_layers / n_layers: an addition then "
        "changes the normalised stream by a share of 1 / n_layers. A gain here is one factor of "
        "a product over all sublayers, which its rate does not account for."
    )

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape, options)
        self.gains = nn.Parameter(torch.empty(shape.n_sublayers, shape.d_model))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set gains to one; draws nothing."""
        self.gains.fill_(1.0)

    def write(self, state: Tensor, output: Tensor, t: int) -> Tensor:
        """Add an output and normalise."""
        with full_precision(state):
            total = widen(state) + widen(output)
            gain = self.gains[t].to(total.dtype)
            return F.rms_norm(total, total.shape[-1:], gain, EPS).to(state.dtype)

    @classmethod
    def cost(cls, shape: Shape, options: Options) -> ResidualCost:
        """A gain per sublayer and no matmuls; read R and y, write R: 3 d in one pass."""
        return ResidualCost(
            params=shape.n_sublayers * shape.d_model,
            flops_per_token=0,
            elements_moved_per_token=3 * shape.d_model * shape.n_sublayers,
            state_elements_per_token=shape.d_model,
        )
