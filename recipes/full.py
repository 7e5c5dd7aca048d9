"""Full Attention Residuals: every read attends over the embedding and all earlier outputs.

Paper: Kimi Team, Attention Residuals, arXiv 2603.15031, equations 1 to 4 and figure 1b.
Equation: ``u_t = sum_i a_i v_i``, ``a = softmax_i(q_t . rms(v_i))``, ``v = (x0, y_0 ..
y_{t-1})``; one learned query per read, the same for every token; a last read of all sources,
with its own query, feeds the final norm.

Deviations: the paper does not say whether the key norm has a gain; it has one, of ones, as in
K3 and FLA (``key_norm: rms`` drops it). The first read has one source, so it owns no query.
"""

from __future__ import annotations

from typing import Any

from recipes.attention_residual import AttentionResidual, KeyNormOptions
from recipes.base import AnyOptions, Shape, recipe
from recipes.depth_schedule import Schedule


class FullOptions(KeyNormOptions):
    """Options of Full Attention Residuals."""


@recipe("full", revision=1)
class Full(AttentionResidual):
    """Depth attention over single sublayer outputs; the read replaces the stream."""

    Options = FullOptions
    equation = "u_t = sum_i softmax_i(q_t . rms(v_i)) v_i, sources x0, y_0 .. y_{t-1}; final read"
    source = "Kimi Team 2026, Attention Residuals, arXiv 2603.15031, eqs. 1-4"

    @classmethod
    def schedule(cls, shape: Shape, options: Any) -> Schedule:
        """Every sublayer is a source of its own."""
        m = shape.n_sublayers
        return Schedule(m, tuple(range(1, m + 1)))

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, a gain-free key norm, random queries, and the frozen control."""
        return [
            FullOptions(),
            FullOptions(key_norm="rms"),
            FullOptions(query_init_std=0.02),
            FullOptions(frozen_queries=True),
        ]
