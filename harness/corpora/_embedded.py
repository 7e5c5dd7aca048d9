"""Corpora that come from installed packages and are built into the cache on first use.

An :class:`EmbeddedCorpus` says where its documents come from; building, locking, checking and
rebuilding are the same for all and live here. Documents are byte-tokenised, one tenth of them is
held out for validation.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.documents import DocumentSpool
from harness.errors import DataError, MissingExtraError
from harness.paths import cache_dir
from harness.token_folder import (
    CorpusInfo,
    TokenCorpus,
    build_token_folder,
    open_token_folder,
    read_info,
)
from harness.tokenization import ByteTokenizer

VAL_FRACTION = 0.1
"""Expected share of documents held out."""


@dataclass(frozen=True)
class Source:
    """Documents of a corpus and where they come from."""

    documents: Iterator[bytes]
    """Each as raw bytes; order and duplicates do not matter."""
    provenance: dict[str, Any]
    """Recorded in the manifest as ``source``."""


@dataclass(frozen=True)
class EmbeddedCorpus:
    """A corpus known by name."""

    name: str
    """What a grid writes as ``data.corpus``."""
    summary: str
    """One line for a list of corpora."""
    fingerprint: Callable[[], str]
    """Hex digits that name the content to be built, known before building."""
    source: Callable[[], Source]
    """Opens the documents; checks them as far as it can."""
    pinned: CorpusInfo | None = None
    """What building gives, when that is the same on every machine."""

    def describe(self) -> CorpusInfo:
        """Pinned facts without building; otherwise those of the cached folder, built if absent."""
        if self.pinned:
            return self.pinned
        try:
            return read_info(self._folder())
        except DataError:
            return self.open().info

    def open(self) -> TokenCorpus:
        """Memory-map the corpus; build it first if the cache lacks it or holds a damaged one.

        Raises
        ------
        DataError
            The source is not what it should be, or the cache cannot be written.
        MissingExtraError
            The package that carries the text is not installed.
        """
        folder = self._folder()
        corpus = self._cached(folder)
        if corpus is None:
            try:
                corpus = self._build_locked(folder)
            except OSError as error:
                raise DataError(
                    f"{folder}: cannot build the corpus '{self.name}' ({error}). "
                    "Set ISOLOSS_CACHE to a folder that can be written."
                ) from error
        if self.pinned is None:
            return corpus
        info = dataclasses.replace(self.pinned, manifest=corpus.info.manifest)
        return dataclasses.replace(corpus, info=info)

    def _folder(self) -> Path:
        return cache_dir() / f"{self.name}-{self.fingerprint()[:12]}"

    def _cached(self, folder: Path) -> TokenCorpus | None:
        try:
            corpus = open_token_folder(folder)
        except DataError:
            return None
        expected = self.pinned.sha256 if self.pinned else corpus.info.sha256
        return corpus if corpus.info.sha256 == expected else None

    def _build_locked(self, folder: Path) -> TokenCorpus:
        try:
            from filelock import FileLock
        except ImportError as error:
            raise MissingExtraError("run", "train", "filelock") from error
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            corpus = self._cached(folder)  # another process may have built it meanwhile
            if corpus is None:
                self._build(folder)
                corpus = open_token_folder(folder)
        return corpus

    def _build(self, folder: Path) -> None:
        for leftover in folder.parent.glob(f".{folder.name}.tmp-*"):  # of builders that were killed
            shutil.rmtree(leftover, ignore_errors=True)
        prefix = f".{folder.name}.tmp-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as scratch:
            fresh, damaged = Path(scratch) / "fresh", Path(scratch) / "damaged"
            fresh.mkdir()
            info = self._tokenise(Path(scratch) / "documents", fresh)
            if self.pinned and info.sha256 != self.pinned.sha256:
                raise DataError(
                    f"corpus '{self.name}': built sha256 {info.sha256[:12]}, "
                    f"expected {self.pinned.sha256[:12]}. The installed source differs."
                )
            if folder.exists():
                folder.rename(damaged)
            fresh.rename(folder)

    def _tokenise(self, spool_path: Path, fresh: Path) -> CorpusInfo:
        source = self.source()
        spool = DocumentSpool(spool_path, VAL_FRACTION)
        try:
            for document in source.documents:
                spool.add(document)
            return build_token_folder(
                spool, ByteTokenizer(), fresh, name=self.name, source=source.provenance
            )
        finally:
            spool.close()
