"""A study as JSON: every estimate at full precision, null for what is undefined."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.collect import usable
from analysis.study import Analysis
from analysis.tuning.as_json import tuning_json
from analysis.tuning.types import Tuning

SCHEMA_VERSION = 2
_LEFT_OUT = ("runs", "joint_profile")
"""Fields that are tables of their own: runs.parquet, and a grid that is recomputed at once."""

_MAY_BE_REFUSED = frozenset({"pairwise", "slopes", "noise", "joint", "block_size"})


def fits_json(found: Analysis, name: str, tuning: Tuning | None = None) -> str:
    """Laws, multipliers and their doubts; null for what is undefined or not finite.

    Parameters
    ----------
    found
        The study.
    name
        Its sweep or table.
    tuning
        The search of its values; None adds nothing.
    """
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "sweep": name,
        "n_used": len(usable(found.runs)),
        "n_runs": len(found.runs),
    }
    for part in dataclasses.fields(found):
        value = getattr(found, part.name)
        if part.name not in _LEFT_OUT:
            content[part.name] = _refused(value) if part.name in _MAY_BE_REFUSED else _plain(value)
    content["asymptote_nats"] = content.pop("asymptote")
    if tuning is not None:
        content["tuning"] = tuning_json(tuning, found.baseline)
    return json.dumps(content, indent=2)


def _plain(value: Any) -> Any:
    """The same in JSON's terms; NaN and infinity become null, a refusal ``{"refused": why}``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if f.repr]
        return {f.name: _plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, Mapping):
        return {str(key): _refused(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, pd.DataFrame):
        return None
    return value


def _refused(value: Any) -> Any:
    return {"refused": value} if isinstance(value, str) else _plain(value)
