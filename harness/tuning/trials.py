"""Trials of a search as the journal holds them: open or ended, of which study, given up."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records import PlannedRun
from harness.tuning.space import Choices, Dimension, Geometric, Range

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Open:
    """A trial whose run has not ended."""

    number: int
    """Of the trial in its study, from 0."""
    trial_id: int
    """In the storage."""
    run: PlannedRun
    values: Mapping[str, Any]


def loss_of(t: FrozenTrial) -> float | None:
    """Loss as a bracket takes it, nats/token: None while open, inf where it has none."""
    if is_open(t):
        return None
    if t.user_attrs.get("diverged") or t.state.name == "PRUNED":
        return math.inf
    return float(t.value) if t.value is not None else math.inf


def counts(t: FrozenTrial) -> bool:
    """Whether a trial is one of ``tune.trials``: it has a result, or was stopped early."""
    return t.state.name in ("COMPLETE", "PRUNED")


def is_open(t: FrozenTrial) -> bool:
    """Whether its run has not ended."""
    return not t.state.is_finished()


def give_up_strays(storage: BaseStorage, wanted: set[int]) -> int:
    """Give up the open trials of cells that the grid no longer has; return how many."""
    import optuna

    strays = [
        t
        for study in storage.get_all_studies()
        if study._study_id not in wanted
        for t in storage.get_all_trials(study._study_id, deepcopy=False)
        if is_open(t)
    ]
    for t in strays:
        reason = "the grid no longer has its arm at its size"
        storage.set_trial_user_attr(t._trial_id, "reason", reason)
        storage.set_trial_state_values(t._trial_id, optuna.trial.TrialState.FAIL)
    return len(strays)


def study_name(storage: BaseStorage, name: str, about: dict[str, Any]) -> str:
    """Name of a study; longer where that name stands for another search, as of an edited grid.

    Optuna keeps the choices and the scale of a field for the whole life of a study.
    """
    for study in storage.get_all_studies():
        if study.study_name == name and study.user_attrs.get("about", about) != about:
            text = json.dumps(about, sort_keys=True)
            return f"{name} ({hashlib.sha256(text.encode()).hexdigest()[:6]})"
    return name


def kinds(dimensions: Mapping[str, Dimension]) -> dict[str, Any]:
    """What of the fields cannot change within a study."""
    return {
        path: list(d.values) if isinstance(d, Choices) else ["log" if _is_log(d) else "linear"]
        for path, d in dimensions.items()
    }


def _is_log(dimension: Geometric | Range) -> bool:
    return isinstance(dimension, Geometric) or dimension.log
