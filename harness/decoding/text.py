"""Text to token ids and back, one token at a time."""

from __future__ import annotations

import codecs

import numpy as np

from harness.errors import IsolossError
from harness.tokenization import Tokenizer


def encode_prompt(tokenizer: Tokenizer, prompt: bytes) -> list[int]:
    """Token ids of a prompt; an empty one is the separator, after which documents begin.

    Raises
    ------
    IsolossError
        The tokenizer takes UTF-8 only, and the prompt is none.
    """
    if not prompt:
        return [tokenizer.separator]
    try:
        ids: list[int] = tokenizer.encode([prompt])[0].tolist()
    except UnicodeDecodeError as error:
        raise IsolossError(
            f"the prompt is not UTF-8: byte {prompt[error.start]:#04x} at {error.start}. "
            "Convert it, for example with iconv -t utf-8"
        ) from error
    return ids


class TextStream:
    """Makes text of tokens as they come; a character is told once all of its bytes are there.

    Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Text that this token completes."""
        return self._decoder.decode(self._tokenizer.decode(np.array([token], dtype=np.uint32)))

    def end(self) -> str:
        """What an unfinished character at the end becomes."""
        return self._decoder.decode(b"", final=True)
