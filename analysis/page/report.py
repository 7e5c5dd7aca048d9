"""The report of a study: collect, fit, compare, tabulate, draw, and one self-contained page.

The only module of ``analysis`` that knows the whole order. Works on a sweep that is unfinished or
has no finished run at all: what cannot be computed is said, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import jinja2
import pandas as pd

from analysis.cells import FLOPS
from analysis.collect import collect, usable, write_table
from analysis.diagnostics import choose, read_all, save_tidy, tidy
from analysis.intake.table import StudyTable
from analysis.law_fit import LawFit
from analysis.page.diagnostics_table import reads_table
from analysis.page.drawn import Drawn
from analysis.page.evaluations_section import evaluations_section
from analysis.page.gallery import sweep_figures, sweep_styles
from analysis.page.gallery_inside import diagnostics_figures
from analysis.page.gallery_tuning import tuning_figures
from analysis.page.layout import Section, anchored
from analysis.page.methods import methods_paragraph
from analysis.page.pictures import SavedPicture, blocks_of, save_pictures
from analysis.page.probe_section import probe_sections
from analysis.page.probe_wording import method_sentences as probe_sentences
from analysis.page.run_card import run_card, save_card
from analysis.page.sections import (
    StudyTables,
    comparison_section,
    figures_section,
    inside_section,
    laws_section,
    methods_section,
    provenance_section,
    runs_section,
    study_tables,
)
from analysis.page.table import Table, save_tables
from analysis.page.tuning_section import tuning_section, tuning_sentences
from analysis.page.tuning_tables import tuning_tables
from analysis.page.wording import (
    cannot_sentences,
    convention_sentence,
    counts_sentence,
    entropy_sentences,
    method_sentences,
    shared_rate_sentences,
    statuses_text,
    study_headline,
    timing_sentences,
)
from analysis.study import Analysis, analyse
from analysis.study_json import fits_json
from analysis.trunks import trunk_sentences
from analysis.tuning.evidence import tuning_of
from analysis.tuning.read import read_search
from analysis.tuning.types import Tuning
from harness.errors import DataError
from harness.paths import SweepPaths
from harness.records import Manifest, read_manifest, write_text_atomically

_MAX_CSV_ROWS = 1_000_000
"""Rows of diagnostics beyond which only the parquet is written: a csv would take 100 MB."""


MAX_RUNS_MEASURED = 2000
"""Runs beyond which diagnostics are read of one run per cell: reading all takes a minute."""


def _refuse_trials(paths: SweepPaths, manifest: Manifest) -> None:
    """Refuse a sweep of trials: they are told of in the report of the sweep they were for."""
    if manifest.runs and all(run.role == "trial" for run in manifest.runs):
        sweep = paths.root.name.removesuffix("-tuning")
        raise DataError(
            f"{paths.root}: holds the trials of a search, which enter no fit. They are part of: "
            f"isoloss report {sweep}"
        )


@dataclass(frozen=True)
class ReportResult:
    """What was written, and what it rests on."""

    report_path: Path
    n_used: int
    n_excluded: int
    n_runs: int
    headline: str
    cannot: tuple[str, ...]
    """What could not be computed, and why."""
    figures: tuple[Path, ...]
    """The svg of every figure."""


def report(
    paths: SweepPaths, *, asymptote: float = 0.0, extrapolate_to: float | None = None
) -> ReportResult:
    """Write tables, figures, ``fits.json``, ``runs.parquet`` and ``report.html`` of a sweep.

    Parameters
    ----------
    paths
        The sweep.
    asymptote
        Pinned E of every law, nats.
    extrapolate_to
        Training FLOPs up to which multipliers are extrapolated, as a band over E; None: not at all.

    Raises
    ------
    DataError
        The sweep was never run.
    FitRefused
        The pinned E lies at or above a loss.
    DataError
        The sweep holds the trials of a search, which enter no fit.
    """
    manifest = read_manifest(paths)
    _refuse_trials(paths, manifest)
    runs = collect(paths)
    found = analyse(runs, manifest.baseline, asymptote, extrapolate_to=extrapolate_to)
    write_table(runs, paths)
    search = read_search(paths, manifest, runs)
    tuning = None
    if search is not None:
        tuning = tuning_of(search, runs, manifest.baseline, asymptote=asymptote)
    study = _Study(
        name=manifest.sweep,
        found=found,
        manifest=manifest,
        inside=_inside(found, paths),
        runs=runs,
        tuning=tuning,
    )
    return _write(study, paths)


def report_table(
    table: StudyTable,
    folder: Path,
    *,
    asymptote: float = 0.0,
    extrapolate_to: float | None = None,
    found: Analysis | None = None,
    laws: Mapping[str, LawFit] | None = None,
) -> ReportResult:
    """Write the same tables, figures, ``fits.json`` and page for anybody's table of runs.

    Parameters
    ----------
    table
        What was read.
    folder
        Where to write; made if absent.
    asymptote, extrapolate_to
        As for :func:`report`.
    found
        What was computed already; None: computed here.
    laws
        Further laws to print, by name.
    """
    if found is None:
        found = analyse(
            table.runs,
            table.baseline or str(table.runs["arm"].iloc[0]),
            asymptote,
            flop_convention=table.flop_convention,
            extrapolate_to=extrapolate_to,
        )
    study = _Study(
        name=Path(table.source).name,
        found=found,
        notes=(Path(table.source).name, *table.notes),
        laws=dict(laws or {}),
    )
    return _write(study, SweepPaths(folder.resolve()))


@dataclass(frozen=True)
class _Inside:
    """What is shown of the inside of the models."""

    figures: Sequence[Drawn] = ()
    reads: Table | None = None


@dataclass(frozen=True, kw_only=True)
class _Study:
    """What a page is about."""

    name: str
    found: Analysis
    manifest: Manifest | None = None
    inside: _Inside = field(default_factory=_Inside)
    notes: tuple[str, ...] = ()
    """What is to be said of a foreign table."""
    laws: Mapping[str, LawFit] = field(default_factory=dict)
    runs: pd.DataFrame | None = None
    """All runs to list, those for comparisons of their own too; None: those of the study."""
    tuning: Tuning | None = None


def _inside(found: Analysis, paths: SweepPaths) -> _Inside:
    """Write the tidy diagnostics and draw those of one run per arm."""
    by_run = read_all(paths, _to_read(found.runs))
    if by_run:
        _save_measurements(tidy(by_run, found.runs), paths.tables)
    styles = sweep_styles(found)
    chosen = choose(by_run, usable(found.runs), list(styles))
    if chosen is None:
        return _Inside()
    table = reads_table(chosen)
    if table.raw:
        save_tables([table], paths.tables)
    figures = diagnostics_figures(chosen, len(found.runs), styles)
    return _Inside(figures, table if table.raw else None)


def _to_read(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs whose diagnostics are read: all, or of thousands one per cell, the lowest seed used."""
    if len(runs) <= MAX_RUNS_MEASURED:
        return runs
    ranked = runs.assign(_unusable=runs["excluded_because"].notna())
    return ranked.sort_values(["_unusable", "seed"]).drop_duplicates("cell")[runs.columns]


