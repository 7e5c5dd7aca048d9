"""What a declared grid can be expected to find, in closed form: for `plan`, in milliseconds.

Leading terms of the paired Fieller interval with typical values put in; :mod:`analysis.simulate`
plays the grid instead. Numpy and math only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.laws import Floats
from analysis.simulate.closed_form import median_share, t_critical, t_shift
from analysis.simulate.declared import DeclaredGrid
from analysis.simulate.world import ASSUMED, World

MIN_SIZES = 3
"""Sizes below which no interval is given."""
SAME_LEVEL = 1.05
"""Budgets closer than this are one compute level, as in ``analysis.cells``, which loads pandas."""
MIN_STEP = 1.25
"""Least factor of compute between the sizes of a ladder that is proposed."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Expectation for the arm of a grid that would be known worst."""

    arm: str
    n_sizes: int
    n_pairs: float
    """Pairs with the baseline per size, harmonic mean."""
    n_arms: int
    """Arms compared: Holm's correction counts them."""
    half_width_percent: float | None
    """Median half width of the interval of a multiplier near 1; None: most are unbounded."""
    detectable: float | None
    """Smallest multiplier found with :attr:`power`; None where none up to 10 is."""
    power: float
    level: float
    halved_by_sizes: int | None
    """Sizes over the same range that halve the interval at as many seeds.

    None where they would lie closer than :data:`MIN_STEP`.
    """
    n_settings: int
    alpha: float
    seed_sd: float
    shared_sd: float
    source: str
    """Where alpha and the two deviations are from."""


def forecast(
    grid: DeclaredGrid,
    world: World | None = None,
    *,
    power: float = 0.8,
    level: float = 0.95,
    source: str = ASSUMED,
) -> Forecast | None:
    """Expected interval and smallest detectable multiplier of a grid; None where none is possible.

    With n sizes, k pairs each and sd ``sigma`` of ln L, the mean difference has variance
    ``v_m = 2 sigma^2 / (n k)``, and the half width of ln rho is ``t sqrt(v_m) / alpha`` but for the
    uncertainty of the slope. The test of rho = 1 is a t test shifted by
    ``alpha ln rho / sqrt(v_m)``, at the first step of Holm's correction. E is taken as 0.

    Parameters
    ----------
    grid
        Runs and their compute.
    world
        alpha, seed_sd and shared_sd; default: the assumptions of :class:`World`.
    power, level
        Of the detectable multiplier and of the interval.
    source
        Where the world's numbers are from.
    """
    world = world or World()
    pairs, ladder = grid.n_pairs(), grid.ladder()
    known = [arm for arm in range(len(pairs)) if _comparable(ladder[0][pairs[arm] > 0])]
    if not known:
        return None
    found = [_Moments.of(ladder[0], ladder[1 + i], pairs[i], world) for i in known]
    widths = [moments.half_width(world.alpha, level) for moments in found]
    worst = max(range(len(found)), key=lambda i: widths[i])
    moments, width = found[worst], widths[worst]
    return Forecast(
        arm=grid.arms[1 + known[worst]],
        n_sizes=moments.n_sizes,
        n_pairs=moments.n_pairs,
        n_arms=len(known),
        half_width_percent=100 * math.sinh(width) if width < 1 else None,
        detectable=(
            _detectable(moments, world.alpha, power, (1 - level) / len(known))
            if math.isfinite(width)
            else None
        ),
        power=power,
        level=level,
        halved_by_sizes=_halved_by_sizes(moments, world.alpha, level),
        n_settings=grid.n_settings,
        alpha=world.alpha,
        seed_sd=world.seed_sd,
        shared_sd=world.shared_sd,
        source=source,
    )


def _comparable(log_compute: Floats) -> bool:
    """Enough paired sizes, and compute that differs among them."""
    return len(log_compute) >= MIN_SIZES and float(np.ptp(log_compute)) > math.log(SAME_LEVEL)


