"""Figures of norms and gradients by depth, and all figures of a single run.

One line per arm; as the papers plot them, what leaves a layer goes by layer, what a sublayer sees
or makes by sublayer. ``*_data`` is pure; ``draw_*`` neither filters nor computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis.collect import read_loss_curve
from analysis.diagnostics import Measurement, floats, measurements
from analysis.figures.depth_reads import (
    HEAT_MAP_CAPTION,
    attention_figure,
    depth_attention,
)
from analysis.figures.labels import arm_legend
from analysis.figures.style import (
    PAGE_INCHES,
    ArmStyle,
    arm_styles,
    caption,
    in_style,
    new_figure,
)
from analysis.figures.ticks import plain_log_ticks
from analysis.laws import Floats
from harness.cost import FLOP_CONVENTION
from harness.paths import RunPaths

NORMS = {
    "input_rms": ("input of the sublayer", "sublayer"),
    "output_rms": ("output of the sublayer", "sublayer"),
    "layer_state_rms": ("state leaving the layer", "layer"),
}
GRADIENTS = {
    "layer_grad_rms": ("state leaving the layer, RMS", "layer"),
    "attention_grad_l2": ("attention parameters, L2", "layer"),
    "mlp_grad_l2": ("MLP parameters, L2", "layer"),
}
NORMS_CAPTION = (
    "Root mean square over batch, tokens and features, end of training. State: the running sum for "
    "additive recipes, the sum of the block under way for block recipes, the newest output where "
    "all outputs are kept apart."
)
GRADIENT_CAPTION = (
    "Gradient of the mean loss per token (nats), before clipping. State: RMS over batch, tokens "
    "and features. Parameters: L2 norm over norm, attention or MLP of one layer."
)


@dataclass(frozen=True)
class DepthProfile:
    """Norms and gradients of one run by depth; empty where not measured."""

    arm: str
    input_rms: Floats
    """By sublayer, as ``output_rms``; the rest by layer."""
    output_rms: Floats
    layer_state_rms: Floats
    layer_grad_rms: Floats
    attention_grad_l2: Floats
    mlp_grad_l2: Floats


@dataclass(frozen=True)
class LossCurveData:
    """Losses of one run while it trained."""

    train_tokens: Floats
    train_loss: Floats
    val_tokens: Floats
    val_loss: Floats


def depth_profile(run: Measurement) -> DepthProfile:
    """Norms and gradients of one run.

    Runs measured before there was a gradient per layer show that of the layer's last output, the
    same thing wherever outputs are added to the state as they are.
    """
    row = run.row
    by_sublayer = floats(row.get("param_grad_l2"))
    by_layer = row.get("layer_grad_rms")
    return DepthProfile(
        arm=run.arm,
        input_rms=floats(row.get("input_rms")),
        output_rms=floats(row.get("output_rms")),
        layer_state_rms=floats(row.get("state_rms"))[1::2],
        layer_grad_rms=floats(row.get("grad_rms"))[1::2] if by_layer is None else floats(by_layer),
        attention_grad_l2=by_sublayer[::2],
        mlp_grad_l2=by_sublayer[1::2],
    )


def loss_curve_data(run: RunPaths) -> LossCurveData:
    """Training and validation losses of one run."""
    rows = read_loss_curve(run)
    train, val = rows[rows["kind"] == "train"], rows[rows["kind"] == "val"]
    return LossCurveData(
        floats(train["tokens"]),
        floats(train["loss_nats"]),
        floats(val["tokens"]),
        floats(val["loss_nats"]),
    )


def draw_profile(
    values: Sequence[tuple[str, Floats]], axes: Axes, styles: Mapping[str, ArmStyle], along: str
) -> None:
    """One quantity by depth, a line per arm, logarithmic."""
    for arm, y in values:
        axes.plot(np.arange(len(y)), y, **styles[arm].line(len(y)))
    axes.set_yscale("log")
    _widen(axes)
    plain_log_ticks(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(along)


def _widen(axes: Axes) -> None:
    """Show most of a decade at least, so that small differences look small."""
    low, high = axes.get_ylim()
    lack = math.sqrt(max(1.0, 9.0 * low / high))
    axes.set_ylim(low / lack, high * lack)


def draw_loss_curve(data: LossCurveData, axes: Axes) -> None:
    """Training loss as a line, validation losses as points, against tokens."""
    axes.plot(data.train_tokens, data.train_loss, color="#0072B2", lw=1.0, label="training")
    axes.plot(data.val_tokens, data.val_loss, "o", color="#D55E00", label="validation")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss, nats per token")
    axes.legend()


def norms_figure(profiles: Sequence[DepthProfile], styles: Mapping[str, ArmStyle]) -> Figure:
    """Input and output by sublayer, state by layer."""
    return _profiles_figure(profiles, NORMS, "root mean square", styles)


def gradient_figure(profiles: Sequence[DepthProfile], styles: Mapping[str, ArmStyle]) -> Figure:
    """Gradient of the state and of the parameters, by layer."""
    return _profiles_figure(profiles, GRADIENTS, "gradient", styles)


def _profiles_figure(
    profiles: Sequence[DepthProfile],
    panels: Mapping[str, tuple[str, str]],
    unit: str,
    styles: Mapping[str, ArmStyle],
) -> Figure:
    measured = {
        name: panel
        for name, panel in panels.items()
        if any(len(getattr(profile, name)) for profile in profiles)
    }
    figure = new_figure(PAGE_INCHES if len(measured) > 1 else 5.2, 3.6)
    with in_style():
        grid = figure.subplots(1, max(1, len(measured)), squeeze=False).ravel()
        for axes, (name, (title, along)) in zip(grid, measured.items(), strict=False):
            values = [(profile.arm, getattr(profile, name)) for profile in profiles]
            draw_profile(values, axes, styles, along)
            axes.set_title(title)
        grid[0].set_ylabel(unit)
        arm_legend(figure, [profile.arm for profile in profiles], styles)
    return figure


def loss_curve_figure(data: LossCurveData) -> Figure:
    """Loss of one run against tokens."""
    figure = new_figure(5.2, 3.4)
    with in_style():
        draw_loss_curve(data, figure.subplots())
    return figure


def run_figures(run: RunPaths) -> dict[str, Figure]:
    """Figures of one run by name: its loss curve and, where measured, its diagnostics.

    Meant for the MLflow mirror: reads the run's own files only, takes well under a second.
    """
    curve, counts = loss_curve_data(run), f"Run {run.run_id}; 1 of 1 runs used."
    figures: dict[str, Figure] = {}
    if len(curve.train_loss) or len(curve.val_loss):
        figures["loss_curve"] = loss_curve_figure(curve)
        caption(figures["loss_curve"], [counts, FLOP_CONVENTION])
    rows = measurements(run)
    if not rows:
        return figures
    name, last = run.run_id, Measurement(run.run_id, rows[-1])
    styles, profiles = arm_styles([name], name), [depth_profile(last)]
    figures["norms_by_depth"] = norms_figure(profiles, styles)
    figures["gradient_by_depth"] = gradient_figure(profiles, styles)
    caption(figures["norms_by_depth"], [counts, NORMS_CAPTION])
    caption(figures["gradient_by_depth"], [counts, GRADIENT_CAPTION])
    if last.reads:
        figures["depth_attention"] = attention_figure([depth_attention(last)])
        caption(figures["depth_attention"], [counts, HEAT_MAP_CAPTION])
    return figures
