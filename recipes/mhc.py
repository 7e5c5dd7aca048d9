"""Manifold-constrained hyper-connections: streams mix by doubly stochastic matrices.

Papers: Xie et al. 2025, mHC, arXiv 2512.24880, equations 3 and 7 to 9; ``mixing: permutations`` is
mHC-lite, arXiv 2601.05732. Streams ``x`` in R^(n x d), copies of the embedding at first; with ``v =
rms(vec(x))``, all n d entries flattened, and scalar gates alpha::

    pre  =   sigmoid(alpha_pre  v phi_pre  + b_pre)                        in R^n
    post = 2 sigmoid(alpha_post v phi_post + b_post)                       in R^n
    res  = sinkhorn(alpha_res mat(v phi_res) + b_res)                      in R^(n x n)
    u_t  = pre x;    x <- res x + post^T (x) y_t;    final norm: sum of the streams

Sinkhorn: exp, then 20 times columns and rows to sum one. Rows sum to one exactly; columns converge
by a factor c^2 an iteration where res is near c I + (1 - c) / n, slowly for a res near the identity
(0.87 at first; with logits off by N(0, 1), columns are off by 0.5 % at the median, 3 % at most).
``permutations``: res is a softmax-weighted sum of all n! permutation matrices, exact in both.

Parameters per sublayer: n d (n^2 + 2 n), that is 96 d at n = 4, plus n^2 + 2 n biases and 3 gates;
the gain of the norm is absorbed in phi, as in section 4.3.1 of the paper.

Initialisation: gates 0.01 (paper, table 5), phi zero; the paper gives no biases. Equal streams
would be a trap: a matrix with rows of sum one cannot change them, so the logits of res get no
gradient. Default, ``paired`` (ours): streams come in pairs, read alike (b_pre +1 for the first pair
down to -1 for the last) but written oppositely (b_post +1 and -1; 0 for an odd one out). What
differs within a pair is seen by no read and cancels in the sum, so the model is the standard
residual exactly, while every off-diagonal logit of res has a gradient from the first step (n = 4;
at n = 2 from the second, when the reads have parted). ``staggered`` (mHC-lite's code, read in two
repositories built on it): b_pre and b_post +1 at stream t mod n, -1 elsewhere: not the standard
residual.

b_res gives every stream ``mixing_init`` of the others: 0.05 is logits 0 on and -4 off the diagonal.
Published code with off-diagonal logits of -8 over a temperature of 0.05 leaves res the identity for
ever, its gradient underflowing.

Without gradient by construction: phi_res and b_res of the first sublayer, which sees equal streams,
and of the last, whose res the sum of the streams does not see; with Sinkhorn it sees what is left
of its column sums. They stay, so that counts are the paper's.

Deviations: the paper does not say how streams end; they are summed, as in hyper-connections.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from recipes import depth_io
from recipes.base import AnyOptions, ResidualCost, Shape, recipe
from recipes.hyper_connections import (
    DYNAMIC_SCALE,
    StreamOptions,
    StreamResidual,
    inverse_rms,
)
from recipes.transfer import PARALLEL_STREAMS

MOST_PERMUTED = 5
"""Streams whose permutations are still few (120)."""


class MHCOptions(StreamOptions):
    """Options of manifold-constrained hyper-connections."""

    mixing: Literal["sinkhorn", "permutations"] = "sinkhorn"
    """How res is made doubly stochastic. permutations: mHC-lite, up to 5 streams."""
    sinkhorn_iterations: PositiveInt = 20
    """Normalisations of columns and rows (the paper's t_max)."""
    init: Literal["paired", "staggered"] = "paired"
    """Biases of pre and post. paired: standard at first. staggered: as in mHC-lite's code."""
    mixing_init: float = Field(default=0.05, gt=0)
    """Share of itself that every stream takes from the others at first; mHC-lite's code: 0.001."""
    gate_init: float = Field(default=DYNAMIC_SCALE, gt=0)
    """Initial gates alpha of what depends on the token."""

    def check(self, shape: Shape) -> None:
        """Refuse too many permutations and mixing beyond the uniform."""
        super().check(shape)
        n = self.n_streams
        if self.mixing == "permutations" and n > MOST_PERMUTED:
            raise ValueError(
                f"mixing 'permutations' weighs all n! permutations, so n_streams must not exceed "
                f"{MOST_PERMUTED}, got {n} ({math.factorial(n)} of them); use 'sinkhorn'"
            )
        if self.mixing == "permutations" and self.sinkhorn_iterations != 20:
            raise ValueError("sinkhorn_iterations has no meaning with mixing 'permutations'")
        if n > 1 and self.mixing_init >= 1 - 1 / n:
            raise ValueError(
                f"mixing_init must be below {1 - 1 / n:g}, where {n} streams mix evenly and a "
                f"stream no longer prefers itself; got {self.mixing_init:g}"
            )

    @property
    def n_mixing_logits(self) -> int:
        """Logits behind res: n^2, or n!."""
        n = self.n_streams
        return n * n if self.mixing == "sinkhorn" else math.factorial(n)

    @property
    def n_logits(self) -> int:
        """All logits of a sublayer: pre, post, res."""
        return 2 * self.n_streams + self.n_mixing_logits

    def off_logit(self) -> float:
        """Logit of everything but the identity at first, where the identity's is 0.

        ``res = c I + (1 - c) / n`` with ``1 - c = mixing_init n / (n - 1)``.
        """
        if self.n_streams == 1:
            return 0.0
        spread = self.mixing_init * self.n_streams / (self.n_streams - 1)
        one = spread / (self.n_streams if self.mixing == "sinkhorn" else self.n_mixing_logits)
        return math.log(one / (1 - spread + one))


class Sinkhorn(torch.autograd.Function):
    """Columns and rows of exp(logits) to sum one, in turn; [n, n, ...], rows first.

    Tokens come last, so that every step runs along memory. Keeps the sums and the result alone, and
    walks the iterations backwards from them.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int) -> Tensor:
        """Return the matrices after ``iterations`` rounds."""
        matrix = (logits - logits.amax(0, keepdim=True)).exp_()  # a factor per column, divided out
        sums, tiny = [], torch.finfo(matrix.dtype).tiny
        for half in range(2 * iterations):
            # A row that underflowed whole stays zero, where 0 / 0 would spread.
            sums.append(matrix.sum(half % 2, keepdim=True).clamp_(min=tiny))
            matrix.div_(sums[-1])
        ctx.save_for_backward(matrix, *sums)
        return matrix

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits: of ``y = x / s``, ``(g - sum(g y)) / s``."""
        matrix, *sums = ctx.saved_tensors
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        matrix = matrix.clone()
        for half in reversed(range(len(sums))):
            grad.sub_((grad * matrix).sum(half % 2, keepdim=True)).div_(sums[half])
            matrix.mul_(sums[half])
        return grad.mul_(matrix), None


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Make matrices doubly stochastic, [..., n, n]: columns, then rows, ``iterations`` times.

    Source: Xie et al., arXiv 2512.24880, equation 9.
    """
    tokens_last = logits.movedim((-2, -1), (0, 1)).contiguous()
    return Sinkhorn.apply(tokens_last, iterations).movedim((0, 1), (-2, -1))  # type: ignore[no-any-return, no-untyped-call]


def permutation_matrices(n: int) -> Tensor:
    """Return all permutation matrices flattened, [n!, n^2], the identity first."""
    return torch.stack([torch.eye(n)[list(order)].flatten() for order in permutations(range(n))])


@recipe("mhc", revision=1)
class MHC(StreamResidual):
    """Parallel streams, read and written by sigmoids and mixed by doubly stochastic matrices."""

    Options = MHCOptions
    options: MHCOptions
    equation = "u_t = pre x; x <- res x + post^T (x) y_t, res doubly stochastic; sum of n streams"
    source = "Xie et al. 2025, arXiv 2512.24880, eq. 3, 7-9; mHC-lite, arXiv 2601.05732"
    transfer_note = PARALLEL_STREAMS

    @classmethod
    def readout_fan_in(cls, name: str, shape: Shape, options: Any) -> float:
        """Entries of all streams that a logit reads."""
        return float(options.n_streams * shape.d_model) if name == "projections" else 1.0

    def __init__(self, shape: Shape, options: MHCOptions) -> None:
        super().__init__(shape, options)
        m, n, logits = shape.n_sublayers, options.n_streams, options.n_logits
        self.projections = nn.Parameter(torch.empty(m, logits, n * shape.d_model))
        """phi, transposed: a row per logit of pre, of post, then of res, row by row."""
        self.biases = nn.Parameter(torch.empty(m, logits))
        self.gates = nn.Parameter(torch.empty(m, 3))
        self.permutations: Tensor | None
        matrices = permutation_matrices(n) if options.mixing == "permutations" else None
        self.register_buffer("permutations", matrices, persistent=False)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set gates, zero projections and the biases of ``init``; draws nothing."""
        options, n = self.options, self.options.n_streams
        self.projections.zero_()
        self.gates.fill_(options.gate_init)
        for t, bias in enumerate(self.biases):
            pre, post, res = torch.split(bias, [n, n, options.n_mixing_logits])
            if options.init == "paired":
                pre.copy_(_read_by_pair(n))
                post.copy_(_written_by_pair(n))
            else:
                for part in (pre, post):
                    part.fill_(-1.0)
                    part[t % n] = 1.0
            res.fill_(options.off_logit())
            if options.mixing == "sinkhorn":
                res.view(n, n).fill_diagonal_(0.0)
            else:
                res[0] = 0.0

    def weights(self, streams: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Return [pre; res] and post of sublayer ``t``."""
        n = self.options.n_streams
        flat = streams.flatten(-2)
        projected = F.linear(flat, self.projections[t].to(flat.dtype)) * inverse_rms(flat)
        logits = torch.addcmul(self.biases[t].to(flat.dtype), self._gates(t, flat.dtype), projected)
        pre, post, res = torch.split(logits, [n, n, self.options.n_mixing_logits], dim=-1)
        mixing = torch.cat([pre.sigmoid()[..., None, :], self._doubly_stochastic(res)], dim=-2)
        return mixing, 2 * post.sigmoid()

    def _gates(self, t: int, dtype: torch.dtype) -> Tensor:
        """Return the gate of every logit."""
        n = self.options.n_streams
        pre, post, res = self.gates[t].to(dtype).unbind()
        return torch.cat([pre.expand(n), post.expand(n), res.expand(self.options.n_mixing_logits)])

    def _doubly_stochastic(self, logits: Tensor) -> Tensor:
        """Return res, [..., n, n], row i being what stream i becomes of all streams."""
        n = self.options.n_streams
        if self.permutations is None:
            square = logits.reshape(*logits.shape[:-1], n, n)
            return sinkhorn(square, self.options.sinkhorn_iterations)
        summed = logits.softmax(-1) @ self.permutations.to(logits.dtype)
        return summed.view(*logits.shape[:-1], n, n)

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """Per sublayer 2 n d (n^2 + 2 n) FLOPs for logits, 2 n (n + 2) d for mixing and writing.

        Permutations: n! in place of n^2, and 2 n! n^2 to add the matrices up. Elements moved per
        sublayer are (8 n + 2) d + 2 n^2 + 4 n, every operation through memory, as the papers count;
        the fused kernels of the paper (section 4.3.1) would move (4 n + 2) d.
        """
        m, n, d = shape.n_sublayers, options.n_streams, shape.d_model
        lite = options.mixing == "permutations"
        flops = 2 * n * d * options.n_logits + cls.mixing_flops(d, n)
        return ResidualCost(
            params=m * ((n * d + 1) * options.n_logits + 3),
            flops_per_token=m * (flops + 2 * options.n_mixing_logits * n * n * lite),
            elements_moved_per_token=m * depth_io.streams(d, n),
            state_elements_per_token=n * d,
        )

    @classmethod
    def equals_standard_at_init(cls, options: Any) -> bool:
        """Whether no read and not the sum can tell how streams differ: pairs, which res keeps."""
        return bool(options.init == "paired")

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, mHC-lite as released, few and odd numbers of streams, every switch."""
        return [
            MHCOptions(),
            MHCOptions(mixing="permutations"),
            MHCOptions(mixing="permutations", init="staggered", mixing_init=0.001, n_streams=3),
            MHCOptions(init="staggered", sinkhorn_iterations=3, gate_init=0.1),
            MHCOptions(n_streams=5, mixing_init=0.2),
            MHCOptions(n_streams=2),
            MHCOptions(n_streams=1),
        ]


def _read_by_pair(n: int) -> Tensor:
    """Return b_pre: one value per pair of streams, +1 down to -1."""
    n_pairs = -(-n // 2)
    values = torch.linspace(1.0, -1.0, n_pairs) if n_pairs > 1 else torch.zeros(1)
    return values.repeat_interleave(2)[:n]


def _written_by_pair(n: int) -> Tensor:
    """Return b_post: +1 and -1 within a pair, 0 for a stream without a partner."""
    signs = torch.tensor([1.0, -1.0]).repeat(-(-n // 2))[:n]
    if n % 2:
        signs[-1] = 0.0
    return signs
