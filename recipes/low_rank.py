"""Low-Rank Attention Residuals: block sources are scored by their last r entries only.

Paper: Su, LR-AttnRes, arXiv 2607.09694v2, section 3 (read through the author's code and site;
the paper's body was not available). Equation: ``k_i = rms(v_i[d-r:])``, sliced first and
normalised over the r entries, no gain; ``u_t = sum_i softmax_i(q_t . k_i) v_i``, ``q_t`` in
R^r, values of full width. Sources, blocks and final read as in ``block``: writes are summed,
then sliced, then normalised.

Deviations: the paper's blocks end at ``ceil(M j / N)`` (``tail: balanced``). ``block_size: 1``
is the full form; with r = d_model it is ``block`` with ``key_norm: rms``. Logit scale is 1; the
scale of the paper's runs is not known.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from recipes.attention_residual import BlockReads
from recipes.base import AnyOptions, Shape, recipe
from recipes.depth_options import BlockOptions, KeyOptions
from recipes.keyed_reads import KeyedReads
from recipes.transfer import DEPTH_READS


class LowRankOptions(BlockOptions, KeyOptions):
    """Options of Low-Rank Attention Residuals; key_rank defaults to d_model // 4."""

    key_norm: Literal["rms_gain", "rms", "none"] = "rms"
    """rms: as in the paper, without a gain. rms_gain, none: as in the other recipes."""
    key_rank: PositiveInt | None = None
    """Last entries of a source that serve as its key, 2 .. d_model. Default: d_model // 4."""

    def rank_at(self, d_model: int) -> int:
        """Return the rank at a width: as given, or a quarter of it."""
        return d_model // 4 if self.key_rank is None else self.key_rank


@recipe("low_rank", revision=1)
class LowRank(BlockReads, KeyedReads):
    """Depth attention over block sums with sliced keys; the read replaces the stream."""

    Options = LowRankOptions
    equation = "u_t = sum_i softmax_i(q_t . rms(v_i[d-r:])) v_i, sources as block; final read"
    source = "Su 2026, LR-AttnRes, arXiv 2607.09694v2, sec. 3"
    transfer_note = (
        DEPTH_READS + " Here a key has r entries: with the default r = d_model // 4 the rate "
        "falls with the width, with a fixed key_rank it stays."
    )

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, the full form, the smallest and largest rank, uneven blocks, the control."""
        return [
            LowRankOptions(),
            LowRankOptions(block_size=1),
            LowRankOptions(key_rank=2, block_size=3),
            LowRankOptions(key_rank=shape.d_model, n_blocks=3, tail="balanced"),
            LowRankOptions(query_init_std=0.02, frozen_queries=True),
            LowRankOptions(key_norm_scope="full", logit_scale="inverse_sqrt_rank"),
            LowRankOptions(recency_init=1.0, weighting="sigmoid"),
        ]
