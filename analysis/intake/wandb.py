"""Exports of Weights & Biases: the runs table of its page, and the CSV of its public API.

The page writes one column per config and summary value beside ``Name`` and ``State``. The snippet
of the API's documentation writes three, ``summary``, ``config`` and ``name``, the first two the
text of Python dictionaries.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.intake.options import BadTable
from analysis.intake.read import frame_of

API_COLUMNS = frozenset({"summary", "config", "name"})
_NAMES = {
    "nan": float("nan"),
    "NaN": float("nan"),
    "inf": float("inf"),
    "Infinity": float("inf"),
    "true": True,
    "false": False,
    "null": None,
}


def is_api_export(raw: pd.DataFrame) -> bool:
    """Whether the table is the CSV of the public API."""
    return set(raw.columns) >= API_COLUMNS and any(
        str(cell).lstrip().startswith("{") for cell in raw["config"]
    )


def unfold(raw: pd.DataFrame, source: str) -> pd.DataFrame:
    """Give every config and summary value of an API export its own column.

    A summary value whose name the config holds too becomes ``summary.<name>``.

    Raises
    ------
    BadTable
        A cell is no dictionary.
    """
    rows, problems = [], []
    for at, row in zip(raw.index, raw.to_dict("records"), strict=True):
        values = {str(k): v for k, v in row.items() if k and k not in ("summary", "config")}
        try:
            config, summary = _dictionary(row["config"]), _dictionary(row["summary"])
        except (ValueError, SyntaxError) as error:
            problems.append(f"{at}: config or summary is no dictionary ({error}); export it anew")
            continue
        values |= config
        values |= {f"summary.{k}" if k in config else k: v for k, v in summary.items()}
        rows.append((str(at), values))
    if problems:
        raise BadTable(source, problems)
    return frame_of(rows, source)


def _dictionary(text: object) -> dict[str, Any]:
    """Read the text of a dictionary, JSON or Python; NaN and infinity are no Python literals."""
    written = str(text).strip() or "{}"
    try:
        value = json.loads(written)
    except ValueError:
        tree = _Named().visit(ast.parse(written, mode="eval"))
        value = ast.literal_eval(tree)
    if not isinstance(value, dict):
        raise ValueError(f"got {written[:40]}")
    return dict(_scalars(value))


def _scalars(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            # The config as W&B stores it wraps each value: {"lr": {"value": 0.003, "desc": None}}.
            if set(value) in ({"value"}, {"value", "desc"}):
                yield f"{prefix}{key}", value["value"]
            else:
                yield from _scalars(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value) if isinstance(value, list | tuple) else value


class _Named(ast.NodeTransformer):
    """Puts values in place of the names that printed dictionaries hold."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in _NAMES:
            raise ValueError(f"unknown name {node.id}")
        return ast.copy_location(ast.Constant(_NAMES[node.id]), node)
