"""What the mirror asks of MLflow, and what it remembers of the answers.

One experiment per sweep, one flat MLflow run per run, found again by the tag ``isoloss.run_id``.
The store is its own memory: what was sent is read back from it when a run is first met, so that a
mirror may be killed between any two requests. Errors pass through to ``harness.mirror``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.mirror_view import MIRRORED_TAG, RUN_ID_TAG, TAG, Point, RunView
from harness.mlflow_api import (
    Experiment,
    Metric,
    MlflowClient,
    MlflowException,
    Param,
    Run,
    RunTag,
    ViewType,
)
from harness.tracking import is_server

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
    params: set[str] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)
    """Metrics that the store had when the run was met; their marks are read when needed."""
    marks: dict[str, int] | None = None
    """Highest step sent, by metric; None until read from the store."""
    deleted: bool = False

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
    """

    def __init__(self, tracking_uri: str, artifacts: Path) -> None:
        self.tracking_uri, self.artifacts = tracking_uri, artifacts
        self.client = MlflowClient(tracking_uri=tracking_uri)
        self.experiment_id = ""

    def open(self, sweep: str) -> dict[str, ShownRun]:
        """Get or create the experiment; return its runs by our run id.

        An experiment that was deleted by hand is restored, its runs with it.
        """
        found = self.client.get_experiment_by_name(sweep) or self._create(sweep)
        if found.lifecycle_stage == "deleted":
            log.info("restoring the deleted MLflow experiment %s", sweep)
            self.client.restore_experiment(found.experiment_id)
        self.experiment_id = str(found.experiment_id)
        return _prefer_active(self._search())

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

    def _search(self) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], run_view_type=ViewType.ALL, max_results=1000, page_token=token
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
        return ShownRun(run.info.run_id, run.info.status, dict(view.tags), marks={})

    def revive(self, shown: ShownRun) -> None:
        """Restore a run that was deleted by hand: the mirror shows what the folder holds."""
        if shown.deleted:
            self.client.restore_run(shown.mlflow_id)
            shown.deleted = False

    def send(self, shown: ShownRun, view: RunView) -> int:
        """Send points above the high-water marks, new params and changed tags; count the points."""
        marks = self._marks(shown)
        fresh = [point for point in view.points if point.step > marks.get(point.key, -1)]
        params = [Param(k, v) for k, v in view.params.items() if k not in shown.params]
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
        shown.params |= view.params.keys()
        shown.tags |= view.tags
        self._drop_stale_tags(shown, view)
        return len(fresh)

    def _marks(self, shown: ShownRun) -> dict[str, int]:
        if shown.marks is None:
            shown.marks = {key: self._mark(shown.mlflow_id, key) for key in shown.keys}
        return shown.marks

    def _mark(self, mlflow_id: str, key: str) -> int:
        """Highest step that the store holds of one metric."""
        return max((m.step for m in self.client.get_metric_history(mlflow_id, key)), default=-1)

    def _drop_stale_tags(self, shown: ShownRun, view: RunView) -> None:
        """Delete what no longer holds, such as the error of a run that was done again."""
        ours = {key for key in shown.tags if key.startswith(TAG)}
        for key in ours - view.tags.keys() - {MIRRORED_TAG}:
            self.client.delete_tag(shown.mlflow_id, key)
            del shown.tags[key]

    def set_status(self, shown: ShownRun, status: str, ended_ms: int | None) -> None:
        """Set a status; MLflow ends runs and takes them up again by different calls."""
        if status == "RUNNING":
            if shown.status != "RUNNING":
                self.client.update_run(shown.mlflow_id, status)
        elif shown.status != status:
            self.client.set_terminated(shown.mlflow_id, status, ended_ms)
        shown.status = status

    def finish(self, shown: ShownRun, view: RunView, artifacts: Path) -> None:
        """Complete a run that has ended: its artifacts, its status, and last the tag saying so."""
        assert view.record_sha is not None
        self.client.log_artifacts(shown.mlflow_id, str(artifacts))
        self.client.set_terminated(shown.mlflow_id, view.status, view.ended_ms)
        shown.status = view.status
        self.client.set_tag(shown.mlflow_id, MIRRORED_TAG, view.record_sha)
        shown.tags[MIRRORED_TAG] = view.record_sha

    def close(self, runs: Iterable[ShownRun], abandoned: Callable[[ShownRun], bool]) -> None:
        """End those of the runs shown as running that are abandoned: nothing else would."""
        for shown in runs:
            if shown.status == "RUNNING" and not shown.deleted and abandoned(shown):
                self.set_status(shown, "KILLED", None)


def _metric(point: Point) -> Metric:
    return Metric(point.key, point.value, point.timestamp_ms, point.step)


def _prefer_active(runs: Iterator[Run]) -> dict[str, ShownRun]:
    """MLflow runs by our run id; of several, an active one, and of those the oldest."""
    ordered = sorted(
        runs, key=lambda r: (r.info.lifecycle_stage == "deleted", r.info.start_time or 0)
    )
    found: dict[str, ShownRun] = {}
    for run in ordered:
        tags = dict(run.data.tags)
        if RUN_ID_TAG in tags:
            shown = ShownRun(
                mlflow_id=run.info.run_id,
                status=run.info.status,
                tags=tags,
                params=set(run.data.params),
                keys=list(run.data.metrics),
                deleted=run.info.lifecycle_stage == "deleted",
            )
            found.setdefault(tags[RUN_ID_TAG], shown)
    return found
