"""The figures of model size and shape: isoFLOP curves, depth against width, block size.

Chooses what can be drawn from the runs; drawing itself is in ``figures``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pandas as pd

from analysis.collect import usable
from analysis.figures.block_size import block_size_data, block_size_figure, block_size_hover
from analysis.figures.depth_width import (
    AXIS_LABELS,
    depth_width_data,
    depth_width_figure,
    depth_width_hover,
    shapes_of,
)
from analysis.figures.isoflop import isoflop_data, isoflop_figure, isoflop_hover
from analysis.page.drawn import Drawn
from analysis.page.numerals import estimate_texts, first_of_a_kind
from analysis.page.sweep_tables import column
from analysis.study import Analysis
from analysis.study_shapes import at_best_rate, fills_a_map, shape_axes

_MAPS_MOST = 4
"""Arms with a map of their own; the others are in the tables."""


def isoflop_figures(found: Analysis) -> Iterator[Drawn]:
    """Losses at equal compute with their minima, and N* and D* along compute, per arm."""
    for arm, comparison in found.isoflop.items():
        if isinstance(comparison, str) or not comparison.fits:
            continue
        fit = next(iter(comparison.fits.values()))
        data = isoflop_data(comparison.points, fit, comparison)
        if not data.drawable:
            continue
        refused = f" No minimum: {'; '.join(data.refused)}." if data.refused else ""
        doubts = "".join(f" {note}." for note in first_of_a_kind(comparison.notes))
        yield Drawn(
            f"isoflop_{_stem(arm)}",
            f"IsoFLOP curves, {arm}",
            f"Loss against parameters at equal compute, minima by {fit.method}; then the best "
            "parameters and tokens along compute, other methods beside. A minimum counts only "
            f"where losses on both sides are higher.{refused}{doubts}",
            isoflop_figure(data),
            folded=arm != found.baseline,
            hover=isoflop_hover(data),
        )


def _stem(arm: str) -> str:
    """An arm's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9]+", "_", arm).strip("_")


def depth_width_figures(found: Analysis) -> Iterator[Drawn]:
    """A map of loss and gain per arm, where one budget was run at several depths and widths."""
    used = usable(found.runs)
    if not {"n_layers", "d_model"} <= set(used.columns):
        return
    shapes = shapes_of(used)
    depth, width = (AXIS_LABELS[name] for name in shape_axes(used))
    fits = {arm: fit for arm, fit in found.surfaces.items() if not isinstance(fit, str)}
    mapped = [
        arm
        for arm in dict.fromkeys(s.arm for s in shapes)
        if fills_a_map(*zip(*((s.depth, s.width) for s in shapes if s.arm == arm), strict=True))
    ]
    arms = [arm for arm in mapped if arm != found.baseline and found.baseline in mapped]
    for i, arm in enumerate(arms[:_MAPS_MOST]):
        data = depth_width_data(
            shapes, found.baseline, arm=arm, fits=fits, depth_label=depth, width_label=width
        )
        yield Drawn(
            "depth_width" if i == 0 else f"depth_width_{i + 1}",
            f"Depth against width, {arm}",
            f"Losses of baseline and arm over {depth} and {width} at one budget, and baseline "
            "minus arm: positive is a gain. A best cell at the edge of the map is no optimum."
            + _gain_sentence(found, arm),
            depth_width_figure(data),
            folded=i > 0,
            hover=depth_width_hover(data),
        )


def _gain_sentence(found: Analysis, arm: str) -> str:
    """The mean gain over shapes, and whether it changes with them."""
    test = found.gains.get(arm)
    if test is None:
        return ""
    gain = " ".join(estimate_texts(test.mean_gain_nats, ".3g"))
    return (
        f" Mean gain {gain} nats, {test.smallest:.3g} to {test.largest:.3g} over the shapes; "
        f"{test.text}."
    )


def block_size_figures(found: Analysis) -> Iterator[Drawn]:
    """Loss against the block size at the largest size that ran several."""
    used = usable(found.runs)
    sizes = column(used, "block_size")
    if sizes.notna().sum() < 2:
        return
    blocks = used[sizes.notna()]
    n_levels = blocks.groupby("size_key")["block_size"].nunique()
    varied = blocks[blocks["size_key"].isin(n_levels[n_levels > 1].index)]
    if varied.empty:
        return
    key = varied.groupby("size_key")["flops"].mean().idxmax()
    here = varied[varied["size_key"] == key]
    size, ends = str(here["size"].iloc[0]), _losses_at(used, key)
    fit = None if isinstance(found.block_size, str) else found.block_size
    data = block_size_data(
        [float(value) for value in here["block_size"]],
        [float(value) for value in here["loss_nats"]],
        # The law is of all sizes together; drawn over one it would lie beside its points.
        fit=fit if varied["size_key"].nunique() == 1 else None,
        standard=ends.get("standard"),
        full=ends.get("full"),
    )
    if data.drawable:
        yield Drawn(
            "block_size",
            f"Block size at {size}",
            "Loss against sublayers per block, between the standard residual and full depth "
            "attention. Differences below the seed noise are none.",
            block_size_figure(data),
            hover=block_size_hover(data),
        )


def _losses_at(used: pd.DataFrame, size_key: object) -> Mapping[str, float]:
    """Mean loss by arm at one size, at the best learning rate of each."""
    means = at_best_rate(used[used["size_key"] == size_key], ["arm"]).groupby("arm")["loss_nats"]
    means = means.mean()
    return {str(arm): float(loss) for arm, loss in means.items()}
