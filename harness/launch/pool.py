"""N warm worker processes on this machine: started, replaced when they die, asked to stop.

The same pool serves `isoloss run` and a packed allocation of Slurm. Workers run in sessions of
their own, so that only the pool receives the terminal's signals.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness.holder import read_holder
from harness.job import Job
from harness.lease import HOLDER, terms_of
from harness.paths import SweepPaths
from harness.snapshot import import_environment
from harness.tails import last_lines

POLL_S = 0.25
"""Pause between two looks at the workers."""
STOP_PATIENCE_S = 120.0
"""How long workers may take to reach a step boundary and save."""
FALSE_STARTS = 3
"""Workers that may crash in a row, before they took a run or with an error outside of any run,
until no more are started. A worker that is killed after it took a run is always replaced."""
STOPPED = 75
"""Exit code of a worker that was asked to stop (EX_TEMPFAIL: try again later)."""
NO_DISK = 74
"""Exit code of a worker that can no longer write its results (EX_IOERR)."""


@dataclass
class Pool:
    """Worker processes over the runs of one job, or of one array task of it."""

    job: Job
    job_file: Path
    n_workers: int
    task: int | None = None
    log: Path | None = None
    """Where workers write; None: where this process writes."""
    code: Path | None = None
    """Snapshot whose packages the workers import; None: what this process imports."""
    processes: dict[subprocess.Popen[bytes], int] = field(default_factory=dict)
    """The workers and their places, 0 .. n_workers - 1."""
    false_starts: int = 0
    stopped: bool = False
    """Whether a worker ended early because it was asked to."""
    troubles: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start all workers."""
        for place in range(self.n_workers):
            self._spawn(place)

    def _spawn(self, place: int) -> None:
        task = [] if self.task is None else ["--task", str(self.task)]
        command = [sys.executable, "-m", "harness.worker", str(self.job_file), *task]
        with contextlib.ExitStack() as stack:
            log: IO[bytes] | None = stack.enter_context(self.log.open("ab")) if self.log else None
            process = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=worker_environment(self.job.execution.threads, self._gpu(place), self.code),
                start_new_session=True,
            )
        self.processes[process] = place

    def _gpu(self, place: int) -> str | None:
        """GPU of a worker's place, dealt out in turn; several may share one."""
        alone = self.job.execution.devices == 1
        gpus = visible_gpus() if alone else []
        return gpus[place % len(gpus)] if gpus else None

    def tend(self) -> bool:
        """Replace workers that died; return whether any is at work."""
        for process, place in list(self.processes.items()):
            code = process.poll()
            if code is not None:
                del self.processes[process]
                self._after_end(process, code, place)
        return bool(self.processes)

    def _after_end(self, process: subprocess.Popen[bytes], code: int, place: int) -> None:
        self.stopped |= code == STOPPED
        if code == NO_DISK:
            self._trouble("a worker cannot write its results")
        elif code not in (0, STOPPED):
            was_killed = code < 0 and self._took_a_run(process.pid)
            self.false_starts = 0 if was_killed else self.false_starts + 1
            if self.false_starts < FALSE_STARTS:
                self._spawn(place)
            elif self.false_starts == FALSE_STARTS:
                self._trouble(f"{FALSE_STARTS} workers ended without finishing a run")

    def _trouble(self, what: str) -> None:
        said = f": {last_line(self.log)} (see {self.log})" if self.log else ""
        self.troubles.append(f"{what}{said}")

    def _took_a_run(self, pid: int) -> bool:
        paths = SweepPaths(self.job.sweep_dir)
        for run in self.job.task(self.task):
            attempts = paths.run(run.run_id).attempts
            for number in terms_of(attempts)[-1:]:
                holder = read_holder(attempts / str(number) / HOLDER)
                if holder is not None and holder.pid == pid:
                    return True
        return False

    def run(self, should_stop: Callable[[], bool], on_poll: Callable[[], None]) -> None:
        """Work until no worker is left; when asked to stop, let all of them save and end."""
        self.start()
        try:
            while self.tend() and not should_stop():
                on_poll()
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            self.stopped = True
        if self.processes:
            self.stop()

    def stop(self) -> None:
        """Ask all workers to save and stop, and wait for them; a second Ctrl-C ends them at
        once.
        """
        self.stopped = True
        with contextlib.suppress(KeyboardInterrupt):
            end_processes(list(self.processes), STOP_PATIENCE_S)
        end_processes(list(self.processes), 0.0)
        self.processes = {}


def end_processes(processes: Sequence[subprocess.Popen[bytes]], patience_s: float) -> None:
    """Ask processes to end, wait so long, then kill what is left; files already written stay."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + patience_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def worker_environment(threads: int, gpu: str | None, code: Path | None) -> dict[str, str]:
    """Environment of a worker: its threads, its GPU (None: all), and the code that it imports."""
    env = dict(os.environ) | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpu
    return env if code is None else env | import_environment(code)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [gpu for gpu in allowed.split(",") if gpu]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def last_line(log: Path) -> str:
    """Last words of a log."""
    return (last_lines(log) or ["nothing was logged"])[-1]
