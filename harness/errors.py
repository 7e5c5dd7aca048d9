"""Errors that a user can mend: printed without a traceback, exit code 2."""

from __future__ import annotations

from collections.abc import Sequence


class IsolossError(Exception):
    """Something outside the code is wrong: the message says where, what, and what to do."""


class GridError(IsolossError):
    """One or more mistakes in a grid file, all of them found in one pass.

    Parameters
    ----------
    problems
        One line per mistake, each ``file:line: dotted.path: message``.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class DataError(IsolossError):
    """A corpus is absent, damaged, or not what its manifest says."""


class CheckpointError(IsolossError):
    """A checkpoint cannot be used: truncated, or written by another run."""


class LeaseLost(IsolossError):
    """Another process has taken a run over: nothing of it may be written any more."""


class OutOfMemory(IsolossError):
    """A run did not fit into memory.

    Parameters
    ----------
    message
        What was asked for, in one line.
    microbatch_seqs
        Sequences per forward pass that were too many.
    """

    def __init__(self, message: str, microbatch_seqs: int) -> None:
        self.microbatch_seqs = microbatch_seqs
        super().__init__(message)


class MissingExtraError(IsolossError):
    """A command needs an optional part of the installation."""

    def __init__(self, command: str, extra: str, module: str) -> None:
        super().__init__(
            f"'isoloss {command}' needs the module '{module}'. "
            f"Install the extra that brings it: in the checkout, pip install -e '.[{extra}]'"
        )
