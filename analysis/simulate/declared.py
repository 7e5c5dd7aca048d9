"""What a grid declares, as far as a comparison sees it: which runs pair, and their compute.

Reads the planned runs of a grid; numpy only, for `plan` asks for it on every call.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import TooFewData
from analysis.laws import Floats
from harness.records import PlannedRun

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DeclaredGrid:
    """Runs by arm and match; a match is what runs of several arms are paired on.

    Matches are sorted by size, sizes by compute.
    """

    arms: tuple[str, ...]
    """The baseline first."""
    size_of: Ints
    """``[matches]`` index of the size of each match: its shape, data and budget."""
    log_compute: Floats
    """``[arms, matches]`` ln of training FLOPs; NaN where the grid has no such run."""
    n_settings: int = 1
    """Most settings other than size and seed (learning rates, say) at one size."""

    @property
    def n_sizes(self) -> int:
        """Sizes of the ladder."""
        return int(self.size_of[-1]) + 1

    @property
    def starts(self) -> Ints:
        """``[sizes]`` first match of each size."""
        return np.searchsorted(self.size_of, np.arange(self.n_sizes))

    @property
    def n_runs(self) -> int:
        """Runs of all arms."""
        return int(np.isfinite(self.log_compute).sum())

    @property
    def flops(self) -> float:
        """Training FLOPs of all runs."""
        return float(np.nansum(np.exp(self.log_compute)))

    @property
    def centre(self) -> float:
        """Mean ln C of the baseline over its sizes."""
        return float(np.nanmean(self.ladder()[0]))

    def ladder(self) -> Floats:
        """``[arms, sizes]`` mean ln C of the runs there; NaN where an arm has none."""
        present = np.isfinite(self.log_compute)
        totals = np.add.reduceat(np.where(present, self.log_compute, 0.0), self.starts, axis=1)
        counts = np.add.reduceat(present.astype(np.float64), self.starts, axis=1)
        return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)

    def n_pairs(self) -> Ints:
        """``[arms - 1, sizes]`` pairs of each arm with the baseline."""
        present = np.isfinite(self.log_compute)
        both = (present[1:] & present[0]).astype(np.int64)
        return np.add.reduceat(both, self.starts, axis=1)


def declared(runs: Sequence[PlannedRun], baseline: str) -> DeclaredGrid:
    """Arrange the planned runs of a grid by what the analysis pairs and averages.

    Runs pair where all but recipe and seed is equal and the seed is; further settings at one size
    are replicates of it, as in :mod:`analysis.compare.matching`.

    Raises
    ------
    TooFewData
        The baseline has no run, or no other arm has.
    """
    arms = [baseline, *dict.fromkeys(run.arm for run in runs if run.arm != baseline)]
    if len(arms) < 2 or all(run.arm != baseline for run in runs):
        raise TooFewData(
            f"a comparison needs runs of the baseline {baseline} and of another arm; the grid has "
            f"only {', '.join(dict.fromkeys(run.arm for run in runs)) or 'no runs'}"
        )
    keys = _Keys()
    cells = {(run.arm, *keys.of(run)): math.log(run.cost.flops) for run in runs}
    matches = _in_order(cells)
    column = {match: i for i, match in enumerate(matches)}
    row = {arm: i for i, arm in enumerate(arms)}
    log_compute = np.full((len(arms), len(matches)), np.nan)
    for (arm, *match), value in cells.items():
        log_compute[row[arm], column[tuple(match)]] = value
    sizes = {size: i for i, size in enumerate(dict.fromkeys(match[0] for match in matches))}
    settings = {(size, pair) for size, pair, _ in matches}
    return DeclaredGrid(
        arms=tuple(arms),
        size_of=np.array([sizes[match[0]] for match in matches], dtype=np.int64),
        log_compute=log_compute,
        n_settings=max(sum(size == s for size, _ in settings) for s in sizes),
    )


def _in_order(cells: dict[tuple[Any, ...], float]) -> list[tuple[Any, ...]]:
    """Matches (size, settings, seed) by mean compute of their size, then as they came."""
    totals: dict[Any, list[float]] = {}
    for (_, size, *_), value in cells.items():
        totals.setdefault(size, []).append(value)
    mean = {size: sum(values) / len(values) for size, values in totals.items()}
    matches = dict.fromkeys(key[1:] for key in cells)
    return sorted(matches, key=lambda match: (mean[match[0]], match[0]))


class _Keys:
    """Numbers for size and settings; sections that runs share are written out once."""

    def __init__(self) -> None:
        self._by_objects: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._sizes: dict[str, int] = {}
        self._pairs: dict[str, int] = {}

    def of(self, run: PlannedRun) -> tuple[int, int, int]:
        """Size, settings and seed of a run."""
        config = run.config
        parts = [part for name, part in config.items() if name not in ("residual", "seed")]
        objects = (*map(id, parts), run.corpus_sha256)
        if objects not in self._by_objects:
            self._by_objects[objects] = self._number(run, parts)
        return (*self._by_objects[objects], int(config.get("seed", 0)))

    def _number(self, run: PlannedRun, parts: list[Any]) -> tuple[int, int]:
        config = run.config
        size = _text([config["model"], config["data"], config["train"]["budget"]])
        pair = _text([parts, run.corpus_sha256])
        return (
            self._sizes.setdefault(size, len(self._sizes)),
            self._pairs.setdefault(pair, len(self._pairs)),
        )


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
