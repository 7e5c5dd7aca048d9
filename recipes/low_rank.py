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

from typing import Any

from pydantic import PositiveInt

from recipes.attention_residual import BlockAttentionResidual, BlockOptions, ReadOptions
from recipes.base import AnyOptions, Shape, recipe


class LowRankOptions(ReadOptions, BlockOptions):
    """Options of Low-Rank Attention Residuals."""

    rank: PositiveInt | None = None
    """Entries of a source that serve as its key, 2 .. d_model. Default: d_model // 4."""

    def rank_at(self, d_model: int) -> int:
        """Return the rank at a width: as given, or a quarter of it."""
        return d_model // 4 if self.rank is None else self.rank

    def check(self, shape: Shape) -> None:
        """Refuse impossible blocks and ranks; a normalised key of one entry would be a sign."""
        super().check(shape)
        rank = self.rank_at(shape.d_model)
        if not 2 <= rank <= shape.d_model:
            origin = " (the default, d_model // 4)" if self.rank is None else ""
            raise ValueError(f"rank must lie in 2..{shape.d_model} (d_model), got {rank}{origin}")


@recipe("low_rank", revision=1)
class LowRank(BlockAttentionResidual):
    """Depth attention over block sums with sliced keys; the read replaces the stream."""

    Options = LowRankOptions
    equation = "u_t = sum_i softmax_i(q_t . rms(v_i[d-r:])) v_i, sources as block; final read"
    source = "Su 2026, LR-AttnRes, arXiv 2607.09694v2, sec. 3"

    @classmethod
    def key_rank(cls, shape: Shape, options: Any) -> int:
        """Return r."""
        return int(options.rank_at(shape.d_model))

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, the full form, the smallest and largest rank, uneven blocks, the control."""
        return [
            LowRankOptions(),
            LowRankOptions(block_size=1),
            LowRankOptions(rank=2, block_size=3),
            LowRankOptions(rank=shape.d_model, n_blocks=3, tail="balanced"),
            LowRankOptions(query_init_std=0.02, frozen_queries=True),
        ]
