"""Python source of this project's own dependencies: the large corpus that needs no download.

About 180 MB of permissively licensed code, one document per ``.py`` file, as listed in the RECORD
of each installed distribution and verified against the SHA-256 there. Content depends on the
installed versions: other versions give another hash, and the manifest says which were read and
which were absent. Pinned versions give the same corpus on the same platform and Python version (a
few packages generate a ``.py`` file per build).
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.corpora._embedded import EmbeddedCorpus, Source
from harness.errors import DataError

# Every one of them comes with the extra `train`; all BSD, MIT, Apache-2.0 or PSF-style.
DISTRIBUTIONS = (
    "lightning",
    "matplotlib",
    "mlflow",
    "networkx",
    "numpy",
    "pandas",
    "scikit-learn",
    "scipy",
    "sqlalchemy",
    "sympy",
    "torch",
)


@dataclass(frozen=True)
class SourceFile:
    """One ``.py`` file as the RECORD of its distribution describes it."""

    name: str
    """Path inside site-packages, with slashes."""
    sha256: str
    """Hex digest."""
    size: int
    """Bytes."""
    path: Path
    """Where it lies."""


@dataclass(frozen=True)
class Package:
    """The Python files of one installed distribution."""

    name: str
    version: str
    licence: str
    files: tuple[SourceFile, ...]

    @property
    def sha256(self) -> str:
        """Identity of the files: SHA-256 over their sorted names and digests."""
        lines = (f"{file.name} {file.sha256}\n" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Entry of the manifest."""
        return {
            "package": self.name,
            "version": self.version,
            "licence": self.licence,
            "files": len(self.files),
            "bytes": sum(file.size for file in self.files),
            "sha256": self.sha256,
        }


def installed_packages(names: Sequence[str] = DISTRIBUTIONS) -> dict[str, Package | None]:
    """Look up the named distributions; None for one that is absent or has no RECORD."""
    return {name: _package(name) for name in names}


@functools.cache
def fingerprint() -> str:
    """Identity of the Python files installed here, from the RECORDs alone (about 0.3 s, once)."""
    packages = installed_packages()
    lines = (f"{name} {package.sha256 if package else '-'}\n" for name, package in packages.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def source() -> Source:
    """Documents of all listed distributions that are installed.

    Raises
    ------
    DataError
        None is installed. While reading: a file differs from what its RECORD says.
    """
    packages = installed_packages()
    present = [package for package in packages.values() if package]
    if not present:
        raise DataError(
            f"corpus 'pysrc' is the Python source of {', '.join(DISTRIBUTIONS)}, and none of them "
            "is installed. Install the extra: in the checkout, pip install -e '.[train]'"
        )
    provenance = {
        "packages": [package.summary() for package in present],
        "absent": [name for name, package in packages.items() if package is None],
        "fingerprint": fingerprint(),
    }
    return Source(_read(present), provenance)


def _package(name: str) -> Package | None:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    record = distribution.read_text("RECORD")
    if record is None:
        return None
    rows = (row for row in csv.reader(record.splitlines()) if _is_source(row))
    files = (_source_file(distribution, *row) for row in rows)
    return Package(
        name=name,
        version=distribution.version,
        licence=_licence(distribution),
        files=tuple(sorted(files, key=lambda file: file.name)),
    )


def _is_source(row: Sequence[str]) -> bool:
    inside = bool(row) and row[0].endswith(".py") and not row[0].startswith(("..", "/"))
    return inside and row[1].startswith("sha256=")


def _source_file(
    distribution: importlib.metadata.Distribution, name: str, digest: str, size: str
) -> SourceFile:
    encoded = digest.removeprefix("sha256=")
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    return SourceFile(name, raw.hex(), int(size), Path(str(distribution.locate_file(name))))


def _licence(distribution: importlib.metadata.Distribution) -> str:
    meta = distribution.metadata
    field = "".join(meta.get_all("License") or []).strip()
    expression = "".join(meta.get_all("License-Expression") or [])
    classifiers = [c for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
    named = "; ".join(c.rsplit(" :: ", 1)[-1] for c in classifiers)
    # Some packages put the whole licence text into License; a classifier then says it shorter.
    short = field if "\n" not in field else ""
    return expression or short or named or field.split("\n")[0] or "not stated"


def _read(packages: Sequence[Package]) -> Iterator[bytes]:
    for package in packages:
        for file in package.files:
            try:
                document = file.path.read_bytes()
            except OSError as error:
                raise _changed(package, file, "cannot be read") from error
            if hashlib.sha256(document).hexdigest() != file.sha256:
                raise _changed(package, file, "differs from what was installed")
            yield document


def _changed(package: Package, file: SourceFile, what: str) -> DataError:
    return DataError(
        f"{file.path}: {what}, so corpus 'pysrc' cannot be reproduced. Install it anew: "
        f"pip install --force-reinstall --no-deps {package.name}=={package.version}"
    )


CORPUS = EmbeddedCorpus(
    name="pysrc",
    summary="Python source of installed packages, about 180 MB, bytes; varies with their versions",
    fingerprint=fingerprint,
    source=source,
)
