"""Multi-stream depth attention: heads see the sources through causal convolutions over tokens.

A READING, NOT THE PAPER. Of Multi-Stream Attention Residuals (Qin, Zhang, Dai et al.) only the
abstract is public: multi-head depth attention, heads made different by multi-scale causal
convolutions rather than by splitting channels, retrieved streams merged by light adaptive
mixing, sources stored as single streams. Every equation below is our reading of that.

Equation: ``w_i^h = conv_h(v_i)``, depthwise and causal with ``widths[h]`` taps; ``a^h =
softmax_i(q_t^h . rms(w_i^h))``; ``z^h = sum_i a_i^h w_i^h``; ``u_t = sum_h gamma_h z^h`` with
``gamma = softmax_h(c_t + C_t rms(v_newest))``. Sources, blocks and final read as in ``block``.
Start: identity taps, zero queries, zero ``c`` and ``C``: the model is the standard residual.

Mixes tokens, so it is not token-local: a decoder needs the last ``max(widths) - 1`` tokens of
every source, and packed documents would leak into each other by as much.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from recipes.attention_residual import BlockReads
from recipes.base import AnyOptions, ResidualCost, Shape, recipe
from recipes.depth_attention import Source, full_precision, rms_normalised, widen
from recipes.depth_options import BlockOptions
from recipes.depth_schedule import vectors_moved
from recipes.transfer import DEPTH_READS


class MultiStreamOptions(BlockOptions):
    """Options of multi-stream depth attention."""

    widths: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8), min_length=1, max_length=64, strict=False
    )
    """Taps of every head's convolution, the token itself included; as many heads as entries."""
    convolve: Literal["keys", "values", "both"] = "both"
    """What a head sees through its convolution."""
    share_taps: bool = True
    """One convolution per head for all sources and reads; false: one per head and read."""
    mixing: Literal["adaptive", "static"] = "adaptive"
    """How heads merge. adaptive: by a map of the newest source. static: by learned weights."""

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return len(self.widths)

    @property
    def key_views(self) -> int:
        """Distinct keys of a source: one per head where keys are convolved."""
        return 1 if self.convolve == "values" else self.n_heads

    @property
    def value_views(self) -> int:
        """Distinct values of a source: one per head where values are convolved."""
        return 1 if self.convolve == "keys" else self.n_heads

    @property
    def has_map(self) -> bool:
        """Whether heads merge by a map of the newest source; one head has nothing to merge."""
        return self.mixing == "adaptive" and self.n_heads > 1


