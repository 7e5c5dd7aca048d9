"""Trials on this machine: one pool of warm workers for the whole search, MLflow's mirror beside."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from harness.config import Execution
from harness.errors import IsolossError
from harness.job import Job, write_job, write_run_configs
from harness.launch.local import beside, in_hand
from harness.launch.pool import POLL_S, Pool
from harness.paths import SweepPaths
from harness.records import PlannedRun

REST_S = 0.1
"""Pause between two looks at trials; short, as workers wait for the next proposal."""


class LocalTrials:
    """Executes whatever trials are open, with workers that stay until the search is over.

    Parameters
    ----------
    paths
        Folder of the trials.
    code
        Snapshot of the code that workers import.
    mirror
        Command of the MLflow mirror to run beside the workers; None for none.
    """

    rest_s = REST_S

    def __init__(
        self,
        paths: SweepPaths,
        execution: Execution,
        workers: int,
        code: Path | None,
        mirror: list[str] | None,
    ) -> None:
        self.paths, self.mirror = paths, mirror
        self.job_file = paths.jobs / f"{int(time.time())}-{os.getpid()}.json"
        self.job = Job(
            sweep=paths.root.name,
            sweep_dir=paths.root,
            runs=[],
            execution=execution,
            more_to_come=True,
        )
        log = paths.logs / "workers.log"
        self.pool = Pool(self.job, self.job_file, workers, log=log, code=code)

    def __enter__(self) -> LocalTrials:
        self.paths.logs.mkdir(parents=True, exist_ok=True)
        write_job(self.job_file, self.job)
        with contextlib.ExitStack() as stack:
            self._show = stack.enter_context(in_hand(self.paths, []))
            stack.enter_context(beside(self.mirror, self.paths, self.pool.troubles))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let workers end: at once after an interruption, else when their runs have ended."""
        try:
            self._finish(undisturbed=kind is None)
        finally:
            self._stack.__exit__(kind, error, trace)

    def _finish(self, *, undisturbed: bool) -> None:
        try:
            if undisturbed:
                write_job(self.job_file, self.job.model_copy(update={"more_to_come": False}))
                while self.pool.tend():
                    time.sleep(POLL_S)
        finally:
            if self.pool.processes:
                self.pool.stop()
            self.job_file.unlink(missing_ok=True)

    @property
    def troubles(self) -> Sequence[str]:
        """What went wrong outside the runs, one line each."""
        return self.pool.troubles

    def tend(self, runs: Sequence[PlannedRun]) -> None:
        """Hand over the open trials, those of earlier calls among them; replace dead workers.

        Raises
        ------
        IsolossError
            No worker is left to execute them.
        """
        if [run.run_id for run in runs] != [run.run_id for run in self.job.runs]:
            self._hand_over(runs)
        if not self.pool.processes and runs and not self.pool.troubles:
            self.pool.start()
        elif not self.pool.tend() and runs:
            raise IsolossError("no worker is left; every unfinished trial is saved")

    def _hand_over(self, runs: Sequence[PlannedRun]) -> None:
        write_run_configs(self.paths, list(runs))
        self._show(runs)
        self.job = self.job.model_copy(update={"runs": list(runs)})
        write_job(self.job_file, self.job)
        known = {run.run_id for run in self.pool.job.runs}
        fresh = [run for run in runs if run.run_id not in known]
        # The pool asks of any run, ended ones included, whether a worker that died had taken it.
        everything = [*self.pool.job.runs, *fresh]
        self.pool.job = self.pool.job.model_copy(update={"runs": everything})
