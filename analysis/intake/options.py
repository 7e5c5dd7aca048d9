"""What may be said about a foreign table and about its fits, and the error that names its faults.

Data types only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.errors import IsolossError

Role = Literal[
    "n",
    "d",
    "c",
    "loss",
    "ppl",
    "variant",
    "seed",
    "size",
    "eval",
    "status",
    "time",
    "cluster",
]
"""What a column can stand for; also the name of the option that maps it."""
Law = Literal["auto", "power", "joint", "isoflop", "broken"]
Objective = Literal["huber", "mse"]
Asymptote = float | Literal["free"]
SHOWN = 3
"""Rows named per fault; the others are counted."""


class BadTable(IsolossError):
    """A table that cannot be read as runs: every fault that was found, one line each.

    Parameters
    ----------
    source
        The file or store.
    problems
        What is wrong and what to do, without the source.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is to be read."""

    columns: Mapping[Role, str] = field(default_factory=dict)
    """Column of each role that was mapped by hand."""
    variants: tuple[str, ...] = ()
    """Loss columns of a wide table; empty: found by themselves."""
    delimiter: str | None = None
    """None: sniffed from the header."""
    where: tuple[str, ...] = ()
    """``column=value`` and the like; rows that miss one of them are not read."""
    drop_highest: int = 0
    """So many of the highest losses are excluded: a rule to be declared before looking."""
    last_checkpoint: bool = False
    """Keep the row of most tokens (or compute) of every run."""
    baseline: str | None = None
    flop_convention: str | None = None


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What is to be fitted."""

    law: Law = "auto"
    objective: Objective = "huber"
    delta: float = 1e-3
    """Threshold of the Huber objective, natural log of loss."""
    asymptote: Asymptote = 0.0
    """E of the laws of compute: pinned (nats), or free."""
    bootstrap: int = 0
    """Replicates for the joint law's intervals; 0: from curvature."""
    level: float = 0.95
    published: Mapping[str, float] | None = None
    """A published point to be tested for being the minimum."""
    extrapolate_to: float | None = None
    """FLOPs to which the laws are carried on request."""


def named_rows(names: Sequence[str]) -> str:
    """``line 4, line 9, line 12 and 7 more``."""
    shown = ", ".join(names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
