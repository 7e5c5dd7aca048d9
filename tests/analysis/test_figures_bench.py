"""Figures of `isoloss bench` from a table of known numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.figures.bench import (
    bench_figures,
    depth_data,
    depth_figure,
    fit_polynomial,
    fit_sentences,
    read_bench,
    residual_data,
    step_data,
)
from harness.bench.plan import BenchShape
from harness.bench.rows import CONVENTIONS, BenchRow, Subject, as_csv, section_rows

SENTENCES = {"machine": "A machine.", **CONVENTIONS}
DEPTHS = (12, 24, 48, 96)


def shape(n_sublayers: int = 24, d_model: int = 256) -> BenchShape:
    return BenchShape(n_sublayers // 2, d_model, 8192, 256, 32)


def step_rows(part: str, at: BenchShape) -> list[BenchRow]:
    """Standard 5 + 2 M ms; full 0.01 M^2 ms more. Memory 100 + 10 M and 2 M more."""
    m = at.n_sublayers
    subjects = [
        Subject(
            "standard",
            moved_elements=3 * m * at.d_model,
            peak_bytes=100 + 10 * m,
            predicted_bytes=110 + 11 * m,
            rounds_s=(5e-3 + 2e-3 * m,) * 3,
        ),
        Subject(
            "full",
            moved_elements=3 * m * at.d_model + m * m * at.d_model,
            peak_bytes=100 + 12 * m,
            predicted_bytes=110 + 13 * m,
            rounds_s=(5e-3 + 2e-3 * m + 1e-5 * m * m,) * 3,
        ),
    ]
    return section_rows(part, at, subjects, "fp32", copy_bytes_per_s=1e12)


def residual_rows(at: BenchShape) -> list[BenchRow]:
    subjects = [
        Subject("standard", moved_elements=100, rounds_s=(0.1, 0.2, 0.3)),
        Subject("full", moved_elements=1000, rounds_s=(1.0, 2.0, 3.0)),
        Subject("naive", "peer", "full", rounds_s=(20.0, 40.0)),
        Subject("absent", "peer", "full", note="not installed: pip install absent"),
    ]
    return section_rows("residual", at, subjects, "fp32", copy_bytes_per_s=1e9)


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    rows = [
        *step_rows("step", shape()),
        *residual_rows(shape()),
        *step_rows("step", shape(16, 64)),
        *(row for depth in DEPTHS for row in step_rows("depth", shape(depth))),
    ]
    path = tmp_path / "bench.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    return read_bench(path)


def test_steps_are_ratios_by_shape_with_the_floor_as_a_ratio(table: pd.DataFrame) -> None:
    large, small = step_data(table)
    assert large.title == "12 layers, width 256, 8,192 tokens"
    assert small.title == "8 layers, width 64, 8,192 tokens"
    standard, full = large.bars
    assert (standard.value, standard.memory) == (1.0, 1.0)
    assert np.isnan(standard.floor)
    assert full.value == pytest.approx(1 + 1e-5 * 24 * 24 / 0.053)
    floor_s = 3 * 24 * 24 * 256 * 8192 * 4 / 1e12
    assert full.floor == pytest.approx(1 + floor_s / 0.053)
    assert full.memory == pytest.approx((100 + 12 * 24) / (100 + 240))


def test_the_residual_part_shows_ours_and_what_is_installed(table: pd.DataFrame) -> None:
    [panel] = residual_data(table)
    assert [bar.subject for bar in panel.bars] == ["standard", "full", "naive"]
    assert [bar.peer for bar in panel.bars] == [False, False, True]
    full, naive = panel.bars[1:]
    assert (full.value, full.low, full.high) == (2.0, 1.5, 2.5)
    assert full.floor == pytest.approx(3 * 1000 * 8192 * 4 / 1e9)
    assert naive.value == 30.0
    assert np.isnan(naive.floor)


def test_depth_sets_closed_forms_beside_what_was_measured(table: pd.DataFrame) -> None:
    standard, full = depth_data(table)
    floors = [5e-3 + 2e-3 * m + 3 * m * m * 256 * 8192 * 4 / 1e12 for m in DEPTHS]
    assert full.floor_step_s == pytest.approx(floors)
    assert np.isnan(standard.floor_step_s).all()
    assert list(full.predicted_bytes) == [110 + 13 * m for m in DEPTHS]
    assert list(standard.predicted_bytes) == [110 + 11 * m for m in DEPTHS]


def test_the_depth_figure_tells_fits_from_closed_forms(table: pd.DataFrame) -> None:
    figure = depth_figure(depth_data(table))
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "standard",
        "full",
        "quadratic fit",
        "closed-form floor (time), closed form (memory)",
    ]
    labels = [axes.get_ylabel() for axes in figure.axes]
    beyond = "time of a step beyond standard's"
    assert labels == ["time of a step", beyond, "peak memory of a step"]
    dashed = [line for line in figure.axes[2].lines if line.get_linestyle() == "--"]
    assert [list(line.get_ydata()) for line in dashed] == [
        [110 + 11 * m for m in DEPTHS],
        [110 + 13 * m for m in DEPTHS],
    ]


def test_depth_recovers_quadratics(table: pd.DataFrame) -> None:
    standard, full = depth_data(table)
    assert (standard.subject, full.subject) == ("standard", "full")
    assert list(full.sublayers) == list(DEPTHS)
    assert full.time_fit is not None
    assert full.time_fit.coefficients == pytest.approx((5e-3, 2e-3, 1e-5))
    assert full.memory_fit is not None
    assert full.memory_fit.coefficients == pytest.approx((100.0, 12.0, 0.0), abs=1e-6)
    assert full.time_fit.worst < 1e-9
    assert full.extra_s == pytest.approx([1e-5 * m * m for m in DEPTHS])
    assert full.floor_s == pytest.approx([3 * m * m * 256 * 8192 * 4 / 1e12 for m in DEPTHS])
    assert np.isnan(standard.floor_s).all()
    told = fit_sentences([full])[0]
    assert "5 + 2 M + 0.01 M^2 ms (points within 0.0%)" in told


def test_a_curve_that_could_not_miss_is_not_fitted() -> None:
    m = np.array([12.0, 24.0, 48.0])
    assert fit_polynomial(m, m**2, degree=2) is None
    assert fit_polynomial(m, m, degree=1) is not None


def test_a_fit_says_how_far_its_farthest_point_lies() -> None:
    m = np.array([1.0, 2.0, 3.0, 4.0])
    fit = fit_polynomial(m, np.array([1.0, 2.0, 3.0, 4.4]), degree=1)
    assert fit is not None
    off = np.abs(fit(m) / np.array([1.0, 2.0, 3.0, 4.4]) - 1)
    assert fit.worst == pytest.approx(off.max())
    assert fit.worst > 0.01


def test_figures_are_drawn_for_what_the_table_holds(table: pd.DataFrame, tmp_path: Path) -> None:
    drawn = bench_figures(table, SENTENCES, tmp_path / "all")
    assert drawn == ("bench_step", "bench_residual", "bench_depth")
    assert len(list((tmp_path / "all").iterdir())) == 9
    assert bench_figures(table[table["part"] == "step"], SENTENCES, tmp_path / "one") == (
        "bench_step",
    )
    assert len(list((tmp_path / "one").iterdir())) == 3


def test_one_depth_alone_still_draws(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    path.write_text(as_csv(step_rows("depth", shape(12))), encoding="utf-8")
    assert bench_figures(read_bench(path), SENTENCES, tmp_path) == ("bench_depth",)
