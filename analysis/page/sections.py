"""The sections of the page of a study, from what was computed; a part without data is left out.

Pure: takes results, tables and pictures, gives layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.cells import CURRENCIES, FLOPS
from analysis.collect import usable
from analysis.compare.pairwise import pairwise_sentence
from analysis.law_fit import LawFit, describe
from analysis.page.comparison_tables import (
    by_size_table,
    curve_table,
    intervals_table,
    isoflop_table,
    pairwise_table,
    rescaled_table,
    sensitivity_table,
)
from analysis.page.facts import distinct, flat, software
from analysis.page.layout import Block, Section, table_block
from analysis.page.numerals import estimate_texts
from analysis.page.run_card import RunCard
from analysis.page.sweep_tables import (
    exclusions_table,
    headline_rows,
    headline_table,
    runs_table,
    sizes_of,
)
from analysis.page.table import Table
from analysis.study import Analysis
from harness.records import Manifest

MAX_RUNS_SHOWN = 400
"""Runs beyond which the page lists the excluded ones alone; the csv holds all."""
_MAX_EXCLUDED_SHOWN = 200
_MAX_SIZES_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class StudyTables:
    """The tables of a study, as saved and as shown."""

    headline: Table
    intervals: Table
    by_size: Table
    curve: Table
    pairwise: Table
    sensitivity: Table
    isoflop: Table
    efficiency: Table
    runs: Table
    exclusions: Table

    def filled(self, *, losses: bool = True) -> list[Table]:
        """Those that have a row; runs always, and headline where losses are compared."""
        always = [self.headline, self.runs] if losses else [self.runs]
        compared = (self.intervals, self.by_size, self.curve, self.pairwise, self.sensitivity)
        others = (*compared, self.isoflop, self.efficiency, self.exclusions)
        return [*always, *(table for table in others if table.raw)]


def study_tables(found: Analysis, runs: pd.DataFrame | None = None) -> StudyTables:
    """Tabulate a study.

    Parameters
    ----------
    found
        The study.
    runs
        All runs to list, where these are more than the study is about.
    """
    sizes = _few_sizes(sizes_of(found.runs))
    multipliers = found.comparisons.get(FLOPS.name, ())
    return StudyTables(
        headline=headline_table(
            headline_rows(found.runs, found.comparisons, found.baseline), sizes
        ),
        intervals=intervals_table(multipliers),
        by_size=by_size_table(multipliers, sizes),
        curve=curve_table(found.curves),
        pairwise=pairwise_table(() if isinstance(found.pairwise, str) else found.pairwise),
        sensitivity=sensitivity_table(found.sensitivity),
        isoflop=isoflop_table(found.isoflop),
        efficiency=rescaled_table(found.rescaled),
        runs=runs_table(found.runs if runs is None else runs),
        exclusions=exclusions_table(found.runs),
    )


def _few_sizes(sizes: Sequence[str]) -> list[str]:
    """Sizes with a column of their own: all, or evenly chosen ones with the smallest and largest.

    Anybody's table may hold hundreds; runs.csv has each.
    """
    if len(sizes) <= _MAX_SIZES_SHOWN:
        return list(sizes)
    step = (len(sizes) - 1) / (_MAX_SIZES_SHOWN - 1)
    return [sizes[round(i * step)] for i in range(_MAX_SIZES_SHOWN)]


def _single_arm(found: Analysis, tables: StudyTables) -> Section | None:
    """Losses by size where nothing is compared; of many sizes the figures tell more."""
    if found.runs["size"].nunique() > _MAX_SIZES_SHOWN:
        return None
    return Section(title="Losses", blocks=(table_block(tables.headline, title=""),))


def comparison_section(found: Analysis, tables: StudyTables) -> Section | None:
    """Arms against the baseline and among themselves."""
    if found.runs["arm"].nunique() < 2:
        return _single_arm(found, tables)
    blocks = [table_block(tables.headline, title="")]
    blocks += [
        table_block(table)
        for table in (tables.intervals, tables.by_size, tables.curve)
        if table.raw
    ]
    if tables.pairwise.cells and not isinstance(found.pairwise, str):
        block = table_block(tables.pairwise, folded=f"{len(tables.pairwise.cells)} pairs")
        said = pairwise_sentence(found.pairwise)
        blocks.append(_noted(block, said))
    if tables.sensitivity.raw:
        blocks.append(table_block(tables.sensitivity))
    return Section(title="Arms against the baseline", short="Arms", blocks=tuple(blocks))


def figures_section(shown: Sequence[Block], folded: Sequence[Block]) -> Section:
    """The figures of losses and comparisons."""
    blocks = (*shown, *folded)
    notes = ["No figure yet: no usable run."] if not blocks else []
    if any(block.picture and block.picture.targets for block in blocks):
        notes.append("Point at, tap or step to a mark to read its value.")
    return Section(title="Figures", notes=tuple(notes), blocks=blocks)


def laws_section(found: Analysis, tables: StudyTables, further: Mapping[str, LawFit]) -> Section:
    """Noise, the test of a shared exponent, isoFLOP minima, and every law's full report."""
    labels = {currency.name: currency.label for currency in CURRENCIES}
    fits: dict[str, LawFit] = {
        f"Loss against {labels[name]}": law
        for name, law in found.laws.items()
        if not isinstance(law, str)
    }
    fits |= dict(_other_fits(found))
    for name, fit in further.items():
        if not any(_same(fit, told) for told in fits.values()):
            fits[f"As fitted to the table: {name}"] = fit
    blocks = [*_noise_and_slopes(found)]
    if tables.efficiency.raw:
        blocks.append(table_block(tables.efficiency))
    if tables.isoflop.raw:
        blocks.append(table_block(tables.isoflop, folded=f"{len(tables.isoflop.raw)} rows"))
    blocks += [Block(folded=name, pre=describe(fit)) for name, fit in fits.items()]
    notes = ("Each report gives every estimate with its interval, the certificate, every doubt.",)
    return Section(title="Laws", notes=notes if fits else (), blocks=tuple(blocks))


