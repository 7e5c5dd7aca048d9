"""The search of a sweep: what is tried, what a kill leaves, and when it ends."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.config import RUNAWAY
from harness.control import cancel_runs, retry_runs
from harness.errors import DataError, IsolossError
from harness.lease import acquire
from harness.records import PlannedRun, read_jsonl, read_manifest
from harness.slurm.view import SchedulerView
from harness.tuned import read_tuned
from harness.tuning.controller import Search
from harness.tuning.study import LOST
from tests.command_line import isoloss
from tests.harness.search_fixtures import Bench, Broken, Formula, Trained, bowl, grid_text
from tests.harness.test_local import command_of, live_workers, training_workers

LOG_RANGE = "{train.lr: {low: 1e-3, high: 1e-1, log: true}}"


class Killed(Formula):
    """The controller dies as soon as so many runs have ended: what it holds in memory is lost."""

    def __init__(self, search: Search, after: int) -> None:
        super().__init__(search.paths, bowl(0.04))
        self.after = after

    def tend(self, runs: Sequence[PlannedRun]) -> None:
        if len(self.executed) >= self.after:
            raise KeyboardInterrupt
        super().tend(runs)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, grid_text())


def test_a_bracket_ends_when_both_neighbours_are_worse(bench: Bench) -> None:
    tuned, trials = bench.by(bowl(0.075))
    assert tuned == read_tuned(bench.sweep.tuned)
    assert tuned is not None
    (cell,) = tuned.cells
    assert (cell.values, cell.interior) == ({"train.lr": 0.08}, {"train.lr": True})
    rates = sorted(r.lr for r in bench.records().values())
    assert rates == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert len(trials.executed) == cell.trials == 5
    assert {r.role for r in bench.records().values()} == {"trial"}
    assert {r.seed for r in bench.records().values()} == {1000}
    assert not bench.sweep.manifest.exists(), "trials are no runs of the sweep"


@pytest.mark.parametrize("method", ["tpe", "random", "bracket"])
def test_relaunch_does_nothing_and_a_higher_number_continues(tmp_path: Path, method: str) -> None:
    search = "{train.lr: {factor: 2}}" if method == "bracket" else LOG_RANGE
    bench = Bench(tmp_path, grid_text(search, f"method: {method}, trials: 3"))
    _, first = bench.by(bowl(0.2))
    _, again = bench.by(bowl(0.2))
    assert (len(first.executed), again.executed) == (3, [])
    bench.text = grid_text(search, f"method: {method}, trials: 5")
    _, more = bench.by(bowl(0.2))
    assert len(more.executed) == 2
    assert not set(first.executed) & set(more.executed)
    assert bench.states() == ["COMPLETE"] * 5


def test_trials_of_another_seed_do_not_count(bench: Bench) -> None:
    _, first = bench.by(bowl(0.04))
    bench.text = grid_text(more="trials: 12, refine: 0, seed: 1001")
    tuned, again = bench.by(bowl(0.04))
    assert tuned is not None
    assert len(again.executed) == len(first.executed) == tuned.cells[0].trials
    seeds = [record.seed for record in bench.records().values()]
    assert sorted(seeds) == [1000] * len(first.executed) + [1001] * len(again.executed)


def test_restarts_propose_what_an_undisturbed_search_proposes(tmp_path: Path) -> None:
    text = grid_text(LOG_RANGE, "method: tpe, trials: 8")
    whole, broken = Bench(tmp_path / "a", text), Bench(tmp_path / "b", text)
    whole.by(bowl(0.04), parallel=1)
    for after in (3, 2, 9):
        killed = lambda search, after=after: Killed(search, after)  # noqa: E731
        try:
            broken.search(killed, parallel=1)
        except KeyboardInterrupt:
            assert "RUNNING" in broken.states()
    tried = [[t.user_attrs["values"] for t in b.studies().popitem()[1]] for b in (whole, broken)]
    assert tried[0] == tried[1]
    assert len(broken.states()) == 8
    assert set(broken.states()) == {"COMPLETE"}


def test_a_kill_between_journal_and_manifest_loses_no_trial(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.search(lambda search: Killed(search, 1))
    bench.trials.manifest.unlink()
    tuned, _ = bench.by(bowl(0.04))
    assert tuned is not None
    assert bench.states() == ["COMPLETE"] * 4
    assert len(bench.records()) == 4 - 1, "the manifest was lost with the first run in it"


def test_a_trial_whose_run_was_never_written_is_given_up(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.search(lambda search: Killed(search, 1))
    lines = bench.trials.journal.read_text().splitlines()
    log = json.loads(next(line for line in lines if '"run_id"' in line))
    log["user_attrs"].pop("run_id")
    with bench.trials.journal.open("a") as journal:
        journal.write(json.dumps(log) + "\n")
    tuned, _ = bench.by(bowl(0.04))
    assert tuned is not None
    failed = [t for t in bench.studies().popitem()[1] if t.state.name == "FAIL"]
    assert [t.user_attrs["reason"] for t in failed] == [LOST]
    assert "RUNNING" not in bench.states()


def test_a_torn_journal_is_mended_and_said(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.search(lambda search: Killed(search, 2))
    with bench.trials.journal.open("ab") as journal:
        journal.write(b'{"op_code": 6, "worker_id": "abc", "tri')
    tuned, _ = bench.by(bowl(0.04))
    assert tuned is not None
    assert "torn by a kill" in bench.said[-1]
    assert set(bench.states()) == {"COMPLETE"}


def test_a_journal_damaged_in_the_middle_is_refused_and_can_be_begun_anew(bench: Bench) -> None:
    _, first = bench.by(bowl(0.04))
    lines = bench.trials.journal.read_bytes().splitlines(keepends=True)
    bench.trials.journal.write_bytes(b"".join([*lines[:3], b"\0\0\n", *lines[3:]]))
    with pytest.raises(DataError, match="line 4"):
        bench.by(bowl(0.04))
    bench.trials.journal.unlink()
    tuned, again = bench.by(bowl(0.04))
    assert tuned is not None
    assert again.executed == [], f"runs {first.executed} exist and were trained again"


def test_a_second_search_of_a_sweep_is_refused(bench: Bench) -> None:
    lease = acquire(bench.trials.root / "search")
    assert lease is not None
    with pytest.raises(IsolossError, match=f"process {os.getpid()} is at work"):
        bench.by(bowl(0.04))
    lease.end("left")


def test_choices_end_when_nothing_new_is_proposed(tmp_path: Path) -> None:
    more = "method: random, trials: 9"
    bench = Bench(tmp_path, grid_text("{train.lr: [1e-2, 2e-2]}", more))
    tuned, trials = bench.by(bowl(0.01))
    assert tuned is not None
    assert len(trials.executed) == 2
    repeats = [t for t in bench.studies().popitem()[1] if t.state.name == "FAIL"]
    assert all(t.user_attrs["repeat"] for t in repeats)
    n_trials = len(bench.states())
    bench.by(bowl(0.01))
    assert len(bench.states()) == n_trials


def test_a_diverged_trial_has_a_finite_loss(bench: Bench) -> None:
    class Diverging(Formula):
        def record(self, run: PlannedRun) -> object:  # type: ignore[override]
            record = super().record(run)
            if record.lr <= 0.02:
                return record
            why = {"status": "diverged", "excluded_because": "diverged: up", "loss_nats": None}
            return record.model_copy(update=why)

    tuned, _ = bench.search(lambda search: Diverging(search.paths, bowl(0.02)))
    assert tuned is not None
    assert tuned.cells[0].values == {"train.lr": 0.02}
    (diverged,) = [t for t in bench.studies().popitem()[1] if t.user_attrs.get("diverged")]
    vocab = read_manifest(bench.trials).runs[0].vocab_size
    assert diverged.value == pytest.approx(RUNAWAY * math.log(vocab))


def test_a_failed_run_stops_its_arm_until_it_is_mended(bench: Bench) -> None:
    tuned, trials = bench.search(lambda search: Broken(search.paths, bowl(0.04)), parallel=1)
    assert tuned is None
    assert (bench.states(), len(trials.executed)) == (["FAIL"], 1)
    assert "isoloss retry" in bench.said[-1]
    retry_runs(bench.trials, read_manifest(bench.trials).runs)
    tuned, again = bench.by(bowl(0.04))
    assert tuned is not None
    assert trials.executed[0] in again.executed
    assert bench.states() == ["FAIL"] + ["COMPLETE"] * 4


def test_a_cancelled_trial_stops_its_search_until_retry(bench: Bench) -> None:
    class Cancelled(Formula):
        def execute(self, run: PlannedRun) -> None:
            cancel_runs(self.paths, [run.run_id], SchedulerView())

    tuned, _ = bench.search(lambda search: Cancelled(search.paths, bowl(0.04)), parallel=1)
    assert tuned is None
    assert bench.states() == ["FAIL"]
    assert "was cancelled" in bench.said[-1]
    assert bench.by(bowl(0.04))[0] is None, "the bracket needs the cancelled run"
    retry_runs(bench.trials, read_manifest(bench.trials).runs)
    assert bench.by(bowl(0.04))[0] is not None


def test_a_best_value_at_the_end_widens_its_range(tmp_path: Path) -> None:
    search = "{train.lr: {low: 1e-3, high: 4e-3, log: true}}"
    bench = Bench(tmp_path, grid_text(search, "method: tpe, trials: 20"))
    bench.by(bowl(0.03), parallel=1)
    assert max(r.lr for r in bench.records().values()) > 4e-3
    kept = Bench(tmp_path / "flag", grid_text(search, "method: tpe, trials: 9, at_edge: flag"))
    kept.by(bowl(0.03))
    assert max(r.lr for r in kept.records().values()) <= 4e-3


def test_cmaes_searches_two_ranges(tmp_path: Path) -> None:
    pytest.importorskip("cmaes")
    two = LOG_RANGE[:-1] + ", train.weight_decay: {low: 0.0, high: 0.2}}"
    bench = Bench(tmp_path, grid_text(two, "method: cmaes, trials: 6"))
    tuned, _ = bench.by(bowl(0.02))
    assert tuned is not None
    assert bench.states() == ["COMPLETE"] * 6
    one = Bench(tmp_path / "one", grid_text(LOG_RANGE, "method: cmaes"))
    with pytest.raises(IsolossError, match="two numbers"):
        one.by(bowl(0.02))


@pytest.mark.slow
def test_a_trial_stopped_early_says_what_when_and_why(tmp_path: Path) -> None:
    search = "{train.lr: [1e-2, 2e-2, 4e-2, 1e-7]}"
    stop = "stop: {pruner: median, min_trials: 3, warmup_evals: 1}"
    bench = Bench(tmp_path, grid_text(search, f"trials: 4, {stop}"))
    tuned, _ = bench.search(Trained, parallel=1)
    assert tuned is not None
    assert bench.states() == ["COMPLETE"] * 3 + ["PRUNED"]
    (stopped,) = [r for r in bench.records().values() if r.status == "cancelled"]
    rows = read_jsonl(bench.trials.run(stopped.run_id).metrics)
    losses = [row["loss_nats"] for row in rows if row["kind"] == "val"]
    assert len(losses) == 2
    others = [
        [
            row["loss_nats"]
            for row in read_jsonl(bench.trials.run(run_id).metrics)
            if row["kind"] == "val"
        ][1]
        for run_id, record in bench.records().items()
        if record.status == "done"
    ]
    assert stopped.excluded_because == (
        f"stopped early at step 10 of 20: loss {losses[1]:.4f} above the median "
        f"{sorted(others)[1]:.4f} of 3 trials"
    )
    assert stopped.last_step < 20
    assert tuned.cells[0].trials == 4
    assert retry_runs(bench.trials, read_manifest(bench.trials).runs) == []


@pytest.mark.slow
def test_successive_halving_stops_the_worst_and_says_among_how_many(tmp_path: Path) -> None:
    search = "{train.lr: [1e-2, 2e-2, 4e-2, 1e-7]}"
    stop = "stop: {pruner: asha, min_trials: 3, warmup_evals: 1}"
    bench = Bench(tmp_path, grid_text(search, f"trials: 4, {stop}"))
    assert bench.search(Trained, parallel=1)[0] is not None
    assert bench.states() == ["COMPLETE"] * 3 + ["PRUNED"]
    (stopped,) = [r for r in bench.records().values() if r.status == "cancelled"]
    assert stopped.lr == 1e-7
    assert stopped.excluded_because is not None
    assert stopped.excluded_because.startswith("stopped early at step 10 of 20: loss ")
    assert "not among the best 1 of 4 trials" in stopped.excluded_because


@pytest.mark.slow
def test_four_workers_and_the_controller_killed_at_random_end_with_the_declared_trials(
    tmp_path: Path,
) -> None:
    text = grid_text(LOG_RANGE, "method: tpe, trials: 6").replace("tokens: 5120", "tokens: 30720")
    bench, chance, kills = Bench(tmp_path, text), random.Random(5), 0
    grid = tmp_path / "grid.yaml"
    grid.write_text(text)
    results = ("--results", str(tmp_path / "results"))
    command = command_of("tune", grid, *results, "--workers", "4")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as controller:
        deadline = time.monotonic() + 120
        while kills < 2 or not any(bench.trials.runs.glob("*/record.json")):
            assert controller.poll() is None
            assert time.monotonic() < deadline
            time.sleep(chance.uniform(0.05, 0.3))
            for pid in training_workers(bench.trials)[: 2 - kills]:
                os.kill(pid, signal.SIGKILL)
                kills += 1
        controller.kill()
    again = command_of("tune", grid, *results, "--workers", "2")
    with subprocess.Popen(again, stdout=subprocess.PIPE, text=True) as controller:
        while kills < 3 and controller.poll() is None:
            time.sleep(chance.uniform(0.05, 0.3))
            for pid in training_workers(bench.trials)[:1]:
                os.kill(pid, signal.SIGKILL)
                kills += 1
        output = controller.communicate(timeout=240)[0]
    assert controller.returncode == 0, output
    assert_complete(bench, 6)
    assert not live_workers(bench.trials)
    assert read_tuned(bench.sweep.tuned) is not None
    relaunched = isoloss("tune", grid, *results)
    assert relaunched.returncode == 0
    assert "nats" not in relaunched.stdout.partition("arm and size")[0]
    assert_complete(bench, 6)


def assert_complete(bench: Bench, n_trials: int) -> None:
    """So many finished trials, each of a run of its own that is done; none open."""
    (trials,) = bench.studies().values()
    assert not [t for t in trials if not t.state.is_finished()]
    finished = [t for t in trials if t.state.name == "COMPLETE"]
    run_ids = [t.user_attrs["run_id"] for t in finished]
    assert len(run_ids) == len(set(run_ids)) == n_trials
    records = bench.records()
    assert sorted(records) == sorted(run_ids)
    for t in finished:
        record = records[t.user_attrs["run_id"]]
        assert (record.status, record.loss_nats) == ("done", t.value)


@pytest.mark.slow
def test_ctrl_c_saves_trials_and_run_tunes_first(tmp_path: Path) -> None:
    text = (
        grid_text().replace("tokens: 5120", "tokens: 51200").replace("seeds: [0, 1]", "seeds: [0]")
    )
    bench, grid = Bench(tmp_path, text), tmp_path / "grid.yaml"
    grid.write_text(text)
    run = command_of("run", grid, "--results", tmp_path / "results", "--workers", "2")
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as command:
        while not training_workers(bench.trials):
            assert command.poll() is None
            time.sleep(0.1)
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=120)[0]
    assert command.returncode == 1
    assert "every unfinished trial is saved" in said
    assert not live_workers(bench.trials)
    assert not bench.sweep.manifest.exists()
    tuned, _ = bench.search(Trained)
    assert tuned is not None
    assert "RUNNING" not in bench.states()


def test_help_starts_without_torch_and_optuna() -> None:
    code = "import sys; sys.argv = ['isoloss', 'tune', '--help']\nimport harness.cli\n"
    code += "try: harness.cli.main()\nexcept SystemExit: pass\n"
    code += "print({'torch', 'optuna', 'lightning'} & set(sys.modules) or 'light')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip().endswith("light"), done.stdout
    assert "Example: isoloss tune" in done.stdout
