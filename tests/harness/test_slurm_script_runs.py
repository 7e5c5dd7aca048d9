"""Scripts executed by bash outside Slurm: signals, waiting, requeueing, setup, mirror.

``scontrol`` and ``sleep`` on PATH are programs of the test, and the snapshot of the code holds a
worker that only waits; how Slurm itself treats such scripts is shown in ``tests/slurm``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.slurm import script
from harness.slurm.script import script_text
from tests.harness.test_slurm_script import plan

WORKER = """\
import os, signal, sys, time
from pathlib import Path

seen = Path(os.environ["SEEN"])
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if os.environ["WORKER"] != "deaf":
        signal.signal(number, lambda n, f: got.append(signal.Signals(n).name))
names = ("OMP_NUM_THREADS", "SRUN_CPUS_PER_TASK", "PYTHONPATH", "IN_CONTAINER")
text = [*sys.argv[1:], *(f"{name}={os.environ.get(name)}" for name in names)]
(seen / "started").write_text("\\n".join([*text, f"niceness {os.nice(0)}"]))
(seen / "ready").touch()
deadline = time.monotonic() + 60
patient = os.environ["WORKER"] != "quick"
while patient and not got and not (seen / "enough").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.2 if got else 0)  # saving takes a while
(seen / "ended").write_text(" ".join(got))
sys.exit(int(os.environ["CODE"]))
"""
MIRROR = """\
import os, signal, sys, time
from pathlib import Path

seen = Path(os.environ["SEEN"])
def end(number, frame):
    (seen / "mirror").write_text(f"worker ended {(seen / 'ended').exists()}, {os.nice(0)}")
    if sys.argv[1] != "slow":
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
(seen / "mirror.pid").write_text(str(os.getpid()))
(seen / "mirror ready").touch()
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    time.sleep(0.1)
"""
SCONTROL = """\
#!/bin/bash
echo "$* ended=$([ -e "$SEEN/ended" ] && echo yes) container=${IN_CONTAINER:-}" >> "$SEEN/scontrol"
if [ "$1" = show ]; then echo "JobId=77 JobState=$STATE Reason=None"; exit 0; fi
[ "$REFUSALS" -le "$(grep -c requeue "$SEEN/scontrol")" ] || { echo refused >&2; exit 1; }
"""
IN_CONTAINER = """\
#!/bin/bash
while [ "$1" != env ]; do shift; done
IN_CONTAINER=yes exec "$@"
"""


@dataclass
class Bench:
    """A folder with programs on PATH, a snapshot of the code, and what they leave behind."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bin", "seen", "cwd/harness", "code/harness"):
            (self.root / name).mkdir(parents=True)
        self.write("bin/scontrol", SCONTROL)
        self.write("bin/sleep", "#!/bin/bash\n")
        self.write("bin/apptainer", IN_CONTAINER)
        self.write("bin/srun", IN_CONTAINER)
        self.write("code/harness/__init__.py", "")
        self.write("code/harness/worker.py", WORKER)
        self.write("mirror.py", MIRROR)
        # What Python would import from the current folder by itself.
        self.write("cwd/harness/__init__.py", "raise SystemExit(99)")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PYTHON"))},
            **{
                "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                "SEEN": str(self.root / "seen"),
            },
            **{"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_ID": "4720"},
            **{"WORKER": "stays", "CODE": "75", "STATE": "RUNNING", "REFUSALS": "0"},
        }

    def write(self, name: str, text: str) -> None:
        """Write a program."""
        (self.root / name).write_text(text, encoding="utf-8")
        (self.root / name).chmod(0o755)

    def seen(self, name: str) -> str:
        """What a program left behind; empty where it did not."""
        path = self.root / "seen" / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def requeued(self) -> list[str]:
        """Calls of ``scontrol requeue``."""
        return [line for line in self.seen("scontrol").splitlines() if "requeue" in line]

    def start(self, block: dict[str, Any] | None = None, **changes: Any) -> subprocess.Popen[str]:
        """Start the script as slurmd would."""
        file = self.root / "script.sh"
        paths = {"code": self.root / "code", "job_file": self.root / "job.json"}
        changes = {"python": sys.executable, **paths, "sweep_dir": self.root / "r/s", **changes}
        file.write_text(script_text(plan(block, **changes)), encoding="utf-8")
        return subprocess.Popen(
            ["bash", str(file)],
            env=self.environment,
            cwd=self.root / "cwd",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, name: str) -> None:
        """Wait until a program has left something behind."""
        deadline = time.monotonic() + 60
        while not (self.root / "seen" / name).exists():
            assert time.monotonic() < deadline, f"{name} never came"
            time.sleep(0.01)

    def stop(self, process: subprocess.Popen[str], *signals: signal.Signals) -> tuple[int, str]:
        """Send signals to the script once the worker stands; return exit code and log."""
        self.wait_for("ready")
        for number in signals:
            process.send_signal(number)
            time.sleep(0.05)
        log, _ = process.communicate(timeout=60)
        return process.returncode, log


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / 'it\'s a "place" $HOME 100% é')


