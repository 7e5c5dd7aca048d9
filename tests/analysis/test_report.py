from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.cells import FLOPS
from analysis.collect import collect
from analysis.diagnostics import Chosen, Measurement, choose, read_all
from analysis.figures import style
from analysis.figures.style import arm_styles
from analysis.intake.options import TableOptions
from analysis.intake.table import read_table
from analysis.page.drawn import Drawn
from analysis.page.gallery import sweep_figures
from analysis.page.gallery_inside import diagnostics_figures
from analysis.page.pictures import save_pictures
from analysis.page.report import ReportResult, report, report_table
from analysis.page.wording import cannot_sentences, headline, study_headline
from analysis.study import analyse
from harness.cost import FLOP_CONVENTION
from harness.paths import SweepPaths
from tests.analysis.conftest import REPORTED
from tests.analysis.synthetic_diagnostics import row_of
from tests.analysis.synthetic_sweep import LAYERS_AND_WIDTHS as SHAPES
from tests.analysis.synthetic_sweep import World, build_sweep, run_id

TWO_ARMS = {"standard": 1.0, "full": 1.3}


def test_report_writes_table_fits_figures_and_one_page(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    paths, result = finished
    assert (result.n_used, result.n_excluded, result.n_runs) == (30, 2, 32)
    assert result.report_path == paths.report
    assert paths.table.exists()
    assert {path.stem for path in result.figures} >= {
        "loss_compute",
        "multipliers",
        "paired_differences",
        "residuals",
        "e_profile",
        "norms_by_depth",
        "gradient_by_depth",
        "depth_attention",
        "learned_mass",
        "max_weight",
        "causal_check",
        "source_redundancy",
        "query_health",
        "contributions",
    }
    suffixes = {path.suffix for path in paths.tables.iterdir()}
    assert suffixes == {".csv", ".md", ".tex", ".parquet", ".json"}
    written = {path.stem for path in paths.tables.glob("*.tex")}
    assert {"headline", "multiplier_intervals", "multipliers_by_size", "exclusions"} <= written
    assert (paths.tables / "run_card.md").exists()


def test_page_needs_nothing_from_outside(finished: tuple[SweepPaths, ReportResult]) -> None:
    page = finished[0].report.read_text()
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []
    assert "<script" not in page
    assert "url(" not in page
    assert page.count("data:image/svg+xml;base64,") == len(finished[1].figures)


def test_every_entry_of_the_contents_leads_to_one_heading(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    page = finished[0].report.read_text()
    anchors = re.findall(r'\bid="([^"]*)"', page)
    assert len(anchors) == len(set(anchors))
    linked = re.findall(r'href="#([^"]*)"', page)
    assert set(linked) <= set(anchors)
    headings = re.findall(r'<h[23] id="([^"]*)"', page)
    assert set(headings) <= set(linked)
    for title in ("Figures", "Laws", "Inside the models", "Methods", "Runs", "Provenance"):
        assert f">{title}</a>" in page


def test_figures_carry_values_and_say_what_they_do_not_show(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    page = finished[0].report.read_text()
    losses = page.split('id="loss-against-compute"')[1].split("<h3")[0]
    values = re.findall(r'aria-label="(full, 2x64[^"]*nats[^"]*)"', losses)
    assert len(values) == 2
    assert "It does not show whether the gain holds at other compute." in page


def test_laws_methods_and_card_are_on_the_page(finished: tuple[SweepPaths, ReportResult]) -> None:
    page = finished[0].report.read_text()
    assert "certificate minimum" in page
    assert "We compared 3 variants" in page
    assert "<summary>Training setup</summary>" in page
    assert '<dd class="none">not recorded</dd>' in page
    assert "Seed noise" in page


def test_page_says_convention_counts_exclusions_and_escapes_the_grid(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    page = finished[0].report.read_text()
    assert FLOP_CONVENTION.replace("'", "&#39;") in page
    assert "30 of 32 runs used; 2 excluded" in page
    assert "diverged in a test" in page
    assert "failed in a test" in page
    assert "&lt;b&gt;not markup&lt;/b&gt;" in page
    assert "Unigram entropy of the corpus: 3.1000 nats" in page


def test_page_folds_what_is_looked_up_rather_than_read(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    page = finished[0].report.read_text()
    main = page[page.index("<section>") :]
    for anchor in ("redundancy-of-sources", "contribution-and-weight", "residuals-of-the-law"):
        part = main.split(f'<h3 id="{anchor}"')[1].split("<h3")[0]
        assert part.index("<details>") < part.index("<img")
    for anchor in ("loss-against-compute", "largest-weight-and-number-of-sources"):
        part = main.split(f'<h3 id="{anchor}"')[1].split("<h3")[0]
        assert "<details>" not in part
    assert "Depth reads in numbers" in main
    assert len(page) < 3_500_000


def test_tables_hold_the_diagnostics_of_every_run_and_a_summary_per_arm(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    folder = finished[0].tables
    rows = list(csv.DictReader((folder / "diagnostics.csv").open()))
    assert len({row["run_id"] for row in rows}) == 32
    summary = list(csv.DictReader((folder / "depth_reads.csv").open()))
    assert [row["arm"] for row in summary] == list(REPORTED)[1:]


def test_diagnostics_of_an_older_version_are_still_drawn(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, shapes=((2, 64),), seeds=(0,), diagnostics="old")
    paths = build_sweep(tmp_path, world)
    runs = collect(paths)
    chosen = choose(read_all(paths, runs), runs, list(TWO_ARMS))
    assert chosen is not None
    drawn = {d.name for d in diagnostics_figures(chosen, 2, arm_styles(TWO_ARMS, "standard"))}
    assert {"norms_by_depth", "gradient_by_depth", "depth_attention", "learned_mass"} <= drawn
    assert "max_weight" in drawn
    assert not {"causal_check", "source_redundancy", "query_health", "contributions"} & drawn


def test_many_arms_are_drawn_on_several_pages_and_streams_where_they_mix() -> None:
    arms = [f"full {i}" for i in range(7)]
    runs = [Measurement(arm, row_of("full", 2)) for arm in arms]
    chosen = Chosen("2x8", (*runs, Measurement("mhc", row_of("mhc", 2))))
    drawn = {d.name: d for d in diagnostics_figures(chosen, 9, arm_styles([*arms, "mhc"], "mhc"))}
    assert drawn["depth_attention_2"].title == "Depth attention, continued"
    assert (drawn["depth_attention"].folded, drawn["depth_attention_2"].folded) == (False, True)
    assert {"causal_check_2", "contributions_2", "stream_mixing"} <= set(drawn)
    folded = [item.folded for item in drawn.values()]
    assert folded == sorted(folded)
    assert all(item.definition for item in drawn.values())


def test_headline_gives_every_arm_with_its_interval(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    text = finished[1].headline
    for arm in list(REPORTED)[1:]:
        assert re.search(re.escape(arm) + r" \d\.\d+ \[\d\.\d+, \d\.\d+\]", text), (arm, text)
    assert "No difference from standard found" in text


def test_fits_json_holds_laws_and_multipliers_with_their_conventions(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    fits = json.loads(finished[0].fits.read_text())
    law = fits["laws"]["flops"]
    assert law["flop_convention"] == FLOP_CONVENTION
    assert law["exponent"]["low"] < 0.1 < law["exponent"]["high"]
    reasons = {gone["arm"]: gone["reason"] for gone in law["exclusions"]}
    assert reasons == {"full": "diverged in a test", "delta": "failed in a test"}
    full = next(m for m in fits["comparisons"]["flops"] if m["arm"] == "full")
    assert full["verdict"] == "better"
    assert full["by_size"][3]["undefined_because"] == "outside measured baseline range"
    assert len(law["data_sha256"]) == 64


def test_tables_in_all_formats_have_the_same_rows(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    folder = finished[0].tables
    rows = list(csv.DictReader((folder / "headline.csv").open()))
    assert [row["arm"] for row in rows] == list(REPORTED)
    markdown = (folder / "headline.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in markdown[2:]] == list(REPORTED)
    latex = (folder / "headline.tex").read_text()
    assert latex.count(r"\\") == 1 + len(REPORTED)
    assert r"low\_rank" in latex
    assert float(rows[1]["extra_flops_pct"]) == pytest.approx(1.0, abs=0.01)
    assert float(rows[1]["relative_step_time"]) == pytest.approx(1.111, abs=0.001)
    assert rows[0]["multiplier_flops"] == ""


@pytest.mark.usefixtures("vectors_only")
def test_report_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, seeds=(0,), diagnostics="none", shapes=SHAPES[:3])
    paths = build_sweep(tmp_path, world)
    report(paths)
    before = {path: path.read_bytes() for path in paths.root.glob("**/*.*") if path.is_file()}
    report(paths)
    assert {path.name for path in before if path.read_bytes() != before[path]} == set()


def test_sweep_without_a_finished_run_still_gives_a_report(tmp_path: Path) -> None:
    keys = [(arm, size, 0) for arm in TWO_ARMS for size in range(4)]
    statuses = {run_id(*key): "planned" for key in keys}
    world = World(multipliers=TWO_ARMS, seeds=(0,), statuses=statuses)
    result = report(build_sweep(tmp_path, world))
    assert (result.n_used, result.n_excluded, result.figures) == (0, 8, ())
    assert "got 0" in result.cannot[0]
    assert "No figure yet" in result.report_path.read_text()


def test_sweep_with_one_size_done_says_what_is_missing(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, shapes=((2, 64),), diagnostics="none")
    found = analyse(collect(build_sweep(tmp_path, world)), "standard")
    assert study_headline(found) == (
        "No verdict (one compute level: the slope of loss in compute is unknown): full."
    )
    assert any(line.startswith("Multiplier of full") for line in cannot_sentences(found))
    assert "loss_compute" in {drawn.name for drawn in sweep_figures(found)}


def test_headline_names_an_arm_without_an_interval_and_prints_no_number(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, diagnostics="none")
    found = analyse(collect(build_sweep(tmp_path, world)), "standard").comparisons[FLOPS.name][0]
    unbounded = replace(found.ratio, estimate=0.00916, low=None, high=None, reason="unbounded")
    said = headline([replace(found, ratio=unbounded, verdict="no difference found")], "standard")
    assert f"for {found.arm} (no interval)" in said
    assert "0.009" not in said


def test_sweep_whose_baseline_failed_says_so_and_compares_nothing(tmp_path: Path) -> None:
    statuses = {run_id("standard", size, 0): "failed" for size in range(4)}
    world = World(multipliers=TWO_ARMS, seeds=(0,), statuses=statuses, diagnostics="none")
    said = study_headline(analyse(collect(build_sweep(tmp_path, world)), "standard"))
    assert "no size where arm and baseline ran with the same seed and settings" in said


def test_runs_on_two_vocabularies_are_not_compared(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path, World(multipliers=TWO_ARMS))
    record = paths.run(run_id("full", 0, 0)).record
    record.write_text(record.read_text().replace('"vocab_size": 256', '"vocab_size": 512'))
    found = analyse(collect(paths), "standard")
    assert str(found.refusal).startswith("losses are not comparable, the runs differ in vocab_size")
    assert set(found.laws.values()) == {found.refusal}
    assert set(found.comparisons.values()) == {()}


@pytest.mark.usefixtures("vectors_only")
def test_a_foreign_table_gets_the_same_page(tmp_path: Path) -> None:
    rows = ["N,D,variant,loss"]
    for n in (1e7, 3e7, 1e8, 3e8):
        rows += [f"{n:g},{20 * n:g},base,{30 * n**-0.15}", f"{n:g},{20 * n:g},new,{29 * n**-0.15}"]
    source = tmp_path / "theirs.csv"
    source.write_text("\n".join(rows) + "\n")
    table = read_table(str(source), TableOptions(baseline="base"))
    result = report_table(table, tmp_path / "out")
    assert result.report_path == tmp_path / "out" / "report.html"
    assert (result.n_used, result.n_runs) == (8, 8)
    assert re.search(r"new 1\.\d+ \[1\.\d+, 1\.\d+\]", result.headline)
    page = result.report_path.read_text()
    assert "Inside the models" not in page
    assert ">Grid<" not in page
    assert "6 N D" in page
    assert (tmp_path / "out" / "tables" / "headline.tex").exists()
    assert (tmp_path / "out" / "fits.json").exists()


def test_every_figure_comes_in_three_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "FORMATS", ("svg", "png", "pdf"))
    monkeypatch.setattr("analysis.page.pictures.MAX_SVG_BYTES", 1)
    figure = style.new_figure(3.0, 2.0)
    figure.subplots().plot([1, 2])
    (saved,) = save_pictures([Drawn("one", "One", "", figure)], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"one.svg", "one.png", "one.pdf"}
    assert saved.block.picture is not None
    assert saved.block.picture.uri.startswith("data:image/png;base64,")


def test_analysis_starts_without_torch() -> None:
    code = (
        "import sys, analysis.page.report;"
        "heavy = ('torch', 'lightning', 'mlflow', 'matplotlib.pyplot');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
