"""The figures of one sweep, each with its title, its text and its caption.

Chooses what can be drawn from what was computed; drawing itself is in ``figures`` and
``figures_diagnostics*``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matplotlib.figure import Figure

from analysis import figures_diagnostics as depth
from analysis import figures_diagnostics_reads as reads
from analysis import figures_diagnostics_sources as sources
from analysis.cells import FLOPS, cell_points
from analysis.collect import usable
from analysis.diagnostics import Chosen
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

D = TypeVar("D")

# Arms per figure with a panel for each: more would not fit a page.
_ARMS_PER_FIGURE = 6


@dataclass(frozen=True)
class Drawn:
    """A figure with what the page says about it."""

    name: str
    title: str
    text: str
    figure: Figure
    definition: str = ""
    """What is shown, in what unit; printed under the figure with the counts."""
    n_runs: int = 0
    """Runs of the sweep that are in a figure of single runs."""
    folded: bool = False
    """Behind a click on the page."""


def sweep_figures(found: Analysis) -> list[Drawn]:
    """Draw losses and multipliers; each states its counts and the FLOP convention."""
    styles = sweep_styles(found)
    drawn = [*_loss_compute(found, styles), *_multipliers(found, styles)]
    for item in drawn:
        caption(item.figure, [counts_sentence(found.runs), FLOP_CONVENTION])
    return drawn


def sweep_styles(found: Analysis) -> dict[str, ArmStyle]:
    """One look per arm of the grid, in its order, the baseline first."""
    grid_arms = [str(arm) for arm in found.runs.loc[found.runs["in_grid"], "arm"]]
    return arm_styles(grid_arms, found.baseline)


def diagnostics_figures(chosen: Chosen, n_runs: int, styles: Mapping[str, ArmStyle]) -> list[Drawn]:
    """Draw what happens inside the chosen runs; each figure states units and counts."""
    drawn = [*_depth(chosen, styles), *_reads(chosen, styles), *_sources(chosen, styles)]
    for item in drawn:
        counts = (
            f"{item.n_runs} of {n_runs} runs used: one per arm at {chosen.size}, lowest seed, end "
            "of training."
        )
        caption(item.figure, [item.definition, counts])
    return sorted(drawn, key=lambda item: item.folded)


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


def _depth(chosen: Chosen, styles: Mapping[str, ArmStyle]) -> list[Drawn]:
    profiles = [depth.depth_profile(run) for run in chosen.runs]
    norms = depth.norms_figure(profiles, styles)
    gradients = depth.gradient_figure(profiles, styles)
    return [
        Drawn("norms_by_depth", "Norms by depth", "", norms, depth.NORMS_CAPTION, len(profiles)),
        Drawn(
            "gradient_by_depth",
            "Gradient by depth",
            "",
            gradients,
            depth.GRADIENT_CAPTION,
            len(profiles),
        ),
    ]


def _reads(chosen: Chosen, styles: Mapping[str, ArmStyle]) -> list[Drawn]:
    with_reads = [run for run in chosen.runs if run.reads]
    profiles = [reads.read_profile(run) for run in with_reads]
    if not any(len(profile.t) for profile in profiles):
        return []
    attention = [reads.depth_attention(run) for run in with_reads]
    heat_maps = Drawn("depth_attention", "Depth attention", "", Figure(), reads.HEAT_MAP_CAPTION)
    title, figure = "Largest weight and number of sources", reads.sharpness_figure(profiles, styles)
    drawn = [
        *_pages(heat_maps, attention, reads.attention_figure),
        Drawn("max_weight", title, "", figure, reads.SHARPNESS_CAPTION, len(profiles)),
    ]
    for lines in reads.LINE_FIGURES:
        lined = reads.by_read_figure(profiles, lines, styles)
        if lined is not None:
            drawn.append(
                Drawn(
                    lines.name, lines.title, "", lined, lines.caption, len(profiles), lines.folded
                )
            )
    return drawn


def _sources(chosen: Chosen, styles: Mapping[str, ArmStyle]) -> list[Drawn]:
    caused = [data for data in map(sources.causes, chosen.runs) if data.sources]
    contributed = [data for data in map(sources.contributions, chosen.runs) if data.roles]
    mixed = [data for data in map(sources.mixing_profile, chosen.runs) if len(data.t)]
    text = "Weight is not importance: what a read looks at most need not be what the loss needs."
    causal = Drawn("causal_check", "Loss without a source", text, Figure(), sources.CAUSES_CAPTION)
    parts = Drawn(
        "contributions",
        "Contribution and weight",
        "",
        Figure(),
        sources.CONTRIBUTIONS_CAPTION,
        folded=True,
    )
    drawn = _pages(causal, caused, sources.causes_figure)
    drawn += _pages(parts, contributed, sources.contributions_figure)
    if mixed:
        title, figure = "Mixing of parallel streams", sources.mixing_figure(mixed, styles)
        drawn.append(Drawn("stream_mixing", title, "", figure, sources.MIXING_CAPTION, len(mixed)))
    return drawn


def _pages(like: Drawn, data: Sequence[D], draw: Callable[[Sequence[D]], Figure]) -> list[Drawn]:
    """One figure per handful of arms, called as ``like``; all but the first behind a click."""
    drawn = []
    for page, first in enumerate(range(0, len(data), _ARMS_PER_FIGURE), start=1):
        shown = data[first : first + _ARMS_PER_FIGURE]
        number = "" if page == 1 else f"_{page}"
        title = like.title if page == 1 else f"{like.title}, continued"
        drawn.append(
            dataclasses.replace(
                like,
                name=f"{like.name}{number}",
                title=title,
                figure=draw(shown),
                n_runs=len(shown),
                folded=like.folded or page > 1,
            )
        )
    return drawn
