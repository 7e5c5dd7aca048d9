"""Where the batches of a run come from: a corpus of text, or a generated task.

Both give batches as pure functions of (seed, step) and a fixed validation set. A batch of text is
windows ``[n, seq_len + 1]``, whose last seq_len tokens are the targets; a batch of a task is ``[n,
2, seq_len]``, inputs over labels. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.config import DataConfig, RunConfig, TrainConfig
from harness.corpora import CorpusInfo, TokenCorpus, open_corpus
from harness.corpora import describe as describe_corpus
from harness.data import (
    Batch,
    TokenBatches,
    bits_per_byte,
    validation_batches,
    validation_bytes_per_token,
)
from harness.tasks import Examples, Task, TaskInfo, build_task


@dataclass(frozen=True)
class SourceInfo:
    """What a plan and a model need to know of a source."""

    name: str
    sha256: str
    """Identity of the content: of a corpus its tokens, of a task its rule."""
    vocab_size: int
    unigram_entropy_nats: float
    """Entropy of the targets' frequencies: the loss of a model blind to context."""
    n_train_tokens: int | None
    """None for a task, which never repeats itself."""
    n_val_tokens: int | None
    """None for a task."""


class Batches(Protocol):
    """Training batches of one run."""

    n_sequences: int

    def batch(self, step: int) -> Batch:
        """Return the batch of one optimiser step."""


class Source(Protocol):
    """The data of one run."""

    info: SourceInfo
    bits_per_byte_per_nat: float | None
    """Bits per byte of text over loss in nats; None where there is no text."""

    def batches(self) -> Batches:
        """Return the training batches."""

    def validation(self, batch_seqs: int) -> list[Batch]:
        """Return the fixed validation set in groups of at most ``batch_seqs`` sequences."""


class TextSource:
    """Windows of a corpus."""

    def __init__(self, corpus: TokenCorpus, config: RunConfig) -> None:
        self.info = _corpus_info(corpus.info)
        self.corpus, self.config = corpus, config
        sizes = {"seq_len": config.data.seq_len, "eval_tokens": config.train.eval_tokens}
        self.bits_per_byte_per_nat: float | None = bits_per_byte(
            1.0, validation_bytes_per_token(corpus, **sizes)
        )

    def batches(self) -> TokenBatches:
        """Return random windows of the training split."""
        return TokenBatches(
            self.corpus,
            seq_len=self.config.data.seq_len,
            batch_tokens=self.config.train.batch_tokens,
            seed=self.config.seed,
        )

    def validation(self, batch_seqs: int) -> list[Batch]:
        """Return the fixed windows of the validation split."""
        return list(
            validation_batches(
                self.corpus,
                seq_len=self.config.data.seq_len,
                eval_tokens=self.config.train.eval_tokens,
                batch_seqs=batch_seqs,
            )
        )


class TaskBatches:
    """Training batches of a generated task."""

    def __init__(self, task: Task, *, n_sequences: int, seed: int) -> None:
        self.task, self.n_sequences, self.seed = task, n_sequences, seed

    def batch(self, step: int) -> Batch:
        """Return inputs over labels, ``[n_sequences, 2, seq_len]``."""
        return stacked(self.task.training(self.seed, step, self.n_sequences))


class TaskSource:
    """Sequences of a generated task."""

    bits_per_byte_per_nat: float | None = None

    def __init__(self, task: Task, config: RunConfig) -> None:
        self.info = _task_info(task.info)
        self.task, self.config = task, config

    def batches(self) -> TaskBatches:
        """Return the sequences of every step."""
        n_sequences = self.config.train.batch_tokens // self.task.seq_len
        return TaskBatches(self.task, n_sequences=n_sequences, seed=self.config.seed)

    def held_out(self) -> Examples:
        """Return the fixed validation set with its difficulties."""
        return self.task.held_out(self.config.train.eval_tokens // self.task.seq_len)

    def validation(self, batch_seqs: int) -> list[Batch]:
        """Return the fixed validation set."""
        examples = stacked(self.held_out())
        return [examples[i : i + batch_seqs] for i in range(0, len(examples), batch_seqs)]


def stacked(examples: Examples) -> Batch:
    """Inputs over labels, ``[n, 2, seq_len]``."""
    return np.stack([examples.inputs, examples.labels], axis=1)


def describe_source(
    data: DataConfig, corpus: Callable[[str], CorpusInfo] = describe_corpus
) -> SourceInfo:
    """Say what a run's data hold, without reading them where that is possible.

    Raises
    ------
    DataError
        There is no such corpus or task.
    """
    if data.task is None:
        return _corpus_info(corpus(data.corpus))
    return _task_info(build_task(data.task, data.options).info)


def window_mistake(data: DataConfig, train: TrainConfig, info: SourceInfo) -> str | None:
    """Say why batches or the validation set cannot be cut into windows; None when they can."""
    seq_len = data.seq_len
    for name in ("batch_tokens", "eval_tokens"):
        tokens = getattr(train, name)
        if tokens % seq_len:
            below, above = tokens // seq_len * seq_len, -(-tokens // seq_len) * seq_len
            advice = f"Write {f'{below} or ' if below else ''}{above} tokens"
            if data.task is not None:
                rule = f"train.{name} must be a multiple of the {seq_len} tokens of a sequence"
                return f"{rule} of data.task {data.label}, got {tokens}. {advice}."
            rule = f"train.{name} must be a multiple of data.seq_len"
            return f"{rule}, got {tokens} and {seq_len}. {advice}, or change data.seq_len."
    if info.n_train_tokens is None or info.n_val_tokens is None:
        return None
    if train.eval_tokens > info.n_val_tokens - 1:
        most = (info.n_val_tokens - 1) // seq_len * seq_len
        rule = f"train.eval_tokens must be at most {most} for data.corpus '{info.name}'"
        return f"{rule}, got {train.eval_tokens}. Lower it."
    if info.n_train_tokens <= seq_len:
        rule = f"data.seq_len must be below the {info.n_train_tokens} training tokens"
        return f"{rule} of data.corpus '{info.name}', got {seq_len}. Lower it."
    return None


def open_source(config: RunConfig) -> Source:
    """Open the data of a run; raises DataError as :func:`harness.corpora.open_corpus`."""
    data = config.data
    if data.task is None:
        return TextSource(open_corpus(data.corpus), config)
    return TaskSource(build_task(data.task, data.options), config)


def _corpus_info(info: CorpusInfo) -> SourceInfo:
    return SourceInfo(
        name=info.name,
        sha256=info.sha256,
        vocab_size=info.vocab_size,
        unigram_entropy_nats=info.unigram_entropy_nats,
        n_train_tokens=info.n_train_tokens,
        n_val_tokens=info.n_val_tokens,
    )


def _task_info(info: TaskInfo) -> SourceInfo:
    return SourceInfo(
        name=info.name,
        sha256=info.sha256,
        vocab_size=info.vocab_size,
        unigram_entropy_nats=info.label_entropy_nats,
        n_train_tokens=None,
        n_val_tokens=None,
    )
