"""The sbatch script of one job array, as plain bash that a person can read and start again.

Pure: a plan in, text out. The script starts one worker for each array task, hands Slurm's warning
on to it, waits until it has saved, and then puts its own array task back into the queue. Quoting is
checked against sbatch 22.05, which reads ``#SBATCH`` lines by rules of its own. Limits: what the
worker does with its task, and what happens to tasks that ended, is decided elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import IsolossError
from harness.slurm.options import Slurm
from harness.slurm.values import PLAIN

MIRROR_PATIENCE_S = 60
"""How long the MLflow mirror may take to finish after a worker that nobody asked to stop."""
STEP_PATIENCE_S = 120
"""How long the other processes of a run may go on after the first has ended."""
REQUEUE_TRIES, REQUEUE_PAUSE_S = 3, 10


@dataclass(frozen=True)
class ScriptPlan:
    """Everything that the script of one array depends on; all paths are absolute."""

    sweep: str
    token: str
    """Names the submission; the job is called ``<sweep>.<token>``."""
    job_file: Path
    sweep_dir: Path
    code: Path | None
    """Snapshot of the code, imported before any other; None: whatever Python finds."""
    out_dir: Path
    """Where the tasks' logs go, as ``%A_%a.log``."""
    n_tasks: int
    slurm: Slurm
    """Options of this array, overrides applied."""
    python: str
    threads: int
    """CPU threads of one run."""
    nodes: int = 1
    devices: int = 1
    """Processes of one run on each node."""
    dependency: str | None = None
    """As sbatch spells it, such as ``afterany:123``."""
    mirror: Sequence[str] | None = None
    """Command that mirrors the run folders to MLflow beside the worker."""


