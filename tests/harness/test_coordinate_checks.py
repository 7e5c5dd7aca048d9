"""Coordinate checks: how far a few steps move a model, over width and depth, averaged over seeds.

Beside every parametrisation that must move all parts alike stands one that must not, so that the
checks can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.model import Transformer
from tests.harness.parametrised_models import (
    COMPLETEP,
    MUP,
    model_of,
    settings,
    tokens,
    trained,
)

FLAT = 0.2
"""Largest relative change that counts as flat."""


def root_mean_square(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def look(model: Transformer, inputs: Tensor) -> dict[str, Tensor]:
    """First and last sublayer output, stream, logits, and the logits of the last depth read."""
    outputs: list[Tensor] = []
    states: list[Any] = []

    def observe(t: int, before: Any, u: Tensor, y: Tensor, after: Any) -> None:
        outputs.append(y)
        states.append(after)

    with torch.no_grad():
        seen = {"logits": model(inputs, observe), "embedding": model.embedding(inputs)}
        weights = model.residual.depth_weights(states[-1], len(outputs))
    if weights is not None:
        logits = weights.log()
        seen["depth logits"] = logits - logits.mean(0)
    stream = model.residual.stream(states[-1])
    # A sublayer's own output is that of the base depth's scale: y before the factor 1 / m_L.
    first, last = (y / model.branch_multiplier for y in (outputs[0], outputs[-1]))
    return {**seen, "first output": first, "last output": last, "stream": stream}


def movement(
    residual: str = "standard",
    optimizer: str = "adamw",
    steps: int = 3,
    seeds: int = 3,
    **shape: Any,
) -> dict[str, float]:
    """RMS of the change of what :func:`look` sees after ``steps`` small steps on one batch."""
    total: dict[str, float] = {}
    for seed in range(seeds):
        model, batch = model_of(residual, seed, **shape), tokens(7 + seed)
        # A head of zeros, as Yang et al. advise (appendix D.2): initial logits shrink with width.
        torch.nn.init.zeros_(model.head.weight)
        before = look(model, batch[:, :-1])
        trained(model, settings(optimizer, lr=2**-10, weight_decay=0.0), batch, steps)
        for name, value in look(model, batch[:, :-1]).items():
            total[name] = total.get(name, 0.0) + root_mean_square(value - before[name]) / seeds
    return total


def growth(shapes: list[dict[str, Any]], **given: Any) -> dict[str, list[float]]:
    """Movement at every shape over that at the first."""
    moved = [movement(**given, **shape) for shape in shapes]
    return {name: [row[name] / first for row in moved] for name, first in moved[0].items()}


def assert_flat(ratios: dict[str, list[float]]) -> None:
    for name, values in ratios.items():
        assert all(abs(value - 1) < FLAT for value in values), (name, values)


WIDTHS = [{"d_model": width} for width in (64, 256, 1024)]


def test_mup_moves_every_part_alike_from_width_64_to_1024_under_adamw() -> None:
    assert_flat(growth(WIDTHS, **MUP))


def test_mup_moves_every_part_alike_from_width_64_to_1024_under_muon() -> None:
    # Newton-Schulz costs d^3: one layer, square MLPs and one seed keep 1024 affordable.
    shapes = [{"d_ff": width["d_model"], **width} for width in WIDTHS]
    ratios = growth(shapes, optimizer="muon", steps=2, seeds=1, n_layers=1, **MUP)
    assert_flat(ratios)


@pytest.mark.parametrize(("optimizer", "least"), [("adamw", 2.5), ("muon", 1.6)])
def test_standard_does_not_move_alike_over_width(optimizer: str, least: float) -> None:
    ratios = growth(WIDTHS[:2], optimizer=optimizer)
    for name in ("first output", "last output", "stream", "logits"):
        assert ratios[name][1] > least, (name, ratios[name])


# What layers do apart from each other averages out as L^-1/2: few layers are not yet flat.
DEPTHS = [{"n_layers": n_layers} for n_layers in (8, 32)]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_completep_moves_every_part_alike_from_8_to_32_layers(optimizer: str) -> None:
    assert_flat(growth(DEPTHS, optimizer=optimizer, **COMPLETEP))


def test_mup_does_not_move_alike_over_depth() -> None:
    assert growth(DEPTHS, **MUP)["stream"][1] > 1.5


def test_depth_queries_move_their_logits_alike_from_width_64_to_1024() -> None:
    assert_flat(growth(WIDTHS, residual="full", n_layers=1, **MUP))


@pytest.mark.parametrize("residual", ["full", "block", "low_rank", "multi_stream"])
def test_depth_queries_at_one_rate_do_not_move_alike_over_width(residual: str) -> None:
    assert growth(WIDTHS[:2], residual=residual)["depth logits"][1] > 2