def _save_measurements(frame: pd.DataFrame, folder: Path) -> None:
    """Write the tidy diagnostics; as csv too while a text of them is of use to anybody."""
    if len(frame) <= _MAX_CSV_ROWS:
        save_tidy(frame, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "diagnostics.csv").unlink(missing_ok=True)
    scratch = folder / ".diagnostics.parquet"
    frame.to_parquet(scratch, index=False)
    scratch.replace(folder / "diagnostics.parquet")


def _write(study: _Study, paths: SweepPaths) -> ReportResult:
    found = study.found
    write_text_atomically(paths.fits, fits_json(found, study.name, study.tuning) + "\n")
    tables = study_tables(found, study.runs)
    save_tables(tables.filled(losses=found.probes is None), paths.tables)
    card = run_card(found, study.name, study.manifest, study.tuning)
    save_card(card, paths.tables)
    searched, tuning = _tuning(study, paths)
    drawn, findings = _findings(study, tables, tuning, paths)
    within = save_pictures(study.inside.figures, paths.figures)
    cannot = cannot_sentences(found)
    if study.manifest and not within:
        cannot = (*cannot, "Diagnostics: no usable run has any.")
    sections = (
        *findings,
        evaluations_section(paths, found.runs, found.baseline) if study.manifest else None,
        inside_section(blocks_of(within), blocks_of(within, folded=True), study.inside.reads),
        methods_section(methods_paragraph(found, study.tuning), card),
        runs_section(found, tables, _counts(study)),
        provenance_section(found, study.manifest, study.notes),
    )
    write_text_atomically(paths.report, _page(study, [s for s in sections if s], cannot))
    n_used = len(usable(found.runs))
    return ReportResult(
        report_path=paths.report,
        n_used=n_used,
        n_excluded=len(found.runs) - n_used,
        n_runs=len(found.runs),
        headline=study_headline(found),
        cannot=cannot,
        figures=tuple(picture.svg for picture in (*drawn, *searched, *within)),
    )


