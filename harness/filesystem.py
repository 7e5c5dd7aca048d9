"""What kind of file system a path lies on, from the kernel's table of mounts.

SQLite needs locks that network file systems do not keep, and a lease needs a folder that all hosts
share. Elsewhere than on Linux nothing is known, and nothing is claimed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph"),
        *("glusterfs", "panfs", "orangefs", "pvfs2", "wekafs", "ocfs2", "gfs2", "davfs", "moosefs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.beegfs", "fuse.mfs"),
        *("fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys", "fuse.davfs"),
    }
)
"""Types behind which another machine, or several, keep the files."""
OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class FileSystem:
    """The file system of a path."""

    type: str
    """Kernel's name of the type, such as ``ext4`` or ``nfs4``; ``unknown`` where it does not
    tell."""
    mount: Path
    """Where it is mounted."""
    is_network: bool
    """Whether other hosts may have it mounted too."""


UNKNOWN = FileSystem("unknown", Path("/"), False)


def filesystem_of(path: Path) -> FileSystem:
    """File system that holds ``path``, or would hold it once it exists."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return UNKNOWN
    return parse_mounts(table, path.resolve())


def parse_mounts(table: str, path: Path) -> FileSystem:
    """Find the mount that holds ``path`` in a table of mounts.

    Parameters
    ----------
    table
        Lines as in ``/proc/self/mounts`` (proc(5)): source, mount point, type, options. Blanks in
        names are written as octal numbers. A later line hides an earlier one of the same place.
    path
        Absolute, without symbolic links.
    """
    found = UNKNOWN
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        source, mount, kind = _unescaped(fields[0]), Path(_unescaped(fields[1])), fields[2]
        longer = len(mount.parts) >= len(found.mount.parts)
        if longer and path.is_relative_to(mount):
            found = FileSystem(kind, mount, _is_network(kind, source))
    return found


def _is_network(kind: str, source: str) -> bool:
    """By the type, or by a source such as ``host:/export`` and ``//server/share``."""
    return kind in NETWORK_TYPES or source.startswith("//") or ":/" in source


def _unescaped(text: str) -> str:
    return OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
