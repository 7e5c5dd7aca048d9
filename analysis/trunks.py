"""Runs of several budgets that share their training up to a step: how many, and what follows.

Such runs end at different losses of one path of training, so they are not independent of each
other; what is counted as their FLOPs is as if each had trained alone. Pure; takes the frame of
``collect``.
"""

from __future__ import annotations

import pandas as pd

NOTE = (
    "shared_trunk: budgets that branched from one trunk share their training, but the interval "
    "counts them as independent and may be too narrow"
)


def on_shared_trunks(runs: pd.DataFrame) -> pd.Series:
    """Tell of each run whether another one of another budget shares its trunk."""
    if "trunk" not in runs or runs["trunk"].isna().all():
        return pd.Series(False, index=runs.index, dtype=bool)
    budgets = runs.groupby("trunk")["tokens"].transform("nunique")
    return (budgets.fillna(0) > 1) & runs["trunk"].notna()


def trunk_note(used: pd.DataFrame) -> tuple[str, ...]:
    """The doubt of an estimate from these runs; empty where they share no trunk."""
    return (NOTE,) if on_shared_trunks(used).any() else ()


def trunk_sentences(runs: pd.DataFrame, used: pd.DataFrame) -> list[str]:
    """How many runs branched, how they were counted, and what the intervals make of them."""
    branched = runs["branched_at"].notna() if "branched_at" in runs else None
    shared = on_shared_trunks(used)
    said = []
    if branched is not None and branched.any():
        n, trunks = int(branched.sum()), runs.loc[branched, "trunk"].nunique()
        said.append(
            f"{n} {'run' if n == 1 else 'runs'} branched from {trunks} shared "
            f"{'trunk' if trunks == 1 else 'trunks'} in place of training alone; steps, tokens and "
            "FLOPs are counted as if each had trained alone."
        )
    if shared.any():
        trunks = used.loc[shared, "trunk"].nunique()
        said.append(
            f"{int(shared.sum())} of the runs used stand on {trunks} trunks with several budgets "
            "each. Budgets of one trunk are not independent: laws and multipliers along compute "
            "treat them as if they were, so their intervals may be too narrow; where sizes suffice "
            "the law in N and D counts each trunk once."
        )
    return said
