"""What an evaluation is: measurements of a trained language model, each stored under its name.

An :class:`Evaluation` turns what the command line asks into entries; an :class:`Entry` is one
result on disk. Knows no torch, so that the command line can list what there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.loading import LoadedModel

DEFAULT_TOKENS = 65_536
"""Tokens of each corpus: seconds on a processor for models of a few million parameters."""
DEFAULT_CORPORA = ("sotu", "pysrc")
"""Prose and code."""
CODE_CORPUS = "pysrc"
"""Where code to complete is taken from."""

Metrics = dict[str, float]
"""Flat; units stand in the names, counts among them."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What may be asked of evaluations; each heeds what concerns it."""

    tokens: int = DEFAULT_TOKENS
    """Tokens of each corpus, in the model's own tokenizer."""
    corpora: tuple[str, ...] = DEFAULT_CORPORA
    """Corpora of ``domains``: names, or folders made by ``isoloss prepare``."""
    code_corpus: str = CODE_CORPUS
    """Corpus of ``code_cloze``."""
    limit: int | None = None
    """Most examples of each evaluation that counts in examples; None: its own number."""
    include_path: Path | None = None
    """Folder of further task files of ``lm_eval``."""
    num_fewshot: int | None = None
    """Examples that ``lm_eval`` puts before each question; None: as its tasks say."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One measurement, and one file for each checkpoint that it was taken of."""

    name: str
    """Such as ``domains:sotu``."""
    measure: Callable[[LoadedModel], Metrics]
    """Measures a model."""
    headline: tuple[str, ...]
    """Metrics that a table shows, the first of them alone where space is short."""
    identity: dict[str, Any] = field(default_factory=dict)
    """All that the result depends on beside the model, as JSON: a stored result of another
    identity is measured again."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A kind of measurement, registered by the name of its file."""

    name: str
    summary: str
    """What it measures, in one line."""
    entries: Callable[[str | None, Settings], list[Entry]]
    """What is measured, given the text after the colon in ``name:ARGUMENT`` and the settings.

    Raises IsolossError where that is malformed, MissingExtraError where a package is missing."""
    default: bool = False
    """Whether it is done when nothing is named."""
