"""Whether a results folder can be trusted: rights, operations, room, and the clocks.

Leases need a rename that fails where a folder is in the way, and a file system whose time moves;
records need a rename that replaces. All of it is tried in a scratch folder that is removed again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness.filesystem import filesystem_of
from harness.findings import Finding
from harness.lease import fs_now

LEAST_BYTES = 1_000_000_000
"""Below this much free space a small sweep with its checkpoints may not fit."""
LEAST_FILES = 20_000
"""A run leaves some twenty files; so many fit a sweep of a thousand."""
MOST_SKEW_S = 2.0
"""Clocks further apart than this make times in logs misleading."""


def examine_folder(what: str, folder: Path) -> list[Finding]:
    """Check a folder that files will be written to; where it is missing, its nearest parent."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".isoloss-doctor-", dir=existing) as scratch:
            wrong = _wrong_operation(Path(scratch))
            clock = _clock(Path(scratch))
    except OSError as error:
        return [Finding("FAIL", what, f"{existing} cannot be written: {error.strerror}. {_MEND}")]
    if wrong is not None:
        advice = "Use a folder on another file system (--results)."
        return [Finding("FAIL", what, f"{existing}: {wrong}. {advice}")]
    room = os.statvfs(existing)
    return [
        _place(what, folder, existing),
        *space(room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None),
        clock,
        permissions(_umask(), existing.stat().st_mode),
    ]


_MEND = "Give yourself the right to write there, or name another folder (--results)."


def _existing(folder: Path) -> Path:
    resolved = folder.resolve()
    return next(path for path in (resolved, *resolved.parents) if path.exists())


def _place(what: str, folder: Path, existing: Path) -> Finding:
    place = filesystem_of(existing)
    state = "is writable" if existing == folder.resolve() else "can be created"
    kind = f"{place.type}{', a network file system' if place.is_network else ''}"
    return Finding("ok", what, f"{folder.resolve()} {state}; on {kind}, mounted at {place.mount}")


def _wrong_operation(scratch: Path) -> str | None:
    """What the file system does not do as it must; None if all is well."""
    first, second = scratch / "first", scratch / "second"
    for folder in (first, second):
        folder.mkdir()
        _write_durably(folder / "owner", folder.name)
    if _succeeds(lambda: first.mkdir()):
        return "a folder can be made twice"
    if _succeeds(lambda: first.rename(second)):
        return "renaming a folder replaces another that is not empty"
    os.replace(first / "owner", second / "owner")
    if (second / "owner").read_text(encoding="utf-8") != "first" or (first / "owner").exists():
        return "renaming a file does not replace the other"
    os.utime(second / "owner", (0, 0))
    os.utime(second / "owner")
    if (second / "owner").stat().st_mtime <= 0:
        return "touching a file does not change its time"
    return None


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def space(free_bytes: int, free_files: int | None) -> list[Finding]:
    """Judge free space in bytes and free inodes (None: the file system has no limit)."""
    advice = "Free some, or name another folder (--results)."
    enough = free_bytes >= LEAST_BYTES
    text = f"{free_bytes / 1e9:.1f} GB free{'' if enough else f'. {advice}'}"
    findings = [Finding("ok" if enough else "FAIL", "disk", text)]
    if free_files is not None and free_files < LEAST_FILES:
        findings.append(Finding("FAIL", "inodes", f"room for {free_files:,} files only. {advice}"))
    return findings


def _clock(scratch: Path) -> Finding:
    before = time.time()
    there = fs_now(scratch)
    return clock(before, there, time.time())


def clock(before: float, there: float, after: float) -> Finding:
    """Judge the file system's time, taken between two looks at this machine's; all in seconds."""
    skew_s = there - min(max(there, before), after)
    if abs(skew_s) <= MOST_SKEW_S:
        return Finding("ok", "clock", f"within {MOST_SKEW_S:.0f} s of the file system's")
    side = "behind" if skew_s > 0 else "ahead of"
    return Finding(
        "note",
        "clock",
        f"this machine's is {abs(skew_s):.1f} s {side} the file system's. Leases go by the file "
        "system's, so runs are safe; times in logs are off. Set it by NTP (timedatectl).",
    )


def _umask() -> int:
    """The process's umask; changed for an instant where the kernel does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, StopIteration):
        mask = os.umask(0o022)
        os.umask(mask)
        return mask


def permissions(umask: int, folder_mode: int) -> Finding:
    """Judge what others may do with the files that will be written into a folder of that mode."""
    shown = f"umask {umask:03o}"
    if umask & 0o700:
        text = f"{shown} shuts you out of your own files. Run: umask 022"
        return Finding("FAIL", "permissions", text)
    if folder_mode & 0o020 and umask & 0o020:
        text = (
            f"the folder is open to its group, but with {shown} the group cannot continue your "
            "runs. If it should: umask 002, and chmod g+s on the folder"
        )
        return Finding("note", "permissions", text)
    who = "only you" if umask & 0o044 == 0o044 else "others"
    return Finding("ok", "permissions", f"{shown}: {who} can read what is written")
