"""Fits of a table as JSON and as files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.collect import usable, write_table
from analysis.intake.fit_table import TableFits
from harness.paths import SweepPaths

_LEFT_OUT = frozenset({"draws", "curves", "points"})
"""Arrays of thousands of numbers that can be computed again."""


def fits_as_json(fits: TableFits) -> str:
    """Everything at full precision; null for what is undefined or not finite."""
    table = fits.table
    content = {
        "schema_version": 1,
        "source": table.source,
        "columns": table.columns,
        "baseline": table.baseline,
        "flop_convention": table.flop_convention,
        "notes": table.notes,
        "n_runs": len(table.runs),
        "n_used": len(usable(table.runs)),
        "excluded": [
            {"run_id": run.run_id, "arm": run.arm, "because": run.excluded_because}
            for run in table.runs.itertuples()
            if run.excluded_because is not None and run.excluded_because == run.excluded_because
        ],
        "options": fits.options,
        "asymptote_nats": fits.asymptote,
        "multipliers": fits.comparisons,
        **_checks(fits),
        "laws": fits.laws,
        "efficiency": fits.rescaled,
        "isoflop": fits.isoflop,
        "published": fits.published,
        "crossings": fits.crossings,
        "refused": fits.refused,
    }
    return json.dumps(plain(content), indent=2)


def _checks(fits: TableFits) -> dict[str, Any]:
    """What stands beside the multipliers; a text says why there is none."""
    found = fits.analysis
    if found is None:
        return {}
    return {
        "pairwise": found.pairwise,
        "slopes": found.slopes,
        "sensitivity": found.sensitivity,
        "multiplier_curves": found.curves,
        "noise": found.noise,
    }


def save_fits(fits: TableFits, folder: Path) -> str:
    """Write ``runs.parquet``, ``laws.json``, and what the report writes; returns its headline."""
    from analysis.page.report import report_table

    folder.mkdir(parents=True, exist_ok=True)
    made = report_table(
        fits.table,
        folder,
        asymptote=fits.asymptote,
        extrapolate_to=fits.options.extrapolate_to,
        found=fits.analysis,
        laws=fits.laws,
    )
    write_table(fits.table.runs, SweepPaths(folder.resolve()))
    (folder / "laws.json").write_text(fits_as_json(fits) + "\n", encoding="utf-8")
    return f"report: {made.report_path}"


def plain(value: Any) -> Any:
    """Dataclasses, arrays and tuples as what JSON holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in fields if name not in _LEFT_OUT}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
