"""Shapes of a wanted size: ladders of parameters at one aspect, and depth-width grids at one size.

Widths and depths are integers and a width is a whole number of heads, so a wanted count is met by
the hidden width of the MLP: ``d_ff`` near ``8/3 d_model`` takes up what is left. Counts are those
of :func:`harness.cost.count_params`, the backbone without any recipe's own. Pure; knows no grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from harness.config import ModelConfig
from harness.cost import count_params

Count = Literal["total", "non_embedding"]
TOLERANCE = 0.02
"""Largest deviation of a shape's parameters from the wanted ones."""
FFN_RATIO = 8 / 3
"""d_ff / d_model of SwiGLU with as many weights as a plain MLP of 4 d_model."""
FFN_MOST = 1.25
"""Largest factor by which ``d_ff`` leaves its usual share to meet a count."""
MULTIPLES = (16, 8, 4)
"""Multiples that ``d_ff`` may be of, the first preferred."""
RATIO_MOST = 1.5
"""Largest factor by which a ladder's aspect may be missed: at one or two layers, integers are
coarse."""
CELL_MOST = 1.25
"""The same for the two ratios of a depth-width grid, whose cells must not run into each other."""
_PER_HALVING = 0.05
"""What a d_ff of half the multiple counts for, as a logarithm of a ratio missed."""
_PER_UNEVEN = 0.02
"""What a width or head that is no multiple of 8 counts for: matrix units compute it slowly."""


class ShapeError(ValueError):
    """No shape of integers has the wanted size and ratios; the message names the nearest."""


@dataclass(frozen=True)
class Backbone:
    """What all shapes of one declaration share."""

    vocab_size: int
    head_dim: int = 32
    n_kv_heads: int | None = None
    qk_norm: bool = False
    tied_head: bool = False
    count: Count = "total"
    """Whether embedding and head belong to the wanted parameters."""


@dataclass(frozen=True)
class ModelShape:
    """One shape and its size."""

    n_layers: int
    d_model: int
    d_ff: int
    head_dim: int
    n_params: int
    """Parameters, counted as the backbone says."""

    @property
    def width_per_layer(self) -> float:
        """d_model / n_layers: the aspect."""
        return self.d_model / self.n_layers

    @property
    def heads_per_layer(self) -> float:
        """n_heads / n_layers."""
        return self.d_model / self.head_dim / self.n_layers


def rungs(start: float, stop: float, n: int) -> list[float]:
    """Return ``n`` geometric steps from ``start`` to ``stop``, both included."""
    if n == 1:
        return [start]
    return [start * (stop / start) ** (i / (n - 1)) for i in range(n)]


def ladder(
    start: float, stop: float, n: int, aspect: float, backbone: Backbone
) -> list[ModelShape]:
    """Return shapes whose parameters are within :data:`TOLERANCE` of ``n`` geometric rungs.

    Parameters
    ----------
    start, stop
        Parameters of the first and the last rung.
    n
        Rungs.
    aspect
        Wanted ``d_model / n_layers``, kept as near as whole heads and layers allow.
    backbone
        What the shapes share; ``d_model`` is a multiple of its ``head_dim``.

    Raises
    ------
    ShapeError
        A rung has no such shape, or two rungs have the same.
    """
    shapes = [shape_of(wanted, aspect, backbone) for wanted in rungs(start, stop, n)]
    for lower, upper in pairwise(shapes):
        if lower == upper:
            raise ShapeError(
                f"two rungs have the same shape ({_spelled(lower)}). Ask for fewer rungs, or a "
                "wider range"
            )
    return shapes


def shape_of(n_params: float, aspect: float, backbone: Backbone) -> ModelShape:
    """Return the shape of a size that is nearest to an aspect and to the usual ``d_ff``.

    Raises
    ------
    ShapeError
        None is within :data:`TOLERANCE` of the parameters and :data:`RATIO_MOST` of the aspect.
    """
    best = _Nearest(n_params)
    for n_layers in range(1, _most_layers(n_params, aspect) + 1):
        wanted = aspect * n_layers
        for d_model in _between(wanted / RATIO_MOST, wanted * RATIO_MOST, backbone.head_dim):
            missed = abs(math.log(d_model / wanted))
            if missed < best.cost:
                shapes = _with_ffn(n_params, n_layers, d_model, backbone.head_dim, backbone)
                best.offer(shapes, missed)
    if best.shape is None:
        raise ShapeError(
            f"no shape of {n_params:.3g} parameters has d_model / n_layers near {aspect:g}: "
            f"{best.nearest(backbone)}. Move the size, change the aspect, or lower model.head_dim "
            f"({backbone.head_dim})"
        )
    return best.shape


def depth_width(
    n_params: float,
    width_per_layer: Sequence[float],
    heads_per_layer: Sequence[float],
    backbone: Backbone,
) -> list[ModelShape]:
    """Return shapes of one size over two ratios, the widths fastest.

    The rows are ``n_heads / n_layers``, the columns ``d_model / n_layers``, as in figure 7 of arXiv
    2603.15031. The width of a head follows from both, so the ``head_dim`` of the backbone is not
    used.

    Parameters
    ----------
    n_params
        Parameters of every cell, met within :data:`TOLERANCE`.
    width_per_layer, heads_per_layer
        Wanted ratios, each met within :data:`CELL_MOST`.
    backbone
        What the shapes share.

    Raises
    ------
    ShapeError
        A cell has no such shape, or two cells have the same.
    """
    cells = [(row, column) for row in heads_per_layer for column in width_per_layer]
    shapes = [cell_of(n_params, column, row, backbone) for row, column in cells]
    taken: dict[ModelShape, tuple[float, float]] = {}
    for shape, (row, column) in zip(shapes, cells, strict=True):
        first = taken.setdefault(shape, (row, column))
        if first != (row, column):
            raise ShapeError(
                f"heads_per_layer {first[0]:g}, width_per_layer {first[1]:g} and {row:g}, "
                f"{column:g} are the same shape of integers ({_spelled(shape)}). Move the ratios "
                "apart, or raise params"
            )
    return shapes


