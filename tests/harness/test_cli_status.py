"""The commands that look: status, logs, show, diff, failures; each as a user calls it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner, Result

from harness.cli_status import register
from harness.errors import IsolossError
from harness.paths import SweepPaths
from harness.show import overview_parts
from harness.sweep_view import ASK_EVERY_S, Scheduler, SweepView
from harness.watch import watch
from tests.harness.sweep_folders import (
    begin,
    finish,
    held_elsewhere,
    interrupt,
    loss_at,
    planned_run,
    record_end,
    submit,
    write_sweep,
)

ROOT = Path(__file__).resolve().parents[2]
RUNS = [planned_run(arm, seed) for arm in ("standard", "full") for seed in (0, 1)]
DONE, FAILED, RESTING, NEW = RUNS


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    paths = write_sweep(tmp_path / "results", RUNS)
    finish(paths, DONE)
    finish(paths, FAILED, "failed", "ValueError: no 7")
    interrupt(paths, RESTING, 30)
    return paths


def call(sweep: SweepPaths, command: str, *arguments: str) -> Result:
    app = Typer()
    register(app)
    results = ["--results", str(sweep.root.parent)]
    return CliRunner().invoke(app, [command, sweep.root.name, *arguments, *results])


def shown(sweep: SweepPaths, command: str, *arguments: str) -> str:
    done = call(sweep, command, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(sweep: SweepPaths, command: str, *arguments: str) -> str:
    error = call(sweep, command, *arguments).exception
    assert isinstance(error, IsolossError)
    return str(error)


def test_status_counts_the_runs_of_every_arm_and_says_what_to_do(sweep: SweepPaths) -> None:
    lines = shown(sweep, "status").splitlines()
    header = next(line.split() for line in lines if line.startswith("arm"))
    rows = {line.split()[0]: line.split() for line in lines if line}
    column = header.index("done")
    assert [rows[arm][column] for arm in ("standard", "full", "all")] == ["1", "0", "1"]
    column = header.index("failed")
    assert [rows[arm][column] for arm in ("standard", "full", "all")] == ["1", "0", "1"]
    assert "1 done, 2 planned, 1 failed" in "\n".join(lines)
    assert "1 failed: ValueError: no #" in lines
    assert lines[-1].startswith("Next: isoloss failures depth --results")
    assert sweep.status_page.exists()


def test_status_lists_every_run_on_request(sweep: SweepPaths) -> None:
    lines = shown(sweep, "status", "--runs").splitlines()
    told = {line.split()[0]: line.split()[1] for line in lines[1:5]}
    assert told == {
        DONE.run_id: "done",
        FAILED.run_id: "failed",
        RESTING.run_id: "resumable",
        NEW.run_id: "planned",
    }


def test_status_json_keeps_its_keys(sweep: SweepPaths) -> None:
    held_elsewhere(sweep.run(NEW.run_id), age_s=40)
    rows = {row["run_id"]: row for row in json.loads(shown(sweep, "status", "--json"))}
    assert set(rows[DONE.run_id]) >= {
        *("run_id", "arm", "cell", "status", "resumable", "step", "steps", "loss_nats"),
        *("seconds_left", "attempts", "excluded_because"),
        *("tokens", "holder", "silent_s", "scheduler"),
    }
    assert rows[DONE.run_id]["loss_nats"] == loss_at(DONE, 60)
    assert rows[FAILED.run_id]["excluded_because"] == "failed: ValueError: no 7"
    assert rows[RESTING.run_id]["tokens"] == 30 * 1024
    assert rows[NEW.run_id]["holder"] == "node3, job 123_4"
    assert rows[NEW.run_id]["silent_s"] > 30


def test_the_narrow_table_loses_no_column(sweep: SweepPaths) -> None:
    wide, narrow = columns(sweep, 160), columns(sweep, 70)
    assert (len(wide), len(narrow)) == (1, 2)
    assert set(wide[0]) == {word for header in narrow for word in header}
    assert {"done", "planned", "failed", "tokens", "FLOPs"} <= set(wide[0])


def columns(sweep: SweepPaths, width: int) -> list[list[str]]:
    """Headers of the tables that a terminal of ``width`` characters shows."""
    view = SweepView(sweep)
    console = Console(file=StringIO(), width=width)
    for part in overview_parts(view.overview(view.states()), width):
        console.print(part)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    return [line.split() for line in lines if line.startswith("arm ")]


def test_a_watch_ends_by_itself_with_1_when_something_failed(sweep: SweepPaths) -> None:
    for run in (RESTING, NEW):
        finish(sweep, run)
    assert call(sweep, "status", "--watch").exit_code == 1


def test_a_watch_ends_by_itself_with_0_once_all_is_done(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "results", [DONE])
    with looking(sweep) as process:
        finish(sweep, DONE)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("arm ") == 2  # the first look and the last
    assert "1 done" in out


def test_ctrl_c_leaves_a_watch_with_130_and_no_traceback(sweep: SweepPaths) -> None:
    with looking(sweep) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


@contextlib.contextmanager
def looking(sweep: SweepPaths) -> Iterator[subprocess.Popen[str]]:
    """A watch that has looked once."""
    command = [sys.executable, "-m", "harness.cli", "status", str(sweep.root), "--watch"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        deadline = time.monotonic() + 60
        while not sweep.status_page.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_watch_on_a_terminal_renews_its_block(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, [DONE, NEW])
    finish(sweep, DONE)
    finish(sweep, NEW)
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        console = Console(file=stream, width=100, height=24, force_terminal=True)
        assert watch(SweepView(sweep, watching=True), console, every_run=True) == 0
        console.file.flush()
        text = b""
        while b"2 done" not in text:
            text += os.read(controller, 65536)
    os.close(controller)
    assert DONE.run_id.encode() in text


def test_a_sweep_that_was_edited_while_watched_is_read_anew(sweep: SweepPaths) -> None:
    view = SweepView(sweep, watching=True)
    assert len(view.states()) == 4
    write_sweep(sweep.root.parent, [*RUNS, planned_run("delta")])
    assert [state.run.arm for state in view.states()][-1] == "delta"


def squeue_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Put a squeue first on PATH that is a script of these lines."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")


def test_status_without_an_answer_from_slurm_goes_by_files(
    sweep: SweepPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = submit(sweep, "i1234567", [[NEW.run_id]], "77")
    (out / "77_0.log").touch()  # ended, or back in the queue
    squeue_that(tmp_path, monkeypatch, "echo Unable to contact slurm controller >&2", "exit 1")
    text = shown(sweep, "status")
    assert "Slurm does not answer: states from files alone" in text
    assert "before it began" not in text
    rows = {row["run_id"]: row for row in json.loads(shown(sweep, "status", "--json"))}
    assert rows[NEW.run_id]["scheduler"]["job_id"] == "77_0"
    assert rows[DONE.run_id]["status"] == "done"


def test_status_on_a_machine_without_slurm_goes_by_files(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = submit(sweep, "i1234567", [[NEW.run_id]], "77")
    (out / "77_0.log").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    text = shown(sweep, "status")
    assert "no Slurm on this machine: states from files alone" in text
    assert "before it began" not in text


def test_logs_print_the_attempt_that_was_asked_for(sweep: SweepPaths) -> None:
    begin(sweep, RESTING, 30).end("interrupted")
    for number in (1, 2):
        log = sweep.run(RESTING.run_id).attempt(number) / "log"
        log.write_text(f"words of attempt {number}\n", encoding="utf-8")
    assert "words of attempt 2" in shown(sweep, "logs", RESTING.run_id)
    assert "words of attempt 1" in shown(sweep, "logs", RESTING.run_id, "--attempt", "1")
    assert "has 2 attempts, not 3" in refused(sweep, "logs", RESTING.run_id, "--attempt", "3")


def test_logs_of_a_run_that_a_job_never_began_are_the_jobs_output(sweep: SweepPaths) -> None:
    assert "has not begun" in refused(sweep, "logs", NEW.run_id)
    out = submit(sweep, "i1234567", [[DONE.run_id], [NEW.run_id]], "77")
    (out / "77_0.log").write_text("another task", encoding="utf-8")
    (out / "77_1.log").write_text("no module named torch", encoding="utf-8")
    assert "no module named torch" in shown(sweep, "logs", NEW.run_id)


def test_logs_follow_until_the_run_has_ended(sweep: SweepPaths) -> None:
    log = sweep.run(DONE.run_id).attempt(1) / "log"
    log.write_text("first\nlast\n", encoding="utf-8")
    assert "first\nlast\n" in shown(sweep, "logs", DONE.run_id, "--follow")


def test_logs_followed_end_with_a_cancelled_run_that_nobody_works_on(sweep: SweepPaths) -> None:
    log = sweep.run(RESTING.run_id).attempt(1) / "log"
    log.write_text("stopped\n", encoding="utf-8")
    sweep.run(RESTING.run_id).cancel.touch()
    assert "stopped\n" in shown(sweep, "logs", RESTING.run_id, "--follow")


def test_logs_followed_go_over_to_the_next_attempt(sweep: SweepPaths) -> None:
    here = sweep.run(RESTING.run_id)
    (here.attempt(1) / "log").write_text("first attempt\n", encoding="utf-8")
    command = [*(sys.executable, "-m", "harness.cli", "logs", str(sweep.root), RESTING.run_id)]
    process = subprocess.Popen([*command, "-f"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        while process.stdout.readline() != "first attempt\n":
            assert process.poll() is None
        lease = begin(sweep, RESTING, 60)
        (lease.folder / "log").write_text("second attempt\n", encoding="utf-8")
        record_end(sweep, RESTING, "done")
        lease.end("done")
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, "second attempt\n" in out) == (0, True)


def test_the_log_of_a_past_attempt_is_not_followed_for_ever(sweep: SweepPaths) -> None:
    (sweep.run(RESTING.run_id).attempt(1) / "log").write_text("old words\n", encoding="utf-8")
    begin(sweep, RESTING).end("interrupted")
    assert "old words\n" in shown(sweep, "logs", RESTING.run_id, "--attempt", "1", "--follow")


def test_jobs_that_ended_before_their_runs_began_are_told(
    sweep: SweepPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = submit(sweep, "i1234567", [[NEW.run_id]], "77")
    (out / "77_0.log").write_text("module: command not found\n", encoding="utf-8")
    squeue_that(tmp_path, monkeypatch, "exit 0")  # an empty queue
    text = shown(sweep, "status")
    assert "1 run: its job ended before it began, see isoloss failures depth --results" in text
    text = shown(sweep, "failures")
    assert "1 run: job ended before the run began: module: command not found" in text
    assert f"log    {out / '77_0.log'}" in text


def test_a_controller_that_hangs_does_not_hold_a_look_up_and_is_left_in_peace(
    sweep: SweepPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(sweep, "i1234567", [[NEW.run_id]], "77")
    squeue_that(tmp_path, monkeypatch, f"echo >> {tmp_path}/calls", "exec sleep 100")
    scheduler = Scheduler(sweep)
    assert "no answer within 3 s" in str(scheduler.ask().note)
    clock = time.monotonic() + ASK_EVERY_S
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    assert not scheduler.ask().answered
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "\n"


def test_show_tells_all_about_one_run(sweep: SweepPaths) -> None:
    checkpoints = sweep.run(RESTING.run_id).checkpoints
    checkpoints.mkdir()
    (checkpoints / "step-00000030.ckpt").write_bytes(b"x" * 2048)
    held_elsewhere(sweep.run(RESTING.run_id), age_s=40)
    text = shown(sweep, "show", RESTING.run_id)
    for fact in (
        *("running, step 30 of 60 (50%)", "node3, job 123_4, silent for 4", "interrupted"),
        *("train.lr", "flops_6nd", f"{loss_at(RESTING, 30):.4f}", "step 30, 2.05kB"),
    ):
        assert fact in text, fact
    told = json.loads(shown(sweep, "show", RESTING.run_id, "--json"))
    assert [attempt["how"][:6] for attempt in told["attempt_list"]] == ["interr", "silent"]
    assert told["validation"][0] == {
        "step": 15,
        "loss_nats": loss_at(RESTING, 15),
        "bits_per_byte": loss_at(RESTING, 15) / 2,
    }


def test_show_says_how_a_failed_run_ended(sweep: SweepPaths) -> None:
    text = shown(sweep, "show", FAILED.run_id)
    assert "ValueError: no 7" in text
    assert "0.1.0+gabc" in text


def test_diff_names_what_differs_and_compares_at_common_steps(sweep: SweepPaths) -> None:
    told = json.loads(shown(sweep, "diff", DONE.run_id, RESTING.run_id, "--json"))
    science = {c["name"]: (c["a"], c["b"]) for c in told["differs"] if c["section"] == "science"}
    assert science == {"residual.name": ("standard", "full")}
    assert told["loss_nats"] == [
        {"step": step, "a": loss_at(DONE, step), "b": loss_at(RESTING, step)} for step in (15, 30)
    ]
    text = shown(sweep, "diff", DONE.run_id, RESTING.run_id)
    assert "residual.name" in text
    assert "train.lr" not in text


def test_diff_reaches_into_another_sweep(sweep: SweepPaths) -> None:
    other = write_sweep(sweep.root.parent, [DONE], sweep="wider")
    finish(other, DONE)
    told = json.loads(shown(sweep, "diff", DONE.run_id, f"wider:{DONE.run_id[:5]}", "--json"))
    assert [c for c in told["differs"] if c["name"] != "who"] == []
    assert len(told["loss_nats"]) == 4
    assert "equal" in shown(sweep, "diff", DONE.run_id, f"wider:{DONE.run_id}")


def test_diff_of_runs_without_a_common_step_says_so(sweep: SweepPaths) -> None:
    assert "B was never validated" in shown(sweep, "diff", DONE.run_id, NEW.run_id)


def test_failures_say_what_failed_where_and_what_to_do(sweep: SweepPaths) -> None:
    log = sweep.run(FAILED.run_id).attempt(1) / "log"
    frame = '  File "/x/harness/data.py", line 12, in batch\n'
    log.write_text(f"Traceback (most recent call last):\n{frame}", encoding="utf-8")
    held_elsewhere(sweep.run(NEW.run_id), age_s=500, job=None)
    text = shown(sweep, "failures")
    for fact in (
        *("1 run: ValueError: no #", "at     harness/data.py:12 in batch", f"log    {log}"),
        *("1 run: died without a word", "Next: isoloss retry depth --results"),
    ):
        assert fact in text, fact
    told = json.loads(shown(sweep, "failures", "--json"))
    assert sorted(group["runs"] for group in told) == sorted([[FAILED.run_id], [NEW.run_id]])


def test_a_sweep_without_failures_says_so(tmp_path: Path) -> None:
    assert "nothing failed" in shown(write_sweep(tmp_path, [DONE]), "failures")


@pytest.mark.parametrize("command", ["status", "logs", "show", "diff", "failures"])
def test_every_command_has_an_example(command: str) -> None:
    app = Typer()
    register(app)
    told = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"Example: isoloss {command}" in " ".join(told.split())


def test_none_of_them_loads_a_training_library() -> None:
    modules = [
        *("cli_status", "watch", "status_page", "failures", "failure_groups", "run_facts"),
        *("run_page", "compare_runs", "sweep_view", "slurm.view", "slurm.client"),
    ]
    lines = "\n".join(f"import harness.{module}" for module in modules)
    check = f"{lines}\nimport sys\nprint({{'torch', 'lightning', 'mlflow'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
