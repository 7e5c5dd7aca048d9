"""Starts Slurm's commands: nothing else in the project does.

Every call has a time limit and a clean environment: a variable that a user or an allocation has set
(``SQUEUE_FORMAT``, ``SLURM_MEM_PER_CPU``) changes neither what is asked nor how it is answered.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from harness.slurm.types import NoSlurmHere, SchedulerUnreachable

KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"})
"""Variables of Slurm's that say where the cluster is, rather than what is wanted of it."""
SCRUBBED = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")
# Slurm's own words, from slurm_errno.c, for an answer that was lost or a controller that is busy.
_TRANSIENT = re.compile(
    r"socket timed out|unable to contact slurm controller|resource temporarily unavailable"
    r"|zero bytes were transmitted|temporarily unable to accept job|controller in standby"
    r"|connection (refused|reset|timed out|failure)|(receive|send) failure|error on send"
    r"|transport endpoint|not responding|slurm_receive_msg|broken pipe",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^(\w+: )?((fatal|error): )?")


class NoCluster(SchedulerUnreachable):
    """Slurm's commands are installed here, but belong to no cluster."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for the controller, and how often to ask again."""

    query_s: float = 30.0
    """Longest time of one command that only asks. Slurm's own MessageTimeout is 10 s by default."""
    submit_s: float = 150.0
    """Longest time of one sbatch, which waits up to two minutes itself where the queue is full."""
    tries: int = 6
    first_pause_s: float = 2.0
    longest_pause_s: float = 60.0

    def pauses(self) -> Iterator[float]:
        """Pause before each try, in seconds: none, then growing, with jitter."""
        yield 0.0
        for retry in range(self.tries - 1):
            full_s = min(self.longest_pause_s, self.first_pause_s * 2**retry)
            yield random.uniform(0.5, 1.0) * full_s


PATIENCE = Patience()


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Slurm's complaint in one line, without the program's name."""
        lines = (_PREFIX.sub("", line.strip()) for line in self.err.splitlines())
        return " ".join(line for line in lines if line) or f"exit code {self.code}"

    @property
    def is_transient(self) -> bool:
        """Whether the same command may succeed later; its work may even have been done."""
        return self.code != 0 and _TRANSIENT.search(self.err) is not None


def call(*command: str, timeout_s: float) -> Answer:
    """Run one of Slurm's commands.

    Raises
    ------
    SchedulerUnreachable
        It did not end in time.
    NoCluster
        This machine is not configured as a client of a cluster.
    NoSlurmHere
        It is not installed here.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            text=True,
            errors="replace",
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        # subprocess hands the part that it read over as bytes, even in text mode.
        said = (error.stderr or b"").decode(errors="replace")
        raise SchedulerUnreachable(
            f"{command[0]}: no answer within {timeout_s:g} s. {said.strip()}".strip()
        ) from error
    except OSError as error:
        raise NoSlurmHere(
            f"{command[0]}: cannot be started ({error.strerror}). Slurm's commands must be on "
            "PATH: load the cluster's Slurm module, or use --on local."
        ) from error
    if done.returncode != 0 and "configuration source" in done.stderr:
        raise NoCluster(
            "Slurm's commands are installed, but no cluster is configured on this machine: there "
            "is no slurm.conf, and SLURM_CONF names none. Run this on a login node."
        )
    return Answer(done.returncode, done.stdout, done.stderr)


def ask(*command: str, timeout_s: float = PATIENCE.query_s) -> str:
    """Run a command that only asks; return what it prints.

    Raises
    ------
    SchedulerUnreachable
        It failed or did not end in time: nothing can be concluded about any job.
    """
    answer = call(*command, timeout_s=timeout_s)
    if answer.code == 0:
        return answer.out
    raise SchedulerUnreachable(f"Slurm does not answer: {command[0]}: {answer.words}")


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k in KEPT or not k.startswith(SCRUBBED)}
