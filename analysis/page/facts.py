"""Facts of a study counted once, for the methods paragraph, the run card and the page.

Pure; takes what was computed, never the plan alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import pandas as pd

from analysis.collect import compact, usable
from analysis.page.numerals import DASH, listed
from analysis.page.sweep_tables import column, sizes_of
from analysis.study import Analysis


@dataclass(frozen=True)
class Facts:
    """Counts of the runs behind a study."""

    n_runs: int
    n_used: int
    arms: tuple[str, ...]
    """Arms besides the baseline with a usable run."""
    sizes: tuple[str, ...]
    """Labels of the sizes with a usable run, by compute."""
    seeds: tuple[int, int] | None
    """Fewest and most seeds of a cell; None where no seed is recorded."""
    flops: tuple[float, float] | None
    n_params: tuple[float, float] | None
    tokens: tuple[float, float] | None
    excluded: tuple[tuple[str, int], ...]
    """Reason (numbers left out) and runs, most frequent first."""


def facts_of(found: Analysis) -> Facts:
    """Count what a study rests on."""
    used = usable(found.runs)
    seeds = used.groupby(["arm", "size"])["seed"].nunique() if len(used) else None
    arms = [str(arm) for arm in dict.fromkeys(used["arm"]) if arm != found.baseline]
    alive = set(used["size"])
    return Facts(
        n_runs=len(found.runs),
        n_used=len(used),
        arms=tuple(arms),
        sizes=tuple(size for size in sizes_of(found.runs) if size in alive),
        seeds=None if seeds is None or seeds.max() == 0 else (int(seeds.min()), int(seeds.max())),
        flops=_range(used, "flops"),
        n_params=_range(used, "n_params"),
        tokens=_range(used, "tokens"),
        excluded=_excluded(found.runs),
    )


def software() -> str:
    """Name and version of this software."""
    try:
        return f"isoloss {version('isoloss')}"
    except PackageNotFoundError:
        return "isoloss"


def libraries() -> str:
    """The libraries that computed the fits, with their versions."""
    return ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "pandas"))


def span(values: tuple[float, float] | None, unit: str = "") -> str:
    """A range for reading: ``1e12 to 2.7e13 FLOPs``, one value where both ends agree."""
    if values is None:
        return DASH
    low, high = compact(values[0]), compact(values[1])
    return f"{low if low == high else f'{low} to {high}'} {unit}".strip()


def distinct(runs: pd.DataFrame, name: str, most: int = 4) -> list[str]:
    """The different values of a column as text, in order of appearance."""
    values = [str(value) for value in column(runs, name).dropna().unique()]
    return values if len(values) <= most else [*values[:most], f"{len(values) - most} more"]


def flat(text: str) -> str:
    """A JSON object as ``key value, key value``; any other text as it is."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        return text
    if not isinstance(content, dict):
        return text
    return ", ".join(f"{key} {value}" for key, value in content.items())


def excluded_text(facts: Facts) -> str:
    """What was left out and why: ``2 excluded (1 diverged, 1 failed)``."""
    n = facts.n_runs - facts.n_used
    if not n:
        return "none excluded"
    return f"{n} excluded ({listed([f'{count} {reason}' for reason, count in facts.excluded])})"


def _range(used: pd.DataFrame, name: str) -> tuple[float, float] | None:
    values = column(used, name).dropna().astype(float)
    return None if values.empty else (float(values.min()), float(values.max()))


def _excluded(runs: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    """Reasons without what tells single runs apart: numbers, and all after a colon."""
    reasons = runs["excluded_because"].dropna().astype(str)
    kinds = Counter(re.sub(r"\d[\d.e+-]*", "N", reason.split(":")[0]) for reason in reasons)
    return tuple(kinds.most_common())
