"""The request to stop a run: raised by a signal or a dead parent, heeded at a step boundary.

A handler that saved would run in the middle of anything; ours only raises a flag.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""Ctrl-C, the pool and Slurm's own, and the one that batch scripts ask Slurm to send ahead of the
time limit. Not SIGUSR1, which some builds of NCCL take for themselves."""


class Stop(Protocol):
    """What training asks once a step."""

    def __bool__(self) -> bool:
        """Whether the run shall save and stop."""

    @property
    def lost(self) -> bool:
        """Whether another process owns the run now, so that nothing more may be written."""

    @property
    def installed(self) -> bool:
        """Whether this process's signals are ours."""


@dataclass
class StopSignal:
    """Asks a run to stop at the next step boundary: by a signal, or because its parent is gone."""

    parent: int | None = None
    requested: bool = False
    installed: bool = False
    """Whether this process's signals are ours."""
    signal: int | None = None
    """The signal that came first."""
    lost: bool = False
    """Whether another process owns the run now."""

    def install(self) -> None:
        """Take the signals; the handler only raises a flag."""
        self.installed = True
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.requested = True
        if self.signal is None:
            self.signal = number

    def __bool__(self) -> bool:
        return self.requested or (self.parent is not None and os.getppid() != self.parent)
