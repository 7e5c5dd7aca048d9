"""The papers' equations as plain loops over sequences, tokens and sources, in float64.

Written from the equations alone and sharing no code with ``recipes``: one token, one source at a
time, every source list rebuilt from scratch at every read. Returns what each sublayer sees and what
the final norm sees. A recipe's parameters arrive as its ``state_dict``; rows of a parameter belong,
in order, to the reads that have two sources or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

EPS = 1e-8
Sublayer = Callable[[Tensor], Tensor]
Result = tuple[list[Tensor], Tensor]
Tagged = tuple[Tensor, int]
"""A source and the number of outputs that it adds up."""
Seen = Callable[[int, Tensor, list[Tensor]], list[Tagged]]


def rms(v: Tensor) -> Tensor:
    return v / math.sqrt(float((v * v).sum()) / len(v) + EPS)


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [p / sum(powers) for p in powers]


def sum_of(vectors: list[Tensor]) -> Tensor:
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    return total


def dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())


def sigmoid(score: float) -> float:
    return 1.0 / (1.0 + math.exp(-score))


def weigh(
    options: Any, scores: list[float], counts: list[int], recency: Tensor | None, row: int
) -> list[float]:
    """Softmax or sigmoid of scores; the divisor of a mean is part of the result."""
    if recency is not None:
        scores = [*scores[:-1], scores[-1] + float(recency[row])]
    if getattr(options, "count_prior", False):
        scores = [s + math.log(n) for s, n in zip(scores, counts, strict=True)]
    weights = (
        softmax(scores) if options.weighting == "softmax" else [sigmoid(score) for score in scores]
    )
    if getattr(options, "value_scale", "sum") == "mean":
        weights = [w / n for w, n in zip(weights, counts, strict=True)]
    return weights


def blocks_of(options: Any, m: int, unit: int = 1) -> list[list[int]]:
    """Sublayers of every block, by the definitions of S, N, tail, and explicit sizes."""
    size, count = options.block_size, options.n_blocks
    if options.block_sizes is not None:
        starts = [sum(options.block_sizes[:j]) for j in range(len(options.block_sizes) + 1)]
        return [list(range(starts[j], starts[j + 1])) for j in range(len(options.block_sizes))]
    if size is None and count is None:
        size = 4
    if options.tail == "balanced":
        n = count if count is not None else math.ceil(m / size)
        ends = [unit * math.ceil((m // unit) * j / n) for j in range(n + 1)]
        return [list(range(ends[j], ends[j + 1])) for j in range(n)]
    if size is None:
        size = unit * math.ceil((m // unit) / count)
    return [list(range(start, min(start + size, m))) for start in range(0, m, size)]


def shown(options: Any, newer: list[Tagged], x0: Tensor) -> list[Tagged]:
    """The newest sources of the window, behind the embedding where it is a source."""
    if options.window is not None:
        newer = newer[-options.window :]
    return [(x0, 1), *newer] if options.embedding_source else newer


def replaced(options: Any, x0: Tensor, layers: list[Sublayer], read: Any, seen: Seen) -> Result:
    """u_t = read_t(sources); the final norm sees one more read, or the sum of everything."""
    outputs: list[Tensor] = []
    inputs = []
    for t in range(len(layers) + 1):
        if t == len(layers) and options.final_read is False:
            return inputs, sum_of([x0, *outputs])
        sources = seen(t, x0, outputs)
        inputs.append(sources[0][0] if len(sources) == 1 else read(sources))
        if t < len(layers):
            outputs.append(layers[t](inputs[-1]))
    return inputs[:-1], inputs[-1]


def added(options: Any, x0: Tensor, layers: list[Sublayer], read: Any, seen: Seen) -> Result:
    """u_0 = x0, u_t = R_t + read_t(sources); the final norm sees R, or R and one more read."""
    outputs: list[Tensor] = []
    inputs = []
    for t in range(len(layers) + 1):
        stream = sum_of([x0, *outputs])
        if t == len(layers) and not options.final_read:
            return inputs, stream
        sources = seen(t, x0, outputs) if t else []
        if len(sources) == 1:
            stream = stream + sources[0][0]
        elif sources:
            stream = stream + read(sources)
        inputs.append(stream)
        if t < len(layers):
            outputs.append(layers[t](inputs[-1]))
    return inputs[:-1], inputs[-1]


class Reader:
    """Scores and mixes by the options, handing the rows of the parameters out in order."""

    def __init__(self, options: Any, parameters: dict[str, Tensor]) -> None:
        self.options, self.parameters = options, parameters
        self.row = self.logit = 0

    def __call__(self, sources: list[Tagged]) -> Tensor:
        out = torch.zeros_like(sources[0][0])
        counts = [count for _, count in sources]
        recency = self.parameters.get("recency")
        heads = self.options.heads
        width = out.shape[-1] // heads
        for b in range(out.shape[0]):
            for j in range(out.shape[1]):
                vectors = [value[b, j] for value, _ in sources]
                for h in range(heads):
                    scores = self.scores(vectors, h)
                    weights = weigh(self.options, scores, counts, recency, self.row)
                    channels = slice(h * width, (h + 1) * width)
                    parts = [w * v[channels] for w, v in zip(weights, vectors, strict=True)]
                    out[b, j, channels] = sum_of(parts)
        self.row += 1
        self.logit += len(sources)
        return out

    def scores(self, vectors: list[Tensor], h: int) -> list[float]:
        options, d = self.options, len(vectors[0])
        if options.query == "none":
            first = self.logit
            return [float(self.parameters["queries"][first + i, h]) for i in range(len(vectors))]
        rank = rank_of(options, d)
        of_head = slice(h * (rank // options.heads), (h + 1) * (rank // options.heads))
        query = self.query(vectors[-1])[of_head]
        keys = [self.key(v, rank, of_head) for v in vectors]
        scale = 1.0 if options.logit_scale == "one" else 1.0 / math.sqrt(len(query))
        return [scale * dot(query, key) / options.temperature for key in keys]

    def query(self, newest: Tensor) -> Tensor:
        query = self.parameters["queries"][self.row]
        if self.options.query == "input_dependent":
            query = query @ rms(newest)
        gains = self.parameters.get("gains")
        return query if gains is None else query * gains[self.row]

    def key(self, v: Tensor, rank: int, of_head: slice) -> Tensor:
        last = v[len(v) - rank :][of_head]
        if self.options.key_norm == "none":
            return last
        if self.options.key_norm_scope == "full":
            return last / math.sqrt(dot(v, v) / len(v) + EPS)
        return rms(last)


def rank_of(options: Any, d: int) -> int:
    if options.key_rank is not None:
        return int(options.key_rank)
    return d // 4 if type(options).__name__ == "LowRankOptions" else d


def full_sources(options: Any) -> Seen:
    def seen(t: int, x0: Tensor, y: list[Tensor]) -> list[Tagged]:
        outputs = [(output, 1) for output in y[:t]]
        if not options.embedding_source:
            outputs = opened(outputs, x0)
        return shown(options, outputs, x0)

    return seen


def opened(newer: list[Tagged], x0: Tensor) -> list[Tagged]:
    """Put the embedding into the first block, where it is no source of its own."""
    if not newer:
        return [(x0, 1)]
    return [(x0 + newer[0][0], newer[0][1] + 1), *newer[1:]]


def block_sources(options: Any, blocks: list[list[int]]) -> Seen:
    def seen(t: int, x0: Tensor, y: list[Tensor]) -> list[Tagged]:
        sums = []
        for block in blocks:
            done = [y[s] for s in block if s < t]
            if done and (options.include_partial or len(done) == len(block)):
                sums.append((sum_of(done), len(done)))
        if not options.embedding_source:
            sums = opened(sums, x0)
        return shown(options, sums, x0)

    return seen


def standard(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    stream, inputs = x0, []
    for layer in layers:
        inputs.append(stream)
        stream = stream + layer(stream)
    return inputs, stream


def full(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    return replaced(options, x0, layers, Reader(options, parameters), full_sources(options))


def block(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    seen = block_sources(options, blocks_of(options, len(layers)))
    return replaced(options, x0, layers, Reader(options, parameters), seen)


def released_sources(blocks: list[list[int]]) -> Seen:
    """What the released Delta code stores: R minus the previous source, not the previous R."""

    def seen(t: int, x0: Tensor, y: list[Tensor]) -> list[Tagged]:
        sources = [(x0, 1)]
        for block in blocks:
            if block[-1] + 1 <= t - 1:
                stream = sum_of([x0, *y[: block[-1] + 1]])
                sources.append((stream - sources[-1][0], len(block)))
        return sources

    return seen


def delta_sources(options: Any, m: int) -> Seen:
    named = options.block_size or options.n_blocks or options.block_sizes
    has_blocks = bool(named or options.source == "block_sum")
    blocks = blocks_of(options, m, 2) if has_blocks else [[t] for t in range(m)]
    with_partial = options.include_partial
    if with_partial is None:
        with_partial = options.combine == "replace"
    is_late = options.combine == "add" and has_blocks and not with_partial
    if options.as_released:
        return released_sources(blocks)

    def stream_at(t: int, x0: Tensor, y: list[Tensor]) -> Tensor:
        return sum_of([x0, *y[:t]])

    def source(first: int, end: int, x0: Tensor, y: list[Tensor]) -> Tagged:
        state = stream_at(end, x0, y)
        if options.source == "cumulative":
            return state, end - first
        opens = first == 0 and not options.embedding_source
        before = torch.zeros_like(x0) if opens else stream_at(first, x0, y)
        return state - before, end - first + opens

    def seen(t: int, x0: Tensor, y: list[Tensor]) -> list[Tagged]:
        newer = []
        for block in blocks:
            first, end = block[0], block[-1] + 1
            if end <= t - is_late:
                newer.append(source(first, end, x0, y))
            elif with_partial and first < t < end:
                newer.append(source(first, t, x0, y))
        if t == 0 and not options.embedding_source:
            return [(x0, 1)]
        return shown(options, newer, x0)

    return seen


def delta(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    combine = added if options.combine == "add" else replaced
    seen = delta_sources(options, len(layers))
    return combine(options, x0, layers, Reader(options, parameters), seen)


def convolved(v: Tensor, taps: Tensor) -> Tensor:
    """Causal depthwise convolution: the last tap meets the token itself, earlier ones its past."""
    out = torch.zeros_like(v)
    width = taps.shape[1]
    for j in range(v.shape[1]):
        for lag in range(min(width, j + 1)):
            out[:, j] += taps[:, width - 1 - lag] * v[:, j - lag]
    return out


class StreamReader:
    """Read of multi_stream: a softmax per head over convolved sources, merged by gamma."""

    def __init__(self, options: Any, parameters: dict[str, Tensor]) -> None:
        self.options, self.parameters, self.row = options, parameters, 0

    def __call__(self, sources: list[Tagged]) -> Tensor:
        heads = [self.head(sources, h) for h in range(len(self.options.widths))]
        newest = sources[-1][0]
        out = torch.zeros_like(newest)
        for b in range(out.shape[0]):
            for j in range(out.shape[1]):
                gamma = self.gamma(newest[b, j])
                out[b, j] = sum_of([g * z[b, j] for g, z in zip(gamma, heads, strict=True)])
        self.row += 1
        return out

    def head(self, sources: list[Tagged], h: int) -> Tensor:
        taps = self.parameters[f"taps.{h}"]
        taps = taps if self.options.share_taps else taps[self.row]
        plain, counts = [v for v, _ in sources], [count for _, count in sources]
        seen = [convolved(v, taps) for v in plain]
        keys = plain if self.options.convolve == "values" else seen
        values = plain if self.options.convolve == "keys" else seen
        query = self.parameters["queries"][self.row, h] / self.options.temperature
        if self.options.logit_scale == "inverse_sqrt_rank":
            query = query / math.sqrt(len(query))
        if "gains" in self.parameters:
            query = query * self.parameters["gains"][self.row, h]
        recency = self.parameters.get("recency")
        out = torch.zeros_like(plain[0])
        for b in range(out.shape[0]):
            for j in range(out.shape[1]):
                raw = [key[b, j] for key in keys]
                normed = raw if self.options.key_norm == "none" else [rms(key) for key in raw]
                scores = [dot(query, key) for key in normed]
                weights = weigh(self.options, scores, counts, recency, self.row)
                out[b, j] = sum_of([w * v[b, j] for w, v in zip(weights, values, strict=True)])
        return out

    def gamma(self, newest: Tensor) -> list[float]:
        if len(self.options.widths) == 1:
            return [1.0]
        logits = self.parameters["head_logits"][self.row]
        if self.options.mixing == "adaptive":
            logits = logits + self.parameters["head_map"][self.row] @ rms(newest)
        return softmax([float(value) for value in logits])


def multi_stream(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    seen = block_sources(options, blocks_of(options, len(layers)))
    return replaced(options, x0, layers, StreamReader(options, parameters), seen)


FORWARD: dict[str, Callable[[Any, dict[str, Tensor], Tensor, Any], Result]] = {
    "standard": standard,
    "full": full,
    "block": block,
    "low_rank": block,
    "delta": delta,
    "multi_stream": multi_stream,
}
