"""Two processes train as one: losses, checkpoints, stopping, divergence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.config import Execution
from harness.errors import IsolossError
from harness.launch.ranks import sequences_per_rank
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, read_jsonl, read_record
from harness.stop import StopSignal
from harness.training import train
from tests.conftest import make_config, plan_run
from tests.harness.two_ranks import AskedAt, Entry, Seen, run_pair

ALONE = Execution(n_evals=2, log_every=1, n_diagnostics=1)
RECIPES = ("standard", "block")
STRATEGIES = ("ddp", "fsdp")
OPTIMIZERS = ("muon", "adamw")


Pair = dict[str, tuple[Seen, Seen]]


def shared(strategy: str, **values: object) -> Execution:
    return ALONE.model_copy(update={"devices": 2, "strategy": strategy, **values})


def planned(recipe: str, optimizer: str = "muon", precision: str = "fp64") -> PlannedRun:
    return plan_run(recipe, train={"optimizer": optimizer, "precision": precision})


IDLE = "tests.harness.faulty_recipes:Idle"


def diverging() -> PlannedRun:
    return plan_run(train={"lr": 3e3, "optimizer": "adamw", "grad_clip": 0.0})


def entries() -> list[Entry]:
    """All runs that the two processes train, in order."""
    found = [entry for strategy in STRATEGIES for entry in entries_of(strategy)]
    ddp, block = shared("ddp"), planned("block", precision="fp32")
    lost = Entry(name="lost", run=block, execution=ddp, asking_rank=1, lost_at=4)
    idle = Entry(name="idle", run=planned(IDLE), execution=ddp)
    return [*found, lost, idle, Entry(name="diverging", run=diverging(), execution=ddp)]


def entries_of(strategy: str) -> list[Entry]:
    runs = {f"{r} {o}": planned(r, o) for r in RECIPES for o in OPTIMIZERS}
    runs |= {f"{recipe} fp32": planned(recipe, precision="fp32") for recipe in RECIPES}
    how = shared(strategy)
    whole = [Entry(name=f"{strategy} {name}", run=run, execution=how) for name, run in runs.items()]
    halves, wide, narrow = f"{strategy} halves", planned("block"), runs["block fp32"]
    cut = shared(strategy, microbatch_seqs=3)
    return [
        *whole,
        Entry(name=f"{strategy} cut", run=wide, execution=cut),
        Entry(name=halves, run=narrow, execution=how, asking_rank=1, stop_at=5),
        Entry(name=f"{halves} resumed", folder=halves, run=narrow, execution=how, attempt=2),
        Entry(name=f"{strategy} for one", run=wide, execution=how, stop_at=5),
        Entry(name=f"{strategy} of one", run=wide, execution=how, attempt=2),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    """What both processes saw of every entry."""
    for strategy in STRATEGIES:
        train_alone(folder / f"{strategy} of one", planned("block"), stop=AskedAt(5, None))
    return run_pair(folder, entries())


def train_alone(
    sweep: Path, run: PlannedRun, *, attempt: int = 1, stop: StopSignal | None = None
) -> RunPaths:
    """Train a run in this process."""
    paths = SweepPaths(sweep).run(run.run_id)
    paths.attempt(attempt).mkdir(parents=True)
    train(run, "test", paths, ALONE, StopSignal() if stop is None else stop, attempt)
    return paths


def alone(folder: Path, run: PlannedRun) -> RunPaths:
    """The run trained undisturbed in this process, once for all tests."""
    paths = SweepPaths(folder / "alone").run(run.run_id)
    return paths if paths.record.exists() else train_alone(folder / "alone", run)


def numbers(paths: RunPaths) -> list[tuple[int, float]]:
    """Step and loss of training and validation rows."""
    return [(row["step"], row["loss_nats"]) for row in read_jsonl(paths.metrics)]


def assert_close(paths: RunPaths, others: RunPaths, rtol: float) -> None:
    left, right = (torch.tensor(numbers(x), dtype=torch.float64) for x in (paths, others))
    assert left.shape == (12 + 2, 2)
    torch.testing.assert_close(left, right, rtol=rtol, atol=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_give_the_losses_of_one(
    folder: Path, pair: Pair, strategy: str, recipe: str, optimizer: str
) -> None:
    run, name = planned(recipe, optimizer), f"{strategy} {recipe} {optimizer}"
    assert [seen.error for seen in pair[name]] == [None, None]
    assert_close(SweepPaths(folder / name).run(run.run_id), alone(folder, run), 1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_in_fp32_they_differ_by_the_order_of_adding_alone(
    folder: Path, pair: Pair, strategy: str, recipe: str
) -> None:
    # A loss sums 256 terms in fp32, whose spacing is 1.2e-7 of a number: another order moves the
    # last bit or two of it, and of every gradient behind it. 16 such spacings over 12 steps.
    run, name = planned(recipe, precision="fp32"), f"{strategy} {recipe} fp32"
    assert_close(SweepPaths(folder / name).run(run.run_id), alone(folder, run), 16 * 2**-23)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_micro_batches_of_two_processes_leave_the_losses_alone(
    folder: Path, pair: Pair, strategy: str
) -> None:
    run = planned("block")
    cut = SweepPaths(folder / f"{strategy} cut").run(run.run_id)
    assert_close(cut, alone(folder, run), 1e-9)
    record = read_record(cut.record)
    assert record is not None
    assert record.microbatch_seqs == 3
    assert record.hardware["processes"] == 2


def test_parameters_that_no_loss_depends_on_hold_nobody_up(folder: Path, pair: Pair) -> None:
    run = planned(IDLE)
    assert_close(SweepPaths(folder / "idle").run(run.run_id), alone(folder, run), 1e-9)


def test_both_processes_see_the_same_numbers_bit_for_bit(pair: Pair) -> None:
    for left, right in pair.values():
        assert left.losses
        assert left.losses == right.losses
        assert left.grad_norms == right.grad_norms


def test_the_gradient_norm_is_that_of_the_whole_batch(folder: Path, pair: Pair) -> None:
    rows = read_jsonl(alone(folder, planned("block")).metrics)
    expected = [row["grad_norm"] for row in rows if row["kind"] == "train"]
    for strategy in STRATEGIES:
        seen, _ = pair[f"{strategy} block muon"]
        torch.testing.assert_close(
            torch.tensor(seen.grad_norms), torch.tensor(expected), rtol=1e-9, atol=0
        )


def test_fsdp_keeps_half_of_parameters_and_optimiser_state_in_each_process(pair: Pair) -> None:
    for seen in pair["fsdp block muon"]:
        assert seen.local_share == pytest.approx(0.5, abs=0.01)
    for seen in pair["ddp block muon"]:
        assert seen.local_share == 1.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stop_asked_of_one_process_stops_both_and_resumes_bit_for_bit(
    folder: Path, pair: Pair, strategy: str
) -> None:
    run, halves = planned("block", precision="fp32"), f"{strategy} halves"
    assert [seen.steps for seen in pair[halves]] == [5, 5]
    resumed = SweepPaths(folder / halves).run(run.run_id)
    undisturbed = SweepPaths(folder / f"{strategy} block fp32").run(run.run_id)
    assert numbers(resumed) == numbers(undisturbed)
    record = read_record(resumed.record)
    assert record is not None
    assert record.attempts == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_checkpoint_fits_another_number_of_processes(
    folder: Path, pair: Pair, strategy: str
) -> None:
    run = planned("block")
    from_two = train_alone(folder / f"{strategy} for one", run, attempt=2)
    from_one = SweepPaths(folder / f"{strategy} of one").run(run.run_id)
    assert [seen.steps for seen in pair[f"{strategy} for one"]] == [5, 5]
    assert len(pair[f"{strategy} of one"][0].losses) == 12 - 5
    for resumed in (from_two, from_one):
        assert_close(resumed, alone(folder, run), 1e-9)


def test_diagnostics_of_two_processes_are_those_of_one(folder: Path, pair: Pair) -> None:
    run = planned("block")
    expected = read_jsonl(alone(folder, run).diagnostics)[-1]
    for strategy in STRATEGIES:
        paths = SweepPaths(folder / f"{strategy} block muon").run(run.run_id)
        found = read_jsonl(paths.diagnostics)[-1]
        for name in ("batch_loss_nats", "grad_rms", "output_rms", "param_grad_l2"):
            assert found[name] == pytest.approx(expected[name], rel=1e-9)


def test_a_run_lost_in_one_process_is_written_by_none(folder: Path, pair: Pair) -> None:
    for seen in pair["lost"]:
        assert seen.steps == 4
        assert (seen.error or "").startswith("LeaseLost")
    paths = SweepPaths(folder / "lost").run(planned("block", precision="fp32").run_id)
    assert [step for step, _ in numbers(paths)] == [1, 2, 3]
    assert not paths.checkpoints.exists()
    assert not paths.record.exists()


def test_a_run_that_diverges_ends_in_both_processes_at_one_step(folder: Path, pair: Pair) -> None:
    left, right = pair["diverging"]
    assert left.error is None
    assert left.steps == right.steps < 12
    record = read_record(SweepPaths(folder / "diverging").run(diverging().run_id).record)
    assert record is not None
    assert record.status == "diverged"


def test_a_batch_that_cannot_be_shared_out_evenly_is_refused() -> None:
    config = make_config()
    assert sequences_per_rank(config, Execution(devices=2, nodes=2)) == 2
    with pytest.raises(IsolossError, match=r"256 tokens are 8 sequences .* over 3 processes"):
        sequences_per_rank(config, Execution(devices=3))


def test_a_run_of_two_processes_is_refused_in_one(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path).run(planned("block").run_id)
    with pytest.raises(IsolossError, match="not one of them"):
        train(planned("block"), "test", paths, shared("ddp"), StopSignal(), 1)
