"""One check of the environment and its outcome, as `isoloss doctor` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One check and its outcome."""

    level: Level
    """ok: as it should be. note: works, with consequences. FAIL: something will not work."""
    what: str
    detail: str
    """What was found and, unless that is as it should be, what to do."""

    def __str__(self) -> str:
        return f"{self.level:4}  {self.what}: {self.detail}"
