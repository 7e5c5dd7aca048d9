"""One owner per run: an advisory file lock that the system releases when its holder dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def claim(lock: Path) -> Iterator[bool]:
    """Try to become the owner; yield whether it worked, without waiting."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = FileLock(lock)
    try:
        handle.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        handle.release()


def is_claimed(lock: Path) -> bool:
    """Whether a live process holds the lock."""
    if not lock.exists():
        return False
    with claim(lock) as free:
        return not free
