"""Turn text files into a token folder: the work behind ``isoloss prepare``.

Streams: memory holds one document (a text file is cut first), 32 bytes of index per document and
one batch of tokens. Disk holds the text once more while it works. The folder appears complete or
not at all; only a hard kill leaves its scratch folder ``.NAME.tmp-*`` behind, safe to delete.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.documents import DocumentSpool
from harness.errors import DataError
from harness.readers import find_inputs, read_documents
from harness.token_folder import CorpusInfo, OnProgress, Progress, build_token_folder, read_info
from harness.tokenization import BpeTokenizer, ByteTokenizer, TiktokenTokenizer, Tokenizer

TOKENIZER_TRAINING_BYTES = 256 << 20
"""BPE is trained on at most this much of the training split: its first documents by hash, which is
a random sample."""

REPORT_EVERY = 1 << 20
"""Bytes of text between two progress reports."""

MAX_FILES_LISTED = 100
"""Input files that a manifest names; it always gives their number."""

TIKTOKEN = "tiktoken:"


def prepare(
    inputs: Sequence[Path],
    output: Path,
    *,
    tokenizer: str = "byte",
    vocab_size: int = 2048,
    val_fraction: float = 0.1,
    text_key: str = "text",
    on_progress: OnProgress | None = None,
) -> CorpusInfo:
    """Tokenise text files into ``output`` and split them by document hash.

    Parameters
    ----------
    inputs
        Files (``.txt``, ``.jsonl``, both also ``.gz`` or ``.zst``, and ``.parquet``) or folders of
        them. Order, file names and file boundaries of documents do not change the result.
    output
        Folder to create.
    tokenizer
        ``byte``; ``bpe``, trained on the training split; or ``tiktoken:NAME``.
    vocab_size
        Token ids of ``bpe``, the separator included; the others have their own.
    val_fraction
        Expected share of documents held out, in (0, 1).
    text_key
        Key or column that holds the text.
    on_progress
        Called now and then from each phase.

    Returns
    -------
    CorpusInfo
        What ``describe(output)`` will say.

    Raises
    ------
    DataError
        An input is broken (the message names file and line), a split is empty, or ``output``
        exists with another content. Nothing is left behind.
    MissingExtraError
        A module for the tokenizer or for a kind of file is not installed.
    """
    _check_arguments(tokenizer, val_fraction)
    _check_output(output, tokenizer, val_fraction)
    files = find_inputs(inputs)
    parent = output.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{output.name}.tmp-"
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=parent)))
        fresh = scratch / "fresh"
        fresh.mkdir()
        spool = DocumentSpool(scratch / "documents", val_fraction)
        stack.callback(spool.close)
        sizes = _read_all(files, spool, text_key, on_progress)
        info = build_token_folder(
            spool,
            _make_tokenizer(tokenizer, vocab_size, spool, on_progress),
            fresh,
            name=output.resolve().name,
            source={"n_files": len(files), "files": sizes[:MAX_FILES_LISTED], "text_key": text_key},
            on_progress=on_progress,
        )
        return _move_into_place(fresh, output, info)


def _check_arguments(tokenizer: str, val_fraction: float) -> None:
    if not 0.0 < val_fraction < 1.0:
        raise DataError(f"val_fraction must lie between 0 and 1, got {val_fraction}.")
    if tokenizer not in ("byte", "bpe") and not tokenizer.startswith(TIKTOKEN):
        raise DataError(
            f"unknown tokenizer '{tokenizer}'. Available: byte, bpe, tiktoken:NAME "
            "(for example tiktoken:gpt2)."
        )


def _check_output(output: Path, tokenizer: str, val_fraction: float) -> None:
    """Refuse at once what would be refused after the work."""
    if not output.exists():
        return
    if not (output / "manifest.json").is_file():
        raise _occupied(output, "is not a prepared corpus")
    manifest = read_info(output).manifest
    kind, fraction = manifest["tokenizer"]["kind"], manifest["val_fraction"]
    if (kind, fraction) != (tokenizer.split(":")[0], val_fraction):
        raise _occupied(output, f"was made with tokenizer {kind} and val_fraction {fraction}")


def _read_all(
    files: Sequence[Path], spool: DocumentSpool, text_key: str, on_progress: OnProgress | None
) -> list[dict[str, Any]]:
    sizes = []
    reported = 0
    for path in files:
        documents, text_bytes = spool.n_documents, spool.n_bytes
        for document in read_documents(path, text_key=text_key, whole=len(files) > 1):
            spool.add(document)
            if on_progress and spool.n_bytes - reported >= REPORT_EVERY:
                reported = spool.n_bytes
                on_progress(Progress("reading", spool.n_documents, spool.n_bytes, None))
        added = {"documents": spool.n_documents - documents, "bytes": spool.n_bytes - text_bytes}
        sizes.append({"file": path.name, **added})
    if on_progress:
        on_progress(Progress("reading", spool.n_documents, spool.n_bytes, spool.n_bytes))
    return sizes


def _make_tokenizer(
    name: str, vocab_size: int, spool: DocumentSpool, on_progress: OnProgress | None
) -> Tokenizer:
    if name == "byte":
        return ByteTokenizer()
    if name.startswith(TIKTOKEN):
        return TiktokenTokenizer(name.removeprefix(TIKTOKEN))
    return BpeTokenizer.train(_training_sample(spool, on_progress), vocab_size)


def _training_sample(spool: DocumentSpool, on_progress: OnProgress | None) -> Iterator[bytes]:
    positions = spool.order()["train"]
    total = min(int(positions[:, 1].sum()), TOKENIZER_TRAINING_BYTES)
    done = reported = 0
    for number, document in enumerate(spool.read(positions), 1):
        done += len(document)
        yield document
        if on_progress and (done - reported >= REPORT_EVERY or done >= total):
            reported = done
            on_progress(Progress("training tokenizer", number, done, total))
        if done >= TOKENIZER_TRAINING_BYTES:
            return


def _move_into_place(fresh: Path, output: Path, info: CorpusInfo) -> CorpusInfo:
    if not output.exists():
        fresh.rename(output)
        return info
    existing = read_info(output)
    if existing.sha256 != info.sha256:
        raise _occupied(output, f"holds another corpus (sha256 {existing.sha256[:12]})")
    return existing


def _occupied(output: Path, what: str) -> DataError:
    return DataError(f"{output}: exists and {what}. Choose another --output or remove it.")
