"""Equal failures, noticed at once: what failed alike, and which runs are therefore not started.

Every failure leaves a line in ``failures.jsonl``; a line counts as long as its run's record says
``failed``, so that ``isoloss retry`` takes it back. Asked before every claim, so it reads only what
changed. Loads no torch.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.paths import SweepPaths
from harness.records import PlannedRun

EQUAL_FAILURES = 3
"""Runs that may fail alike, by default (``execution.equal_failures``)."""
MAX_SIGNATURE = 200
"""Characters of a signature."""
RESCAN_S = 30.0
"""Seconds before records are looked through again for results of the same arms."""
_REPLACED = (
    (re.compile(r"(?<![\w/#<>.])(?:/[^\s/'\",:;()\[\]]+)+/?"), "<path>"),
    (re.compile(r"(?<![\w/<>])[\w.+-]+(?:/[\w.+@=-]+){2,}"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "#"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "#"),
    (re.compile(r"\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"(?<![A-Za-z_0-9])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?"), "#"),
    (re.compile(r"#(?:\s*[,x×]\s*#)+"), "#"),
)


def signature(error: str) -> str:
    """Reduce an error to what equal failures share: paths, ids and numbers are taken out.

    Parameters
    ----------
    error
        ``Class: message`` in one line, with or without ``failed:`` before it.
    """
    text = " ".join(error.split()).removeprefix("failed: ")
    for pattern, stand_in in _REPLACED:
        text = pattern.sub(stand_in, text)
    return text if len(text) <= MAX_SIGNATURE else text[: MAX_SIGNATURE - 1].rstrip() + "…"


@dataclass(frozen=True)
class Failure:
    """One line of ``failures.jsonl``."""

    run_id: str
    arm: str
    signature: str
    attempt: int
    at: float
    """Unix time."""


def record_failure(paths: SweepPaths, run: PlannedRun, error: str, attempt: int) -> None:
    """Note that an attempt at ``run`` failed with ``error``, for all who work on the sweep.

    Raises
    ------
    OSError
        The sweep's folder cannot be written.
    """
    row = {
        "run_id": run.run_id,
        "arm": run.arm,
        "signature": signature(error),
        "attempt": attempt,
        "at": time.time(),
    }
    # The line break before keeps a line that a kill tore from swallowing this one.
    line = f"\n{json.dumps(row)}\n".encode()
    handle = os.open(paths.failures, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def equal_failures(paths: SweepPaths) -> dict[str, list[str]]:
    """Ids of the runs that stand as failed, by signature, most frequent first."""
    return _alike(_log(paths.root).standing())


def open_breaker(paths: SweepPaths, limit: int) -> str | None:
    """Say why no further run of the sweep is started; None while it may go on.

    Parameters
    ----------
    limit
        So many runs may fail alike.
    """
    return _broken(_log(paths.root), _log(paths.root).standing(), limit)


def held_arms(paths: SweepPaths) -> dict[str, str]:
    """Arms of which a run failed and none has a result yet, with the reason to hold them."""
    return _held(_log(paths.root), _log(paths.root).standing())


def hold_reason(paths: SweepPaths, run: PlannedRun, limit: int) -> str | None:
    """Say why ``run`` should not be started now; None when it should.

    Takes well under a millisecond while nothing changes.

    Parameters
    ----------
    limit
        So many runs of the sweep may fail alike (``execution.equal_failures``).
    """
    log = _log(paths.root)
    standing = log.standing()
    if not standing:
        return None
    return _broken(log, standing, limit) or _held(log, standing).get(run.arm)


def _alike(standing: Sequence[Failure]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for failure in standing:
        found.setdefault(failure.signature, []).append(failure.run_id)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _broken(log: FailureLog, standing: Sequence[Failure], limit: int) -> str | None:
    for alike, runs in _alike(standing).items():
        if len(runs) >= limit:
            return (
                f"{len(runs)} runs failed alike ({alike}); no further run is started. Mend the "
                f"cause, then: isoloss retry {log.sweep}"
            )
    return None


def _held(log: FailureLog, standing: Sequence[Failure]) -> dict[str, str]:
    failed = {failure.arm: failure for failure in standing}
    proven = log.arms_with_result(set(failed))
    return {
        arm: f"run {failure.run_id} of arm {arm} failed ({failure.signature}) and none of the arm "
        f"has a result yet. Mend the cause, then: isoloss retry {log.sweep}"
        for arm, failure in failed.items()
        if arm not in proven
    }


class FailureLog:
    """The failures of one sweep, read again only where a file has changed."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self.sweep = paths.root.name
        self._file = str(paths.failures)
        self._key: tuple[int, int] | None = None
        self._records: dict[str, str] = {}
        self._rows: dict[str, Failure] = {}
        self._failed: dict[str, tuple[tuple[int, int], bool]] = {}
        self._settled: set[str] = set()
        self._proven: set[str] = set()
        self._scanned_at = -RESCAN_S
        self._scanned_for: set[str] = set()

    def rows(self) -> dict[str, Failure]:
        """Return the newest failure of every run that ever failed."""
        try:
            found = os.stat(self._file)
        except OSError:
            self._key, self._rows, self._records = None, {}, {}
            return self._rows
        key = (found.st_mtime_ns, found.st_size)
        if key != self._key:
            self._rows = {failure.run_id: failure for failure in _read(self.paths.failures)}
            self._records = {run_id: str(self.paths.run(run_id).record) for run_id in self._rows}
            self._key = key
        return self._rows

    def standing(self) -> list[Failure]:
        """Return the failures whose run's record says failed, oldest first."""
        rows = self.rows()
        return [failure for run_id, failure in rows.items() if self._is_failed(run_id)]

    def _is_failed(self, run_id: str) -> bool:
        record = self._records[run_id]
        try:
            found = os.stat(record)
        except OSError:
            return False
        key = (found.st_mtime_ns, found.st_ino)
        known = self._failed.get(run_id)
        if known is None or known[0] != key:
            known = (key, _outcome(Path(record))[1] == "failed")
            self._failed[run_id] = known
        return known[1]

    def arms_with_result(self, arms: set[str]) -> set[str]:
        """Those of ``arms`` of which a run is done or diverged."""
        now, missing = time.monotonic(), arms - self._proven
        if missing and (not missing <= self._scanned_for or now - self._scanned_at >= RESCAN_S):
            self._scanned_at, self._scanned_for = now, missing
            self._scan()
        return arms & self._proven

    def _scan(self) -> None:
        for run_id in set(os.listdir(self.paths.runs)) - self._settled:
            arm, status = _outcome(self.paths.run(run_id).record)
            if status in ("done", "diverged"):
                self._settled.add(run_id)
                self._proven.add(arm)


@functools.lru_cache(maxsize=64)
def _log(root: Path) -> FailureLog:
    return FailureLog(SweepPaths(root))


def _outcome(record: Path) -> tuple[str, str]:
    """Arm and status of a record; empty where there is none to be read."""
    try:
        about = json.loads(record.read_bytes())
        return str(about["arm"]), str(about["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def _read(path: Path) -> Iterator[Failure]:
    """Lines of the log; what a kill tore is left out."""
    for line in path.read_bytes().splitlines():
        try:
            yield Failure(**json.loads(line))
        except (ValueError, TypeError):
            continue
