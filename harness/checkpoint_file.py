"""One file of training state, read and found whole or damaged. Knows torch, and no trainer."""

from __future__ import annotations

import errno
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

DAMAGED = (
    *(zipfile.BadZipFile, pickle.UnpicklingError, struct.error, zlib.error),
    *(RuntimeError, ValueError, EOFError, NotImplementedError),
)
"""What reading a damaged file raises, by where the damage is; ValueError includes bad Unicode."""


def read_whole(path: Path) -> dict[str, Any] | None:
    """Contents of a checkpoint; None when it is cut short or a bit of it has changed.

    torch does not compare the checksums that it writes, and reads altered weights without a word.

    Raises
    ------
    OSError
        The file cannot be read at the moment, which says nothing about what is in it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # EINVAL: a torn file points outside itself
            raise
        return None
    except DAMAGED:
        return None
    return state if isinstance(state, dict) else None
