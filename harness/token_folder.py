"""The token folder: a tokenised corpus on disk.

``train.bin`` and ``val.bin`` (little-endian ids, documents in hash order, one separator between
two), ``tokenizer.json``, ``token_bytes.bin`` (bytes of text per id) and ``manifest.json``, written
last. Built from a :class:`~harness.documents.DocumentSpool`; read as memory maps. Nothing in it
depends on time or place: the same documents and tokenizer give the same tokens and the same hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.documents import DocumentSpool, Split
from harness.errors import DataError
from harness.tokenization import SEPARATOR_BYTES, Tokenizer, Tokens, token_dtype, tokenizer_sha256

FORMAT = 1
"""Raised when the meaning of a file in the folder changes; enters the content hash."""

BATCH_BYTES = 4 << 20
"""Text handed to the tokenizer at once."""

VERIFY_BYTES = 512 << 20
"""Folders up to this size are hashed when opened (about 1 s); larger ones only measured."""


@dataclass(frozen=True)
class CorpusInfo:
    """What a plan, a model and a report need to know of a corpus."""

    name: str
    """Embedded corpus, or name of the folder."""
    sha256: str
    """Identity of the content: token bytes of both splits and the tokenizer."""
    vocab_size: int
    """Token ids, the separator included."""
    n_train_tokens: int
    """Tokens of the training split, separators included."""
    n_val_tokens: int
    """Tokens of the validation split, separators included."""
    val_bytes_per_token: float
    """Bytes of text per validation token; bits_per_byte = loss_nats / ln 2 / this."""
    unigram_entropy_nats: float
    """Entropy of the training tokens' frequencies: the loss of a model blind to context."""
    manifest: dict[str, Any] = field(compare=False, repr=False)
    """Provenance and details, as in ``manifest.json``."""


@dataclass(frozen=True)
class TokenCorpus:
    """A corpus opened for reading."""

    info: CorpusInfo
    train: Tokens
    """``[n_train_tokens]``, memory-mapped."""
    val: Tokens
    """``[n_val_tokens]``, memory-mapped."""
    token_bytes: npt.NDArray[np.uint16]
    """``[vocab_size]``: bytes of text behind each id; the separator counts 1."""


@dataclass(frozen=True)
class Progress:
    """How far a preparation has come."""

    phase: str
    """``reading``, ``training tokenizer`` or ``tokenising``."""
    documents: int
    """Documents done in this phase."""
    bytes: int
    """Bytes of text done in this phase."""
    total_bytes: int | None
    """Bytes of text of the whole phase; None while unknown."""


OnProgress = Callable[[Progress], None]


def unigram_entropy_nats(counts: npt.NDArray[np.int64]) -> float:
    """Entropy of a frequency table in nats: H = ln N - (1/N) sum_i c_i ln c_i, N = sum_i c_i."""
    seen = [int(count) for count in counts if count]
    total = sum(seen)
    return math.log(total) - math.fsum(c * math.log(c) for c in seen) / total


def build_token_folder(
    spool: DocumentSpool,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    name: str,
    source: dict[str, Any],
    on_progress: OnProgress | None = None,
) -> CorpusInfo:
    """Tokenise every document of ``spool`` into an existing, empty ``folder``.

    Parameters
    ----------
    spool
        All documents; its ``val_fraction`` decides the split.
    tokenizer
        Encodes the documents and separates them.
    folder
        Where the files go; private to the caller until it renames it into place.
    name
        Recorded in the manifest.
    source
        Provenance, recorded in the manifest.
    on_progress
        Called after each batch of documents.

    Raises
    ------
    DataError
        One of the splits would be empty.
    """
    order = spool.order()
    _require_both_splits(order, spool.val_fraction)
    total_bytes = sum(int(positions[:, 1].sum()) for positions in order.values())
    writer = _SplitWriter(spool, tokenizer, total_bytes, on_progress)
    splits = {s: writer.write(folder / f"{s}.bin", order[s]) for s in ("train", "val")}
    lengths = tokenizer.token_bytes()
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    lengths.astype("<u2").tofile(folder / "token_bytes.bin")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "vocab_size": tokenizer.vocab_size,
        "dtype": token_dtype(tokenizer.vocab_size).str,
        "tokenizer": {
            "kind": tokenizer.kind,
            "separator": tokenizer.separator,
            "sha256": tokenizer_sha256(tokenizer),
        },
        "val_fraction": spool.val_fraction,
        "split_by": "sha256(document)[:8] / 2^64 < val_fraction; documents ordered by sha256",
        "train": splits["train"].summary(lengths),
        "val": splits["val"].summary(lengths),
        "unigram_entropy_nats": unigram_entropy_nats(splits["train"].counts),
        "duplicates_dropped": spool.n_documents - sum(len(order[s]) for s in order),
        "empty_dropped": spool.n_empty,
        "nul_bytes": spool.n_nul_bytes,
        "source": source,
    }
    manifest["sha256"] = content_sha256(folder, manifest)
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    return info_from(manifest, folder)


