"""The progress of a sweep, as `isoloss run` shows it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from harness.console import SweepProgress
from tests.harness.sweep_folders import finish, planned_run, write_sweep


def test_what_cannot_be_read_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    runs = [planned_run(seed=seed) for seed in range(2)]
    sweep = write_sweep(tmp_path, runs)
    for run in runs:
        finish(sweep, run)
    record = sweep.run(runs[1].run_id).record
    good = record.read_text(encoding="utf-8")
    record.write_text("{", encoding="utf-8")
    console = Console(file=StringIO(), width=400)
    with SweepProgress(console, sweep, runs) as progress:
        progress.look()
        progress.look()
        record.write_text(good, encoding="utf-8")
        progress.look()
        sweep.runs.chmod(0)
        sweep.runs.rename(tmp_path / "away")
        sweep.runs.touch()  # reading below it is an OSError, even for root
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert [str(record) in line for line in lines].count(True) == 1
    assert len([line for line in lines if "done" in line]) == 2
