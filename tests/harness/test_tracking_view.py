"""What MLflow is shown of a run: names, values, times and statuses."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from harness.errors import DataError
from harness.mirror_view import RunView, flat_params, view_run
from harness.paths import RunPaths
from harness.records import append_jsonl
from tests.harness.tracking_sweep import (
    STARTED_MS,
    STEPS,
    beat,
    begin_attempt,
    begin_attempt_here,
    end_run,
    finished_run,
    loss,
    planned_run,
    train_row,
    write_steps,
    write_sweep,
)

RUN = planned_run(3)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return write_sweep(tmp_path, [RUN]).run(RUN.run_id)


def view(paths: RunPaths) -> RunView:
    found = view_run(RUN, "depth", paths, time.time())
    assert found is not None
    return found


def series(shown: RunView, key: str) -> dict[int, float]:
    return {point.step: point.value for point in shown.points if point.key == key}


def test_a_run_that_never_began_is_not_shown(paths: RunPaths) -> None:
    assert view_run(RUN, "depth", paths, time.time()) is None


def test_every_logged_number_has_its_metric_at_its_step(paths: RunPaths) -> None:
    begin_attempt(paths)
    write_steps(paths, 0, STEPS)
    record = end_run(RUN, paths)
    shown = view(paths)
    steps = range(1, STEPS + 1)
    assert series(shown, "train/loss_nats") == {step: loss(step) for step in steps}
    assert series(shown, "val/loss_nats") == {s: loss(s) + 0.1 for s in (15, 30, 45, 60)}
    assert series(shown, "val/bits_per_byte") == {s: loss(s) / 2 for s in (15, 30, 45, 60)}
    assert series(shown, "sys/tokens_per_s") == dict.fromkeys(steps, 1024 / 0.25)
    assert series(shown, "tokens") == {step: 1024 * step for step in steps}
    assert series(shown, "flops") == {step: 6000.0 * 1024 * step for step in steps}
    assert series(shown, "train/lr") == dict.fromkeys(steps, 1e-3)
    assert series(shown, "train/grad_norm") == dict.fromkeys(steps, 0.5)
    assert series(shown, "record/loss_nats") == {STEPS: record.loss_nats}
    assert series(shown, "record/n_params") == {STEPS: 1000}


def test_diagnostics_show_as_scalars_and_nulls_not_at_all(paths: RunPaths) -> None:
    begin_attempt(paths)
    write_steps(paths, 0, STEPS)
    shown = view(paths)
    assert series(shown, "diagnostics/collapsed_to_newest") == dict.fromkeys((20, 40, 60), 0.25)
    assert series(shown, "diagnostics/mean_entropy") == pytest.approx(
        dict.fromkeys((20, 40, 60), 0.6)
    )
    assert series(shown, "diagnostics/state_rms_final") == dict.fromkeys((20, 40, 60), 3.0)
    assert not series(shown, "diagnostics/collapsed_to_uniform")
    assert not series(shown, "diagnostics/input_rms")


def test_nan_infinity_and_null_are_never_shown(paths: RunPaths) -> None:
    begin_attempt(paths)
    append_jsonl(paths.metrics, train_row(10, loss_nats=float("nan"), grad_norm=float("inf")))
    append_jsonl(paths.metrics, train_row(20, loss_nats=None, step_time_s=None))
    shown = view(paths)
    assert not series(shown, "train/loss_nats")
    assert series(shown, "train/grad_norm") == {20: 0.5}
    assert series(shown, "sys/tokens_per_s") == {10: 4096.0}


def test_steps_logged_again_by_a_resumed_run_show_once_with_the_last_value(
    paths: RunPaths,
) -> None:
    begin_attempt(paths)
    write_steps(paths, 0, 40)
    begin_attempt(paths, 2)
    append_jsonl(paths.metrics, train_row(35, 2, 30, loss_nats=1.5))
    shown = view(paths)
    assert series(shown, "train/loss_nats")[35] == 1.5
    keys = [(point.key, point.step) for point in shown.points]
    assert len(keys) == len(set(keys))
    assert shown.tags["isoloss.attempt"] == "2"


def test_times_are_those_of_the_attempt_that_wrote_the_row(paths: RunPaths) -> None:
    begin_attempt(paths)
    write_steps(paths, 0, 20)
    begin_attempt(paths, 2)
    write_steps(paths, 20, 40, 2)
    shown = view(paths)
    times = {point.step: point.timestamp_ms for point in shown.points if point.key == "tokens"}
    assert times[20] == STARTED_MS[0] + 5000
    assert times[24] == STARTED_MS[1] + 1000
    assert shown.started_ms == STARTED_MS[0]
    assert shown.ended_ms == STARTED_MS[1] + 5000
    assert shown == view(paths)


def test_diagnostics_take_the_time_of_the_step_they_belong_to(paths: RunPaths) -> None:
    begin_attempt(paths)
    write_steps(paths, 0, 20)
    times = [p.timestamp_ms for p in view(paths).points if p.key.startswith("diagnostics/")]
    assert set(times) == {STARTED_MS[0] + 5000}


def test_params_are_the_scalar_science_fields_under_their_grid_names() -> None:
    params = flat_params(RUN.config)
    assert params["residual"] == "block"
    assert params["residual.block_size"] == "4"
    assert params["model.d_model"] == "64"
    assert params["model.qk_norm"] == "False"
    assert params["train.budget.flops"] == "1000000000000.0"
    assert params["train.lr"] == "0.003"
    assert params["seed"] == "3"
    assert "train.budget.tokens" not in params
    assert "model.n_kv_heads" not in params


def test_a_value_too_long_for_some_servers_is_left_to_the_artifact() -> None:
    assert flat_params({"data": {"corpus": "x" * 501}, "seed": 1}) == {"seed": "1"}


def test_tags_name_run_arm_cell_seed_and_origin(paths: RunPaths) -> None:
    begin_attempt(paths, job="1234_7")
    tags = view(paths).tags
    assert tags.pop("isoloss.config_sha")
    assert tags == {
        "isoloss.run_id": RUN.run_id,
        "isoloss.sweep": "depth",
        "isoloss.arm": "full",
        "isoloss.cell": "full 4x64 1e12 FLOPs",
        "isoloss.seed": "3",
        "isoloss.attempt": "1",
        "isoloss.status": "planned",
        "isoloss.code_version": "0.1.0+gabc.dirty.code123",
        "isoloss.git_sha": "abc",
        "isoloss.git_dirty": "True",
        "isoloss.code_sha": "123",
        "isoloss.host": socket.gethostname(),
        "slurm.job": "1234",
        "slurm.task": "7",
    }


def test_a_job_that_is_no_array_has_no_task_and_outside_slurm_there_is_neither(
    paths: RunPaths,
) -> None:
    begin_attempt(paths, job="1234_7")
    begin_attempt(paths, 2, job="99")
    shown = view(paths).tags
    assert (shown["slurm.job"], shown.get("slurm.task")) == ("99", None)
    begin_attempt(paths, 3)
    assert not any(tag.startswith("slurm.") for tag in view(paths).tags)


def test_a_run_is_running_while_its_process_lives_and_killed_until_resumed(
    paths: RunPaths,
) -> None:
    begin_attempt(paths)
    assert view(paths).status == "KILLED"
    begin_attempt_here(paths, 2)
    assert view(paths).status == "RUNNING"
    assert view(paths).tags["isoloss.status"] == "running"


@pytest.mark.parametrize(
    ("age_s", "status"), [(1.0, "RUNNING"), (45.0, "RUNNING"), (130.0, "KILLED")]
)
def test_a_run_on_another_host_is_running_until_its_heartbeat_is_a_lease_old(
    paths: RunPaths, age_s: float, status: str
) -> None:
    begin_attempt(paths, host="node17", boot_id="another")
    beat(paths, 1, age_s)
    assert view(paths).status == status


def test_an_attempt_that_ended_in_order_leaves_its_run_killed_until_resumed(
    paths: RunPaths,
) -> None:
    begin_attempt_here(paths)
    (paths.attempt(1) / "end.json").write_text('{"how": "stopped"}', encoding="utf-8")
    assert view(paths).status == "KILLED"


@pytest.mark.parametrize(
    ("ours", "mlflow"),
    [("done", "FINISHED"), ("diverged", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED")],
)
def test_a_record_decides_the_status(paths: RunPaths, ours: str, mlflow: str) -> None:
    begin_attempt_here(paths)
    write_steps(paths, 0, STEPS)
    end_run(RUN, paths, ours, reason=None if ours == "done" else f"{ours}: for a reason")
    shown = view(paths)
    assert shown.status == mlflow
    assert shown.tags["isoloss.status"] == ours
    assert shown.tags.get("isoloss.excluded_because") == (
        None if ours == "done" else f"{ours}: for a reason"
    )


def test_texts_that_a_database_would_refuse_are_cut_and_cleaned(paths: RunPaths) -> None:
    begin_attempt(paths)
    error = "at \x00 and \x1b" + "x" * 2000
    end_run(RUN, paths, "failed", reason="failed", error=error)
    long = RUN.model_copy(update={"cell": "c" * 300})
    shown = view_run(long, "depth", paths, time.time())
    assert shown is not None
    assert shown.name == "c" * 250
    assert shown.tags["isoloss.error"] == ("at   and  " + "x" * 2000)[:1000]


def test_the_first_row_of_a_step_gives_its_tokens_their_time(paths: RunPaths) -> None:
    begin_attempt(paths)
    append_jsonl(paths.metrics, train_row(15))
    before = [point for point in view(paths).points if point.key == "tokens"]
    late = train_row(15) | {"kind": "val", "elapsed_s": 99.0}
    append_jsonl(paths.metrics, late)
    assert [point for point in view(paths).points if point.key == "tokens"] == before


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, [RUN])
    paths = finished_run(sweep, RUN)
    paths.record.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"record\.json: not a run record"):
        view_run(RUN, "depth", paths, time.time())
