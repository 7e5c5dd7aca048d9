"""Runs of different arms matched: same seed and configuration but for the recipe.

The frame is read once; each further pair of arms costs a set intersection. Pure; no I/O.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.cells import Currency, MatchedSize
from analysis.laws import Floats

_SLOT = ["size_key", "pair_key", "seed"]
"""What two runs of different arms must share to be compared."""
Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Own:
    """Runs of one arm, ordered by slot: one combination of size, settings and seed."""

    slots: Codes
    log_compute: Floats
    losses: Floats


@dataclass(frozen=True, kw_only=True)
class SizeRuns:
    """All runs of one arm at one size."""

    size: str
    log_compute: float
    """Mean of ln C over the runs."""
    losses: Floats


@dataclass(frozen=True, kw_only=True)
class MatchTable:
    """All runs of a sweep in one currency, ready to be matched."""

    own: Mapping[str, _Own]
    size_of: Codes
    """Size of each slot, ascending: the slots of a size stand together."""
    seed_of: Codes
    labels: tuple[str, ...]
    """Of each size."""

    def match(self, arm: str, baseline: str) -> tuple[MatchedSize, ...]:
        """Runs that share configuration and seed, by size, ordered by the baseline's compute."""
        if arm not in self.own or baseline not in self.own:
            return ()
        one, other = self.own[baseline], self.own[arm]
        slots, at_one, at_other = np.intersect1d(
            one.slots, other.slots, assume_unique=True, return_indices=True
        )
        if not len(slots):
            return ()
        matched = [
            MatchedSize(
                size=self.labels[self.size_of[slots[start]]],
                log_compute_base=float(one.log_compute[at_one[start:stop]].mean()),
                log_compute_arm=float(other.log_compute[at_other[start:stop]].mean()),
                losses_base=one.losses[at_one[start:stop]],
                losses_arm=other.losses[at_other[start:stop]],
                n_seeds=len(set(self.seed_of[slots[start:stop]].tolist())),
            )
            for start, stop in self._stretches(slots)
        ]
        return tuple(sorted(matched, key=lambda match: match.log_compute_base))

    def sizes(self, arm: str) -> tuple[SizeRuns, ...]:
        """All runs of an arm by size, ordered by compute, whatever other arms ran."""
        if arm not in self.own:
            return ()
        own = self.own[arm]
        found = [
            SizeRuns(
                size=self.labels[self.size_of[own.slots[start]]],
                log_compute=float(own.log_compute[start:stop].mean()),
                losses=own.losses[start:stop],
            )
            for start, stop in self._stretches(own.slots)
        ]
        return tuple(sorted(found, key=lambda size: size.log_compute))

    def _stretches(self, slots: Codes) -> list[tuple[int, int]]:
        """Where each size begins and ends in ascending slots."""
        cuts = np.flatnonzero(np.diff(self.size_of[slots])) + 1
        edges = [0, *(int(cut) for cut in cuts), len(slots)]
        return list(itertools.pairwise(edges))


def match_table(used: pd.DataFrame, currency: Currency) -> MatchTable:
    """Read the runs that have a value in the currency; repeated runs of a slot are averaged."""
    rows = used.loc[used[currency.column].notna(), ["arm", "size", *_SLOT, "loss_nats"]].assign(
        log_compute=np.log(used[currency.column].dropna().astype(float))
    )
    if rows.empty:
        nothing = np.zeros(0, dtype=np.int64)
        return MatchTable(own={}, size_of=nothing, seed_of=nothing, labels=())
    rows["slot"] = rows.groupby(_SLOT, dropna=False).ngroup()
    rows["size_code"] = rows.groupby("size_key", dropna=False).ngroup()
    rows["seed_code"] = rows.groupby("seed", dropna=False).ngroup()
    slots = rows.drop_duplicates("slot").sort_values("slot")
    sizes = rows.drop_duplicates("size_code").sort_values("size_code")
    means = rows.groupby(["arm", "slot"], sort=True)[["log_compute", "loss_nats"]].mean()
    return MatchTable(
        own={str(arm): _own(part.droplevel("arm")) for arm, part in means.groupby(level="arm")},
        size_of=slots["size_code"].to_numpy(dtype=np.int64),
        seed_of=slots["seed_code"].to_numpy(dtype=np.int64),
        labels=tuple(str(label) for label in sizes["size"]),
    )


def _own(part: pd.DataFrame) -> _Own:
    return _Own(
        slots=part.index.to_numpy(dtype=np.int64),
        log_compute=part["log_compute"].to_numpy(dtype=np.float64),
        losses=part["loss_nats"].to_numpy(dtype=np.float64),
    )
