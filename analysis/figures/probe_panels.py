"""The numbers behind the small panels of a probe. Pure; drawing is in ``probe_curves``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from analysis.figures.probe_curves import CurveLine, CurvePanel, CurvesData, layers
from analysis.probes.types import SOLVED, Comparison, Probe, ProbeCell, Spread, spread_of

_ACCURACY = (-0.02, 1.04)
_BANDS_MOST = 4
"""Arms of one panel whose ranges are shaded."""
PANELS_MOST = 12
"""Arms of one figure with a panel for each."""


def accuracy_by_depth(probe: Probe) -> CurvesData:
    """Accuracy against level, a panel per depth, a line per arm."""
    panels = [
        CurvePanel(
            title=layers(depth),
            lines=_lines(
                (arm, _at_levels(probe.cell(arm, depth), probe.levels)) for arm in probe.arms
            ),
        )
        for depth in probe.depths
    ]
    data = _accuracy(probe, panels, probe.graded_by)
    return replace(data, bands=len(probe.arms) <= _BANDS_MOST)


def accuracy_by_arm(probe: Probe, arms: Sequence[str]) -> CurvesData:
    """Accuracy against level, a panel per arm, a line per depth."""
    panels = [
        CurvePanel(
            title=arm,
            lines=_lines(
                (layers(cell.depth), _at_levels(cell, probe.levels)) for cell in probe.of_arm(arm)
            ),
        )
        for arm in arms
    ]
    return _accuracy(probe, panels, probe.graded_by)


def accuracy_along_training(probe: Probe, arms: Sequence[str], curves: pd.DataFrame) -> CurvesData:
    """Accuracy over all levels against optimiser steps, a panel per arm, a line per depth.

    Parameters
    ----------
    probe
        Whose usable runs are drawn.
    arms
        In this order.
    curves
        As :func:`analysis.probes.read.read_accuracy_curves` gives them.
    """
    by_run = {str(name): own for name, own in curves.groupby("run_id")}
    panels = [
        CurvePanel(
            title=arm,
            lines=_lines(
                (
                    layers(cell.depth),
                    _at_steps([by_run[r.run_id] for r in cell.runs if r.run_id in by_run]),
                )
                for cell in probe.of_arm(arm)
            ),
        )
        for arm in arms
    ]
    return _accuracy(probe, panels, "optimiser step")


def solved_by_depth(probe: Probe, arms: Sequence[str]) -> CurvesData:
    """Largest solved level against depth, a panel per arm, with the baseline in each."""
    base = _solved(probe.of_arm(probe.baseline))
    panels = [
        CurvePanel(
            title=arm,
            lines=_lines([(probe.baseline, base), (arm, _solved(probe.of_arm(arm)))]),
        )
        for arm in arms
        if any(cell.runs for cell in probe.of_arm(arm))
    ]
    return CurvesData(
        panels=tuple(panels),
        x_label="layers",
        y_label=f"solved {probe.graded_by}",
        limits=(-0.4, max(probe.levels, default=1) * 1.06),
        unit="count",
        whole_x=probe.depths,
    )


def differences_by_depth(probe: Probe, arms: Sequence[str]) -> CurvesData:
    """Accuracy minus the baseline's at each depth with its interval, a panel per arm."""
    panels = [
        CurvePanel(
            title=arm,
            lines=_lines([(arm, _differences(c for c in probe.by_depth if c.arm == arm))]),
        )
        for arm in arms
    ]
    ends = [v for p in panels for line in p.lines for v in line.mean] or [0.0]
    span = max(0.02, max(ends) - min(0.0, *ends))
    return CurvesData(
        panels=tuple(panels),
        x_label="layers",
        y_label="difference, % points",
        unit="points",
        references=((0.0, probe.baseline),),
        limits=(min(0.0, *ends) - 0.5 * span, max(0.0, *ends) + 0.5 * span),
        whole_x=probe.depths,
    )


def _accuracy(probe: Probe, panels: Sequence[CurvePanel], x_label: str) -> CurvesData:
    chance = () if probe.chance is None else ((probe.chance, "chance"),)
    return CurvesData(
        panels=tuple(panel for panel in panels if panel.lines),
        x_label=x_label,
        y_label="accuracy",
        references=((SOLVED, f"{SOLVED:.0%}"), *chance),
        limits=_ACCURACY,
    )


_Points = list[tuple[float, Spread]]


def _lines(named: Iterable[tuple[str, _Points]]) -> tuple[CurveLine, ...]:
    return tuple(
        CurveLine(
            name=name,
            x=tuple(x for x, _ in points),
            mean=tuple(at.mean for _, at in points),
            low=tuple(at.low for _, at in points),
            high=tuple(at.high for _, at in points),
            n_seeds=tuple(at.n for _, at in points),
        )
        for name, points in named
        if points
    )


def _at_levels(cell: ProbeCell | None, levels: Sequence[int]) -> _Points:
    if cell is None:
        return []
    return [(float(level), at) for level in levels if (at := cell.at_level(level))]


def _at_steps(curves: Sequence[pd.DataFrame]) -> _Points:
    """At the steps that every seed was validated at; nothing where that is the end alone."""
    by_step: dict[float, list[float]] = {}
    for curve in curves:
        for step, accuracy in zip(curve["step"], curve["accuracy"], strict=True):
            by_step.setdefault(float(step), []).append(float(accuracy))
    points = [
        (step, at)
        for step, values in sorted(by_step.items())
        if len(values) == len(curves) and (at := spread_of(values))
    ]
    return points if len(points) > 1 else []


def _solved(cells: Sequence[ProbeCell]) -> _Points:
    return [(float(cell.depth), at) for cell in cells if (at := cell.solved)]


def _differences(comparisons: Iterable[Comparison]) -> _Points:
    found = []
    for at in comparisons:
        interval = at.accuracy.interval
        mean = interval.estimate
        if mean is not None:
            low = mean if interval.low is None else interval.low
            high = mean if interval.high is None else interval.high
            found.append((float(at.depths[0]), Spread(mean, low, high, len(at.seeds))))
    return found