def _findings(
    study: _Study, tables: StudyTables, tuning: Section | None, paths: SweepPaths
) -> tuple[list[SavedPicture], list[Section | None]]:
    """Figures and sections of what was compared: probes, or losses and their laws."""
    found, styles = study.found, sweep_styles(study.found)
    if found.probes is not None:
        runs = found.runs if study.runs is None else study.runs
        drawn, sections = probe_sections(found.probes, runs, paths, styles)
        return drawn, [*sections, tuning]
    drawn = save_pictures(sweep_figures(found), paths.figures)
    return drawn, [
        comparison_section(found, tables),
        tuning,
        figures_section(blocks_of(drawn), blocks_of(drawn, folded=True)),
        laws_section(found, tables, study.laws),
    ]


def _tuning(study: _Study, paths: SweepPaths) -> tuple[list[SavedPicture], Section | None]:
    """Write the tables and figures of the search; its section of the page."""
    if study.tuning is None:
        return [], None
    found = study.found
    tables = tuning_tables(study.tuning)
    save_tables(tables, paths.tables)
    drawn = tuning_figures(study.tuning, found.baseline, sweep_styles(found), found.flop_convention)
    saved = save_pictures(drawn, paths.figures)
    return saved, tuning_section(
        study.tuning, tables, blocks_of(saved), blocks_of(saved, folded=True)
    )


def _counts(study: _Study) -> str:
    """Runs used, and those besides that only the comparison at equal values uses."""
    said = counts_sentence(study.found.runs)
    n = 0 if study.runs is None else len(study.runs) - len(study.found.runs)
    more = f" {n} more at the baseline's values, for the comparison with own best ones only."
    return said + more * (n > 0)


def _page(study: _Study, sections: Sequence[Section], cannot: Sequence[str]) -> str:
    found = study.found
    entropies = study.manifest.unigram_entropy_nats if study.manifest else {}
    sentences = [
        *(probe_sentences(found.probes) if found.probes else ()),
        *method_sentences(found.comparisons.get(FLOPS.name, ()), found.asymptote),
        *(tuning_sentences(study.tuning) if study.tuning else shared_rate_sentences(found)),
        *trunk_sentences(found.runs, usable(found.runs)),
        *timing_sentences(usable(found.runs)),
        *([] if found.probes else _of_losses(found, entropies)),
    ]
    return _template().render(
        name=study.name,
        headline=study_headline(found),
        counts=_counts(study),
        statuses=statuses_text(found.runs),
        method=sentences,
        cannot=cannot,
        sections=anchored(sections),
    )


def _of_losses(found: Analysis, entropies: Mapping[str, float]) -> list[str]:
    convention = convention_sentence(found.flop_convention)
    return [convention, *entropy_sentences(found.runs, entropies)]


def _template() -> jinja2.Template:
    folder = files("analysis.page")
    loader = jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
