"""Everything computed from one sweep: laws and multipliers in every currency, as data and JSON.

Pure; takes the frame of ``collect``. A law that is refused is kept as its reason.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.cells import CURRENCIES, cell_points
from analysis.collect import usable
from analysis.compare import Multiplier, compare_arms
from analysis.estimates import Exclusion, FitRefused
from analysis.fit import FitResult, fit_shared
from harness.cost import FLOP_CONVENTION
from harness.records import Manifest


@dataclass(frozen=True)
class Analysis:
    """Everything computed from one sweep."""

    runs: pd.DataFrame
    baseline: str
    asymptote: float
    laws: Mapping[str, FitResult | str]
    """By currency: the fit, or why there is none."""
    comparisons: Mapping[str, tuple[Multiplier, ...]]
    """By currency, the headline currency first."""
    refusal: str | None = None
    """Why nothing is compared at all: the runs measured different losses."""


def analyse(runs: pd.DataFrame, baseline: str, asymptote: float = 0.0) -> Analysis:
    """Fit and compare in every currency; what is refused becomes its reason.

    Raises
    ------
    FitRefused
        The pinned E lies at or above a loss.
    """
    used = usable(runs)
    mixed = _mixed_losses(used)
    if mixed:
        nothing: dict[str, tuple[Multiplier, ...]] = {currency.name: () for currency in CURRENCIES}
        return Analysis(runs, baseline, asymptote, dict.fromkeys(nothing, mixed), nothing, mixed)
    excluded = runs[runs["excluded_because"].notna()]
    exclusions = [
        Exclusion(str(r.run_id), str(r.arm), str(r.excluded_because)) for r in excluded.itertuples()
    ]
    laws: dict[str, FitResult | str] = {}
    for currency in CURRENCIES:
        points = cell_points(used, currency)
        try:
            laws[currency.name] = fit_shared(
                points, currency, asymptote=asymptote, exclusions=exclusions
            )
        except FitRefused as refusal:
            laws[currency.name] = str(refusal)
    comparisons = {
        currency.name: compare_arms(used, baseline, currency, asymptote=asymptote)
        for currency in CURRENCIES
    }
    return Analysis(runs, baseline, asymptote, laws, comparisons)


def fits_json(found: Analysis, manifest: Manifest) -> str:
    """Laws and multipliers at full precision; null for what is undefined or not finite."""
    content = {
        "schema_version": 1,
        "sweep": manifest.sweep,
        "baseline": found.baseline,
        "asymptote_nats": found.asymptote,
        "flop_convention": FLOP_CONVENTION,
        "n_used": len(usable(found.runs)),
        "n_runs": len(found.runs),
        "laws": {
            name: {"refused": law} if isinstance(law, str) else dataclasses.asdict(law)
            for name, law in found.laws.items()
        },
        "multipliers": {
            name: [dataclasses.asdict(m) for m in multipliers]
            for name, multipliers in found.comparisons.items()
        },
    }
    return json.dumps(_finite(content), indent=2)


def _mixed_losses(used: pd.DataFrame) -> str | None:
    """Say which of corpus, vocabulary and validation set the runs do not share, if any."""
    for column in ("corpus_sha256", "vocab_size", "eval_tokens"):
        values = used[column].dropna().unique()
        if len(values) > 1:
            shown = ", ".join(str(value)[:12] for value in values)
            return (
                f"losses are not comparable, the runs differ in {column} ({shown}); give each "
                "its own sweep"
            )
    return None


def _finite(value: Any) -> Any:
    """The same structure with null for NaN and infinity, which JSON cannot carry."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
