"""Reads what a search left behind: ``tuned.yaml`` and the sweep of its trials."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.collect import collect
from analysis.tuning.types import Outcome, Trial
from harness.paths import SweepPaths
from harness.records import Manifest, PlannedRun, read_manifest
from harness.tuned import Tuned, cell_key, read_tuned

STOPPED = "stopped early"
"""How the reason of a trial begins that a pruner ended."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a search left on disk, by arm and size of the sweep that it was made for."""

    tuned: Tuned
    places: Mapping[str, tuple[str, str]]
    """Key of arm and size to their labels in the sweep."""
    trials: tuple[Trial, ...]
    """Of arms and sizes that the sweep still has, in the order of the trials' manifest."""


def read_search(paths: SweepPaths, manifest: Manifest, runs: pd.DataFrame) -> Search | None:
    """Read the search of a sweep; None where its values were not tuned.

    Parameters
    ----------
    paths, manifest
        Of the sweep, not of its trials.
    runs
        The sweep's runs, as of :func:`analysis.collect.collect`.

    Raises
    ------
    DataError
        ``tuned.yaml`` is damaged.
    """
    tuned = read_tuned(paths.tuned)
    if tuned is None:
        return None
    sizes = dict(zip(runs["run_id"], runs["size"], strict=True))
    places = {
        _key(planned, tuned): (planned.arm, str(sizes[planned.run_id]))
        for planned in manifest.runs
        if planned.role == "main"
    }
    trials: tuple[Trial, ...] = ()
    if paths.tuning.manifest.exists():
        trials = _trials(paths.tuning, tuned, places)
    return Search(tuned=tuned, places=places, trials=trials)


def _key(planned: PlannedRun, tuned: Tuned) -> str:
    return cell_key(planned.config, tuned.searched, planned.corpus_sha256, planned.recipe_revision)


def _trials(
    paths: SweepPaths, tuned: Tuned, places: Mapping[str, tuple[str, str]]
) -> tuple[Trial, ...]:
    rows = {str(row["run_id"]): row for row in collect(paths).to_dict("records")}
    found = []
    for planned in read_manifest(paths).runs:
        place = places.get(_key(planned, tuned))
        # An edited search leaves the trials of its former seed, which chose nothing.
        if place is not None and planned.config["seed"] == tuned.seed:
            found.append(_trial(planned, rows[planned.run_id], *place))
    return tuple(found)


def _trial(planned: PlannedRun, row: Mapping[str, Any], arm: str, size: str) -> Trial:
    loss = row["loss_nats"]
    outcome = _outcome(str(row["status"]), str(row["excluded_because"] or ""), float(loss))
    last = row["last_step"]
    return Trial(
        run_id=planned.run_id,
        arm=arm,
        size=size,
        flops=planned.cost.flops,
        outcome=outcome,
        values=json.loads(row["tuned"]) if row["tuned"] else {},
        loss_nats=float(loss) if outcome == "done" else None,
        last_step=None if pd.isna(last) else int(last),
        steps=planned.cost.steps,
        why="" if outcome == "done" else str(row["excluded_because"] or ""),
    )


def _outcome(status: str, why: str, loss: float) -> Outcome:
    if status == "done":
        return "done" if math.isfinite(loss) else "failed"
    if status == "diverged":
        return "diverged"
    if status == "cancelled" and why.startswith(STOPPED):
        return "stopped early"
    return "failed" if status in ("failed", "cancelled") else "unfinished"
