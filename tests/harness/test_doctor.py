"""`isoloss doctor`: each line tells the truth about this machine, and what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness import doctor_files
from harness.doctor import unused_gpu
from harness.doctor_files import examine_folder
from harness.doctor_mlflow import examine_mlflow
from harness.doctor_slurm import examine_slurm
from harness.findings import Finding


def levels(findings: list[Finding]) -> set[str]:
    return {finding.level for finding in findings}


def test_a_machine_without_slurm_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examine_slurm(tmp_path) == [
        Finding("ok", "slurm", "not here: runs stay on this machine")
    ]


def test_the_command_says_by_its_exit_code_that_something_fails(tmp_path: Path) -> None:
    code = "from harness.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--json", "--results", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": "file:/nowhere"},
    )
    assert done.returncode == 1, done.stderr
    found = {line["what"]: line for line in json.loads(done.stdout)}
    expected = {"python", "torch", "device", "results", "disk", "clock", "slurm", "mlflow"}
    assert expected <= set(found)
    assert [what for what, line in found.items() if line["level"] == "FAIL"] == ["mlflow"]
    assert found["mlflow"]["detail"].startswith("MLflow tracking URI 'file:/nowhere'")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_yet_is_tried_in_its_parent(tmp_path: Path) -> None:
    found = examine_folder("results", tmp_path / "a" / "b")
    assert levels(found) == {"ok"}
    assert "can be created" in found[0].detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/isoloss", "/sys"])
def test_a_folder_that_cannot_be_written_fails(folder: str) -> None:
    (only,) = examine_folder("results", Path(folder))
    assert only.level == "FAIL"
    assert "--results" in only.detail


def test_little_room_fails() -> None:
    assert levels(doctor_files.space(10**12, None)) == {"ok"}
    assert levels(doctor_files.space(10**12, 10**7)) == {"ok"}
    full, no_inodes = doctor_files.space(10**8, 100)
    assert (full.level, no_inodes.level) == ("FAIL", "FAIL")
    assert "0.1 GB free" in full.detail
    assert "100 files" in no_inodes.detail


@pytest.mark.parametrize(
    ("there", "level", "words"),
    [
        (1000.5, "ok", "within 2 s"),
        (1002.9, "ok", "within 2 s"),
        (1010.0, "note", "9.0 s behind the file system's"),
        (990.0, "note", "10.0 s ahead of the file system's"),
    ],
)
def test_clocks_that_disagree_are_told(there: float, level: str, words: str) -> None:
    found = doctor_files.clock(1000.0, there, 1001.0)
    assert found.level == level
    assert words in found.detail


@pytest.mark.parametrize(
    ("umask", "mode", "level", "words"),
    [
        (0o022, 0o755, "ok", "others can read"),
        (0o077, 0o755, "ok", "only you can read"),
        (0o022, 0o2775, "note", "umask 002"),
        (0o002, 0o2775, "ok", "others can read"),
        (0o700, 0o755, "FAIL", "umask 022"),
    ],
)
def test_a_umask_that_shuts_people_out_is_told(
    umask: int, mode: int, level: str, words: str
) -> None:
    found = doctor_files.permissions(umask, mode)
    assert found.level == level
    assert words in found.detail


SMI = """\
| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+------------|
"""


def test_a_gpu_that_torch_cannot_use_is_told_with_the_reason() -> None:
    assert unused_gpu(None, None, None) is None
    for torch_cuda, words in (
        (None, "built for CPUs"),
        ("13.0", "Update the driver"),
        ("12.8", "cannot use it"),
    ):
        found = unused_gpu(SMI, torch_cuda, None)
        assert found is not None
        assert found.level == "FAIL"
        assert "driver 535.104.05, CUDA up to 12.2" in found.detail
        assert words in found.detail
    hidden = unused_gpu(SMI, "12.2", "")
    assert hidden is not None
    assert hidden.level == "note"


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A web server that answers every request with ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/base/health" else 500)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://user:secret@127.0.0.1:{server.server_port}/base/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "level"), [(200, "ok"), (404, "ok"), (401, "ok"), (503, "FAIL")]
)
def test_an_mlflow_server_is_asked_for_its_health(
    status: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        found = examine_mlflow(tmp_path)
    assert found.level == level
    assert "secret" not in found.detail


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
@pytest.mark.parametrize("listens", [True, False])
def test_a_store_that_does_not_answer_fails(
    scheme: str, listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.doctor_mlflow.ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://u:secret@127.0.0.1:{port}/x")
        found = examine_mlflow(tmp_path)
    # A database is not spoken to: that it accepts connections is all that is looked at.
    assert found.level == ("ok" if listens and scheme == "postgresql" else "FAIL")
    if found.level == "FAIL":
        assert "isoloss sync" in found.detail
        assert "secret" not in found.detail


def test_the_local_mlflow_store_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert examine_mlflow(tmp_path).level == "ok"
    (tmp_path / "mlflow.db").write_text("this is no database, and long enough to be read as one")
    found = examine_mlflow(tmp_path)
    assert found.level == "FAIL"
    assert "Move it away" in found.detail
