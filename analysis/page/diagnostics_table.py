"""The table of depth reads: one row per arm, its reads summed up.

From the same runs as the figures. Averages are over reads of two sources or more; a read of one
source chooses nothing. Pure.
"""

from __future__ import annotations

import numpy as np

from analysis.diagnostics import Chosen, Measurement
from analysis.figures.depth_reads import ReadProfile, read_profile
from analysis.figures.depth_sources import causes, source_mass
from analysis.page.table import Cell, Raw, Table

_MEANS = {
    "normalised_entropy": "entropy",
    "max_weight_times_sources": "max x sources",
    "embedding_mass": "embedding",
    "newest_mass": "newest",
    "token_variance": "token variance",
    "adjacent_cosine": "adjacent cosine",
    "rank_share": "rank / sources",
}
_SHARES = {
    "collapsed_to_newest": "at newest",
    "collapsed_to_uniform_deep": "uniform, deep half",
}


def reads_table(chosen: Chosen) -> Table:
    """Sum up the depth reads of every arm that has any."""
    runs = [run for run in chosen.runs if run.reads]
    raw = tuple(_row(run) for run in runs)
    shown = ("largest_mass", "largest_loss_change")
    header = ("arm", *_MEANS.values(), *_SHARES.values(), "largest mass", "most missed")
    cells = tuple(
        (
            Cell(str(row["arm"])),
            *(Cell(_number(row[name])) for name in (*_MEANS, *_SHARES)),
            *(Cell(str(row[f"{name}_source"] or "–"), _number(row[name], "")) for name in shown),
        )
        for row in raw
    )
    return Table("depth_reads", f"Depth reads at {chosen.size}", header, cells, raw)


def _row(run: Measurement) -> dict[str, Raw]:
    profile, caused = read_profile(run), causes(run)
    mass = source_mass(run)
    heaviest = max(mass, key=lambda label: mass[label], default=None)
    missed = int(np.argmax(caused.loss_change)) if caused.sources else None
    row: dict[str, Raw] = {"arm": run.arm, "n_reads": len(profile.t)}
    row |= {name: _mean(profile, name) for name in _MEANS}
    row |= {name: run.row.get(name) for name in _SHARES}
    return row | {
        "largest_mass_source": heaviest,
        "largest_mass": None if heaviest is None else mass[heaviest],
        "largest_loss_change_source": None if missed is None else caused.sources[missed],
        "largest_loss_change": None if missed is None else float(caused.loss_change[missed]),
    }


def _mean(profile: ReadProfile, name: str) -> float | None:
    values = profile.values[name]
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _number(value: Raw, absent: str = "–") -> str:
    return absent if value is None else f"{value:.3g}"
