"""The figures of one sweep, each with its title, its text and its caption.

Chooses what can be drawn from what was computed; drawing itself is in ``figures`` and
``figures_diagnostics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis import figures_diagnostics as diagnostics
from analysis.cells import FLOPS, cell_points
from analysis.collect import usable
from analysis.figures import (
    forest_data,
    forest_figure,
    loss_compute_data,
    loss_compute_figure,
)
from analysis.figures_style import ArmStyle, arm_styles, caption
from analysis.study import Analysis
from analysis.wording import counts_sentence, law_sentence
from harness.cost import FLOP_CONVENTION
from harness.paths import SweepPaths


@dataclass(frozen=True)
class Drawn:
    """A figure with what the page says about it."""

    name: str
    title: str
    text: str
    figure: Figure


def sweep_figures(found: Analysis, paths: SweepPaths) -> list[Drawn]:
    """Draw every figure the sweep has data for; each states its counts and the FLOP convention."""
    used = usable(found.runs)
    grid_arms = [str(arm) for arm in found.runs.loc[found.runs["in_grid"], "arm"]]
    styles = arm_styles(grid_arms, found.baseline)
    drawn = [*_loss_compute(found, styles), *_multipliers(found, styles)]
    for item in drawn:
        caption(item.figure, [counts_sentence(found.runs), FLOP_CONVENTION])
    measured = diagnostics.diagnostics_data(paths, used, list(styles))
    if measured is None:
        return drawn
    return drawn + _diagnostics(measured, len(found.runs), styles)


def _loss_compute(found: Analysis, styles: Mapping[str, ArmStyle]) -> list[Drawn]:
    order = list(styles)
    points = cell_points(usable(found.runs), FLOPS)
    points = tuple(sorted(points, key=lambda point: order.index(point.arm)))
    if not points:
        return []
    law = found.laws[FLOPS.name]
    data = loss_compute_data(points, None if isinstance(law, str) else law, found.baseline)
    figure = loss_compute_figure(data, styles)
    return [Drawn("loss_compute", "Loss against compute", law_sentence(law), figure)]


def _multipliers(found: Analysis, styles: Mapping[str, ArmStyle]) -> list[Drawn]:
    data = forest_data(found.comparisons)
    if not any(bar.estimate is not None for row in data.rows for bar in row.bars):
        return []
    text = (
        "Right of 1 the arm reaches the baseline's loss with less compute. Numbers at the right: "
        "FLOPs with the variant's own."
    )
    return [Drawn("multipliers", "Iso-loss multipliers", text, forest_figure(data, styles))]


def _diagnostics(
    data: diagnostics.DiagnosticsData, n_runs: int, styles: Mapping[str, ArmStyle]
) -> list[Drawn]:
    gradient = "Unclipped, with respect to the output of each sublayer."
    drawn = [
        Drawn("norms_by_depth", "Norms by depth", "", diagnostics.norms_figure(data, styles)),
        Drawn(
            "gradient_by_depth",
            "Gradient by depth",
            gradient,
            diagnostics.gradient_figure(data, styles),
        ),
    ]
    if data.attention:
        weights = (
            "Mean over tokens; blank: no such source. The last row feeds the final norm. Weight is "
            "not importance: a small weight on a large source can matter more."
        )
        mass = "Mass on embedding and newest source"
        drawn += [
            Drawn(
                "depth_attention", "Depth attention", weights, diagnostics.attention_figure(data)
            ),
            Drawn("learned_mass", mass, "", diagnostics.mass_figure(data, styles)),
        ]
    counts = (
        f"{len(data.profiles)} of {n_runs} runs used: one per arm at {data.size}, lowest seed, end "
        "of training."
    )
    for item in drawn:
        caption(item.figure, [counts, FLOP_CONVENTION])
    return drawn
