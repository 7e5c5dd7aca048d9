"""The figures of one study, each with its title, what it shows, what it does not, and its values.

Chooses what can be drawn from what was computed; drawing itself is in ``figures``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from analysis.cells import FLOPS, CellPoint, cell_points
from analysis.collect import usable
from analysis.compare.curve import MultiplierCurve
from analysis.figures.e_profile import e_profile_data, e_profile_figure, e_profile_hover
from analysis.figures.forest import forest_data, forest_figure, forest_hover
from analysis.figures.joint_profile import (
    joint_profile_data,
    joint_profile_figure,
    joint_profile_hover,
)
from analysis.figures.loss_compute import (
    loss_compute_data,
    loss_compute_figure,
    loss_compute_hover,
)
from analysis.figures.lr_brackets import lr_brackets_data, lr_brackets_figure, lr_brackets_hover
from analysis.figures.multiplier_curve import (
    multiplier_curve_data,
    multiplier_curve_figure,
    multiplier_curve_hover,
)
from analysis.figures.paired_differences import (
    paired_differences_data,
    paired_differences_figure,
    paired_differences_hover,
)
from analysis.figures.residuals import residuals_data, residuals_figure, residuals_hover
from analysis.figures.style import ArmStyle, arm_styles, caption
from analysis.page.drawn import Drawn
from analysis.page.gallery_shape import (
    block_size_figures,
    depth_width_figures,
    isoflop_figures,
)
from analysis.page.wording import convention_sentence, counts_sentence, law_sentence
from analysis.study import Analysis


@dataclass(frozen=True)
class _Study:
    """What every chooser draws from."""

    found: Analysis
    styles: Mapping[str, ArmStyle]
    points: tuple[CellPoint, ...]
    """In training FLOPs, in the order of the styles."""


_ON_CURVES = (
    " Budgets were spent at several sizes: the line goes through the middle of them, not along the "
    "best; see the IsoFLOP curves."
)


def sweep_figures(found: Analysis) -> list[Drawn]:
    """Draw losses, comparisons and what the laws rest on; each states counts and FLOP convention.

    What is read before the rest comes first; what backs it up is folded.
    """
    styles = sweep_styles(found)
    order = list(styles)
    points = cell_points(usable(found.runs), FLOPS)
    study = _Study(found, styles, tuple(sorted(points, key=lambda p: order.index(p.arm))))
    drawn = [item for choose in _CHOOSERS for item in choose(study)]
    for item in drawn:
        said = [counts_sentence(found.runs), convention_sentence(found.flop_convention)]
        caption(item.figure, said)
    return sorted(drawn, key=lambda item: item.folded)


def sweep_styles(found: Analysis) -> dict[str, ArmStyle]:
    """One look per arm of the grid, in its order, the baseline first."""
    grid_arms = [str(arm) for arm in found.runs.loc[found.runs["in_grid"], "arm"]]
    return arm_styles(grid_arms, found.baseline)


def _loss_compute(study: _Study) -> Iterator[Drawn]:
    law = study.found.laws[FLOPS.name]
    curves = [c for c in study.found.curves.values() if not isinstance(c, str)]
    data = loss_compute_data(
        study.points,
        None if isinstance(law, str) else law,
        study.found.baseline,
        extrapolate_to=_reach(curves),
    )
    if data.drawable:
        yield Drawn(
            "loss_compute",
            "Loss against compute",
            law_sentence(law) + (_ON_CURVES if study.found.isoflop else ""),
            loss_compute_figure(data, study.styles),
            hover=loss_compute_hover(data),
        )


def _reach(curves: list[MultiplierCurve]) -> float | None:
    """Compute up to which extrapolation was asked for."""
    reached = [max(c.extrapolated.compute) for c in curves if c.extrapolated]
    return max(reached, default=None)


def _multipliers(study: _Study) -> Iterator[Drawn]:
    data = forest_data(study.found.comparisons)
    if data.drawable:
        yield Drawn(
            "multipliers",
            "Iso-loss multipliers",
            "Right of 1 the arm reaches the baseline's loss with less compute. Numbers at the "
            "right: FLOPs with the variant's own. It does not show whether the gain holds at other "
            "compute.",
            forest_figure(data, study.styles),
            hover=forest_hover(data),
        )


def _multiplier_curve(study: _Study) -> Iterator[Drawn]:
    curves = [c for c in study.found.curves.values() if not isinstance(c, str)]
    data = multiplier_curve_data(curves)
    if not data.drawable:
        return
    text = (
        "Multiplier along the arm's compute with its pointwise 95% band, where both arms' losses "
        "were measured. "
    )
    text += (
        "Hatched: beyond the measurements, an envelope over pinned E, no measurement."
        if any(c.extrapolated for c in curves)
        else "Nothing is said of compute beyond the lines."
    )
    figure = multiplier_curve_figure(data, study.styles)
    hover = multiplier_curve_hover(data)
    yield Drawn("multiplier_curve", "Multiplier along compute", text, figure, hover=hover)


def _paired_differences(study: _Study) -> Iterator[Drawn]:
    data = paired_differences_data(usable(study.found.runs), study.found.baseline)
    if data.drawable:
        yield Drawn(
            "paired_differences",
            "Paired differences by size",
            "Arm minus baseline at equal configuration and seed; below 0 the arm is better. "
            "Intervals are over seeds, so one seed has none. Budgets are as run: compute is equal "
            "only where the grid made it so.",
            paired_differences_figure(data, study.styles),
            hover=paired_differences_hover(data),
        )


def _lr_brackets(study: _Study) -> Iterator[Drawn]:
    data = lr_brackets_data(usable(study.found.runs), study.found.baseline)
    if data.drawable:
        yield Drawn(
            "lr_brackets",
            "Learning-rate brackets",
            "Loss by learning rate. A best rate at the edge of those tried is no optimum: the arm "
            "may be under-tuned there.",
            lr_brackets_figure(data, study.styles),
            hover=lr_brackets_hover(data),
        )


def _residuals(study: _Study) -> Iterator[Drawn]:
    law, noise = study.found.laws[FLOPS.name], study.found.noise
    if isinstance(law, str):
        return
    sd = None if isinstance(noise, str) else noise.sd_nats.estimate
    data = residuals_data(study.points, law, study.found.baseline, seed_sd=sd)
    if data.drawable:
        yield Drawn(
            "residuals",
            "Residuals of the law",
            "Loss minus the arm's law, along compute and against normal quantiles. A bend common "
            "to all arms: the law's form is off, which the paired multiplier tolerates. Residuals "
            "far beyond the seed noise: lack of fit.",
            residuals_figure(data, study.styles),
            folded=True,
            hover=residuals_hover(data),
        )


def _e_profile(study: _Study) -> Iterator[Drawn]:
    law, joint = study.found.laws[FLOPS.name], study.found.joint
    text = (
        "Misfit and exponents as E is pinned elsewhere. A flat misfit: the data do not identify E, "
        "and the exponent depends on the choice."
    )
    if not isinstance(law, str):
        lowest = min(point.loss for point in study.points)
        estimate = None if law.e_interval is None else law.asymptote
        data = e_profile_data(
            law.profile, interval=law.e_interval, estimate=estimate, lowest_loss=lowest
        )
        if data.drawable:
            figure, hover = e_profile_figure(data), e_profile_hover(data)
            yield Drawn("e_profile", "Profile of E", text, figure, folded=True, hover=hover)
    if not isinstance(joint, str):
        data = e_profile_data(joint.e_profile, interval=joint.e_interval, estimate=joint.value("E"))
        if data.drawable:
            figure, hover = e_profile_figure(data), e_profile_hover(data)
            title = "Profile of E, law of N and D"
            yield Drawn("e_profile_joint", title, text, figure, folded=True, hover=hover)


def _joint_profile(study: _Study) -> Iterator[Drawn]:
    joint, profile = study.found.joint, study.found.joint_profile
    if isinstance(joint, str) or profile is None:
        return
    data = joint_profile_data(profile, joint)
    if data.drawable:
        yield Drawn(
            "joint_profile",
            "Profile of the exponents",
            "Best objective at each pair of exponents of N and D, over its least value. A long "
            "valley: the pair is known less well than either interval says.",
            joint_profile_figure(data),
            folded=True,
            hover=joint_profile_hover(data),
        )


_CHOOSERS: tuple[Callable[[_Study], Iterator[Drawn]], ...] = (
    _loss_compute,
    _multipliers,
    _multiplier_curve,
    _paired_differences,
    lambda study: isoflop_figures(study.found),
    lambda study: depth_width_figures(study.found),
    lambda study: block_size_figures(study.found),
    _lr_brackets,
    _residuals,
    _e_profile,
    _joint_profile,
)
