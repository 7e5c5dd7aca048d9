"""One run as a job of Hydra: the other side of :mod:`tests.benchmarks.utilisation`.

``python -m tests.benchmarks.hydra_train --multirun run=0,1,2 job=JOB.json`` goes through runs of a
job file, as written by `isoloss run`, with Hydra's basic launcher. That one calls the program
again in its own process; so that every run has one to itself, as where Hydra launches on a cluster
or a user loops over a script, each job starts a process here. It trains with
:func:`harness.training.train` on the same configuration, and does nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

ConfigStore.instance().store(name="job", node={"run": 0, "job": "???"})


@hydra.main(version_base=None, config_name="job")
def main(choice: DictConfig) -> None:
    """Train one run in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.hydra_train", "--alone"]
    subprocess.run([*command, choice.job, str(choice.run)], check=True)


def train_alone(job_file: Path, number: int) -> None:
    """Train run ``number`` of a job file."""
    from harness.job import read_job
    from harness.paths import SweepPaths
    from harness.stop import StopSignal
    from harness.training import train

    job = read_job(job_file)
    run = job.runs[number]
    paths = SweepPaths(job.sweep_dir).run(run.run_id)
    paths.attempt(1).mkdir(parents=True)
    record = train(run, job.sweep, paths, job.execution, StopSignal())
    if record is None or record.status != "done":
        raise SystemExit(f"{run.run_id} was not trained to its end")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        train_alone(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
