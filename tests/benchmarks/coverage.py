"""How often nominal 95% intervals of a multiplier hold the true one, and how wide they are.

``python -m tests.benchmarks.coverage [--studies 1000] [--seed 20260315]`` draws studies from known
laws: four arms at the same sizes, ln L scattering by tau, shared by the arms of a size, and by
sigma of each run's own. An unbounded interval covers; its share is printed too. ``family`` is the
share of studies in which the simultaneous intervals of all three arms cover at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.cells import CellPoint, PairPoint
from analysis.compare.curve import multiplier_curve
from analysis.compare.fieller import iso_loss_ratio, iso_loss_ratio_by_size
from analysis.compare.matching import SizeRuns
from analysis.compare.simultaneous import simultaneous
from analysis.compare.unpaired import unpaired_ratio
from analysis.compare.wild import wild_bootstrap
from analysis.estimates import FitRefused, Interval
from analysis.laws import Floats

ARMS = {"block": 1.25, "full": 1.3, "mild": 1.1}
"""True multipliers; single intervals are judged by the first."""
ALPHA = 0.055
MIDDLE_LOSS = 1.8
"""Loss of the baseline at the middle compute, nats."""


@dataclass(frozen=True)
class World:
    """A law and its noise."""

    n: int
    tau: float
    sigma: float
    span: float = 8.4
    asymptote: float = 0.0
    """True E; the intervals always pin E = 0."""
    alpha: float = ALPHA
    """Exponent of the excess over E."""

    def __str__(self) -> str:
        wrong = f", true E {self.asymptote:g} alpha {self.alpha:g}" if self.asymptote else ""
        return f"{self.n} sizes, tau {self.tau:g}, sigma {self.sigma:g}, {self.span:g}x{wrong}"


WORLDS = (
    World(3, 0.003, 0.0015),
    World(3, 0.0, 0.003),
    World(4, 0.003, 0.0015),
    World(5, 0.003, 0.0015),
    World(5, 0.0, 0.003),
    World(5, 0.003, 0.003),
    World(8, 0.003, 0.0015),
    World(8, 0.0, 0.003),
    World(5, 0.003, 0.0015, asymptote=1.2),
    World(5, 0.003, 0.0015, span=100.0, asymptote=1.2),
)
"""Those in which the default interval must cover 93 to 97 times in 100."""
BENT = (
    World(5, 0.003, 0.0015, asymptote=1.2, alpha=0.165),
    World(5, 0.003, 0.0015, span=100.0, asymptote=1.2, alpha=0.165),
)
"""E pinned wrongly where it shows: ln L falls by .055 at the middle as elsewhere, but on a curve.

An excess of a third of the loss with the exponent .055 is all but a straight line. Here the default
interval is too wide, and over 100x the band along compute too narrow at its ends.
"""
HARSH = (World(3, 0.01, 0.0005), World(5, 0.01, 0.0005), World(8, 0.01, 0.0005))
"""Shared deviations twenty times an arm's own: there the default is too narrow, and a note says so.
"""


@dataclass
class Tally:
    """Intervals of one kind over many studies."""

    covered: int = 0
    unbounded: int = 0
    n: int = 0
    widths: list[float] = field(default_factory=list)

    def count(self, interval: Interval, truth: float) -> None:
        """Take in one interval."""
        self.n += 1
        self.covered += not interval.excludes(truth)
        self.unbounded += not interval.bounded
        if interval.low and interval.high:
            self.widths.append(float(np.log(interval.high / interval.low)))

    @property
    def coverage(self) -> float:
        return self.covered / self.n if self.n else float("nan")

    @property
    def width(self) -> float:
        """Median width of ln rho."""
        return float(np.median(self.widths)) if self.widths else float("inf")


@dataclass(frozen=True)
class Study:
    """One draw: the paired sizes of every arm, and the baseline's curve."""

    pairs: Mapping[str, tuple[PairPoint, ...]]
    curve: tuple[CellPoint, ...]


