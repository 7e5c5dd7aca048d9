"""Losses of the trials along each searched field. Pure."""

from __future__ import annotations

import pandas as pd

from analysis.figures.lr_brackets import LrBracketsData, lr_brackets_data
from analysis.tuning.types import Tuning

_TRIED = ("done", "diverged", "stopped early")


def trial_brackets(tuning: Tuning, baseline: str) -> dict[str, LrBracketsData]:
    """Losses of the trials by searched field, fields of numbers only, in the order of the search.

    At one value of a field the lowest loss stands, as the others were searched, too. Points make a
    curve where the search went along it, or where nothing else was searched.
    """
    paths = list(dict.fromkeys(path for trial in tuning.trials for path in trial.values))
    rows = pd.DataFrame(
        [
            {
                **{path: number_of(trial.values.get(path)) for path in paths},
                "arm": trial.arm,
                "size": trial.size,
                "flops": trial.flops,
                "seed": tuning.tuned.seed,
                "loss_nats": trial.loss_nats,
            }
            for trial in tuning.trials
            if trial.outcome in _TRIED
        ]
    )
    joined = tuning.tuned.method == "bracket" or len(paths) == 1
    found = {
        path: lr_brackets_data(rows, baseline, field=path, least=True, joined=joined)
        for path in paths
    }
    return {path: data for path, data in found.items() if data.drawable}


def number_of(value: object) -> float | None:
    """A value as a number; None for words and switches."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
