"""Maps over the ratios that a grid declares, whatever integers its shapes have."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.figures.depth_width import shapes_of
from analysis.study_shapes import RATIOS, SHAPE, shape_axes, shape_gains, shape_surfaces
from tests.analysis.figure_inputs import kimi_shapes


@pytest.fixture
def used() -> pd.DataFrame:
    """Figure 7 of arXiv 2603.15031, with integers that miss the ratios a little."""
    rows = []
    for i, shape in enumerate(kimi_shapes()):
        n_layers = 40 - i % 25
        rows.append(
            {
                "arm": shape.arm,
                "heads_per_layer": shape.depth,
                "width_per_layer": shape.width,
                "n_layers": n_layers,
                "d_model": round(shape.width * n_layers) + i % 3,
                "flops": 6.5e19 * (1 + 1e-4 * i),
                "budget_kind": "flops",
                "budget_value": 6.5e19,
                "loss_nats": shape.loss,
            }
        )
    return pd.DataFrame(rows)


def test_the_papers_map_is_fitted_over_its_ratios(used: pd.DataFrame) -> None:
    assert shape_axes(used) == RATIOS
    fits = shape_surfaces(used)
    assert set(fits) == {"baseline", "attnres"}
    for fit in fits.values():
        assert not isinstance(fit, str)
        assert fit.names == ("heads_per_layer", "width_per_layer")
    assert shape_gains(used, "baseline")["attnres"].smallest == pytest.approx(0.019)
    assert shape_gains(used, "baseline")["attnres"].largest == pytest.approx(0.063)


def test_the_map_has_a_cell_per_declared_ratio(used: pd.DataFrame) -> None:
    shapes = shapes_of(used)
    assert len(shapes) == 50
    assert {s.width for s in shapes} == {15, 30, 45, 60, 75}


def test_without_declared_ratios_the_axes_are_layers_and_width(used: pd.DataFrame) -> None:
    assert shape_axes(used.assign(heads_per_layer=float("nan"))) == SHAPE
    assert shape_axes(used.drop(columns=RATIOS)) == SHAPE
