"""What is asked of Slurm about jobs: submit, cancel, and how they ended."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import IsolossError
from harness.slurm.call import PATIENCE, Answer, NoCluster, Patience, call
from harness.slurm.queue import QueueRow, expand_ids, is_ended, queue_rows
from harness.slurm.types import SchedulerUnreachable

IDS_PER_CALL = 200
"""Job ids on one command line: sacct loses some of longer lists."""
RANGES_PER_ID = 500
"""Ranges of tasks in one ``12_[0-4,7]``."""
DAY_S = 86400.0
_JOB_ID = re.compile(r"(\d+)(;\S+)?")
_FULL = re.compile(r"maxsubmit|submit ?jobs? ?limit|temporarily unable to accept|maxjobcount", re.I)
_POLICY = re.compile(r"accounting/QOS policy", re.IGNORECASE)
_NAMED_LIMIT = re.compile(r"(qos|assoc)(max|min|grp)\w+", re.IGNORECASE)
_UNKNOWN_JOB = re.compile(r"invalid job id|already (completing|completed|finished)", re.IGNORECASE)

REMEDIES = (
    (
        r"invalid partition|partition .*not available",
        "slurm.partition: `sinfo` lists what there is",
    ),
    (r"invalid account", "slurm.account: `sacctmgr show assoc user=$USER` lists yours"),
    (r"invalid qos", "slurm.qos: `sacctmgr show assoc user=$USER format=qos` lists yours"),
    (r"job array specification", "more tasks than the cluster's MaxArraySize takes"),
    (r"time limit", "slurm.time: `sinfo -o '%P %l'` shows the limits"),
    (r"memory specification", "lower slurm.mem: no node of the partition has that much"),
    (r"generic resource|gres", "slurm.gres: `sinfo -o '%P %G'` shows what nodes have"),
    (r"node configuration", "lower what the slurm block asks of one node"),
    (r"feature", "slurm.constraint: `sinfo -o '%P %f'` shows the features"),
    (r"reservation", "slurm.reservation: `scontrol show reservation` lists them"),
    (r"node name", "slurm.nodelist or slurm.exclude: `sinfo -N` lists the nodes"),
    (r"not permitted|permission|denied", "ask the administrators for access to the partition"),
    (r"unrecognized option|invalid --|invalid .* specification", "mend that option (slurm.extra?)"),
    (r"batch script|unable to open file", "the script was changed after it was written"),
    (
        r"munge|authentication|credential",
        "munge does not work on this host: tell its administrators",
    ),
)
"""What Slurm refuses, as a pattern of its words, and what to do."""


class QueueFull(IsolossError):
    """A limit on how many jobs may be queued is reached; later there may be room."""


@dataclass(frozen=True)
class Outcome:
    """What Slurm knows of how one job ended, or that it has not."""

    state: str
    """Slurm's long state: COMPLETED, FAILED, TIMEOUT, PREEMPTED, NODE_FAIL, RUNNING, …"""
    exit_code: int | None
    """Of the batch script; None when a signal ended it."""
    signal: int | None
    reason: str
    """Slurm's word, if the controller still knows the job."""

    @property
    def ended(self) -> bool:
        """Whether it is over; unknown states are not."""
        return is_ended(self.state)


def available() -> bool:
    """Whether Slurm's commands are on PATH; the controller may still be away."""
    return all(shutil.which(command) for command in ("sbatch", "squeue", "scancel", "scontrol"))


