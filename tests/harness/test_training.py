"""One run through the Trainer: exact resuming, micro-batches, divergence, identities."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.callbacks import even_steps
from harness.checkpoints import newest_checkpoint
from harness.config import Execution
from harness.errors import CheckpointError, DataError
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, append_jsonl, read_jsonl, read_record
from harness.stop import StopSignal
from harness.training import train
from tests.conftest import plan_run, run_folder

QUICK = Execution(n_evals=2, log_every=1, n_diagnostics=1)


class StopAt(StopSignal):
    """Asks for a stop after a number of looks, one a step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def __bool__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def begin_attempt(paths: RunPaths) -> int:
    number = paths.n_attempts() + 1
    paths.attempt(number).mkdir(parents=True)
    return number


def train_once(
    run: PlannedRun, paths: RunPaths, execution: Execution = QUICK, stop: StopSignal | None = None
) -> RunRecord | None:
    return train(
        run, "test", paths, execution, StopSignal() if stop is None else stop, begin_attempt(paths)
    )


def losses(paths: RunPaths, kind: str = "train") -> list[float]:
    return [row["loss_nats"] for row in read_jsonl(paths.metrics) if row["kind"] == kind]


def test_a_run_ends_with_a_complete_record(sweep: SweepPaths) -> None:
    run = plan_run("full")
    paths = run_folder(sweep, run)
    record = train_once(run, paths)
    assert record is not None
    assert record == read_record(paths.record)
    assert record.status == "done"
    assert record.excluded_because is None
    assert record.last_step == record.steps == 12
    assert record.loss_nats == losses(paths, "val")[-1]
    assert record.bits_per_byte == pytest.approx(record.loss_nats / 0.6931471805599453)
    measured = ("tokens_per_s", "step_time_s", "mfu", "wall_s", "peak_bytes", "peak_flops_per_s")
    assert all(getattr(record, name) > 0 for name in measured)
    diagnostics = read_jsonl(paths.diagnostics)[-1]
    assert len(diagnostics["grad_rms"]) == 4
    assert [read["t"] for read in diagnostics["reads"]] == [0, 1, 2, 3, 4]
    assert all(abs(sum(read["mean_weights"]) - 1) < 1e-6 for read in diagnostics["reads"])


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_stopped_run_resumes_bit_for_bit(
    sweep: SweepPaths, optimizer: str, precision: str
) -> None:
    settings = {"optimizer": optimizer, "precision": precision}
    run = plan_run("block", {"block_size": 2}, train=settings)
    undisturbed = run_folder(SweepPaths(sweep.root / "undisturbed"), run)
    expected = train_once(run, undisturbed)
    paths = run_folder(sweep, run)
    for stop_after in (1, 4, 3):
        assert train_once(run, paths, stop=StopAt(stop_after)) is None
        assert not paths.record.exists()
    record = train_once(run, paths)
    assert record is not None
    assert expected is not None
    assert record.attempts == 4
    assert record.loss_nats == expected.loss_nats
    assert losses(paths) == losses(undisturbed)


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run stopped after seven steps with its newest two checkpoints."""
    run, sweep = plan_run(), SweepPaths(tmp_path_factory.mktemp("whole"))
    paths = run_folder(sweep, run)
    eager = QUICK.model_copy(update={"checkpoint_every_s": 1e-9})
    assert train_once(run, paths, eager, StopAt(7)) is None
    return paths


def copied(paths: RunPaths, sweep: SweepPaths) -> tuple[RunPaths, Path, Path]:
    """A copy of a run's folder, with its newest and its older checkpoint."""
    copy = sweep.run(paths.run_id)
    shutil.copytree(paths.root, copy.root)
    newest, older = sorted(copy.checkpoints.glob("*.ckpt"), reverse=True)
    return copy, newest, older


