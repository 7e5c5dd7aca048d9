"""The page, the figures and the files of a sweep of depth probes."""

from __future__ import annotations

import csv
import itertools
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.collect import collect
from analysis.figures import style
from analysis.figures.probe_curves import CurvesData, curves_figure, curves_hover, depth_looks
from analysis.figures.probe_forest import probe_forest, probe_forest_figure, probe_forest_hover
from analysis.figures.probe_panels import (
    accuracy_along_training,
    accuracy_by_arm,
    accuracy_by_depth,
    differences_by_depth,
    solved_by_depth,
)
from analysis.page.report import ReportResult, report
from analysis.probes.read import read_accuracy_curves
from analysis.probes.study import probes_of
from analysis.probes.types import Probe
from harness.paths import SweepPaths
from tests.analysis.synthetic_probes import MQAR, S3, ProbeWorld, build_probes
from tests.analysis.test_figures_legible import assert_legible

MANY = ProbeWorld(
    shifts={
        "standard": 0.0,
        "full": -1.5,
        "hyper_connections(n_streams=4, dynamic=true)": 0.5,
        **{f"variant_{i}": i / 10 for i in range(9)},
    },
    depths=(1, 2, 3, 4, 8, 12),
    seeds=(0, 1),
)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepPaths, ReportResult]:
    """Both tasks; one run diverged, one is not started."""
    statuses = {("s3_words", "full", 4, 0): "diverged", ("mqar", "full", 4, 1): "planned"}
    shifts = {"standard": 0.0, "full": -1.5, "delta": 0.0}
    world = ProbeWorld(shifts, (1, 2, 4), (0, 1, 2), (MQAR, S3), statuses=statuses)
    paths = build_probes(tmp_path_factory.mktemp("reported"), world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "FORMATS", ("svg",))
        return paths, report(paths)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Probe, pd.DataFrame]:
    """Twelve arms at six depths, and their accuracies along training."""
    paths = build_probes(tmp_path_factory.mktemp("many"), MANY)
    runs = collect(paths)
    found = probes_of(runs, "standard")
    assert found is not None
    return found.items[0], read_accuracy_curves(runs, paths)


def test_probes_come_first_and_no_section_of_laws_is_shown(
    reported: tuple[SweepPaths, ReportResult],
) -> None:
    page = reported[0].report.read_text()
    headings = re.findall(r'<h2 id="[^"]*">([^<]*)</h2>', page)
    assert headings[:2] == ["Probe: s3_words(length=16)", "Control: mqar(n_pairs=8)"]
    assert headings[2:] == ["Methods and run card", "Runs", "Provenance"]
    for text in ("multiplier", "power law", "iso-loss", "Law in"):
        assert text not in page


def test_headline_says_how_far_depth_carries_and_who_differs(
    reported: tuple[SweepPaths, ReportResult],
) -> None:
    said = reported[1].headline
    assert re.search(r"standard solves length 3\.\d, \d\.\d and \d\.\d at 1, 2 and 4 layers", said)
    assert re.search(r"less accurate than standard.*: full -\d\.\d \[-\d+\.\d, -\d\.\d\]", said)
    assert re.search(r"No difference from standard found.*for delta", said)
    assert "Control mqar(n_pairs=8)" in said


def test_every_lost_run_is_on_the_page_with_its_reason(
    reported: tuple[SweepPaths, ReportResult],
) -> None:
    paths, result = reported
    assert (result.n_used, result.n_runs) == (52, 54)
    page = paths.report.read_text()
    assert "diverged in a test" in page
    assert "full (1 diverged)" in page
    runs = list(csv.DictReader((paths.tables / "runs.csv").open()))
    assert len(runs) == 54
    assert {row["corpus"] for row in runs} == {"s3_words(length=16)", "mqar(n_pairs=8)"}
    assert sum(row["accuracy"] != "" for row in runs) == 52


def test_numbers_are_in_files_of_all_formats(reported: tuple[SweepPaths, ReportResult]) -> None:
    paths, _ = reported
    stem = "probe_differences_s3_words_length_16"
    rows = list(csv.DictReader((paths.tables / f"{stem}.csv").open()))
    assert [row["arm"] for row in rows] == ["full", "delta"]
    assert float(rows[0]["accuracy_difference_high"]) < 0
    assert rows[0]["accuracy_verdict"] == "worse"
    assert (paths.tables / f"{stem}.md").exists()
    assert r"\midrule" in (paths.tables / f"{stem}.tex").read_text()
    tidy = pd.read_parquet(paths.tables / "accuracy_by_difficulty.parquet")
    assert len(tidy) == len(pd.read_csv(paths.tables / "accuracy_by_difficulty.csv"))
    assert not (paths.tables / "headline.csv").exists()
    probes = json.loads(paths.fits.read_text())["probes"]
    assert [item["label"] for item in probes["items"]] == ["s3_words(length=16)", "mqar(n_pairs=8)"]


