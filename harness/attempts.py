"""The tries at one run: how one begins, and what the earlier ones say about the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.holder import this_process
from harness.lease import Lease, read_end
from harness.paths import RunPaths
from harness.recording import utc_now
from harness.records import end_torn_line, write_text_atomically

LIVES = 5
"""Attempts in a row that may die without a word and without a checkpoint before a run is given
up."""


def open_attempt(
    paths: RunPaths, lease: Lease, *, first_step: int, facts: Mapping[str, Any]
) -> int:
    """Begin the try that ``lease`` stands for: say what executes it, mend files that a kill tore.

    Parameters
    ----------
    first_step
        Step of the checkpoint that it goes on from; 0 at the start.
    facts
        What executes it: code, libraries, hardware.

    Returns
    -------
    int
        Its number.
    """
    me = this_process()
    about = {
        "attempt": lease.number,
        "host": me.host,
        "pid": me.pid,
        "slurm_job": me.job,
        "started_at": utc_now(),
        "first_step": first_step,
        **facts,
    }
    write_text_atomically(lease.folder / "attempt.json", json.dumps(about, indent=2) + "\n")
    for file in (paths.metrics, paths.diagnostics):
        end_torn_line(file)
    return lease.number


def deaths_without_progress(paths: RunPaths, before: int, step: int) -> int:
    """Attempts right before number ``before`` that died without a word and saved nothing.

    Parameters
    ----------
    step
        Step of the newest checkpoint: an attempt that began below it has made progress.
    """
    deaths = 0
    for number in range(before - 1, 0, -1):
        folder = paths.attempt(number)
        how = (read_end(folder) or {"how": "killed"})["how"]
        if how != "killed" or _first_step(paths, number) not in (step, None):
            break
        deaths += 1
    return deaths


def _first_step(paths: RunPaths, number: int) -> int | None:
    """Step from which an attempt went on; None when it died before it could say so."""
    step = read_attempt(paths, number).get("first_step")
    return step if isinstance(step, int) else None


def read_attempt(paths: RunPaths, number: int) -> dict[str, Any]:
    """What an attempt says of itself; empty when it says nothing (yet)."""
    try:
        about = json.loads((paths.attempt(number) / "attempt.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def forgive_deaths(paths: RunPaths) -> None:
    """Close the newest attempt if it died, so that the deaths so far no longer count."""
    folder = paths.attempt(paths.n_attempts())
    if folder.is_dir() and read_end(folder) is None:
        write_text_atomically(folder / "end.json", json.dumps({"how": "retried"}) + "\n")


def microbatch_after_oom(paths: RunPaths, before: int) -> int | None:
    """Half of the smallest micro-batch, in sequences, that an earlier attempt had no memory for.

    None when none ran out of memory.
    """
    ends = (read_end(paths.attempt(number)) or {} for number in range(1, before))
    tried = [int(end["microbatch_seqs"]) for end in ends if end.get("how") == "out_of_memory"]
    return max(1, min(tried) // 2) if tried else None
