"""How long runs take on a device, from step times that were measured on it.

Pure; :mod:`harness.pace` reads the measurements. :meth:`Pace.rate` picks the best evidence for a
run, in this order:

1. measured: same arm, model, context, batch, precision and optimiser;
2. scaled: the same arm at another size within a factor :data:`NEAR` in FLOPs per step;
3. scaled: the standard arm at the same size, times what bench found the arm to cost beside it;
4. scaled: the same arm at any size;
5. scaled: FLOPs per second of everything measured, runs of this sweep before all others.

Only evidence of one device counts, told apart by its name, and of one precision. Limits: several
processes are taken to share a step without loss; runs that share a device, not to slow each other.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from harness.records import PlannedRun

Evidence = Literal["measured", "scaled", "none"]
STANDARD = "standard"
NEAR = 4.0
MARGIN, START_S = 1.3, 120.0
"""What a time limit adds to an estimate: a share of it, and the start of a job."""


class Group(NamedTuple):
    """What determines the time of a step on a device."""

    arm: str
    model: tuple[tuple[str, Any], ...]
    """Fields of the model, sorted."""
    seq_len: int
    batch_tokens: int
    precision: str
    optimizer: str
    vocab_size: int


def group_of(arm: str, config: Mapping[str, Any], vocab_size: int) -> Group:
    """Group of a run, from its configuration as a manifest carries it."""
    train = config["train"]
    return Group(
        arm=arm,
        model=tuple(sorted(config["model"].items())),
        seq_len=config["data"]["seq_len"],
        batch_tokens=train["batch_tokens"],
        precision=train["precision"],
        optimizer=train["optimizer"],
        vocab_size=vocab_size,
    )


@dataclass(frozen=True)
class Sample:
    """One measurement of a training step."""

    group: Group
    device: str
    threads: int | None
    """CPU threads of a process; None where it was not written down."""
    processes: int
    step_s: float
    """Device seconds of a step: wall time times processes."""
    step_flops: float
    overhead_s: float | None
    """Device seconds of a run outside its steps: validation, diagnostics, checkpoints, start."""
    source: str
    """Sweep or bench, in words."""
    own: bool = False
    """From the sweep that is planned."""
    is_run: bool = True


@dataclass(frozen=True)
class Ratio:
    """What an arm's step costs beside the standard one's, as bench measured it."""

    arm: str
    device: str
    precision: str
    step_flops: float
    ratio: float
    source: str
    """Bench."""


@dataclass(frozen=True)
class Rate:
    """How fast the runs of one group train."""

    step_s: float | None
    """Device seconds of a step; None when nothing is known."""
    overhead_s: float
    """Device seconds of a run outside its steps."""
    evidence: Evidence
    source: str
    """In words."""

    def device_s(self, steps: int) -> float | None:
        """Device seconds of a run of ``steps`` optimiser steps; None when nothing is known."""
        return None if self.step_s is None else steps * self.step_s + self.overhead_s


Told = tuple[float, Evidence, str]
"""Device seconds of a step, how they are known, and from where."""
NOTHING = Rate(None, 0.0, "none", "no step time was measured")


@dataclass(frozen=True)
class Pace:
    """Everything measured that an estimate may rest on."""

    device: str | None
    """Name of the device that runs are estimated for; None when nothing is known of any."""
    samples: tuple[Sample, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    def rate(self, run: PlannedRun, threads: int = 1, processes: int = 1) -> Rate:
        """Estimate how fast a run trains on :attr:`device`.

        Parameters
        ----------
        threads
            CPU threads of a process, as the run will have.
        processes
            Processes that will share it.
        """
        group = group_of(run.arm, run.config, run.vocab_size)
        key = (group, threads, processes)
        if key not in self._rates:
            self._rates[key] = self._estimate(*key, run.cost.flops / run.cost.steps)
        return self._rates[key]

    @cached_property
    def _rates(self) -> dict[tuple[Group, int, int], Rate]:
        return {}

    @cached_property
    def _here(self) -> dict[str, list[Sample]]:
        """Samples of the device by precision."""
        found: dict[str, list[Sample]] = {}
        for sample in self.samples:
            if sample.device == self.device:
                found.setdefault(sample.group.precision, []).append(sample)
        return found

    def _estimate(self, group: Group, threads: int, processes: int, step_flops: float) -> Rate:
        samples = self._here.get(group.precision, [])
        exact = [
            s
            for s in samples
            if s.group == group and s.threads in (None, threads) and s.processes == processes
        ]
        same_arm = [s for s in samples if s.group.arm == group.arm]
        near = [s for s in same_arm if _distance(s.step_flops, step_flops) <= math.log(NEAR)]
        by_flops = "this arm by FLOPs"
        ways: tuple[Callable[[], Told | None], ...] = (
            lambda: _measured(exact),
            lambda: _scaled(_closest(near, step_flops), step_flops, by_flops),
            lambda: self._beside_standard(group, samples, step_flops),
            lambda: _scaled(_closest(same_arm, step_flops), step_flops, by_flops),
            lambda: _scaled(samples, step_flops, "all arms by FLOPs"),
        )
        for way in ways:
            told = way()
            if told is not None:
                return Rate(told[0], _overhead_s(exact, samples, group, step_flops), *told[1:])
        return NOTHING

    def _beside_standard(
        self, group: Group, samples: list[Sample], step_flops: float
    ) -> Told | None:
        wanted = (group.arm, self.device, group.precision)
        ratios = [r for r in self.ratios if (r.arm, r.device, r.precision) == wanted]
        base = _measured([s for s in samples if s.group == group._replace(arm=STANDARD)])
        if base is None or not ratios:
            return None
        nearest = min(ratios, key=lambda r: _distance(r.step_flops, step_flops))
        return base[0] * nearest.ratio, "scaled", f"{STANDARD} by the ratio of {nearest.source}"


def _distance(step_flops: float, other: float) -> float:
    return abs(math.log(step_flops / other))


def _preferred(samples: list[Sample]) -> list[Sample]:
    """Those of the best kind: runs of this sweep, of other sweeps, bench."""
    kinds = ([s for s in samples if s.own], [s for s in samples if s.is_run], samples)
    return next((kind for kind in kinds if kind), [])


def _measured(samples: list[Sample]) -> Told | None:
    best = _preferred(samples)
    if not best:
        return None
    return statistics.median(s.step_s for s in best), "measured", _named(best)


def _scaled(samples: list[Sample], step_flops: float, how: str) -> Told | None:
    best = _preferred(samples)
    if not best:
        return None
    seconds_per_flop = statistics.median(s.step_s / s.step_flops for s in best)
    return seconds_per_flop * step_flops, "scaled", f"{how}, {_named(best)}"


def _closest(samples: list[Sample], step_flops: float) -> list[Sample]:
    """Samples of the one size that is nearest in FLOPs per step."""
    if not samples:
        return []
    nearest = min(samples, key=lambda s: _distance(s.step_flops, step_flops)).group
    return [s for s in samples if s.group == nearest]


def _named(samples: list[Sample]) -> str:
    sources = list(dict.fromkeys(s.source for s in samples))
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return f"{sources[0]}{more}"


def _overhead_s(
    exact: list[Sample], samples: list[Sample], group: Group, step_flops: float
) -> float:
    """Time outside the steps: as in runs of the same group, else scaled with FLOPs per token.

    It is a sum for the whole run and not a share of its steps, because validations and diagnostics
    are as many in a short run as in a long one.
    """
    known = [s for s in _preferred(exact) if s.overhead_s is not None] or _closest(
        _preferred([s for s in samples if s.overhead_s is not None]), step_flops
    )
    per_token = step_flops / group.batch_tokens
    scaled = [
        (s.overhead_s or 0.0) * per_token / (s.step_flops / s.group.batch_tokens) for s in known
    ]
    return statistics.median(scaled) if scaled else 0.0


def likeliest_device(samples: Iterable[Sample]) -> str | None:
    """Device of most measurements: of this sweep's runs, else of other runs, else of bench."""
    best = _preferred(list(samples))
    return Counter(s.device for s in best).most_common(1)[0][0] if best else None


def job_s(run_s: float, runs_per_job: int, at_once: int) -> float:
    """Seconds of a job whose runs take ``run_s`` each, ``at_once`` of them at a time."""
    return math.ceil(runs_per_job / at_once) * run_s


def suggested_minutes(run_s: float, runs_per_job: int = 1, at_once: int = 1) -> int:
    """Time limit for such a job in whole minutes: the estimate, :data:`MARGIN`, and its start."""
    return math.ceil((START_S + MARGIN * job_s(run_s, runs_per_job, at_once)) / 60)
