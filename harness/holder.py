"""Who a process is, so that others can tell whether it still lives: on this host at once, elsewhere
not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = ""
"""Where the system does not tell."""


@dataclass(frozen=True)
class Holder:
    """A process that owns something."""

    host: str
    pid: int
    pid_started: str = UNKNOWN
    """Start of the process in clock ticks since boot, so that a reused pid is told apart."""
    boot_id: str = UNKNOWN
    """Kernel's random id of this boot."""
    pid_namespace: str = UNKNOWN
    """Pids of two containers on one host mean different processes."""
    job: str | None = None
    """Slurm job, ``1234`` or ``1234_7``; None outside Slurm."""
    restart: int = 0
    """How often that job had been requeued."""

    def describe(self) -> str:
        """Host and process, and the job where there is one."""
        return f"{self.host}, job {self.job}" if self.job else f"{self.host}, process {self.pid}"


def this_process() -> Holder:
    """Identity of the calling process."""
    pid = os.getpid()
    return Holder(
        host=socket.gethostname(),
        pid=pid,
        pid_started=_process(pid)[1],
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        job=slurm_job(),
        restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    )


def slurm_job() -> str | None:
    """Slurm job of this process: ``1234_7`` for a task of an array; None outside Slurm."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def is_gone(holder: Holder) -> bool:
    """Whether the process is known to have ended; False when that cannot be seen from here."""
    if (holder.host, holder.boot_id, holder.pid_namespace) != _here():
        return holder.host == socket.gethostname() and _rebooted(holder)
    state, started = _process(holder.pid)
    if not state and not Path("/proc/self/stat").exists():
        return not _signal_reaches(holder.pid)
    return state in ("", "Z", "X") or started != holder.pid_started


def is_succeeded_by(holder: Holder, other: Holder) -> bool:
    """Whether ``other`` is a later start of the same Slurm job, which the scheduler gave its
    place.
    """
    return holder.job is not None and holder.job == other.job and holder.restart < other.restart


def _rebooted(holder: Holder) -> bool:
    return UNKNOWN not in (holder.boot_id, _boot_id()) and holder.boot_id != _boot_id()


def _here() -> tuple[str, str, str]:
    return (socket.gethostname(), _boot_id(), _pid_namespace())


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return UNKNOWN


@functools.cache
def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return UNKNOWN


def _process(pid: int) -> tuple[str, str]:
    """State letter and start time of a process; empty for one that does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ("", "")
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19])


def _signal_reaches(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def holder_text(holder: Holder) -> str:
    """A holder as JSON."""
    return json.dumps(dataclasses.asdict(holder), indent=2) + "\n"


def read_holder(path: Path) -> Holder | None:
    """Read a holder; None when the file is absent or damaged."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
