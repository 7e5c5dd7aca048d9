"""Documents out of text files: ``.txt``, ``.jsonl`` and ``.parquet``, plain or compressed.

Streams one document at a time. Every mistake in the input ends in one DataError that names the file
and the line or row. Knows nothing of tokens or splits.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from harness.errors import DataError, MissingExtraError

SUFFIXES = (
    *(".txt", ".txt.gz", ".txt.zst"),
    *(".jsonl", ".jsonl.gz", ".jsonl.zst"),
    ".parquet",
)
"""What is read; other files of a folder are left alone."""

MAX_TEXT_DOCUMENT = 1 << 20
"""A text file up to this size is one document, unless it is the only input."""

TEXT_PIECE = 16 << 10
"""A longer or lone text file is cut into documents of about this many bytes, so that the split by
document has something to choose from and no file has to fit in memory."""


def find_inputs(inputs: Sequence[Path]) -> list[Path]:
    """Files to read: the given ones, and those with a known suffix inside given folders, sorted.

    Raises
    ------
    DataError
        An input does not exist, has an unknown suffix, or is a folder without a known file.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if _is_input(p, path)]
            if not inside:
                raise DataError(f"{path}: no file ending in {', '.join(SUFFIXES)} in this folder.")
            found += inside
        elif not path.exists():
            raise DataError(f"{path}: no such file or folder.")
        elif not path.name.lower().endswith(SUFFIXES):
            raise DataError(f"{path}: unknown kind of file. Known: {', '.join(SUFFIXES)}.")
        else:
            found.append(path)
    if not found:
        raise DataError("no input given: name at least one file or folder.")
    return list(dict.fromkeys(found))


def read_documents(path: Path, *, text_key: str, whole: bool) -> Iterator[bytes]:
    """Yield the documents of one file as UTF-8, empty ones included.

    Parameters
    ----------
    path
        A file with one of :data:`SUFFIXES`.
    text_key
        Key of a JSON object, or column of a Parquet file, that holds the text.
    whole
        Keep a text file of up to :data:`MAX_TEXT_DOCUMENT` bytes as one document.

    Raises
    ------
    DataError
        The file is empty, broken, not UTF-8, or lacks ``text_key`` somewhere.
    MissingExtraError
        A module for this kind of file is not installed.
    """
    name = path.name.lower()
    if name.endswith(".parquet"):
        documents = _parquet(path, text_key)
    elif ".jsonl" in name[-len(".jsonl.zst") :]:
        documents = _jsonl(path, text_key)
    else:
        documents = _text(path, whole)
    empty = True
    for document in documents:
        empty = False
        yield document
    if empty:
        raise DataError(f"{path}: empty file, no documents in it.")


def _is_input(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.is_file() and not hidden and path.name.lower().endswith(SUFFIXES)


def _lines(path: Path, limit: int = -1) -> Iterator[bytes]:
    """Lines of a plain or compressed file, with where the reading broke off in any error.

    A line longer than ``limit`` bytes comes in several parts; -1: never.
    """
    number = 0
    try:
        with _opened(path) as stream:
            while line := stream.readline(limit):
                number += line.endswith(b"\n")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(path, number, error) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] != "zstandard":
            raise
        raise _broken(path, number, error) from error


def _broken(path: Path, number: int, error: Exception) -> DataError:
    return DataError(
        f"{path}:{number + 1}: cannot read on after line {number} "
        f"({type(error).__name__}: {error}). The file is damaged or cut short; fetch it again."
    )


def _opened(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if suffix != ".zst":
        return path.open("rb")
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("prepare", "train", "zstandard") from error
    reader = _CompleteZstd(path.open("rb"), zstandard)
    return io.BufferedReader(reader, 1 << 20)


class _CompleteZstd(io.RawIOBase):
    """Decompressed bytes of all frames of a file; a frame that ends early is an error.

    The library's own stream reader takes a file cut in the middle of a frame for a complete one.
    """

    def __init__(self, stream: IO[bytes], zstandard: Any) -> None:
        self._stream, self._zstandard = stream, zstandard
        self._frame: Any = None
        self._input = self._output = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._output and self._advance():
            pass
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size

    def _advance(self) -> bool:
        self._input = self._input or self._stream.read(1 << 16)
        if not self._input:
            if self._frame is not None:
                raise EOFError("compressed file ended before the end of its last frame")
            return False
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        self._output = self._frame.decompress(self._input)
        self._input = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True


def _jsonl(path: Path, text_key: str) -> Iterator[bytes]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _json_text(line, text_key, f"{path}:{number}")


def _json_text(line: bytes, text_key: str, where: str) -> bytes:
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 (byte 0x{line[error.start]:02x}).") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}). Each line must be one object.") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is expected, got {type(row).__name__}.")
    if text_key not in row:
        keys = ", ".join(sorted(row)) or "none"
        raise DataError(
            f"{where}: no key '{text_key}'. Keys there: {keys}. Choose with --text-key."
        )
    return _encoded(row[text_key], text_key, where)


def _encoded(text: object, text_key: str, where: str) -> bytes:
    if not isinstance(text, str):
        raise DataError(f"{where}: '{text_key}' must be a string, got {type(text).__name__}.")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: '{text_key}' holds half a surrogate pair at character {error.start + 1}, "
            "which is no text. Mend or drop the document."
        ) from error


def _parquet(path: Path, text_key: str) -> Iterator[bytes]:
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _require_text_column(path, file.schema_arrow, text_key)
            for batch in file.iter_batches(batch_size=256, columns=[text_key]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    yield b"" if text is None else _encoded(text, text_key, f"{path}: row {row}")
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise DataError(
            f"{path}: not a readable Parquet file after row {row} ({first}). Fetch it again."
        ) from error


def _require_text_column(path: Path, schema: Any, text_key: str) -> None:
    if text_key not in schema.names:
        names = ", ".join(schema.names) or "none"
        raise DataError(
            f"{path}: no column '{text_key}'. Columns there: {names}. Choose with --text-key."
        )
    kind = schema.field(text_key).type
    value = getattr(kind, "value_type", kind)  # a dictionary column stores its strings once
    if str(value) not in ("string", "large_string", "string_view"):
        raise DataError(f"{path}: column '{text_key}' must hold strings, got {kind}.")


def _text(path: Path, whole: bool) -> Iterator[bytes]:
    head: list[bytes] = []
    size = 0
    lines = _valid_lines(path)
    for line in lines:
        head.append(line)
        size += len(line)
        if size > (MAX_TEXT_DOCUMENT if whole else 0):
            break
    else:
        if head:
            yield b"".join(head)
        return
    yield from _cut(_chained(head, lines))


def _chained(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from head
    yield from rest


def _cut(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a text after the first blank line past TEXT_PIECE bytes, or any line past twice that."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if (size >= TEXT_PIECE and not line.strip()) or size >= 2 * TEXT_PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _valid_lines(path: Path) -> Iterator[bytes]:
    """Lines, or parts of long ones that end between two characters, checked to be UTF-8."""
    number, carried = 1, b""
    for part in _lines(path, TEXT_PIECE):
        whole = carried + part
        end = len(whole) if part.endswith(b"\n") else _start_of_last_character(whole)
        yield _checked(whole[:end], path, number)
        carried = whole[end:]
        number += part.endswith(b"\n")
    if carried:
        yield _checked(carried, path, number)


def _start_of_last_character(text: bytes) -> int:
    end = len(text) - 1
    while end > 0 and text[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _checked(text: bytes, path: Path, number: int) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: not UTF-8 (byte 0x{text[error.start]:02x}). "
            "Convert the file first, for example with iconv."
        ) from error
    return text
