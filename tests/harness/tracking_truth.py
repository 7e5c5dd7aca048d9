"""What MLflow must show of a sweep, read from its files by other means than the mirror's."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun
from tests.harness.tracking_sweep import BATCH_TOKENS

ROW_FIELDS = {
    "train": ("loss_nats", "lr", "grad_norm"),
    "val": ("loss_nats", "bits_per_byte"),
}
RECORD_FIELDS = (
    *("loss_nats", "bits_per_byte", "n_params", "n_params_non_embedding", "n_params_residual"),
    *("steps", "tokens", "flops", "flops_residual", "flops_6nd", "tokens_per_s", "step_time_s"),
    *("mfu", "wall_s", "peak_bytes", "attempts"),
)
STATUS = {"done": "FINISHED", "diverged": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}

Points = dict[str, dict[int, float]]


def points_of(paths: RunPaths) -> Points:
    """Finite numbers of a run's files by metric and step; of repeated steps the first."""
    found: Points = defaultdict(dict)

    def put(key: str, step: int, value: Any) -> None:
        if value is not None and math.isfinite(value):
            found[key].setdefault(step, float(value))

    for row in _rows(paths.metrics):
        kind, step = row["kind"], row["step"]
        for name in ROW_FIELDS[kind]:
            put(f"{kind}/{name}", step, row.get(name))
        put("tokens", step, row["tokens"])
        put("flops", step, row["flops"])
        if kind == "train":
            put("sys/tokens_per_s", step, BATCH_TOKENS / row["step_time_s"])
    for row in _rows(paths.diagnostics):
        read = [r["normalised_entropy"] for r in row["reads"] if r["normalised_entropy"]]
        put("diagnostics/mean_entropy", row["step"], sum(read) / len(read))
        put("diagnostics/state_rms_final", row["step"], row["state_rms"][-1])
        put("diagnostics/collapsed_to_newest", row["step"], row["collapsed_to_newest"])
    if paths.record.exists():
        record = json.loads(paths.record.read_text(encoding="utf-8"))
        for name in RECORD_FIELDS:
            put(f"record/{name}", record["last_step"], record[name])
    return dict(found)


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def runs_of(client: MlflowClient, sweep: str) -> dict[str, Run]:
    """Active MLflow runs of a sweep by our id; fails when one id has two runs."""
    experiment = client.get_experiment_by_name(sweep)
    if experiment is None:
        return {}
    runs = client.search_runs([experiment.experiment_id])
    by_id = {run.data.tags["isoloss.run_id"]: run for run in runs}
    assert len(by_id) == len(runs), "a run is shown twice"
    return by_id


def shown_points(client: MlflowClient, run: Run) -> Points:
    """Every point that MLflow has of a run; fails when a step is there twice."""
    found: Points = {}
    for key in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, key)
        found[key] = {metric.step: metric.value for metric in history}
        assert len(found[key]) == len(history), f"{key} has a step twice"
    return found


def assert_mirrored(
    client: MlflowClient, sweep: SweepPaths, runs: list[PlannedRun], scratch: Path
) -> None:
    """MLflow shows exactly these runs, and all that their files tell of them."""
    shown = runs_of(client, sweep.root.name)
    assert set(shown) == {run.run_id for run in runs}
    for planned in runs:
        run, paths = shown[planned.run_id], sweep.run(planned.run_id)
        assert shown_points(client, run) == points_of(paths)
        assert run.data.params["seed"] == str(planned.config["seed"])
        assert run.data.params["train.lr"] == str(planned.config["train"]["lr"])
        assert run.data.tags["isoloss.arm"] == planned.arm
        assert run.data.tags["isoloss.cell"] == planned.cell
        assert run.data.tags["isoloss.attempt"] == str(paths.n_attempts())
        if not paths.record.exists():
            continue
        record = json.loads(paths.record.read_text(encoding="utf-8"))
        assert run.info.status == STATUS[record["status"]]
        assert run.data.tags["isoloss.status"] == record["status"]
        for name in ("record.json", "config.yaml"):
            copy = client.download_artifacts(run.info.run_id, name, str(scratch))
            assert Path(copy).read_bytes() == (paths.root / name).read_bytes()
