"""IsoFLOP analysis: the best size at each compute budget, and how it moves with compute.

A budget whose minimum is not bracketed is refused with its reason, never given a number. Three
ways of joining a curve and, where one is fitted, the joint law stand side by side: where they
disagree, the choice of method is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analysis.cells import SAME_LEVEL
from analysis.estimates import BadValue, FitRefused, NoMinimum, TooFewData
from analysis.fit.allocation import AllocationFit, fit_allocation
from analysis.fit.isoflop_methods import METHODS, MIN_SIZES, Method, curve, minima
from analysis.laws import Floats

DISAGREEMENT = 0.10
"""Relative difference of N* between methods that is reported."""
EDGE_SHARE = 0.5
"""A budget is refused when more than this share of noisy copies has no bracketed minimum."""


class Allocates(Protocol):
    """A law that knows the best size at a budget (:class:`analysis.fit.joint.JointFit`)."""

    def optimum(self, flops: Floats) -> tuple[Floats, Floats]:
        """N* and D* at a budget."""


@dataclass(frozen=True, eq=False)
class IsoFlopPoints:
    """Runs at several sizes per compute budget, arrays ``[n]``."""

    flops: Floats
    """The budget of each run; runs within 5% share one."""
    size: Floats
    """Parameters N."""
    loss_nats: Floats
    tokens: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "size", "loss_nats", "tokens"):
            if getattr(self, name) is None:
                continue
            values = np.asarray(getattr(self, name), np.float64)
            if len(values) != len(self.flops):
                raise BadValue(f"{name} has {len(values)} values, flops {len(self.flops)}")
            if not (np.isfinite(values) & (values > 0)).all():
                raise BadValue(f"{name} must be positive and finite")
            object.__setattr__(self, name, values)


@dataclass(frozen=True, kw_only=True)
class IsoFlopMinimum:
    """The best size at one budget."""

    flops: float
    n_star: float
    d_star: float
    loss_star: float
    log_n_sd: float | None
    """Standard deviation of ln N* over noisy copies; None where no noise was given."""
    lowest_at_edge: bool
    """The lowest measured loss is at the smallest or largest size, the curve's minimum inside."""
    n_points: int
    bracketed: bool = True


@dataclass(frozen=True, kw_only=True)
class IsoFlopFit:
    """Minima by one method, and their laws along compute."""

    method: Method
    window_nats: float | None
    """Half-width in ln N around the lowest loss; None: all points."""
    minima: tuple[IsoFlopMinimum, ...]
    refused: tuple[tuple[float, str], ...]
    """(budget, reason) of budgets without a bracketed minimum."""
    n_law: AllocationFit | None
    d_law: AllocationFit | None
    l_law: AllocationFit | None
    notes: tuple[str, ...]
    curves: Mapping[float, tuple[Floats, Floats]]
    """By budget: the sizes and losses that were joined."""

    def curve(self, flops: float, size: Floats) -> Floats:
        """Loss of the joined curve of a budget at sizes ``[m]``, nats."""
        nearest = min(self.curves, key=lambda budget: abs(np.log(budget / flops)))
        n, loss = self.curves[nearest]
        if len(np.unique(n)) < MIN_SIZES[self.method]:
            return np.full(np.shape(size), np.nan)
        return curve(self.method, np.log(n), loss)(np.log(np.asarray(size, np.float64)))


@dataclass(frozen=True, kw_only=True)
class IsoFlopComparison:
    """All methods side by side."""

    fits: Mapping[Method, IsoFlopFit]
    joint: tuple[tuple[float, float], ...]
    """(budget, N*) of the joint law where one was fitted."""
    notes: tuple[str, ...]
    points: IsoFlopPoints


