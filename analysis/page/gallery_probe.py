"""The figures of a probe, each with its title, what it shows and its values.

Chooses what can be drawn; drawing itself is in ``figures.probe_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from analysis.figures.probe_curves import CurvesData, curves_figure, curves_hover, depth_looks
from analysis.figures.probe_forest import (
    ProbeForest,
    probe_forest,
    probe_forest_figure,
    probe_forest_hover,
)
from analysis.figures.probe_panels import (
    PANELS_MOST,
    accuracy_along_training,
    accuracy_by_arm,
    accuracy_by_depth,
    differences_by_depth,
    solved_by_depth,
)
from analysis.figures.style import ArmStyle, caption
from analysis.page.drawn import Drawn
from analysis.page.probe_tables import slug
from analysis.probes.types import Probe

_FEW_ARMS = 6
"""Arms whose lines can be told apart in one panel."""


def probe_figures(
    probe: Probe, styles: Mapping[str, ArmStyle], curves: pd.DataFrame
) -> list[Drawn]:
    """Draw one probe; each figure states the counts of runs.

    Parameters
    ----------
    probe
        What was compared.
    styles
        Look of each arm.
    curves
        Accuracies along training.
    """
    drawn = [
        *_forests(probe, styles),
        *_solved(probe, styles),
        *_accuracies(probe, styles),
        *_training(probe, curves),
        *_differences(probe, styles),
    ]
    n_used = sum(len(cell.runs) for cell in probe.cells)
    n_planned = sum(cell.n_planned for cell in probe.cells)
    for item in drawn:
        caption(item.figure, [f"{probe.label}: {n_used} of {n_planned} runs used."])
    return sorted(drawn, key=lambda item: item.folded)


def _forests(probe: Probe, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    data = probe_forest(
        {at.arm: [at] for at in probe.pooled}, probe.baseline, probe.graded_by, ("",)
    )
    if data.drawable:
        text = (
            f"Arm minus {probe.baseline} over depths with its interval over seeds; right of 0 the "
            "arm is better."
        )
        yield _forest(
            probe, data, styles, "probe_differences", f"Arms against {probe.baseline}", text
        )
    kinds = ("at own best values", "at the baseline's values")
    bars = {share.arm: [share.own, share.equal] for share in probe.tuning}
    data = probe_forest(bars, probe.baseline, probe.graded_by, kinds)
    if data.drawable:
        text = (
            "Filled: every arm at its own best values. Open: every arm at the baseline's. The gap "
            "between both is due to tuning."
        )
        title = "Differences at equal and at own best values"
        yield _forest(probe, data, styles, "probe_tuning", title, text)


def _forest(
    probe: Probe,
    data: ProbeForest,
    styles: Mapping[str, ArmStyle],
    name: str,
    title: str,
    text: str,
) -> Drawn:
    figure = probe_forest_figure(data, styles)
    return Drawn(f"{name}_{slug(probe)}", title, text, figure, hover=probe_forest_hover(data))


def _solved(probe: Probe, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    if len(probe.levels) < 2 or len(probe.depths) < 2:
        return
    others = list(probe.arms[1:]) or list(probe.arms)
    yield from _panels(
        probe,
        others,
        lambda arms: solved_by_depth(probe, arms),
        styles,
        "probe_solved",
        f"Solved {probe.graded_by} against depth",
        f"Largest {probe.graded_by} up to which every one is at 90% or more: mean over seeds, "
        f"range shaded. {probe.baseline} is in every panel.",
    )


def _accuracies(probe: Probe, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    if len(probe.levels) < 2:
        return
    many = len(probe.arms) > _FEW_ARMS
    title = f"Accuracy against {probe.graded_by}"
    text = "Mean over seeds"
    yield from _panels(
        probe,
        list(probe.arms),
        lambda arms: accuracy_by_arm(probe, arms),
        depth_looks(probe.depths),
        "probe_accuracy_by_arm",
        f"{title}, by arm",
        f"{text}, range shaded; the darker, the deeper.",
        folded=not many,
    )
    data = accuracy_by_depth(probe)
    if data.drawable:
        shaded = ", range shaded" if data.bands else ""
        yield Drawn(
            f"probe_accuracy_{slug(probe)}",
            title,
            f"{text}{shaded}, at each depth.",
            curves_figure(data, styles),
            hover=curves_hover(data),
            folded=many,
        )


def _training(probe: Probe, curves: pd.DataFrame) -> Iterator[Drawn]:
    yield from _panels(
        probe,
        list(probe.arms),
        lambda arms: accuracy_along_training(probe, arms, curves),
        depth_looks(probe.depths),
        "probe_training",
        "Accuracy while training",
        "Over all labels of the validation set: mean over seeds, range shaded; the darker, the "
        "deeper.",
    )


def _differences(probe: Probe, styles: Mapping[str, ArmStyle]) -> Iterator[Drawn]:
    compared = {at.arm for at in probe.by_depth}
    yield from _panels(
        probe,
        [arm for arm in probe.arms if arm in compared],
        lambda arms: differences_by_depth(probe, arms),
        styles,
        "probe_differences_by_depth",
        "Accuracy difference against depth",
        f"Accuracy minus {probe.baseline}'s at equal settings and seed, interval over seeds "
        "shaded; wide ones run out of the panel.",
        folded=True,
    )


def _panels(
    probe: Probe,
    arms: Sequence[str],
    data_of: Callable[[Sequence[str]], CurvesData],
    looks: Mapping[str, ArmStyle],
    name: str,
    title: str,
    text: str,
    *,
    folded: bool = False,
) -> Iterator[Drawn]:
    """One figure, or of many arms several; all but the first are folded."""
    for k, start in enumerate(range(0, len(arms), PANELS_MOST)):
        data = data_of(arms[start : start + PANELS_MOST])
        if not data.drawable:
            continue
        yield Drawn(
            f"{name}_{slug(probe)}" + (f"_{k + 1}" if k else ""),
            title + (", continued" if k else ""),
            text,
            curves_figure(data, looks),
            hover=curves_hover(data),
            folded=folded or k > 0,
        )
