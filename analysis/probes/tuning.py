"""How much of a difference is due to tuning: at the baseline's values, and at own best ones.

Pure; takes the frame of ``collect``.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from analysis.collect import of_the_sweep, usable
from analysis.probes.differences import compare_over_depths, judged
from analysis.probes.types import TuningShare
from analysis.tuning.gains import runs_at_equal_values

_SLOT = ["n_layers", "pair_key", "seed"]


def tuning_shares(rows: pd.DataFrame, baseline: str, level: float) -> tuple[TuningShare, ...]:
    """Differences to the baseline at equal and at own best values, and the arm against itself.

    As for multipliers (:func:`analysis.tuning.gains.tuning_gains`): all three are over the same
    depths and seeds, and none of the seeds is that of the search.

    Returns
    -------
    tuple
        One per arm with runs of both kinds; p-values are adjusted over arms.
    """
    main, extra = of_the_sweep(rows), rows[rows["role"] == "equal_rate"]
    base = usable(main[main["arm"] == baseline])
    equal = runs_at_equal_values(rows, baseline)
    found = []
    for arm in dict.fromkeys(str(arm) for arm in main["arm"] if arm != baseline):
        own = usable(main[main["arm"] == arm])
        there = equal[equal["arm"] == arm]
        common = own[_SLOT].merge(there[_SLOT], on=_SLOT).merge(base[_SLOT], on=_SLOT)
        if common.empty:
            continue
        own, there = (side.merge(common.drop_duplicates(), on=_SLOT) for side in (own, there))
        tried = extra[extra["arm"] == arm]
        lost = tried["status"].isin(["diverged", "failed"])
        found.append(
            TuningShare(
                arm=arm,
                equal=compare_over_depths(base, there, arm, level),
                own=compare_over_depths(base, own, arm, level),
                due=compare_over_depths(there, own, arm, level),
                n_runs=len(own),
                n_same=int((there["role"] == "main").sum()),
                n_lost=int(lost.sum()),
                n_waiting=int((~lost & ~tried["run_id"].isin(equal["run_id"])).sum()),
            )
        )
    return _judged(found, level)


def _judged(found: list[TuningShare], level: float) -> tuple[TuningShare, ...]:
    """Adjust p-values over arms; arms whose values are the baseline's are no test of tuning."""
    equal = judged([share.equal for share in found], level)
    own = judged([share.own for share in found], level)
    tuned = {share.arm: share.due for share in found if share.n_same < share.n_runs}
    due = {share.arm: share.due for share in found}
    due |= {comparison.arm: comparison for comparison in judged(tuned.values(), level)}
    return tuple(
        replace(share, equal=at_equal, own=at_own, due=due[share.arm])
        for share, at_equal, at_own in zip(found, equal, own, strict=True)
    )
