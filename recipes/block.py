"""Block Attention Residuals: sources are sums over blocks of consecutive sublayers.

Paper: Kimi Team, Attention Residuals, arXiv 2603.15031, equations 5 and 6 and algorithm 1.
Equation: ``b_0 = x0``; ``b_n`` is the sum of the outputs of block n, which restarts from empty;
``p`` is the sum so far in the current block; ``u_t`` reads ``b_0 .. b_{n-1}, p``, without ``p``
at the first sublayer of a block; a last read of ``b_0 .. b_N``, with its own query, feeds the
final norm.

Deviations: none in the equations. The paper's scaling runs use N of about 8 (``n_blocks: 8``),
its ablations S = 4; the default is S = 4, which fits every model of two layers or more and
never turns into ``full``. Key gain and first read as in ``full``. Block size counts sublayers
(Kimi K3's configuration counts transformer layers).
"""

from __future__ import annotations

from recipes.attention_residual import BlockReads
from recipes.base import AnyOptions, Shape, recipe
from recipes.depth_options import BlockOptions, KeyOptions
from recipes.keyed_reads import KeyedReads


class BlockRecipeOptions(BlockOptions, KeyOptions):
    """Options of Block Attention Residuals."""


@recipe("block", revision=1)
class Block(BlockReads, KeyedReads):
    """Depth attention over restarting block sums; the read replaces the stream."""

    Options = BlockRecipeOptions
    equation = (
        "u_t = sum_i softmax_i(q_t . rms(v_i)) v_i, sources x0, b_1 .. b_{n-1}, partial; final read"
    )
    source = "Kimi Team 2026, Attention Residuals, arXiv 2603.15031, eqs. 5-6, alg. 1"

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, every way to divide a model, then every switch, and the frozen control."""
        m = shape.n_sublayers
        return [
            BlockRecipeOptions(),
            BlockRecipeOptions(block_size=1),
            BlockRecipeOptions(block_size=3),
            BlockRecipeOptions(n_blocks=3, tail="balanced", key_norm="rms"),
            BlockRecipeOptions(n_blocks=1, query_init_std=0.02),
            BlockRecipeOptions(frozen_queries=True),
            BlockRecipeOptions(block_sizes=(1, m - 1)),
            BlockRecipeOptions(block_size=2, include_partial=False),
            BlockRecipeOptions(block_size=2, embedding_source=False),
            BlockRecipeOptions(block_size=2, final_read=False),
            BlockRecipeOptions(block_size=2, window=2),
            BlockRecipeOptions(block_size=2, value_scale="mean", count_prior=True),
            BlockRecipeOptions(block_size=3, value_scale="mean", embedding_source=False),
            BlockRecipeOptions(block_size=2, heads=4),
            BlockRecipeOptions(block_size=2, key_norm="none"),
            BlockRecipeOptions(block_size=2, key_rank=3, key_norm_scope="full"),
            BlockRecipeOptions(block_size=2, query="input_dependent", count_prior=True),
            BlockRecipeOptions(block_size=2, query="none"),
            BlockRecipeOptions(block_size=2, recency_init=1.0, heads=2),
        ]
