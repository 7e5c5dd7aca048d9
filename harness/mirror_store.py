"""What the mirror asks of MLflow, and what it remembers of the answers.

One experiment per sweep, one flat MLflow run per run, found again by the tag ``isoloss.run_id``.
The store is its own memory: what was sent is read back from it when a run is first met, so that a
mirror may be killed between any two requests. Errors pass through to ``harness.mirror_pass``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.mirror_memory import Identity
from harness.mirror_view import (
    EVALUATION_METRICS,
    MIRRORED_TAG,
    OUR_TAGS,
    RUN_ID_TAG,
    Point,
    RunView,
)
from harness.mlflow_api import (
    Experiment,
    Metric,
    MlflowClient,
    MlflowException,
    Param,
    Run,
    RunTag,
    ViewType,
    latest_steps,
)
from harness.tracking import is_server, patient, shown_uri, sqlite_path

log = logging.getLogger("isoloss.mirror")

BATCH = 900
"""Points per request; params and tags ride with the first. MLflow's limit is 1000 of all three."""
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Opens the experiment on its runs and charts; otherwise MLflow 3 guesses, or asks."""


@dataclass
class ShownRun:
    """What MLflow shows of one run, as far as this process knows."""

    mlflow_id: str
    status: str
    tags: dict[str, str]
    params: set[str] | None = None
    """Names of the params sent; None until read from the store."""
    marks: dict[str, int] | None = None
    """Highest step sent, by metric; None until read from the store."""
    deleted: bool = False
    doubtful: bool = True
    """Whether requests of another process, or one that went unanswered, may have reached it."""

    @property
    def mirrored(self) -> str | None:
        """Hash of the record that is mirrored completely; None when something is missing."""
        return None if self.deleted else self.tags.get(MIRRORED_TAG)


class Store:
    """The experiment of one sweep in an MLflow store.

    Parameters
    ----------
    artifacts
        Folder for artifacts; unused when a server chooses the place.
    check
        Raises when this process may no longer write; called before every request.
    """

    def __init__(self, tracking_uri: str, artifacts: Path, check: Callable[[], None]) -> None:
        self.tracking_uri, self.artifacts = tracking_uri, artifacts
        if sqlite_path(tracking_uri):  # a connection kept open would go on in a deleted file
            os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
        self._client = MlflowClient(tracking_uri=patient(tracking_uri))
        self._check = check
        self.experiment_id = ""

    @property
    def client(self) -> MlflowClient:
        """The client, once it is clear that this process may still write."""
        self._check()
        return self._client

    def open(self, sweep: str) -> Identity:
        """Get or create the experiment; one that was deleted by hand is restored, its runs with
        it.
        """
        found = self.client.get_experiment_by_name(sweep) or self._create(sweep)
        if found.lifecycle_stage == "deleted":
            log.info("restoring the deleted MLflow experiment %s", sweep)
            self.client.restore_experiment(found.experiment_id)
        self.experiment_id = str(found.experiment_id)
        return (shown_uri(self.tracking_uri), self.experiment_id, int(found.creation_time or 0))

    def all_runs(self) -> dict[str, ShownRun]:
        """All runs of the experiment by our run id; slow where they are thousands."""
        return self._runs("")

    def running(self) -> dict[str, ShownRun]:
        """Runs of the experiment that are shown as running."""
        return self._runs("attributes.status = 'RUNNING'")

    def find(self, run_id: str) -> ShownRun | None:
        """What is shown of one run; None for nothing."""
        return self._runs(f"tags.`{RUN_ID_TAG}` = '{run_id}'").get(run_id)

    def _runs(self, condition: str) -> dict[str, ShownRun]:
        """Runs by our run id. Where a lost answer made a run twice, the poorer one is deleted."""
        best, doubles = _best_of(self._search(condition))
        for run in doubles:
            self.client.delete_run(run)
        return best

    def answers(self) -> bool:
        """Whether the store answers a request that it cannot refuse."""
        try:
            return bool(self.client.get_experiment(self.experiment_id))
        except Exception:  # whatever it says instead, it is of no use now
            return False

    def _create(self, sweep: str) -> Experiment:
        place = None if is_server(self.tracking_uri) else (self.artifacts / sweep).as_uri()
        try:
            created = self.client.create_experiment(sweep, place, dict(EXPERIMENT_TAGS))
            return self.client.get_experiment(created)
        except MlflowException as error:
            found = self.client.get_experiment_by_name(sweep)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
                raise
            return found

    def _search(self, condition: str) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                condition,
                run_view_type=ViewType.ALL,
                max_results=1000,
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def create_run(self, view: RunView) -> ShownRun:
        """Create the MLflow run of a run that was never shown before."""
        run = self.client.create_run(
            self.experiment_id, view.started_ms, dict(view.tags), view.name
        )
        return ShownRun(
            mlflow_id=run.info.run_id,
            status=run.info.status,
            tags=dict(view.tags),
            params=set(),
            marks={},
            doubtful=False,
        )

    def revive(self, shown: ShownRun) -> None:
        """Restore a run that was deleted by hand: the mirror shows what the folder holds."""
        if shown.deleted:
            self.client.restore_run(shown.mlflow_id)
            shown.deleted = False

    def delete(self, shown: ShownRun) -> None:
        """Delete a run that cannot be mended."""
        self.client.delete_run(shown.mlflow_id)

    def send(self, shown: ShownRun, view: RunView) -> int:
        """Send points above the high-water marks, new params and changed tags; count the points."""
        known, marks = self._sent(shown)
        fresh = [point for point in view.points if point.step > marks.get(point.key, -1)]
        params = [Param(k, v) for k, v in view.params.items() if k not in known]
        tags = [RunTag(k, v) for k, v in view.tags.items() if shown.tags.get(k) != v]
        for first in range(0, len(fresh), BATCH) or [0]:
            part = fresh[first : first + BATCH]
            self.client.log_batch(
                shown.mlflow_id,
                metrics=[_metric(point) for point in part],
                params=[] if first else params,
                tags=[] if first else tags,
            )
            marks.update({point.key: point.step for point in part})
        known.update(view.params)
        shown.tags |= view.tags
        self._drop_stale_tags(shown, view)
        return len(fresh)

    def _sent(self, shown: ShownRun) -> tuple[set[str], dict[str, int]]:
        """Params and high-water marks of a run; one request when it is met anew."""
        if shown.params is None or shown.marks is None:
            run = self.client.get_run(shown.mlflow_id)
            shown.params, shown.marks = set(run.data.params), latest_steps(run)
        return shown.params, shown.marks

    def _drop_stale_tags(self, shown: ShownRun, view: RunView) -> None:
        """Delete what no longer holds, such as the error of a run that was done again."""
        ours = {key for key in shown.tags if key.startswith(OUR_TAGS)}
        for key in ours - view.tags.keys() - {MIRRORED_TAG}:
            self.client.delete_tag(shown.mlflow_id, key)
            del shown.tags[key]

    def is_faithful(self, shown: ShownRun, view: RunView) -> bool:
        """Whether no step is there twice, and the values of the record and of evaluations are those
        of ``view``.

        Asks only where that may be otherwise: points cannot be changed once they were sent.
        """
        replaced = shown.mirrored not in (None, view.record_sha)
        if not shown.doubtful and not replaced:
            return True
        record = {p.key: p.value for p in view.points if p.key.startswith("record/")}
        for key in self._sent(shown)[1]:
            found = self.client.get_metric_history(shown.mlflow_id, key)
            if len({metric.step for metric in found}) < len(found):
                return False
            if key.startswith(EVALUATION_METRICS) and {m.step: m.value for m in found} != {
                p.step: p.value for p in view.points if p.key == key
            }:
                return False
            newest = max(found, key=lambda metric: metric.step, default=None)
            if key in record and newest and newest.value != record[key]:
                return False
        shown.doubtful = False
        return True

    def set_status(self, shown: ShownRun, status: str, ended_ms: int | None) -> None:
        """Set a status; MLflow ends runs and takes them up again by different calls."""
        if status == "RUNNING":
            if shown.status != "RUNNING":
                self.client.update_run(shown.mlflow_id, status)
        elif shown.status != status:
            self.client.set_terminated(shown.mlflow_id, status, ended_ms)
        shown.status = status

    def finish(self, shown: ShownRun, view: RunView, artifacts: Path) -> None:
        """Complete a run that has ended: its status, its artifacts, and last the tag saying so."""
        assert view.record_sha is not None
        self.client.set_terminated(shown.mlflow_id, view.status, view.ended_ms)
        shown.status = view.status
        self.client.log_artifacts(shown.mlflow_id, str(artifacts))
        self.client.set_tag(shown.mlflow_id, MIRRORED_TAG, view.record_sha)
        shown.tags[MIRRORED_TAG] = view.record_sha

    def close(self, runs: Iterable[ShownRun], abandoned: Callable[[ShownRun], bool]) -> None:
        """End those of the runs shown as running that are abandoned: nothing else would."""
        for shown in runs:
            if shown.status == "RUNNING" and not shown.deleted and abandoned(shown):
                self.set_status(shown, "KILLED", None)


def _metric(point: Point) -> Metric:
    return Metric(point.key, point.value, point.timestamp_ms, point.step)


def _best_of(runs: Iterator[Run]) -> tuple[dict[str, ShownRun], list[str]]:
    """MLflow runs by our run id, and the ids of those that show the same run less well.

    An active one before a deleted one, then a complete one, then the one with the most steps, then
    the oldest. Only what is needed of a run is kept: a sweep has thousands.
    """
    best: dict[str, tuple[tuple[object, ...], ShownRun]] = {}
    doubles: list[str] = []
    for run in runs:
        tags = {key: value for key, value in run.data.tags.items() if key.startswith(OUR_TAGS)}
        if RUN_ID_TAG not in tags:
            continue
        found = (_rank(run, tags), _met(run, tags))
        other = best.setdefault(tags[RUN_ID_TAG], found)
        if other is found:
            continue
        worse, better = sorted((found, other), key=lambda pair: pair[0])
        best[tags[RUN_ID_TAG]] = better
        if not worse[1].deleted:
            doubles.append(worse[1].mlflow_id)
    return {run_id: shown for run_id, (_, shown) in best.items()}, doubles


def _rank(run: Run, tags: dict[str, str]) -> tuple[object, ...]:
    active = run.info.lifecycle_stage != "deleted"
    steps = max(latest_steps(run).values(), default=-1)
    return (active, MIRRORED_TAG in tags, steps, -(run.info.start_time or 0), run.info.run_id)


def _met(run: Run, tags: dict[str, str]) -> ShownRun:
    deleted = run.info.lifecycle_stage == "deleted"
    return ShownRun(run.info.run_id, run.info.status, tags, deleted=deleted)
