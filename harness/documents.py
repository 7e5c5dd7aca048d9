"""A set of documents on its way into a corpus: split by content, ordered by content.

:class:`DocumentSpool` copies documents to one scratch file and keeps 32 bytes of index for each, so
a corpus larger than memory can be split and ordered. The result depends on the set of documents
alone, not on file names, the order of the input, or time.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

Split = Literal["train", "val"]


def validation_threshold(val_fraction: float) -> int:
    """Smallest 64-bit hash that is *not* in validation: floor(val_fraction x 2^64), exactly."""
    return int(val_fraction * 2.0**64)


def split_of(document: bytes, val_fraction: float) -> Split:
    """Which split a document belongs to: a function of its bytes alone.

    The first 8 bytes of SHA-256(document), read as a big-endian integer h, put it into validation
    when h / 2^64 < val_fraction.
    """
    head = int.from_bytes(hashlib.sha256(document).digest()[:8], "big")
    return "val" if head < validation_threshold(val_fraction) else "train"


class DocumentSpool:
    """Documents in a scratch file, read back by split in the order of their SHA-256.

    Exact duplicates are dropped and counted, and so are empty documents.

    Parameters
    ----------
    path
        Scratch file to create; the caller removes it.
    val_fraction
        Expected share of documents in validation.
    """

    def __init__(self, path: Path, val_fraction: float) -> None:
        self.val_fraction = val_fraction
        self.n_documents = 0
        self.n_bytes = 0
        self.n_empty = 0
        self.n_nul_bytes = 0
        self._path = path
        self._stream = path.open("w+b")
        self._index = array("Q")

    def add(self, document: bytes) -> None:
        """Append one document."""
        if not document:
            self.n_empty += 1
            return
        digest = hashlib.sha256(document).digest()
        high, low = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
        self._index.extend((high, low, self.n_bytes, len(document)))
        self._stream.write(document)
        self.n_documents += 1
        self.n_bytes += len(document)
        self.n_nul_bytes += document.count(0)

    def close(self) -> None:
        """Close the scratch file."""
        self._stream.close()

    def order(self) -> dict[Split, npt.NDArray[np.uint64]]:
        """Positions of the distinct documents, ``[n, 2]`` (offset, length) per split, by hash."""
        index = np.frombuffer(self._index, dtype=np.uint64).reshape(-1, 4)
        index = index[np.lexsort((index[:, 2], index[:, 1], index[:, 0]))]
        same = (index[1:, :2] == index[:-1, :2]).all(axis=1)
        index = index[np.concatenate(([True], ~same))] if len(index) else index
        held_out = index[:, 0] < np.uint64(validation_threshold(self.val_fraction))
        return {"train": index[~held_out, 2:], "val": index[held_out, 2:]}

    def read(self, positions: npt.NDArray[np.uint64]) -> Iterator[bytes]:
        """Yield the documents at these positions, in their order."""
        self._stream.flush()
        with self._path.open("rb") as stream:
            for offset, length in positions.tolist():
                stream.seek(offset)
                yield stream.read(length)
