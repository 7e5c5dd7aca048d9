"""Starts the processes that share one run, and speaks for them to whoever owns the run.

The owner (a worker) keeps the lease and the signals; the processes, its ranks, train. On one node
they are its children; on several, tasks of one ``srun`` step. They meet at a store that the owner
hosts on a port which the system has just given it, so that runs side by side never want the same
one. Through the store they report the record, or the error that came first. Through their standard
input the owner asks them to stop; when that input ends the owner is gone, and they end with it.

    python -m harness.launch.ranks JOB RUN_ID ATTEMPT

Limit: training on CUDA devices in several processes is written after the same libraries' rules as
on CPUs, but tested on CPUs only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from harness.config import Execution, RunConfig
from harness.errors import IsolossError, LeaseLost
from harness.job import read_job
from harness.launch.pool import last_line
from harness.launch.rank_errors import RankFailed, RankKilled, first_error, report
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, read_record
from harness.stop import Stop, StopSignal

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

POLL_S = 0.2
"""Pause between two looks at the ranks."""
PARTING_S = 5.0
"""How long ranks may take to end when their input has."""
STOP = b"stop\n"
MERCY_S = 2.0
"""Pause after a rank was killed: whoever kills a whole job takes the owner next, which must not
draw conclusions in between."""


def sequences_per_rank(config: RunConfig, execution: Execution) -> int:
    """Sequences of a global batch that each process trains on.

    Raises
    ------
    IsolossError
        They cannot be shared out evenly.
    """
    sequences = config.train.batch_tokens // config.data.seq_len
    size = execution.devices * execution.nodes
    if sequences % size:
        even = size * config.data.seq_len
        raise IsolossError(
            f"train.batch_tokens: {config.train.batch_tokens} tokens are {sequences} sequences of "
            f"{config.data.seq_len}, which do not divide over {size} processes "
            f"(execution.devices {execution.devices} x execution.nodes {execution.nodes}). "
            f"Use a multiple of {even} tokens, or another number of processes."
        )
    return sequences // size


def train_in_ranks(
    run: PlannedRun,
    sweep: str,
    paths: RunPaths,
    execution: Execution,
    stop: Stop,
    attempt: int,
    job_file: Path,
    microbatch_seqs: int | None = None,
) -> RunRecord | None:
    """Train one run in ``devices x nodes`` processes; otherwise as :func:`harness.training.train`.

    Parameters
    ----------
    stop
        Passed on to the ranks, which save at the next step boundary. A signal that reached them
        alone is raised here too, since it was meant for all.
    attempt
        Number of this try; its folder exists, and its ``log`` takes the ranks' output.
    job_file
        The job that holds the run.

    Raises
    ------
    RankFailed
        A rank raised an error of the run's own; that of the one that failed first.
    RankKilled
        A rank was killed; the run is not to blame and can be resumed.
    """
    sequences_per_rank(RunConfig.model_validate(run.config), execution)
    arguments = [str(job_file.resolve()), run.run_id, str(attempt)]
    if microbatch_seqs:
        arguments += ["--microbatch-seqs", str(microbatch_seqs)]
    log_file, store = paths.attempt(attempt) / "log", _open_store()
    with log_file.open("ab") as log:
        crew = Crew(execution, arguments, store.port, log)
        try:
            _attend(crew, stop, paths)
            failure = crew.failure(store, log_file)
        finally:
            crew.end()
    if isinstance(failure, RankKilled):
        time.sleep(MERCY_S)
    if failure is not None:
        raise failure
    if store.check(["record"]):
        return RunRecord.model_validate_json(store.get("record"))
    if store.check(["signal"]) and stop.installed and not stop:
        signal.raise_signal(int(store.get("signal")))
    return read_record(paths.record)


def _open_store() -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


def _attend(crew: Crew, stop: Stop, paths: RunPaths) -> None:
    """Wait until the ranks have ended, or one has failed."""
    asked = False
    while crew.at_work():
        if stop.lost:
            raise LeaseLost(f"{paths.root}: another process owns the run now; its ranks were ended")
        if stop and not asked:
            crew.ask_to_stop()
            asked = True
        time.sleep(POLL_S)


class Crew:
    """The processes of one run: its ranks, or the one ``srun`` that starts them on several nodes.

    Parameters
    ----------
    arguments
        Of this module's command line.
    port
        Where the ranks find the store.
    log
        Takes their output.
    """

    def __init__(
        self, execution: Execution, arguments: Sequence[str], port: int, log: IO[bytes]
    ) -> None:
        self.size = execution.devices * execution.nodes
        command = [sys.executable, "-m", "harness.launch.ranks", *arguments]
        places = [_place(execution, rank) for rank in range(self.size)]
        if execution.nodes > 1:
            command, places = [*_srun(execution), *command], [{}]
        shared = {**_without_places(os.environ), **rank_environment(execution, port)}
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**shared, **place}
            )
            for place in places
        ]

    def at_work(self) -> bool:
        """Whether all that have ended did so in order, and some go on."""
        codes = [process.poll() for process in self.processes]
        return None in codes and not any(codes)

    def ask_to_stop(self) -> None:
        """Ask every rank to save at the next step boundary and end."""
        for process in self.processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.write(STOP)
                process.stdin.flush()

    def failure(self, store: TCPStore, log: Path) -> Exception | None:
        """What went wrong first; None when all ended in order."""
        codes = [process.poll() for process in self.processes]
        killed = [(i, code) for i, code in enumerate(codes) if code and not 0 < code <= 128]
        wrong = [(i, code) for i, code in enumerate(codes) if code]
        error = first_error(store, self.size)
        if killed and (error is None or isinstance(error, RankKilled)):
            index, code = killed[0]
            number = -code if code < 0 else code - 128  # srun counts as a shell does
            name = signal.Signals(number).name
            error = RankKilled(f"process {index} of {self.size} was ended by {name}")
        elif wrong and error is None:
            index, code = wrong[0]
            error = RankFailed(f"process {index} ended with exit code {code}: {last_line(log)}")
        return error

    def end(self) -> None:
        """End whatever is left."""
        for process in self.processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        deadline = time.monotonic() + PARTING_S
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _srun(execution: Execution) -> list[str]:
    """Command that starts the ranks of several nodes, numbered node by node."""
    return [
        "srun",
        f"--nodes={execution.nodes}",
        f"--ntasks={execution.nodes * execution.devices}",
        f"--ntasks-per-node={execution.devices}",
        f"--cpus-per-task={execution.threads}",
        "--distribution=block",
        "--exact",
        "--export=ALL",
        "--input=all",
        "--kill-on-bad-exit=1",
        "--wait=0",
    ]


def _place(execution: Execution, rank: int) -> dict[str, str]:
    """Variables that number one rank; under srun, Slurm's own do."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank % execution.devices)}