def test_a_warned_worker_saves_and_its_own_task_is_requeued_once(bench: Bench) -> None:
    code, log = bench.stop(bench.start(), signal.SIGUSR2)
    assert code == 75
    assert bench.seen("ended") == "SIGTERM"
    assert bench.requeued == ["requeue 4711_7 ended=yes container="]
    assert "goes back into the queue, restart 1 of 5" in log


def test_waiting_outlives_several_signals_and_hands_one_on(bench: Bench) -> None:
    signals = (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM)
    code, _ = bench.stop(bench.start(), *signals)
    assert (code, bench.seen("ended")) == (75, "SIGTERM")
    assert len(bench.requeued) == 1


def test_the_warning_is_the_signal_of_the_block(bench: Bench) -> None:
    code, _ = bench.stop(bench.start({"signal": "USR1"}), signal.SIGUSR1)
    assert (code, len(bench.requeued)) == (75, 1)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_worker_that_is_through_or_failed_is_not_requeued(bench: Bench, exit_code: int) -> None:
    bench.environment["CODE"] = str(exit_code)
    code, log = bench.stop(bench.start(), signal.SIGUSR2)
    assert (code, bench.seen("ended"), bench.seen("scontrol")) == (exit_code, "SIGTERM", "")
    assert f"worker ended with exit code {exit_code}" in log


def test_a_worker_that_stops_unasked_is_not_requeued(bench: Bench) -> None:
    bench.environment["WORKER"] = "quick"
    assert bench.stop(bench.start())[0] == 75
    assert bench.seen("scontrol") == ""


@pytest.mark.parametrize(("state", "requeues"), [("CANCELLED", 0), ("RUNNING", 1)])
def test_term_means_preemption_only_while_the_job_counts_as_running(
    bench: Bench, state: str, requeues: int
) -> None:
    bench.environment["STATE"] = state
    code, _ = bench.stop(bench.start(), signal.SIGTERM)
    assert (code, bench.seen("ended"), len(bench.requeued)) == (75, "SIGTERM", requeues)


@pytest.mark.parametrize(("restarts", "requeues"), [("4", 1), ("5", 0)])
def test_requeues_are_bounded_by_the_restarts_so_far(
    bench: Bench, restarts: str, requeues: int
) -> None:
    bench.environment["SLURM_RESTART_COUNT"] = restarts
    code, log = bench.stop(bench.start(), signal.SIGUSR2)
    assert (code, len(bench.requeued)) == (75, requeues)
    assert ("as often as max_requeues allows" in log) == (requeues == 0)


@pytest.mark.parametrize(("refusals", "calls"), [("2", 2), ("9", 3)])
def test_a_refused_requeue_is_tried_again_and_then_told(
    bench: Bench, refusals: str, calls: int
) -> None:
    bench.environment["REFUSALS"] = refusals
    code, log = bench.stop(bench.start(), signal.SIGUSR2)
    assert (code, len(bench.requeued)) == (75, calls)
    assert ("cannot be requeued" in log) == (refusals == "9")


def test_without_requeueing_scontrol_is_never_called(bench: Bench) -> None:
    code, _ = bench.stop(bench.start({"on_preempt": "resubmit"}), signal.SIGUSR2)
    assert (code, bench.seen("ended"), bench.seen("scontrol")) == (75, "SIGTERM", "")


def test_a_worker_ended_while_it_starts_is_requeued(bench: Bench) -> None:
    bench.environment["WORKER"] = "deaf"
    code, _ = bench.stop(bench.start(), signal.SIGUSR2)
    assert (code, bench.seen("ended"), len(bench.requeued)) == (75, "", 1)


def test_a_warning_during_setup_starts_no_worker(bench: Bench) -> None:
    setup = ['touch "$SEEN/ready"', "/bin/sleep 0.5"]
    code, _ = bench.stop(bench.start({"setup": setup}), signal.SIGUSR2)
    assert (code, bench.seen("started"), len(bench.requeued)) == (75, "", 1)


def test_setup_may_be_sloppy_or_strict_and_change_path(bench: Bench) -> None:
    setup = ["echo got $NO_SUCH_VARIABLE", "set -euo pipefail", "PATH=/usr/bin:/bin"]
    code, log = bench.stop(bench.start({"setup": setup}), signal.SIGTERM)
    assert (code, len(bench.requeued)) == (75, 1)
    assert "\ngot\n" in log


@pytest.mark.parametrize(
    ("setup", "teardown", "exit_code", "requeues"),
    [
        ([], ["echo torn >> $SEEN/torn"], 75, 1),
        ([], ["echo torn $NO_SUCH >> $SEEN/torn", "exit 9"], 75, 1),
        (["touch $SEEN/ready", "exit 4"], ["echo torn >> $SEEN/torn"], 4, 0),
    ],
)
def test_teardown_is_done_once_whatever_happens(
    bench: Bench, setup: list[str], teardown: list[str], exit_code: int, requeues: int
) -> None:
    lines = (
        [line.replace("$SEEN", '"$SEEN"') for line in setup],
        [line.replace("$SEEN", '"$SEEN"') for line in teardown],
    )
    process = bench.start({"setup": lines[0], "teardown": lines[1]})
    code, _ = bench.stop(process, *([signal.SIGUSR2] if requeues else []))
    assert (code, len(bench.requeued)) == (exit_code, requeues)
    assert bench.seen("torn").split() == ["torn"]


