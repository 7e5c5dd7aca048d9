"""The command line without its start: `isoloss` in a process forked from one that has imported it.

Importing torch takes longer than most commands do; a file of tests asks for dozens of them.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PYTHONPATH = os.environ.get("PYTHONPATH")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["harness.cli", "harness.plan"])


def isoloss(
    *arguments: str | Path, cwd: Path | None = None, timeout_s: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, as ``python -m harness.cli`` does in this environment.

    Where the environment names other code to import, a new interpreter imports it.
    """
    words = list(map(str, arguments))
    if os.environ.get("PYTHONPATH") != PYTHONPATH:
        command = [sys.executable, "-m", "harness.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        process = FORKS.Process(
            target=_command, args=(words, cwd or Path.cwd(), said, dict(os.environ))
        )
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout_s)
        texts = [file.read_text(encoding="utf-8") for file in said]
    return subprocess.CompletedProcess(words, process.exitcode, *texts)


def _command(
    words: list[str], cwd: Path, said: Sequence[Path], environment: Mapping[str, str]
) -> None:
    for number, file in enumerate(said, start=1):
        with file.open("wb") as stream:
            os.dup2(stream.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["isoloss", *words]
    from harness.cli import main

    main()
