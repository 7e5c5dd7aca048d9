"""Tokenizers: bytes to token ids and back, exactly.

Three kinds share one interface: raw bytes (the default), byte-level BPE trained on the corpus, and
a tiktoken encoding whose vocabulary is already on this machine. Every one reserves a separator
token that stands between documents. Knows nothing of files of text, splits or torch.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.errors import DataError, MissingExtraError

Tokens = npt.NDArray[np.unsignedinteger[Any]]

SEPARATOR_BYTES = 1
"""A separator counts as one byte of text in every tokenizer, as the byte 0 between documents does
in the byte tokenizer; so all of them describe the same byte string and bits per byte compare."""

PIECE_CHARS = 1 << 20
"""Longest text handed to an encoder at once: encoders keep about 100 bytes per character."""


class Tokenizer(Protocol):
    """What the corpus builder needs of a tokenizer."""

    kind: str
    vocab_size: int
    separator: int

    def encode(self, documents: Sequence[bytes]) -> list[Tokens]:
        """Token ids of each document, separators not included."""
        ...

    def decode(self, tokens: Tokens) -> bytes:
        """Bytes that these tokens stand for; the inverse of :meth:`encode`."""
        ...

    def token_bytes(self) -> npt.NDArray[np.uint16]:
        """Bytes of text behind each token id, ``[vocab_size]``; the separator counts 1."""
        ...

    def to_json(self) -> str:
        """Text of ``tokenizer.json``, from which :func:`load_tokenizer` restores this object."""
        ...


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Smallest little-endian unsigned type that holds every id below ``vocab_size``."""
    if vocab_size <= 1 << 8:
        return np.dtype("u1")
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """Identity of a vocabulary: SHA-256 of its ``tokenizer.json``."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


class ByteTokenizer:
    """One token per byte; byte 0 is the separator."""

    kind = "byte"
    vocab_size = 256
    separator = 0

    def encode(self, documents: Sequence[bytes]) -> list[Tokens]:
        """View each document as ``uint8``."""
        return [np.frombuffer(document, dtype=np.uint8) for document in documents]

    def decode(self, tokens: Tokens) -> bytes:
        """Bytes of the ids."""
        return tokens.astype(np.uint8).tobytes()

    def token_bytes(self) -> npt.NDArray[np.uint16]:
        """One byte per token."""
        return np.ones(self.vocab_size, dtype=np.uint16)

    def to_json(self) -> str:
        """Kind, size and separator."""
        return json.dumps({"isoloss_tokenizer": "byte", "vocab_size": 256, "separator": 0}) + "\n"


class BpeTokenizer:
    """Byte-level BPE; the last id, outside the BPE model, is the separator.

    The separator is no string of the vocabulary, so no text can spell it by accident.
    """

    kind = "bpe"

    def __init__(self, serialized: str) -> None:
        self._json = serialized
        self._bpe = _tokenizers().Tokenizer.from_str(serialized)
        self.separator: int = self._bpe.get_vocab_size()
        self.vocab_size = self.separator + 1

    @classmethod
    def train(cls, documents: Iterable[bytes], vocab_size: int) -> BpeTokenizer:
        """Learn ``vocab_size - 257`` merges; 256 ids are the bytes and one is the separator.

        Raises
        ------
        DataError
            ``vocab_size`` is out of range, or the text is too small for so many merges.
        """
        if not 257 < vocab_size <= 1 << 20:
            raise DataError(
                f"vocab_size must lie in 258..{1 << 20} for bpe (256 bytes, one separator and at "
                f"least one merge), got {vocab_size}."
            )
        lib = _tokenizers()
        bpe = lib.Tokenizer(lib.models.BPE())
        bpe.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = lib.decoders.ByteLevel()
        trainer = lib.trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            show_progress=False,
            initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(),
        )
        texts = (piece for document in documents for piece in pieces(document.decode()))
        bpe.train_from_iterator(texts, trainer)
        if bpe.get_vocab_size() != vocab_size - 1:
            raise DataError(
                f"the text supports a BPE vocabulary of {bpe.get_vocab_size() + 1} tokens, not "
                f"the {vocab_size} asked for. Ask for fewer or give more text."
            )
        return cls(bpe.to_str())

    def encode(self, documents: Sequence[bytes]) -> list[Tokens]:
        """Encode each document; long ones piece by piece."""
        parts = [list(pieces(document.decode())) for document in documents]
        flat = self._bpe.encode_batch_fast([piece for part in parts for piece in part])
        ids = iter(np.asarray(encoding.ids, dtype=np.uint32) for encoding in flat)
        return [_joined([next(ids) for _ in part]) for part in parts]

    def decode(self, tokens: Tokens) -> bytes:
        """Bytes of the ids; the separator gives byte 0."""
        table = _byte_of_char()
        words = (self._word(int(token)) for token in tokens)
        return b"".join(b"\0" if w is None else bytes(table[char] for char in w) for w in words)

    def token_bytes(self) -> npt.NDArray[np.uint16]:
        """Length of each token; byte-level tokens have one character per byte."""
        lengths = [len(self._word(token) or "") for token in range(self.separator)]
        return np.array([*lengths, SEPARATOR_BYTES], dtype=np.uint16)

    def to_json(self) -> str:
        """Serialisation of the ``tokenizers`` library."""
        return self._json

    def _word(self, token: int) -> str | None:
        word: str | None = None if token == self.separator else self._bpe.id_to_token(token)
        return word


class TiktokenTokenizer:
    """An encoding of tiktoken by name; its end-of-text token is the separator."""

    kind = "tiktoken"

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._encoding = _tiktoken_encoding(encoding)
        self.vocab_size: int = self._encoding.n_vocab
        self.separator: int = self._encoding.eot_token

    def encode(self, documents: Sequence[bytes]) -> list[Tokens]:
        """Encode each document as plain text: spelled-out special tokens stay text."""
        parts = [list(pieces(document.decode())) for document in documents]
        flat = self._encoding.encode_ordinary_batch([piece for part in parts for piece in part])
        ids = iter(np.asarray(each, dtype=np.uint32) for each in flat)
        return [_joined([next(ids) for _ in part]) for part in parts]

    def decode(self, tokens: Tokens) -> bytes:
        """Bytes of the ids; the separator gives byte 0."""
        single = self._encoding.decode_single_token_bytes
        return b"".join(b"\0" if t == self.separator else single(int(t)) for t in tokens)

    def token_bytes(self) -> npt.NDArray[np.uint16]:
        """Length of each token; 0 for ids that the encoding leaves unused."""
        lengths = np.zeros(self.vocab_size, dtype=np.uint16)
        for token in range(self.vocab_size):
            try:
                lengths[token] = len(self._encoding.decode_single_token_bytes(token))
            except KeyError:
                continue
        lengths[self.separator] = SEPARATOR_BYTES
        return lengths

    def to_json(self) -> str:
        """Name of the encoding, and a digest of its merge ranks."""
        ranks = sorted(self._encoding._mergeable_ranks.items(), key=lambda item: item[1])
        digest = hashlib.sha256()
        for word, rank in ranks:
            digest.update(f"{rank} {word.hex()}\n".encode())
        fields = {"isoloss_tokenizer": "tiktoken", "encoding": self.encoding}
        return json.dumps(fields | {"ranks_sha256": digest.hexdigest()}) + "\n"


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text into consecutive pieces of at most ``limit`` characters, after newlines."""
    start = 0
    while len(text) - start > limit:
        newline = text.rfind("\n", start, start + limit)
        end = newline + 1 if newline >= start else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