def submit(script: Path, *, name: str, patience: Patience = PATIENCE) -> str:
    """Submit a batch script, once, however often the answer is lost.

    The options of its ``#SBATCH`` lines are given on the command line too, so that no ``SBATCH_…``
    variable of the user's overrides them. When the answer is lost, the queue is asked for the job's
    name before anything is submitted again.

    Parameters
    ----------
    script
        Its ``#SBATCH`` lines hold the options.
    name
        Job name, which no other job of this user has.

    Returns
    -------
    str
        Id of the job or array.

    Raises
    ------
    QueueFull
        A limit on queued jobs is reached.
    SchedulerUnreachable
        The controller did not answer in all the tries. It may have accepted the job all the same.
    IsolossError
        Slurm refuses the script; with its words and what to do.
    """
    command = ("sbatch", "--parsable", *batch_options(script), f"--job-name={name}", str(script))
    lost: str | None = None
    for pause_s in patience.pauses():
        time.sleep(pause_s)
        try:
            if lost is not None and (found := _named(name, patience)):
                return found[0]
            answer = call(*command, timeout_s=patience.submit_s)
        except NoCluster:
            raise
        except SchedulerUnreachable as error:
            lost = str(error)
            continue
        job_id = _job_id(answer)
        if job_id is not None:
            return job_id if lost is None else _only(job_id, name, patience)
        if answer.code != 0 and not answer.is_transient:
            raise _refusal(script, answer.words)
        lost = answer.words
    raise _given_up(name, lost or "", patience)


def batch_options(script: Path) -> list[str]:
    """Options of a script's ``#SBATCH`` lines, as sbatch would read them."""
    options = []
    for line in script.read_text(encoding="utf-8").splitlines():
        if line.startswith("#SBATCH"):
            options += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            break
    return options


def _job_id(answer: Answer) -> str | None:
    """Job id in the answer of ``sbatch --parsable``, below whatever a site's plugin prints."""
    lines = [line.strip() for line in answer.out.splitlines() if line.strip()]
    found = _JOB_ID.fullmatch(lines[-1]) if answer.code == 0 and lines else None
    return found[1] if found else None


def _named(name: str, patience: Patience) -> list[str]:
    """Ids of the jobs of this name, oldest first, with those that ended already."""
    rows = queue_rows(name=name, ended=True, patience=patience)
    return sorted({row.task.array_job for row in rows if row.task.name == name}, key=int)


def _only(job_id: str, name: str, patience: Patience) -> str:
    """Cancel all but the oldest job of a name: the lost submission may have arrived late."""
    try:
        found = _named(name, patience) or [job_id]
        cancel(found[1:], patience=patience)
    except SchedulerUnreachable:
        return job_id
    return found[0]


def _refusal(what: object, words: str) -> IsolossError:
    limit = _NAMED_LIMIT.search(words)
    if _FULL.search(words) or (_POLICY.search(words) and limit is None):
        return QueueFull(
            f"Slurm takes no more jobs of yours for now: {words}. Those submitted go on; run the "
            "same command again later, or set slurm.max_queued below the limit."
        )
    if limit is not None:
        remedy = f"ask for less than {limit[0]} allows, or choose another slurm.qos"
    else:
        fitting = (r for pattern, r in REMEDIES if re.search(pattern, words, re.IGNORECASE))
        remedy = next(fitting, "mend the slurm block")
    return IsolossError(f"{what}: Slurm refuses it: {words}. What to do: {remedy}.")


def _given_up(name: str, words: str, patience: Patience) -> IsolossError:
    if _FULL.search(words):
        return _refusal(name, words)
    return SchedulerUnreachable(
        f"submission of {name}: the Slurm controller did not answer {patience.tries} times: "
        f"{words}. It may have accepted it all the same: run the same command again, which finds "
        "the job in the queue by its name and never submits it twice."
    )


def cancel(job_ids: Sequence[str], *, patience: Patience = PATIENCE) -> None:
    """Cancel jobs and array tasks; those that ended or never were are fine.

    Raises
    ------
    SchedulerUnreachable
        The controller does not answer.
    IsolossError
        Slurm refuses: somebody else's job.
    """
    for batch in _batches(_lumped(job_ids)):
        _act("scancel", *batch, patience=patience)


def _act(*command: str, patience: Patience) -> None:
    """Do what may be done twice, until Slurm says that it is done."""
    words = ""
    for pause_s in patience.pauses():
        time.sleep(pause_s)
        try:
            answer = call(*command, timeout_s=patience.query_s)
        except NoCluster:
            raise
        except SchedulerUnreachable as error:
            words = str(error)
            continue
        if answer.code == 0 or _UNKNOWN_JOB.search(answer.err):
            return
        words = answer.words
        if not answer.is_transient:
            raise IsolossError(f"{' '.join(command[:2])}: Slurm refuses: {words}.")
    raise SchedulerUnreachable(f"Slurm does not answer: {command[0]}: {words}")


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_PER_CALL):
        yield ids[start : start + IDS_PER_CALL]


