"""Resumable training state on disk: written atomically, signed by its run.

A checkpoint is one file of whole tensors, whatever the number of processes that wrote it, so that
another number of them can go on from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.checkpoint_file import read_whole
from harness.errors import CheckpointError
from harness.lean_lightning import CheckpointIO, Trainer
from harness.paths import RunPaths
from harness.trunks import state_file, states

KEPT = 2
"""Checkpoints kept: the newest, and one to fall back on should the newest be damaged."""


class CheckpointFiles(CheckpointIO):
    """Writes a checkpoint straight to its file.

    Lightning's own copies it through memory and the temporary folder of the machine, which may be
    small, and reports a full disk without saying where.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; raises OSError with its path."""
        with naming(Path(path)), Path(path).open("wb") as stream:
            torch.save(checkpoint, stream)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read a checkpoint into the processor's memory."""
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def save_checkpoint(
    trainer: Trainer,
    paths: RunPaths,
    attempt: int,
    check: Callable[[], None],
    kept: frozenset[int] = frozenset(),
) -> Path:
    """Save the whole state as ``checkpoints/step-N.ckpt``; keep the newest two.

    Every process must call it; the first writes.

    Parameters
    ----------
    attempt
        Number of this try, so that it never writes into the scratch file of another.
    check
        Called before the file gets its final name; raises when it must not.
    kept
        Steps whose checkpoints stay beside the newest two.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        It cannot be written (disk full, read-only); the file is named, and no part of it is left.
    """
    target = state_file(paths.checkpoints, trainer.global_step)
    scratch = target.with_suffix(f".{attempt}.partial")
    try:
        if trainer.is_global_zero:
            paths.checkpoints.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(scratch)
        if trainer.is_global_zero:
            check()
            _publish(scratch, target, paths, kept)
    finally:
        if trainer.is_global_zero:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
    return target


def _publish(scratch: Path, target: Path, paths: RunPaths, kept: frozenset[int]) -> None:
    # What a checkpoint has passed is never logged again, so the rows must reach the disk before it.
    for written in (paths.metrics, paths.diagnostics, scratch):
        _to_disk(written)
    scratch.replace(target)
    _to_disk(paths.checkpoints)
    older = [path for path in _newest_first(paths)[KEPT:] if step_of(path) not in kept]
    for old in (*older, *paths.checkpoints.glob("*.partial")):
        old.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the block that only say what is wrong with the disk."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch's writer trips over the failed write and raises an error of its own in its place.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or cause.errno is None:
            raise
        raise OSError(cause.errno, os.strerror(cause.errno), str(path)) from error


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, survives a power cut."""
    if not path.exists():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def _newest_first(paths: RunPaths) -> list[Path]:
    return [path for _, path in states(paths.checkpoints)]


def last_step(paths: RunPaths) -> int:
    """Step of the newest checkpoint by its name; 0 when there is none."""
    return max((step for step, _ in states(paths.checkpoints)), default=0)


def step_of(checkpoint: Path) -> int:
    """Step of a checkpoint by its name."""
    return int(checkpoint.stem.removeprefix("step-"))


def leave_in_trunk(checkpoint: Path, folder: Path) -> None:
    """Put a run's checkpoint among the states of its trunk; of two that do, the first wins.

    The two names share their bytes on the disk. On a file system without hard links it is copied.

    Raises
    ------
    OSError
        It cannot be written.
    """
    target = folder / checkpoint.name
    folder.mkdir(parents=True, exist_ok=True)
    with naming(target):
        try:
            os.link(checkpoint, target)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
                raise
            scratch = target.with_suffix(f".{os.getpid()}.partial")
            shutil.copyfile(checkpoint, scratch)
            _to_disk(scratch)
            scratch.replace(target)
    _to_disk(folder)


class TrunkState(NamedTuple):
    """A training state from which runs of several budgets branch."""

    path: Path
    step: int
    run_id: str
    """Run that trained up to there."""


def newest_in_trunk(folder: Path, trunk: str, *, above: int, at_most: int) -> TrunkState | None:
    """Find the newest whole state of a trunk between two steps; None when there is none.

    One that is damaged, or of another trunk, is set aside as ``*.damaged``, which is printed: the
    run trains from before it.

    Parameters
    ----------
    above
        Step that the run has reached by itself.
    at_most
        The run's branch step.
    """
    for step, path in states(folder, at_most):
        if step <= above:
            return None
        state = read_whole(path)
        if state is not None and (state.get("trunk"), state.get("global_step")) == (trunk, step):
            return TrunkState(path, step, str(state["run_id"]))
        print(f"{path} is damaged or of another training: set aside, trained from before it")
        with contextlib.suppress(FileNotFoundError):  # another run was faster
            path.replace(path.with_suffix(".damaged"))
    return None


def newest_checkpoint(paths: RunPaths) -> Path | None:
    """Find the newest checkpoint that is whole and belongs to this run.

    A damaged file is set aside as ``*.damaged`` and the one before it is used; without any, the run
    starts over. None means so.

    Raises
    ------
    CheckpointError
        A checkpoint was written by another run.
    OSError
        The files cannot be read at the moment, which says nothing about what is in them.
    """
    for path in _newest_first(paths):
        state = read_whole(path)
        if state is None:
            path.replace(path.with_suffix(".damaged"))
            continue
        owner = state.get("run_id")
        if owner != paths.run_id:
            raise CheckpointError(
                f"{path}: written by run {owner}, not by run {paths.run_id}. "
                "Move the file back to its run, or delete it to start this run over."
            )
        return path
    return None
