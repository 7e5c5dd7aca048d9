"""The report of a sweep: collect, fit, compare, tabulate, draw, and one self-contained page.

The only module of ``analysis`` that knows the whole order. Works on a sweep that is unfinished or
has no finished run at all: what cannot be computed is said, with the reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from analysis.cells import FLOPS
from analysis.collect import collect, usable, write_table
from analysis.diagnostics import choose, read_all, save_tidy, tidy
from analysis.diagnostics_table import reads_table
from analysis.figures_style import save
from analysis.gallery import Drawn, diagnostics_figures, sweep_figures, sweep_styles
from analysis.study import Analysis, analyse, fits_json
from analysis.tables import (
    Table,
    by_size_table,
    headline_rows,
    headline_table,
    runs_table,
    save_tables,
    to_html,
)
from analysis.wording import (
    cannot_sentences,
    counts_sentence,
    headline,
    method_sentences,
    timing_sentences,
)
from harness.cost import FLOP_CONVENTION
from harness.paths import SweepPaths
from harness.records import Manifest, read_manifest, write_text_atomically

# Beyond this a page of all runs stops being readable; runs.parquet holds them.
_MAX_RUNS_SHOWN = 400


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


def report(paths: SweepPaths, *, asymptote: float = 0.0) -> ReportResult:
    """Write tables, figures, ``fits.json``, ``runs.parquet`` and ``report.html`` of a sweep.

    Parameters
    ----------
    paths
        The sweep.
    asymptote
        Pinned E of every law, nats.

    Raises
    ------
    DataError
        The sweep was never run.
    FitRefused
        The pinned E lies at or above a loss.
    """
    manifest = read_manifest(paths)
    found = analyse(collect(paths), manifest.baseline, asymptote)
    write_table(found.runs, paths)
    write_text_atomically(paths.fits, fits_json(found, manifest) + "\n")
    tables = _tables(found)
    save_tables(tables, paths.tables)
    inside = _inside(found, paths)
    drawn = sweep_figures(found)
    saved = {
        d.name: save(d.figure, paths.figures, d.name)["svg"] for d in (*drawn, *inside.figures)
    }
    cannot = cannot_sentences(found.laws, found.comparisons)
    if not inside.figures:
        cannot = (*cannot, "Diagnostics: no usable run has any.")
    depicted = {
        "figures": _on_page(drawn, saved),
        "inside": _on_page([d for d in inside.figures if not d.folded], saved),
        "folded": _on_page([d for d in inside.figures if d.folded], saved),
        "reads_table": Markup(to_html(inside.reads)) if inside.reads else None,
    }
    page = _page(found, manifest, tables, depicted, cannot)
    write_text_atomically(paths.report, page)
    n_used = len(usable(found.runs))
    return ReportResult(
        report_path=paths.report,
        n_used=n_used,
        n_excluded=len(found.runs) - n_used,
        n_runs=len(found.runs),
        headline=_headline(found),
        cannot=cannot,
        figures=tuple(saved.values()),
    )


@dataclass(frozen=True)
class _Inside:
    """What is shown of the inside of the models."""

    figures: list[Drawn]
    reads: Table | None


def _inside(found: Analysis, paths: SweepPaths) -> _Inside:
    """Write the tidy diagnostics and draw those of one run per arm."""
    by_run = read_all(paths, found.runs)
    if by_run:
        save_tidy(tidy(by_run, found.runs), paths.tables)
    styles = sweep_styles(found)
    chosen = choose(by_run, usable(found.runs), list(styles))
    if chosen is None:
        return _Inside([], None)
    table = reads_table(chosen)
    if table.raw:
        save_tables([table], paths.tables)
    figures = diagnostics_figures(chosen, len(found.runs), styles)
    return _Inside(figures, table if table.raw else None)


def _on_page(drawn: Sequence[Drawn], saved: Mapping[str, Path]) -> list[dict[str, str]]:
    return [
        {
            "title": d.title,
            "text": d.text,
            "alt": " ".join(part for part in (f"{d.title}.", d.definition, d.text) if part),
            "uri": _data_uri(saved[d.name]),
        }
        for d in drawn
    ]


def _headline(found: Analysis) -> str:
    if found.refusal:
        return f"No multiplier: {found.refusal}."
    return headline(found.comparisons[FLOPS.name], found.baseline)


def _sizes(found: Analysis) -> list[str]:
    """Labels of all sizes of the grid, by compute."""
    grid = found.runs[found.runs["in_grid"]]
    return [str(size) for size in grid.groupby("size")["flops"].mean().sort_values().index]


def _tables(found: Analysis) -> list[Table]:
    sizes = _sizes(found)
    rows = headline_rows(found.runs, found.comparisons, found.baseline)
    return [
        headline_table(rows, sizes),
        by_size_table(found.comparisons[FLOPS.name], sizes),
        runs_table(found.runs),
    ]


def _page(
    found: Analysis,
    manifest: Manifest,
    tables: Sequence[Table],
    depicted: Mapping[str, Any],
    cannot: Sequence[str],
) -> str:
    shown = tables[2]
    if len(shown.cells) > _MAX_RUNS_SHOWN:
        shown = runs_table(found.runs[found.runs["excluded_because"].notna()])
    multipliers = found.comparisons[FLOPS.name]
    return _template().render(
        sweep=manifest.sweep,
        headline=_headline(found),
        counts=counts_sentence(found.runs),
        method=method_sentences(multipliers, found.asymptote)
        + timing_sentences(usable(found.runs)),
        convention=FLOP_CONVENTION,
        headline_table=Markup(to_html(tables[0])),
        by_size_table=Markup(to_html(tables[1])) if multipliers else None,
        runs_table=Markup(to_html(shown)),
        only_excluded=shown is not tables[2],
        **depicted,
        cannot=cannot,
        entropy=_entropy_sentence(found, manifest.unigram_entropy_nats),
        statuses=_counts(found.runs["status"]),
        provenance=_provenance(found.runs, manifest),
        grid_text=manifest.grid_text,
        overrides=manifest.overrides,
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("analysis").joinpath("report.html.j2").read_text("utf-8"))


def _data_uri(svg: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.read_bytes()).decode()


def _entropy_sentence(found: Analysis, entropies: Mapping[str, float]) -> str | None:
    losses = usable(found.runs)["loss_nats"]
    if not entropies or losses.empty:
        return None
    stated = ", ".join(f"{nats:.4f} nats per token ({name})" for name, nats in entropies.items())
    return (
        f"Unigram entropy of the corpus: {stated}; final losses lie between "
        f"{losses.min():.4f} and {losses.max():.4f}."
    )


def _counts(values: pd.Series) -> str:
    return ", ".join(f"{n} {status}" for status, n in values.value_counts().items())


def _provenance(runs: pd.DataFrame, manifest: Manifest) -> list[tuple[str, str]]:
    """What the numbers come from, one line per fact; several values where the runs differ."""
    facts: list[tuple[str, Callable[[], list[str]]]] = [
        ("code version", lambda: _distinct(runs["code_version"])),
        ("libraries", lambda: [_flat(text) for text in _distinct(runs["library_versions"])]),
        ("hardware", lambda: [_flat(text) for text in _distinct(runs["hardware"])]),
        ("corpus", lambda: _distinct(runs["corpus"])),
        ("corpus sha256", lambda: _distinct(runs["corpus_sha256"])),
        ("validation tokens", lambda: _distinct(runs["eval_tokens"])),
        ("precision", lambda: _distinct(runs["precision"])),
        ("grid as of", lambda: [manifest.created_at]),
    ]
    return [(name, "; ".join(values())) for name, values in facts if values()]


def _distinct(values: pd.Series) -> list[str]:
    return [str(value) for value in values.dropna().unique()]


def _flat(text: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in json.loads(text).items())
