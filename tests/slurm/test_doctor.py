"""What `isoloss doctor` says of a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.doctor_slurm import examine_slurm
from harness.findings import Finding
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings

CLUSTER = Settings(
    message_timeout_s=2,
    gpus=2,
    extra="""\
PartitionName=short Nodes=node1 MaxTime=90 State=UP
PartitionName=shut Nodes=ALL State=DOWN""",
)
Lines = dict[str, Finding]


def lines(findings: list[Finding]) -> Lines:
    return {finding.what: finding for finding in findings}


def test_the_cluster_is_described_with_its_limits(slurm: Cluster, tmp_path: Path) -> None:
    said = lines(examine_slurm(tmp_path))
    assert said["slurm"].level == "ok"
    assert slurm.run("sinfo", "--version").stdout.split()[1] in said["slurm"].detail
    assert "1,001 tasks" in said["slurm"].detail
    assert said["slurm accounting"].detail.startswith("off: ")
    assert "go back into the queue" in said["slurm preemption"].detail
    assert "2 nodes of 8 CPUs, 8000 MiB, gpu x 2; no time limit" in (
        said["partition main (default)"].detail
    )
    assert "at most 90 min" in said["partition short"].detail
    assert said["partition shut"].level == "note"
    assert "--results" in said["slurm results"].detail


def test_a_controller_that_is_away_fails(slurm: Cluster, tmp_path: Path) -> None:
    with slurm.hung_slurmctld():
        (only,) = examine_slurm(tmp_path)
    assert (only.level, only.what) == ("FAIL", "slurm")
    assert "Socket timed out" in only.detail
    assert "scontrol ping" in only.detail


def test_commands_without_a_cluster_are_no_failure(
    slurm_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine belongs to a cluster")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (only,) = examine_slurm(tmp_path)
    assert only.level == "note"
    assert "stay on this machine" in only.detail
