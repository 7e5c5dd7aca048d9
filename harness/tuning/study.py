"""The search of one arm at one size, as an Optuna study: what is open, what came out, what is next.

Ask and tell happen in the one process that holds the search's lease. Truth is what runs leave
behind: a trial is no more than values and the id of the run that tries them. A sampler is made
anew for every question, seeded by what was asked before, so that a restart goes on as if nothing
had happened.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.config import RUNAWAY
from harness.errors import GridError, IsolossError
from harness.records import PlannedRun
from harness.resolve import GridRun
from harness.tuning.bracket import Result, next_points
from harness.tuning.cells import Cell, trial
from harness.tuning.config import Tune
from harness.tuning.space import (
    Dimension,
    Range,
    at_edge,
    dimensions,
    distribution,
    rounded,
    widened,
)
from harness.tuning.trials import Open, counts, is_open, kinds, loss_of, study_name

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

MAX_REPEATS = 50
"""Proposals in a row that may have been tried before, until nothing new is expected."""
STARTUP_TRIALS = 5
"""Random trials before TPE models anything: Optuna's 10 would be most of a search of 12."""
TRIALS_BEFORE_WIDENING = 4
"""Results of a cell before its best value may move an end of a range."""
LOST = "the controller ended before the run was written"


class CellStudy:
    """The search of one cell.

    Parameters
    ----------
    planned
        Prices a run.
    blocked
        Why a run will not be executed: it failed, or was cancelled; None for any other.

    Raises
    ------
    IsolossError
        The method needs a package that is not installed.
    """

    def __init__(
        self,
        cell: Cell,
        tune: Tune,
        storage: BaseStorage,
        sweep: str,
        planned: Callable[[GridRun], PlannedRun],
        blocked: Callable[[str], str | None],
    ) -> None:
        import optuna

        self.cell, self.tune, self.storage = cell, tune, storage
        self.planned, self.blocked = planned, blocked
        self.dimensions = dimensions(tune, cell)
        self.ended: str | None = None
        """Why no more is asked; None while the search goes on."""
        self.complete = False
        """Whether it ended as it should."""
        self._check_method()
        about = {"cell_key": cell.key, "fields": kinds(self.dimensions), "seed": tune.seed}
        name = study_name(storage, f"{sweep}/{cell.cell}", about)
        self.study = optuna.create_study(
            study_name=name, storage=storage, load_if_exists=True, direction="minimize"
        )
        self.study_id = storage.get_study_id_from_name(name)
        if "about" not in self.study.user_attrs:
            self.study.set_user_attr("about", about)

    def _check_method(self) -> None:
        if self._models_ranges and find_spec("cmaes") is None:
            raise IsolossError("tune.method cmaes needs the package cmaes: pip install cmaes")

    @property
    def _models_ranges(self) -> bool:
        """Whether CMA-ES searches this cell: of one range, as some arms have, it has no model."""
        ranges = [d for d in self.dimensions.values() if isinstance(d, Range)]
        return self.tune.method == "cmaes" and len(ranges) > 1

    def trials(self) -> list[FrozenTrial]:
        """All trials, in order."""
        return self.storage.get_all_trials(self.study_id, deepcopy=False)

    @property
    def n_finished(self) -> int:
        """Trials that count: those with a result, and those that were stopped early."""
        return sum(counts(t) for t in self.trials())

    @property
    def n_open(self) -> int:
        """Trials under way."""
        return sum(is_open(t) for t in self.trials())

    @property
    def n_left(self) -> int:
        """Trials that may still be begun."""
        return self.tune.trials - self.n_finished - self.n_open

    @property
    def penalty(self) -> float:
        """Value of a run that diverged: the loss above which training gives up, nats/token."""
        return RUNAWAY * math.log(self.cell.template.corpus.vocab_size)

    def results(self) -> list[Result]:
        """Trials as a bracket sees them, running ones included."""
        return [
            Result(t.user_attrs["values"], loss_of(t))
            for t in self.trials()
            if "values" in t.user_attrs and (counts(t) or is_open(t))
        ]

    def settle(self, known: Mapping[str, PlannedRun]) -> list[Open]:
        """Take up what an earlier process left: give up trials without a run, return the others.

        Parameters
        ----------
        known
            Runs that were written down, by id.
        """
        found = []
        for t in self.trials():
            if not is_open(t):
                continue
            run_id = t.user_attrs.get("run_id")
            run = known.get(run_id) or self._again(t) if run_id else None
            if run is None or run.run_id != run_id:
                changed = "its run is no longer the one that the grid describes"
                self.fail(t.number, changed if run_id else LOST)
            else:
                found.append(Open(t.number, t._trial_id, run, t.user_attrs["values"]))
        return found

    def _again(self, t: FrozenTrial) -> PlannedRun | None:
        try:
            return self.planned(trial(self.cell, t.user_attrs["values"], self.tune.seed))
        except GridError:
            return None

    def next(self) -> Open | None:
        """Ask for one more trial; None when there is none now, or at all: see :attr:`ended`."""
        if self.ended is not None:
            return None
        found = None
        if self.n_left > 0:
            bracket = self.tune.method == "bracket"
            found = self._next_of_bracket() if bracket else self._next_of_sampler()
        if found is None and self.ended is None and not self.n_open:
            self._end("complete", complete=True)
        return found

    def _next_of_bracket(self) -> Open | None:
        points = next_points(self.dimensions, self.results(), self.tune.trials)
        while points:
            run, found = self._run(points[0])
            if run is not None and self._stuck(run):
                return None
            if run is not None:
                found = self._add(points[0], run)
            if found is not None:
                return found
            points = next_points(self.dimensions, self.results(), self.tune.trials)
        return None

    def _run(self, values: Mapping[str, Any]) -> tuple[PlannedRun | None, Open | None]:
        """Plan a point's run; values that make no run are told at once."""
        try:
            return self.planned(trial(self.cell, values, self.tune.seed)), None
        except GridError as error:
            self._add(values, None, str(error))
            return None, None

    def _stuck(self, run: PlannedRun) -> bool:
        """Whether a bracket cannot go on, as the run that it needs has failed or was cancelled."""
        why = self.blocked(run.run_id)
        if why is None:
            return False
        self._end(f"its trial {run.run_id} {why}")
        return True

    def _add(
        self, values: Mapping[str, Any], run: PlannedRun | None, invalid: str | None = None
    ) -> Open | None:
        """Write a trial of given values in one line of the journal, its run's id included."""
        import optuna

        spaces = {p: distribution(d, bracket=True) for p, d in self.dimensions.items()}
        attrs: dict[str, Any] = {"values": dict(values)}
        attrs |= {"run_id": run.run_id} if run else {"diverged": True, "reason": invalid}
        state = optuna.trial.TrialState.RUNNING if run else optuna.trial.TrialState.COMPLETE
        self.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=None if run else self.penalty,
                params=dict(values),
                distributions=spaces,
                user_attrs=attrs,
            )
        )
        made = self.trials()[-1]
        return Open(made.number, made._trial_id, run, dict(values)) if run else None

    def _next_of_sampler(self) -> Open | None:
        about = self._about()
        if self.study.user_attrs.get("exhausted") == about:
            return None
        for _ in range(MAX_REPEATS):
            found = self._ask()
            if found is not None or self.n_left <= 0:
                return found
        self.study.set_user_attr("exhausted", about)
        return None

    def _ask(self) -> Open | None:
        """One question to the sampler; None when the answer was tried before, or makes no run."""
        self.study.sampler = self._sampler()
        asked = self.study.ask({p: distribution(d) for p, d in self._ranges().items()})
        values = {p: rounded(v) if isinstance(v, float) else v for p, v in asked.params.items()}
        asked.set_user_attr("values", values)
        try:
            run = self.planned(trial(self.cell, values, self.tune.seed))
        except GridError as error:
            self.diverged(asked.number, str(error))
            return None
        earlier = self._earlier(run.run_id, asked.number)
        if earlier is not None:
            self.storage.set_trial_user_attr(asked._trial_id, "repeat", True)
            self.fail(asked.number, f"repeats trial {earlier}")
            return None
        asked.set_user_attr("run_id", run.run_id)
        return Open(asked.number, asked._trial_id, run, values)

    def _earlier(self, run_id: str, number: int) -> int | None:
        """Trial that stands for a run already; one that failed stands as long as its run does."""
        for t in self.trials():
            if t.number != number and t.user_attrs.get("run_id") == run_id:
                if counts(t) or is_open(t):
                    return t.number
                if self.blocked(run_id) is not None:
                    return t.number
        return None

    def _sampler(self) -> BaseSampler:
        from optuna.samplers import CmaEsSampler, RandomSampler, TPESampler

        text = f"{self.tune.seed} {self.cell.key} {len(self.trials())}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        if self.tune.method == "random":
            return RandomSampler(seed=seed)
        if self._models_ranges:
            return CmaEsSampler(seed=seed, warn_independent_sampling=False)
        return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)

    def _ranges(self) -> dict[str, Dimension]:
        """Fields with their ranges as widened so far; a best value at an end widens them now.

        Not for CMA-ES, whose model is of fixed ranges.
        """
        known = self.study.user_attrs.get("ranges", {})
        found, ends = dict(self.dimensions), dict(known)
        best = self._best()
        for path, dimension in self.dimensions.items():
            if not isinstance(dimension, Range) or self._models_ranges:
                continue
            now = _between(dimension, known.get(path))
            side = at_edge(now, best[path]) if best and path in best else None
            now = widened(now, side) if side and self.tune.at_edge == "widen" else now
            found[path] = now
            if now != dimension:
                ends[path] = [now.low, now.high]
        if ends != known:
            self.study.set_user_attr("ranges", ends)
        return found

    def _best(self) -> Mapping[str, Any] | None:
        results = [r for r in self.results() if r.loss is not None]
        if len(results) < TRIALS_BEFORE_WIDENING:
            return None
        best = min(results, key=lambda result: result.loss or math.inf)
        return best.values if best.loss is not None and math.isfinite(best.loss) else None

    def _about(self) -> str:
        """What the answers of a sampler depend on."""
        search = self.tune.model_dump(mode="json", include={"search", "method", "seed"})
        return json.dumps(search, sort_keys=True)

    def _end(self, why: str, *, complete: bool = False) -> None:
        self.ended, self.complete = why, complete

    def stop(self, why: str) -> None:
        """Ask no more in this process."""
        self._end(why)

    def done(self, number: int, loss_nats: float) -> None:
        """Tell the loss of a run that reached its end."""
        self.study.tell(number, loss_nats)

    def diverged(self, number: int, why: str) -> None:
        """Tell a run that diverged: a finite loss, as Optuna would drop NaN and keep inf."""
        self._attr(number, "diverged", True)
        self._attr(number, "reason", why)
        self.study.tell(number, self.penalty)

    def pruned(self, number: int, why: str) -> None:
        """Tell a run that was stopped early."""
        import optuna

        self._attr(number, "reason", why)
        self.study.tell(number, state=optuna.trial.TrialState.PRUNED)

    def fail(self, number: int, why: str) -> None:
        """Tell a trial that has no result and never will; it does not count."""
        import optuna

        self._attr(number, "reason", why)
        self.study.tell(number, state=optuna.trial.TrialState.FAIL)

    def report(self, number: int, losses: Mapping[int, float]) -> None:
        """Tell validation losses on the way, by the number of the validation, from 1."""
        trial_ = self.trials()[number]
        for index, loss in losses.items():
            if index not in trial_.intermediate_values:
                self.storage.set_trial_intermediate_value(trial_._trial_id, index, loss)

    def _attr(self, number: int, name: str, value: Any) -> None:
        self.storage.set_trial_user_attr(self.trials()[number]._trial_id, name, value)


def _between(dimension: Range, ends: list[float] | None) -> Range:
    """A range with the ends that an earlier question came to, where those are farther out."""
    if ends is None:
        return dimension
    low, high = min(dimension.low, ends[0]), max(dimension.high, ends[1])
    return replace(dimension, low=low, high=high)
