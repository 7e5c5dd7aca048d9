"""The slurm block in a grid and in a profile: every mistake with its place, and who wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import GridError
from harness.grid import Grid, load_grid
from harness.slurm.options import Slurm
from tests.harness.grid_texts import BASE, describe, load

# One mistake in the block each: the block, its dotted path, what the message must say.
MISTAKES: dict[str, tuple[str, str, str]] = {
    "no mapping": ("[1]", "", "must be a mapping, got [1]"),
    "nothing": ("", "", "must be a mapping, got nothing"),
    "typo": ("{partiton: a}", ".partiton", "did you mean 'partition'?"),
    "dashes": ("{mail-type: END}", ".mail-type", "write mail_type"),
    "submitit's prefix": ("{slurm_partition: a}", ".slurm_partition", "write partition"),
    "nodes": ("{nodes: 2}", ".nodes", "write execution.nodes"),
    "ntasks": ("{ntasks: 2}", ".ntasks", "write execution.devices"),
    "gpus": ("{gpus: 2}", ".gpus", "write gpus_per_node"),
    "job name": ("{job_name: x}", ".job_name", "isoloss writes it into the script"),
    "other option": ("{core_spec: 2}", ".core_spec", "under extra: {core-spec: …}"),
    "number for text": ("{account: 1234}", ".account", "Put it in quotes"),
    "two lines": ('{comment: "a\\nb"}', ".comment", "must be one line"),
    "injection": ('{partition: "a\\n#SBATCH --uid=0"}', ".partition", "must be one line"),
    "carriage return": ('{qos: "a\\rb"}', ".qos", "must be one line"),
    "empty": ("{partition: ''}", ".partition", "must not be empty"),
    "time in words": ("{time: 2h}", ".time", "text such as 2:00:00 (hours) or 1-12"),
    "time a float": ("{time: 1.5}", ".time", "got 1.5 (a float)"),
    "time a boolean": ("{time: true}", ".time", "got true (a boolean)"),
    "time negative": ("{time: -1}", ".time", "a hung run keeps its node"),
    "time unlimited": ("{time: UNLIMITED}", ".time", "a hung run keeps its node"),
    "time zero": ("{time: 0:00}", ".time", "0 means no limit to sbatch"),
    "time of four parts": ("{time: 1:2:3:4}", ".time", "got '1:2:3:4'"),
    "time half": ("{time: 1-}", ".time", "got '1-'"),
    "time endless": ("{time: 1" + "0" * 60 + "}", ".time", "a number of"),
    "memory fraction": ("{mem: 1.5G}", ".mem", "Write 1536M: sbatch knows no fractions"),
    "memory unit": ("{mem: 10Q}", ".mem", "text such as 16G, got '10Q'"),
    "memory negative": ("{mem_per_cpu: -5}", ".mem_per_cpu", "got -5"),
    "memory twice": ("{mem: 1G, mem_per_cpu: 1G}", ".mem_per_cpu", "exclude each other"),
    "memory of no GPU": ("{mem_per_gpu: 1G}", ".mem_per_gpu", "Add gpus_per_node: 1"),
    "no GPUs": ("{gpus_per_node: 0}", ".gpus_per_node", "such as 2 or a100:2, got 0"),
    "GPUs twice": (
        "{gpus_per_node: 1, gpus_per_task: 1}", ".gpus_per_task", "exclude each other"
    ),
    "GPUs by gres too": ("{gres: gpu:2, gpus_per_node: 1}", ".gres", "both ask for GPUs"),
    "CPUs twice": (
        "{gpus_per_node: 1, cpus_per_gpu: 2, cpus_per_task: 2}", ".cpus_per_gpu", "exclude each"
    ),
    "CPUs of no GPU": ("{cpus_per_gpu: 2}", ".cpus_per_gpu", "needs GPUs"),
    "mail typo": ("{mail_type: FIAL}", ".mail_type", "Did you mean 'FAIL'?"),
    "mail a number": ("{mail_type: 1}", ".mail_type", "such as END,FAIL"),
    "signal": ("{signal: KILL}", ".signal", "one of 'USR1', 'USR2'"),
    "lead too long": ("{time: 2, signal_lead_s: 120}", ".signal_lead_s", "shorter than time (120"),
    "lead zero": ("{signal_lead_s: 0}", ".signal_lead_s", "at least 1"),
    "too many at once": ("{runs_at_once: 4, runs_per_job: 2}", ".runs_at_once", "at least 4"),
    "too many on a GPU": (
        "{runs_per_gpu: 2, gpus_per_node: 2}", ".runs_per_gpu", "runs_per_job of at least 4"
    ),
    "sharing no GPU": ("{runs_per_gpu: 2}", ".runs_per_gpu", "needs GPUs"),
    "sharing and counting": (
        "{runs_per_gpu: 2, gpus_per_node: 2, runs_at_once: 3, runs_per_job: 9}",
        ".runs_at_once", "is 4, got 3",
    ),
    "setup as text": ("{setup: module load cuda}", ".setup", "must be a list"),
    "setup of two lines": ('{setup: [a, "b\\nc"]}', ".setup[1]", "one list item a line"),
    "srun argument": ("{srun_args: [1]}", ".srun_args[0]", "Put it in quotes"),
    "container typo": ("{container: {img: x, image: y}}", ".container.img", "'image'?"),
    "container without": ("{container: {runtime: pyxis}}", ".container.image", "is required"),
    "runtime": (
        "{container: {image: x, runtime: docker}}", ".container.runtime", "'apptainer', 'pyxis'"
    ),
    "extra that we set": ("{extra: {array: 0-9}}", ".extra.array", "isoloss sets it itself"),
    "extra with a key": ("{extra: {time: 5}}", ".extra.time", "write slurm.time"),
    "extra with dashes": ("{extra: {--gres-flags: x}}", ".extra", "Write gres-flags"),
    "extra false": ("{extra: {exclusive: false}}", ".extra.exclusive", "Remove it"),
    "override without if": ("{overrides: [{time: 5}]}", ".overrides[0].if", "is required"),
    "override of seeds": (
        "{overrides: [{if: {seed: 0}, time: 5}]}", ".overrides[0].if.seed", "Remove seed"
    ),
    "override of nothing": (
        "{overrides: [{if: {model.d_model: 64}}]}", ".overrides[0]", "sets no option"
    ),
    "override typo": (
        "{overrides: [{if: {model.d_modle: 64}, time: 5}]}",
        ".overrides[0].if.model.d_modle", "did you mean 'model.d_model'?",
    ),
    "override ill-typed": (
        "{overrides: [{if: {model.d_model: '64'}, time: 5}]}",
        ".overrides[0].if.model.d_model", "Write 64",
    ),
    "override of the sweep": (
        "{overrides: [{if: {model.d_model: 64}, max_queued: 5}]}",
        ".overrides[0].max_queued", "directly under slurm",
    ),
    "override contradicting": (
        "{overrides: [{if: {model.d_model: 64}, mem: 1G, mem_per_cpu: 1G}]}",
        ".overrides[0].mem_per_cpu", "exclude each other",
    ),
    "override that does not fit": (
        "{time: 60, overrides: [{if: {model.d_model: 64}, time: 1}]}",
        ".overrides[0].signal_lead_s", "must be shorter than time (60 s)",
    ),
    "override no mapping": (
        "{overrides: [{if: 64, time: 1}]}", ".overrides[0].if", "must be a mapping of fields"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_block_gives_one_message_with_its_place(name: str, tmp_path: Path) -> None:
    block, path, fragment = MISTAKES[name]
    with pytest.raises(GridError) as caught:
        load(tmp_path, f"{BASE}slurm: {block}\n")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:6: slurm{path}: ")
    assert fragment in problem


def test_every_mistake_of_a_block_is_told_with_its_line(tmp_path: Path) -> None:
    text = (
        f"{BASE}slurm:\n  time: soon\n  extra:\n    nodes: 2\n  overrides:\n"
        "    - {if: {model.d_modle: 1}, mem: 1.5G}\n    - {if: {seed: 0}, time: 5}\n"
        "    - {if: {residual: standard}}\n"
    )
    with pytest.raises(GridError) as caught:
        load(tmp_path, text)
    found = [p.split("grid.yaml:")[1].split(": ")[:2] for p in caught.value.problems]
    assert found == [
        ["7", "slurm.time"],
        ["9", "slurm.extra.nodes"],
        ["11", "slurm.overrides[0].if.model.d_modle"],
        ["11", "slurm.overrides[0].mem"],
        ["12", "slurm.overrides[1].if.seed"],
        ["13", "slurm.overrides[2]"],
    ]


def test_set_reaches_into_the_block(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE, ["slurm.time=12:00:00", "slurm.extra.nice=5"])
    assert grid.slurm == Slurm.model_validate({"time": "12:00:00", "extra": {"nice": 5}})
    with pytest.raises(GridError) as caught:
        load(tmp_path, BASE, ["slurm.time=soon"])
    (problem,) = caught.value.problems
    assert problem.startswith("--set slurm.time=soon: slurm.time: must be minutes")


def test_a_grid_without_a_block_has_none(tmp_path: Path) -> None:
    assert load(tmp_path, BASE).slurm is None


def _with_profile(folder: Path, grid: str, profile: str) -> Grid:
    (folder / "grid.yaml").write_text(grid, encoding="utf-8")
    (folder / "profile.yaml").write_text(profile, encoding="utf-8")
    return load_grid(folder / "grid.yaml", (), folder / "profile.yaml", describe=describe)


PROFILE = """\
slurm:
  account: proj
  partition: cpu
  mem: 32G
  gres: gpu:1,nvme:1
  setup: [module load cuda]
  extra: {licenses: a, nice: 1}
