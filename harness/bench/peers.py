"""Other people's residual connections, as packages, in the loop that ours are timed in.

Each is used as its own documentation says, with :func:`stand_in` for its sublayers: attn-res by its
read operator in the loop of its own model (which sums all sources at the end instead of reading
them), hyper-connections by its width and depth connections, fla-core by its reference function.
What is not installed is reported, never required.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

import torch
from torch import Tensor, nn

from harness.bench.naive import EPS, NaiveFull
from harness.bench.steps import stand_in

STREAMS = 4
"""Residual streams of hyper-connections: the number its papers use."""


@dataclass(frozen=True)
class Peer:
    """Something to time ours against."""

    name: str
    counterpart: str
    """The recipe of ours nearest to it."""
    difference: str
    """How it differs from that, in a few words."""
    distribution: str | None
    """What to install; None for code of our own."""
    make: Callable[[int, int], nn.Module]
    """Number of sublayers and width to a module, [B, T, D] to [B, T, D]."""

    def missing(self) -> str | None:
        """Say why the peer cannot be timed here; None when it can."""
        if self.distribution is None:
            return None
        try:
            version(self.distribution)
        except PackageNotFoundError:
            return f"not installed: pip install {self.distribution}"
        try:
            self.make(1, 8)
        except (ImportError, AttributeError, TypeError) as error:  # absent, or another interface
            return f"cannot be used: {error}"
        return None

    def version(self) -> str:
        """Version of its distribution, or whose code it is."""
        if self.distribution is None:
            return "our code"
        reason = self.missing()
        return version(self.distribution) if reason is None else reason


class AttnResFull(nn.Module):
    """Package attn-res: ``AttnResOperator`` in the loop of its ``_forward_full_attnres``."""

    def __init__(self, n_sublayers: int, d_model: int) -> None:
        super().__init__()
        operator = importlib.import_module("attn_res").AttnResOperator
        self.reads = nn.ModuleList(operator(d_model, eps=EPS) for _ in range(n_sublayers))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the sum of all sources, as that package does, [B, T, D]."""
        outputs = [x_BTD]
        for read in self.reads:
            outputs.append(stand_in(read(torch.stack(outputs, dim=0))))
        return torch.stack(outputs, dim=0).sum(dim=0)


class FlaNaive(nn.Module):
    """Package fla-core: ``naive_attnres`` before every sublayer and at the end."""

    def __init__(self, n_sublayers: int, d_model: int) -> None:
        super().__init__()
        self.read = fla_naive_attnres()
        reads = range(n_sublayers + 1)
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(d_model)) for _ in reads)
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(d_model)) for _ in reads)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the final read, [B, T, D]."""
        sources, read_BTD = [x_BTD], x_BTD
        for t, (query_D, gain_D) in enumerate(zip(self.queries, self.gains, strict=True)):
            if t > 0:
                sources.append(stand_in(read_BTD))
            read_BTD = self.read(query_D, sources, gain_D, rms_eps=EPS)
        return read_BTD


def fla_naive_attnres() -> Callable[..., Tensor]:
    """Load ``naive_attnres`` from its file: importing the package needs triton.

    Raises
    ------
    ImportError
        The installed version has no such file, or that file needs something absent.
    """
    path = distribution("fla-core").locate_file("fla/ops/attnres/naive.py")
    spec = importlib.util.spec_from_file_location("fla_ops_attnres_naive", str(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise ImportError(f"fla-core {version('fla-core')} has no attnres") from error
    found: Callable[..., Tensor] = module.naive_attnres
    return found


class HyperConnected(nn.Module):
    """Package hyper-connections: dynamic connections around every sublayer, four streams."""

    def __init__(self, kind: str, n_sublayers: int, d_model: int) -> None:
        super().__init__()
        package: Any = importlib.import_module("hyper_connections")
        connection = getattr(package, kind)
        self.expand, self.reduce = package.get_expand_reduce_stream_functions(STREAMS)
        self.connections = nn.ModuleList(
            connection(STREAMS, dim=d_model, layer_index=t) for t in range(n_sublayers)
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the sum of the streams, [B, T, D]."""
        streams = self.expand(x_BTD)
        for connection in self.connections:
            u_BTD, add = connection(streams)
            streams = add(stand_in(u_BTD))
        reduced: Tensor = self.reduce(streams)
        return reduced


def _hyper(kind: str) -> Callable[[int, int], nn.Module]:
    return lambda n_sublayers, d_model: HyperConnected(kind, n_sublayers, d_model)


HC_DIFFERENCE = "same maths but for the norm's epsilon"
MHC_DIFFERENCE = "weights of a stream from that stream alone, not from all four"
PEERS = (
    Peer(
        *("naive full (the paper's pseudocode)", "full", "same maths; stores everything", None),
        NaiveFull,
    ),
    Peer(
        *("attn-res full", "full", "no key gain; plain sum, no read, at the end", "attn-res"),
        AttnResFull,
    ),
    Peer(
        *("fla-core naive full", "full", "same maths, always in fp32", "fla-core"),
        FlaNaive,
    ),
    Peer(
        *("hyper-connections HC", "hyper_connections", HC_DIFFERENCE, "hyper-connections"),
        _hyper("HyperConnections"),
    ),
    Peer(
        *("hyper-connections mHC", "mhc", MHC_DIFFERENCE, "hyper-connections"),
        _hyper("ManifoldConstrainedHyperConnections"),
    ),
)
"""In the order in which they are timed, after ours."""
