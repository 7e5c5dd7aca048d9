"""What the attention-residual recipes share: options, depth blocks, state machine, cost.

A recipe of this family says which sources a read sees (:class:`Schedule`); everything else is here,
once. Sources are outputs of sublayers, sums over blocks of sublayers that restart from empty, or
cumulative states; the embedding is the first source, once. A read either replaces the stream or is
added to it. Parameters exist only for reads with two sources or more: a read of one source is the
identity and its query could never train.

Recipes by this file: full, block, delta, low_rank, multi_stream.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from recipes.base import Options, Residual, ResidualCost, Shape
from recipes.depth_attention import (
    CACHED,
    COUNTABLE,
    DepthOps,
    Source,
    enter,
    full_precision,
    read_flops,
    widen,
)
from recipes.depth_schedule import Schedule, Tail, block_ends, vectors_moved


class ReadOptions(Options):
    """Options of every depth read."""

    query_init_std: float = Field(default=0.0, ge=0.0)
    """Standard deviation of the initial queries; 0, as the paper requires, gives uniform reads."""
    frozen_queries: bool = False
    """Never train the queries (control: zero queries keep the model the standard residual)."""

    @property
    def has_gain(self) -> bool:
        """Whether keys carry a learned gain."""
        return False


class KeyNormOptions(ReadOptions):
    """Options of reads over full-width keys."""

    key_norm: Literal["rms_gain", "rms"] = "rms_gain"
    """rms_gain: RMS with a learned gain of ones per read (Kimi K3, FLA). rms: RMS alone."""

    @property
    def has_gain(self) -> bool:
        """Whether keys carry a learned gain."""
        return self.key_norm == "rms_gain"


class BlockOptions(Options):
    """How sublayers are grouped into depth blocks."""

    block_size: PositiveInt | None = None
    """Sublayers per depth block (the paper's S; attention and MLP count separately). Default: 4."""
    n_blocks: PositiveInt | None = None
    """Number of depth blocks (the paper's N), in place of block_size."""
    tail: Tail = "short"
    """When blocks do not divide the model. short: equal blocks, then a shorter last one.
    balanced: as many blocks, whose sizes differ by at most one."""

    def check(self, shape: Shape) -> None:
        """Refuse blocks that the model cannot be divided into; see :func:`block_ends`."""
        super().check(shape)
        self.ends(shape)

    def ends(self, shape: Shape) -> tuple[int, ...]:
        """Index after the last sublayer of every block."""
        return block_ends(shape.n_sublayers, self.block_size, self.n_blocks, self.tail)


class DepthState(NamedTuple):
    """The state between sublayers."""

    bank: tuple[Source, ...]
    """Completed sources, oldest first; the embedding is entry 0."""
    partial: Tensor | None
    """Sum over the block under way, [B, T, D]; None while it is empty."""
    stream: Tensor | None
    """Running sum R of the embedding and all outputs, [B, T, D], for the recipes that need it."""


class AttentionResidual(Residual):
    """Base of the family; a recipe overrides :meth:`schedule`, and what else differs."""

    Options = ReadOptions
    options: ReadOptions

    @classmethod
    def schedule(cls, shape: Shape, options: Any) -> Schedule:
        """Return which sources every read sees."""
        raise NotImplementedError

    @classmethod
    def key_rank(cls, shape: Shape, options: Any) -> int:
        """Return how many trailing entries of a source serve as its key."""
        return shape.d_model

    def __init__(self, shape: Shape, options: ReadOptions) -> None:
        super().__init__(shape, options)
        self.plan = self.schedule(shape, options)
        self.rank = self.key_rank(shape, options)
        self.reader_index = {t: i for i, t in enumerate(self.plan.readers)}
        self.ops: DepthOps = CACHED
        size = self.query_shape()
        self.queries = nn.Parameter(torch.zeros(size), requires_grad=not options.frozen_queries)
        self.gains = nn.Parameter(torch.ones(size)) if options.has_gain else None

    def query_shape(self) -> tuple[int, ...]:
        """Shape of all queries: one row per read that owns one."""
        return (len(self.plan.readers), self.rank)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set gains to one and queries to zero, or to N(0, query_init_std^2) where asked."""
        self.queries.zero_()
        if self.options.query_init_std > 0:
            self.queries.normal_(0.0, self.options.query_init_std, generator=generator)
        if self.gains is not None:
            self.gains.fill_(1.0)

    def use_countable_ops(self) -> None:
        """Switch to stacked matmuls, which a FLOP counter sees in full."""
        self.ops = COUNTABLE

    def start(self, embedding: Tensor) -> DepthState:
        """Enter the embedding, once, as the first source."""
        stream = embedding if self.plan.keeps_stream else None
        return DepthState((self.enter(embedding),), None, stream)

    def read(self, state: DepthState, t: int) -> tuple[Tensor, DepthState]:
        """Mix the sources of read ``t``; added to the stream by additive recipes."""
        if not self.plan.reads_at(t):
            return self._stream(state), state
        mixed_BTD = self.attend(self.sources(state, t), t)
        if self.plan.additive:
            mixed_BTD = self._stream(state) + mixed_BTD
        return mixed_BTD, state

    def write(self, state: DepthState, output: Tensor, t: int) -> DepthState:
        """Add an output to the block under way; a completed block enters the bank."""
        stream = None if state.stream is None else state.stream + output
        partial = self._add_to_block(state.partial, output, t)
        if not self.plan.ends_after(t):
            return DepthState(state.bank, partial, stream)
        bank, completed = state.bank, stream if self.plan.cumulative else partial
        if completed is not None and self.plan.banks_after(t):
            bank = (*bank, self.enter(completed))
        return DepthState(bank, None, stream)

    def _add_to_block(self, partial: Tensor | None, output: Tensor, t: int) -> Tensor | None:
        if not self.plan.sums_at(t):
            return None
        # Block sums in bf16 would lose small late contributions.
        return widen(output) if partial is None else partial + output

    def finish(self, state: DepthState) -> Tensor:
        """Mix all sources with the final query, or return the stream of an additive recipe."""
        if self.plan.additive:
            return self._stream(state)
        return self.attend(self.sources(state, self.plan.n_sublayers), self.plan.n_sublayers)

    def sources(self, state: DepthState, t: int) -> tuple[Source, ...]:
        """Return the sources of read ``t``, oldest first."""
        banked = state.bank[: self.plan.n_banked(t)]
        if not self.plan.reads_partial(t):
            return banked
        under_way = state.stream if self.plan.cumulative else state.partial
        assert under_way is not None
        return (*banked, self.enter(under_way))

    def enter(self, value_BTD: Tensor) -> Source:
        """Make a source of a tensor, with what its readers share."""
        return enter(value_BTD, self.rank)

    def attend(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return read ``t`` over ``sources``, in the dtype of the embedding, [B, T, D]."""
        if len(sources) == 1:
            return sources[0].value
        with full_precision(sources[0].value):
            weights_SBT1 = self.weights(sources, t)
            mixed_BTD = self.ops.mix(weights_SBT1, [source.value for source in sources])
        return mixed_BTD.to(sources[0].value.dtype)

    def weights(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return the softmax over sources of read ``t``, [S, B, T, 1]."""
        return self.ops.logits(sources, self.scaled_query(t)).softmax(dim=0)

    def scaled_query(self, t: int) -> Tensor:
        """Return the query of read ``t`` times its key gain: ``q . (g * k) = (q * g) . k``."""
        i = self.reader_index[t]
        return self.queries[i] if self.gains is None else self.queries[i] * self.gains[i]

    def _stream(self, state: DepthState) -> Tensor:
        assert state.stream is not None
        return state.stream

    def stream(self, state: DepthState) -> Tensor:
        """Return R where it is kept, else the block under way, else the newest completed source."""
        if state.stream is not None:
            return state.stream
        return state.bank[-1].value if state.partial is None else state.partial

    def depth_weights(self, state: DepthState, t: int) -> Tensor | None:
        """Return the weights of read ``t`` by source, [S, B, T]; None where there is no read."""
        if not self.plan.reads_at(t):
            return None
        sources = self.sources(state, t)
        if len(sources) == 1:
            return torch.ones_like(sources[0].inverse_rms)[None, ..., 0]
        with full_precision(sources[0].value):
            return self.weights(sources, t)[..., 0]

    def source_labels(self, t: int) -> list[str]:
        """Name the sources of read ``t``: ``embedding``, ``t3`` or ``block 1``, ``partial``."""
        if not self.plan.reads_at(t):
            return []
        starts = (0, *self.plan.ends)
        by_sublayer = len(self.plan.ends) == self.plan.n_sublayers
        banked = [
            f"t{starts[k - 1]}" if by_sublayer else f"block {k}"
            for k in range(1, self.plan.n_banked(t))
        ]
        return ["embedding", *banked, *(["partial"] if self.plan.reads_partial(t) else [])]

    def dead_parameters(self) -> set[str]:
        """Name the gains where queries stay zero: they would multiply nothing else."""
        return {"gains"} if self.queries_stay_zero and self.gains is not None else set()

    @property
    def queries_stay_zero(self) -> bool:
        """Whether all reads stay uniform for the whole run."""
        return self.options.frozen_queries and self.options.query_init_std == 0

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """Price of queries and gains, of reads of two sources or more, and of the sums kept."""
        plan, rank, d = cls.schedule(shape, options), cls.key_rank(shape, options), shape.d_model
        reads = range(plan.n_sublayers + 1)
        return ResidualCost(
            params=len(plan.readers) * rank * (1 + options.has_gain),
            flops_per_token=sum(read_flops(plan.n_sources(t), d, rank) for t in reads),
            elements_moved_per_token=d * vectors_moved(plan),
            state_elements_per_token=d * max(plan.n_vectors(t) for t in range(plan.n_sublayers)),
        )

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """True with zero queries where sources are disjoint sums of everything so far.

        Uniform weights then give R / m (or R + R / m), and the pre-norm that follows forgets scale.
        """
        return bool(options.query_init_std == 0)


class BlockAttentionResidual(AttentionResidual):
    """Base of the recipes whose sources are block sums; their options are :class:`BlockOptions`."""

    @classmethod
    def schedule(cls, shape: Shape, options: Any) -> Schedule:
        """Blocks as the options divide the model."""
        return Schedule(shape.n_sublayers, options.ends(shape))

    @classmethod
    def block_size(cls, shape: Shape, options: Any) -> int | None:
        """Sublayers of the largest block."""
        ends = options.ends(shape)
        return max(int(end - start) for start, end in zip((0, *ends), ends, strict=False))
