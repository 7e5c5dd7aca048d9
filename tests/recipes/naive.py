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
Sources = Callable[[int, Tensor, list[Tensor]], list[Tensor]]


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


def depth_read(sources: list[Tensor], query: Tensor, gain: Tensor | None) -> Tensor:
    """sum_i softmax_i(q . (rms(v_i[d-r:]) * g)) v_i, one token at a time."""
    out = torch.zeros_like(sources[0])
    batch, length, d = out.shape
    r = len(query)
    for b in range(batch):
        for j in range(length):
            vectors = [source[b, j] for source in sources]
            keys = [rms(v[d - r :]) for v in vectors]
            if gain is not None:
                keys = [key * gain for key in keys]
            weights = softmax([float((query * key).sum()) for key in keys])
            out[b, j] = sum_of([w * v for w, v in zip(weights, vectors, strict=True)])
    return out


def blocks_of(options: Any, m: int, unit: int = 1) -> list[list[int]]:
    """Sublayers of every block, by the definitions of S, N and tail."""
    size, count = options.block_size, options.n_blocks
    if size is None and count is None:
        size = 4
    if options.tail == "balanced":
        n = count if count is not None else math.ceil(m / size)
        ends = [unit * math.ceil((m // unit) * j / n) for j in range(n + 1)]
        return [list(range(ends[j], ends[j + 1])) for j in range(n)]
    if size is None:
        size = unit * math.ceil((m // unit) / count)
    return [list(range(start, min(start + size, m))) for start in range(0, m, size)]


def replaced(x0: Tensor, layers: list[Sublayer], read: Any, sources: Sources) -> Result:
    """u_t = read_t(sources); the final norm sees one more read."""
    outputs: list[Tensor] = []
    inputs = []
    for t in range(len(layers) + 1):
        seen = sources(t, x0, outputs)
        inputs.append(seen[0] if len(seen) == 1 else read(seen))
        if t < len(layers):
            outputs.append(layers[t](inputs[-1]))
    return inputs[:-1], inputs[-1]


def added(x0: Tensor, layers: list[Sublayer], read: Any, sources: Sources) -> Result:
    """u_0 = x0, u_t = R_t + read_t(sources); the final norm sees R."""
    outputs: list[Tensor] = []
    inputs = []
    for t in range(len(layers)):
        seen = sources(t, x0, outputs)
        stream = sum_of([x0, *outputs])
        mixed = seen[0] if len(seen) == 1 else (read(seen) if t else None)
        inputs.append(x0 if t == 0 else stream + mixed)
        outputs.append(layers[t](inputs[-1]))
    return inputs, sum_of([x0, *outputs])


class Reader:
    """Hands the rows of queries and gains out in order."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self.parameters = parameters
        self.row = 0

    def __call__(self, sources: list[Tensor]) -> Tensor:
        gains = self.parameters.get("gains")
        gain = None if gains is None else gains[self.row]
        mixed = depth_read(sources, self.parameters["queries"][self.row], gain)
        self.row += 1
        return mixed


def every_output(t: int, x0: Tensor, y: list[Tensor]) -> list[Tensor]:
    return [x0, *y[:t]]


def block_sources(blocks: list[list[int]]) -> Sources:
    def sources(t: int, x0: Tensor, y: list[Tensor]) -> list[Tensor]:
        seen = [x0]
        for block in blocks:
            done = [y[s] for s in block if s < t]
            if done:
                seen.append(sum_of(done))
        return seen

    return sources


def standard(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    stream, inputs = x0, []
    for layer in layers:
        inputs.append(stream)
        stream = stream + layer(stream)
    return inputs, stream


def full(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    return replaced(x0, layers, Reader(parameters), every_output)


def block(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    sources = block_sources(blocks_of(options, len(layers)))
    return replaced(x0, layers, Reader(parameters), sources)


def delta_sources(options: Any, m: int) -> Sources:
    has_blocks = bool(options.block_size or options.n_blocks or options.source == "block_sum")
    blocks = blocks_of(options, m, 2) if has_blocks else [[t] for t in range(m)]
    is_late = options.combine == "add" and has_blocks

    def stream_at(t: int, x0: Tensor, y: list[Tensor]) -> Tensor:
        return sum_of([x0, *y[:t]])

    def sources(t: int, x0: Tensor, y: list[Tensor]) -> list[Tensor]:
        seen = [x0]
        for block in blocks:
            first, end = block[0], block[-1] + 1
            if end <= t - is_late:
                state = stream_at(end, x0, y)
                before = stream_at(first, x0, y)
                seen.append(state if options.source == "cumulative" else state - before)
            elif options.combine == "replace" and first < t < end:
                state = stream_at(t, x0, y)
                before = stream_at(first, x0, y)
                seen.append(state if options.source == "cumulative" else state - before)
        return seen

    return sources


def delta(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    combine = added if options.combine == "add" else replaced
    return combine(x0, layers, Reader(parameters), delta_sources(options, len(layers)))


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

    def __call__(self, sources: list[Tensor]) -> Tensor:
        heads = [self.head(sources, h) for h in range(len(self.options.widths))]
        out = torch.zeros_like(sources[0])
        for b in range(out.shape[0]):
            for j in range(out.shape[1]):
                gamma = self.gamma(sources[-1][b, j])
                out[b, j] = sum_of([g * z[b, j] for g, z in zip(gamma, heads, strict=True)])
        self.row += 1
        return out

    def head(self, sources: list[Tensor], h: int) -> Tensor:
        taps = self.parameters[f"taps.{h}"]
        taps = taps if self.options.share_taps else taps[self.row]
        seen = [convolved(v, taps) for v in sources]
        keys = sources if self.options.convolve == "values" else seen
        values = sources if self.options.convolve == "keys" else seen
        query = self.parameters["queries"][self.row, h]
        if "gains" in self.parameters:
            query = query * self.parameters["gains"][self.row, h]
        out = torch.zeros_like(values[0])
        for b in range(out.shape[0]):
            for j in range(out.shape[1]):
                weights = softmax([float((query * rms(key[b, j])).sum()) for key in keys])
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
    sources = block_sources(blocks_of(options, len(layers)))
    return replaced(x0, layers, StreamReader(options, parameters), sources)


FORWARD: dict[str, Callable[[Any, dict[str, Tensor], Tensor, Any], Result]] = {
    "standard": standard,
    "full": full,
    "block": block,
    "low_rank": block,
    "delta": delta,
    "multi_stream": multi_stream,
}
