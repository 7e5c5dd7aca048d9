"""What kind of file system a path lies on, and what that means for the MLflow mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import filesystem
from harness.errors import IsolossError
from harness.filesystem import UNKNOWN, FileSystem, filesystem_of, parse_mounts
from harness.paths import SweepPaths, sweep_paths
from harness.tracking import mirror_mode

# Lines as proc(5) describes them; from a login node, with the names changed.
TABLE = """\
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
proc /proc proc rw,nosuid 0 0
tmpfs /dev/shm tmpfs rw 0 0
filer.example.org:/vol/home /home nfs4 rw,vers=4.2,hard 0 0
10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch /scratch lustre rw,flock 0 0
gpfs1 /gpfs gpfs rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
me@host:/data /home/me/remote fuse.sshfs rw 0 0
/dev/sdb1 /home/local xfs rw 0 0
filer.example.org:/over /data nfs rw 0 0
/dev/sdc1 /data ext4 rw 0 0
overlay /var/lib/image overlay rw,lowerdir=/a:/b 0 0
host:/unheard /unheard newfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "mount", "is_network"),
    [
        ("/etc/passwd", "ext4", "/", False),
        ("/dev/shm/x", "tmpfs", "/dev/shm", False),
        ("/home/you/results", "nfs4", "/home", True),
        ("/homework", "ext4", "/", False),
        ("/scratch/you", "lustre", "/scratch", True),
        ("/gpfs/a", "gpfs", "/gpfs", True),
        ("/mnt/my share/a", "cifs", "/mnt/my share", True),
        ("/mnt/my", "ext4", "/", False),
        ("/home/me/remote/a", "fuse.sshfs", "/home/me/remote", True),
        ("/home/local", "xfs", "/home/local", False),
        ("/data/results", "ext4", "/data", False),
        ("/var/lib/image/x", "overlay", "/var/lib/image", False),
        ("/unheard/x", "newfs", "/unheard", True),
    ],
)
def test_the_deepest_and_newest_mount_above_a_path_is_its_file_system(
    path: str, kind: str, mount: str, is_network: bool
) -> None:
    assert parse_mounts(TABLE, Path(path)) == FileSystem(kind, Path(mount), is_network)


def test_lines_cut_short_tell_nothing() -> None:
    assert parse_mounts("\nnonsense\n/dev/sda /\n", Path("/tmp")) == UNKNOWN


def test_the_kernels_own_table_knows_where_proc_is(tmp_path: Path) -> None:
    assert filesystem_of(Path("/proc/1")).type == "proc"
    assert filesystem_of(tmp_path / "not" / "yet").type != "unknown"


def test_without_a_table_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "none")
    assert filesystem_of(tmp_path) == FileSystem("unknown", Path("/"), False)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepPaths:
    """A sweep whose results folder seems to lie on NFS."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    table = tmp_path / "mounts"
    table.write_text(f"/dev/sda1 / ext4 rw 0 0\nfiler:/x {tmp_path}/results nfs4 rw 0 0\n")
    monkeypatch.setattr(filesystem, "MOUNTS", table)
    return sweep_paths(tmp_path / "results", "depth")


def test_sqlite_on_a_network_file_system_is_mirrored_afterwards(sweep: SweepPaths) -> None:
    mode, notice = mirror_mode(sweep, "direct")
    assert mode == "sync"
    assert notice == (
        f"MLflow's store {sweep.mlflow_db} lies on a network file system (nfs4, mounted at "
        f"{sweep.root.parent}), where SQLite's locks are not safe: no mirror runs beside the "
        f"workers. Afterwards: isoloss sync {sweep.root}; or set MLFLOW_TRACKING_URI to a server."
    )


@pytest.mark.parametrize("mode", ["sync", "off"])
def test_a_mode_that_starts_nothing_is_kept(sweep: SweepPaths, mode: str) -> None:
    assert mirror_mode(sweep, mode) == (mode, None)


@pytest.mark.parametrize(
    "uri", ["http://login1:5000", "postgresql://host/db", "sqlite:////var/lib/mlflow.db"]
)
def test_a_store_elsewhere_is_mirrored_directly(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert mirror_mode(sweep, "direct") == ("direct", None)


def test_a_store_that_cannot_be_used_is_refused_before_anything_starts(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(IsolossError, match="a folder cannot be a store"):
        mirror_mode(sweep, "direct")
