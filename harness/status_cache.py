"""What is known of runs that no longer move, so that looking at thousands of them stays cheap.

An entry vouches for one file (the record of an ended run, the attempts folder of one at rest) as it
was: once that file differs, the entry is worth nothing. Losing the cache loses nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path

from harness.paths import SweepPaths
from harness.records import Status, write_text_atomically

VERSION = 1
"""Of the cache file; another one is ignored."""
WORTH_SAVING = 100
"""So many new entries are written down; fewer are read again faster than written."""
SAVE_EVERY_S = 30.0
"""Seconds between two writes of one watch."""
StatKey = tuple[int, int, int]
"""Modification time in ns, size, inode."""


@dataclass(frozen=True, slots=True)
class Known:
    """State of a run that has ended, or rests between two attempts."""

    key: StatKey
    """Of the file that says so."""
    status: Status
    step: int
    loss_nats: float | None
    step_time_s: float | None
    attempts: int
    reason: str | None
    recipe_sha256: str | None


_VALUES = attrgetter(*(field.name for field in fields(Known)))


def stat_key(path: Path | str) -> StatKey | None:
    """Return what changes when a file is replaced; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


class StatusCache:
    """Entries by run id, kept in one file beside the sweep."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self._known = _load(paths.status_cache)
        self._new = 0
        self._saved_at = -SAVE_EVERY_S

    def get(self, run_id: str, key: StatKey) -> Known | None:
        """Return what is known, if it was read from the file as it is now."""
        known = self._known.get(run_id)
        return known if known is not None and known.key == key else None

    def put(self, run_id: str, known: Known) -> None:
        """Remember a run."""
        if self._known.get(run_id) is not known:
            self._known[run_id] = known
            self._new += 1

    def save(self) -> None:
        """Write the cache when it has grown enough; silent where that is not allowed."""
        now = time.monotonic()
        if self._new < WORTH_SAVING or now - self._saved_at < SAVE_EVERY_S:
            return
        self._new, self._saved_at = 0, now
        entries = {run_id: _VALUES(known) for run_id, known in self._known.items()}
        text = json.dumps({"version": VERSION, "runs": entries})
        with contextlib.suppress(OSError):
            write_text_atomically(self.paths.status_cache, text)


def _load(path: Path) -> dict[str, Known]:
    try:
        text = json.loads(path.read_bytes())
        if text["version"] != VERSION:
            return {}
        return {
            i: Known((row[0][0], row[0][1], row[0][2]), *row[1:]) for i, row in text["runs"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return {}
