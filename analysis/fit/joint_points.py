"""Points of a joint law, and what they must at least hold.

``L(N, D) = E + A N^-alpha + B D^-beta`` has three unknowns along N and three along D, E in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.cells import SAME_LEVEL
from analysis.estimates import BadValue, TooFewData
from analysis.laws import Floats

MIN_LEVELS = 3
"""Distinct N, and distinct D, that a curve with an asymptote and an exponent needs."""
MIN_SPREAD = 0.05
"""Root mean square of ln D that ln N leaves unexplained, below which the terms are one."""
NEAR_COLLINEAR = 0.95
"""Correlation of ln N and ln D above which a fit carries a note."""

Labels = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class JointPoints:
    """Measured losses; every array ``[n]``, checked and taken as float64.

    Raises
    ------
    BadValue
        Lengths differ, or a number is not positive and finite.
    """

    n_params: Floats
    tokens: Floats
    loss_nats: Floats
    weights: Floats | None = None
    """Precision of the residual that the objective is taken of, up to a factor: ``1 / sd^2`` with
    sd of L for ``mse`` and of ln L for ``huber``. Each point's term is multiplied by it."""
    arms: Labels | Sequence[str] | None = None
    """Arm of each point: E, alpha, beta are shared, every arm has its own A and B."""
    clusters: Labels | Sequence[str] | None = None
    """Points with one label are resampled together: checkpoints of one run, say."""

    def __post_init__(self) -> None:
        for name in ("n_params", "tokens", "loss_nats", "weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._numbers(name))
        for name in ("arms", "clusters"):
            labels = getattr(self, name)
            if labels is not None:
                object.__setattr__(self, name, self._same_length(name, np.asarray(labels, str)))

    def __len__(self) -> int:
        return len(self.loss_nats)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Arms in order of appearance; empty when the points name none."""
        return () if self.arms is None else tuple(dict.fromkeys(str(arm) for arm in self.arms))

    def arm_indices(self) -> list[NDArray[np.intp]]:
        """Indices of the points of each arm; one array of all where the points name none."""
        if self.arms is None:
            return [np.arange(len(self))]
        arms = np.asarray(self.arms)
        return [np.flatnonzero(arms == name) for name in self.arm_names]

    def _numbers(self, name: str) -> Floats:
        values = self._same_length(name, np.asarray(getattr(self, name), np.float64))
        if not (np.isfinite(values) & (values > 0)).all():
            at = int(np.flatnonzero(~(np.isfinite(values) & (values > 0)))[0])
            raise BadValue(f"{name} must be positive and finite, got {values[at]} at point {at}")
        return values

    def _same_length(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        if values.ndim != 1 or len(values) != len(self.loss_nats):
            raise BadValue(f"{name} has shape {values.shape}, loss_nats {len(self.loss_nats)} rows")
        return values


def count_levels(values: Floats) -> int:
    """Distinct values, those within 5% of the lowest of a level counting as one."""
    levels, start = 0, 0.0
    for value in np.sort(values):
        if value > start * SAME_LEVEL:
            levels, start = levels + 1, float(value)
    return levels


def fewest_levels(points: JointPoints) -> int:
    """Distinct levels of N or of D, whichever has fewer."""
    return min(count_levels(points.n_params), count_levels(points.tokens))


def check_points(points: JointPoints, *, n_unknowns: int, tied: bool) -> tuple[str, ...]:
    """Refuse points that cannot carry the law; the rest of the doubts come back as notes.

    Raises
    ------
    TooFewData
        Too few points, distinct N or distinct D, an arm with one point, or N and D that move
        together in every arm, so that no data tell the two terms apart.
    """
    if len(points) <= n_unknowns:
        raise TooFewData(
            f"L(N, D) has {n_unknowns} unknowns here and needs at least {n_unknowns + 1} points, "
            f"got {len(points)}; add runs, or fit a law of compute alone, L(C)"
        )
    groups = points.arm_indices()
    for name, at in zip(points.arm_names, groups, strict=False):
        if len(at) < 2:
            raise TooFewData(f"arm {name} has one point: its A and B need at least two")
    _check_levels(points, groups, tied)
    return _check_separable(points, groups)


def _check_levels(points: JointPoints, groups: Sequence[NDArray[np.intp]], tied: bool) -> None:
    counts = [(count_levels(points.n_params[g]), count_levels(points.tokens[g])) for g in groups]
    n, d = max(counts, key=lambda pair: (min(pair), max(pair)))
    if min(n, d) >= MIN_LEVELS or (tied and min(n, d) == 2 and max(n, d) >= MIN_LEVELS):
        return
    needed = f"{MIN_LEVELS} of one and 2 of the other" if tied else f"{MIN_LEVELS} of each"
    advice = "fit a law of compute alone, L(C)"
    if not tied and min(n, d) == 2 and max(n, d) >= MIN_LEVELS:
        advice = "set tie_exponents (alpha = beta), or " + advice
    missing = "model size (n_params)" if n <= d else "token count (tokens)"
    raise TooFewData(
        f"{n} distinct model sizes and {d} distinct token counts; alpha and beta are not separable "
        f"with fewer than {needed}: train at another {missing}, or {advice}"
    )


def _check_separable(points: JointPoints, groups: Sequence[NDArray[np.intp]]) -> tuple[str, ...]:
    lines = [_spread(np.log(points.n_params[at]), np.log(points.tokens[at])) for at in groups]
    spread, correlation, slope = max(lines)
    if spread < MIN_SPREAD:
        raise TooFewData(
            f"tokens follow n_params (D ~ N^{slope:.2f} throughout), so alpha and beta are not "
            "separable and tie_exponents would not help: train some sizes for other token counts, "
            "or fit a law of compute alone, L(C)"
        )
    if abs(correlation) < NEAR_COLLINEAR:
        return ()
    return (
        f"n_and_d_nearly_collinear: ln N and ln D have correlation {correlation:.3f}; "
        "alpha and beta lean on few points",
    )


def _spread(log_n: Floats, log_d: Floats) -> tuple[float, float, float]:
    """What ln N leaves unexplained of ln D (rms), their correlation, and the slope."""
    x, y = log_n - log_n.mean(), log_d - log_d.mean()
    xx, yy, xy = float(x @ x), float(y @ y), float(x @ y)
    if xx == 0 or yy == 0:
        return math.sqrt(yy / len(y)), 0.0, 0.0
    left = max(0.0, yy - xy * xy / xx)
    return math.sqrt(left / len(y)), xy / math.sqrt(xx * yy), xy / xx
