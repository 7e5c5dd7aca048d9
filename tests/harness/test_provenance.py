"""What an attempt tells of itself, against what the system itself says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from harness.config import Execution
from harness.provenance import (
    attempt_facts,
    code_facts,
    code_version,
    device_name,
    environment,
    hardware,
    machine,
)
from harness.snapshot import PACKAGES

ROOT = Path(__file__).resolve().parent.parent.parent


def told_by(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_an_attempt_tells_its_code_libraries_machine_and_environment_as_json() -> None:
    facts = attempt_facts(Execution(threads=3, devices=2, nodes=2))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["code_version"] == facts["code"]["code_version"] == code_version()
    assert facts["library_versions"]["torch"] == torch.__version__
    assert facts["hardware"]["threads"] == 3
    assert facts["hardware"]["processes"] == 4
    assert facts["execution"]["nodes"] == 2


def test_the_machine_is_described_as_the_system_does() -> None:
    about = machine()
    assert about["kernel"] == told_by("uname", "-r")
    assert about["usable_cpus"] == int(
        told_by("env", "-u", "OMP_NUM_THREADS", "-u", "OMP_THREAD_LIMIT", "nproc")
    )
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    assert about["memory_bytes"] == 1024 * kilobytes
    assert about["system"] in Path("/etc/os-release").read_text()
    assert about.get("cuda") == (torch.version.cuda if torch.cuda.is_available() else None)


def test_variables_that_matter_are_told_and_secrets_are_not() -> None:
    told = {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "4",
        "TORCH_LOGS": "graph",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/x",
        "NCCL_DEBUG": "INFO",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "SLURM_JOB_ID": "12",
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_RESTART_COUNT": "1",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_PARTITION": "gpu",
    }
    hidden = {
        "SLURM_JWT": "eyJhbGciOi",
        "HF_TOKEN": "hf_abc",
        "MLFLOW_TRACKING_PASSWORD": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "x",
        "TORCH_HUB_TOKEN": "y",
        "NCCL_AUTH_KEY": "z",
        "HOME": "/root",
    }
    assert environment({**hidden, **told}) == told


def test_the_environment_is_read_anew_for_every_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert attempt_facts(Execution())["environment"]["SLURM_RESTART_COUNT"] == "1"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert attempt_facts(Execution())["environment"]["SLURM_RESTART_COUNT"] == "2"


def test_hardware_on_the_cpu_is_the_processor_also_where_there_is_cuda() -> None:
    models = Path("/proc/cpuinfo").read_text()
    names = {
        line.partition(":")[2].strip()
        for line in models.splitlines()
        if line.startswith("model name")
    }
    assert hardware(2, device="cpu")["device"] in (names or {device_name("cpu")})
    assert hardware(2)["device"] == device_name()
    assert hardware(2) == {"device": device_name(), "host_cpus": os.cpu_count(), "threads": 2}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_the_commit_is_the_one_that_git_names() -> None:
    facts = code_facts()
    assert facts["commit"] == told_by("git", "rev-parse", "HEAD")
    assert facts["snapshot"] is None
    assert f"+g{facts['commit'][:12]}." in facts["code_version"]
    assert (".dirty." in facts["code_version"]) == facts["dirty"]
    changed = told_by("git", "status", "--porcelain", "--", *PACKAGES)
    assert facts["dirty"] == bool(changed)
