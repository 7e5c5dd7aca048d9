"""Which runs share a trunk, where they branch, what it saves: by hand-computed numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config import RunConfig, TrainConfig
from harness.errors import GridError
from harness.grid import load_grid
from harness.plan import plan
from harness.records import PlannedRun
from harness.schedule import branch_step, lr_fraction, warmup_steps
from harness.trunks import in_chains, packed, sharing, with_trunks
from tests.conftest import make_config, plan_run
from tests.harness.test_trunks import BRANCHES, STEPS, chain


def test_only_equal_settings_and_warm_ups_share() -> None:
    def trunks(*settings: dict[str, Any]) -> list[str | None]:
        configs = [make_config(train=each) for each in settings]
        runs = [plan_run(train=each) for each in settings]
        return [run.trunk for run in with_trunks(configs, runs)]

    def budget(steps: int, **train: Any) -> dict[str, Any]:
        return {"budget": {"tokens": 256 * steps}, **train}

    shared = trunks(budget(10, warmup_tokens=512), budget(20, warmup_tokens=512))
    assert shared[0] is not None
    assert shared[0] == shared[1]
    apart: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (budget(100), budget(200)),
        (budget(10, warmup_tokens=512), budget(20, warmup_tokens=512, lr=2e-3)),
        (budget(10, warmup_tokens=512), budget(20, warmup_tokens=1024)),
        (
            budget(10, warmup_tokens=512, schedule="cosine"),
            budget(20, warmup_tokens=512, schedule="cosine"),
        ),
    ]
    for pair in apart:
        assert trunks(*pair) == [None, None], pair
    assert None not in trunks(budget(10, warmup_frac=0.0), budget(20, warmup_frac=0.0))


@pytest.mark.parametrize("schedule", ["wsd", "constant"])
@pytest.mark.parametrize("decay_frac", [0.0, 0.01, 0.1, 0.3, 0.95])
def test_up_to_the_branch_step_the_rate_knows_nothing_of_the_budget(
    schedule: str, decay_frac: float
) -> None:
    train = TrainConfig.model_validate(
        {
            "budget": {"tokens": 1},
            "warmup_tokens": 3 * 8192,
            "schedule": schedule,
            "decay_frac": decay_frac,
        }
    )
    for steps in (60, 61, 100, 333):
        at = branch_step(train, steps)
        assert at is not None
        assert 0 < at < steps
        rates = [lr_fraction(train, step, steps) for step in range(steps)]
        assert rates[:at] == [lr_fraction(train, step, 7 * steps) for step in range(at)]
        assert at == steps - 1 or rates[at] < 1.0


@pytest.mark.parametrize(("decay_frac", "share"), [(0.1, 8.7 / 15), (0.3, 10.1 / 15)])
def test_four_budgets_cost_what_pen_and_paper_say(decay_frac: float, share: float) -> None:
    runs = chain(steps=[1000 * n for n in (1, 2, 4, 8)], decay_frac=decay_frac)
    told = sharing(runs)
    assert told is not None
    assert told.steps == round(15000 * share) - 3  # each branch lies one step into the decay
    assert told.share == pytest.approx(share, abs=3e-4)
    percent = round(100 * share)
    assert told.describe() == (
        f"4 budgets share a trunk: {percent}% of the FLOPs of training each alone"
    )


def test_a_warm_up_in_tokens_replaces_the_share_and_leaves_old_ids_alone() -> None:
    assert plan_run().run_id == "7b58a725a0c6"
    old = plan_run("full", train={"lr": 3e-3, "schedule": "cosine"})
    assert old.run_id == "a0121d07898a", "both as before the field was there"
    assert plan_run(train={"warmup_tokens": 512}).run_id != plan_run().run_id
    train = make_config(train={"warmup_tokens": 300}).train
    assert warmup_steps(train, 12) == warmup_steps(train, 1200) == 2
    with pytest.raises(ValidationError, match="give warmup_frac or warmup_tokens"):
        make_config(train={"warmup_tokens": 512, "warmup_frac": 0.1})
    again = make_config(train={"warmup_tokens": 512}).model_dump(mode="json")
    assert RunConfig.model_validate(again).train.warmup_tokens == 512


GRID = """
sweep: budgets
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 2560}, batch_tokens: 256, eval_tokens: 1024, warmup_tokens: 512}
axes: {residual: [standard, full], train.budget.tokens: [2560, 5120, 10240]}
seeds: [0, 1]
"""


def planned(folder: Path, *overrides: str) -> tuple[PlannedRun, ...]:
    (folder / "grid.yaml").write_text(GRID)
    return plan(load_grid(folder / "grid.yaml", list(overrides))).runs


def test_plan_shares_by_arm_and_seed_and_can_be_told_not_to(tmp_path: Path) -> None:
    runs = planned(tmp_path)
    chains = in_chains(runs)
    assert [len(members) for members in chains] == [3] * 4
    for members in chains:
        assert len({(run.arm, run.config["seed"]) for run in members}) == 1
        assert [run.branch_step for run in members] == list(BRANCHES)
    bare = planned(tmp_path, "execution.share_trunks=false")
    assert {(run.trunk, run.branch_step) for run in bare} == {(None, None)}
    assert [run.run_id for run in bare] == [run.run_id for run in runs]


def test_plan_refuses_a_warm_up_without_room(tmp_path: Path) -> None:
    with pytest.raises(GridError, match=r"train.warmup_tokens: its 9 steps and the 3 of the decay"):
        planned(tmp_path, "train.warmup_tokens=2304")


def test_a_chain_is_one_job_however_long(tmp_path: Path) -> None:
    runs = planned(tmp_path)
    assert [len(job) for job in packed(runs, 1)] == [3] * 4
    assert [len(job) for job in packed(runs, 7)] == [6, 6]
    for job in packed(reversed(runs), 1):
        assert [run.cost.steps for run in job] == list(STEPS)