"""


def test_the_grid_wins_over_the_profile_key_by_key(tmp_path: Path) -> None:
    block = (
        "slurm: {partition: gpu, account: ~, gpus_per_node: 2, mem_per_gpu: 8G, extra: {nice: 2}}"
    )
    grid = _with_profile(tmp_path, f"{BASE}{block}\n", PROFILE)
    wanted = {
        "partition": "gpu", "gpus_per_node": 2, "gres": "nvme:1", "mem_per_gpu": "8G",
        "setup": ["module load cuda"], "extra": {"licenses": "a", "nice": "2"},
    }  # fmt: skip
    assert grid.slurm == Slurm.model_validate(wanted)


def test_a_profile_alone_is_enough(tmp_path: Path) -> None:
    grid = _with_profile(tmp_path, BASE, PROFILE)
    assert grid.slurm is not None
    assert (grid.slurm.account, grid.slurm.mem) == ("proj", "32G")


@pytest.mark.parametrize(
    ("profile", "line", "path", "fragment"),
    [
        ("slurm:\n  account: a\n  mem: 1.5G\n", 3, "slurm.mem", "Write 1536M"),
        ("slurm:\n  setup:\n    - ok\n    - 5\n", 4, "slurm.setup[1]", "Put it in quotes"),
        ("slurm:\n  extra: {nice: 1,\n    nodes: 2}\n", 3, "slurm.extra.nodes", "execution.nodes"),
        ("slurm:\n  acount: a\n", 2, "slurm.acount", "did you mean 'account'?"),
        ("slurm: [1]\n", 1, "slurm", "must be a mapping"),
        ("slurm: {}\nexecution: {threads: 2}\n", 2, "execution", "belongs in the grid"),
        ("account: a\n", 1, "(top level)", "the one key slurm"),
        ("slurm: {a: 1\n", 1, "slurm", "never closed"),
    ],
)
def test_a_mistake_in_a_profile_is_told_with_its_own_line(
    tmp_path: Path, profile: str, line: int, path: str, fragment: str
) -> None:
    with pytest.raises(GridError) as caught:
        _with_profile(tmp_path, f"{BASE}slurm: {{time: 60}}\n", profile)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'profile.yaml'}:{line}: {path}: ")
    assert fragment in problem


def test_a_mistake_of_the_grid_is_not_blamed_on_the_profile(tmp_path: Path) -> None:
    with pytest.raises(GridError) as caught:
        _with_profile(tmp_path, f"{BASE}slurm: {{partition: 5, extra: {{nodes: 2}}}}\n", PROFILE)
    assert len(caught.value.problems) == 2
    assert all(p.startswith(f"{tmp_path / 'grid.yaml'}:6: ") for p in caught.value.problems)


def test_an_absent_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(BASE, encoding="utf-8")
    with pytest.raises(GridError, match=r"none\.yaml: no such profile"):
        load_grid(tmp_path / "grid.yaml", (), tmp_path / "none.yaml", describe=describe)


def test_a_folder_given_as_a_profile_is_not_taken_for_a_grid(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(BASE, encoding="utf-8")
    with pytest.raises(GridError, match=r"is a folder\. Name the profile's file in it"):
        load_grid(tmp_path / "grid.yaml", (), tmp_path, describe=describe)