@pytest.mark.parametrize(
    "share", [0.0, 1e-5, 1e-4, 0.01, 0.2, 0.4, 0.6, 0.8, 0.98, 0.9999, 0.99999]
)
def test_a_checkpoint_cut_anywhere_falls_back_on_the_one_before(
    sweep: SweepPaths, two_checkpoints: RunPaths, share: float
) -> None:
    paths, newest, older = copied(two_checkpoints, sweep)
    whole = newest.read_bytes()
    newest.write_bytes(whole[: int(share * len(whole))])
    assert newest_checkpoint(paths) == older
    assert newest.with_suffix(".damaged").exists()
    older.write_bytes(b"")
    assert newest_checkpoint(paths) is None


@pytest.mark.parametrize("share", [0.001, 0.3, 0.5, 0.7, 0.995])
def test_a_checkpoint_with_one_changed_byte_falls_back_on_the_one_before(
    sweep: SweepPaths, two_checkpoints: RunPaths, share: float
) -> None:
    paths, newest, older = copied(two_checkpoints, sweep)
    altered = bytearray(newest.read_bytes())
    altered[int(share * len(altered))] ^= 0x55
    newest.write_bytes(altered)
    assert newest_checkpoint(paths) == older


def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(
    sweep: SweepPaths, two_checkpoints: RunPaths
) -> None:
    paths, newest, _ = copied(two_checkpoints, sweep)
    newest.unlink()
    newest.mkdir()
    with pytest.raises(IsADirectoryError):
        newest_checkpoint(paths)
    assert newest.exists()


def test_a_checkpoint_of_another_run_is_refused(sweep: SweepPaths) -> None:
    run, other = plan_run(), plan_run(seed=1)
    paths, foreign = run_folder(sweep, run), run_folder(sweep, other)
    assert train_once(run, paths, stop=StopAt(3)) is None
    foreign.checkpoints.symlink_to(paths.checkpoints)
    with pytest.raises(CheckpointError, match=f"written by run {run.run_id}, not by run"):
        train_once(other, foreign)


def test_a_changed_corpus_is_refused(sweep: SweepPaths) -> None:
    run = plan_run().model_copy(update={"corpus_sha256": "0" * 64})
    with pytest.raises(DataError, match="has changed since the run was planned"):
        train_once(run, run_folder(sweep, run))


def test_micro_batches_leave_the_losses_alone(sweep: SweepPaths) -> None:
    run = plan_run("full", train={"precision": "fp64", "optimizer": "adamw"})
    whole, cut = run_folder(sweep, run), run_folder(SweepPaths(sweep.root / "cut"), run)
    train_once(run, whole)
    train_once(run, cut, QUICK.model_copy(update={"microbatch_seqs": 3}))
    torch.testing.assert_close(
        torch.tensor(losses(cut)), torch.tensor(losses(whole)), rtol=0, atol=1e-9
    )


def test_diagnostics_and_validation_leave_training_alone(sweep: SweepPaths) -> None:
    run = plan_run("delta")
    silent, busy = run_folder(sweep, run), run_folder(SweepPaths(sweep.root / "busy"), run)
    train_once(run, silent, Execution(n_evals=1, log_every=1, n_diagnostics=0))
    train_once(run, busy, Execution(n_evals=12, log_every=1, n_diagnostics=12))
    assert losses(busy) == losses(silent)


@pytest.mark.parametrize("lr", [3e3, 1e30])
def test_a_run_that_diverges_ends_as_a_result(sweep: SweepPaths, lr: float) -> None:
    run = plan_run(train={"lr": lr, "optimizer": "adamw", "grad_clip": 0.0})
    paths = run_folder(sweep, run)
    record = train_once(run, paths)
    assert record is not None
    assert record.status == "diverged"
    assert record.loss_nats is None
    assert record.excluded_because is not None
    assert record.excluded_because.startswith("diverged: training loss")
    assert record.last_step < record.steps
    for line in paths.metrics.read_text().splitlines():
        json.loads(line, parse_constant=_refuse)


