"""Delta Attention Residuals: the depth read is added to the ordinary stream, not put in its place.

Paper: arXiv 2605.18855, read together with the authors' correction of May 2026 ("It's the
Routing, Not the Sources"): Attention Residuals already route over deltas, what differs is
``combine``. Equation: ``u_t = R_t + read(q_t; sources)``, ``R_{t+1} = R_t + y_t``, ``u_0 =
x0``; the final norm sees the stream ``R`` and there is no final read.

Two switches. ``source``: ``sublayer`` (x0 and all earlier outputs), ``block_sum`` (x0 and the
changes of R across completed blocks of whole transformer layers; a completed block is first
seen by the MLP of the next block's first layer, the block under way never, unless
``include_partial`` makes it a source), ``cumulative`` (states R instead of their changes, the
redundant control; after every sublayer, or at block ends where a block option is given).
``combine``: ``add``, or ``replace`` as in ``full`` and ``block``, with the current block as a
source and a final read.

Deviations: from the equations none. From the released code, on purpose: block sources are R
minus R at the previous boundary, where the code subtracts the previous source, which is right for
the first two only (``as_released`` computes them so); queries start at zero (the code's global
init makes them N(0, 0.02^2)); reads of one source own no query. The released runs are ``source:
block_sum, n_blocks: 4, as_released: true, query_init_std: 0.02``. The optional null source and the
separate read of the value projection (``delta_v``) are left out: a sublayer has one input here.
"""

from __future__ import annotations

from typing import Any, Literal

from recipes.attention_residual import BlockReads
from recipes.base import AnyOptions, Shape, recipe
from recipes.depth_options import BlockOptions, KeyOptions
from recipes.depth_schedule import Schedule
from recipes.keyed_reads import KeyedReads
from recipes.transfer import DEPTH_READS

LAYER = 2
"""Sublayers of a transformer layer, which no block of this recipe splits."""


class DeltaOptions(BlockOptions, KeyOptions):
    """Options of Delta Attention Residuals."""

    source: Literal["sublayer", "block_sum", "cumulative"] = "sublayer"
    """What a read attends over, beside the embedding."""
    combine: Literal["add", "replace"] = "add"
    """add: the read joins the stream. replace: it takes the stream's place."""
    include_partial: bool | None = None  # type: ignore[assignment]
    """The block under way is a source too. Default: where the read replaces the stream."""
    final_read: bool | None = None  # type: ignore[assignment]
    """A last read before the final norm. Default: where the read replaces the stream."""
    as_released: bool = False
    """Block sources as the released code computes them, R minus the previous source: its defect,
    kept to reproduce it."""

    @property
    def has_partial(self) -> bool:
        """Whether no output waits for its block to end: the block under way is a source."""
        if self.include_partial is None:
            return self.combine == "replace" or not self.has_blocks
        return self.include_partial

    @property
    def adds_to_stream(self) -> bool:
        """Whether a read is added to the running sum."""
        return self.combine == "add"

    @property
    def has_final(self) -> bool:
        """Whether there is a final read."""
        return self.combine == "replace" if self.final_read is None else self.final_read

    @property
    def has_blocks(self) -> bool:
        """Whether sources exist at block ends only."""
        return self.source == "block_sum" or self.names_blocks

    def ends(self, shape: Shape, unit: int = LAYER) -> tuple[int, ...]:
        """Index after the last sublayer of every source; blocks hold whole layers (S even)."""
        if not self.has_blocks:
            return tuple(range(1, shape.n_sublayers + 1))
        return super().ends(shape, unit)

    def schedule(self, shape: Shape) -> Schedule:
        """Sources, blocks and routing as the options say."""
        return Schedule(
            shape.n_sublayers,
            self.ends(shape),
            additive=self.adds_to_stream,
            cumulative=self.source == "cumulative",
            as_released=self.as_released,
            delayed=self.adds_to_stream and self.has_blocks and not self.has_partial,
            partial=self.has_partial,
            embedding=self.embedding_source,
            final=self.has_final,
            window=self.window,
        )

    def check(self, shape: Shape) -> None:
        """Refuse block options without blocks, impossible blocks, and counts of what is no sum."""
        super().check(shape)
        if self.source == "sublayer":
            self._check_no_blocks()
        if self.tail != "short" and not self.has_blocks:
            raise ValueError(f"tail '{self.tail}' needs blocks; got source '{self.source}' without")
        if self.has_counts and (self.source == "cumulative" or self.as_released):
            raise ValueError(
                "value_scale 'mean' and count_prior need block sums; cumulative states and sources "
                "as_released are none"
            )
        if self.as_released and (self.source, self.combine) != ("block_sum", "add"):
            raise ValueError(
                "as_released reproduces added block sums; it needs source 'block_sum' and "
                f"combine 'add', got '{self.source}' and '{self.combine}'"
            )
        if self.as_released and not (self.embedding_source and not self.has_partial):
            raise ValueError("as_released needs embedding_source true and include_partial false")

    def _check_no_blocks(self) -> None:
        for name in ("block_size", "n_blocks", "block_sizes", "include_partial"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} needs source 'block_sum' or 'cumulative', got source 'sublayer'"
                )
        if self.has_counts:
            raise ValueError("value_scale and count_prior need block sums, got source 'sublayer'")


@recipe("delta", revision=1)
class Delta(BlockReads, KeyedReads):
    """Depth attention added to the residual stream, with its sources and routing as switches."""

    Options = DeltaOptions
    equation = (
        "u_t = R_t + sum_i softmax_i(q_t . rms(v_i)) v_i, R_t = x0 + sum_{s<t} y_s; no final read"
    )
    source = (
        "Delta Attention Residuals 2026, arXiv 2605.18855, and the authors' correction of May 2026"
    )
    transfer_note = (
        DEPTH_READS + " With combine: add the read joins a sum whose branches carry the factor, "
        "but carries none itself: its weights sum to one over ever more sources."
    )

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """True with zero queries where all outputs so far are sources, each once.

        Not for cumulative states, and not for added block sums without the block under way: the
        mean of completed blocks is not proportional to R.
        """
        return options.source != "cumulative" and super().equals_standard_at_init(options)

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
            DeltaOptions(source="block_sum", block_size=2, as_released=True, query_init_std=0.02),
            DeltaOptions(source="block_sum", block_size=2, include_partial=True, final_read=True),
            DeltaOptions(final_read=True, weighting="sigmoid", window=3),
            DeltaOptions(embedding_source=False, heads=2),
            DeltaOptions(source="block_sum", block_size=2, query="none", embedding_source=False),
            DeltaOptions(combine="replace", final_read=False, query="input_dependent"),
            DeltaOptions(source="cumulative", combine="replace", embedding_source=False, window=2),
            DeltaOptions(source="cumulative", combine="replace", recency_init=3.0),
        ]
