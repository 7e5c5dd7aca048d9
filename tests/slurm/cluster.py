"""A throwaway Slurm cluster on one machine: real daemons, one folder, free ports, no root needed.

    with Cluster(Settings(nodes=2)) as slurm:
        os.environ["SLURM_CONF"] = slurm.environment["SLURM_CONF"]

It starts in 0.3 s, with accounting in 3 s. Several can be up at once. What Slurm itself makes slow:
its controller looks at time limits and warning signals each 30 s, and limits count in minutes.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tests.slurm import configuration
from tests.slurm.configuration import Settings, Site
from tests.slurm.install import HOW, find
from tests.slurm.processes import (
    ClusterError,
    Daemons,
    free_ports,
    is_listening,
    kill_all,
    of_cluster,
    wait,
)

GOOD_NODE_STATES = {"idle", "mixed", "allocated", "completing"}


class Cluster:
    """One cluster, in a folder of its own under /tmp (Unix sockets allow 100 characters)."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        folder = Path(tempfile.mkdtemp(prefix="isoloss-slurm-", dir="/tmp"))
        folder.chmod(0o755)
        names = ["slurmctld", "slurmdbd", "mariadb", *self.settings.node_names()]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        host = socket.gethostname().split(".")[0]
        self.site = Site(folder, host, pwd.getpwuid(os.geteuid()).pw_name, ports)
        self.configuration = folder / "etc" / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.configuration)}
        """What a client of this cluster needs to be told."""
        self.daemons = Daemons(folder, self.environment)

    @property
    def folder(self) -> Path:
        """Everything that the cluster writes."""
        return self.site.folder

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> None:
        """Start everything; stop it again if one part does not start."""
        try:
            self._write_configuration()
            self._start_munged()
            if self.settings.accounting:
                self._start_mariadb()
                self._start_slurmdbd()
            self.start_slurmctld(wait_for_nodes=False)
            for node in self.settings.node_names():
                self._start_slurmd(node)
            self._wait_for_nodes(self.settings.node_names())
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Cancel the jobs, stop the daemons in order, delete the folder."""
        if self.daemons.pid("slurmctld"):
            # What still runs is killed below.
            with suppress(ClusterError, subprocess.SubprocessError):
                self.clear()
        last = ["slurmctld", "slurmdbd", "mariadbd", "munged"]
        for name in [name for name in self.daemons.children if name not in last] + last:
            self.daemons.stop(name)
        kill_all(of_cluster(self.folder, self.configuration))
        shutil.rmtree(self.folder, ignore_errors=True)

    # Faults

    def node_kill(self, node: str, *, noticed: bool = False) -> None:
        """Let a node lose power: its slurmd and all that ran on it are gone at once.

        The controller misses it some 20 to 40 s later, or now if ``noticed``. Then the node is DOWN
        and its jobs are requeued, or NODE_FAIL if submitted with ``--no-requeue``.
        """
        self.daemons.kill(node)
        kill_all(of_cluster(self.folder, self.configuration, node))
        if noticed:
            self._mark_down(node)

    def node_up(self, node: str) -> None:
        """Boot a killed node again."""
        # A job that died with the node before the controller missed it would else stay RUNNING for
        # minutes, a ghost.
        self._mark_down(node)
        self._start_slurmd(node)
        self._wait_for_nodes([node])

    def _mark_down(self, node: str) -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def stop_slurmctld(self) -> None:
        """Take the controller away; jobs run on."""
        self.daemons.stop("slurmctld")

    def start_slurmctld(self, *, wait_for_nodes: bool = True) -> None:
        """Start the controller; it takes up the state that it left."""
        self.daemons.start("slurmctld", "slurmctld", "-D")
        self.daemons.wait_ready("slurmctld", self._answers)
        if wait_for_nodes:
            self._wait_for_nodes(self.settings.node_names())

    def restart_slurmctld(self) -> None:
        """Stop and start the controller: jobs must survive."""
        self.stop_slurmctld()
        self.start_slurmctld()

    @contextmanager
    def hung_slurmctld(self) -> Iterator[None]:
        """Let the controller accept connections and answer none, for a while."""
        pid = self.daemons.pid("slurmctld")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _answers(self) -> bool:
        return self.run("scontrol", "ping", check=False).stdout.strip().endswith("UP")

    # Help for tests

    def run(
        self,
        *command: str,
        check: bool = True,
        timeout_s: float = 60.0,
        cwd: Path | None = None,
        script: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's against this cluster."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment},
            check=check,
            timeout=timeout_s,
            text=True,
            capture_output=True,
            cwd=cwd,
            input=script,
        )

    def sbatch(self, *arguments: str, script: str | None = None) -> str:
        """Submit, from a folder that goes with the cluster; return the job id."""
        command = ("sbatch", "--parsable", *arguments)
        done = self.run(*command, cwd=self.folder / "work", script=script)
        return done.stdout.strip().split(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """Fields of `scontrol show job` (of the first task of an array)."""
        text = self.run("scontrol", "-o", "show", "job", job_id).stdout.splitlines()[0]
        return dict(item.split("=", 1) for item in text.split() if "=" in item)

    def wait_state(self, job_id: str, *states: str, patience_s: float = 60.0) -> str:
        """Wait until the job is in one of the states; return which."""
        seen = ""

        def reached() -> bool:
            nonlocal seen
            seen = self.job(job_id)["JobState"]
            return seen in states

        if not wait(reached, patience_s, pause_s=0.1):
            raise ClusterError(f"job {job_id} is {seen}, not {' or '.join(states)}")
        return seen

    def wait_for(self, condition: Callable[[], bool], patience_s: float = 30.0) -> None:
        """Wait for anything; name the jobs when it does not come."""
        if not wait(condition, patience_s):
            raise ClusterError("waited in vain; the jobs:\n" + self.run("squeue").stdout)

    def wait_empty(self, patience_s: float = 30.0) -> None:
        """Wait until no job is queued or running."""
        self.wait_for(lambda: not self.run("squeue", "-h", "-a").stdout.strip(), patience_s)

    def clear(self) -> None:
        """Cancel every job and wait until the nodes are free again."""
        self.run("scancel", f"--user={self.site.user}", check=False)
        self.wait_empty()

    # Start

    def _write_configuration(self) -> None:
        for name in ("etc", "log", "munge", "run", "state", "spool", "work"):
            (self.folder / name).mkdir()
        for node in self.settings.node_names():
            (self.folder / "spool" / node).mkdir()
        self._write("etc/slurm.conf", configuration.slurm_conf(self.settings, self.site))
        self._write("etc/gres.conf", configuration.gres_conf(self.settings))
        self._write("etc/cgroup.conf", "CgroupPlugin=cgroup/v1\n")

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.folder / name
        path.touch(mode=mode)
        path.chmod(mode)
        path.write_text(text)

    def _start_munged(self) -> None:
        folder = self.folder / "munge"
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        folder.chmod(0o711)  # munged refuses a group-writable one
        files = {"pid": "run/munged.pid", "log": "log/munged.log", "seed": "munge/seed"}
        options = [f"--{kind}-file={self.folder / file}" for kind, file in files.items()]
        options += [f"--key-file={key}", f"--socket={self.site.munge_socket}"]
        self.daemons.start("munged", "munged", "--foreground", *options)
        self.daemons.wait_ready("munged", self.site.munge_socket.is_socket)

    def _start_mariadb(self) -> None:
        data, user, port = self.folder / "db", self.site.user, self.site.ports["mariadb"]
        # --debug-no-sync: no fsync, which is most of the time that a new database takes
        options = [f"--datadir={data}", f"--user={user}", "--innodb-buffer-pool-size=32M"]
        options += ["--innodb-log-file-size=8M", "--debug-no-sync"]
        data.mkdir(mode=0o700)
        self._create_database(options)
        password = secrets.token_hex(16)
        start = f"""\
