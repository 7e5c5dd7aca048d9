"""What the data say about E: misfit and exponents when E is pinned, the interval shaded.

``e_profile_data`` is pure and tested on numbers; the ``draw_`` functions neither filter nor fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimates import Interval
from analysis.figures.hover import HoverPoint
from analysis.figures.style import COLUMN_INCHES, MUTED, TEXT_POINTS, in_style, new_figure, palette
from analysis.figures.ticks import even_ticks, few, log_ticks, scientific
from analysis.fit.joint import EProfilePoint
from analysis.fit.profile import ProfilePoint
from analysis.laws import Floats

_SYMBOLS = {"alpha": "α", "beta": "β"}


@dataclass(frozen=True)
class EProfileData:
    """The profile of E."""

    asymptote: Floats
    """Pinned E, nats, increasing."""
    misfit: Floats
    misfit_label: str
    exponents: dict[str, Floats]
    """By symbol, along ``asymptote``."""
    low: float | None
    """Interval of E; None where there is none."""
    high: float | None
    level: float
    estimate: float | None
    lowest_loss: float | None

    @property
    def drawable(self) -> bool:
        """A profile has at least two points."""
        return len(self.asymptote) > 1


def e_profile_data(
    profile: Sequence[ProfilePoint] | Sequence[EProfilePoint],
    *,
    interval: Interval | None = None,
    estimate: float | None = None,
    lowest_loss: float | None = None,
) -> EProfileData:
    """Misfit and exponents along the pinned E.

    Parameters
    ----------
    profile
        Of a law of one variable (rms in nats) or of two (the objective over its least value).
    interval
        Profile interval of E.
    estimate
        E of the fit; that of ``interval`` unless given.
    lowest_loss
        Lowest loss fitted, which E cannot reach.
    """
    rows: list[ProfilePoint | EProfilePoint] = sorted(profile, key=lambda at: at.asymptote)
    exponents: dict[str, list[float]] = {}
    misfit: list[float] = []
    for at in rows:
        if isinstance(at, EProfilePoint):
            misfit.append(at.objective)
            found = {"alpha": at.alpha, "beta": at.beta}
        else:
            misfit.append(at.rms_nats)
            found = {"alpha": at.exponent}
        for symbol, value in found.items():
            exponents.setdefault(symbol, []).append(value)
    joint = any(isinstance(at, EProfilePoint) for at in rows)
    return EProfileData(
        asymptote=np.array([at.asymptote for at in rows]),
        misfit=np.array(misfit) / min(misfit) if joint else np.array(misfit),
        misfit_label="objective over its\nleast value" if joint else "rms residual, nats",
        exponents={symbol: np.array(values) for symbol, values in exponents.items()},
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        level=interval.level if interval else 0.95,
        estimate=estimate if estimate is not None or not interval else interval.estimate,
        lowest_loss=lowest_loss,
    )


def draw_misfit(data: EProfileData, axes: Axes) -> None:
    """Misfit along the pinned E, logarithmic."""
    axes.set_yscale("log")
    axes.plot(data.asymptote, data.misfit, "o-", color="black", ms=2.5)
    few(axes.yaxis, log_ticks, 5)
    axes.yaxis.set_major_formatter(scientific)
    axes.set_ylabel(data.misfit_label)
    _draw_interval(data, axes)


def draw_exponents(data: EProfileData, axes: Axes) -> None:
    """Exponents along the pinned E."""
    looks = palette(len(data.exponents))
    for (symbol, values), look in zip(data.exponents.items(), looks, strict=True):
        axes.plot(data.asymptote, values, **look.line(len(values)), label=_SYMBOLS[symbol])
    if len(data.exponents) > 1:
        axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")
    few(axes.yaxis, even_ticks, 5)
    axes.set_ylabel("exponent " + ", ".join(_SYMBOLS[symbol] for symbol in data.exponents))
    _draw_interval(data, axes)


def _draw_interval(data: EProfileData, axes: Axes) -> None:
    if data.low is not None and data.high is not None:
        axes.axvspan(data.low, data.high, facecolor="#0072B2", alpha=0.13, lw=0, zorder=0)
    if data.estimate is not None:
        axes.axvline(data.estimate, color=MUTED, ls=(0, (3, 1.5)), lw=0.9)
    if data.lowest_loss is not None:
        axes.axvline(data.lowest_loss, color="black", ls=(0, (1, 1)), lw=0.9)


def e_profile_figure(data: EProfileData) -> Figure:
    """Misfit over exponents, both against the pinned E."""
    figure = new_figure(COLUMN_INCHES, 3.6)
    with in_style():
        upper, lower = figure.subplots(2, sharex=True)
        draw_misfit(data, upper)
        draw_exponents(data, lower)
        lower.set_xlabel("pinned E, nats per token")
        few(lower.xaxis, even_ticks, 6)
        figure.suptitle(_explained(data), x=0.02, ha="left", fontsize=TEXT_POINTS, color=MUTED)
    return figure


def _explained(data: EProfileData) -> str:
    """What shading and vertical lines are."""
    bounded = data.low is not None and data.high is not None
    parts = [f"shaded {100 * data.level:g}% interval" if bounded else "no interval of E"]
    parts += ["dashed estimate"] * (data.estimate is not None)
    parts += ["dotted lowest loss"] * (data.lowest_loss is not None)
    return ", ".join(parts)


def e_profile_hover(data: EProfileData) -> tuple[HoverPoint, ...]:
    """Every pinned E, in both panels."""
    found = []
    for i, (e, misfit) in enumerate(zip(data.asymptote, data.misfit, strict=True)):
        listed = ", ".join(f"{name} {values[i]:.4f}" for name, values in data.exponents.items())
        label = data.misfit_label.replace("\n", " ")
        text = f"E = {e:.3f} nats: {label} {misfit:.4g}, {listed}"
        found.append(HoverPoint(axes=0, x=float(e), y=float(misfit), text=text))
        found += [
            HoverPoint(axes=1, x=float(e), y=float(values[i]), text=text)
            for values in data.exponents.values()
        ]
    return tuple(found)