def fit_isoflop(
    points: IsoFlopPoints,
    *,
    method: Method = "parabola",
    window_nats: float | None = None,
    noise_sd: float | Callable[[Floats], Floats] | None = None,
    replicates: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> IsoFlopFit:
    """Find the best size per budget and fit ``N* = k C^a``, ``D*``, ``L*`` over the accepted.

    Parameters
    ----------
    points
        The runs. Several of one size count each; interpolation joins their means.
    method
        ``parabola`` (of loss in ln N), ``cubic``, or ``akima`` (of ln loss in ln N).
    window_nats
        Keep points within this distance in ln N of the lowest loss.
    noise_sd
        Noise of a loss in nats, or a function of loss: budgets are resampled, ``log_n_sd`` becomes
        the weight of a minimum, and one that is at the edge in most copies is refused.
    replicates, seed
        Of the resampling.
    level
        Confidence level of the laws.

    Raises
    ------
    TooFewData
        Not one budget has the sizes that the method needs.
    """
    curves = {budget: _windowed(n, loss, window_nats) for budget, n, loss, _ in _budgets(points)}
    most = max((len(np.unique(n)) for n, _ in curves.values()), default=0)
    if most < MIN_SIZES[method]:
        raise TooFewData(
            f"isoFLOP by {method} needs {MIN_SIZES[method]} sizes at one budget, got at most {most}"
        )
    rng = np.random.default_rng(seed)
    accepted: list[IsoFlopMinimum] = []
    refused: list[tuple[float, str]] = []
    for budget, n_all, _, tokens in _budgets(points):
        n, loss = curves[budget]
        try:
            at, value, sd = _minimum(method, n, loss, noise_sd, replicates, rng)
        except FitRefused as refusal:
            refused.append((budget, str(refusal)))
            continue
        best = IsoFlopMinimum(
            flops=budget,
            n_star=float(np.exp(at)),
            d_star=_tokens_at(budget, at, n_all, tokens),
            loss_star=value,
            log_n_sd=sd,
            lowest_at_edge=int(np.argmin(loss)) in (0, len(loss) - 1),
            n_points=len(n),
        )
        accepted.append(best)
    return IsoFlopFit(
        method=method,
        window_nats=window_nats,
        minima=tuple(accepted),
        refused=tuple(refused),
        n_law=_law(accepted, "N*", level),
        d_law=_law(accepted, "D*", level),
        l_law=_law(accepted, "L*", level),
        notes=tuple(_notes(accepted, refused)),
        curves=curves,
    )


def compare_isoflop(
    points: IsoFlopPoints,
    *,
    joint: Allocates | None = None,
    window_nats: float | None = None,
    noise_sd: float | Callable[[Floats], Floats] | None = None,
    level: float = 0.95,
) -> IsoFlopComparison:
    """Every method on the same runs, beside the optimum of the joint law.

    Raises
    ------
    TooFewData
        No method has the sizes it needs.
    """
    fits: dict[Method, IsoFlopFit] = {}
    refusal: FitRefused | None = None
    for method in METHODS:
        try:
            fits[method] = fit_isoflop(
                points, method=method, window_nats=window_nats, noise_sd=noise_sd, level=level
            )
        except TooFewData as error:
            refusal = refusal or error
    if not fits and refusal is not None:
        raise refusal
    budgets = [budget for budget, *_ in _budgets(points)]
    law = [(c, float(joint.optimum(np.array(c))[0])) for c in budgets] if joint is not None else []
    notes = _disagreements(fits, law)
    return IsoFlopComparison(fits=fits, joint=tuple(law), notes=tuple(notes), points=points)


def nearest_budget(
    flops: Floats, budgets: Sequence[float], *, tolerance: float = 0.15
) -> tuple[Floats, Floats]:
    """Assign runs to declared budgets.

    Returns
    -------
    tuple
        ``[n]`` the nearest budget in ratio, and ``[n]`` bool: within the tolerance.
    """
    declared = np.asarray(budgets, np.float64)
    actual = np.asarray(flops, np.float64)
    chosen = declared[np.argmin(np.abs(np.log(actual[:, None] / declared)), axis=1)]
    return chosen, np.abs(actual / chosen - 1) <= tolerance


def _budgets(points: IsoFlopPoints) -> Iterator[tuple[float, Floats, Floats, Floats | None]]:
    """Budget, sizes (increasing), losses and tokens of the runs at every budget."""
    order = np.argsort(points.flops, kind="stable")
    gaps = np.diff(np.log(points.flops[order])) > np.log(SAME_LEVEL)
    for members in np.split(order, np.flatnonzero(gaps) + 1):
        members = members[np.argsort(points.size[members], kind="stable")]
        budget = float(np.exp(np.log(points.flops[members]).mean()))
        tokens = None if points.tokens is None else points.tokens[members]
        yield budget, points.size[members], points.loss_nats[members], tokens


def _windowed(size: Floats, loss: Floats, window_nats: float | None) -> tuple[Floats, Floats]:
    if window_nats is None:
        return size, loss
    kept = np.abs(np.log(size / size[np.argmin(loss)])) <= window_nats * (1 + 1e-9)
    return size[kept], loss[kept]


def _minimum(
    method: Method,
    size: Floats,
    loss: Floats,
    noise_sd: float | Callable[[Floats], Floats] | None,
    replicates: int,
    rng: np.random.Generator,
) -> tuple[float, float, float | None]:
    """Logarithm of N*, its loss, and the sd of ln N* over noisy copies."""
    need, n = MIN_SIZES[method], len(np.unique(size))
    if n < need:
        raise TooFewData(f"{n} sizes, {method} needs {need}")
    at, value = (float(v[0]) for v in minima(method, np.log(size), loss[:, None]))
    if not np.isfinite(at):
        raise NoMinimum(f"{_lowest(loss)}; the {method} has no minimum inside the sizes")
    if noise_sd is None:
        return at, value, None
    sd = noise_sd(loss) if callable(noise_sd) else np.full(len(loss), float(noise_sd))
    copies = loss[:, None] + sd[:, None] * rng.standard_normal((len(loss), replicates))
    found, _ = minima(method, np.log(size), copies)
    edge = float(np.mean(~np.isfinite(found)))
    if edge > EDGE_SHARE:
        raise NoMinimum(f"{100 * edge:.0f}% of noisy copies have no bracketed minimum")
    return at, value, float(np.nanstd(found, ddof=1)) or None


def _lowest(loss: Floats) -> str:
    at = int(np.argmin(loss))
    where = {0: "the smallest size has", len(loss) - 1: "the largest size has"}
    return f"{where.get(at, 'a size inside has')} the lowest loss"


def _tokens_at(budget: float, log_n: float, size: Floats, tokens: Floats | None) -> float:
    """Tokens at a size: interpolated where known, otherwise ``C / 6N``."""
    if tokens is None:
        return float(budget / 6 / np.exp(log_n))
    return float(np.exp(np.interp(log_n, np.log(size), np.log(tokens))))


def _law(found: Sequence[IsoFlopMinimum], symbol: str, level: float) -> AllocationFit | None:
    values = {"N*": "n_star", "D*": "d_star", "L*": "loss_star"}
    sds = [m.log_n_sd for m in found]
    weights = None
    # At one budget N* D* is constant, so both have the same spread in logs.
    if symbol != "L*" and all(sds):
        weights = [1 / sd**2 for sd in sds if sd]
    try:
        return fit_allocation(
            [m.flops for m in found],
            [getattr(m, values[symbol]) for m in found],
            symbol=symbol,
            weights=weights,
            level=level,
        )
    except TooFewData:
        return None


def _notes(found: Sequence[IsoFlopMinimum], refused: Sequence[tuple[float, str]]) -> Iterator[str]:
    if len(found) < 3:
        yield (
            f"too_few_minima: {len(found)} bracketed minima of {len(found) + len(refused)} "
            "budgets; a law along compute needs 3"
        )
    for best in found:
        if best.lowest_at_edge:
            yield (
                f"lowest_at_edge: {best.flops:.3g} FLOPs: the lowest measured loss is at the edge, "
                "only the fitted curve has its minimum inside"
            )
    for budget, reason in refused:
        yield f"budget_refused: {budget:.3g} FLOPs: {reason}"


def _disagreements(
    fits: Mapping[Method, IsoFlopFit], joint: Sequence[tuple[float, float]]
) -> Iterator[str]:
    law = dict(joint)
    for budget in sorted({m.flops for fit in fits.values() for m in fit.minima}):
        named: dict[str, float] = {
            name: m.n_star for name, fit in fits.items() for m in fit.minima if m.flops == budget
        }
        if budget in law:
            named["joint law"] = law[budget]
        if max(named.values()) / min(named.values()) > 1 + DISAGREEMENT:
            listed = ", ".join(f"{name} {n:.3g}" for name, n in named.items())
            yield f"isoflop_law_disagreement: N* at {budget:.3g} FLOPs: {listed}"
