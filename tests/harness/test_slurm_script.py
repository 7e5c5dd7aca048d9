"""The text of sbatch scripts: options for Slurm, quoting, what starts the worker.

How sbatch reads quotes, backslashes and ``%`` on ``#SBATCH`` lines was seen on Slurm 22.05.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import IsolossError
from harness.slurm.options import Slurm
from harness.slurm.script import ScriptPlan, script_text

ROOT = Path("/data/results/demo")


def plan(block: dict[str, Any] | None = None, **changes: Any) -> ScriptPlan:
    """The plan of an array of three tasks."""
    made = ScriptPlan(
        sweep="demo",
        token="i0a1b2c3",
        job_file=ROOT / "slurm/i0a1b2c3/job.json",
        sweep_dir=ROOT,
        code=ROOT / "code/abc",
        out_dir=ROOT / "slurm/i0a1b2c3/out",
        n_tasks=3,
        slurm=Slurm.model_validate({"time": "2:00:00", **(block or {})}),
        python="/opt/py/bin/python",
        threads=2,
    )
    return replace(made, **changes)


def options(text: str) -> list[str]:
    """What stands on the ``#SBATCH`` lines, in order."""
    lines = text.splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def command(text: str) -> str:
    """The shell command that starts the worker, in one line."""
    joined = text.replace("\\\n", " ")
    (line,) = (line for line in joined.splitlines() if "-m harness.worker" in line)
    return " ".join(line.split())


def test_a_plain_array_asks_for_what_the_block_says() -> None:
    assert options(script_text(plan())) == [
        "--job-name=demo.i0a1b2c3",
        "--array=0-2%256",
        "--output=/data/results/demo/slurm/i0a1b2c3/out/%A_%a.log",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--time=02:00:00",
        "--signal=B:USR2@120",
        "--requeue",
        "--export=ALL",
    ]


def test_every_option_reaches_sbatch_under_its_own_name() -> None:
    block = {
        **dict.fromkeys(("account", "qos", "nodelist", "exclude", "reservation"), "x"),
        "partition": "a,b", "constraint": "[r1|r2]&ib", "gres": "nvme:1", "mem_per_cpu": "2G",
        "gpus_per_task": "a100:1", "cpus_per_gpu": 3, "comment": "two words", "mail_user": "a@b",
        "mail_type": ["end", "fail"], "array_parallelism": 7, "signal": "USR1",
        "signal_lead_s": 90, "extra": {"gres-flags": "enforce-binding", "exclusive": True},
    }  # fmt: skip
    got = options(script_text(plan(block, nodes=2, devices=4, dependency="afterany:12")))
    assert set(got) >= {
        *(f"--{name}=x" for name in ("account", "qos", "nodelist", "exclude", "reservation")),
        "--partition=a,b", "--constraint=[r1|r2]&ib", "--gres=nvme:1", "--mem-per-cpu=2G",
        "--gpus-per-task=a100:1", "--cpus-per-gpu=3", '--comment="two words"', "--mail-user=a@b",
        "--mail-type=END,FAIL", "--array=0-2%7", "--signal=B:USR1@90", "--exclusive",
        "--gres-flags=enforce-binding", "--dependency=afterany:12",
        "--nodes=2", "--ntasks=8", "--ntasks-per-node=4",
    }  # fmt: skip
    assert not any(option.startswith("--cpus-per-task") for option in got)
    assert len({option.partition("=")[0] for option in got}) == len(got)


def test_an_exported_environment_of_ones_own_replaces_ours() -> None:
    got = options(script_text(plan({"extra": {"export": "NONE"}})))
    assert [option for option in got if option.startswith("--export")] == ["--export=NONE"]


def test_tasks_that_must_not_be_requeued_say_so() -> None:
    text = script_text(plan({"on_preempt": "resubmit"}))
    assert "--no-requeue" in options(text)
    assert "--requeue" not in options(text)
    assert "--requeue" in options(script_text(plan({"on_preempt": "requeue"})))


def test_text_is_quoted_as_sbatch_reads_it() -> None:
    text = script_text(plan({"comment": 'it\'s "a" # x \\ `ls` $HOME'}))
    assert '--comment="it\'s \\"a\\" # x \\\\ `ls` $HOME"' in options(text)
    text = script_text(plan(out_dir=Path("/my results/100%/out")))
    assert '--output="/my results/100%%/out/%A_%a.log"' in options(text)


