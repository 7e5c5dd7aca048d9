"""What a second worker brings: wall time of a sweep with two workers over that with one.

``python -m tests.benchmarks.two_workers [GRID]`` runs the whole grid both ways, in turn, in fresh
results folders, MLflow mirror included. It also prints how long the same command takes once
everything is done.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def sweep_seconds(grid: Path, workers: int) -> tuple[float, float]:
    """Wall time of `isoloss run GRID` in an empty results folder, and of running it again."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "harness.cli", "run", str(grid), "--results", results]
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            subprocess.run([*command, "--workers", str(workers)], check=True, capture_output=True)
            times.append(time.perf_counter() - begin)
        return times[0], times[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", type=Path, nargs="?", default=Path("recipes/grids/quickstart.yaml"))
    parser.add_argument("--pairs", type=int, default=1)
    options = parser.parse_args()
    ratios = []
    for _ in range(options.pairs):
        (two, again), (one, _) = sweep_seconds(options.grid, 2), sweep_seconds(options.grid, 1)
        ratios.append(two / one)
        print(f"two workers {two:.0f} s, one {one:.0f} s, ratio {ratios[-1]:.3f}", flush=True)
        print(f"again, with everything done: {again:.1f} s", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
