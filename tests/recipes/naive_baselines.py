"""The baselines' equations as plain loops over tokens, streams and layers, in float64.

As ``naive``, from which only the result type and the norm come: written from the papers' equations
alone, one token at a time, and sharing no code with ``recipes``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.recipes.naive import EPS, Result, Sublayer, rms

Matrix = list[list[float]]
Weights = tuple[list[float], Matrix, list[float]]
"""Of one token: what a sublayer reads, what stream i becomes of all j, what its output enters."""
Read = Callable[[int, list[Tensor]], Weights]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def doubly_stochastic(logits: Matrix, iterations: int) -> Matrix:
    """exp, then columns to sum one, then rows, again and again."""
    n = len(logits)
    m = [[math.exp(x) for x in row] for row in logits]
    for _ in range(iterations):
        for j in range(n):
            total = sum(m[i][j] for i in range(n))
            for i in range(n):
                m[i][j] /= total
        m = [[x / sum(row) for x in row] for row in m]
    return m


def combined(weights: list[float], vectors: list[Tensor]) -> Tensor:
    total = torch.zeros_like(vectors[0])
    for w, v in zip(weights, vectors, strict=True):
        total = total + w * v
    return total


def through_streams(n: int, x0: Tensor, layers: list[Sublayer], read: Read) -> Result:
    """Per token: u = pre . H, H <- res H + post y, and the sum of the streams at the end."""
    streams = [x0.clone() for _ in range(n)]
    tokens = [(b, j) for b in range(x0.shape[0]) for j in range(x0.shape[1])]
    inputs = []
    for t, layer in enumerate(layers):
        u, at_token = torch.zeros_like(x0), {}
        for at in tokens:
            here = [h[at] for h in streams]
            at_token[at] = read(t, here)
            u[at] = combined(at_token[at][0], here)
        inputs.append(u)
        y = layer(u)
        after = [torch.zeros_like(x0) for _ in range(n)]
        for at in tokens:
            here = [h[at] for h in streams]
            _, res, post = at_token[at]
            for i in range(n):
                after[i][at] = combined(res[i], here) + post[i] * y[at]
        streams = after
    return inputs, combined([1.0] * n, streams)


def hyper_connections(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Any:
    n = options.n_streams

    def read(t: int, streams: list[Tensor]) -> Weights:
        rows = [[float(x) for x in row] for row in parameters["static"][t]]
        if options.dynamic:
            alpha, beta = (float(s) for s in parameters["scales"][t])
            for i, h in enumerate(streams):
                logits = parameters["projections"][t] @ (parameters["gains"][t] * rms(h))
                for k in range(n + 2):
                    scale = beta if k == n + 1 else alpha
                    rows[i][k] += scale * math.tanh(float(logits[k]))
        a_m = [rows[i][0] for i in range(n)]
        a_r = [[rows[i][1 + k] for k in range(n)] for i in range(n)]
        transposed = [[a_r[j][i] for j in range(n)] for i in range(n)]
        return a_m, transposed, [rows[i][n + 1] for i in range(n)]

    return through_streams(n, x0, layers, read)


def mhc(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    n = options.n_streams

    def read(t: int, streams: list[Tensor]) -> Weights:
        v = rms(torch.cat(streams))
        phi, b = parameters["projections"][t], parameters["biases"][t]
        gates = [float(g) for g in parameters["gates"][t]]
        parts = [0] * n + [1] * n + [2] * (len(b) - 2 * n)
        h = [gates[part] * float(phi[c] @ v) + float(b[c]) for c, part in enumerate(parts)]
        pre = [sigmoid(x) for x in h[:n]]
        post = [2 * sigmoid(x) for x in h[n : 2 * n]]
        if options.mixing == "sinkhorn":
            rows = [h[n * (2 + i) : n * (3 + i)] for i in range(n)]
            return pre, doubly_stochastic(rows, options.sinkhorn_iterations), post
        powers = [math.exp(x) for x in h[2 * n :]]
        res = [[0.0] * n for _ in range(n)]
        for power, order in zip(powers, itertools.permutations(range(n)), strict=True):
            for i, j in enumerate(order):
                res[i][j] += power / sum(powers)
        return pre, res, post

    return through_streams(n, x0, layers, read)


def dense_former(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    states, stream, inputs, sums = [x0], x0, [], 0
    for i in range(1, len(layers) // 2 + 1):
        for layer in layers[2 * i - 2 : 2 * i]:
            inputs.append(stream)
            stream = stream + layer(stream)
        states.append(stream)
        if i % options.period == 0:
            sources = [j for j in range(i + 1) if (i - j) % options.dilation == 0]
            weights = [float(w) for w in parameters[f"weights.{sums}"]]
            stream = combined(weights, [states[j] for j in sources])
            sums += 1
    return inputs, stream


def post_norm(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    stream, inputs = x0, []
    for t, layer in enumerate(layers):
        inputs.append(stream)
        total = stream + layer(stream)
        mean_square = (total * total).sum(-1, keepdim=True) / total.shape[-1]
        stream = total / (mean_square + EPS).sqrt() * parameters["gains"][t]
    return inputs, stream


def rezero(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    stream, inputs = x0, []
    for t, layer in enumerate(layers):
        inputs.append(stream)
        alpha = parameters["scales"][t if options.per_sublayer else t // 2]
        stream = stream + float(alpha) * layer(stream)
    return inputs, stream


def layer_scale(options: Any, parameters: dict[str, Tensor], x0: Tensor, layers: Any) -> Result:
    stream, inputs = x0, []
    for t, layer in enumerate(layers):
        inputs.append(stream)
        stream = stream + layer(stream) @ torch.diag(parameters["gains"][t])
    return inputs, stream


FORWARD: dict[str, Callable[[Any, dict[str, Tensor], Tensor, Any], Result]] = {
    "hyper_connections": hyper_connections,
    "mhc": mhc,
    "dense_former": dense_former,
    "post_norm": post_norm,
    "rezero": rezero,
    "layer_scale": layer_scale,
}
