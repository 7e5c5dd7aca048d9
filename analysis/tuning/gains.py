"""How much of a multiplier is due to tuning: at the baseline's values, and at each arm's own best.

Pure; takes the frame of ``collect``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.cells import FLOPS, pair_points
from analysis.collect import of_the_sweep, usable
from analysis.compare.arms import compare_arms
from analysis.compare.fieller import iso_loss_ratio, p_value
from analysis.compare.holm import holm
from analysis.compare.matching import match_table
from analysis.compare.shown import judged_width
from analysis.compare.types import Multiplier
from analysis.estimates import FitRefused, Interval, undefined
from analysis.tuning.types import TuningGain

_SLOT = ["size_key", "pair_key", "seed"]
_EQUAL, _OWN = "at the baseline's values", "at its own best"
METHOD = "the arm against itself, paired by size and seed, Fieller"


def tuning_gains(
    runs: pd.DataFrame, baseline: str, *, asymptote: float = 0.0, level: float = 0.95
) -> tuple[TuningGain, ...]:
    """Multipliers in FLOPs at equal and at own best values, and the ratio of both.

    At equal values an arm's run is the one that was trained at the baseline's values; where its
    own best are those already, its run of the sweep serves both. A field that was searched for the
    arm alone, such as a rate of its own parameters, keeps the arm's value on both sides.
    The ratio compares the arm with itself over the same sizes and seeds, so the baseline's noise
    does not enter. The seeds are not those of the trials: nothing here was chosen by the losses
    that are compared, so a choice that was luck shows as no gain, or as a loss. The interval is of
    the values that were chosen; what another search would have chosen does not enter.

    Parameters
    ----------
    runs
        All runs of the sweep, those at the baseline's values too.
    baseline
        Arm whose values are the equal ones.
    asymptote
        Pinned E, nats.
    level
        Confidence level.

    Returns
    -------
    tuple
        One per arm besides the baseline that has a value on both sides at some size and seed. A
        verdict needs a Holm-adjusted p, over the arms whose values differ from the baseline's.
    """
    main, extra = of_the_sweep(runs), runs[runs["role"] == "equal_rate"]
    base = usable(main[main["arm"] == baseline])
    equal = runs_at_equal_values(runs, baseline)
    found: list[TuningGain] = []
    for arm in dict.fromkeys(str(arm) for arm in main["arm"] if arm != baseline):
        own = usable(main[main["arm"] == arm])
        both = own.merge(equal.loc[equal["arm"] == arm, _SLOT].drop_duplicates(), on=_SLOT)
        if both.empty:
            continue
        there = equal[equal["arm"] == arm].merge(both[_SLOT].drop_duplicates(), on=_SLOT)
        tried = extra[extra["arm"] == arm]
        lost = tried["status"].isin(["diverged", "failed"])
        due, p, n_sizes = _against_itself(there, both, asymptote, level)
        n_same = int(there.loc[there["role"] == "main", "size_key"].nunique())
        found.append(
            TuningGain(
                arm=arm,
                equal=_multiplier(base, there, baseline, asymptote, level),
                own=_multiplier(base, both, baseline, asymptote, level),
                due=due,
                p_holm=p if n_same < n_sizes else None,
                n_sizes=n_sizes,
                n_same=n_same,
                n_lost=int(lost.sum()),
                n_waiting=int((~lost & ~tried["run_id"].isin(_ended(extra)["run_id"])).sum()),
            )
        )
    return _adjusted(found)


def runs_at_equal_values(runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Ended runs at the baseline's values, with those whose own best values are the same."""
    main, extra = of_the_sweep(runs), runs[runs["role"] == "equal_rate"]
    base = usable(main[main["arm"] == baseline])
    return pd.concat([_ended(extra), _already_equal(main, extra, base)])


def _adjusted(gains: Sequence[TuningGain]) -> tuple[TuningGain, ...]:
    """Replace every p by Holm's."""
    tested = [gain.p_holm for gain in gains if gain.p_holm is not None]
    adjusted = iter(holm(tested))
    return tuple(
        gain if gain.p_holm is None else replace(gain, p_holm=next(adjusted)) for gain in gains
    )


def _ended(extra: pd.DataFrame) -> pd.DataFrame:
    """Runs at the baseline's values with a final loss; that they enter no fit is no matter here."""
    done = extra[(extra["status"] == "done") & extra["loss_nats"].notna()]
    return done.assign(excluded_because=None)


def _already_equal(main: pd.DataFrame, extra: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """Runs of the sweep whose own best values are the baseline's, and that have no double."""
    at = base.drop_duplicates(["size_key", "pair_key"]).set_index(["size_key", "pair_key"])
    of_base = {key: values_of(text) for key, text in at["tuned"].items()}
    doubled = set(extra[["arm", "size_key", "pair_key"]].itertuples(index=False, name=None))
    own = usable(main)
    columns = own[["arm", "size_key", "pair_key", "tuned"]].itertuples(index=False, name=None)
    same = [
        (arm, size, pair) not in doubled and _same(values_of(text), of_base.get((size, pair), {}))
        for arm, size, pair, text in columns
    ]
    return own[pd.Series(same, index=own.index, dtype=bool)]


def values_of(text: object) -> dict[str, Any]:
    """Read what column ``tuned`` says; {} where no value was chosen."""
    return json.loads(text) if isinstance(text, str) else {}


def _same(own: dict[str, Any], base: dict[str, Any]) -> bool:
    """Equal in all that was searched for both; a field of the arm's alone has no equal value."""
    both = set(own) & set(base)
    return bool(both) and all(own[path] == base[path] for path in both)


def _multiplier(
    base: pd.DataFrame, own: pd.DataFrame, baseline: str, asymptote: float, level: float
) -> Interval:
    both: Sequence[Multiplier] = ()
    try:
        both = compare_arms(
            pd.concat([base, own]), baseline, FLOPS, asymptote=asymptote, level=level
        )
    except FitRefused as refusal:
        return undefined(str(refusal), method="paired Fieller", level=level)
    if not both:
        return undefined("the baseline has no usable run", method="paired Fieller", level=level)
    return both[0].ratio


def _against_itself(
    equal: pd.DataFrame, own: pd.DataFrame, asymptote: float, level: float
) -> tuple[Interval, float | None, int]:
    """The ratio of compute, p of its being 1, and the sizes it is over."""
    rows = pd.concat([equal.assign(arm=_EQUAL), own.assign(arm=_OWN)])
    try:
        pairs = pair_points(match_table(rows, FLOPS).match(_OWN, _EQUAL), asymptote)
    except FitRefused as refusal:
        return undefined(str(refusal), method=METHOD, level=level), None, 0
    ratio = replace(judged_width(iso_loss_ratio(pairs, level)), method=METHOD)
    return ratio, p_value(pairs), len(pairs)
