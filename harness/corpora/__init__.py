"""Corpora by name or by folder: one file here per embedded corpus.

A module ``harness/corpora/NAME.py`` that defines ``CORPUS`` adds the corpus NAME; no other file
changes. Folders made by ``isoloss prepare`` are opened by their path. Never imports torch.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import Path

from harness.corpora._embedded import EmbeddedCorpus, Source
from harness.errors import DataError
from harness.token_folder import CorpusInfo, TokenCorpus, open_token_folder, read_info
from harness.tokenization import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "CorpusInfo",
    "EmbeddedCorpus",
    "Source",
    "TokenCorpus",
    "available",
    "describe",
    "embedded",
    "open_corpus",
    "tokenizer_of",
]


def available() -> list[str]:
    """Names of the embedded corpora, sorted; found by file name, nothing is imported."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def embedded(name: str) -> EmbeddedCorpus:
    """Return the embedded corpus of this name; the caller has checked that it exists."""
    corpus = importlib.import_module(f"{__name__}.{name}").CORPUS
    assert isinstance(corpus, EmbeddedCorpus)
    return corpus


def describe(corpus: str) -> CorpusInfo:
    """Say what a corpus holds, without reading its tokens where that is possible.

    Parameters
    ----------
    corpus
        Name of an embedded corpus, or a folder made by ``isoloss prepare``. An embedded name wins;
        write ``./NAME`` for a folder that is called the same.

    Raises
    ------
    DataError
        There is no such corpus (the message lists those there are), or its folder is damaged.
    """
    if corpus in available():
        return embedded(corpus).describe()
    return read_info(_prepared_folder(corpus))


def open_corpus(corpus: str) -> TokenCorpus:
    """Memory-map a corpus; embedded ones are built into the cache on first use.

    Parameters
    ----------
    corpus
        As for :func:`describe`.

    Raises
    ------
    DataError
        There is no such corpus, its source is not what it should be, or its folder is damaged.
    MissingExtraError
        The package that carries the text is not installed.
    """
    if corpus in available():
        return embedded(corpus).open()
    return open_token_folder(_prepared_folder(corpus))


def tokenizer_of(corpus: str) -> Tokenizer:
    """Tokenizer that a corpus was prepared with.

    Parameters
    ----------
    corpus
        As for :func:`describe`.

    Raises
    ------
    DataError
        There is no such corpus, or its tokenizer cannot be read.
    """
    if corpus in available():
        return ByteTokenizer()
    return load_tokenizer(_prepared_folder(corpus))


def _prepared_folder(corpus: str) -> Path:
    path = Path(corpus)
    if (path / "manifest.json").is_file():
        return path
    if path.exists():
        raise DataError(
            f"corpus '{corpus}' is not a prepared corpus folder (no manifest.json in it). "
            f"Make one with: isoloss prepare {corpus} --output FOLDER"
        )
    close = difflib.get_close_matches(corpus, available(), n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    raise DataError(
        f"unknown corpus '{corpus}'{hint} Embedded: {', '.join(available())}. A corpus of your "
        "own is the folder made by: isoloss prepare INPUT --output FOLDER"
    )
