"""Wall time of the joint law on Epoch's 240 Chinchilla points, beside what the field uses.

``python -m tests.benchmarks.fit_speed [--starts 4500]`` prints our fit and 4,000 bootstraps, the
textbook grid of L-BFGS-B starts with numeric gradients, and the PyPI package ``chinchilla`` with
its own log-Huber loss: seconds, the objective reached (the published sum), and ratios.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import huber

from analysis.fit.joint import JointFit, JointPoints, fit_joint
from analysis.fit.joint_bootstrap import bootstrap_joint

POINTS = Path(__file__).parents[1] / "data/chinchilla_epoch/svg_extracted_data.csv"
DELTA = 1e-3
REPLICATES = 4000
# The grid of the replication's notebook: 6 x 6 x 5 x 5 x 5 starts.
TEXTBOOK = {
    "a": np.linspace(0, 25, 6),
    "b": np.linspace(0, 25, 6),
    "e": np.linspace(-1, 1, 5),
    "alpha": np.linspace(0, 2, 5),
    "beta": np.linspace(0, 2, 5),
}


def chinchilla_points() -> JointPoints:
    """Epoch's points without the five highest losses."""
    frame = pd.read_csv(POINTS)
    frame = frame[frame["loss"] < frame["loss"].nlargest(5).iloc[-1]]
    n_params = frame["Model Size"].to_numpy()
    tokens = frame["Training FLOP"].to_numpy() / 6 / n_params
    return JointPoints(n_params, tokens, frame["loss"].to_numpy())


def published_sum(points: JointPoints) -> Callable[[np.ndarray], float]:
    """Objective of ``(a, b, e, alpha, beta)`` as the notebook writes it."""
    log_n, log_d, log_l = (np.log(v) for v in (points.n_params, points.tokens, points.loss_nats))

    def objective(theta: np.ndarray) -> float:
        a, b, e, alpha, beta = theta
        fitted = np.logaddexp(np.logaddexp(a - alpha * log_n, b - beta * log_d), e)
        return float(huber(DELTA, log_l - fitted).sum())

    return objective


def time_ours(points: JointPoints) -> tuple[float, float, JointFit]:
    """Median seconds of a fit, seconds of the bootstrap, and the fit."""
    fit = fit_joint(points)
    times = []
    for _ in range(11):
        begin = time.perf_counter()
        fit_joint(points)
        times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    bootstrap_joint(points, fit, replicates=REPLICATES)
    return statistics.median(times), time.perf_counter() - begin, fit


def time_textbook(points: JointPoints, n_starts: int) -> tuple[float, np.ndarray, int]:
    """Seconds, objectives reached, and how often scipy said success, over evenly drawn starts."""
    objective = published_sum(points)
    starts = list(itertools.product(*TEXTBOOK.values()))
    chosen = np.unique(np.linspace(0, len(starts) - 1, n_starts).astype(int))
    begin = time.perf_counter()
    ends = [minimize(objective, starts[i], method="L-BFGS-B") for i in chosen]
    seconds = time.perf_counter() - begin
    return seconds, np.array([end.fun for end in ends]), sum(bool(end.success) for end in ends)


def log_huber(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    """The published loss for the package, which computes in extended precision."""
    size = np.abs(np.log(y_true) - np.log(y_pred))
    return np.where(size < DELTA, size**2 / 2, DELTA * (size - DELTA / 2))


def time_package(points: JointPoints, per_axis: int) -> tuple[float, float] | None:
    """Seconds of the package's fit on all cores and the sum it reached; None if not installed."""
    try:
        from chinchilla import Chinchilla
    except ImportError:
        return None
    grid = {
        "e": np.linspace(-1, 1, per_axis),
        "a": np.linspace(0, 25, per_axis),
        "b": np.linspace(0, 25, per_axis),
        "alpha": np.linspace(0, 2, per_axis),
        "beta": np.linspace(0, 2, per_axis),
    }
    with tempfile.TemporaryDirectory() as folder:
        columns = {"C": 6 * points.n_params * points.tokens, "N": points.n_params}
        columns |= {"D": points.tokens, "loss": points.loss_nats}
        pd.DataFrame(columns).to_csv(Path(folder) / "df.csv", index=False)
        package = Chinchilla(
            project_dir=folder,
            param_grid={name: tuple(values) for name, values in grid.items()},
            loss_fn=log_huber,
            log_level=50,
        )
        begin = time.perf_counter()
        package.fit()
        seconds = time.perf_counter() - begin
    at = [np.log(package.A), np.log(package.B), np.log(package.E), package.alpha, package.beta]
    return seconds, published_sum(points)(np.array(at, dtype=np.float64))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=4500, help="of the textbook grid's 4500")
    parser.add_argument("--per-axis", type=int, default=5, help="of the package's grid, 5 axes")
    arguments = parser.parse_args()
    points = chinchilla_points()
    ours, bootstrap, fit = time_ours(points)
    best = fit.certificate.objective
    print(f"ours       fit {1e3 * ours:.0f} ms, objective {best:.13g}")
    print(f"           {REPLICATES} bootstraps {bootstrap:.2f} s")
    seconds, ends, succeeded = time_textbook(points, arguments.starts)
    share = len(ends) / 4500
    print(
        f"scipy      {len(ends)} of 4500 L-BFGS-B starts {seconds:.1f} s"
        + ("" if share == 1 else f" (all: about {seconds / share:.0f} s)")
        + f", {seconds / share / ours:.0f}x ours; best objective {ends.min():.13g}, "
        f"{ends.min() / best - 1:+.1e}; 'success' {succeeded} of {len(ends)}, "
        f"within 1e-6 of the minimum {int((ends < best * (1 + 1e-6)).sum())}"
    )
    package = time_package(points, arguments.per_axis)
    if package is None:
        print("chinchilla not installed: pip install chinchilla==0.2.0")
        return
    print(
        f"chinchilla {arguments.per_axis**5} starts {package[0]:.1f} s, {package[0] / ours:.0f}x "
        f"ours; objective {package[1]:.13g}, {package[1] / best - 1:+.1e}"
    )


if __name__ == "__main__":
    main()