def load_tokenizer(folder: Path) -> Tokenizer:
    """Restore the tokenizer of a token folder.

    Raises
    ------
    DataError
        ``tokenizer.json`` is absent or not one of ours.
    """
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        fields = json.loads(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: cannot read the tokenizer ({error}).") from error
    kind = fields.get("isoloss_tokenizer", "bpe")
    if kind == "byte":
        return ByteTokenizer()
    if kind == "tiktoken":
        return TiktokenTokenizer(fields["encoding"])
    return BpeTokenizer(text)


def _joined(parts: Sequence[Tokens]) -> Tokens:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _byte_of_char() -> dict[str, int]:
    """Inverse of GPT-2's byte-to-character table: printable bytes stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(rest)}


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("prepare --tokenizer bpe", "train", "tokenizers") from error
    return tokenizers


def _tiktoken_encoding(name: str) -> Any:
    try:
        tiktoken: Any = importlib.import_module("tiktoken")
    except ImportError as error:
        raise DataError(
            f"tokenizer tiktoken:{name} needs the module 'tiktoken'. "
            "Install it with: pip install tiktoken. Or use --tokenizer bpe."
        ) from error
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(sorted(tiktoken.list_encoding_names()))
        raise DataError(f"tiktoken knows no encoding '{name}'. Available: {known}.")
    try:
        return tiktoken.get_encoding(name)
    except Exception as error:
        # tiktoken downloads a vocabulary that is not in its cache, and any layer below may fail.
        raise DataError(
            f"the vocabulary of tiktoken:{name} is not on this machine and could not be fetched "
            f"({type(error).__name__}). Put it into the folder named by TIKTOKEN_CACHE_DIR, "
            "or use --tokenizer bpe."
        ) from error