def test_logging_less_often_hides_no_divergence(sweep: SweepPaths) -> None:
    run = plan_run(train={"lr": 60.0, "optimizer": "adamw"})
    ends = []
    for log_every in (1, 10):
        paths = run_folder(SweepPaths(sweep.root / str(log_every)), run)
        record = train_once(run, paths, Execution(log_every=log_every, n_diagnostics=0))
        assert record is not None
        ends.append((record.status, record.excluded_because))
    assert ends[0] == ends[1]
    assert ends[0][0] == "diverged"


def test_wall_time_counts_attempts_whose_steps_were_all_repeated(sweep: SweepPaths) -> None:
    run = plan_run()
    paths = run_folder(sweep, run)
    begin_attempt(paths)
    lost = {"kind": "train", "step": 1, "loss_nats": 5.0, "step_time_s": 1.0, "attempt": 1}
    append_jsonl(paths.metrics, lost | {"elapsed_s": 600.0})
    record = train_once(run, paths)
    assert record is not None
    assert record.attempts == 2
    assert record.wall_s is not None
    assert 600 < record.wall_s < 700


def test_a_run_without_its_final_validation_is_never_done(sweep: SweepPaths) -> None:
    run = plan_run()
    paths = run_folder(sweep, run)
    train_once(run, paths)
    paths.record.unlink()
    kept = [row for row in paths.metrics.read_text().splitlines() if '"val"' not in row]
    paths.metrics.write_text("\n".join(kept) + "\n")
    with pytest.raises(DataError, match="validation of the last step is missing"):
        train_once(run, paths)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_bf16_and_fp32_train_alike(sweep: SweepPaths) -> None:
    results = []
    for precision in ("fp32", "bf16"):
        run = plan_run("block", train={"precision": precision})
        record = train_once(run, run_folder(sweep, run))
        assert record is not None
        results.append(record.loss_nats)
    assert results[0] == pytest.approx(results[1], abs=0.05)
    assert results[0] != results[1]


def test_even_steps_end_at_the_last_step() -> None:
    assert even_steps(10, 4) == {3, 5, 8, 10}
    assert even_steps(2, 5) == {1, 2}
    assert even_steps(7, 0) == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("residual", "options", "optimizer", "precision"),
    [
        ("full", {}, "adamw", "fp64"),
        ("block", {"block_size": 3}, "adamw", "fp64"),
        ("low_rank", {}, "adamw", "fp64"),
        ("full", {}, "muon", "fp32"),
        ("block", {"block_size": 3}, "muon", "fp32"),
    ],
)
def test_frozen_zero_queries_reproduce_the_standard_curve(
    sweep: SweepPaths, residual: str, options: dict[str, Any], optimizer: str, precision: str
) -> None:
    settings = {
        "budget": {"tokens": 200 * 256},
        "optimizer": optimizer,
        "precision": precision,
        "lr": 6e-3 if optimizer == "adamw" else 2e-2,
    }
    runs = [
        plan_run("standard", train=settings),
        plan_run(residual, {**options, "frozen_queries": True}, train=settings),
    ]
    quiet = Execution(n_evals=1, log_every=1, n_diagnostics=0)
    curves = []
    for run in runs:
        paths = run_folder(sweep, run)
        train_once(run, paths, quiet)
        curves.append(torch.tensor(losses(paths), dtype=torch.float64))
    assert curves[0].shape == (200,)
    assert curves[0][-1] < curves[0][0] - 1.5
    torch.testing.assert_close(curves[1], curves[0], rtol=0, atol=1e-4)


def test_a_record_says_where_a_run_comes_from(sweep: SweepPaths) -> None:
    run = plan_run()
    paths = run_folder(sweep, run)
    train_once(run, paths)
    record = read_record(paths.record)
    assert record is not None
    assert record.library_versions["torch"] == torch.__version__
    assert record.code_version
    assert record.hardware["device"]
    assert record.microbatch_seqs is None
