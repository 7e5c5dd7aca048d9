"""Resumable training state on disk: written atomically, signed by its run."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from harness.errors import CheckpointError
from harness.paths import RunPaths

KEPT = 2
"""Checkpoints kept: the newest, and one to fall back on should the newest be damaged."""


def save_checkpoint(trainer: Trainer, paths: RunPaths) -> Path:
    """Save the trainer's whole state as ``checkpoints/step-N.ckpt``; keep the newest two."""
    paths.checkpoints.mkdir(parents=True, exist_ok=True)
    target = paths.checkpoints / f"step-{trainer.global_step:08d}.ckpt"
    scratch = target.with_suffix(".partial")
    trainer.save_checkpoint(scratch)
    # What a checkpoint has passed is never logged again, so the rows must reach the disk before it.
    for written in (paths.metrics, paths.diagnostics, scratch):
        _to_disk(written)
    scratch.replace(target)
    _to_disk(paths.checkpoints)
    for old in _newest_first(paths)[KEPT:]:
        old.unlink(missing_ok=True)
    return target


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, survives a power cut."""
    if not path.exists():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _newest_first(paths: RunPaths) -> list[Path]:
    return sorted(paths.checkpoints.glob("step-*.ckpt"), reverse=True)


def last_step(paths: RunPaths) -> int:
    """Step of the newest checkpoint by its name; 0 when there is none."""
    found = _newest_first(paths)
    return int(found[0].stem.removeprefix("step-")) if found else 0


def newest_checkpoint(paths: RunPaths) -> Path | None:
    """Find the newest checkpoint that can be read and belongs to this run.

    A damaged file is set aside as ``*.damaged`` and the one before it is used; without any, the run
    starts over. None means so.

    Raises
    ------
    CheckpointError
        A checkpoint was written by another run.
    """
    for path in _newest_first(paths):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile):
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
