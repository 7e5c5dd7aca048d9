"""Shared trunks: runs that differ in their budget alone train their common part once.

With a rate that stays at its peak until the decay (schedule wsd, or constant), two runs that differ
in nothing but the budget are the same training until the shorter one begins to decay: the data of a
step are a function of (seed, step), and up to there the rate does not depend on the budget. Their
warm-up must have as many steps, so ``train.warmup_tokens`` takes the place of a share. The shorter
run leaves its state in ``trunks/<id>/`` at its branch step, and the longer one goes on from there,
to the loss that it would have reached alone, bit for bit: a matter of execution, which enters no
run id. With the constant schedule all but the last step is shared. Trials of a search share
nothing: they may be given up at any step. No torch.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json

from harness.config import Budget, RunConfig, TrainConfig
from harness.identity import ID_DIGITS, canonical_json
from harness.paths import SweepPaths
from harness.records import PlannedRun
from harness.schedule import branch_step, decay_steps, warmup_steps

_ANY_BUDGET = Budget(tokens=1)


class _Trunks:
    """Ids of trunks; what runs of a grid share is spelled once."""

    def __init__(self) -> None:
        self._spelled: dict[int, str] = {}
        self._stripped: dict[int, TrainConfig] = {}
        self._known: dict[TrainConfig, TrainConfig] = {}

    def id(self, config: RunConfig, planned: PlannedRun) -> str:
        train = config.train
        if id(train) not in self._stripped:
            bare = train.model_copy(update={"budget": _ANY_BUDGET})
            self._stripped[id(train)] = self._known.setdefault(bare, bare)
        alike = config.model_copy(update={"train": self._stripped[id(train)]})
        text = canonical_json(
            alike, planned.recipe_revision, planned.corpus_sha256, memo=self._spelled
        )
        text += f"warm-up of {warmup_steps(train, planned.cost.steps)} steps"
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]


def with_trunks(configs: Sequence[RunConfig], runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    """Tell runs that share a training with runs of other budgets: ``trunk`` and ``branch_step``.

    Parameters
    ----------
    configs
        Configurations of the runs.
    runs
        The runs as planned, in the same order.

    Returns
    -------
    tuple of PlannedRun
        In the same order; those that share nothing are returned as they are.
    """
    if len({config.train.budget for config in configs}) < 2:
        return tuple(runs)
    trunks = _Trunks()
    found: dict[str, list[tuple[int, int]]] = {}
    for index, (config, run) in enumerate(zip(configs, runs, strict=True)):
        at = branch_step(config.train, run.cost.steps)
        if at is not None and run.role != "trial":
            found.setdefault(trunks.id(config, run), []).append((index, at))
    told = list(runs)
    for trunk, members in found.items():
        if len(members) > 1:
            for index, at in members:
                told[index] = runs[index].model_copy(update={"trunk": trunk, "branch_step": at})
    return tuple(told)


def overlong_warmup(train: TrainConfig, steps: int) -> str | None:
    """Say what is wrong where a warm-up given in tokens leaves no room for the decay."""
    if train.warmup_tokens is None:
        return None
    warmup = warmup_steps(train, steps)
    decay = decay_steps(train, steps) if train.schedule == "wsd" else 0
    if warmup + decay <= steps:
        return None
    with_decay = f" and the {decay} of the decay" if decay else ""
    return f"its {warmup} steps{with_decay} are more than the {steps} of a run"


def in_chains(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """Group runs by trunk, the shortest budget first; a run that shares nothing stands alone.

    The groups keep the order in which their first members come.
    """
    chains: dict[str, list[PlannedRun]] = {}
    for run in runs:
        chains.setdefault(run.trunk or f"run {run.run_id}", []).append(run)
    for chain in chains.values():
        chain.sort(key=_place)
    return list(chains.values())


def _place(run: PlannedRun) -> tuple[int, str]:
    """Place in a chain."""
    return run.branch_step or 0, run.run_id


def own_steps(runs: Iterable[PlannedRun]) -> dict[str, int]:
    """Optimiser steps that each run takes itself when it goes on from the one before it."""
    steps = {}
    for chain in in_chains(runs):
        begun = 0
        for run in chain:
            steps[run.run_id] = run.cost.steps - begun
            begun = run.branch_step or 0
    return steps


def packed(runs: Iterable[PlannedRun], runs_per_job: int) -> list[tuple[PlannedRun, ...]]:
    """Hand runs out to jobs, so many to each, in their order; a chain is never divided, however
    long.
    """
    jobs: list[tuple[PlannedRun, ...]] = []
    for chain in in_chains(runs):
        if jobs and len(jobs[-1]) + len(chain) <= runs_per_job:
            jobs[-1] += tuple(chain)
        else:
            jobs.append(tuple(chain))
    return jobs


def flops_in_turn(chain: Sequence[PlannedRun]) -> float:
    """Training FLOPs of the runs of one chain, each going on from the one before it."""
    own = own_steps(chain)
    return sum(run.cost.flops * own[run.run_id] / run.cost.steps for run in chain)


@dataclass(frozen=True)
class Sharing:
    """What shared trunks save, over the runs that have one."""

    trunks: int
    runs: int
    steps: int
    """Optimiser steps taken."""
    steps_alone: int
    """Optimiser steps of all runs, each trained alone."""
    flops: float
    """Training FLOPs spent."""
    flops_alone: float
    """Training FLOPs of all runs, each trained alone: the sum of what their records state."""

    @property
    def share(self) -> float:
        """FLOPs spent over those of training each run alone."""
        return self.flops / self.flops_alone

    def describe(self) -> str:
        """One line, such as ``4 budgets share a trunk: 58% of the FLOPs of …``."""
        who = f"{self.runs} budgets share a trunk"
        if self.trunks > 1:
            who = f"{self.runs} runs of several budgets share {self.trunks} trunks"
        return f"{who}: {100 * self.share:.0f}% of the FLOPs of training each alone"


def sharing(runs: Iterable[PlannedRun]) -> Sharing | None:
    """What the trunks of runs save; None where there are none."""
    chained = [run for run in runs if run.trunk]
    if not chained:
        return None
    own = own_steps(chained)
    return Sharing(
        trunks=len({run.trunk for run in chained}),
        runs=len(chained),
        steps=sum(own.values()),
        steps_alone=sum(run.cost.steps for run in chained),
        flops=sum(map(flops_in_turn, in_chains(chained))),
        flops_alone=sum(run.cost.flops for run in chained),
    )


class Member(NamedTuple):
    """One run of a chain; in order, the shortest first."""

    branch_step: int
    run_id: str


def members(paths: SweepPaths, trunk: str) -> tuple[Member, ...]:
    """All runs of the sweep that share a trunk, by the manifest; none where it does not know it."""
    try:
        about = paths.manifest.stat()
    except FileNotFoundError:
        return ()
    return _chains(paths.manifest, about.st_mtime_ns, about.st_size).get(trunk, ())


@functools.lru_cache(maxsize=4)
def _chains(manifest: Path, _mtime_ns: int, _size: int) -> dict[str, tuple[Member, ...]]:
    chains: dict[str, list[Member]] = {}
    for run in from_json(manifest.read_bytes())["runs"]:
        if run.get("trunk"):
            chains.setdefault(run["trunk"], []).append(Member(run["branch_step"], run["run_id"]))
    return {trunk: tuple(sorted(chain)) for trunk, chain in chains.items()}


def state_file(folder: Path, step: int) -> Path:
    """Training state after ``step`` optimiser steps, in a folder of such."""
    return folder / f"step-{step:08d}.ckpt"


def states(folder: Path, at_most: int | None = None) -> list[tuple[int, Path]]:
    """Training states of a folder with their steps by name, the newest first."""
    found = [(int(path.stem.removeprefix("step-")), path) for path in folder.glob("step-*.ckpt")]
    return sorted(((n, p) for n, p in found if at_most is None or n <= at_most), reverse=True)


def _newest(folder: Path, at_most: int | None = None) -> int:
    return max((step for step, _ in states(folder, at_most)), default=0)


def run_ahead(paths: SweepPaths, run: PlannedRun) -> str | None:
    """Shorter run whose training ``run`` would go on from, were it as far as its branch.

    Returns
    -------
    str or None
        Its id; None where there is nothing to wait for: no shorter run is unfinished and further
        from its start than the states that ``run`` can go on from now.
    """
    if run.trunk is None or run.branch_step is None:
        return None
    own = Member(run.branch_step, run.run_id)
    shorter = [member for member in members(paths, run.trunk) if member < own]
    known = _newest(paths.run(run.run_id).checkpoints) if shorter else 0
    known = max(known, _newest(paths.trunk(run.trunk), run.branch_step)) if shorter else 0
    for member in reversed(shorter):
        if member.branch_step > known and _is_coming(paths, member):
            return member.run_id
    return None


def _is_coming(paths: SweepPaths, member: Member) -> bool:
    """Whether a run has not reached its branch yet, and may."""
    here = paths.run(member.run_id)
    ended = here.record.exists() or here.cancel.exists()
    return not ended and _newest(here.checkpoints) < member.branch_step


def is_wanted(paths: SweepPaths, run: PlannedRun) -> bool:
    """Whether the state of ``run`` at its branch is of use: a longer run has not ended."""
    if run.trunk is None or run.branch_step is None:
        return False
    group = members(paths, run.trunk)
    own = Member(run.branch_step, run.run_id)
    if own not in group:  # the grid was edited meanwhile
        return True
    return any(not paths.run(other.run_id).record.exists() for other in group if other > own)


def tidy(paths: SweepPaths, run: PlannedRun) -> None:
    """Delete the states of a trunk when all its runs are done or diverged.

    They stay while one failed or was cancelled: ``isoloss retry`` may start it again.
    """
    if run.trunk is None:
        return
    group = members(paths, run.trunk)
    if group and all(_has_result(paths.run(member.run_id).record) for member in group):
        shutil.rmtree(paths.trunk(run.trunk), ignore_errors=True)


def _has_result(record: Path) -> bool:
    try:
        return from_json(record.read_bytes())["status"] in ("done", "diverged")
    except (OSError, ValueError, KeyError, TypeError):
        return False
