"""Hyper-connections: n parallel streams, mixed by learned matrices around every sublayer.

Paper: Zhu et al. 2024, Hyper-Connections, arXiv 2409.19606, equations 1 to 5 (static), 10 to 13
(dynamic), 14 (initialisation); algorithms 2 and 3. Streams ``H`` in R^(n x d), all n of them copies
of the embedding at first; of sublayer t::

    u_t = A_m^T H                       A_m in R^n, which streams it reads
    H  <- A_r^T H + B^T (x) y_t         A_r in R^(n x n), B in R^n, which streams it writes
    final norm: sum of the streams

``static``: A_m, A_r, B are parameters. ``dynamic``: each is its parameter plus ``s tanh(norm(H)
W)``, where stream i gives entry i of A_m and B and row i of A_r; one scale s for A_m and A_r, one
for B. Start: A_r = I, B = 1, A_m one-hot at stream ``t mod n``, W = 0, s = 0.01. Streams are then
equal, so this is the standard residual. Parameters per sublayer: d (n + 3) for W and the gain of
the norm, n^2 + 2 n + 2 for matrices and scales.

Deviations: the norm is an RMSNorm with a learned gain where the paper's code has a LayerNorm. The
paper also rescales the initial output projections by sqrt(n); here the backbone starts the same
for every recipe.

:class:`StreamResidual` is what ``mhc`` shares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recipes import depth_io
from recipes.base import AnyOptions, Options, Residual, ResidualCost, Shape, recipe
from recipes.depth_attention import EPS, full_precision, widen
from recipes.transfer import PARALLEL_STREAMS

DYNAMIC_SCALE = 0.01
"""Initial scale of what depends on the token (Zhu et al., section 4; Xie et al., table 5)."""


class Streams(NamedTuple):
    """The state between sublayers, and between a read and its write."""

    streams: Tensor
    """H, [B, T, n, D]; after a read, what A_r^T made of it."""
    write_weights: Tensor | None = None
    """B of the read that is waiting for its output, [B, T, n] or [n]; None between sublayers."""


def inverse_rms(x: Tensor) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + EPS) over the last axis, kept; makes no squared copy."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (norm.square() / x.shape[-1] + EPS).rsqrt()


def mix_streams(weights: Tensor, streams: Tensor) -> Tensor:
    """Return K combinations of n streams, [B, T, K, D]; weights [K, n] or [B, T, K, n]."""
    batch, tokens = streams.shape[:2]
    return weights.expand(batch, tokens, *weights.shape[-2:]) @ streams


def add_output(streams: Tensor, write_weights: Tensor, output: Tensor) -> Tensor:
    """Add an output to every stream by weight, elementwise; [B, T, n, D]."""
    return torch.addcmul(streams, write_weights[..., None], output[..., None, :])


def add_output_countable(streams: Tensor, write_weights: Tensor, output: Tensor) -> Tensor:
    """Add an output to every stream by weight, as a matmul of inner size one."""
    columns = write_weights.expand(streams.shape[:-1])[..., None].flatten(0, 1)
    rows = output.flatten(0, 1)[:, None, :]
    return torch.baddbmm(streams.flatten(0, 1), columns, rows).view(streams.shape)


class StreamOptions(Options):
    """Options of recipes with parallel streams."""

    n_streams: int = Field(default=4, ge=1, le=64)
    """Parallel residual streams (n, the expansion rate)."""


class StreamResidual(Residual):
    """Parallel streams: sublayers read and write weighted sums of them, which also mix."""

    options: StreamOptions

    def __init__(self, shape: Shape, options: StreamOptions) -> None:
        super().__init__(shape, options)
        self.add_output: Callable[[Tensor, Tensor, Tensor], Tensor] = add_output

    def use_countable_ops(self) -> None:
        """Write by a matmul."""
        self.add_output = add_output_countable

    def weights(self, streams: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Return what sublayer ``t`` does with the streams.

        Parameters
        ----------
        streams
            [B, T, n, D], in fp32 at least.

        Returns
        -------
        tuple of Tensor
            [..., 1 + n, n]: what it reads, then what each stream becomes, of all streams; [..., n]:
            the weight with which its output enters each stream.
        """
        raise NotImplementedError

    def start(self, embedding: Tensor) -> Streams:
        """Copy the embedding into every stream."""
        return Streams(embedding[..., None, :].repeat(1, 1, self.options.n_streams, 1))

    def read(self, state: Streams, t: int) -> tuple[Tensor, Streams]:
        """Return the weighted sum that sublayer ``t`` sees; streams mix in the same matmul."""
        streams = state.streams
        with full_precision(streams):
            wide = widen(streams)
            mixing, write_weights = self.weights(wide, t)
            mixed = mix_streams(mixing, wide).to(streams.dtype)
        seen, streams = torch.split(mixed, [1, self.options.n_streams], dim=-2)
        return seen[..., 0, :], Streams(streams, write_weights)

    def write(self, state: Streams, output: Tensor, t: int) -> Streams:
        """Add an output to the mixed streams by the weights that its read set."""
        streams, write_weights = state
        if write_weights is None:
            raise ValueError(
                "write follows the read of the same sublayer, on the state it returned"
            )
        with full_precision(streams):
            wide = self.add_output(widen(streams), write_weights, widen(output))
        return Streams(wide.to(streams.dtype))

    def finish(self, state: Streams) -> Tensor:
        """Return the sum of the streams."""
        return state.streams.sum(-2)

    def stream(self, state: Streams) -> Tensor:
        """Return the mean of the streams, which is R while they are equal."""
        return state.streams.mean(-2)

    def stream_mixing(self, state: Streams, t: int) -> Tensor | None:
        """Return what each stream becomes of all streams at read ``t``; none before the head."""
        if t == self.shape.n_sublayers:
            return None
        batch, tokens, n, _ = state.streams.shape
        with full_precision(state.streams):
            mixing, _ = self.weights(widen(state.streams), t)
        return mixing[..., 1:, :].expand(batch, tokens, n, n)

    @staticmethod
    def mixing_flops(d_model: int, n_streams: int) -> int:
        """FLOPs per token and sublayer of reading, mixing (n + 1 rows) and writing."""
        return 2 * d_model * n_streams * (n_streams + 2)


