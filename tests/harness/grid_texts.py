"""Grid texts that the tests of grids start from, and how to load them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.corpora import CorpusInfo
from harness.errors import DataError
from harness.grid import Grid, load_grid

BASE = """\
sweep: example
base:
  residual: standard
  model: {n_layers: 4, d_model: 64}
  train: {budget: {flops: 1e13}}
"""
"""A complete grid of one run; rules are appended from line 6 on."""
DATA = Path(__file__).parent.parent / "data"
CORPUS = CorpusInfo(
    name="sotu",
    sha256="5" * 64,
    vocab_size=257,
    n_train_tokens=11_000_000,
    n_val_tokens=600_000,
    val_bytes_per_token=1.0,
    unigram_entropy_nats=3.1,
    manifest={},
)
"""A corpus of fixed content, so that pinned ids depend on the identity rule alone."""


def describe(name: str) -> CorpusInfo:
    """Know one corpus."""
    if name != "sotu":
        raise DataError(f"unknown corpus '{name}'; did you mean 'sotu'?")
    return CORPUS


def load(folder: Path, text: str, overrides: Sequence[str] = ()) -> Grid:
    """Write a grid into a folder and load it."""
    path = folder / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    return load_grid(path, overrides, describe=describe)
