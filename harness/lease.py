"""One owner at a time, on any file system, without a server: numbered terms of office.

Owning a thing (a run, the mirror of a sweep) means having made the next numbered folder of its
``terms`` folder. A rename makes it together with the owner's name, and of two that try, one fails:
that holds on local disks, NFS and Lustre alike, where advisory locks may not. The number is a
fencing token: whoever finds a higher one than its own has been replaced, and stops. A thread
touches ``heartbeat`` while the owner lives; ages are measured on the file system's clock, so that
hosts may disagree about the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import LeaseLost
from harness.holder import (
    Holder,
    holder_text,
    is_gone,
    is_succeeded_by,
    read_holder,
    this_process,
)
from harness.records import write_text_atomically

Liveness = Literal["free", "live", "silent", "dead"]
LEASE_S = 120.0
"""Seconds without a heartbeat after which a term may be taken over; twice as long as network file
systems may keep showing an old time (NFS: acregmax, acdirmax)."""
HEARTBEATS_PER_LEASE = 12
"""So many touches fit into a lease."""
KEPT_TERMS = 5
"""Terms that :func:`forget_old` keeps: a replaced owner finds its successor among them."""
LATE_BEATS = 3
"""After so many missed touches an owner counts as silent."""
HOLDER, HEARTBEAT, END = "holder.json", "heartbeat", "end.json"


@dataclass(frozen=True)
class Look:
    """What a glance at a terms folder tells."""

    number: int
    """Newest term; 0 when there was none."""
    liveness: Liveness
    """free: nobody, or ended in order. live: at work. silent: late, but not long enough to be
    replaced. dead: its process is gone, or was silent for a whole lease."""
    holder: Holder | None = None
    age_s: float = 0.0
    """Since its last heartbeat."""

    @property
    def taken(self) -> bool:
        """Whether somebody may still be at work."""
        return self.liveness in ("live", "silent")


def terms_of(terms: Path) -> list[int]:
    """Numbers of all terms, in order."""
    try:
        return sorted(int(name) for name in os.listdir(terms) if name.isdigit())
    except FileNotFoundError:
        return []


def look(terms: Path, now: float, *, lease_s: float = LEASE_S) -> Look:
    """Look who owns a thing, without touching anything.

    Parameters
    ----------
    terms
        Folder of the terms.
    now
        The file system's time, from :func:`fs_now`.
    lease_s
        Seconds of silence that end a term.
    """
    number = max(terms_of(terms), default=0)
    folder = terms / str(number)
    if not number or (folder / END).exists():
        return Look(number, "free")
    holder, age_s = read_holder(folder / HOLDER), now - _last_beat(folder)
    if age_s > lease_s or (holder is not None and is_gone(holder)):
        return Look(number, "dead", holder, age_s)
    late = age_s > LATE_BEATS * lease_s / HEARTBEATS_PER_LEASE
    return Look(number, "silent" if late else "live", holder, age_s)


def _last_beat(folder: Path) -> float:
    """Time of the last heartbeat; opening the file makes a network file system ask its server."""
    for path in (folder / HEARTBEAT, folder):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                return os.fstat(handle).st_mtime
            finally:
                os.close(handle)
    return 0.0


def _is_there(path: Path) -> bool | None:
    """Whether a path exists; None when the file system does not say."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return True


def fs_now(folder: Path) -> float:
    """Time of the file system that holds ``folder``, in seconds since the epoch.

    Taken from a file that is touched there: on a network file system that is the server's clock,
    the one that also stamps heartbeats. This host's clock where nothing can be written.
    """
    probe = folder / ".clock"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
        os.utime(probe)
        return probe.stat().st_mtime
    except OSError:
        return time.time()


def acquire(terms: Path, *, lease_s: float = LEASE_S) -> Lease | None:
    """Take the next term, if nobody at work holds the present one.

    Returns
    -------
    Lease or None
        The term, kept alive by a thread; None when another owner is, or may be, at work.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    terms.mkdir(parents=True, exist_ok=True)
    me, seen = this_process(), look(terms, fs_now(terms), lease_s=lease_s)
    replaced = seen.holder is not None and is_succeeded_by(seen.holder, me)
    if seen.taken and not replaced:
        return None
    folder = terms / str(seen.number + 1)
    scratch = terms / f".{folder.name}.{uuid.uuid4().hex}"
    scratch.mkdir()
    try:
        (scratch / HOLDER).write_text(holder_text(me), encoding="utf-8")
        (scratch / HEARTBEAT).touch()
        scratch.rename(folder)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if folder.exists():  # another was faster
            return None
        raise
    return Lease(terms, seen.number + 1, lease_s)


class Lease:
    """A term of office: kept alive by a thread until it is ended or lost."""

    def __init__(self, terms: Path, number: int, lease_s: float) -> None:
        self.terms, self.number, self.lease_s = terms, number, lease_s
        self.folder = terms / str(number)
        self._next = terms / str(number + 1)
        self._beaten = time.monotonic()
        self._lost = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {number}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether another owner has replaced this one, or may have: it could not be heard for a
        whole lease.
        """
        self._lost = (
            self._lost
            or _is_there(self._next) is True
            or _is_there(self.folder) is False  # pruned, with several successors
            or time.monotonic() - self._beaten > self.lease_s
        )
        return self._lost

    def check(self) -> None:
        """Confirm ownership.

        Raises
        ------
        LeaseLost
            It is gone.
        """
        if self.lost:
            raise LeaseLost(
                f"{self.folder}: term {self.number} was taken over by another process; nothing "
                "more is written here"
            )

    def _beat(self) -> None:
        while not self._stopped.wait(self.lease_s / HEARTBEATS_PER_LEASE):
            if self.lost:
                return
            with contextlib.suppress(OSError):
                os.listdir(self.terms)  # makes a network file system show a successor
                os.utime(self.folder / HEARTBEAT)
                self._beaten = time.monotonic()

    def end(self, how: str, **facts: Any) -> None:
        """Give the term up in order, saying how it ended; silent when it was lost before."""
        self._stopped.set()
        self._thread.join()
        if not self.lost:
            about = {"how": how, "ended_at": time.time(), **facts}
            write_text_atomically(self.folder / END, json.dumps(about, indent=2) + "\n")


def forget_old(terms: Path) -> None:
    """Remove all but the newest few terms, of a thing whose history nobody needs."""
    for number in terms_of(terms)[:-KEPT_TERMS]:
        shutil.rmtree(terms / str(number), ignore_errors=True)


def read_end(folder: Path) -> dict[str, Any] | None:
    """How a term ended; None for one that goes on, or whose owner died."""
    try:
        about = json.loads((folder / END).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None
