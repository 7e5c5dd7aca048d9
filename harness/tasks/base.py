"""The interface of a generated task and its registry.

A task writes sequences of tokens whose labels follow from a rule. Batches are pure functions of
(seed, step); the validation set is fixed. Third parties register by the entry point group
``isoloss.tasks`` or are named ``package.module:Class`` in the grid. Never imports torch.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from pydantic import Field, PositiveInt

from harness.config import Strict
from harness.errors import DataError
from harness.tasks.draws import HELD_OUT, Draws, Ints

IGNORED = -100
"""Label of positions where nothing is asked."""
SAMPLED, SAMPLED_TOKENS = 2048, 1 << 18
"""Sequences, and tokens at most, from which the frequencies of labels are taken."""
MAX_SEQ_LEN = 1 << 16
"""Longer sequences are a mistake: attention over them would fill any memory."""


@dataclass(frozen=True)
class Examples:
    """Sequences of a task."""

    inputs: Ints
    """Tokens, ``[n, seq_len]``."""
    labels: Ints
    """What the model must say at each position, ``[n, seq_len]``; :data:`IGNORED` where nothing is
    asked. All sequences of a batch have as many labels."""
    difficulty: Ints
    """Difficulty of what is asked at each position, ``[n, seq_len]``; 0 where nothing is."""

    @property
    def asked(self) -> Any:
        """Where a label is, boolean ``[n, seq_len]``."""
        return self.labels != IGNORED


@dataclass(frozen=True)
class TaskInfo:
    """What a plan, a model and a report need to know of a task."""

    name: str
    sha256: str
    """Identity of the rule: name, revision and options."""
    vocab_size: int
    seq_len: int
    label_entropy_nats: float
    """Entropy of the labels' frequencies: the loss of a model blind to the sequence."""
    chance: float
    """Accuracy of always giving the most frequent label."""
    graded_by: str
    """What the difficulty counts."""
    levels: tuple[int, ...]
    """Difficulties that occur, ascending."""


class TaskOptions(Strict):
    """Base of a task's options: immutable, typed strictly, unknown keys refused."""


class Graded(TaskOptions):
    """Options of tasks whose difficulty may grow while they train."""

    curriculum_steps: PositiveInt | None = Field(default=None)
    """Optimiser steps over which the largest difficulty grows from the smallest to the full one;
    default: full from the start."""


AnyOptions: TypeAlias = TaskOptions
"""Options of some task; a name that the class attribute ``Task.Options`` does not hide."""


