"""The figures of what happens inside the models, each with its title, its text and its caption.

Chooses what can be drawn from the diagnostics of one run per arm; drawing itself is in
``figures.depth*``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from matplotlib.figure import Figure

from analysis.diagnostics import Chosen
from analysis.figures import depth
from analysis.figures import depth_reads as reads
from analysis.figures import depth_sources as sources
from analysis.figures.style import ArmStyle, caption
from analysis.page.drawn import Drawn

D = TypeVar("D")

# Arms per figure with a panel for each: more would not fit a page.
_ARMS_PER_FIGURE = 6


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
