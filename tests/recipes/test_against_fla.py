"""Our reads against fla-core's naive attention residuals, written by authors of the papers.

The package needs triton to be imported, the naive function does not: it is loaded from its file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.base import Options, Residual, Shape, get, parse_options
from recipes.depth_attention import EPS
from tests.recipes.contract import walk
from tests.recipes.toy import make, randomise

SHAPE = Shape(n_layers=4, d_model=24)
TOLERANCE = 1e-5

pytest.importorskip("einops")


@cache
def naive_attnres() -> Callable[..., Any]:
    """The reference of fla-core, from fla/ops/attnres/naive.py of the installed distribution."""
    package = importlib.util.find_spec("fla")
    if package is None:
        pytest.skip("needs fla-core")
    for folder in package.submodule_search_locations or []:
        path = Path(folder) / "ops" / "attnres" / "naive.py"
        if path.exists():
            break
    else:
        pytest.skip("needs an fla-core with attention residuals")
    spec = importlib.util.spec_from_file_location("fla_naive_attnres", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.naive_attnres
    return function


def blocks(embedding: Tensor, outputs: list[Tensor], size: int) -> list[Tensor]:
    """The embedding and sums over blocks of ``size`` outputs, the one under way included."""
    starts = range(0, len(outputs), size)
    return [embedding, *(torch.stack(outputs[s : s + size]).sum(0) for s in starts)]


def our_reads(residual: Residual, embedding: Tensor, outputs: list[Tensor]) -> list[Tensor]:
    """All reads of more than one source, the final one last."""
    reads = []
    for t, state in walk(residual, embedding, outputs):
        if 0 < t < len(outputs):
            reads.append(residual.read(state, t)[0])
        elif t == len(outputs):
            reads.append(residual.finish(state))
    return reads


def fla_reads(
    residual: Residual, embedding: Tensor, outputs: list[Tensor], size: int, scale: float
) -> list[Tensor]:
    queries, gains = residual.get_parameter("queries"), dict(residual.named_parameters())
    ones = torch.ones_like(queries)
    return [
        naive_attnres()(
            query=queries[t - 1],
            residuals=blocks(embedding, outputs[:t], size),
            rms_weight=gains.get("gains", ones)[t - 1],
            rms_eps=EPS,
            scale=scale,
        )
        for t in range(1, len(outputs) + 1)
    ]


def drawn() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(4)
    # Outputs of unlike sizes: the key norm has something to do.
    sizes = torch.linspace(0.1, 4.0, SHAPE.n_sublayers + 1).tolist()
    all_of_them = [
        (size * torch.randn(2, 7, SHAPE.d_model, generator=generator)).requires_grad_()
        for size in sizes
    ]
    return all_of_them[0], all_of_them[1:]


CASES: list[tuple[str, dict[str, Any], int]] = [
    ("full", {}, 1),
    ("full", {"key_norm": "rms"}, 1),
    ("full", {"temperature": 2.0}, 1),
    ("block", {"block_size": 1}, 1),
    ("block", {"block_size": 3}, 3),
    ("block", {"block_size": 4, "key_norm": "rms"}, 4),
    ("block", {"n_blocks": 1}, SHAPE.n_sublayers),
]


@pytest.mark.parametrize(("name", "options", "size"), CASES, ids=str)
def test_every_read_is_that_of_fla_in_values_and_gradients(
    name: str, options: dict[str, Any], size: int
) -> None:
    parsed: Options = parse_options(name, options, SHAPE)
    residual = make(get(name), parsed, SHAPE)
    randomise(residual, std=0.5)
    embedding, outputs = drawn()
    ours = our_reads(residual, embedding, outputs)
    theirs = fla_reads(residual, embedding, outputs, size, 1 / options.get("temperature", 1.0))
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    leaves = [embedding, *outputs, *residual.parameters()]
    cotangents = [torch.randn(u.shape, generator=torch.Generator().manual_seed(5)) for u in ours]
    found = torch.autograd.grad(ours, leaves, cotangents)
    expected = torch.autograd.grad(theirs, leaves, cotangents)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
