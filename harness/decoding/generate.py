"""Continues prompts, in a batch, token by token.

Prompts of unequal length need no padding: the batch reads as many tokens as the shortest has in
one go, and from there on the longer prompts are read step by step beside the tokens that are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.decoding.decoder import Decoder
from harness.decoding.sampling import Sampling, draw
from harness.model import Transformer, random_stream

Stop = Callable[[int, list[int]], bool]
"""Asked after every new token, with the number of its prompt and all new tokens of that prompt;
true ends it, the token included."""

GREEDY = Sampling()


@dataclass
class _Row:
    """One prompt at work."""

    number: int
    prompt: Sequence[int]
    random: torch.Generator
    new: list[int] = field(default_factory=list)


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Stop | None = None,
) -> list[list[int]]:
    """Continue prompts; return the new tokens of each, without its prompt.

    Parameters
    ----------
    prompts
        Token ids; at least one each, of any lengths. A prompt's continuation does not depend on the
        other prompts of the batch, but for rounding; its random numbers are those of its number.
    max_tokens
        Most new tokens of each.
    stop
        Ends a prompt early; see :data:`Stop`. Its row is then computed no further.

    Raises
    ------
    ValueError
        A prompt is empty.
    IsolossError
        The logits are not finite.
    """
    new: list[list[int]] = [[] for _ in prompts]
    options = {"max_tokens": max_tokens, "sampling": sampling, "stop": stop}
    for number, token in stream(model, prompts, **options):  # type: ignore[arg-type]
        new[number].append(token)
    return new


def stream(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Stop | None = None,
) -> Iterator[tuple[int, int]]:
    """Continue prompts; yield every new token when it is drawn, as (number of prompt, token).

    Parameters and errors as for :func:`generate`.
    """
    if not all(map(len, prompts)):
        raise ValueError("a prompt has no token; begin with the separator between documents")
    rows = [
        _Row(number, prompt, random_stream(f"row {number}", sampling.seed))
        for number, prompt in enumerate(prompts)
    ]
    if not rows or max_tokens < 1:
        return
    decoder, device = Decoder(model), model.embedding.weight.device
    position = min(map(len, prompts))
    logits = decoder.last(torch.tensor([row.prompt[:position] for row in rows], device=device))
    while True:
        for row, token in _drawn(rows, position, logits, sampling):
            row.new.append(token)
            yield row.number, token
        alive = [i for i, row in enumerate(rows) if not _is_over(row, max_tokens, stop)]
        if not alive:
            return
        if len(alive) < len(rows):
            rows = [rows[i] for i in alive]
            decoder.keep(torch.tensor(alive, device=device))
        following = [_token_at(row, position) for row in rows]
        logits = decoder.step(torch.tensor(following, device=device))
        position += 1


def _drawn(
    rows: list[_Row], position: int, logits_BV: Tensor, sampling: Sampling
) -> list[tuple[_Row, int]]:
    """Draw the token at ``position`` of every row whose prompt ends before."""
    at_work = [i for i, row in enumerate(rows) if position >= len(row.prompt)]
    if not at_work:
        return []
    chosen = [rows[i] for i in at_work]
    tokens = draw(logits_BV[at_work], sampling, [row.random for row in chosen])
    return list(zip(chosen, tokens, strict=True))


def _is_over(row: _Row, max_tokens: int, stop: Stop | None) -> bool:
    if not row.new:
        return False
    return len(row.new) >= max_tokens or (stop is not None and stop(row.number, row.new))


def _token_at(row: _Row, position: int) -> int:
    n_prompt = len(row.prompt)
    return row.prompt[position] if position < n_prompt else row.new[position - n_prompt]
