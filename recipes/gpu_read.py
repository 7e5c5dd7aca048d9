"""The depth read through fused GPU kernels of other libraries: fla-core and liger-kernel.

``read(q; v_1..v_S) = sum_i softmax_i(scale q . (g * rms(v_i))) v_i`` in one kernel that takes every
source once and keeps its arithmetic in fp32. Here are the calls, and :func:`why_not`, which says in
words what stands in the way of one. Neither library is needed to import this file.

Limits, from the libraries' sources (fla-core 0.6.0, liger-kernel 0.8.5): softmax over full-width
RMS keys with one query for all tokens and one head. fla takes sources as they lie in memory, liger
copies them into one tensor at every read. Neither is traced by torch.compile: fla breaks the graph.
Sums of fp32 atomics make liger's query gradients differ in the last bits from run to run. Knows no
recipe, no state and no parameters.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels read and write; they compute in fp32, so fp64 would be lowered in silence."""
INT32 = 2**31
"""Offsets into liger's stacked sources are 32-bit."""


@dataclass(frozen=True)
class Library:
    """Where a kernel comes from, and how many sources it takes."""

    distribution: str
    module: str
    function: str
    max_sources: int
    limit: str
    """Why not more."""

    @property
    def label(self) -> str:
        """Name and installed version."""
        return f"{self.distribution} {_version(self.distribution) or '(not installed)'}"


LIBRARIES = {
    # 16 bytes of pointers per source, padded to a power of two; CUDA 12 launches take 32 764.
    "fla": Library(
        "fla-core",
        "fla.ops.attnres",
        "fused_attnres",
        1024,
        "its backward kernel takes two pointers per source as launch arguments",
    ),
    "liger": Library(
        "liger-kernel",
        "liger_kernel.ops.attn_res",
        "LigerAttnResFunction",
        16,
        "it is written for up to 16, whose scores it holds in registers",
    ),
}
"""Libraries by kernel name."""


def fla_read(
    values: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float, scale: float
) -> Tensor:
    """Read depth sources through fla-core's fused kernel, [B, T, D].

    Parameters
    ----------
    values
        Sources, each [B, T, D] on CUDA. Narrower ones are first copied to the widest dtype among
        them, at every read: enter them in one dtype.
    query
        One query for all tokens, [D].
    gain
        Gain of the key norm, [D]; None for ones.
    eps
        Added to the mean square of a key.
    scale
        Factor of the logits.

    Returns
    -------
    The mix in the dtype of the first source.
    """
    weight_D = torch.ones_like(query) if gain is None else gain
    fused = _load("fla")
    mixed = fused(query, _in_one_dtype(values), weight_D, rms_eps=eps, scale=scale)
    return mixed.to(values[0].dtype)  # type: ignore[no-any-return]


def liger_read(
    values: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float, scale: float
) -> Tensor:
    """Read depth sources through liger-kernel's fused kernel, [B, T, D].

    Parameters as for :func:`fla_read`. The sources are stacked, and that copy is kept for the
    backward: over a model that reads all earlier outputs, memory grows with depth squared.
    """
    # The kernel rounds keys to the dtype of the gain, and has no scale of its own.
    weight_D = torch.ones_like(query) if gain is None else gain
    stacked_SBTD = torch.stack(_in_one_dtype(values))
    fused = _load("liger").apply
    mixed = fused(stacked_SBTD, query.float() * scale, weight_D.float(), eps)
    return mixed.to(values[0].dtype)  # type: ignore[no-any-return]