def _lumped(job_ids: Iterable[str]) -> list[str]:
    """Ids with the tasks of each array in ranges: ``12_[0-4,7]``; one request each."""
    arrays: dict[str, set[int]] = {}
    plain = []
    for job_id in job_ids:
        array_job, _, index = job_id.partition("_")
        if index.isdigit():
            arrays.setdefault(array_job, set()).add(int(index))
        else:
            plain.append(job_id)
    for array_job, indices in arrays.items():
        spans = _spans(sorted(indices))
        parts = (spans[i : i + RANGES_PER_ID] for i in range(0, len(spans), RANGES_PER_ID))
        plain += [f"{array_job}_[{','.join(part)}]" for part in parts]
    return plain


def _spans(indices: list[int]) -> list[str]:
    starts = [i for i, index in enumerate(indices) if i == 0 or indices[i - 1] != index - 1]
    ends = [*starts[1:], len(indices)]
    pairs = [(indices[start], indices[end - 1]) for start, end in zip(starts, ends, strict=True)]
    return [str(first) if first == last else f"{first}-{last}" for first, last in pairs]


def outcomes(
    job_ids: Sequence[str],
    *,
    since: float | None = None,
    users: Sequence[str] | None = None,
    patience: Patience = PATIENCE,
) -> dict[str, Outcome]:
    """What Slurm knows of jobs: the controller first, accounting where it has forgotten them.

    Parameters
    ----------
    job_ids
        ``12`` or ``12_7``.
    since
        When the oldest was submitted, in seconds since the epoch; default: thirty days ago.

    Returns
    -------
    dict
        By id; without those that nobody knows. Absent is not ended.

    Raises
    ------
    SchedulerUnreachable
        The controller does not answer. Accounting that is off, away or absent raises nothing.
    """
    rows = queue_rows(users=users, ended=True, patience=patience)
    known = {row.task.job_id: _outcome(row) for row in rows}
    forgotten = [job_id for job_id in job_ids if job_id not in known]
    if forgotten:
        start = (time.time() - 30 * DAY_S if since is None else since) - DAY_S
        known |= _accounted(forgotten, start, patience)
    return {job_id: known[job_id] for job_id in job_ids if job_id in known}


def _outcome(row: QueueRow) -> Outcome:
    signal, code = row.wait_status & 0x7F, row.wait_status >> 8
    return Outcome(row.task.state, None if signal else code, signal or None, row.task.reason)


def _accounted(job_ids: Sequence[str], start: float, patience: Patience) -> dict[str, Outcome]:
    """Outcomes from sacct, by id; nothing where it has nothing to say."""
    # Without a start sacct looks at today only: a job that ended before midnight would be missing.
    window = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start))
    options = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")
    jobs = sorted({job_id.partition("_")[0] for job_id in job_ids})
    found: dict[str, Outcome] = {}
    for batch in _batches(jobs):
        command = ("sacct", f"--starttime={window}", *options, f"--jobs={','.join(batch)}")
        try:
            answer = call(*command, timeout_s=patience.query_s)
        except IsolossError:
            return found
        for line in answer.out.splitlines() if answer.code == 0 else ():
            found |= _accounted_line(line)
    return found


def _accounted_line(line: str) -> dict[str, Outcome]:
    """Read ``12_7|CANCELLED by 0|0:15``."""
    ids, state, status = line.split("|")[:3]
    code, _, signal = status.partition(":")
    killed = signal not in ("", "0")
    outcome = Outcome(
        state=state.split(" ")[0],
        exit_code=int(code) if code.isdigit() and not killed else None,
        signal=int(signal) if killed else None,
        reason="",
    )
    return dict.fromkeys(expand_ids(ids), outcome)