CREATE DATABASE slurm_acct_db;
CREATE USER slurm@'%' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO slurm@'%';
"""
        self._write("etc/init.sql", start, mode=0o600)
        # slurmdbd insists on this mode and on SlurmUser as the owner
        self._write("etc/slurmdbd.conf", configuration.slurmdbd_conf(self.site, password), 0o600)
        options += [f"--port={port}", "--bind-address=127.0.0.1", "--skip-log-bin"]
        options += [f"--socket={self.folder}/run/db.sock", f"--pid-file={self.folder}/run/db.pid"]
        options += [f"--init-file={self.folder}/etc/init.sql", "--skip-name-resolve"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"]
        self.daemons.start("mariadbd", "mariadbd", "--no-defaults", *options)
        self.daemons.wait_ready("mariadbd", lambda: is_listening(port))

    def _create_database(self, options: list[str]) -> None:
        tool = find("mariadb-install-db")
        if tool is None:
            raise ClusterError(f"mariadb-install-db is not installed: {HOW}")
        options = [*options, "--auth-root-authentication-method=socket", "--skip-test-db"]
        options += [f"--auth-root-socket-user={self.site.user}"]
        with (self.folder / "log" / "mariadb-install.log").open("wb") as log:
            subprocess.run([tool, "--no-defaults", *options], stdout=log, stderr=log, check=True)

    def _start_slurmdbd(self) -> None:
        self.daemons.start("slurmdbd", "slurmdbd", "-D")
        port = self.site.ports["slurmdbd"]
        self.daemons.wait_ready("slurmdbd", lambda: is_listening(port))

    def _start_slurmd(self, node: str) -> None:
        self.daemons.start(node, "slurmd", "-D", "-N", node)

    def _wait_for_nodes(self, nodes: list[str]) -> None:
        """Until the controller calls them idle (or busy), and not unknown or down."""

        def ready() -> bool:
            command = ("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N %T")
            lines = self.run(*command, check=False).stdout.splitlines()
            states = dict(line.split() for line in lines)
            if any(state.startswith("inval") for state in states.values()):
                raise ClusterError(f"node refused:\n{self.daemons.last_words('slurmctld')}")
            return set(states) == set(nodes) and set(states.values()) <= GOOD_NODE_STATES

        self.daemons.wait_ready(nodes[-1], ready)