def _same(fit: LawFit, told: LawFit) -> bool:
    """The same law of the same data with the same estimates."""
    return (fit.law, fit.data_sha256) == (told.law, told.data_sha256) and all(
        at.estimate == told.parameters[name].estimate for name, at in fit.parameters.items()
    )


def _other_fits(found: Analysis) -> Iterator[tuple[str, LawFit]]:
    if not isinstance(found.joint, str):
        yield "Loss against parameters and tokens", found.joint
    for arm, comparison in found.isoflop.items():
        if isinstance(comparison, str):
            continue
        for method, fit in comparison.fits.items():
            for quantity, law in (("N*", fit.n_law), ("D*", fit.d_law), ("L*", fit.l_law)):
                if law is not None:
                    yield f"IsoFLOP {quantity} of {arm}, {method}", law
    for arm, surface in found.surfaces.items():
        if not isinstance(surface, str):
            yield f"Depth and width, {arm}", surface
    if not isinstance(found.block_size, str):
        yield "Block size", found.block_size


def _noise_and_slopes(found: Analysis) -> Iterator[Block]:
    if not isinstance(found.noise, str):
        main, interval = estimate_texts(found.noise.sd_nats, ".2g")
        facts = [
            ("standard deviation over seeds, nats", f"{main} {interval}"),
            ("in words", found.noise.text),
        ]
        yield Block(title="Seed noise", facts=tuple(facts))
    if not isinstance(found.slopes, str):
        facts = [("in words", found.slopes.text)]
        facts += [
            (f"alpha of {arm}", " ".join(estimate_texts(alpha, ".4g")))
            for arm, alpha in found.slopes.slopes.items()
        ]
        yield Block(title="One exponent or several", facts=tuple(facts))


