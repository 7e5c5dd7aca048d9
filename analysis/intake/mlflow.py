"""Runs of an MLflow store as a table: ``mlflow:URI#experiment``.

One row per run: its params, the last value of its metrics, its tags. Runs that this project
mirrored are recognised by their tag and given this project's column names.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.intake.options import BadTable
from analysis.intake.read import frame_of
from harness.errors import MissingExtraError

PREFIX = "mlflow:"
PAGE = 1000
"""Runs asked for at once."""
RUN_ID_TAG = "isoloss.run_id"
"""The mirror's mark on a run (``harness.mirror_view``)."""
MIRROR_TAGS = ("run_id", "arm", "cell", "seed", "status", "excluded_because")
MIRROR_METRICS = ("loss_nats", "n_params", "n_params_non_embedding", "tokens", "flops")
_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "killed", "RUNNING": "running"}


def is_store(source: str) -> bool:
    """Whether a source names an MLflow store."""
    return source.startswith(PREFIX)


def read_store(source: str, client: Any = None) -> pd.DataFrame:
    """Read the runs of one experiment.

    Parameters
    ----------
    source
        ``mlflow:sqlite:///mlflow.db#experiment``; without a name the store's only experiment.
    client
        An ``MlflowClient``; None: one for the URI.

    Raises
    ------
    MissingExtraError
        MLflow is not installed.
    BadTable
        The store or the experiment is not there, or holds no run.
    """
    uri, _, name = source.removeprefix(PREFIX).partition("#")
    if client is None:
        client = _client(uri, source)
    try:
        experiment = _experiment(client, name, source)
        rows = [(f"run {run.info.run_id[:8]}", _row(run)) for run in _runs(client, experiment)]
    except (BadTable, MissingExtraError):
        raise
    except Exception as error:  # MLflow, SQLAlchemy and requests raise many kinds
        raise BadTable(source, [f"the store cannot be read: {_first_line(error)}"]) from error
    return frame_of(rows, source)


def _client(uri: str, source: str) -> Any:
    path = uri.removeprefix("sqlite:///")
    if path != uri and not os.path.exists(path):
        raise BadTable(source, [f"no such database: {path}"])
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        tracking = importlib.import_module("mlflow.tracking")
    except ModuleNotFoundError as error:
        raise MissingExtraError("fit mlflow:URI", "mlflow", error.name or "mlflow") from None
    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        return tracking.MlflowClient(tracking_uri=uri)
    except Exception as error:
        raise BadTable(source, [f"the store cannot be opened: {_first_line(error)}"]) from error


def _experiment(client: Any, name: str, source: str) -> str:
    """Id of the experiment; the message lists the others when it is not clear which."""
    found = {experiment.name: experiment.experiment_id for experiment in _experiments(client)}
    if name in found:
        return str(found[name])
    others = [other for other in found if other != "Default"]
    if not name and len(others) == 1:
        return str(found[others[0]])
    shown = ", ".join(others) or "none"
    what = f"no experiment {name!r}" if name else "name the experiment"
    raise BadTable(source, [f"{what}: mlflow:URI#EXPERIMENT; the store holds {shown}"])


def _experiments(client: Any) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _runs(client: Any, experiment: str) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _row(run: Any) -> dict[str, Any]:
    tags, params, metrics = dict(run.data.tags), dict(run.data.params), dict(run.data.metrics)
    if RUN_ID_TAG in tags:
        return _mirrored(tags, params, metrics)
    status = _STATUS.get(str(run.info.status), "running")
    row: dict[str, Any] = {"run_id": run.info.run_id, "status": status} | params
    for kind, values in (("metrics", metrics), ("tags", _own(tags))):
        row |= {f"{kind}.{k}" if k in row else k: v for k, v in values.items()}
    return row


def _own(tags: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in tags.items() if not key.startswith("mlflow.")}


def _mirrored(
    tags: dict[str, str], params: dict[str, str], metrics: dict[str, float]
) -> dict[str, Any]:
    row: dict[str, Any] = {name: tags.get(f"isoloss.{name}") for name in MIRROR_TAGS}
    row |= {name: metrics.get(f"record/{name}") for name in MIRROR_METRICS}
    steps, step_s = metrics.get("record/steps"), metrics.get("record/step_time_s")
    row["train_s"] = None if steps is None or step_s is None else steps * step_s
    flops, own = metrics.get("record/flops"), metrics.get("record/flops_residual")
    row["flops_without_residual"] = None if flops is None or own is None else flops - own
    rest = {k: v for k, v in params.items() if k.split(".")[0] != "residual" and k != "seed"}
    shape = {k: v for k, v in rest.items() if k.split(".")[0] in ("model", "data")}
    budget = {k: v for k, v in rest.items() if k.startswith("train.budget.")}
    row["size"] = f"{params.get('model.n_layers', '?')}x{params.get('model.d_model', '?')}"
    row["size_key"] = _canonical(shape | budget)
    row["pair_key"] = _canonical(rest)
    return row


def _canonical(values: dict[str, str]) -> str:
    return ";".join(f"{key}={values[key]}" for key in sorted(values))


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