@dataclass(frozen=True, kw_only=True)
class _Moments:
    """Expected variances of the paired estimate of one arm."""

    n_sizes: int
    n_pairs: float
    mean_variance: float
    """v_m, expected."""
    slope_variance: float
    """v_s of the pooled regression, expected."""
    shift: float
    """Mean of ln C_baseline - ln C_arm."""
    span: float
    """Range of ln C of the baseline."""

    @staticmethod
    def of(x_base: Floats, x_arm: Floats, pairs: Floats, world: World) -> _Moments:
        """Moments of the sizes that are paired."""
        there = np.asarray(pairs) > 0
        n, k = int(there.sum()), float(1 / np.mean(1 / np.asarray(pairs)[there]))
        own, shared = world.seed_sd**2, world.shared_sd**2
        # Arms share deviations, so the fitted slope takes more of them up than of the others.
        rss = (2 * (n - 1) * (own + shared) - own - 2 * shared) / k
        s_xx = sum(float(((x - x.mean()) ** 2).sum()) for x in (x_base[there], x_arm[there]))
        return _Moments(
            n_sizes=n,
            n_pairs=k,
            mean_variance=2 * own / (n * k),
            slope_variance=rss / (2 * n - 3) / s_xx if s_xx > 0 else math.inf,
            shift=float((x_base - x_arm)[there].mean()),
            span=float(np.ptp(x_base[there])),
        )

    def half_width(self, alpha: float, level: float) -> float:
        """Median half width of ln rho at rho = 1, infinite where it is mostly unbounded.

        Fieller's roots at ``m = -s d`` (``rho = 1``), each variance at its median.
        """
        t2 = t_critical(1 - level, self.n_sizes - 1) ** 2
        v_m = self.mean_variance * median_share(self.n_sizes - 1)
        v_s = self.slope_variance * median_share(2 * self.n_sizes - 3)
        lead = alpha**2 - t2 * v_s
        if lead <= 0:
            return math.inf
        m2 = (alpha * self.shift) ** 2
        return math.sqrt(max(0.0, m2 * alpha**2 - lead * (m2 - t2 * v_m))) / lead

    def with_sizes(self, n_sizes: int) -> _Moments:
        """The same range of compute, seeds and noise with another number of sizes."""
        share = self.n_sizes / n_sizes
        return replace(
            self,
            n_sizes=n_sizes,
            mean_variance=self.mean_variance * share,
            slope_variance=self.slope_variance * share,
        )


def _detectable(moments: _Moments, alpha: float, power: float, p: float) -> float | None:
    dof = moments.n_sizes - 1
    error = math.sqrt(moments.mean_variance + moments.shift**2 * moments.slope_variance)
    log_ratio = t_shift(power, t_critical(p, dof), dof) * error / alpha
    return math.exp(log_ratio) if log_ratio < math.log(10) else None


def _halved_by_sizes(moments: _Moments, alpha: float, level: float) -> int | None:
    half = moments.half_width(alpha, level) / 2
    if not math.isfinite(half):
        return None
    most = 1 + int(moments.span / math.log(MIN_STEP))
    more = range(moments.n_sizes + 1, most + 1)
    return next((n for n in more if moments.with_sizes(n).half_width(alpha, level) <= half), None)


def multiplier_text(multiplier: float) -> str:
    """Enough decimals to tell a multiplier from 1: ``1.12``, ``1.013``."""
    return f"{multiplier:.{2 if multiplier >= 1.05 else 3}f}"


def forecast_lines(found: Forecast) -> list[str]:
    """A forecast in two or three lines, its assumptions among them."""
    lines = [
        f"Forecast: {100 * found.level:g}% interval of a multiplier {_width_text(found)}; "
        f"{_detectable_text(found)}.",
        f"  {found.source}: alpha {found.alpha:.3g}, relative sd of a loss {found.seed_sd:.2g} "
        f"by seed, {found.shared_sd:.2g} shared by the arms of a size and seed"
        f"{_settings_text(found)}.",
    ]
    if found.half_width_percent is not None:
        ladder = found.halved_by_sizes
        more = f" or {ladder} sizes in the same range" if ladder is not None else ""
        lines.append(f"  Half as wide with 4 times the seeds{more}.")
    return lines


def _width_text(found: Forecast) -> str:
    pairs = f"{found.n_pairs:.3g} pair{'s' if found.n_pairs != 1 else ''} each"
    width = found.half_width_percent
    about = "unbounded" if width is None else f"about ±{width:.2g}%"
    return f"{about} ({found.n_sizes} sizes, {pairs})"


def _detectable_text(found: Forecast) -> str:
    smallest = "none up to 10"
    if found.detectable is not None:
        smallest = f"one of {multiplier_text(found.detectable)}"
    arms = f"{found.n_arms} arms" if found.n_arms > 1 else "1 arm"
    return f"{smallest} is found in {100 * found.power:.0f}% of studies (Holm over {arms})"


def _settings_text(found: Forecast) -> str:
    if found.n_settings == 1:
        return ""
    return f"; the {found.n_settings} settings per size count as replicates"