def inside_section(
    shown: Sequence[Block], folded: Sequence[Block], reads: Table | None
) -> Section | None:
    """What happens inside the models; None without diagnostics."""
    if not shown:
        return None
    blocks = [*shown]
    if reads is not None:
        blocks.append(table_block(reads, title="Depth reads in numbers"))
    notes = (
        "Figures show one run per arm. tables/diagnostics.parquet holds every number, one a row, "
        "of every run, or of one run per cell in sweeps of thousands; diagnostics.csv the same "
        "unless there are more than a million.",
    )
    return Section(title="Inside the models", notes=notes, blocks=(*blocks, *folded))


def methods_section(paragraph: str, card: RunCard) -> Section:
    """The paragraph for a paper and the run card."""
    text = Block(
        title="Methods paragraph",
        notes=("Built from what was computed; to be pasted in a paper.",),
        prose=paragraph,
    )
    note = (
        f"{card.n_recorded} of {card.n_entries} entries recorded; also as tables/run_card.md and "
        ".json. Questions after the checklist of (Mis)Fitting, arXiv 2502.18969."
    )
    parts = [
        Block(
            title="Run card" if i == 0 else "",
            notes=(note,) if i == 0 else (),
            folded=part.title,
            facts=tuple((entry.question, entry.answer) for entry in part.entries),
        )
        for i, part in enumerate(card.parts)
    ]
    return Section(title="Methods and run card", short="Methods", blocks=(text, *parts))


def runs_section(found: Analysis, tables: StudyTables, counts: str) -> Section:
    """Exclusions with their reasons, then every run or, of many, the excluded ones."""
    blocks = []
    if tables.exclusions.raw:
        blocks.append(table_block(tables.exclusions))
    shown = tables.runs
    notes: tuple[str, ...] = ()
    if len(shown.raw) > MAX_RUNS_SHOWN:
        gone = found.runs[found.runs["excluded_because"].notna()]
        shown = runs_table(gone.head(_MAX_EXCLUDED_SHOWN))
        counts = f"{len(shown.raw)} of {len(gone)} excluded runs"
        notes = ("Only excluded runs are listed; tables/runs.csv holds all.",)
    blocks.append(_noted(table_block(shown, title="Every run", folded=counts), *notes))
    return Section(title="Runs", blocks=tuple(blocks))


def provenance_section(found: Analysis, manifest: Manifest | None, notes: Iterable[str]) -> Section:
    """What the numbers come from; several values where the runs differ."""
    runs, used = found.runs, usable(found.runs)
    facts = [
        ("computed with", software()),
        ("runs", f"{len(used)} used of {len(runs)}"),
        ("code version of the runs", "; ".join(distinct(runs, "code_version"))),
        ("libraries", "; ".join(flat(text) for text in distinct(runs, "library_versions"))),
        ("hardware", "; ".join(flat(text) for text in distinct(runs, "hardware"))),
        ("corpus", "; ".join(distinct(runs, "corpus"))),
        ("corpus sha256", "; ".join(distinct(runs, "corpus_sha256"))),
        ("validation tokens", "; ".join(distinct(runs, "eval_tokens"))),
        ("precision", "; ".join(distinct(runs, "precision"))),
        ("grid as of", manifest.created_at if manifest else ""),
        *(("table", note) for note in notes),
    ]
    blocks = [Block(facts=tuple((name, value) for name, value in facts if value))]
    if manifest:
        stated = (f"Overrides: {', '.join(manifest.overrides)}",) if manifest.overrides else ()
        blocks.append(Block(notes=stated, pre=manifest.grid_text, folded="Grid"))
    return Section(title="Provenance", blocks=tuple(blocks))


def _noted(block: Block, *notes: str) -> Block:
    return replace(block, notes=(*(note for note in notes if note), *block.notes))
