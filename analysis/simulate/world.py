"""A synthetic world: the law that its losses follow, and how they scatter about it.

``L_baseline(C) = E + (L_0 - E) (C / C_0)^-alpha`` with ``L_0`` at the middle ``C_0`` of the ladder;
an arm of multiplier rho has ``L_arm(C) = L_baseline(rho C)``. Data type only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from analysis.estimates import BadValue

ASSUMED = "assumed"
"""Source of a number that no run has measured."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true in a simulated study; the defaults are assumptions, not findings.

    Raises
    ------
    BadValue
        A number that no law can have.
    """

    alpha: float = 0.1
    """Exponent of C."""
    asymptote: float = 0.0
    """E, nats per token. The analysis pins 0, so another value shows what that costs."""
    loss: float = 3.0
    """Loss of the baseline at the middle of its ladder, nats per token; matters only beside E."""
    shared_sd: float = 0.003
    """tau: deviation of ln L that all arms share at one size and data seed."""
    seed_sd: float = 0.003
    """sigma: deviation of ln L of each run by itself."""
    divergence: float = 0.0
    """Share of runs that yield no loss."""
    growth: float = 0.0
    """d ln rho / d ln C: a multiplier that grows with compute, 0 where it is constant."""

    def __post_init__(self) -> None:
        bounds = {
            "alpha": (self.alpha > 0, "above 0, or loss does not fall with compute"),
            "asymptote": (0 <= self.asymptote < self.loss, "at least 0 and below the loss"),
            "loss": (self.loss > 0, "above 0 nats"),
            "shared_sd": (self.shared_sd >= 0, "at least 0"),
            "seed_sd": (self.seed_sd > 0, "above 0: without noise there is nothing to simulate"),
            "divergence": (0 <= self.divergence < 1, "at least 0 and below 1"),
            "growth": (abs(self.growth) < 1, "between -1 and 1"),
        }
        for name, (allowed, rule) in bounds.items():
            value = float(getattr(self, name))
            if not (math.isfinite(value) and allowed):
                raise BadValue(f"{name.replace('_', '-')} must be {rule}, got {value:g}")


def choose_world(
    given: Mapping[str, float | None], measured: Mapping[str, float], source: str
) -> tuple[World, dict[str, str]]:
    """Build a world from what is given, else measured, else assumed; and say which is which.

    An alpha that was measured or assumed belongs to E = 0. Beside another E it is raised to
    ``alpha L_0 / (L_0 - E)``, which keeps the slope at the middle of the ladder.

    Parameters
    ----------
    given
        By field of :class:`World`; None for what was not given.
    measured
        The same from runs (:func:`analysis.simulate.measured.measured`); may be empty.
    source
        What the runs are called.

    Raises
    ------
    BadValue
        A number that no law can have.
    """
    values, sources = {}, {}
    for at in fields(World):
        asked = given.get(at.name)
        if asked is not None:
            values[at.name], sources[at.name] = asked, "given"
        elif at.name in measured:
            values[at.name], sources[at.name] = measured[at.name], source
        else:
            values[at.name], sources[at.name] = float(getattr(World, at.name)), ASSUMED
    loss, asymptote = values["loss"], values["asymptote"]
    if sources["alpha"] != "given" and 0 < asymptote < loss:
        values["alpha"] *= loss / (loss - asymptote)
        sources["alpha"] += ", raised for E"
    return World(**values), sources


def check_effect(effect: float) -> None:
    """Refuse what is no multiplier.

    Raises
    ------
    BadValue
        Not a finite number above 0.
    """
    if not (math.isfinite(effect) and effect > 0):
        raise BadValue(f"effect is a multiplier: a number above 0, such as 1.1, got {effect:g}")


def check_power(power: float) -> None:
    """Refuse what is no probability to find something.

    Raises
    ------
    BadValue
        Not between 0.1 and 0.99.
    """
    if not 0.1 <= power <= 0.99:
        raise BadValue(f"power must lie between 0.1 and 0.99, got {power:g}")
