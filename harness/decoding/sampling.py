"""How the next token is drawn from logits: greedily, or by temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.errors import IsolossError

COLDEST = 1e-4
"""Lowest temperature: below, logits divided by it overflow."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the default always takes the likeliest.

    Applied in this order, as in ``transformers``: temperature, top-k, top-p.

    Raises
    ------
    ValueError
        A value is out of range, or would have no effect.
    """

    temperature: float = 0.0
    """Divides the logits; 0 takes the likeliest token (greedy)."""
    top_k: int | None = None
    """Draw from this many of the likeliest tokens only (and their ties)."""
    top_p: float | None = None
    """Draw from the fewest likeliest tokens that hold this probability together (nucleus)."""
    seed: int = 0
    """Every row of a batch has random numbers of its own, of this seed and its number."""

    def __post_init__(self) -> None:
        if self.temperature and not COLDEST <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be 0 (greedy), or {COLDEST} or more, got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be 1 or more, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie above 0 and at most at 1, got {self.top_p}")
        if self.greedy and (self.top_k is not None or self.top_p is not None):
            raise ValueError("top_k and top_p have no effect at temperature 0; set a temperature")

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0


def probabilities(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the probability with which each token is drawn, [B, V]; 0 for those cut off.

    ``p = softmax(logits / temperature)`` over the tokens that top-k and top-p leave: top-k those
    whose logit is at least the k-th largest; top-p the shortest head of the descending order whose
    probability, after top-k, is at least ``top_p``.

    Source: Fan et al. 2018 (top-k); Holtzman et al. 2020, section 3.1 (top-p).
    """
    shifted = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    scaled = shifted / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        kth = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True)
        mass = ordered.softmax(dim=-1)
        outside = mass.cumsum(dim=-1) - mass >= sampling.top_p
        outside[:, 0] = False
        scaled = scaled.masked_fill(outside.scatter(1, order, outside), float("-inf"))
    return scaled.softmax(dim=-1)


def draw(logits_BV: Tensor, sampling: Sampling, generators: list[torch.Generator]) -> list[int]:
    """Draw one token per row.

    Parameters
    ----------
    generators
        Random numbers of each row, on the processor, so that every device draws the same.

    Raises
    ------
    IsolossError
        The logits are not finite.
    """
    if not logits_BV.isfinite().all():
        raise IsolossError(
            "the model's logits are not finite: its training went astray, or its numbers are too "
            "large for this precision. Choose another run, or an earlier checkpoint: --step N"
        )
    if sampling.greedy:
        greedy: list[int] = logits_BV.argmax(dim=-1).tolist()
        return greedy
    chances = probabilities(logits_BV.float().cpu(), sampling)
    rows = zip(chances, generators, strict=True)
    return [int(torch.multinomial(row, 1, generator=own)) for row, own in rows]
