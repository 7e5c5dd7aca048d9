"""Shapes of a wanted size: counted by hand, near the ratios asked for, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.shapes import Backbone, ModelShape, ShapeError, depth_width, ladder, rungs, shape_of

PAPER_COLUMNS = [15.0, 30.0, 45.0, 60.0, 75.0]
PAPER_ROWS = [0.3, 0.4, 0.5, 0.6, 0.7]
"""Figure 7 of arXiv 2603.15031: d_model / n_layers and heads / n_layers."""


def by_hand(shape: ModelShape, vocab_size: int, *, embedded: bool = True) -> int:
    """Weights of a Llama-like decoder: q, k, v, o; gate, up, down; two norms a layer, one at the
    end; embedding and head.
    """
    d = shape.d_model
    layer = 4 * d * d + 3 * d * shape.d_ff + 2 * d
    return shape.n_layers * layer + d + (2 * vocab_size * d if embedded else 0)


def furthest(values: Iterable[float]) -> float:
    """Largest factor by which ratios miss one."""
    return max(max(value, 1 / value) for value in values)


@settings(max_examples=60, deadline=None)
@given(
    start=st.floats(5e6, 5e7),
    growth=st.floats(1.1, 2.0),
    n=st.integers(2, 5),
    aspect=st.floats(24, 90),
    head_dim=st.sampled_from([16, 32]),
)
def test_every_rung_of_a_ladder_has_the_parameters_asked_for(
    start: float, growth: float, n: int, aspect: float, head_dim: int
) -> None:
    stop = start * growth ** (n - 1)
    shapes = ladder(start, stop, n, aspect, Backbone(vocab_size=257, head_dim=head_dim))
    assert len(shapes) == n
    for shape, wanted in zip(shapes, rungs(start, stop, n), strict=True):
        assert by_hand(shape, 257) == shape.n_params
        assert shape.n_params == pytest.approx(wanted, rel=0.02)
        assert shape.d_model % head_dim == 0
        assert shape.d_ff % 4 == 0
        assert 2 < shape.d_ff / shape.d_model < 3.5
        assert furthest([shape.width_per_layer / aspect]) < 1.4


def test_the_ladder_of_the_readme_is_close_to_its_aspect() -> None:
    shapes = ladder(1e6, 1e8, 6, 64, Backbone(vocab_size=257))
    assert [shape.n_layers for shape in shapes] == [3, 4, 5, 7, 9, 13]
    assert furthest(shape.width_per_layer / 64 for shape in shapes) < 1.21
    assert all(shape.d_ff % 16 == 0 for shape in shapes)


def test_rungs_are_geometric_and_end_where_asked() -> None:
    assert rungs(1e6, 1e8, 3) == pytest.approx([1e6, 1e7, 1e8])
    assert rungs(5e6, 1e8, 1) == [5e6]


def test_parameters_can_be_counted_without_the_embedding() -> None:
    (shape,) = ladder(2e8, 2e8, 1, 64, Backbone(50257, head_dim=64, count="non_embedding"))
    assert by_hand(shape, 50257, embedded=False) == shape.n_params
    assert shape.n_params == pytest.approx(2e8, rel=0.02)


def test_a_tied_head_and_shared_keys_count_once() -> None:
    backbone = Backbone(1000, head_dim=64, n_kv_heads=2, tied_head=True)
    shape = shape_of(3e7, 64, backbone)
    d, kv = shape.d_model, 128
    layer = 2 * d * d + 2 * d * kv + 3 * d * shape.d_ff + 2 * d
    assert shape.n_params == shape.n_layers * layer + d + 1000 * d
    assert shape.n_params == pytest.approx(3e7, rel=0.02)
    assert (d // 64) % 2 == 0


def test_a_size_that_no_shape_has_names_the_nearest_and_the_way_out() -> None:
    with pytest.raises(ShapeError) as caught:
        shape_of(2e4, 64, Backbone(257))
    message = str(caught.value)
    assert "no shape of 2e+04 parameters has d_model / n_layers near 64" in message
    assert "the nearest has 76352 (n_layers 1, d_model 64, d_ff 140)" in message
    assert "lower model.head_dim (32)" in message


def test_rungs_too_close_to_differ_are_refused() -> None:
    with pytest.raises(ShapeError, match="two rungs have the same shape"):
        ladder(1e6, 1.0001e6, 2, 64, Backbone(257))


def test_the_papers_depth_width_grid_is_one_size_at_its_ratios() -> None:
    shapes = depth_width(2.3e8, PAPER_COLUMNS, PAPER_ROWS, Backbone(50257, count="non_embedding"))
    cells = list(product(PAPER_ROWS, PAPER_COLUMNS))
    assert len(set(shapes)) == len(cells) == 25
    for shape, (row, column) in zip(shapes, cells, strict=True):
        assert by_hand(shape, 50257, embedded=False) == pytest.approx(2.3e8, rel=0.02)
        assert shape.d_model % shape.head_dim == 0 == shape.head_dim % 2
        assert furthest([shape.width_per_layer / column]) < 1.06
        assert furthest([shape.heads_per_layer / row]) < 1.12


@settings(max_examples=25, deadline=None)
@given(n_params=st.floats(3e6, 3e8), width=st.floats(10, 80), heads=st.floats(0.3, 1.2))
def test_a_cell_of_a_depth_width_grid_is_near_what_was_asked(
    n_params: float, width: float, heads: float
) -> None:
    (shape,) = depth_width(n_params, [width], [heads], Backbone(257))
    assert by_hand(shape, 257) == pytest.approx(n_params, rel=0.02)
    assert furthest([shape.width_per_layer / width, shape.heads_per_layer / heads]) < 1.25


def test_ratios_that_integers_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(ShapeError, match="are the same shape of integers"):
        depth_width(1.5e5, [8], [0.66, 0.67], Backbone(257))
    with pytest.raises(ShapeError, match="Raise params, or change the ratios"):
        depth_width(1e5, [16], [0.05], Backbone(257))
