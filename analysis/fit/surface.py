"""Loss over depth and width at fixed compute: a quadratic in the logs of two shape axes.

Answers whether an arm wants another shape than the baseline (arXiv 2603.15031, section 5.4), and
whether its gain is the same everywhere. An optimum outside the measured shapes, or on their edge,
is said not to be bracketed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimates import BadValue, Interval, TooFewData, data_sha256, undefined
from analysis.fit.quantiles import f_tail, t_quantile
from analysis.law_fit import Certificate, LawFit, linear_gradient
from analysis.laws import Floats

N_UNKNOWNS = 6
MIN_SHAPES = 8
"""Shapes below which no surface is fitted: six unknowns and two degrees of freedom."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SurfacePoints:
    """Losses of one arm over shapes at one budget, arrays ``[n]``; missing shapes are absent."""

    first: Floats
    """The first shape axis: layers, or heads per layer."""
    second: Floats
    """The second: width, or width per layer."""
    loss_nats: Floats
    names: tuple[str, str] = ("n_layers", "d_model")


@dataclass(frozen=True, kw_only=True)
class SurfaceFit(LawFit):
    """A fitted surface and its lowest point."""

    names: tuple[str, str]
    optimum: Mapping[str, Interval]
    """Best value by axis; without an estimate where the surface has no minimum inside."""
    optimum_loss: float | None
    bracketed: Mapping[str, bool]
    """Per axis: the optimum lies strictly inside the measured values."""
    centre: tuple[float, float]
    coefficients: tuple[float, ...]
    """Of ``1, u, v, u^2, u v, v^2`` with u, v the centred logs, nats."""

    def predict(self, first: Floats | float, second: Floats | float) -> Floats:
        """Loss of the surface at shapes, nats."""
        u = np.log(np.asarray(first, np.float64)) - self.centre[0]
        v = np.log(np.asarray(second, np.float64)) - self.centre[1]
        return np.asarray(_design(u, v) @ np.array(self.coefficients))


@dataclass(frozen=True, kw_only=True)
class GainTest:
    """Is the gain of an arm the same at all shapes?"""

    mean_gain_nats: Interval
    """Baseline minus arm, mean over shapes, t interval over shapes."""
    smallest: float
    largest: float
    f: float
    p: float
    """Of a constant gain against one that changes with the logs of both axes."""
    text: str


def fit_surface(points: SurfacePoints, *, level: float = 0.95) -> SurfaceFit:
    """Fit ``L = c0 + c1 u + c2 v + c3 u^2 + c4 u v + c5 v^2``, u and v centred logs of the axes.

    The optimum solves the two linear equations of a zero gradient; its interval is the delta
    method's on the logs, with n - 6 degrees of freedom.

    Raises
    ------
    TooFewData
        Fewer than eight shapes, or fewer than three values along an axis.
    BadValue
        A shape or loss that is not positive and finite.
    """
    x, y, loss = _checked(points)
    centre = (float(x.mean()), float(y.mean()))
    u, v = x - centre[0], y - centre[1]
    design = _design(u, v)
    inverse = np.linalg.inv(design.T @ design)
    c = inverse @ design.T @ loss
    residual = loss - design @ c
    dof = len(loss) - N_UNKNOWNS
    covariance = inverse * float(residual @ residual) / dof
    optimum, best = _optimum(c, covariance, centre, points.names, dof, level)
    bracketed = {
        name: at.estimate is not None and bool(axis.min() < at.estimate < axis.max())
        for (name, at), axis in zip(optimum.items(), (np.exp(x), np.exp(y)), strict=True)
    }
    if not all(bracketed.values()):
        # A best value outside the shapes drags the other axis with it: neither is measured.
        why = "the surface has its minimum outside the measured shapes"
        optimum = {n: undefined(why, method=at.method, level=level) for n, at in optimum.items()}
        best = None
    lowest = int(np.argmin(loss))
    half = t_quantile(level, dof) * np.sqrt(np.diag(covariance))
    return SurfaceFit(
        law="L = c0 + c1 u + c2 v + c3 u^2 + c4 uv + c5 v^2, "
        f"u, v = centred ln {points.names[0]}, ln {points.names[1]}",
        method=f"least squares, t intervals with {dof} dof; optimum by the delta method",
        parameters={
            f"c{k}": Interval(
                estimate=float(c[k]),
                low=float(c[k] - half[k]),
                high=float(c[k] + half[k]),
                level=level,
                method="t interval",
            )
            for k in range(N_UNKNOWNS)
        },
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        certificate=Certificate(
            objective=float(residual @ residual), gradient=linear_gradient(design, residual)
        ),
        domain={
            name: (float(np.exp(axis.min())), float(np.exp(axis.max())))
            for name, axis in zip(points.names, (x, y), strict=True)
        },
        n_points=len(loss),
        n_levels=min(len(np.unique(x)), len(np.unique(y))),
        rms_nats=float(np.sqrt(np.mean(residual**2))),
        notes=tuple(
            f"optimum_not_bracketed: in {name}, the best value is not inside the measured shapes"
            for name, inside in bracketed.items()
            if not inside
        ),
        data_sha256=data_sha256(zip(x.tolist(), y.tolist(), loss.tolist(), strict=True)),
        extras={
            f"best_{name}": at.estimate for name, at in optimum.items() if at.estimate is not None
        }
        | {
            f"lowest_{name}": float(np.exp(axis[lowest]))
            for name, axis in zip(points.names, (x, y), strict=True)
        },
        names=points.names,
        optimum=optimum,
        optimum_loss=best,
        bracketed=bracketed,
        centre=centre,
        coefficients=tuple(float(value) for value in c),
    )