def content_sha256(folder: Path, manifest: dict[str, Any]) -> str:
    """Identity of the content: SHA-256 over format, id width, tokenizer, sizes and both splits."""
    head = [FORMAT, manifest["dtype"], manifest["tokenizer"]["sha256"]]
    sizes = [manifest["train"]["tokens"], manifest["val"]["tokens"]]
    digest = hashlib.sha256(json.dumps(head + sizes).encode())
    for split in ("train", "val"):
        with (folder / f"{split}.bin").open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def read_info(folder: Path) -> CorpusInfo:
    """Read what a token folder says of itself, without its tokens.

    Raises
    ------
    DataError
        ``manifest.json`` is absent, damaged, or of another format.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder}: no manifest.json, so not a prepared corpus. "
            "Make one with: isoloss prepare INPUT --output FOLDER"
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(path, str(error)) from error
    return info_from(manifest, folder)


def info_from(manifest: Any, folder: Path) -> CorpusInfo:
    """Check a parsed manifest and keep the fields of :class:`CorpusInfo`."""
    path = folder / "manifest.json"
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise _damaged(path, "not a corpus manifest")
    if manifest["format"] != FORMAT:
        raise _damaged(path, f"format {manifest['format']}, this version reads {FORMAT}")
    try:
        return CorpusInfo(
            name=str(manifest["name"]),
            sha256=str(manifest["sha256"]),
            vocab_size=int(manifest["vocab_size"]),
            n_train_tokens=int(manifest["train"]["tokens"]),
            n_val_tokens=int(manifest["val"]["tokens"]),
            val_bytes_per_token=int(manifest["val"]["bytes"]) / int(manifest["val"]["tokens"]),
            unigram_entropy_nats=float(manifest["unigram_entropy_nats"]),
            manifest=manifest,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise _damaged(path, f"field {error} is absent or of the wrong type") from error


def open_token_folder(folder: Path) -> TokenCorpus:
    """Memory-map a token folder after checking it against its manifest.

    Raises
    ------
    DataError
        A file is absent, has another size, or (up to ``VERIFY_BYTES``) another content.
    """
    info = read_info(folder)
    dtype = token_dtype(info.vocab_size)
    sizes = {"train.bin": info.n_train_tokens, "val.bin": info.n_val_tokens}
    expected = {name: tokens * dtype.itemsize for name, tokens in sizes.items()}
    expected["token_bytes.bin"] = 2 * info.vocab_size
    for name, size in expected.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise _damaged(path, f"{size} bytes expected, {found or 0} found")
    if sum(expected.values()) <= VERIFY_BYTES:
        found_sha = content_sha256(folder, info.manifest)
        if found_sha != info.sha256:
            raise _damaged(folder, f"sha256 {info.sha256[:12]} expected, {found_sha[:12]} found")
    return TokenCorpus(
        info=info,
        train=np.memmap(folder / "train.bin", dtype=dtype, mode="r"),
        val=np.memmap(folder / "val.bin", dtype=dtype, mode="r"),
        token_bytes=np.fromfile(folder / "token_bytes.bin", dtype="<u2").astype(np.uint16),
    )


@dataclass
class _WrittenSplit:
    documents: int
    text_bytes: int
    counts: npt.NDArray[np.int64]

    def summary(self, token_bytes: npt.NDArray[np.uint16]) -> dict[str, int]:
        """Sizes of the split; refuses a tokenizer that lost or invented bytes."""
        described = int(self.counts @ token_bytes.astype(np.int64))
        written = self.text_bytes + SEPARATOR_BYTES * (self.documents - 1)
        if described != written:
            raise DataError(
                f"the tokenizer is not exact: tokens stand for {described} bytes, "
                f"the text has {written}. Use another tokenizer."
            )
        return {
            "tokens": int(self.counts.sum()),
            "bytes": written,
            "documents": self.documents,
        }


class _SplitWriter:
    """Streams documents through a tokenizer into files, with progress over both splits."""

    def __init__(
        self,
        spool: DocumentSpool,
        tokenizer: Tokenizer,
        total_bytes: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._spool, self._tokenizer, self._on_progress = spool, tokenizer, on_progress
        self._total_bytes = total_bytes
        self._documents = self._bytes = 0

    def write(self, path: Path, positions: npt.NDArray[np.uint64]) -> _WrittenSplit:
        tokenizer = self._tokenizer
        dtype = token_dtype(tokenizer.vocab_size)
        separator = np.array([tokenizer.separator], dtype=dtype)
        counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        with path.open("wb") as stream:
            for batch in batched_by_bytes(self._spool.read(positions)):
                ids = []
                for tokens in tokenizer.encode(batch):
                    ids += [separator, tokens.astype(dtype, copy=False)]
                if stream.tell() == 0:
                    del ids[0]
                joined = np.concatenate(ids)
                counts += np.bincount(joined, minlength=tokenizer.vocab_size)
                stream.write(joined.tobytes())
                self._report(batch)
        return _WrittenSplit(len(positions), int(positions[:, 1].sum()), counts)

    def _report(self, batch: list[bytes]) -> None:
        self._documents += len(batch)
        self._bytes += sum(map(len, batch))
        if self._on_progress:
            done = Progress("tokenising", self._documents, self._bytes, self._total_bytes)
            self._on_progress(done)


def batched_by_bytes(documents: Iterator[bytes], limit: int = BATCH_BYTES) -> Iterator[list[bytes]]:
    """Group documents until a group holds ``limit`` bytes or more."""
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _require_both_splits(order: dict[Split, npt.NDArray[np.uint64]], val_fraction: float) -> None:
    n_train, n_val = len(order["train"]), len(order["val"])
    if n_train and n_val:
        return
    lacking = "training" if n_val else "validation"
    raise DataError(
        f"{n_train + n_val} distinct documents with val_fraction {val_fraction} leave the "
        f"{lacking} split empty (documents are assigned by their hash). "
        "Give more documents or another val_fraction."
    )


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path}: damaged corpus ({what}). Prepare it again into a new folder.")
