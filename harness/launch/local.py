"""Executes runs on this machine: N warm worker processes and, beside them, the MLflow mirror.

The controller owns the signals: workers run in sessions of their own and are asked to stop. A
worker that dies (killed, out of memory) is replaced and its run resumed; a run whose workers
died three times is given up as failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from harness.claim import claim
from harness.job import Job, write_job
from harness.paths import RunPaths, SweepPaths
from harness.records import write_text_atomically

POLL_S = 0.25
"""Pause between two looks at the workers."""
STOP_PATIENCE_S = 120.0
"""How long workers may take to reach a step boundary and save."""
LIVES = 3
"""Workers that one run may kill before it is given up."""
STOPPED = 75
"""Exit code of a worker that stopped on request (``harness.worker.STOPPED``)."""


@dataclass(frozen=True)
class Outcome:
    """How a local execution ended."""

    undisturbed: bool
    """False when Ctrl-C stopped it; every unfinished run can then be resumed."""
    troubles: tuple[str, ...]
    """What went wrong outside the runs, one line each, with the file that says more."""


@dataclass
class Pool:
    """The worker processes of one ``isoloss run``."""

    paths: SweepPaths
    job: Job
    job_file: Path
    n_workers: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    """Workers lost by the run they were executing."""
    troubles: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start all workers."""
        self.processes = [self._spawn() for _ in range(self.n_workers)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        threads = str(self.job.execution.threads)
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        command = [sys.executable, "-m", "harness.worker", str(self.job_file)]
        with (self.paths.logs / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **limits},
                start_new_session=True,
            )

    def tend(self) -> bool:
        """Replace workers that died; return whether any is at work."""
        alive = []
        for process in self.processes:
            code = process.poll()
            if code is None:
                alive.append(process)
            elif code not in (0, STOPPED):
                alive += self._after_death(process)
        self.processes = alive
        return bool(alive)

    def _after_death(self, process: subprocess.Popen[bytes]) -> list[subprocess.Popen[bytes]]:
        victim = self._run_of(process.pid)
        self.deaths[victim or ""] += 1
        if self.deaths[victim or ""] < LIVES:
            return [self._spawn()]
        if victim is None:
            log = self.paths.logs / "workers.log"
            self.troubles.append(
                f"{LIVES} workers ended before they took a run: {_last_line(log)} (see {log})"
            )
            return []
        self._mark_failed(victim, process.returncode)
        return [self._spawn()]

    def _run_of(self, pid: int) -> str | None:
        """Unfinished run whose newest attempt belongs to process ``pid``."""
        for run in self.job.runs:
            paths = self.paths.run(run.run_id)
            if not paths.record.exists() and _attempt_pid(paths) == pid:
                return run.run_id
        return None

    def _mark_failed(self, run_id: str, code: int) -> None:
        """Record the run as failed in a process of its own, which can load the recipe."""
        name = f"give-up-{run_id}.json"
        run = next(r for r in self.job.runs if r.run_id == run_id)
        write_job(self.paths.jobs / name, self.job.model_copy(update={"runs": [run]}))
        reason = f"its worker ended with exit code {code}, {LIVES} times"
        command = [sys.executable, "-m", "harness.worker", str(self.paths.jobs / name)]
        done = subprocess.run([*command, "--fail", reason], stdin=subprocess.DEVNULL)
        if done.returncode:
            self.troubles.append(f"run {run_id} cannot be recorded as failed, although {reason}")

    def stop(self) -> None:
        """Ask all workers to save and stop, and wait for them."""
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + STOP_PATIENCE_S
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End whatever is left, without asking; checkpoints already written stay."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _attempt_pid(paths: RunPaths) -> int | None:
    number = paths.n_attempts()
    if not number:
        return None
    try:
        about = json.loads((paths.attempt(number) / "attempt.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return int(about["pid"])


def run_local(
    paths: SweepPaths,
    job: Job,
    *,
    workers: int,
    mirror: list[str] | None,
    on_poll: Callable[[], None],
) -> Outcome:
    """Execute the runs of ``job`` with ``workers`` processes.

    Parameters
    ----------
    mirror
        Command of the MLflow mirror to run beside the workers; None for none.
    on_poll
        Called a few times a second, to show progress.
    """
    paths.logs.mkdir(parents=True, exist_ok=True)
    job_file = paths.jobs / f"{int(time.time())}-{os.getpid()}.json"
    write_job(job_file, job)
    write_run_configs(paths, job)
    pool = Pool(paths, job, job_file, min(workers, len(job.runs)))
    with claim(paths.controller), _beside(mirror, paths, pool.troubles):
        pool.start()
        undisturbed = _tend_until_done(pool, on_poll)
    return Outcome(undisturbed, tuple(pool.troubles))


def _tend_until_done(pool: Pool, on_poll: Callable[[], None]) -> bool:
    try:
        while pool.tend():
            on_poll()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        try:
            pool.stop()
        except KeyboardInterrupt:
            pool.kill()
        return False
    return True


@contextlib.contextmanager
def _beside(command: list[str] | None, paths: SweepPaths, troubles: list[str]) -> Iterator[None]:
    """Run the mirror at the lowest priority beside the block, and let it finish after it."""
    if command is None:
        yield
        return
    with (paths.logs / "mlflow.log").open("ab") as log:
        process = subprocess.Popen(
            ["nice", "-n", "19", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(STOP_PATIENCE_S)
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.returncode:
            log_file = paths.logs / "mlflow.log"
            troubles.append(
                f"MLflow is incomplete: {_last_line(log_file)} (see {log_file}); "
                f"bring it up to date with: isoloss sync {paths.root}"
            )


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was logged")


def write_run_configs(paths: SweepPaths, job: Job) -> None:
    """Write ``config.yaml`` of every run of the job that has none yet."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    for run in job.runs:
        target = paths.run(run.run_id).config
        if not target.exists():
            text = io.StringIO()
            yaml.dump({"run_id": run.run_id, "cell": run.cell, **run.config}, text)
            write_text_atomically(target, text.getvalue())