def test_the_snapshot_is_what_runs_with_its_arguments_and_threads(bench: Bench) -> None:
    bench.environment.update(WORKER="quick", CODE="0", SLURM_CPUS_PER_TASK="6", PYTHONPATH="/old")
    assert bench.stop(bench.start({"runs_at_once": 3, "runs_per_job": 3}))[0] == 0
    assert bench.seen("started").splitlines() == [
        *(str(bench.root / "job.json"), "--task", "7", "--workers", "3"),
        *("OMP_NUM_THREADS=2", "SRUN_CPUS_PER_TASK=6"),
        *(f"PYTHONPATH={bench.root / 'code'}:/old", "IN_CONTAINER=None", f"niceness {os.nice(0)}"),
    ]


def test_without_a_snapshot_python_finds_what_it_finds(bench: Bench) -> None:
    bench.environment.update(PYTHONPATH=str(bench.root / "code"), PYTHONSAFEPATH="1", CODE="0")
    bench.environment["WORKER"] = "quick"
    assert bench.stop(bench.start(code=None))[0] == 0


@pytest.mark.parametrize(("runtime", "handed_on"), [("apptainer", "SIGTERM"), ("pyxis", "SIGUSR2")])
def test_a_container_holds_the_worker_and_not_the_requeueing(
    bench: Bench, runtime: str, handed_on: str
) -> None:
    plain = bench.root.parent / "plain"
    block = {"container": {"image": "x.sif", "runtime": runtime}, "signal": "USR1"}
    code, _ = bench.stop(bench.start(block, sweep_dir=plain / "s"), signal.SIGUSR1)
    assert code == 75
    assert "IN_CONTAINER=yes" in bench.seen("started")
    assert f"PYTHONPATH={bench.root / 'code'}\n" in bench.seen("started")
    assert bench.seen("ended") == handed_on
    assert bench.requeued == ["requeue 4711_7 ended=yes container="]


def test_processes_of_srun_are_requeued_after_a_notice_that_only_they_got(bench: Bench) -> None:
    bench.write("bin/srun", '#!/bin/bash\nshift 5\nexec "$@"\n')
    bench.environment["WORKER"] = "quick"
    by_srun = {"srun_args": ["--mpi=none"]}
    assert bench.stop(bench.start(by_srun))[0] == 75
    assert len(bench.requeued) == 1
    bench.environment["STATE"] = "CANCELLED"
    (bench.root / "seen/scontrol").unlink()
    assert bench.stop(bench.start(by_srun))[0] == 75
    assert bench.requeued == []


def test_the_mirror_runs_beside_at_low_priority_and_ends_after_the_worker(bench: Bench) -> None:
    mirror = [sys.executable, str(bench.root / "mirror.py"), "x"]
    process = bench.start(mirror=mirror)
    bench.wait_for("mirror ready")
    code, _ = bench.stop(process, signal.SIGUSR2)
    assert (code, len(bench.requeued)) == (75, 1)
    assert bench.seen("mirror") == "worker ended True, 19"


def test_a_mirror_that_does_not_finish_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MIRROR_PATIENCE_S", 1)
    bench.environment["CODE"] = "0"
    process = bench.start(mirror=[sys.executable, str(bench.root / "mirror.py"), "slow"])
    bench.wait_for("mirror ready")
    (bench.root / "seen/enough").touch()
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "`isoloss sync` brings MLflow up to date" in log


@pytest.mark.parametrize("notice", [signal.SIGUSR2, signal.SIGTERM])
def test_after_a_notice_a_slow_mirror_does_not_delay_the_requeue(
    bench: Bench, notice: signal.Signals
) -> None:
    process = bench.start(mirror=[sys.executable, str(bench.root / "mirror.py"), "slow"])
    bench.wait_for("mirror ready")
    bench.wait_for("ready")
    process.send_signal(notice)
    assert process.wait(timeout=60) == 75
    with suppress(ProcessLookupError):  # under Slurm it goes with the job
        os.kill(int(bench.seen("mirror.pid")), signal.SIGKILL)
    log, _ = process.communicate(timeout=60)
    assert "the mirror did not finish" not in log, "its end was waited for"
    assert len(bench.requeued) == 1
    assert bench.seen("mirror").startswith("worker ended True")


def test_a_script_started_without_slurm_says_so(bench: Bench) -> None:
    del bench.environment["SLURM_ARRAY_JOB_ID"]
    log, _ = (process := bench.start()).communicate(timeout=60)
    assert process.returncode != 0
    assert "start this script with sbatch" in log
    assert bench.seen("started") == ""