class HyperConnectionOptions(StreamOptions):
    """Options of hyper-connections."""

    dynamic: bool = True
    """Matrices depend on the token; false: they are parameters alone."""


@recipe("hyper_connections", revision=1)
class HyperConnections(StreamResidual):
    """Parallel streams with unconstrained learned mixing, static or by token."""

    Options = HyperConnectionOptions
    options: HyperConnectionOptions
    equation = "u_t = A_m^T H; H <- A_r^T H + B^T (x) y_t; final norm sees the sum of n streams"
    source = "Zhu et al. 2024, arXiv 2409.19606, eq. 1-5, 10-14, algorithm 2"
    transfer_note = PARALLEL_STREAMS

    @classmethod
    def readout_fan_in(cls, name: str, shape: Shape, options: Any) -> float:
        """Entries of a stream that a dynamic weight reads."""
        return float(shape.d_model) if name == "projections" else 1.0

    def __init__(self, shape: Shape, options: HyperConnectionOptions) -> None:
        super().__init__(shape, options)
        m, n, d = shape.n_sublayers, options.n_streams, shape.d_model
        self.static = nn.Parameter(torch.empty(m, n, n + 2))
        """Per sublayer and stream: its weight in the read, in every stream, and of the output."""
        if options.dynamic:
            self.projections = nn.Parameter(torch.empty(m, n + 2, d))
            """W, transposed: a row per column of ``static``."""
            self.gains = nn.Parameter(torch.empty(m, d))
            self.scales = nn.Parameter(torch.empty(m, 2))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set the matrices of equation 14; draws nothing."""
        m, n = self.shape.n_sublayers, self.options.n_streams
        self.static.zero_()
        for t in range(m):
            self.static[t, t % n, 0] = 1.0
        self.static[..., 1:-1] = torch.eye(n)
        self.static[..., -1] = 1.0
        if self.options.dynamic:
            self.projections.zero_()
            self.gains.fill_(1.0)
            self.scales.fill_(DYNAMIC_SCALE)

    def weights(self, streams: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Return [A_m, A_r]^T and B of sublayer ``t``."""
        matrix = self.static[t].to(streams.dtype)
        if self.options.dynamic:
            # The gain goes into W and the RMS is divided out last: no normalised copy of H.
            projection = (self.gains[t] * self.projections[t]).to(streams.dtype)
            learned = torch.tanh(F.linear(streams, projection) * inverse_rms(streams))
            matrix = matrix + learned * self._scale(t, streams.dtype)
        return matrix[..., :-1].mT, matrix[..., -1]

    def _scale(self, t: int, dtype: torch.dtype) -> Tensor:
        """Return the scale of every column, [n + 2]."""
        alpha, beta = self.scales[t].to(dtype).unbind()
        return torch.cat([alpha.expand(self.options.n_streams + 1), beta.expand(1)])

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """Per sublayer 2 n (n + 2) d FLOPs for mixing and writing, as many for ``dynamic``.

        Elements moved are those of Xie et al., arXiv 2512.24880, table 2: dynamic (8 n + 2) d +
        2 n^2 + 4 n, of which n d and all terms without d are for the weights of a token. Every
        operation of the table reads and writes memory: fused kernels move less.
        """
        m, n, d = shape.n_sublayers, options.n_streams, shape.d_model
        mixing = cls.mixing_flops(d, n)
        if not options.dynamic:
            return ResidualCost(m * n * (n + 2), m * mixing, m * (7 * n + 2) * d, n * d)
        return ResidualCost(
            params=m * (d * (n + 3) + n * (n + 2) + 2),
            flops_per_token=m * (mixing + 2 * d * n * (n + 2)),
            elements_moved_per_token=m * depth_io.streams(d, n),
            state_elements_per_token=n * d,
        )

    @classmethod
    def equals_standard_at_init(cls, options: AnyOptions) -> bool:
        """True: streams are equal copies of R, and the final norm removes the factor n."""
        return True

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, static, other numbers of streams, a single one."""
        return [
            HyperConnectionOptions(),
            HyperConnectionOptions(dynamic=False),
            HyperConnectionOptions(n_streams=3),
            HyperConnectionOptions(n_streams=1),
            HyperConnectionOptions(n_streams=1, dynamic=False),
        ]
