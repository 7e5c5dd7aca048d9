"""What several tests of the report and the figures look at, built once."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.collect import collect, usable
from analysis.figures import style
from analysis.page.report import ReportResult, report
from harness.paths import SweepPaths
from tests.analysis.synthetic_sweep import World, build_sweep, run_id

REPORTED = {"standard": 1.0, "full": 1.3, "low_rank": 1.0, "delta": 1.05}


@pytest.fixture
def vectors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page needs the svg alone; the other formats would take most of the time."""
    monkeypatch.setattr(style, "FORMATS", ("svg",))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepPaths, ReportResult]:
    """Four arms, four sizes, two seeds; one run diverged and one failed."""
    statuses = {run_id("full", 2, 1): "diverged", run_id("delta", 0, 1): "failed"}
    world = World(multipliers=REPORTED, noise=0.001, statuses=statuses)
    paths = build_sweep(tmp_path_factory.mktemp("finished"), world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "FORMATS", ("svg",))
        return paths, report(paths)


@pytest.fixture(scope="session")
def used(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Usable runs of six arms at four sizes with two seeds."""
    return usable(collect(build_sweep(tmp_path_factory.mktemp("used"), World(noise=0.002))))