class Task:
    """A rule that writes sequences and their labels."""

    name: ClassVar[str]
    """Registered name, set by :func:`task`."""
    revision: ClassVar[int]
    """Raised when the meaning of the task changes; enters the run id."""
    Options: ClassVar[type[AnyOptions]] = TaskOptions
    """Typed options of the task."""
    summary: ClassVar[str]
    """What must be computed, in one line."""
    source: ClassVar[str]
    """Paper, and where the rule deviates from it."""
    graded_by: ClassVar[str]
    """What the difficulty counts, in one word: ``length``, ``hops``, …"""

    def __init__(self, options: AnyOptions) -> None:
        self.options = options

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary; labels are among them."""
        raise NotImplementedError

    @property
    def levels(self) -> tuple[int, ...]:
        """Difficulties that occur, ascending, from 1 or more."""
        raise NotImplementedError

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        """Write ``n`` sequences.

        Parameters
        ----------
        draws
            The only source of randomness.
        hardest
            Largest of :attr:`levels` to be asked for. Tasks without a curriculum ignore it.
        """
        raise NotImplementedError

    def training(self, seed: int, step: int, n: int) -> Examples:
        """The batch of one optimiser step, a pure function of (seed, step)."""
        return self.sample(Draws(seed, step), n, self.hardest_at(step))

    def held_out(self, n: int) -> Examples:
        """The fixed validation set of ``n`` sequences, at full difficulty."""
        return self.sample(Draws(0, 0, HELD_OUT), n, self.levels[-1])

    def hardest_at(self, step: int) -> int:
        """Largest difficulty that training asks for at a step (from 0).

        ``levels[min(m - 1, floor(m step / curriculum_steps))]`` of m levels.
        """
        over = getattr(self.options, "curriculum_steps", None)
        m = len(self.levels)
        return self.levels[m - 1 if over is None else min(m - 1, m * step // over)]

    @cached_property
    def info(self) -> TaskInfo:
        """Facts of the task with these options.

        Raises
        ------
        DataError
            Sequences are longer than :data:`MAX_SEQ_LEN`, or break what :class:`Examples` promises.
        """
        if self.seq_len > MAX_SEQ_LEN:
            raise DataError(
                f"task '{self.name}' would write sequences of {self.seq_len} tokens, and at most "
                f"{MAX_SEQ_LEN} are allowed. Shorten them."
            )
        examples = self.held_out(max(1, min(SAMPLED, SAMPLED_TOKENS // self.seq_len)))
        self._keeps_promises(examples)
        _, counts = np.unique(examples.labels[examples.asked], return_counts=True)
        shares = counts / counts.sum()
        return TaskInfo(
            name=self.name,
            sha256=self._sha256(),
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
            label_entropy_nats=-math.fsum(shares * np.log(shares)),
            chance=float(shares.max()),
            graded_by=self.graded_by,
            levels=self.levels,
        )

    def _keeps_promises(self, examples: Examples) -> None:
        """Refuse a rule whose loss would depend on how a batch is cut, or whose labels are none."""
        per_sequence = examples.asked.sum(axis=1)
        answers = examples.labels[examples.asked]
        broken = {
            "not all sequences have as many labels": len(np.unique(per_sequence)) > 1,
            "no position has a label": not answers.size,
            "tokens or labels lie outside the vocabulary": any(
                part.size and not 0 <= part.min() <= part.max() < self.vocab_size
                for part in (answers, examples.inputs)
            ),
            "arrays are not int64 of [n, seq_len]": any(
                part.dtype != np.int64 or part.shape[1:] != (self.seq_len,)
                for part in (examples.inputs, examples.labels, examples.difficulty)
            ),
        }
        for what, is_so in broken.items():
            if is_so:
                raise DataError(f"task '{self.name}': {what}. Mend its method sample.")

    def _sha256(self) -> str:
        options = self.options.model_dump(mode="json", exclude_defaults=True)
        rule = {"task": self.name, "revision": self.revision, "options": options}
        return hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()


T = TypeVar("T", bound=type[Task])
_REGISTRY: dict[str, type[Task]] = {}


def task(name: str, *, revision: int) -> Callable[[T], T]:
    """Register the class below under ``name``.

    Raises
    ------
    DataError
        Another class already claims the name; both files are named.
    """

    def register(cls: T) -> T:
        other = _REGISTRY.get(name)
        if other is not None and _origin(other) != _origin(cls):
            files = " and ".join(_origin(c)[0] for c in (other, cls))
            raise DataError(f"task '{name}' is claimed by {files}; rename one of them")
        cls.name, cls.revision = name, revision
        _REGISTRY[name] = cls
        return cls

    return register


def _origin(cls: type) -> tuple[str, str]:
    return inspect.getfile(cls), cls.__qualname__


def available() -> Mapping[str, type[Task]]:
    """Import every task file and entry point, and return the registry by name.

    Raises
    ------
    DataError
        Two files claim one name, or an entry point cannot be loaded; the culprit is named.
    """
    _discover()
    return dict(sorted(_REGISTRY.items()))


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(importlib.import_module("harness.tasks").__path__):
        _import_file(module.name)
    for entry in entry_points(group="isoloss.tasks"):
        try:
            entry.load()
        except Exception as error:  # foreign code may raise anything
            raise DataError(
                f"entry point '{entry.name} = {entry.value}' cannot be loaded: {error}"
            ) from error


def _import_file(name: str) -> None:
    try:
        importlib.import_module(f"harness.tasks.{name}")
    except DataError:
        raise
    except Exception as error:  # a file under edit may raise anything
        raise DataError(f"harness/tasks/{name}.py cannot be imported: {error!r}") from error


def get(name: str) -> type[Task]:
    """Look a task up by registered name, or by ``package.module:Class``.

    Raises
    ------
    DataError
        No such task; lists what exists and the closest name.
    """
    if ":" in name:
        return _import_class(name)
    known = _REGISTRY if name in _REGISTRY else available()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise DataError(f"unknown task '{name}'{hint} Available: {', '.join(known)}.")
    return known[name]


def _import_class(path: str) -> type[Task]:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # foreign code may raise anything
        raise DataError(f"task '{path}' cannot be imported: {error!r}") from error
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise DataError(f"task '{path}' is not a subclass of harness.tasks.Task")
    if found not in _REGISTRY.values():
        task(path, revision=found.__dict__.get("revision", 1))(found)
    return found


def build_task(name: str, options: Mapping[str, Any]) -> Task:
    """Build a task from its name and the options beside it.

    Raises
    ------
    DataError
        There is no such task.
    ValidationError
        An option is unknown, of another type, or out of range.
    """
    cls = get(name)
    return cls(cls.Options.model_validate(dict(options)))
