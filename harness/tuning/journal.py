"""The journal that holds all searches of a sweep: opened by its one owner, mended after a kill.

Optuna appends one JSON line per operation and counts trials by position, so that a line torn by a
kill blocks every reader, and one lost in the middle would shift all that follow. ``optuna-dashboard
FILE`` opens it, while a search is at work, too.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import DataError

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

GRACE_S = 10
"""A lock that a killed process left behind is taken over after so many seconds."""


def open_journal(path: Path) -> tuple[JournalStorage, str | None]:
    """Open the journal, made where there is none; the caller holds the lease of the search.

    Returns
    -------
    tuple
        The storage, and what was mended, in one line.

    Raises
    ------
    DataError
        It is damaged before its end.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    optuna.logging.set_verbosity(logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    mended = mend(path)
    lock = JournalFileSymlinkLock(str(path), grace_period=GRACE_S)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock)), mended


def mend(path: Path) -> str | None:
    """Cut off what a kill left at the end of a journal; say what was cut, None for nothing.

    Raises
    ------
    DataError
        A line before the end is damaged.
    """
    if not path.exists():
        return None
    text = path.read_bytes()
    sound, n_lines = 0, 0
    for line in text.splitlines(keepends=True):
        if not _is_sound(line):
            break
        sound, n_lines = sound + len(line), n_lines + 1
    rest = text[sound:]
    if not rest:
        return None
    if any(_is_sound(line) for line in rest.splitlines(keepends=True)):
        raise DataError(
            f"{path}, line {n_lines + 1}: damaged, with sound lines after it. Move the file away "
            "and tune the grid again: trials that were trained are found by their runs"
        )
    with path.open("rb+") as stream:
        stream.truncate(sound)
    return f"{path}: {len(rest)} bytes of a line torn by a kill were cut off its end"


def _is_sound(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False