def script_text(plan: ScriptPlan) -> str:
    """Write the script.

    Raises
    ------
    IsolossError
        A path that sbatch or the container runtime cannot take.
    """
    if plan.nodes > 1 and plan.slurm.container is not None:
        raise IsolossError(
            f"slurm.container: runs over {plan.nodes} nodes are started by srun, which is not "
            "called inside a container. Set execution.nodes: 1, or remove the container."
        )
    parts = (
        _head(plan),
        _signals(plan),
        _environment(plan),
        _setup(plan),
        _code(plan),
        _worker(plan),
        _mirror(plan),
        _wait(plan),
        _end(plan),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(plan: ScriptPlan) -> str:
    first, last = f"{plan.sweep}, submission {plan.token}", plan.n_tasks - 1
    lines = [f"#SBATCH --{name}{_value(value)}" for name, value in _sbatch_options(plan)]
    return "\n".join(
        (
            "#!/bin/bash",
            f"# Sweep {first}: array tasks 0 to {last}. Written by `isoloss run --on slurm`.",
            "# By hand: `sbatch FILE` starts all tasks again, `sbatch --array=3 FILE` one of them.",
            "# Runs that are done, or that another worker has, are left alone.",
            *lines,
        )
    )


def _sbatch_options(plan: ScriptPlan) -> Iterable[tuple[str, str]]:
    slurm = plan.slurm
    yield "job-name", f"{plan.sweep}.{plan.token}"
    yield "array", f"0-{plan.n_tasks - 1}%{slurm.array_parallelism}"
    yield "output", _log_pattern(plan.out_dir)
    yield "open-mode", "append"
    yield "nodes", str(plan.nodes)
    yield "ntasks", str(plan.nodes * plan.devices)
    yield "ntasks-per-node", str(plan.devices)
    cpus = slurm.cpus(plan.threads)
    if cpus is not None:
        yield "cpus-per-task", str(cpus)
    for name in PLAIN:
        value = getattr(slurm, name)
        if value is not None:
            yield name.replace("_", "-"), str(value)
    yield "signal", f"B:{slurm.signal}@{slurm.signal_lead_s}"
    yield ("no-requeue" if slurm.on_preempt == "resubmit" else "requeue"), ""
    if plan.dependency is not None:
        yield "dependency", plan.dependency
    if "export" not in slurm.extra:
        yield "export", "ALL"
    yield from slurm.extra.items()


def _value(text: str) -> str:
    """Spell ``=value``; sbatch knows quotes, and a backslash also inside of them."""
    if not text:
        return ""
    if re.fullmatch(r"[\w@%+=:,./\[\]&|*-]+", text):
        return f"={text}"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'="{escaped}"'


def _log_pattern(folder: Path) -> str:
    text = _path(folder)
    if "\\" in text:
        raise IsolossError(
            f"{folder}: Slurm cannot log into a folder with a backslash in its name. "
            "Choose another --results."
        )
    return f"{text.replace('%', '%%')}/%A_%a.log"


def _path(path: Path) -> str:
    """Spell a path that must fit on one line."""
    text = str(path)
    if not path.is_absolute() or "\n" in text or "\r" in text:
        raise IsolossError(f"{text!r}: must be an absolute path on one line to be put in a script.")
    return text


def _environment(plan: ScriptPlan) -> str:
    return f"""\
: "${{SLURM_ARRAY_JOB_ID:?start this script with sbatch}}"
task="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
say() {{ echo "isoloss: $(date +%FT%T) task $task: $*"; }}
# Found before the setup lines can change PATH; it is never called inside a container.
scontrol=$(command -v scontrol || echo scontrol)
# CPU threads of one run.
export OMP_NUM_THREADS={plan.threads} MKL_NUM_THREADS={plan.threads}
# srun does not take this over from sbatch (since Slurm 22.05).
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi
restarts=${{SLURM_RESTART_COUNT:-0}}
say starts on "$(hostname)", restart "$restarts" as process $$"""


def _signals(plan: ScriptPlan) -> str:
    name, sent = plan.slurm.signal, _sent(plan)
    why = "srun would turn TERM into KILL" if _by_srun(plan) else "the worker saves on TERM"
    return f"""\
set -u # a variable that does not exist is a mistake
# Slurm warns by {name} before the time limit, and sends TERM on scancel and preemption. Either is
# handed on to the worker once, as {sent}: {why}.
worker='' warned='' termed='' asked='' interrupted=''
hand_on() {{
  interrupted=1
  if [ -n "$worker" ] && [ -z "$asked" ]; then
    asked=1
    kill -s {sent} "$worker" 2>/dev/null
  fi
}}
trap 'warned=1; hand_on' {name}
trap 'termed=1; hand_on' TERM"""


def _sent(plan: ScriptPlan) -> str:
    """Signal that asks the worker to save and stop."""
    return "USR2" if _by_srun(plan) else "TERM"


def _setup(plan: ScriptPlan) -> str:
    teardown = ""
    if plan.slurm.teardown:
        lines = "\n".join(plan.slurm.teardown)
        teardown = f"""\
# Teardown lines of the slurm block: before the end, whatever it is, and only once.
teardown() {{
trap - EXIT
(
set +u
{lines}
)
}}
trap teardown EXIT"""
    setup = ""
    if plan.slurm.setup:
        lines = "\n".join(plan.slurm.setup)
        setup = f"# Setup lines of the slurm block.\nset +u\n{lines}\nset +e +o pipefail -u"
    return "\n\n".join(part for part in (teardown, setup) if part)


def _code(plan: ScriptPlan) -> str:
    if plan.code is None:
        return ""
    code = shlex.quote(_path(plan.code))
    return f"""\
# The code as it was at submission, before whatever else is installed; and not the code that lies
# in the current folder, which Python would put first.
export PYTHONPATH={code}"${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONSAFEPATH=1"""


def _pyxis(plan: ScriptPlan) -> bool:
    container = plan.slurm.container
    return container is not None and container.runtime == "pyxis"


def _by_srun(plan: ScriptPlan) -> bool:
    return _pyxis(plan) or bool(plan.slurm.srun_args)


def _worker(plan: ScriptPlan) -> str:
    python = shlex.quote(plan.python)
    n_workers = 1 if plan.nodes * plan.devices > 1 else plan.slurm.workers
    words = [
        *(_srun(plan) if _by_srun(plan) else ()),
        *_in_container(plan),
        f"{python} -m harness.worker {shlex.quote(_path(plan.job_file))}",
        f'--task "$SLURM_ARRAY_TASK_ID" --workers {n_workers}',
    ]
    lines = " \\\n  ".join(words)
    return f"""\
# The worker: claims the runs of this task one after the other. It ends with 0 when none is left, 75
# when it was asked to stop with runs left.
status=75
if [ -z "$interrupted" ]; then
  {lines} &
  worker=$!
  # The request may have come while it was started.
  if [ -n "$interrupted" ]; then hand_on; fi
fi"""


def _srun(plan: ScriptPlan) -> list[str]:
    """The worker as a step of its own; it starts the other processes of a run itself."""
    words = [f"srun --nodes=1 --ntasks=1 --overlap --wait={STEP_PATIENCE_S}"]
    if plan.devices > 1:
        words.append('--cpus-per-task="$SLURM_CPUS_ON_NODE"')
    if plan.slurm.srun_args:
        words.append(shlex.join(plan.slurm.srun_args))
    return words


def _in_container(plan: ScriptPlan) -> list[str]:
    """Words before a command that is to run in the container; none without one."""
    slurm, container = plan.slurm, plan.slurm.container
    if container is None:
        return []
    image = shlex.quote(container.image)
    mounts = [_mount(plan.sweep_dir.parent), *container.mounts]
    if container.runtime == "pyxis":
        pairs = ",".join(m if ":" in m else f"{m}:{m}" for m in mounts)
        words = [f"--container-image={image}", f"--container-mounts={shlex.quote(pairs)}"]
    else:
        gpus = " --nv" if slurm.n_gpus(plan.devices) else ""
        binds = " ".join(f"--bind {shlex.quote(mount)}" for mount in mounts)
        words = [f"apptainer exec{gpus} {binds}", image]
    if plan.code is not None:
        # An image may set its own PYTHONPATH, which would win over the one of the host.
        words.append(f"env PYTHONPATH={shlex.quote(_path(plan.code))} PYTHONSAFEPATH=1")
    return words


def _mount(results: Path) -> str:
    text = _path(results)
    if ":" in text or "," in text:
        raise IsolossError(
            f"{results}: cannot be mounted in a container, as its name has a colon or a comma. "
            "Choose another --results."
        )
    return text


def _mirror(plan: ScriptPlan) -> str:
    if plan.mirror is None:
        return ""
    step = ["srun --nodes=1 --ntasks=1 --overlap --cpus-per-task=1"] if _pyxis(plan) else []
    lines = " \\\n  ".join([*step, *_in_container(plan), f"nice -n 19 {shlex.join(plan.mirror)}"])
    return f"""\
# The mirror to MLflow, at the lowest priority.
{lines} &
mirror=$!"""


def _wait(plan: ScriptPlan) -> str:
    text = """\
# A signal ends `wait` early, so wait again until the worker has ended.
if [ -n "$worker" ]; then
  while kill -0 "$worker" 2>/dev/null; do wait "$worker"; done
  wait "$worker" # bash remembers how it ended
  status=$?
  # Bash 5.2 can lose that when a signal comes in the same moment.
  if [ "$status" -lt 0 ]; then status=75; fi
  worker=''
fi"""
    if plan.mirror is None:
        return text
    sent = "USR2" if _pyxis(plan) else "TERM"
    if _by_srun(plan):  # a notice of Slurm may have reached only the processes of srun
        no_notice = '[ -z "$interrupted" ] && [ "$status" -ne 75 ]'
    else:
        no_notice = '[ -z "$interrupted" ]'
    return f"""\
{text}

# Let the mirror finish, but not for ever; and not at all after a notice, since Slurm ends the job
# soon, and the task must be back in the queue before. What it leaves is left to the next one, or to
# `isoloss sync`.
kill -s {sent} "$mirror" 2>/dev/null
if {no_notice}; then
  for _ in $(seq {5 * MIRROR_PATIENCE_S}); do
    kill -0 "$mirror" 2>/dev/null || break
    sleep 0.2
  done
  if kill -9 "$mirror" 2>/dev/null; then
    say 'the mirror did not finish; `isoloss sync` brings MLflow up to date'
  fi
fi"""


def _end(plan: ScriptPlan) -> str:
    slurm = plan.slurm
    teardown = "\n\nteardown" if slurm.teardown else ""
    ended = (
        f'say "worker ended with exit code $status${{warned:+, after {slurm.signal}}}"{teardown}'
    )
    if slurm.on_preempt == "resubmit":
        return f"""\
{ended}
exit "$status" # on_preempt is resubmit: the next `isoloss run` submits what is left"""
    notice = '{ [ -n "$termed" ] && running; }'
    if _by_srun(plan):  # the processes of srun get Slurm's TERM past this script
        notice = "running"
    return f"""\
{ended}

# Put this array task (no other) back into the queue if it was stopped with runs left: by a warning,
# or by TERM while the job still counts as running, which is the notice of a preemption (after
# scancel it does not). 128 + a signal: it ended a worker that was still starting.
died=$((128 + $(kill -l {_sent(plan)})))
stopped() {{ [ "$status" -eq 75 ] || [ "$status" -eq "$died" ]; }}
running() {{ "$scontrol" show job "$task" | grep -q 'JobState=RUNNING'; }}
requeue() {{
  if [ "$restarts" -ge {slurm.max_requeues} ]; then
    say "was requeued $restarts times, as often as max_requeues allows; \\`isoloss run\\` goes on"
    return
  fi
  say "goes back into the queue, restart $((restarts + 1)) of {slurm.max_requeues}"
  for try in $(seq {REQUEUE_TRIES}); do # the controller may be busy
    if "$scontrol" requeue "$task"; then return; fi
    if [ "$try" -lt {REQUEUE_TRIES} ]; then sleep {REQUEUE_PAUSE_S}; fi
  done
  say 'cannot be requeued (see above); `isoloss run` submits what is left'
}}
if stopped && {{ [ -n "$warned" ] || {notice}; }}; then
  requeue
  status=75
fi
exit "$status\""""