def test_all_options_stand_before_the_first_command() -> None:
    lines = script_text(plan({"setup": ["true"]})).splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert lines[0] == "#!/bin/bash"


CONTAINER = {"image": "/img/a b.sif", "mounts": ["/corpora", "/x:/y:ro"]}
WORKER = "-m harness.worker /data/results/demo/slurm/i0a1b2c3/job.json --task"
STARTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "plain": ({}, {}, f'/opt/py/bin/python {WORKER} "$SLURM_ARRAY_TASK_ID" --workers 1 &'),
    "packed": (
        {"runs_at_once": 3, "runs_per_job": 6}, {},
        f'/opt/py/bin/python {WORKER} "$SLURM_ARRAY_TASK_ID" --workers 3 &',
    ),
    "shared GPUs": (
        {"gpus_per_node": 2, "runs_per_gpu": 2, "runs_per_job": 4}, {},
        f'/opt/py/bin/python {WORKER} "$SLURM_ARRAY_TASK_ID" --workers 4 &',
    ),
    "several processes": (
        {"gpus_per_task": 1}, {"nodes": 2, "devices": 4},
        f'/opt/py/bin/python {WORKER} "$SLURM_ARRAY_TASK_ID" --workers 1 &',
    ),
    "srun arguments": (
        {"srun_args": ["--mpi=none", "--label x"]}, {},
        "srun --nodes=1 --ntasks=1 --overlap --wait=120 --mpi=none '--label x' /opt/py/bin/python "
        f'{WORKER} "$SLURM_ARRAY_TASK_ID" --workers 1 &',
    ),
    "apptainer": (
        {"container": CONTAINER, "gpus_per_node": 1}, {"python": "python"},
        "apptainer exec --nv --bind /data/results --bind /corpora --bind /x:/y:ro '/img/a b.sif' "
        "env PYTHONPATH=/data/results/demo/code/abc PYTHONSAFEPATH=1 python "
        f'{WORKER} "$SLURM_ARRAY_TASK_ID" --workers 1 &',
    ),
    "pyxis": (
        {"container": {**CONTAINER, "runtime": "pyxis"}}, {"python": "python", "code": None},
        "srun --nodes=1 --ntasks=1 --overlap --wait=120 --container-image='/img/a b.sif' "
        "--container-mounts=/data/results:/data/results,/corpora:/corpora,/x:/y:ro python "
        f'{WORKER} "$SLURM_ARRAY_TASK_ID" --workers 1 &',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_the_worker_is_started_as_asked(name: str) -> None:
    block, changes, expected = STARTS[name]
    assert command(script_text(plan(block, **changes))) == expected


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("mirror", [None, ["python", "-m", "x y"]])
def test_every_script_is_bash(name: str, mirror: list[str] | None) -> None:
    block, changes, _ = STARTS[name]
    lines = {"setup": ["if true; then", "  a=$(cat x)", "fi"], "teardown": ["rm -f $a"]}
    text = script_text(plan({**block, **lines}, mirror=mirror, **changes))
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("block", "changes", "fragment"),
    [
        ({}, {"out_dir": Path("/a\\b")}, "backslash"),
        ({}, {"job_file": Path("/a\nb")}, "on one line"),
        ({}, {"code": Path("code/abc")}, "absolute"),
        ({"container": CONTAINER}, {"sweep_dir": Path("/a:b/demo")}, "a colon or a comma"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(
    block: dict[str, Any], changes: dict[str, Any], fragment: str
) -> None:
    with pytest.raises(IsolossError, match=fragment):
        script_text(plan(block, **changes))


def test_a_script_can_be_read_by_a_person() -> None:
    text = script_text(plan({"setup": ["module load cuda"], "teardown": ["true"]}, mirror=["x"]))
    assert "Sweep demo, submission i0a1b2c3: array tasks 0 to 2." in text
    paragraphs = text.split("\n\n")
    commented = [part for part in paragraphs if "#" in part]
    assert len(commented) >= len(paragraphs) - 3
    assert max(len(line) for line in text.splitlines()) <= 120
