"""Which sources every depth read sees: division into depth blocks, and the schedule of reads.

Pure arithmetic over sublayer indices, t = 0 .. n_sublayers - 1, so that the state machine and the
closed-form cost of a recipe cannot disagree. Knows no tensors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
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


def checked_sizes(n_sublayers: int, sizes: tuple[int, ...], unit: int = 1) -> tuple[int, ...]:
    """Return the ends of depth blocks of the given sizes.

    Raises
    ------
    ValueError
        The sizes do not add up to the model, or one is no multiple of ``unit``.
    """
    if sum(sizes) != n_sublayers:
        raise ValueError(
            f"block_sizes must add up to the model's {n_sublayers} sublayers (2 per layer), "
            f"got {list(sizes)}, which make {sum(sizes)}"
        )
    if any(size % unit for size in sizes):
        raise ValueError(
            f"block_sizes must be multiples of {unit}: blocks of this recipe hold whole "
            f"transformer layers of 2 sublayers; got {list(sizes)}"
        )
    return tuple(accumulate(sizes))


@dataclass(frozen=True)
class Schedule:
    """Which sources every read of a model sees; pure arithmetic over sublayer indices.

    Read ``t`` precedes sublayer ``t``; read ``n_sublayers`` is the final one, before the last norm.
    Blocks are numbered from 0; the embedding is no block.
    """

    n_sublayers: int
    ends: tuple[int, ...]
    """Index after the last sublayer of every block."""
    additive: bool = False
    """A read is added to the stream R; there is none before sublayer 0."""
    cumulative: bool = False
    """Sources are states R, not sums that restart from empty."""
    as_released: bool = False
    """Sources are R minus the previous source, as in the released Delta code."""
    delayed: bool = False
    """A completed block becomes a source one sublayer late."""
    partial: bool = True
    """The block under way is a source."""
    embedding: bool = True
    """The embedding is a source; otherwise it opens the sum of the first block."""
    final: bool = True
    """There is a final read; otherwise the last norm sees R."""
    window: int | None = None
    """Newest sources that a read sees beside the embedding; None: all."""
    _end_set: frozenset[int] = field(init=False, repr=False, compare=False)
    _completed: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _oldest: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _seen_blocks: int = field(init=False, repr=False, compare=False)
    _rows: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    _block_of: tuple[int, ...] = field(init=False, repr=False, compare=False)

    readers: tuple[int, ...] = field(init=False)
    """Reads that own a query: those with two sources or more."""

    def __post_init__(self) -> None:
        # Derived once and eagerly: a cached property would break the graph of torch.compile.
        reads = range(self.n_sublayers + 1)
        object.__setattr__(self, "_end_set", frozenset(self.ends))
        object.__setattr__(self, "_block_of", tuple(bisect_right(self.ends, t) for t in reads))
        completed = tuple(bisect_right(self.ends, t - self.delayed) for t in reads)
        object.__setattr__(self, "_completed", completed)
        oldest = [
            max(0, completed[t] + self.reads_partial(t) - self.window) if self.window else 0
            for t in reads
        ]
        object.__setattr__(self, "_oldest", tuple(oldest))
        last = self.n_sublayers - (not self.final)
        object.__setattr__(self, "_seen_blocks", completed[last])
        object.__setattr__(self, "readers", tuple(t for t in reads if self.n_sources(t) > 1))
        rows = tuple(self._rows_of(block) for block in range(-1, len(self.ends)))
        object.__setattr__(self, "_rows", rows)

    @property
    def keeps_stream(self) -> bool:
        """Whether the running sum R is part of the state."""
        return self.additive or self.cumulative or self.as_released or not self.final

    @property
    def is_complete(self) -> bool:
        """Whether the sources of every read are disjoint and add up to R."""
        late = self.delayed or not (self.partial or len(self.ends) == self.n_sublayers)
        return not (self.cumulative or self.as_released or late or self.window)

    def reads_at(self, t: int) -> bool:
        """Whether there is a read ``t`` at all."""
        if t == self.n_sublayers and not self.final:
            return False
        return not self.additive or (t > 0 and self._count(t) > 0)

    def _count(self, t: int) -> int:
        return self.embedding + len(self.blocks_at(t)) + self.reads_partial(t)

    def blocks_at(self, t: int) -> range:
        """Completed blocks that read ``t`` sees."""
        return range(self._oldest[t], self._completed[t])

    def reads_partial(self, t: int) -> bool:
        """Whether read ``t`` also sees the block under way; an empty one is never a source."""
        return self.partial and t not in self._end_set and (t > 0 or not self.embedding)

    def n_sources(self, t: int) -> int:
        """Sources of read ``t``; 0 where there is no read."""
        return self._count(t) if self.reads_at(t) else 0

    def block_of(self, t: int) -> int:
        """Block that sublayer ``t`` belongs to."""
        return self._block_of[t]

    def start_of(self, t: int) -> int:
        """First sublayer of the block that sublayer ``t`` belongs to."""
        return (0, *self.ends)[self.block_of(t)]

    def rows(self, block: int) -> tuple[int, int]:
        """Rows of the queries that see a completed block, from the first to after the last.

        Block -1 is the embedding.
        """
        return self._rows[block + 1]

    def _rows_of(self, block: int) -> tuple[int, int]:
        first = 0 if block < 0 else self.ends[block] + self.delayed
        last = self.n_sublayers if block < 0 else bisect_right(self._oldest, block) - 1
        return bisect_left(self.readers, first), bisect_right(self.readers, last)

    def banks(self, block: int) -> bool:
        """Whether some read sees a block once it is complete."""
        return block < self._seen_blocks

    def oldest_at(self, t: int) -> int:
        """Oldest block that read ``t`` or a later one sees."""
        return self._oldest[t]

    def sums_at(self, t: int) -> bool:
        """Whether the output of sublayer ``t`` belongs to a block sum that some read sees."""
        if self.cumulative or self.as_released:
            return False
        block = self.block_of(t)
        return (self.partial and t + 1 < self.ends[block]) or self.banks(block)

    def restarts_at(self, t: int) -> bool:
        """Whether sublayer ``t`` is the first of its block, and finds the sum empty."""
        return (t == 0 and self.embedding) or t in self._end_set

    def ends_after(self, t: int) -> bool:
        """Whether sublayer ``t`` is the last of its block."""
        return (t + 1) in self._end_set

    def counts(self, t: int) -> tuple[int, ...]:
        """Outputs (the embedding among them) that every source of read ``t`` adds up."""
        bounds = (0, *self.ends)
        opened = not self.embedding
        sizes = [bounds[k + 1] - bounds[k] + (opened and k == 0) for k in self.blocks_at(t)]
        if self.reads_partial(t):
            start = self.start_of(t)
            sizes.append(t - start + (opened and start == 0))
        return (*([1] if self.embedding else []), *sizes)

    def banked_at(self, t: int) -> list[int]:
        """Completed sources that the state holds at read ``t``; -1 is the embedding."""
        committed = min(bisect_right(self.ends, t), self._seen_blocks)
        return [*([-1] if self.embedding else []), *range(self._oldest[t], committed)]

    def is_scored(self, block: int) -> bool:
        """Whether a completed source has a reader that owns a query."""
        first, last = self.rows(block)
        return first < last

    def n_scored(self) -> int:
        """Tensors that are scored as sources: completed ones, and partials at their only read."""
        banked = [*([-1] if self.embedding else []), *range(self._seen_blocks)]
        return sum(map(self.is_scored, banked)) + sum(map(self.reads_partial, self.readers))

    def n_vectors(self, t: int) -> int:
        """Vectors that the state holds after the write of sublayer ``t``."""
        banked = self.banked_at(t + 1)
        partial = self.sums_at(t) and not self.ends_after(t)
        # A cumulative source that was just completed is the stream itself.
        aliased = self.cumulative and self.ends_after(t) and self.block_of(t) in banked
        return len(banked) + partial + self.keeps_stream - aliased


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
        moved += 3 * (plan.as_released and plan.ends_after(t) and plan.banks(plan.block_of(t)))
    return moved
