"""Real stores for the MLflow tests: a PostgreSQL of our own, tracking servers, a bad connection."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

PATIENCE_S = 120.0
REQUIRED = "ISOLOSS_REQUIRE_POSTGRES"


def wait_for(condition: Callable[[], object], what: str = "waited in vain") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Postgres:
    """A private PostgreSQL that listens on a socket in its own folder only."""

    folder: Path
    programs: Path
    process: subprocess.Popen[bytes] | None = None

    def _as_its_user(self) -> dict[str, object]:
        """PostgreSQL refuses to run as root."""
        owner = self.folder.stat()
        if os.geteuid() or owner.st_uid == 0:
            return {}
        return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}

    def command(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            **self._as_its_user(),  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr

    def create(self) -> None:
        self.command("initdb", "-D", "data", "-A", "trust", "-U", "postgres", "--no-sync")

    def start(self) -> None:
        options = ["listen_addresses=", f"unix_socket_directories={self.folder}", "fsync=off"]
        command = [str(self.programs / "postgres"), "-D", "data"]
        for option in options:
            command += ["-c", option]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_its_user(),  # type: ignore[call-overload]
            )
        wait_for(self._is_ready, "PostgreSQL does not start")

    def _is_ready(self) -> bool:
        ask = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(ask).returncode == 0

    def stop(self) -> None:
        """End it at once, as a crash does; it recovers when it is started again."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(PATIENCE_S)
            self.process = None

    def new_database(self, name: str, template: str = "template1") -> str:
        """Create a database; return its URI."""
        access = ["-h", str(self.folder), "-U", "postgres"]
        self.command("createdb", *access, "-T", template, name)
        return f"postgresql+psycopg2://postgres@/{name}?host={self.folder}"


def postgres_programs() -> Path:
    """Folder of PostgreSQL's programs."""
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda p: float(p.split("/")[-2]))
    found = shutil.which("initdb")
    if not places and not found:
        _absent("PostgreSQL is not installed: apt-get install postgresql")
    return Path(places[-1]) if places else Path(str(found)).resolve().parent


def postgres_driver() -> ModuleType:
    """The module psycopg2."""
    if find_spec("psycopg2") is None:
        _absent("psycopg2 is not installed: the dev extra brings psycopg2-binary")
    return import_module("psycopg2")


def _absent(reason: str) -> NoReturn:
    """Skip, with the reason; fail where PostgreSQL is required."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    pytest.skip(reason)


def unprivileged() -> pwd.struct_passwd:
    """User for a PostgreSQL that root starts."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


@contextlib.contextmanager
def private_postgres() -> Iterator[Postgres]:
    programs = postgres_programs()
    folder = Path(tempfile.mkdtemp(prefix="isoloss-pg-", dir="/tmp"))  # paths of sockets are short
    if os.geteuid() == 0:
        user = unprivileged()
        os.chown(folder, user.pw_uid, user.pw_gid)
    database = Postgres(folder, programs)
    try:
        database.create()
        database.start()
        yield database
    finally:
        database.stop()
        shutil.rmtree(folder)


@dataclass
class TrackingServer:
    """``mlflow server`` over a store, which can be killed and started again."""

    store_uri: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if self.process is not None:
            return
        quiet = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self.store_uri]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **quiet},
            )
        wait_for(self._is_healthy, "the tracking server does not start")

    def _is_healthy(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """End the server and its workers without asking."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


Treatment = Callable[[int, str], "str | float"]
"""What happens to the n-th request (from 0) of a path: ``pass``, ``lose`` (its answer), or seconds
for which it is held back before the server sees it."""


class BadConnection:
    """Stands before a server and treats requests badly."""

    def __init__(self, port: int, treatment: Treatment) -> None:
        self.port, self.treatment = port, treatment
        self.seen: list[str] = []
        self._lock = threading.Lock()
        connection = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    connection.carry(self)

        self.proxy = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.proxy.daemon_threads = True
        self.thread = threading.Thread(target=self.proxy.serve_forever, args=(0.05,))

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.proxy.server_address[1]}"

    def __enter__(self) -> BadConnection:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.shutdown()
        self.thread.join()
        self.proxy.server_close()

    def carry(self, client: socketserver.StreamRequestHandler) -> None:
        """Carry one request there and its answer back; connections are not used again."""
        first = client.rfile.readline()
        if not first:
            return
        headers = [line for line in iter(client.rfile.readline, b"\r\n") if line]
        length = next(
            (int(h.split(b":")[1]) for h in headers if h.lower().startswith(b"content-length")), 0
        )
        body = client.rfile.read(length)
        kept = [line for line in headers if not line.lower().startswith(b"connection:")]
        request = b"".join([first, *kept, b"Connection: close\r\n\r\n", body])
        with self._lock:
            path = first.split()[1].decode().partition("?")[0]
            treatment = self.treatment(self.seen.count(path), path)
            self.seen.append(path)
        if isinstance(treatment, float):
            time.sleep(treatment)
        answer = self._ask(request)
        if treatment != "lose":
            client.wfile.write(answer)

    def _ask(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port)) as server:
            server.sendall(request)
            return b"".join(iter(lambda: server.recv(65536), b""))
