"""Reads whose sources are their own keys: static, input-dependent and absent queries, heads.

The part of the family that scores sources as they are (``multi_stream`` scores views of them).

Equations: ``static``: one learned ``q_t``. ``input_dependent``: ``q_t = W_t rms(v_newest)``, W_t
[keys, d_model], zero at the start; the query differs from token to token, so sources are scored
read by read. ``none``: a learned logit per read, source and head, the same for every token.
Source: Kimi Team, Attention Residuals, arXiv 2603.15031, section 5.3, which leaves the state behind
an input-dependent query and the normalisation of bare logits open; here the newest source, softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recipes.attention_residual import AttentionResidual, DepthState
from recipes.base import RecipeError, ResidualCost, Shape
from recipes.depth_attention import (
    EPS,
    Keys,
    Source,
    enter_cached,
    full_precision,
    read_flops,
    rms_normalised,
)
from recipes.depth_options import KeyOptions
from recipes.depth_schedule import Schedule
from recipes.gpu_read import LIBRARIES, fla_read, liger_read, why_not
from recipes.two_phase import Phase, earlier_blocks, merge

UNSCORED = Keys(heads=1, width=1, normalised=False)
"""Keys of a source that is not scored when it appears."""


class KeyedReads(AttentionResidual):
    """Base of the recipes that score sources as they are; their options are ``KeyOptions``."""

    Options = KeyOptions
    options: KeyOptions
    queries: nn.Parameter

    def __init__(self, shape: Shape, options: KeyOptions) -> None:
        super().__init__(shape, options)
        self.group_of = {
            t: (rows[0], rows[-1] + 1)
            for rows in _grouped(self.plan)
            for t in self.plan.readers[rows[0] : rows[-1] + 1]
        }
        self.fused_on: dict[tuple[str, torch.dtype, int], str | None] = {}
        counts = [self.plan.n_sources(t) for t in self.plan.readers]
        self.first_logit = [sum(counts[:row]) for row in range(len(counts))]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Also start bare logits of newest sources at ``recency_init``, or that far off."""
        super().reset_parameters(generator)
        if self.options.query == "none" and self.options.recency_init:
            ends = (*self.first_logit[1:], len(self.queries))
            self.queries[[end - 1 for end in ends]] += self.options.recency_init

    @classmethod
    def query_shape(cls, shape: Shape, options: Any) -> tuple[int, ...]:
        """Shape of the queries: vectors, maps of the newest source, or bare logits."""
        if options.query == "none":
            plan = options.schedule(shape)
            return (sum(plan.n_sources(t) for t in plan.readers), options.heads)
        vectors = super().query_shape(shape, options)
        return (*vectors, shape.d_model) if options.query == "input_dependent" else vectors

    @classmethod
    def readout_fan_in(cls, name: str, shape: Shape, options: Any) -> float:
        """As of static queries; a map sums over its input too, a bare logit over nothing."""
        if options.query == "none":
            return 1.0
        fan_in = super().readout_fan_in(name, shape, options)
        mapped = name == "queries" and options.query == "input_dependent"
        return fan_in * shape.d_model if mapped else fan_in

    def why_not(
        self,
        kernel: str,
        device_type: str | None = None,
        dtype: torch.dtype | None = None,
        n_tokens: int | None = None,
    ) -> str | None:
        """Say why these reads cannot use a kernel, on such tensors; None if they can."""
        options = self.options
        if kernel == "two_phase":
            return self._why_not_two_phase()
        if kernel not in LIBRARIES:
            return None
        return why_not(
            kernel,
            dtype,
            device_type,
            n_tokens=n_tokens,
            n_sources=max(map(self.plan.n_sources, self.plan.readers)),
            d_model=self.shape.d_model,
            key_rank=self.keys.heads * self.keys.width,
            heads=options.heads,
            weighting=options.weighting,
            query=options.query,
            key_norm=options.key_norm,
            recency_init=options.recency_init,
            count_prior=options.has_count_prior,
            value_scale="mean" if options.takes_means else "sum",
        )

    def _why_not_two_phase(self) -> str | None:
        options = self.options
        if options.query != "static" or options.weighting != "softmax":
            return "kernel 'two_phase' needs static queries and softmax weights"
        if options.takes_means or options.has_count_prior:
            return "kernel 'two_phase' mixes sources as sums, without a count prior"
        if self.plan.additive or not self.plan.is_complete:
            return "kernel 'two_phase' needs reads that replace the stream and see every source"
        if len(self.plan.ends) == self.plan.n_sublayers:
            return "kernel 'two_phase' needs blocks of two sublayers or more"
        return None

    def _fused(self, value: Tensor) -> str | None:
        """Return the library whose kernel computes reads of such sources."""
        if self.kernel not in ("auto", *LIBRARIES) or torch.compiler.is_compiling():
            return None
        place = (value.device.type, value.dtype, value.numel() // value.shape[-1])
        if self.kernel == "auto" and place[0] != "cuda":
            return None
        if place not in self.fused_on:
            kernel = "fla" if self.kernel == "auto" else self.kernel
            reason = self.why_not(kernel, *place)
            if reason is not None and self.kernel != "auto":
                raise RecipeError(f"recipe '{self.name}': {reason}; use kernel auto or torch")
            self.fused_on[place] = None if reason else kernel
        return self.fused_on[place]

    def enter(self, value_BTD: Tensor, first_row: int, last_row: int) -> Source:
        """Make a source; it is scored here where queries are static and no fused kernel reads."""
        if first_row >= last_row:
            return Source(value_BTD)
        if self._fused(value_BTD) is not None:
            return Source(value_BTD.to(self.queries.dtype))
        if self.options.query == "static":
            return super().enter(value_BTD, first_row, last_row)
        value, _ = self.ops.enter(value_BTD, self.queries.new_empty(0, 1, 1), UNSCORED)
        return Source(value)

    def attend(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return read ``t``, by a fused kernel where one computes it."""
        if len(sources) == 1 or self.hidden_label is not None:
            return super().attend(sources, t)
        kernel = self._fused(sources[0].value)
        if kernel is None:
            return super().attend(sources, t)
        row = self.row_of[t]
        gain = None if self.gains is None else self.gains[row]
        values = [source.value for source in sources]
        fused = {"fla": fla_read, "liger": liger_read}[kernel]
        with full_precision(values[0]):
            mixed_BTD = fused(values, self.queries[row], gain, EPS, self.scale)
        return mixed_BTD.to(self.queries.dtype)

    def read(self, state: DepthState, t: int) -> tuple[Tensor, DepthState]:
        """Mix the sources of read ``t``; in two phases where that kernel was chosen."""
        if self.kernel != "two_phase" or t not in self.row_of or self.hidden_label is not None:
            return super().read(state, t)
        first, last = self.group_of[t]
        row = self.row_of[t]
        sources = self.sources(state, t)
        earlier = sources[: len(sources) - self.plan.reads_partial(t)]
        with full_precision(sources[0].value):
            if row == first:
                state = state._replace(phases=self._phases(earlier, first, last))
            phase = state.phases[row - first]
            if len(earlier) == len(sources):
                mixed_BTD = phase.mixed
            else:
                score_BTH = self.favoured(sources[-1].score(row), t)
                mixed_BTD = merge(phase, score_BTH, sources[-1].value)
        return mixed_BTD.to(self.queries.dtype), state

    def _phases(self, earlier: tuple[Source, ...], first: int, last: int) -> tuple[Phase, ...]:
        scores = [self._earlier_scores(earlier, row) for row in range(first, last)]
        return earlier_blocks(torch.stack(scores), [s.value for s in earlier]).reads()

    def _earlier_scores(self, earlier: tuple[Source, ...], row: int) -> Tensor:
        t = self.plan.readers[row]
        *older, newest = (source.score(row) for source in earlier)
        return torch.stack(
            [*older, newest if self.plan.reads_partial(t) else self.favoured(newest, t)]
        )

    def logits(self, sources: tuple[Source, ...], t: int) -> Tensor:
        """Return the logits of read ``t``, [S, B, T, H]."""
        row, like = self.row_of[t], sources[-1].value
        if self.options.query == "static":
            if sources[0].scores:
                return super().logits(sources, t)
            queries_1HR = self.scaled_queries(slice(row, row + 1))
            return torch.stack(
                [enter_cached(s.value, queries_1HR, self.keys)[1][0] for s in sources]
            )
        if self.options.query == "none":
            first = self.first_logit[row]
            logits_SH = self.queries[first : first + len(sources)]
            wide = torch.promote_types(like.dtype, torch.float32)
            return logits_SH.to(wide)[:, None, None].expand(-1, *like.shape[:2], -1)
        query_BTHR = self._query_of(like, row)
        return torch.stack([self.ops.score(s.value, query_BTHR, self.keys) for s in sources])

    def _query_of(self, newest_BTD: Tensor, row: int) -> Tensor:
        """Map the newest source to a query per token, gain and logit scale included."""
        normed_BTD = rms_normalised(newest_BTD)
        query = normed_BTD @ self.queries[row].to(normed_BTD.dtype).t()
        if self.gains is not None:
            query = query * self.gains[row].to(normed_BTD.dtype)
        return self.keys.split(query * self.scale)

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """Price of the family; bare logits score nothing, maps are applied at every read."""
        base, plan = super().cost(shape, options), options.schedule(shape)
        d, keys = shape.d_model, options.keys(shape.d_model)
        flops = base.flops_per_token
        if options.query == "none":
            flops = sum(read_flops(plan.n_sources(t), d, 0) for t in plan.readers)
        elif options.query == "input_dependent":
            flops += 2 * d * keys.heads * keys.width * len(plan.readers)
        return ResidualCost(
            base.params, flops, base.elements_moved_per_token, base.state_elements_per_token
        )


def _grouped(plan: Schedule) -> list[list[int]]:
    """Rows of the queries by the block under way at their reads."""
    groups: dict[int, list[int]] = {}
    for row, t in enumerate(plan.readers):
        groups.setdefault(plan.start_of(t), []).append(row)
    return list(groups.values())