@recipe("multi_stream", revision=1)
class MultiStream(BlockReads):
    """Multi-head depth attention over causally convolved block sums (a reading, not the paper)."""

    Options = MultiStreamOptions
    options: MultiStreamOptions
    equation = "u_t = sum_h gamma_h sum_i softmax_i(q_t^h . rms(conv_h v_i)) conv_h v_i; final read"
    source = (
        "our reading of the abstract of Multi-Stream Attention Residuals, Qin et al.; not the paper"
    )

    def __init__(self, shape: Shape, options: MultiStreamOptions) -> None:
        super().__init__(shape, options)
        reads, heads, d = len(self.plan.readers), options.n_heads, shape.d_model
        per_read = () if options.share_taps else (reads,)
        self.taps = nn.ParameterList(torch.zeros(*per_read, d, k) for k in options.widths)
        self.head_logits = nn.Parameter(torch.zeros(reads, heads)) if heads > 1 else None
        self.head_map = nn.Parameter(torch.zeros(reads, heads, d)) if options.has_map else None

    gain_dims = 3
    transfer_note = (
        DEPTH_READS + " The map that merges heads reads d_model entries and its rate falls as "
        "1 / d_model; taps are per channel and keep theirs."
    )

    @classmethod
    def readout_fan_in(cls, name: str, shape: Shape, options: Any) -> float:
        """Also the map that merges heads, a readout of the newest source."""
        own = super().readout_fan_in(name, shape, options)
        return float(shape.d_model) if name == "head_map" else own

    @classmethod
    def query_shape(cls, shape: Shape, options: Any) -> tuple[int, ...]:
        """Shape of all queries: one row per read and head."""
        return (len(options.schedule(shape).readers), options.n_heads, shape.d_model)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Also set the taps to the identity and merge heads evenly."""
        super().reset_parameters(generator)
        for taps in self.taps:
            taps.zero_()
            taps[..., -1] = 1.0
        for merge in (self.head_logits, self.head_map):
            if merge is not None:
                merge.zero_()

    def enter(self, value_BTD: Tensor, first_row: int, last_row: int) -> Source:
        """Make a source and, with shared taps, its view by every head, scored for its readers."""
        source = Source(value_BTD)
        if first_row >= last_row or not self.options.share_taps:
            return source
        views = self._views(value_BTD, list(self.taps), first_row, last_row)
        return source._replace(views=views)

    def _views(
        self, value_BTD: Tensor, taps: list[Tensor], first_row: int, last_row: int
    ) -> tuple[Source, ...]:
        with full_precision(value_BTD):
            wide_BTD = widen(value_BTD)
            seen = [self.ops.convolve(wide_BTD, taps_DK) for taps_DK in taps]
            queries_KHD = self._head_queries(first_row, last_row)
            raw_keys = self.options.convolve == "values"
            views = []
            for h, view_BTD in enumerate(seen):
                query_K1D = queries_KHD[:, h : h + 1]
                key_BTD = wide_BTD if raw_keys else view_BTD
                entered, scores = self.ops.enter(key_BTD, query_K1D, self.keys)
                value = view_BTD if raw_keys else entered
                views.append(Source(value, scores, first_row))
        return tuple(views)

    def _head_queries(self, first_row: int, last_row: int) -> Tensor:
        """Return queries times gains and logit scale, [K, heads, D]."""
        queries = widen(self.queries[first_row:last_row]) * self.scale
        return queries if self.gains is None else queries * widen(self.gains[first_row:last_row])

    def attend(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return read ``t``: every head's mix, merged by gamma, [B, T, D]."""
        if len(sources) == 1:
            return sources[0].value.to(self.queries.dtype)
        with full_precision(sources[0].value):
            by_head = self._by_head(sources, t)
            weights = self._head_weights(sources, by_head, t)
            if self.options.takes_means:
                weights = [w_SBT1 / self._counts(w_SBT1, t) for w_SBT1 in weights]
            if self.options.convolve == "keys":
                total_SBT1 = torch.stack(weights).sum(dim=0)
                mixed_BTD = self.ops.mix(total_SBT1, [source.value for source in sources])
            else:
                values = [view.value for views in by_head for view in views]
                mixed_BTD = self.ops.mix(torch.cat(weights), values)
        return mixed_BTD.to(self.queries.dtype)

    def weights(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return what read ``t`` puts on each source over all heads, [S, B, T, 1]."""
        return torch.stack(self._head_weights(sources, self._by_head(sources, t), t)).sum(dim=0)

    def _by_head(self, sources: tuple[Source, ...], t: int) -> list[list[Source]]:
        """Return the view of every source by every head, head first."""
        if self.options.share_taps:
            views = [source.views for source in sources]
        else:
            row = self.row_of[t]
            taps = [taps[row] for taps in self.taps]
            views = [self._views(source.value, taps, row, row + 1) for source in sources]
        return [list(per_head) for per_head in zip(*views, strict=True)]

    def _head_weights(
        self, sources: tuple[Source, ...], by_head: list[list[Source]], t: int
    ) -> list[Tensor]:
        """Return gamma_h times the weights of every head h over sources, each [S, B, T, 1]."""
        row = self.row_of[t]
        return [
            gamma * self.weigh(torch.stack([view.score(row) for view in views]), t)
            for gamma, views in zip(self._gammas(sources[-1], t), by_head, strict=True)
        ]

    def _gammas(self, newest: Source, t: int) -> tuple[Tensor | float, ...]:
        """Return the share of every head, each a scalar or [B, T, 1]."""
        if self.head_logits is None:
            return (1.0,)
        row = self.row_of[t]
        normed_BTD = rms_normalised(newest.value)
        logits = self.head_logits[row].to(normed_BTD.dtype)
        if self.head_map is not None:
            logits = logits + normed_BTD @ self.head_map[row].to(normed_BTD.dtype).t()
        return torch.split(logits.softmax(dim=-1), 1, dim=-1)

    def dead_parameters(self) -> set[str]:
        """Name everything that is left when heads differ by keys alone and queries stay zero."""
        if self.queries_stay_zero and self.options.convolve == "keys":
            return {name for name, _ in self.named_parameters()} - {"queries", "recency"}
        return super().dead_parameters()

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """Price of ``block`` by head, plus convolutions and the map that merges heads.

        Views are elements moved and, with shared taps, part of the state.
        """
        plan, d = options.schedule(shape), shape.d_model
        heads, n_reads, taps = options.n_heads, len(plan.readers), sum(options.widths)
        read_sources = sum(plan.n_sources(t) for t in plan.readers)
        entries = plan.n_scored() if options.share_taps else read_sources
        views = heads if options.share_taps else 0
        kept = max(
            plan.n_vectors(t) + views * sum(map(plan.is_scored, plan.banked_at(t + 1)))
            for t in range(plan.n_sublayers)
        )
        viewed = max(options.key_views, options.value_views)
        return ResidualCost(
            params=n_reads * heads * d * (1 + options.has_gain)
            + taps * d * (1 if options.share_taps else n_reads)
            + n_reads * (heads * (heads > 1) + heads * d * options.has_map + options.has_recency),
            flops_per_token=2 * d * read_sources * (heads + options.value_views)
            + 2 * d * (taps * entries + heads * n_reads * options.has_map),
            elements_moved_per_token=d
            * (
                vectors_moved(plan)
                + read_sources * (viewed - 1 + (options.convolve != "both"))
                + entries * (1 + heads)
            ),
            state_elements_per_token=d * kept,
        )

    @classmethod
    def token_reach(cls, shape: Shape, options: Any) -> int:
        """As far back as the widest convolution goes."""
        widths: tuple[int, ...] = options.widths
        return max(widths) - 1

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, then every switch turned once, uneven blocks, one head, the control."""
        return [
            MultiStreamOptions(),
            MultiStreamOptions(convolve="keys", mixing="static", block_size=3),
            MultiStreamOptions(convolve="values", n_blocks=3, tail="balanced", key_norm="rms"),
            MultiStreamOptions(share_taps=False, widths=(1, 3)),
            MultiStreamOptions(widths=(4,), query_init_std=0.02),
            MultiStreamOptions(convolve="keys", frozen_queries=True),
            MultiStreamOptions(weighting="sigmoid", temperature=2.0, window=2, block_size=2),
            MultiStreamOptions(value_scale="mean", count_prior=True, block_size=2),
            MultiStreamOptions(block_sizes=(1, shape.n_sublayers - 1), embedding_source=False),
            MultiStreamOptions(key_norm="none", include_partial=False, final_read=False),
            MultiStreamOptions(logit_scale="inverse_sqrt_rank", block_size=2, query_init_std=0.3),
            MultiStreamOptions(recency_init=-1.0, convolve="keys", frozen_queries=True),
        ]