def why_not(
    kernel: str,
    values_dtype: torch.dtype | None = None,
    device_type: str | None = None,
    n_sources: int | None = None,
    d_model: int | None = None,
    n_tokens: int | None = None,
    *,
    key_rank: int | None = None,
    heads: int = 1,
    weighting: str = "softmax",
    query: str = "static",
    key_norm: str = "rms_gain",
    recency_init: float = 0.0,
    count_prior: bool = False,
    value_scale: str = "sum",
) -> str | None:
    """Say in words why a fused kernel cannot compute a read; None if it can.

    What is not given is not judged, so a recipe can ask before it has seen a tensor.

    Parameters
    ----------
    kernel
        ``fla`` or ``liger``.
    values_dtype
        Widest dtype among the sources.
    device_type
        Such as ``cuda``.
    n_sources
        Sources of the largest read.
    d_model
        Width of a source.
    n_tokens
        Tokens of a batch, all sequences together.
    key_rank, heads, weighting, query, key_norm, recency_init, count_prior, value_scale
        Options of the read, as the attention-residual recipes name them.

    Raises
    ------
    ValueError
        There is no such kernel.
    """
    if kernel not in LIBRARIES:
        raise ValueError(f"kernel must be one of {', '.join(LIBRARIES)}, got '{kernel}'")
    library = LIBRARIES[kernel]
    reasons = [
        *_missing(library),
        *_wrong_place(values_dtype, device_type),
        *_wrong_keys(key_rank, d_model, heads, key_norm),
        *_wrong_weights(weighting, query, recency_init, count_prior, value_scale),
        *_too_large(kernel, n_sources, d_model, n_tokens),
    ]
    reasons = reasons or list(_broken(kernel))
    return f"kernel '{kernel}' of {library.label} {'; it '.join(reasons)}" if reasons else None


def _missing(library: Library) -> Iterator[str]:
    if _version(library.distribution) is None:
        yield f"needs pip install {library.distribution}"
    if find_spec("triton") is None:
        yield "needs triton, which is not installed"


def _wrong_place(values_dtype: torch.dtype | None, device_type: str | None) -> Iterator[str]:
    if device_type not in (None, "cuda"):
        yield f"runs on CUDA only, not on {device_type}"
    if values_dtype is not None and values_dtype not in DTYPES:
        yield f"computes in float32, which would lower {str(values_dtype).removeprefix('torch.')}"


def _wrong_keys(
    key_rank: int | None, d_model: int | None, heads: int, key_norm: str
) -> Iterator[str]:
    if key_rank is not None and key_rank != d_model:
        yield f"scores keys of full width only, not key_rank {key_rank}"
    if heads != 1:
        yield f"has one head, not heads {heads}"
    if key_norm == "none":
        yield "always normalises keys, not key_norm none"


def _wrong_weights(
    weighting: str, query: str, recency_init: float, count_prior: bool, value_scale: str
) -> Iterator[str]:
    if query != "static":
        yield f"takes one query for all tokens, not query {query}"
    if weighting != "softmax":
        yield f"weighs by softmax only, not by {weighting}"
    if recency_init:
        yield f"adds nothing to the logits, so no recency_init {recency_init:g}"
    if count_prior:
        yield "adds nothing to the logits, so no count_prior"
    if value_scale != "sum":
        yield f"mixes sources as they are, not value_scale {value_scale}"


def _too_large(
    kernel: str, n_sources: int | None, d_model: int | None, n_tokens: int | None
) -> Iterator[str]:
    library = LIBRARIES[kernel]
    if n_sources is not None and n_sources > library.max_sources:
        yield (f"takes at most {library.max_sources} sources, not {n_sources}: {library.limit}")
    elements = (n_sources or 0) * (d_model or 0) * (n_tokens or 0)
    if kernel == "liger" and elements >= INT32:
        yield f"has 32-bit offsets, and {n_sources} sources hold {elements} elements"


def _broken(kernel: str) -> Iterator[str]:
    try:
        _load(kernel)
    except Exception as error:  # foreign code may raise anything
        yield f"cannot be imported: {error!r}"


@cache
def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def _load(kernel: str) -> Any:
    """Import a kernel on its first use."""
    library = LIBRARIES[kernel]
    return getattr(importlib.import_module(library.module), library.function)


def _in_one_dtype(values: Sequence[Tensor]) -> list[Tensor]:
    widest = reduce(torch.promote_types, (value.dtype for value in values))
    return [value.to(widest) for value in values]
