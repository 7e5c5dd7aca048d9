"""The parts of MLflow that the mirror uses, imported with its defaults made fit for a bystander.

No telemetry, no console notes, no retries inside one request: the mirror has a retry loop of its
own, and a request that MLflow repeats behind its back may have been obeyed twice. A setting that is
already in the environment wins. Importing this takes seconds.
"""

from __future__ import annotations

import logging
import os

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}.items():
    os.environ.setdefault(_name, _value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from sqlalchemy.exc import SQLAlchemyError  # noqa: E402

__all__ = [
    "Experiment",
    "Metric",
    "MlflowClient",
    "MlflowException",
    "Param",
    "Run",
    "RunTag",
    "ViewType",
    "is_outage",
    "latest_steps",
    "silence",
]

_REFUSALS = frozenset(
    {
        "BAD_REQUEST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)


def is_outage(error: Exception) -> bool:
    """Whether the store may be away or broken, rather than refusing this one request.

    The exceptions of ``requests`` are OSErrors.
    """
    if isinstance(error, MlflowException):
        return error.error_code not in _REFUSALS
    return isinstance(error, (OSError, SQLAlchemyError))


def latest_steps(run: Run) -> dict[str, int]:
    """Highest step that the store holds, by metric: MLflow's latest value is that of the highest
    step.
    """
    return {metric.key: int(metric.step) for metric in run.data.to_proto().metrics}


def silence() -> None:
    """Keep MLflow's own log lines to itself: the mirror reports every error in its own words."""
    for name, level in (
        ("mlflow", logging.CRITICAL),
        ("alembic", logging.WARNING),
        ("urllib3", logging.ERROR),
    ):
        logging.getLogger(name).setLevel(level)