def draw_study(rng: np.random.Generator, world: World, arms: Mapping[str, float] = ARMS) -> Study:
    """Draw one study, one run per arm and size at equal compute."""
    x = np.linspace(0.0, np.log(world.span), world.n)
    shared = rng.normal(0, world.tau, world.n)

    def losses(rho: float) -> Floats:
        excess = (MIDDLE_LOSS - world.asymptote) * np.exp(
            -world.alpha * (x + np.log(rho) - x.mean())
        )
        return (world.asymptote + excess) * np.exp(shared + rng.normal(0, world.sigma, world.n))

    base = losses(1.0)
    curve = tuple(
        CellPoint("baseline", f"s{i}", float(np.exp(x[i])), float(base[i]), None, 1, 1, ())
        for i in range(world.n)
    )
    return Study({arm: _pairs(x, base, losses(rho)) for arm, rho in arms.items()}, curve)


def _pairs(x: Floats, base: Floats, arm: Floats) -> tuple[PairPoint, ...]:
    y_base, y_arm = np.log(base), np.log(arm)
    return tuple(
        PairPoint(f"s{i}", x[i], x[i], y_base[i], y_arm[i], float(base[i]), float(arm[i]), 1)
        for i in range(len(x))
    )


def cover(world: World, studies: int, seed: int, kinds: Sequence[str] = ()) -> dict[str, Tally]:
    """Coverage of every kind of interval, or of those named, in one world."""
    rng = np.random.default_rng(seed)
    tallies: dict[str, Tally] = {}
    truth = ARMS["block"]
    arms = ARMS if not kinds or "family" in kinds else {"block": truth}
    for k in range(studies):
        study = draw_study(rng, world, arms)
        for kind, interval in _single(study, kinds, k).items():
            tallies.setdefault(kind, Tally()).count(interval, truth)
        if arms is ARMS:
            _count_family(tallies.setdefault("family", Tally()), study)
    return tallies


def _single(study: Study, kinds: Sequence[str], seed: int) -> dict[str, Interval]:
    """Intervals of the first arm."""
    pairs = study.pairs["block"]
    makers = {
        "fieller": lambda: iso_loss_ratio(pairs),
        "wild": lambda: wild_bootstrap(pairs, seed=seed),
        "by size": lambda: iso_loss_ratio_by_size(pairs),
        "unpaired": lambda: unpaired_ratio(*_own_runs(pairs))[0],
    }
    found = {kind: make() for kind, make in makers.items() if not kinds or kind in kinds}
    if not kinds or "curve" in kinds:
        try:
            curve = multiplier_curve(pairs, study.curve, n=1)
        except FitRefused:
            return found
        found["curve, smallest"] = curve.smallest.ratio
        found["curve, middle"] = curve.middle.ratio
        found["curve, largest"] = curve.largest.ratio
    return found


def _own_runs(pairs: Sequence[PairPoint]) -> tuple[list[SizeRuns], list[SizeRuns]]:
    base = [
        SizeRuns(size=p.size, log_compute=p.log_compute_base, losses=np.array([p.loss_base]))
        for p in pairs
    ]
    arm = [
        SizeRuns(size=p.size, log_compute=p.log_compute_arm, losses=np.array([p.loss_arm]))
        for p in pairs
    ]
    return base, arm


def _count_family(tally: Tally, study: Study) -> None:
    together = simultaneous(study.pairs)
    tally.count(together["block"], ARMS["block"])
    others = any(together[arm].excludes(rho) for arm, rho in ARMS.items() if arm != "block")
    tally.covered -= others and not together["block"].excludes(ARMS["block"])


def main() -> None:
    """Print coverage, median width of ln rho and the share of unbounded intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20260315)
    asked = parser.parse_args()
    began = time.perf_counter()
    error = (0.95 * 0.05 / asked.studies) ** 0.5
    print(f"{asked.studies} studies each, seed {asked.seed}; Monte-Carlo error +-{error:.3f}")
    for world in (*WORLDS, *BENT, *HARSH):
        print(world)
        for kind, tally in cover(world, asked.studies, asked.seed).items():
            print(
                f"  {kind:16} {tally.coverage:.3f}  width {tally.width:.3f}  "
                f"unbounded {tally.unbounded / tally.n:.3f}",
                flush=True,
            )
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
