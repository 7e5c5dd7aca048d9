"""Full Attention Residuals: every read attends over the embedding and all earlier outputs.

Paper: Kimi Team, Attention Residuals, arXiv 2603.15031, equations 1 to 4 and figure 1b.
Equation: ``u_t = sum_i a_i v_i``, ``a = softmax_i(q_t . rms(v_i))``, ``v = (x0, y_0 ..
y_{t-1})``; one learned query per read, the same for every token; a last read of all sources,
with its own query, feeds the final norm.

The paper's ablations are options: ``query: input_dependent`` or ``none``, ``weighting: sigmoid``,
``key_norm: none``, ``window: 8``, ``heads``.

Deviations: the paper does not say whether the key norm has a gain; it has one, of ones, as in
K3 and FLA (``key_norm: rms`` drops it). The first read has one source, so it owns no query. What
the ablations leave open is decided in ``keyed_reads``.
"""

from __future__ import annotations

from recipes.base import AnyOptions, Shape, recipe
from recipes.depth_options import KeyOptions
from recipes.depth_schedule import Schedule
from recipes.keyed_reads import KeyedReads


class FullOptions(KeyOptions):
    """Options of Full Attention Residuals."""

    def schedule(self, shape: Shape) -> Schedule:
        """Every sublayer is a source of its own."""
        m = shape.n_sublayers
        return Schedule(
            m,
            tuple(range(1, m + 1)),
            embedding=self.embedding_source,
            final=self.final_read,
            window=self.window,
        )


@recipe("full", revision=1)
class Full(KeyedReads):
    """Depth attention over single sublayer outputs; the read replaces the stream."""

    Options = FullOptions
    equation = "u_t = sum_i softmax_i(q_t . rms(v_i)) v_i, sources x0, y_0 .. y_{t-1}; final read"
    source = "Kimi Team 2026, Attention Residuals, arXiv 2603.15031, eqs. 1-4"

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, then every switch of the paper's ablations, and the frozen control."""
        d = shape.d_model
        return [
            FullOptions(),
            FullOptions(key_norm="rms"),
            FullOptions(query_init_std=0.02),
            FullOptions(frozen_queries=True),
            FullOptions(query="input_dependent"),
            FullOptions(query="input_dependent", key_norm="none", heads=2, weighting="sigmoid"),
            FullOptions(query="none"),
            FullOptions(query="none", heads=d // 2, weighting="sigmoid"),
            FullOptions(weighting="sigmoid", temperature=0.5),
            FullOptions(key_norm="none", logit_scale="inverse_sqrt_rank"),
            FullOptions(window=2),
            FullOptions(window=2, embedding_source=False),
            FullOptions(heads=2),
            FullOptions(heads=2, key_norm_scope="full", key_norm="rms"),
            FullOptions(key_rank=3, key_norm_scope="full", query="input_dependent"),
            FullOptions(embedding_source=False, final_read=False),
            FullOptions(recency_init=1.0),
        ]
