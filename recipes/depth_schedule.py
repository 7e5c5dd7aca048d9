"""Which sources every depth read sees: division into depth blocks, and the schedule of reads.

Pure arithmetic over sublayer indices, t = 0 .. n_sublayers - 1, so that the state machine and the
closed-form cost of a recipe cannot disagree. Knows no tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

Tail = Literal["short", "balanced"]
DEFAULT_BLOCK_SIZE = 4
"""Two transformer layers; loses nothing to 2 and little to 1 in arXiv 2603.15031, section 5.3."""


@lru_cache(maxsize=4096)
def block_ends(
    n_sublayers: int, block_size: int | None, n_blocks: int | None, tail: str, unit: int = 1
) -> tuple[int, ...]:
    """Divide sublayers into consecutive depth blocks.

    With ``block_size`` S, the M sublayers fall into ceil(M / S) blocks; with ``n_blocks`` N, into
    exactly N; neither means S = 4. Block j of N ends at ``j * S`` (short tail; S = ceil(M / N) if N
    was given) or at ``ceil(M * j / N)`` (balanced). ``unit`` keeps that many sublayers together.

    Returns
    -------
    Index after the last sublayer of every block, ascending; the last is ``n_sublayers``.

    Raises
    ------
    ValueError
        Both are given, either exceeds the model, S is no multiple of ``unit``, or a short tail
        cannot give exactly N blocks.
    """
    if block_size is not None and n_blocks is not None:
        raise ValueError(
            f"give block_size or n_blocks, not both; got block_size {block_size} "
            f"and n_blocks {n_blocks}"
        )
    rows = n_sublayers // unit
    if n_blocks is None:
        size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
        _check_block_size(size, n_sublayers, unit, is_default=block_size is None)
        rows_per_block = size // unit
        count = -(-rows // rows_per_block)
    else:
        rows_per_block, count = -(-rows // n_blocks), n_blocks
        _check_n_blocks(n_blocks, rows, rows_per_block, tail, unit)
    if tail == "balanced":
        return tuple(unit * -(-rows * j // count) for j in range(1, count + 1))
    return tuple(unit * min(rows_per_block * j, rows) for j in range(1, count + 1))


def _check_block_size(size: int, n_sublayers: int, unit: int, *, is_default: bool) -> None:
    if size > n_sublayers:
        origin = " (the default)" if is_default else ""
        raise ValueError(
            f"block_size must not exceed the model's {n_sublayers} sublayers "
            f"(2 per layer), got {size}{origin}"
        )
    if size % unit:
        raise ValueError(
            f"block_size must be a multiple of {unit}: blocks of this recipe hold whole "
            f"transformer layers of 2 sublayers; got {size}"
        )


def _check_n_blocks(n_blocks: int, rows: int, rows_per_block: int, tail: str, unit: int) -> None:
    if n_blocks > rows:
        counted = "sublayers (2 per layer)" if unit == 1 else "transformer layers"
        raise ValueError(f"n_blocks must not exceed the model's {rows} {counted}, got {n_blocks}")
    given = -(-rows // rows_per_block)
    if tail == "short" and given != n_blocks:
        raise ValueError(
            f"n_blocks {n_blocks} with tail 'short' would give {given} blocks of "
            f"{rows_per_block * unit} sublayers; use tail 'balanced' for exactly {n_blocks}"
        )


@dataclass(frozen=True)
class Schedule:
    """Which sources every read of a model sees; pure arithmetic over sublayer indices.

    Read ``t`` precedes sublayer ``t``; read ``n_sublayers`` is the final one, before the last norm.
    """

    n_sublayers: int
    ends: tuple[int, ...]
    """Index after the last sublayer of every block."""
    additive: bool = False
    """A read is added to the stream R; there is none before sublayer 0 and none at the end."""
    cumulative: bool = False
    """Sources are states R, not sums that restart from empty."""
    delayed: bool = False
    """A completed block becomes a source one sublayer late."""
    _end_set: frozenset[int] = field(init=False, repr=False, compare=False)
    _bank_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _last_banked: int = field(init=False, repr=False, compare=False)

    readers: tuple[int, ...] = field(init=False)
    """Reads that own a query: those with two sources or more."""

    def __post_init__(self) -> None:
        # Derived once and eagerly: a cached property would break the graph of torch.compile.
        end_set = frozenset(self.ends)
        bank_sizes, ended = [], 0
        for t in range(self.n_sublayers + 1):
            ended += (t - self.delayed) in end_set
            bank_sizes.append(1 + ended)
        last_read = self.n_sublayers - self.additive
        seen_ends = [end for end in self.ends if end <= last_read - self.delayed]
        object.__setattr__(self, "_end_set", end_set)
        object.__setattr__(self, "_bank_sizes", tuple(bank_sizes))
        object.__setattr__(self, "_last_banked", max(seen_ends, default=0))
        reads = range(self.n_sublayers + 1)
        object.__setattr__(self, "readers", tuple(t for t in reads if self.n_sources(t) > 1))

    @property
    def keeps_stream(self) -> bool:
        """Whether the running sum R is part of the state."""
        return self.additive or self.cumulative

    def reads_at(self, t: int) -> bool:
        """Whether there is a read ``t`` at all."""
        return not (self.additive and t in (0, self.n_sublayers))

    def n_banked(self, t: int) -> int:
        """Completed sources that read ``t`` sees, the embedding included."""
        return self._bank_sizes[t]

    def reads_partial(self, t: int) -> bool:
        """Whether read ``t`` also sees the block under way; an empty one is never a source."""
        return not self.additive and t > 0 and t not in self._end_set

    def n_sources(self, t: int) -> int:
        """Sources of read ``t``; 0 where there is no read."""
        return self.n_banked(t) + self.reads_partial(t) if self.reads_at(t) else 0

    def banks_after(self, t: int) -> bool:
        """Whether sublayer ``t`` completes a source that some read sees."""
        return self.ends_after(t) and t < self._last_banked

    def sums_at(self, t: int) -> bool:
        """Whether the output of sublayer ``t`` belongs to a block that some read sees."""
        return not self.cumulative and (not self.additive or t < self._last_banked)

    def restarts_at(self, t: int) -> bool:
        """Whether sublayer ``t`` is the first of its block."""
        return t == 0 or t in self._end_set

    def ends_after(self, t: int) -> bool:
        """Whether sublayer ``t`` is the last of its block."""
        return (t + 1) in self._end_set

    def n_vectors(self, t: int) -> int:
        """Vectors that the state holds after the write of sublayer ``t``."""
        banked = 1 + bisect_right(self.ends, min(t + 1, self._last_banked))
        partial = self.sums_at(t) and not self.ends_after(t)
        aliased = self.cumulative and self.banks_after(t)
        return banked + partial + self.keeps_stream - aliased


def vectors_moved(plan: Schedule) -> int:
    """Vectors of width d_model read and written per token, every operand of a fused step once."""
    moved = 0
    for t in range(plan.n_sublayers + 1):
        n = plan.n_sources(t)
        if n > 1:
            moved += n + 1 + plan.additive
        elif n == 1 and plan.additive:
            moved += 3
    for t in range(plan.n_sublayers):
        moved += 3 * plan.keeps_stream
        moved += 3 * (plan.sums_at(t) and not plan.restarts_at(t))
    return moved