def gain_test(
    first: Sequence[float] | Floats,
    second: Sequence[float] | Floats,
    gain_nats: Sequence[float] | Floats,
    *,
    level: float = 0.95,
) -> GainTest:
    """Test a constant gain over shapes against a quadratic in the logs of both axes.

    Below twelve shapes the alternative is linear.

    Parameters
    ----------
    first, second, gain_nats
        ``[n]`` shape axes and baseline loss minus the arm's.

    Raises
    ------
    TooFewData
        Fewer than five shapes.
    """
    gain = np.asarray(gain_nats, np.float64)
    n = len(gain)
    if not np.isfinite(gain).all():
        raise BadValue("a gain is not finite: leave out shapes that one of the arms lacks")
    if n < 5:
        raise TooFewData(f"a trend of the gain over shapes needs 5 shapes, got {n}")
    u, v = (np.log(np.asarray(axis, np.float64)) for axis in (first, second))
    full = _design(u - u.mean(), v - v.mean())
    design = full if n >= 12 else full[:, :3]
    k = int(np.linalg.matrix_rank(design))
    residual = gain - design @ np.linalg.lstsq(design, gain, rcond=None)[0]
    many, few = float(residual @ residual), float(((gain - gain.mean()) ** 2).sum())
    if few <= 1e-24 * float(gain @ gain) or k < 2:
        f, p = 0.0, 1.0
    elif many <= 1e-24 * few:
        f, p = np.inf, 0.0
    else:
        f = max(0.0, few - many) / (k - 1) / (many / (n - k))
        p = f_tail(f, k - 1, n - k)
    half = t_quantile(level, n - 1) * float(gain.std(ddof=1)) / np.sqrt(n)
    mean = Interval(
        estimate=float(gain.mean()),
        low=float(gain.mean() - half),
        high=float(gain.mean() + half),
        level=level,
        method=f"t interval over {n} shapes",
    )
    verdict = "changes with shape" if p < 1 - level else "shows no trend with shape"
    text = (
        f"the gain {verdict} (F = {f:.3g} on {k - 1} and {n - k} degrees of freedom, p = {p:.2g})"
    )
    return GainTest(
        mean_gain_nats=mean,
        smallest=float(gain.min()),
        largest=float(gain.max()),
        f=float(f),
        p=p,
        text=text,
    )


def _checked(points: SurfacePoints) -> tuple[Floats, Floats, Floats]:
    values = [np.asarray(v, np.float64) for v in (points.first, points.second, points.loss_nats)]
    for name, column in zip((*points.names, "loss_nats"), values, strict=True):
        if not (np.isfinite(column) & (column > 0)).all():
            raise BadValue(f"{name} must be positive and finite")
    x, y, loss = np.log(values[0]), np.log(values[1]), values[2]
    shapes = len(set(zip(x.tolist(), y.tolist(), strict=True)))
    if shapes < MIN_SHAPES:
        raise TooFewData(f"a surface of six unknowns needs {MIN_SHAPES} shapes, got {shapes}")
    for name, axis in zip(points.names, (x, y), strict=True):
        if len(np.unique(axis)) < 3:
            raise TooFewData(f"a surface needs three values of {name}, got {len(np.unique(axis))}")
    if np.linalg.matrix_rank(_design(x - x.mean(), y - y.mean())) < N_UNKNOWNS:
        raise TooFewData(
            f"{points.names[0]} and {points.names[1]} vary together: vary one at fixed other"
        )
    return x, y, loss


def _design(u: Floats, v: Floats) -> Floats:
    return np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=-1)


def _optimum(
    c: Floats,
    covariance: Floats,
    centre: tuple[float, float],
    names: tuple[str, str],
    dof: int,
    level: float,
) -> tuple[dict[str, Interval], float | None]:
    """Best value per axis and the loss there; undefined on a saddle or a ridge."""
    method = f"delta method on logs, {dof} dof"
    hessian = np.array([[2 * c[3], c[4]], [c[4], 2 * c[5]]])
    if np.linalg.eigvalsh(hessian)[0] <= 0:
        none = undefined("the surface has no minimum", method=method, level=level)
        return dict.fromkeys(names, none), None
    at = -np.linalg.solve(hessian, c[1:3])
    u, v = at
    # H at + g = 0: d(at)/dc = -H^-1 d(H at + g)/dc.
    jacobian = -np.linalg.solve(hessian, np.array([[0, 1, 0, 2 * u, v, 0], [0, 0, 1, 0, u, 2 * v]]))
    errors = np.sqrt(np.diag(jacobian @ covariance @ jacobian.T))
    t = t_quantile(level, dof)
    found = {}
    for name, middle, error, mean in zip(names, at, errors, centre, strict=True):
        low, best, high = (float(np.exp(mean + middle + k * t * error)) for k in (-1, 0, 1))
        found[name] = Interval(estimate=best, low=low, high=high, level=level, method=method)
    return found, float(_design(np.array(u), np.array(v)) @ c)
