"""How long a report over many runs takes, phase by phase.

    python -m tests.benchmarks.report_speed [--runs 10000] [--diagnostics] [--keep FOLDER]

Builds a sweep that follows a known law (six arms, as many sizes and seeds as it takes) without
training anything, then reports it. The target is 60 s for 10,000 runs on 2 cores.
"""

from __future__ import annotations

import argparse
import cProfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from analysis.collect import collect
from analysis.page.report import report
from analysis.study import analyse
from harness.paths import SweepPaths
from harness.records import read_manifest
from tests.analysis import synthetic_sweep
from tests.analysis.synthetic_sweep import MULTIPLIERS, World, build_sweep

T = TypeVar("T")

TARGET_S = 60.0
SHAPES = tuple((2 + k, 64 + 32 * k) for k in range(12))


def main() -> None:
    """Build, report, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--profile", type=Path, help="write a profile of the report")
    parser.add_argument("--keep", type=Path, help="build the sweep there instead of in /tmp")
    parser.add_argument("--diagnostics", action="store_true", help="give every run a measurement")
    chosen = parser.parse_args()
    diagnostics = "new" if chosen.diagnostics else "none"
    with tempfile.TemporaryDirectory() as scratch:
        root = chosen.keep or Path(scratch)
        paths = _timed("build (not the report)", lambda: build(root, chosen.runs, diagnostics))
        phases(paths)
        profile = cProfile.Profile()
        start = time.perf_counter()
        if chosen.profile:
            profile.enable()
        result = report(paths)
        profile.disable()
        took = time.perf_counter() - start
        if chosen.profile:
            profile.dump_stats(chosen.profile)
    verdict = "within" if took <= TARGET_S else "BEYOND"
    print(f"report, {result.n_runs} runs: {took:.1f} s, {verdict} the target of {TARGET_S:g} s")


def build(root: Path, n_runs: int, diagnostics: str = "none") -> SweepPaths:
    """A sweep of at least ``n_runs`` finished runs; the second call on a folder finds it there."""
    seeds = range(-(-n_runs // (len(MULTIPLIERS) * len(SHAPES))))
    world = World(shapes=SHAPES, seeds=seeds, noise=0.002, diagnostics=diagnostics)
    ready = SweepPaths((root / "synthetic").resolve())
    if ready.manifest.exists():
        return ready
    # A report reads no loss curves; nobody waits for records that no run will ever make.
    with patch.object(synthetic_sweep, "_write_metrics"), patch("os.fsync"):
        return build_sweep(root, world)


def phases(paths: SweepPaths) -> None:
    """Time what the report begins with, each alone."""
    manifest = _timed("read manifest", lambda: read_manifest(paths))
    runs = _timed("collect", lambda: collect(paths))
    _timed("fit and compare", lambda: analyse(runs, manifest.baseline))


def _timed(name: str, do: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = do()
    print(f"{name:<24} {time.perf_counter() - start:6.1f} s", flush=True)
    return result


if __name__ == "__main__":
    main()
