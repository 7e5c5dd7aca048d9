"""What mirrors tell their successors: which runs of a sweep a store holds completely.

Asking MLflow for thousands of runs takes longer than many a Slurm task lasts. The memory belongs to
one store: an experiment made anew has another time of creation, and then it counts for nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.records import write_text_atomically

FILE = "mirrored.json"
Identity = tuple[str, str, int]
"""Tracking URI without password, experiment id, and its time of creation in Unix milliseconds."""


def recall(folder: Path, store: Identity) -> dict[str, str] | None:
    """Hashes of completely mirrored records, by run; None when nothing is known of this store."""
    try:
        about = json.loads((folder / FILE).read_text(encoding="utf-8"))
        known = about["mirrored"] if about["store"] == list(store) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(known) if isinstance(known, dict) else None


def remember(folder: Path, store: Identity, mirrored: dict[str, str]) -> None:
    """Leave behind what is known of a store.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    about = {"store": list(store), "mirrored": mirrored}
    write_text_atomically(folder / FILE, json.dumps(about) + "\n")
