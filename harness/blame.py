"""Which setting of a grid to name when a rule about several fields fails in many of its runs.

``head_dim must divide d_model`` can fail in a thousand runs for one mistake. A setting that never
occurs in a valid combination explains its failures best; the fewest such settings are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from harness.yaml12 import Loc


@dataclass(frozen=True)
class Failure:
    """One rule failing for one combination of settings."""

    message: str
    given: Mapping[str, Loc]
    """Where each field of the combination was set, by path; fields left at defaults are absent."""
    involved: tuple[str, ...]
    """Paths that the rule is about, the likeliest culprit first."""


def blame(failures: Sequence[Failure], sound: Set[Loc]) -> Iterator[tuple[Loc, str]]:
    """Name the fewest settings that explain all failures of a rule, with a message each.

    Greedy set cover over settings that occur in no valid combination; where every setting of a
    failure also occurs in a valid one, the last-written setting of it is named.

    Parameters
    ----------
    failures
        Combinations for which the rule fails.
    sound
        Settings that occur in a valid combination.
    """
    left = list(failures)
    while left:
        culprit = _culprit(left, sound)
        explained = [f for f in left if culprit in f.given.values()] or left
        yield culprit, _told(explained)
        told = {id(f) for f in explained}
        left = [f for f in left if id(f) not in told]


def _culprit(failures: Sequence[Failure], sound: Set[Loc]) -> Loc:
    votes: Counter[Loc] = Counter()
    rank: dict[Loc, int] = {}
    for failure in failures:
        for position, path in enumerate(failure.involved):
            loc = failure.given.get(path)
            if loc is not None and loc not in sound:
                votes[loc] += 1
                rank[loc] = min(position, rank.get(loc, position))
    if votes:
        return min(votes, key=lambda loc: (-votes[loc], rank[loc]))
    first = failures[0]
    named = [first.given[path] for path in first.involved if path in first.given]
    return max(named, key=_layer, default=("base",))


def _layer(loc: Loc) -> int:
    order = ("base", "--set", "zip", "axes", "when", "include")
    return order.index(str(loc[0])) if loc[0] in order else 0


def _told(failures: Sequence[Failure]) -> str:
    messages = list(dict.fromkeys(failure.message for failure in failures))
    more = len(messages) - 1
    return messages[0] + (f" (And {more} more like it.)" if more else "")
