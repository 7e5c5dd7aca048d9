"""Delta Attention Residuals: the depth read is added to the ordinary stream, not put in its place.

Paper: arXiv 2605.18855, read together with the authors' correction of May 2026 ("It's the
Routing, Not the Sources"): Attention Residuals already route over deltas, what differs is
``combine``. Equation: ``u_t = R_t + read(q_t; sources)``, ``R_{t+1} = R_t + y_t``, ``u_0 =
x0``; the final norm sees the stream ``R`` and there is no final read.

Two switches. ``source``: ``sublayer`` (x0 and all earlier outputs), ``block_sum`` (x0 and the
changes of R across completed blocks of whole transformer layers; a completed block is first
seen by the MLP of the next block's first layer, the block under way never), ``cumulative``
(states R instead of their changes, the redundant control; after every sublayer, or at block
ends where a block option is given). ``combine``: ``add``, or ``replace`` as in ``full`` and
``block``, with the current block as a source and a final read.

Deviations: from the equations none. From the released code, on purpose: block sources are R
minus R at the previous boundary (the code subtracts the previous source, which is right for the
first two only); queries start at zero (the code's global init makes them N(0, 0.02^2), here
``query_init_std: 0.02``); reads of one source own no query. The optional null source is left
out.
"""

from __future__ import annotations

from typing import Any, Literal

from recipes.attention_residual import BlockAttentionResidual, BlockOptions, KeyNormOptions
from recipes.base import AnyOptions, Shape, recipe
from recipes.depth_schedule import Schedule, block_ends

LAYER = 2
"""Sublayers of a transformer layer, which no block of this recipe splits."""


class DeltaOptions(KeyNormOptions, BlockOptions):
    """Options of Delta Attention Residuals."""

    source: Literal["sublayer", "block_sum", "cumulative"] = "sublayer"
    """What a read attends over, beside the embedding."""
    combine: Literal["add", "replace"] = "add"
    """add: the read joins the stream. replace: it takes the stream's place."""

    @property
    def has_blocks(self) -> bool:
        """Whether sources exist at block ends only."""
        given = self.block_size is not None or self.n_blocks is not None
        return self.source == "block_sum" or given

    def ends(self, shape: Shape) -> tuple[int, ...]:
        """Index after the last sublayer of every source; blocks hold whole layers (S even)."""
        m = shape.n_sublayers
        if not self.has_blocks:
            return tuple(range(1, m + 1))
        return block_ends(m, self.block_size, self.n_blocks, self.tail, LAYER)

    def check(self, shape: Shape) -> None:
        """Refuse block options without blocks, impossible blocks, and a routing without choice."""
        if self.has_blocks and self.source == "sublayer":
            raise ValueError(
                "block_size and n_blocks need source 'block_sum' or 'cumulative', "
                "got source 'sublayer'"
            )
        if self.tail != "short" and not self.has_blocks:
            raise ValueError(f"tail '{self.tail}' needs blocks; got source '{self.source}' without")
        if len(self.ends(shape)) == 1 and self.combine == "add":
            raise ValueError(
                "combine 'add' needs two blocks or more, as the last block is never a source; "
                f"got one block of {shape.n_sublayers} sublayers"
            )


@recipe("delta", revision=1)
class Delta(BlockAttentionResidual):
    """Depth attention added to the residual stream, with its sources and routing as switches."""

    Options = DeltaOptions
    equation = (
        "u_t = R_t + sum_i softmax_i(q_t . rms(v_i)) v_i, R_t = x0 + sum_{s<t} y_s; no final read"
    )
    source = (
        "Delta Attention Residuals 2026, arXiv 2605.18855, and the authors' correction of May 2026"
    )

    @classmethod
    def schedule(cls, shape: Shape, options: Any) -> Schedule:
        """Sources, blocks and routing as the options say."""
        additive = options.combine == "add"
        return Schedule(
            shape.n_sublayers,
            options.ends(shape),
            additive=additive,
            cumulative=options.source == "cumulative",
            delayed=additive and options.has_blocks,
        )

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """True with zero queries where all outputs so far are sources, each once.

        Not for cumulative states, and not for added block sums: the mean of completed blocks is not
        proportional to R.
        """
        complete = options.source == "sublayer" or (
            options.source == "block_sum" and options.combine == "replace"
        )
        return complete and super().equals_standard_at_init(options)

    @classmethod
    def block_size(cls, shape: Shape, options: Any) -> int | None:
        """Sublayers of the largest block; None where every sublayer is a source."""
        return super().block_size(shape, options) if options.has_blocks else None

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, added block sums (even and uneven), replacement, cumulative controls."""
        return [
            DeltaOptions(),
            DeltaOptions(source="block_sum", block_size=2),
            DeltaOptions(source="block_sum", n_blocks=2, tail="balanced", key_norm="rms"),
            DeltaOptions(combine="replace"),
            DeltaOptions(combine="replace", source="block_sum", block_size=2),
            DeltaOptions(source="cumulative"),
            DeltaOptions(source="cumulative", combine="replace", block_size=2),
            DeltaOptions(query_init_std=0.02),
        ]
