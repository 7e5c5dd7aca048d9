from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pandas as pd
import pytest

from analysis.cells import CURRENCIES, FLOPS, cell_points
from analysis.compare.arms import compare_arms
from analysis.compare.types import Multiplier
from analysis.diagnostics import Measurement
from analysis.figures.depth_reads import attention_figure, depth_attention
from analysis.figures.forest import forest_data, forest_hover
from analysis.figures.loss_compute import loss_compute_data
from analysis.figures.style import arm_styles, caption, new_figure, render, save
from analysis.fit.shared import fit_shared
from tests.analysis.synthetic_diagnostics import row_of
from tests.analysis.synthetic_sweep import MULTIPLIERS


@pytest.fixture(scope="module")
def by_currency(used: pd.DataFrame) -> dict[str, tuple[Multiplier, ...]]:
    return {c.name: compare_arms(used, "standard", c) for c in CURRENCIES}


def test_loss_figure_holds_every_cell_and_the_gap_to_the_baseline_law(used: pd.DataFrame) -> None:
    points = cell_points(used, FLOPS)
    fit = fit_shared(points, FLOPS)
    data = loss_compute_data(points, fit, "standard")
    assert data.curves[0].arm == "standard"
    assert sum(len(curve.loss) for curve in data.curves) == len(points) == 24
    assert sum(len(curve.seed_loss) for curve in data.curves) == 48
    full = next(curve for curve in data.curves if curve.arm == "full")
    assert full.residual == pytest.approx(full.loss - fit.loss("standard", full.compute))
    assert (full.residual < 0).all()


def test_loss_figure_without_a_fit_has_points_and_no_lines(used: pd.DataFrame) -> None:
    data = loss_compute_data(cell_points(used, FLOPS), None, "standard")
    assert all(len(curve.loss) == 4 for curve in data.curves)
    assert all(len(curve.fit_loss) == len(curve.residual) == 0 for curve in data.curves)


def test_forest_lists_the_arms_best_first_in_all_currencies(
    by_currency: dict[str, tuple[Multiplier, ...]],
) -> None:
    data = forest_data(by_currency)
    order = sorted((arm for arm in MULTIPLIERS if arm != "standard"), key=lambda a: -MULTIPLIERS[a])
    assert [row.arm for row in data.rows] == order
    assert [bar.currency for bar in data.rows[0].bars] == [c.name for c in CURRENCIES]
    best = by_currency["flops"][0].ratio
    assert data.rows[0].text == f"{best.estimate:.3f} [{best.low:.3f}, {best.high:.3f}]"


def test_family_wise_interval_belongs_to_the_headline_currency_only(
    by_currency: dict[str, tuple[Multiplier, ...]],
) -> None:
    wider = {
        name: tuple(
            dataclasses.replace(m, simultaneous=dataclasses.replace(m.ratio, low=0.5, high=2.0))
            for m in found
        )
        for name, found in by_currency.items()
    }
    for row in forest_data(wider).rows:
        assert [bar.family_low for bar in row.bars] == [0.5, None, None, None]
        assert [bar.family_high for bar in row.bars] == [2.0, None, None, None]
    hover = forest_hover(forest_data(wider))
    assert hover[0].text.endswith("for all arms at once [0.500, 2.000]")


def test_arms_differ_in_more_than_colour() -> None:
    arms = [f"arm {i}" for i in range(40)]
    styles = arm_styles(arms, "arm 3")
    assert styles["arm 3"].colour == "#000000"
    assert len({(look.colour, look.marker) for look in styles.values()}) == 40
    for one, other in itertools.combinations(list(styles.values())[:30], 2):
        alike = one.colour == other.colour
        assert not alike or (one.marker != other.marker and one.dash != other.dash)
    few = list(arm_styles(arms[:7], "arm 0").values())
    assert len({look.colour for look in few}) == len({look.marker for look in few}) == 7


def test_heat_maps_are_the_same_bytes_each_time() -> None:
    def draw() -> bytes:
        run = Measurement("block", row_of("block", 3))
        return render(attention_figure([depth_attention(run)]), "svg")

    assert draw() == draw()


def test_figure_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    def draw() -> bytes:
        figure = new_figure(3, 2)
        figure.subplots().plot([1, 2], [3, 4], label="a")
        caption(figure, ["1 of 1 runs used."])
        return render(figure, "svg")

    first = draw()
    assert first == draw()
    assert b"<dc:date>" not in first
    written = save(new_figure(3, 2), tmp_path, "empty")
    assert sorted(path.name for path in written.values()) == ["empty.pdf", "empty.png", "empty.svg"]
