"""The sections of the page for depth probes: one per task, what is read first on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.figures.style import ArmStyle
from analysis.page.gallery_probe import probe_figures
from analysis.page.layout import Block, Section, table_block
from analysis.page.pictures import SavedPicture, blocks_of, save_pictures
from analysis.page.probe_tables import probe_tables
from analysis.page.probe_wording import lost_sentence
from analysis.page.table import Table, save_tables
from analysis.probes.read import (
    accuracy_by_difficulty,
    accuracy_by_position,
    read_accuracy_curves,
)
from analysis.probes.types import Probe, Probes
from harness.paths import SweepPaths

_OPEN_TABLES = ("control", "tuning", "solved", "differences")


def probe_sections(
    probes: Probes,
    runs: pd.DataFrame,
    paths: SweepPaths,
    styles: Mapping[str, ArmStyle],
) -> tuple[list[SavedPicture], list[Section]]:
    """Write the tables and figures of every probe, and the tidy accuracies of every run.

    Parameters
    ----------
    probes
        What was compared.
    runs
        All runs of the sweep, those at the baseline's values too.
    paths
        The sweep.
    styles
        Look of each arm.
    """
    curves = read_accuracy_curves(runs, paths)
    _save_frames(
        {
            "accuracy_by_difficulty": accuracy_by_difficulty(runs),
            "accuracy_by_position": accuracy_by_position(runs),
            "accuracy_curves": curves,
        },
        paths.tables,
    )
    pictures, sections = [], []
    for probe in probes.items:
        tables = probe_tables(probe)
        save_tables(list(tables.values()), paths.tables)
        saved = save_pictures(probe_figures(probe, styles, curves), paths.figures)
        pictures += saved
        sections.append(_section(probe, tables, saved))
    return pictures, sections


def _section(probe: Probe, tables: Mapping[str, Table], saved: Sequence[SavedPicture]) -> Section:
    lost = lost_sentence(probe)
    return Section(
        title=f"Control: {probe.label}" if probe.is_control else f"Probe: {probe.label}",
        short=probe.label,
        notes=(lost,) if lost else (),
        blocks=(*_open(tables, saved), *_folded(tables), *blocks_of(saved, folded=True)),
    )


def _open(tables: Mapping[str, Table], saved: Sequence[SavedPicture]) -> Iterator[Block]:
    """Every table below the figure of the same numbers, then the other figures."""
    left = [item for item in saved if not item.folded]
    for kind in _OPEN_TABLES:
        drawn = [item for item in left if item.svg.stem.startswith(f"probe_{kind}_")]
        left = [item for item in left if item not in drawn]
        yield from (item.block for item in drawn)
        if kind in tables:
            yield table_block(tables[kind])
    yield from (item.block for item in left)


def _folded(tables: Mapping[str, Table]) -> Iterator[Block]:
    for kind, table in tables.items():
        if kind not in _OPEN_TABLES:
            yield table_block(table, folded=f"{len(table.cells)} rows")


def _save_frames(frames: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tidy frames as parquet and csv, each replaced at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        for suffix in ("parquet", "csv"):
            scratch = folder / f".{name}.{suffix}"
            if suffix == "csv":
                frame.to_csv(scratch, index=False)
            else:
                frame.to_parquet(scratch, index=False)
            scratch.replace(folder / f"{name}.{suffix}")
