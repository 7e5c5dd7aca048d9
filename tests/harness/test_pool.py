"""Which GPU a worker of the pool sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import Execution
from harness.job import Job
from harness.launch.pool import Pool, worker_environment


def pool(tmp_path: Path, devices: int = 1) -> Pool:
    execution = Execution(devices=devices)
    job = Job(sweep="gpus", sweep_dir=tmp_path, runs=[], execution=execution)
    return Pool(job, tmp_path / "job.json", n_workers=4)


def test_workers_are_dealt_the_visible_gpus_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    dealt = [pool(tmp_path)._gpu(place) for place in range(4)]
    assert dealt == ["3", "5", "3", "5"]
    assert worker_environment(1, dealt[1], None)["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_run_of_several_devices_sees_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert pool(tmp_path, devices=2)._gpu(0) is None
    assert worker_environment(1, None, None)["CUDA_VISIBLE_DEVICES"] == "3,5"