def cell_of(
    n_params: float, width_per_layer: float, heads_per_layer: float, backbone: Backbone
) -> ModelShape:
    """Return the shape of a size that is nearest to two ratios.

    Raises
    ------
    ShapeError
        None is within :data:`TOLERANCE` of the parameters and :data:`CELL_MOST` of both ratios.
    """
    best = _Nearest(n_params)
    for n_layers in range(1, _most_layers(n_params, width_per_layer) + 1):
        heads = heads_per_layer * n_layers
        for n_heads in _between(heads / CELL_MOST, heads * CELL_MOST, 1):
            wanted = width_per_layer * n_layers
            off = abs(math.log(n_heads / heads))
            for d_model in _between(wanted / CELL_MOST, wanted * CELL_MOST, 2 * n_heads):
                missed = off + abs(math.log(d_model / wanted))
                if missed < best.cost:
                    shapes = _with_ffn(n_params, n_layers, d_model, d_model // n_heads, backbone)
                    best.offer(shapes, missed)
    if best.shape is None:
        raise ShapeError(
            f"no shape of {n_params:.3g} parameters has d_model / n_layers near "
            f"{width_per_layer:g} and n_heads / n_layers near {heads_per_layer:g}: "
            f"{best.nearest(backbone)}. Raise params, or change the ratios"
        )
    return best.shape


class _Nearest:
    """The best of the shapes offered, and the one nearest in size where none fits."""

    def __init__(self, n_params: float) -> None:
        self.n_params = n_params
        self.shape: ModelShape | None = None
        self.cost = math.inf
        self._other: ModelShape | None = None
        self._off = math.inf

    def offer(self, shapes: Iterable[ModelShape], missed: float) -> None:
        """Take a shape if it fits and is better; ``missed`` is the log of the ratios missed."""
        for halvings, shape in enumerate(shapes):
            off = abs(shape.n_params / self.n_params - 1)
            if off < self._off:
                self._other, self._off = shape, off
            ffn = abs(math.log(shape.d_ff / (FFN_RATIO * shape.d_model)))
            uneven = (shape.d_model % 8 > 0) + (shape.head_dim % 8 > 0)
            cost = missed + ffn + _PER_HALVING * halvings + _PER_UNEVEN * uneven
            if off <= TOLERANCE and cost < self.cost:
                self.shape, self.cost = shape, cost

    def nearest(self, backbone: Backbone) -> str:
        """Say which size would have been reached."""
        counted = "" if backbone.count == "total" else " without embedding and head"
        if self._other is None:
            return f"none is even close with a vocabulary of {backbone.vocab_size}"
        return f"the nearest has {self._other.n_params}{counted} ({_spelled(self._other)})"


def _with_ffn(
    n_params: float, n_layers: int, d_model: int, head_dim: int, backbone: Backbone
) -> Iterator[ModelShape]:
    """Shapes of one depth and width whose d_ff brings them near a size, one per multiple."""
    least, most = FFN_RATIO * d_model / FFN_MOST, FFN_RATIO * d_model * FFN_MOST
    bare = _bare(n_layers, d_model, head_dim, backbone)
    if bare is None:
        return
    per_unit = 3 * n_layers * d_model
    for multiple in MULTIPLES:
        units = (n_params - bare) / per_unit / multiple
        bounded = min(max(round(units), math.ceil(least / multiple)), math.floor(most / multiple))
        if bounded < 1:
            continue
        d_ff = bounded * multiple
        yield ModelShape(n_layers, d_model, d_ff, head_dim, bare + per_unit * d_ff)


def _bare(n_layers: int, d_model: int, head_dim: int, backbone: Backbone) -> int | None:
    """Parameters of a shape beside its MLPs; None where its heads do not divide."""
    if head_dim % 2 or (d_model // head_dim) % (backbone.n_kv_heads or 1):
        return None
    model = ModelConfig.model_construct(  # checked above; thousands of shapes are tried
        n_layers=n_layers,
        d_model=d_model,
        d_ff=1,
        head_dim=head_dim,
        n_kv_heads=backbone.n_kv_heads,
        qk_norm=backbone.qk_norm,
        tied_head=backbone.tied_head,
    )
    counts = count_params(model, backbone.vocab_size)
    bare = counts.total - counts.mlp
    return bare if backbone.count == "total" else bare - counts.embedding - counts.head


def _most_layers(n_params: float, aspect: float) -> int:
    """Layers above which even a narrow shape has more than the wanted parameters."""
    width = aspect / RATIO_MOST
    return max(1, math.ceil(math.cbrt(n_params / (10 * width * width))))


def _between(low: float, high: float, multiple: int) -> range:
    """Multiples from ``low`` to ``high``, both included where they are such."""
    first = max(1, math.ceil(low / multiple - 1e-9))
    return range(first * multiple, math.floor(high + 1e-9) + 1, multiple)


def _spelled(shape: ModelShape) -> str:
    return f"n_layers {shape.n_layers}, d_model {shape.d_model}, d_ff {shape.d_ff}"
