"""The parts of MLflow that the mirror uses, imported with its defaults made fit for a bystander.

No telemetry, no console notes, no minutes of retries inside one request: the mirror has a retry
loop of its own. A setting that is already in the environment wins. Importing this takes seconds.
"""

from __future__ import annotations

import logging
import os

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}.items():
    os.environ.setdefault(_name, _value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

__all__ = [
    "STORE_ERRORS",
    "Experiment",
    "Metric",
    "MlflowClient",
    "MlflowException",
    "Param",
    "Run",
    "RunTag",
    "ViewType",
    "is_outage",
    "silence",
]

# requests' exceptions are OSErrors.
STORE_ERRORS: tuple[type[Exception], ...] = (MlflowException, OSError)
"""What a call of the client raises when the store refuses it or is away."""

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
    """Whether the store is away or broken, rather than refusing this one request."""
    return not (isinstance(error, MlflowException) and error.error_code in _REFUSALS)


def silence() -> None:
    """Keep MLflow's own log lines to itself: the mirror reports every error in its own words."""
    for name, level in (
        ("mlflow", logging.CRITICAL),
        ("alembic", logging.WARNING),
        ("urllib3", logging.ERROR),
    ):
        logging.getLogger(name).setLevel(level)