def _without_places(environ: os._Environ[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in ("RANK", "LOCAL_RANK")}


def rank_environment(execution: Execution, port: int) -> dict[str, str]:
    """Variables that all ranks share."""
    several = execution.nodes > 1
    threads = str(execution.threads)
    variables = {
        "WORLD_SIZE": str(execution.devices * execution.nodes),
        "MASTER_ADDR": socket.gethostname() if several else "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # Or DDP says in every log that it looks for unused parameters and found none.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
    if not several and sys.platform == "linux":
        # gloo would look the host's name up, which containers often cannot.
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return variables


@dataclass(frozen=True)
class RankStop:
    """Asks one rank to stop: its owner or a signal wants it, or the run was taken over."""

    request: StopSignal
    next_attempt: Path
    """Folder that exists as soon as another process owns the run."""

    def __bool__(self) -> bool:
        return bool(self.request)

    @property
    def installed(self) -> bool:
        """Whether this process's signals are ours."""
        return self.request.installed

    @property
    def lost(self) -> bool:
        """Whether another process owns the run now."""
        return self.next_attempt.exists()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as one rank of a run."""
    parser = argparse.ArgumentParser(prog="python -m harness.launch.ranks", description=__doc__)
    parser.add_argument("job", type=Path, help="job file that holds the run")
    parser.add_argument("run_id")
    parser.add_argument("attempt", type=int)
    parser.add_argument("--microbatch-seqs", type=int)
    options = parser.parse_args(arguments)
    request = StopSignal()
    request.install()
    threading.Thread(target=_heed_owner, args=(request,), daemon=True).start()
    rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
    store = _reach_store()
    try:
        _train(options, request, rank, store)
    except BaseException as error:
        traceback.print_exc()
        report(store, rank, error)
        sys.stdout.flush()
        os._exit(1)  # an orderly end would wait for ranks that are gone
    return 0


def _heed_owner(request: StopSignal) -> None:
    """Stop when the owner says so; end when it can no longer say anything."""
    while os.read(0, 64):
        request.requested = True
    os._exit(1)


def _reach_store() -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def _train(options: argparse.Namespace, request: StopSignal, rank: int, store: TCPStore) -> None:
    from torch.distributed import destroy_process_group

    from harness.distributed import join
    from harness.training import train

    job = read_job(options.job)
    run = next(run for run in job.runs if run.run_id == options.run_id)
    paths = SweepPaths(job.sweep_dir).run(run.run_id)
    stop = RankStop(request, paths.attempt(options.attempt + 1))
    join(rank, job.execution.devices * job.execution.nodes, store)
    record = train(
        run, job.sweep, paths, job.execution, stop, options.attempt, options.microbatch_seqs
    )
    if record is not None:
        store.set("record", record.model_dump_json())
    elif request.signal is not None:
        store.set("signal", str(int(request.signal)))
    destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
