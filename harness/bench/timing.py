"""Interleaved timing and paired ratios: what several subjects cost relative to one of them.

A machine's speed drifts while a benchmark runs (frequency, neighbours, memory). Subjects are
therefore timed in turn, A B C A B C ..., in one process, and compared within a round, never across:
the ratio of two subjects is the median over rounds of the ratio inside a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

Call = Callable[[], object]
K = TypeVar("K", bound=Hashable)
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""wall: seconds that pass. cpu: seconds that this process computes, which others on the machine
disturb less; for one thread on CPU the two agree on an idle machine."""


class Spread(NamedTuple):
    """A median with its quartiles."""

    median: float
    low: float
    high: float


def timed_rounds(
    subjects: Mapping[K, Call],
    repeats: Mapping[K, int],
    synchronise: Call,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[K, float]]:
    """Time every subject once per round, in the order given; yield the seconds of each round.

    Parameters
    ----------
    subjects
        What to call, warmed up.
    repeats
        Rounds that each subject takes part in, from the first.
    synchronise
        Waits for the device; called before each clock reading.
    clock
        Seconds, monotonic.
    """
    for number in range(max(repeats.values(), default=0)):
        seconds = {}
        for name, call in subjects.items():
            if number < repeats[name]:
                synchronise()
                begin = clock()
                call()
                synchronise()
                seconds[name] = clock() - begin
        yield seconds


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles (inclusive: linear between order statistics); None without values."""
    if not values:
        return None
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def paired_ratio(times: Sequence[float], base: Sequence[float]) -> Spread | None:
    """Median and quartiles of ``times[r] / base[r]`` over the rounds that both took part in."""
    return spread([own / other for own, other in zip(times, base, strict=False)])


def paired_difference(times: Sequence[float], base: Sequence[float]) -> float | None:
    """Median of ``times[r] - base[r]`` over the rounds that both took part in."""
    found = spread([own - other for own, other in zip(times, base, strict=False)])
    return None if found is None else found.median
