"""What a residual scheme reads and writes per token and sublayer, as the papers count it.

Elements through memory, the sublayer's own traffic excluded; M sublayers of width d. Source: Kimi
Team, Attention Residuals, arXiv 2603.15031, table 1 and appendix B; its typical case is M = 128,
N = 8 blocks of S = 16, m = 4 streams:

=====================  ======================  ==========
scheme                 elements                typical
=====================  ======================  ==========
standard               3 d                     3 d
m streams (HC, mHC)    (8 m + 2) d + 2 m^2     34 d + 48
                       + 4 m
Full, two-phase        (S + N) d               24 d
Block, two-phase       (N / S + 5) d           5.5 d
=====================  ======================  ==========

How the two-phase rows charge (:func:`two_phase`), for a group of S consecutive reads:

- phase 1 reads every source completed before the group once for all S reads, as key and as value
  although the key is a function of the value: 2 d each; it writes a mix per read, d;
- phase 2 reads, for each read, the sources that the group itself has added: 2 d each in Full. In
  Block that is the partial sum, charged 3 d, which the paper does not derive (our reading: key,
  value, and the output that was added to it). It writes a result per read, d;
- peaks and masses, one element per read, count nothing, nor does phase 2 pay for what phase 1
  wrote. The final read is not in the table.

The closed forms simplify: (S + N) d leaves out the embedding, which every group reads; N / S stands
for the average (N + 1) / S of completed sources, the embedding among them; and the first read of a
block has no partial sum to pay for. Where S divides M, the sums over a schedule are therefore
(S + N + 2 / S) d and (N / S + 5 - 2 / S) d. With a last group of r < S reads, Full moves
(2 N + (N - 1 - r) (S - r)) / M more than its form, Block between N / M and 2 N / M less.

A fused read takes every source once, key and value in one, and writes once: that is what
:func:`recipes.depth_schedule.vectors_moved` counts. Knows no tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from recipes.depth_schedule import Schedule

KEY_AND_VALUE = 2
"""Vectors charged for reading a completed source."""
PARTIAL = 3
"""Vectors charged for reading the partial sum of the block under way."""


def standard(d_model: int) -> int:
    """Elements per token and sublayer of the ordinary stream: ``R + y``, read 2 d, write d."""
    return 3 * d_model


def streams(d_model: int, n_streams: int) -> int:
    """Elements per token and sublayer of m parallel streams, ``(8 m + 2) d + 2 m^2 + 4 m``.

    Every operation through memory, read and write: the weights alpha, beta, A of a token (m d and
    m^2 + 2 m), alpha applied (m d + m and d), beta applied (d + m and m d), A applied (m d + m^2
    and m d), the merge (2 m d and m d). For hyper-connections the same count is in Xie et al., mHC,
    arXiv 2512.24880, table 2.
    """
    d, m = d_model, n_streams
    weights = m * d + (m * m + 2 * m)
    alpha = (m * d + m) + d
    beta = (d + m) + m * d
    mixing = (m * d + m * m) + m * d
    merge = 2 * m * d + m * d
    return weights + alpha + beta + mixing + merge


def full_two_phase(d_model: int, group_size: int, n_groups: int) -> int:
    """Elements per token and sublayer of Full, read in N groups of S: ``(S + N) d``.

    Least at ``S = N = sqrt(M)``. Source: appendix B, equations 11 to 17.
    """
    return (group_size + n_groups) * d_model


def block_two_phase(d_model: int, block_size: int, n_blocks: int) -> float:
    """Elements per token and sublayer of Block, read block by block: ``(N / S + 5) d``."""
    return (n_blocks / block_size + 5) * d_model


class TwoPhaseTraffic(NamedTuple):
    """Vectors of width d_model that one token moves through a whole model."""

    phase_1_reads: int
    phase_2_reads: int
    writes: int
    final_read: int
    """Of the read before the last norm, reads and writes; not in :attr:`per_sublayer`."""
    n_sublayers: int

    @property
    def per_sublayer(self) -> float:
        """Vectors per sublayer; times d_model it compares with the closed forms."""
        return (self.phase_1_reads + self.phase_2_reads + self.writes) / self.n_sublayers


def two_phase(plan: Schedule, group_size: int | None = None) -> TwoPhaseTraffic:
    """Sum what the two-phase schedule moves over the reads of a model, charged as the paper does.

    Parameters
    ----------
    plan
        Sources of every read.
    group_size
        Reads that share a phase 1. Default: the blocks of the plan, as in Block; give it for Full,
        whose blocks are single sublayers.

    Raises
    ------
    ValueError
        Reads do not replace the stream, so that the stream would move as well.
    """
    if plan.keeps_stream:
        raise ValueError(
            "the two-phase accounting is of reads that replace the stream, and this schedule "
            "keeps the stream besides"
        )
    m = plan.n_sublayers
    starts = (0, *plan.ends[:-1]) if group_size is None else tuple(range(0, m, group_size))
    first, second = 0, 0
    for start, stop in zip(starts, (*starts[1:], m), strict=True):
        shared = plan.n_sources(start) - plan.reads_partial(start)
        first += KEY_AND_VALUE * shared
        second += sum(_own_reads(plan, start, t) for t in range(start, stop))
    final = KEY_AND_VALUE * plan.n_sources(m) + 2 if plan.reads_at(m) else 0
    return TwoPhaseTraffic(first, second, 2 * m, final, m)


def _own_reads(plan: Schedule, start: int, t: int) -> int:
    """Vectors that phase 2 of read ``t`` reads, in a group that starts with read ``start``."""
    completed_since = [k for k in plan.blocks_at(t) if plan.ends[k] > start]
    return KEY_AND_VALUE * len(completed_since) + PARTIAL * plan.reads_partial(t)
