"""A search as a part of ``fits.json``: brackets, laws, multipliers at equal and own values."""

from __future__ import annotations

from typing import Any

from analysis.estimates import Interval
from analysis.tuning.brackets import trial_brackets
from analysis.tuning.types import OUTCOMES, Tuning


def tuning_json(tuning: Tuning, baseline: str) -> dict[str, Any]:
    """Numbers at full precision; null for what is undefined.

    Parameters
    ----------
    tuning
        What was found.
    baseline
        Arm listed first.
    """
    tuned = tuning.tuned
    return {
        "searched": list(tuned.searched),
        "method": tuned.method,
        "seed": tuned.seed,
        "optuna": tuned.optuna,
        "trials": {outcome: tuning.count(outcome) for outcome in OUTCOMES},
        "brackets": [
            {
                "path": path,
                "arm": bracket.arm,
                "size": bracket.size,
                "values": list(bracket.values),
                "loss_nats": list(bracket.loss),
                "lost": list(bracket.lost),
                "interior": bracket.interior,
            }
            for path, data in trial_brackets(tuning, baseline).items()
            for bracket in data.brackets
        ],
        "chosen": [
            {"arm": at.arm, "size": at.size, **at.chosen.model_dump(mode="json", exclude={"arm"})}
            for at in tuning.cells
        ],
        "laws": [
            at.law.model_dump(mode="json") | {"used_at": list(at.used_at), "beyond": at.beyond}
            for at in tuning.laws
        ],
        "multipliers": [
            {
                "arm": gain.arm,
                "equal": _interval(gain.equal),
                "own": _interval(gain.own),
                "due_to_tuning": _interval(gain.due),
                "p_holm": gain.p_holm,
                "verdict": gain.verdict or None,
                "n_sizes": gain.n_sizes,
                "n_same": gain.n_same,
                "n_lost": gain.n_lost,
            }
            for gain in tuning.gains
        ],
        "doubts": list(tuning.doubts),
    }


def _interval(at: Interval) -> dict[str, Any]:
    return {
        "estimate": at.estimate,
        "low": at.low,
        "high": at.high,
        "level": at.level,
        "method": at.method,
        "reason": at.reason,
    }