def test_figures_carry_their_values_and_their_counts(
    reported: tuple[SweepPaths, ReportResult],
) -> None:
    page = reported[0].report.read_text()
    values = re.findall(r'aria-label="(full, full, layers 4: [^"]*)"', page)
    assert len(values) == 2
    assert re.fullmatch(r"full, full, layers 4: \d\.?\d* \(\d to \d, 2 seeds\)", values[0])
    names = {path.stem for path in reported[1].figures}
    assert "probe_solved_s3_words_length_16" in names
    assert not any("loss" in name for name in names)


def test_solved_panels_show_the_arm_beside_the_baseline(many: tuple[Probe, pd.DataFrame]) -> None:
    probe, _ = many
    data = solved_by_depth(probe, ["full"])
    base, full = data.panels[0].lines
    assert (base.name, full.name) == ("standard", "full")
    assert full.x == tuple(map(float, probe.depths))
    cell = probe.cell("full", 8)
    assert cell is not None
    assert cell.solved is not None
    assert full.mean[4] == cell.solved.mean
    assert all(a < b for a, b in zip(full.mean, base.mean, strict=True))


@pytest.mark.parametrize("kind", ["by_arm", "by_depth", "solved"])
def test_panels_of_twelve_arms_are_legible(kind: str, many: tuple[Probe, pd.DataFrame]) -> None:
    probe, _ = many
    arms = style.arm_styles(probe.arms, "standard")
    depths = depth_looks(probe.depths)
    drawn: dict[str, tuple[CurvesData, dict[str, style.ArmStyle]]] = {
        "by_arm": (accuracy_by_arm(probe, probe.arms), depths),
        "by_depth": (accuracy_by_depth(probe), arms),
        "solved": (solved_by_depth(probe, probe.arms[1:]), arms),
    }
    data, looks = drawn[kind]
    assert_legible(curves_figure(data, looks), curves_hover(data))


def test_forests_of_many_arms_are_legible(many: tuple[Probe, pd.DataFrame]) -> None:
    probe, _ = many
    styles = style.arm_styles(probe.arms, "standard")
    bars = {at.arm: [at, at] for at in probe.pooled}
    data = probe_forest(bars, "standard", probe.graded_by, ("own", "equal"))
    assert data.arms[-1] == "full"
    assert_legible(probe_forest_figure(data, styles), probe_forest_hover(data))


def test_panels_along_training_and_of_differences_hold_the_numbers(
    many: tuple[Probe, pd.DataFrame],
) -> None:
    probe, curves = many
    along = accuracy_along_training(probe, ["full"], curves).panels[0].lines
    assert [line.name for line in along][:2] == ["1 layer", "2 layers"]
    cell = probe.cell("full", 12)
    assert cell is not None
    own = curves[curves["run_id"].isin([run.run_id for run in cell.runs])]
    assert along[5].mean == pytest.approx(tuple(own.groupby("step")["accuracy"].mean()))
    (line,) = differences_by_depth(probe, ["full"]).panels[0].lines
    found = [at.accuracy.interval for at in probe.by_depth if at.arm == "full"]
    assert line.mean == tuple(interval.estimate for interval in found)
    assert line.low == tuple(interval.low for interval in found)


def test_depths_are_told_apart_by_lightness_in_their_order() -> None:
    looks = list(depth_looks((1, 2, 3, 4, 8, 12)).values())

    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    shades = [lightness(look.colour) for look in looks]
    assert all(a - b > 0.03 for a, b in itertools.pairwise(shades))
    assert len({look.marker for look in looks}) == 6


@pytest.mark.usefixtures("vectors_only")
def test_a_sweep_without_a_finished_run_still_gives_a_page(tmp_path: Path) -> None:
    keys = [("s3_words", arm, 1, 0) for arm in ("standard", "full")]
    world = ProbeWorld(
        {"standard": 0.0, "full": 0.0}, (1,), (0,), statuses=dict.fromkeys(keys, "planned")
    )
    result = report(build_probes(tmp_path, world))
    assert (result.n_used, result.figures) == (0, ())
    assert "no usable run of standard" in result.headline
    assert "undefined" not in result.report_path.read_text()
