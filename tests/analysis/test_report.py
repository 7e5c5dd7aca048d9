from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.collect import collect
from analysis.diagnostics import Chosen, Measurement
from analysis.figures_style import arm_styles
from analysis.gallery import diagnostics_figures
from analysis.report import ReportResult, report
from analysis.study import analyse
from analysis.tables import Cell, Table, to_csv, to_html, to_latex, to_markdown
from harness.cost import FLOP_CONVENTION
from harness.paths import SweepPaths
from tests.analysis.synthetic_diagnostics import row_of
from tests.analysis.synthetic_sweep import MULTIPLIERS, World, build_sweep, run_id

EVERY = [(arm, size, seed) for arm in MULTIPLIERS for size in range(4) for seed in (0, 1)]
TWO_ARMS = {"standard": 1.0, "full": 1.3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepPaths, ReportResult]:
    statuses = {run_id("full", 2, 1): "diverged", run_id("delta", 0, 1): "failed"}
    paths = build_sweep(tmp_path_factory.mktemp("sweep"), World(noise=0.001, statuses=statuses))
    return paths, report(paths)


def test_report_writes_table_fits_figures_and_one_page(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    paths, result = finished
    assert (result.n_used, result.n_excluded, result.n_runs) == (46, 2, 48)
    assert result.report_path == paths.report
    assert paths.table.exists()
    assert {path.stem for path in result.figures} == {
        "loss_compute",
        "multipliers",
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
    assert {path.suffix for path in paths.figures.iterdir()} == {".svg", ".png", ".pdf"}
    assert {path.suffix for path in paths.tables.iterdir()} == {".csv", ".md", ".tex", ".parquet"}


def test_page_needs_nothing_from_outside(finished: tuple[SweepPaths, ReportResult]) -> None:
    page = finished[0].report.read_text()
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "<script" not in page
    assert "url(" not in page
    assert page.count("data:image/svg+xml;base64,") == 11


def test_page_says_convention_counts_exclusions_and_escapes_the_grid(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    page = finished[0].report.read_text()
    assert FLOP_CONVENTION.replace("'", "&#39;") in page
    assert "46 of 48 runs used; 2 excluded" in page
    assert "diverged in a test" in page
    assert "failed in a test" in page
    assert "&lt;b&gt;not markup&lt;/b&gt;" in page
    assert "Unigram entropy of the corpus: 3.1000 nats" in page


def test_page_folds_what_is_looked_up_rather_than_read(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    page = finished[0].report.read_text()
    inside, folded = page.split("3 more figures")
    assert "Largest weight and number of sources" in inside
    assert "Depth reads in numbers" in inside
    for title in ("Redundancy of sources", "Queries", "Contribution and weight"):
        assert f"<h3>{title}" in folded
    assert len(page) < 2_500_000


def test_tables_hold_the_diagnostics_of_every_run_and_a_summary_per_arm(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    folder = finished[0].tables
    rows = list(csv.DictReader((folder / "diagnostics.csv").open()))
    assert len({row["run_id"] for row in rows}) == 48
    summary = list(csv.DictReader((folder / "depth_reads.csv").open()))
    assert [row["arm"] for row in summary] == [arm for arm in MULTIPLIERS if arm != "standard"]


def test_diagnostics_of_an_older_version_still_report(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, shapes=((2, 64),), seeds=(0,), diagnostics="old")
    result = report(build_sweep(tmp_path, world))
    drawn = {path.stem for path in result.figures}
    assert {"norms_by_depth", "gradient_by_depth", "depth_attention", "learned_mass"} <= drawn
    assert "max_weight" in drawn
    assert not {"causal_check", "source_redundancy", "query_health", "contributions"} & drawn


def test_many_arms_are_drawn_on_several_pages_and_streams_where_they_mix() -> None:
    arms = [f"full {i}" for i in range(8)]
    runs = [Measurement(arm, row_of("full", 4)) for arm in arms]
    chosen = Chosen("2x8", (*runs, Measurement("mhc", row_of("mhc", 4))))
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
    for arm in list(MULTIPLIERS)[1:]:
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
    full = next(m for m in fits["multipliers"]["flops"] if m["arm"] == "full")
    assert full["verdict"] == "better"
    assert full["by_size"][3]["undefined_because"] == "outside measured baseline range"
    assert len(law["data_sha256"]) == 64


def test_tables_in_all_formats_have_the_same_rows(
    finished: tuple[SweepPaths, ReportResult],
) -> None:
    folder = finished[0].tables
    rows = list(csv.DictReader((folder / "headline.csv").open()))
    assert [row["arm"] for row in rows] == list(MULTIPLIERS)
    markdown = (folder / "headline.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in markdown[2:]] == list(MULTIPLIERS)
    latex = (folder / "headline.tex").read_text()
    assert latex.count(r"\\") == 1 + len(MULTIPLIERS)
    assert r"low\_rank" in latex
    assert float(rows[1]["extra_flops_pct"]) == pytest.approx(1.0, abs=0.01)
    assert float(rows[1]["relative_step_time"]) == pytest.approx(1.111, abs=0.001)
    assert rows[0]["multiplier_flops"] == ""


def test_report_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, seeds=(0,), diagnostics="none")
    paths = build_sweep(tmp_path, world)
    report(paths)
    before = {path: path.read_bytes() for path in paths.root.glob("**/*.*") if path.is_file()}
    report(paths)
    assert {path.name for path in before if path.read_bytes() != before[path]} == set()


def test_sweep_without_a_finished_run_still_gives_a_report(tmp_path: Path) -> None:
    statuses = {run_id(*key): "planned" for key in EVERY}
    result = report(build_sweep(tmp_path, World(statuses=statuses)))
    assert (result.n_used, result.n_excluded, result.figures) == (0, 48, ())
    assert "got 0" in result.cannot[0]
    assert "No figure yet" in result.report_path.read_text()


def test_sweep_with_one_size_done_says_what_is_missing(tmp_path: Path) -> None:
    world = World(multipliers=TWO_ARMS, shapes=((2, 64),), diagnostics="none")
    result = report(build_sweep(tmp_path, world))
    assert result.headline == (
        "No verdict (one compute level: the slope of loss in compute is unknown): full."
    )
    assert any(line.startswith("Multiplier of full") for line in result.cannot)
    assert "loss_compute" in {path.stem for path in result.figures}


def test_sweep_whose_baseline_failed_says_so_and_compares_nothing(tmp_path: Path) -> None:
    statuses = {run_id("standard", size, 0): "failed" for size in range(4)}
    world = World(multipliers=TWO_ARMS, seeds=(0,), statuses=statuses, diagnostics="none")
    result = report(build_sweep(tmp_path, world))
    assert "no size where arm and baseline ran with the same seed and settings" in result.headline


def test_runs_on_two_vocabularies_are_not_compared(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path, World(multipliers=TWO_ARMS))
    record = paths.run(run_id("full", 0, 0)).record
    record.write_text(record.read_text().replace('"vocab_size": 256', '"vocab_size": 512'))
    found = analyse(collect(paths), "standard")
    assert str(found.refusal).startswith("losses are not comparable, the runs differ in vocab_size")
    assert set(found.laws.values()) == {found.refusal}
    assert set(found.comparisons.values()) == {()}


def test_texts_are_escaped_in_every_format() -> None:
    table = Table("t", "T", ("a|b",), ((Cell("50% <i>", "x_1"),),), ({"a": 'say "hi", all'},))
    assert to_html(table).count("&lt;i&gt;") == 1
    assert r"50\% <i> x\_1" in to_latex(table)
    assert to_markdown(table).splitlines()[0] == r"| a\|b |"
    assert list(csv.DictReader(io.StringIO(to_csv(table)))) == [{"a": 'say "hi", all'}]


def test_analysis_starts_without_torch() -> None:
    code = (
        "import sys, analysis.report;"
        "heavy = ('torch', 'lightning', 'mlflow', 'matplotlib.pyplot');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
