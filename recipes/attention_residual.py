"""What the attention-residual recipes share: state machine, reads, cost.

A recipe of this family says which sources a read sees (:class:`Schedule`); everything else is here,
once. Sources are outputs of sublayers, sums over blocks of sublayers that restart from empty, or
cumulative states; the embedding is the first source, once. A read either replaces the stream or is
added to it. Parameters exist only for reads with two sources or more: a read of one source is the
identity and its query could never train.

Recipes by this file: full, block, delta, low_rank, multi_stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recipes.base import KERNELS, RecipeError, Residual, ResidualCost, Shape
from recipes.depth_attention import (
    CACHED,
    COUNTABLE,
    DepthOps,
    Source,
    full_precision,
    read_flops,
    widen,
)
from recipes.depth_options import ReadOptions
from recipes.depth_schedule import vectors_moved
from recipes.lean_read import LEAN
from recipes.transfer import DEPTH_READS
from recipes.two_phase import Phase


class DepthState(NamedTuple):
    """The state between sublayers."""

    bank: tuple[Source, ...]
    """Completed sources that later reads see, oldest first; the embedding leads where it is one."""
    partial: Tensor | None
    """Sum over the block under way, [B, T, D]; None while it is empty."""
    stream: Tensor | None
    """Running sum R of the embedding and all outputs, [B, T, D], for the recipes that need it."""
    phases: tuple[Phase, ...] = ()
    """What reads of the block under way make of earlier blocks, under the two-phase kernel."""


class AttentionResidual(Residual):
    """Base of the family; a recipe overrides :meth:`schedule`, and what else differs."""

    Options = ReadOptions
    options: ReadOptions
    transfer_note = DEPTH_READS

    @classmethod
    def readout_fan_in(cls, name: str, shape: Shape, options: Any) -> float:
        """Key entries that a query's logits sum over, times the logit scale."""
        keys = options.keys(shape.d_model)
        return max(1, keys.width) * float(options.query_scale(keys)) if name == "queries" else 1.0

    @classmethod
    def query_shape(cls, shape: Shape, options: Any) -> tuple[int, ...]:
        """Shape of all queries: one row per read that owns one."""
        keys = options.keys(shape.d_model)
        return (len(options.schedule(shape).readers), keys.heads * keys.width)

    def __init__(self, shape: Shape, options: ReadOptions) -> None:
        super().__init__(shape, options)
        self.plan = options.schedule(shape)
        self.keys = options.keys(shape.d_model)
        self.scale = options.query_scale(self.keys)
        self.row_of = {t: row for row, t in enumerate(self.plan.readers)}
        self.kernel = "auto"
        self.ops: DepthOps = LEAN
        self.hidden_label: str | None = None
        size = self.query_shape(shape, options)
        self.queries = nn.Parameter(torch.zeros(size), requires_grad=not options.frozen_queries)
        self.gains = nn.Parameter(torch.ones(size[: self.gain_dims])) if options.has_gain else None
        n_reads = len(self.plan.readers)
        self.recency = nn.Parameter(torch.zeros(n_reads)) if options.has_recency else None

    gain_dims = 2
    """Leading dimensions of the queries that the key gains share."""

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set gains to one, queries to zero or N(0, query_init_std^2), recency as asked."""
        self.queries.zero_()
        if self.options.query_init_std > 0:
            self.queries.normal_(0.0, self.options.query_init_std, generator=generator)
        if self.gains is not None:
            self.gains.fill_(1.0)
        if self.recency is not None:
            self.recency.fill_(self.options.recency_init)

    def use_kernel(self, kernel: str) -> None:
        """Choose how reads are computed; see :data:`recipes.base.KERNELS`."""
        if kernel not in KERNELS:
            raise RecipeError(f"kernel must be one of {', '.join(KERNELS)}, got '{kernel}'")
        if (reason := self.why_not(kernel)) is not None:
            raise RecipeError(f"recipe '{self.name}': {reason}; use kernel auto or torch")
        self.kernel = kernel
        self.ops = CACHED if kernel == "cached" else LEAN

    def why_not(self, kernel: str) -> str | None:
        """Say why these reads cannot use a kernel; None if they can."""
        if kernel in ("two_phase", "fla", "liger"):
            return f"kernel '{kernel}' computes reads of block and full alone"
        return None

    def use_countable_ops(self) -> None:
        """Switch to stacked matmuls, which a FLOP counter sees in full."""
        self.ops = COUNTABLE

    def start(self, embedding: Tensor) -> DepthState:
        """Enter the embedding, once: as the first source, or into the first block's sum."""
        stream = embedding if self.plan.keeps_stream else None
        if self.plan.embedding:
            return DepthState((self.enter(embedding, *self.plan.rows(-1)),), None, stream)
        opens_sum = not (self.plan.cumulative or self.plan.as_released)
        return DepthState((), embedding if opens_sum else None, stream)

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
            return DepthState(self._kept(state.bank, t), partial, stream, state.phases)
        bank, block = state.bank, self.plan.block_of(t)
        if self.plan.banks(block):
            completed = self._completed(state, partial, stream)
            bank = (*bank, self.enter(completed, *self.plan.rows(block)))
        return DepthState(self._kept(bank, t), None, stream)

    def _add_to_block(self, partial: Tensor | None, output: Tensor, t: int) -> Tensor | None:
        if not self.plan.sums_at(t):
            return None
        # Block sums in bf16 would lose small late contributions.
        return output if partial is None else widen(partial) + output

    def _completed(
        self, state: DepthState, partial: Tensor | None, stream: Tensor | None
    ) -> Tensor:
        if self.plan.as_released and stream is not None:
            return stream - state.bank[-1].value
        source = stream if self.plan.cumulative else partial
        assert source is not None
        return source

    def _kept(self, bank: tuple[Source, ...], t: int) -> tuple[Source, ...]:
        """Drop the blocks that left the window before read t + 1."""
        gone = self.plan.oldest_at(t + 1) - self.plan.oldest_at(t)
        if not gone:
            return bank
        lead = int(self.plan.embedding)
        return (*bank[:lead], *bank[lead + gone :])

    def finish(self, state: DepthState) -> Tensor:
        """Mix all sources with the final query, or return R where there is no such read."""
        return self.read(state, self.plan.n_sublayers)[0]

    def sources(self, state: DepthState, t: int) -> tuple[Source, ...]:
        """Return the sources of read ``t``, oldest first."""
        seen = state.bank[: self.plan.embedding + len(self.plan.blocks_at(t))]
        if not self.plan.reads_partial(t):
            return seen
        under_way = state.stream if self.plan.cumulative else state.partial
        assert under_way is not None
        row = self.row_of.get(t, -1)
        return (*seen, self.enter(under_way, row, row + (t in self.row_of)))

    def enter(self, value_BTD: Tensor, first_row: int, last_row: int) -> Source:
        """Make a source of a tensor, scored for the readers of some rows of the queries."""
        if first_row >= last_row:
            return Source(value_BTD)
        with full_precision(value_BTD):
            queries_KHR = self.scaled_queries(slice(first_row, last_row))
            value, scores = self.ops.enter(value_BTD, queries_KHR, self.keys)
        return Source(value, scores, first_row)

    def scaled_queries(self, rows: slice) -> Tensor:
        """Return queries times gains and logit scale: ``q . (g * k) = (q * g) . k``; [K, H, R]."""
        queries = widen(self.queries[rows])
        if self.gains is not None:
            queries = queries * widen(self.gains[rows])
        queries_KHR = self.keys.split(queries)
        return queries_KHR if self.scale == 1.0 else queries_KHR * self.scale

    def attend(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return read ``t`` over ``sources``, in the dtype of the parameters, [B, T, D]."""
        if len(sources) == 1:
            return sources[0].value.to(self.queries.dtype)
        with full_precision(sources[0].value):
            weights_SBTH = self.weights(sources, t)
            if self.options.takes_means:
                weights_SBTH = weights_SBTH / self._counts(weights_SBTH, t)
            mixed_BTD = self.ops.mix(weights_SBTH, [source.value for source in sources])
        return mixed_BTD.to(self.queries.dtype)

    def weights(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return the weights of read ``t``, [S, B, T, H], of a softmax or of sigmoids."""
        return self.weigh(self.logits(sources, t), t)

    def logits(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return the logits of read ``t``, [S, B, T, H]."""
        row = self.row_of[t]
        return torch.stack([source.score(row) for source in sources])

    def weigh(self, logits_SBTH: Tensor, t: int) -> Tensor:
        """Turn logits into weights; a hidden source gets none."""
        if self.recency is not None:
            logits_SBTH = torch.cat([logits_SBTH[:-1], self.favoured(logits_SBTH[-1:], t)])
        if self.options.has_count_prior:
            logits_SBTH = logits_SBTH + self._counts(logits_SBTH, t).log()
        if self.options.weighting == "sigmoid":
            weights = logits_SBTH.sigmoid()
            return weights if (at := self._hidden(t)) is None else _zeroed(weights, at)
        if (at := self._hidden(t)) is not None:
            logits_SBTH = logits_SBTH.clone()
            logits_SBTH[at] = float("-inf")
        return logits_SBTH.softmax(dim=0)

    def favoured(self, logits: Tensor, t: int) -> Tensor:
        """Add to logits of the newest source what read ``t`` has learned for it, if anything."""
        return logits if self.recency is None else logits + widen(self.recency[self.row_of[t]])

    def _counts(self, like: Tensor, t: int) -> Tensor:
        return like.new_tensor(self.plan.counts(t))[:, None, None, None]

    def _hidden(self, t: int) -> int | None:
        labels = [] if self.hidden_label is None else self.source_labels(t)
        return labels.index(self.hidden_label) if self.hidden_label in labels else None

    @contextmanager
    def masking(self, label: str) -> Iterator[None]:
        """Hide one source from every read that has another; a softmax renormalises the rest."""
        self.hidden_label = label
        try:
            yield
        finally:
            self.hidden_label = None

    def _stream(self, state: DepthState) -> Tensor:
        assert state.stream is not None
        return state.stream

    def stream(self, state: DepthState) -> Tensor:
        """Return R where it is kept, else the block under way, else the newest completed source."""
        if state.stream is not None:
            return state.stream
        return state.bank[-1].value if state.partial is None else state.partial

    def depth_weights(self, state: DepthState, t: int) -> Tensor | None:
        """Return the weights of read ``t`` by source, [S, B, T], averaged over heads.

        None where there is no read.
        """
        if not self.plan.reads_at(t):
            return None
        sources = self.sources(state, t)
        if len(sources) == 1:
            return torch.ones_like(widen(sources[0].value[None, ..., 0]))
        with full_precision(sources[0].value):
            return self.weights(sources, t).mean(-1)

    def depth_values(self, state: DepthState, t: int) -> list[Tensor] | None:
        """Return what read ``t`` mixes, block means where asked; None where there is no read."""
        if not self.plan.reads_at(t):
            return None
        values = [source.value for source in self.sources(state, t)]
        if not self.options.takes_means or len(values) == 1:
            return values
        return [value / n for value, n in zip(values, self.plan.counts(t), strict=True)]

    def source_labels(self, t: int) -> list[str]:
        """Name the sources of read ``t``: ``embedding``, ``t3`` or ``block 1``, ``partial``."""
        if not self.plan.reads_at(t):
            return []
        by_sublayer = len(self.plan.ends) == self.plan.n_sublayers
        blocks = [f"t{k}" if by_sublayer else f"block {k + 1}" for k in self.plan.blocks_at(t)]
        lead = ["embedding"] if self.plan.embedding else []
        return [*lead, *blocks, *(["partial"] if self.plan.reads_partial(t) else [])]

    def dead_parameters(self) -> set[str]:
        """Name the gains where queries stay zero: they would multiply nothing else."""
        return {"gains"} if self.queries_stay_zero and self.gains is not None else set()

    @property
    def queries_stay_zero(self) -> bool:
        """Whether all reads stay uniform for the whole run."""
        return self.options.frozen_queries and self.options.query_init_std == 0

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """Price of all parameters, of reads of two sources or more, and of the sums kept."""
        plan, keys, d = options.schedule(shape), options.keys(shape.d_model), shape.d_model
        size = cls.query_shape(shape, options)
        width = keys.heads * keys.width
        return ResidualCost(
            params=_product(size)
            + _product(size[: cls.gain_dims]) * options.has_gain
            + len(plan.readers) * options.has_recency,
            flops_per_token=sum(read_flops(plan.n_sources(t), d, width) for t in plan.readers),
            elements_moved_per_token=d * vectors_moved(plan),
            state_elements_per_token=d * max(plan.n_vectors(t) for t in range(plan.n_sublayers)),
        )

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """True with zero queries where sources are disjoint sums of everything so far.

        Uniform weights then give R / m (or R + R / m), and the pre-norm that follows forgets scale.
        """
        uniform = options.query_init_std == 0 and options.recency_init == 0
        return bool(uniform and options.window is None)


class BlockReads(AttentionResidual):
    """Base of the recipes whose sources are block sums; their options are ``BlockOptions``."""

    @classmethod
    def block_size(cls, shape: Shape, options: Any) -> int | None:
        """Sublayers of the largest block."""
        ends = options.ends(shape)
        return max(int(end - start) for start, end in zip((0, *ends), ends, strict=False))

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """Also wants the block under way among the sources, and block sums mixed as sums."""
        as_sums = options.takes_means == options.has_count_prior
        if options.weighting == "sigmoid":
            as_sums = not (options.takes_means or options.has_count_prior)
        return bool(options.has_partial) and as_sums and super().equals_standard_at_init(options)


def _zeroed(weights_SBTH: Tensor, at: int) -> Tensor:
    weights_SBTH = weights_SBTH.clone()
    weights_SBTH[at] = 0.0
    return weights_SBTH


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
