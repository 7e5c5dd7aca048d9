"""Daemons of a test cluster as plain child processes, and the small things around processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.slurm.install import HOW, find

MARK = "ISOLOSS_TEST_CLUSTER"
"""Environment variable of every daemon of a cluster: its folder. A slurmstepd inherits it, so one
that outlived its slurmd can be told from anybody else's."""
PART = "ISOLOSS_TEST_CLUSTER_PART"
"""Environment variable: which daemon."""


class ClusterError(RuntimeError):
    """The cluster could not be started, or did not reach a state in time."""


class Daemons:
    """The daemons of one cluster by name, each in a session of its own.

    Parameters
    ----------
    folder
        The cluster's folder; logs go to ``log/<name>.stderr`` in it.
    environment
        What every daemon is told beside this process's own environment.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, tool: str, *arguments: str) -> None:
        """Start ``tool`` in its foreground form; it dies with this process, however that ends."""
        path = find(tool)
        if path is None:
            raise ClusterError(f"{tool} is not installed: {HOW}")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        environment = inherited | self.environment | {MARK: str(self.folder), PART: name}
        leash = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        with (self.folder / "log" / f"{name}.stderr").open("ab") as log:
            self.children[name] = subprocess.Popen(
                [*leash, path, *arguments],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pid(self, name: str) -> int | None:
        """Process id of a daemon while it lives."""
        child = self.children.get(name)
        return child.pid if child is not None and child.poll() is None else None

    def stop(self, name: str, patience_s: float = 20.0) -> None:
        """End a daemon: politely, then not."""
        child = self.children.get(name)
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGCONT)
        child.terminate()
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a daemon at once."""
        child = self.children.get(name)
        if child is not None and child.poll() is None:
            child.kill()
            child.wait(5)

    def wait_ready(self, name: str, ready: Callable[[], bool], patience_s: float = 60.0) -> None:
        """Wait until ``ready()``; fail with the daemon's last words when it died or took long."""
        wait(lambda: ready() or self.pid(name) is None, patience_s)
        if self.pid(name) is None or not ready():
            raise ClusterError(f"{name} did not start; its last words:\n{self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """End of a daemon's log."""
        text = ""
        for path in (self.folder / "log" / f"{name}{suffix}" for suffix in (".stderr", ".log")):
            if path.exists():
                text += "".join(path.read_text(errors="replace").splitlines(keepends=True)[-15:])
        return text


def of_cluster(folder: Path, configuration: Path, node: str | None = None) -> list[int]:
    """Processes of a cluster (of one node of it): slurmstepds, and what jobs run.

    A slurmstepd has its slurmd's environment. A job's processes have what slurmd gives a job,
    unless they cleared it.
    """
    found = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        environment = environment_of(pid)
        if environment.get(MARK) == str(folder):
            of_node = environment.get(PART)
        elif environment.get("SLURM_CONF") == str(configuration) and "SLURM_JOB_ID" in environment:
            of_node = environment.get("SLURMD_NODENAME")
        else:
            continue
        if pid != os.getpid() and node in (None, of_node):
            found.append(pid)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Environment that a process started with; empty if it is gone, a zombie, or not ours."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, v in pairs}


def kill_all(pids: list[int]) -> None:
    """SIGKILL to each."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait(condition: Callable[[], bool], patience_s: float, pause_s: float = 0.05) -> bool:
    """Wait for a condition; whether it came true in time."""
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
    return True


def free_ports(count: int) -> list[int]:
    """Different ports that are free just now.

    They lie below those that the kernel hands out by itself, so that none is taken by somebody's
    outgoing connection before a daemon has it.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randint(20000, 32000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in found:
                found.append(port)
    return found


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
