"""Ends of files that may be long: metrics, logs, what jobs print."""

from __future__ import annotations

import os
from pathlib import Path

TAIL_BYTES = 1 << 16
"""How much of a log is searched for its last words."""


def tail(path: Path, n_bytes: int = TAIL_BYTES) -> bytes:
    """Last ``n_bytes`` of a file.

    Raises
    ------
    OSError
        It cannot be read.
    """
    with path.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - n_bytes))
        return stream.read()


def last_lines(path: Path) -> list[str]:
    """Lines with something in them at the end of a log; none where it cannot be read."""
    try:
        text = tail(path).decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
