"""Depth probes as data of a grid: from the YAML to the record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.errors import GridError
from harness.grid import Grid, load_grid
from harness.model import Transformer
from harness.paths import SweepPaths
from harness.plan import plan, to_manifest
from harness.probing import measure_answers, solved_difficulty, steps_to_solved
from harness.records import PlannedRun, read_jsonl
from harness.tasks import IGNORED, build_task
from tests.conftest import plan_run, run_folder
from tests.harness.test_training import QUICK, StopAt, losses, train_once

BASE = """
sweep: probe
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {task: s3_words, length: 4}
  train: {budget: {tokens: 1000}, batch_tokens: 100, eval_tokens: 500}
"""
SEQUENCE = 5
"""Tokens of a word of four elements and its beginning."""


def load(folder: Path, text: str) -> Grid:
    path = folder / "grid.yaml"
    path.write_text(text)
    return load_grid(path)


def probe(**train: Any) -> PlannedRun:
    data = {"task": "s3_words", "options": {"length": 4}, "seq_len": SEQUENCE}
    sizes = {"budget": {"tokens": 12 * 100}, "batch_tokens": 100, "eval_tokens": 500}
    return plan_run("full", data=data, train={**sizes, **train})


def test_a_grid_names_a_task_and_its_options(tmp_path: Path) -> None:
    (run,) = load(tmp_path, BASE).runs
    assert (run.config.data.task, run.config.data.options) == ("s3_words", {"length": 4})
    assert run.config.data.seq_len == SEQUENCE
    assert run.config.data.label == "s3_words(length=4)"
    assert run.corpus.vocab_size == 7


def test_an_axis_over_tasks_drops_the_options_of_the_one_before(tmp_path: Path) -> None:
    axis = "axes: {data: [{task: s3_words, length: 4}, {task: a5_words}]}\n"
    grid = load(tmp_path, BASE.replace("100", "425").replace("500", "425") + axis)
    assert [run.config.data.label for run in grid.runs] == ["s3_words(length=4)", "a5_words"]
    assert [run.config.data.seq_len for run in grid.runs] == [SEQUENCE, 17]
    assert all(run.config.data.label in run.cell for run in grid.runs)


def test_options_of_a_task_vary_by_dotted_path(tmp_path: Path) -> None:
    text = BASE.replace("100", "120").replace("500", "120") + "axes: {data.length: [1, 2, 3]}\n"
    assert [run.config.data.seq_len for run in load(tmp_path, text).runs] == [2, 3, 4]


def test_a_default_that_is_spelled_out_is_no_other_run(tmp_path: Path) -> None:
    text = BASE.replace("100", "170").replace("500", "170")
    (given,) = load(tmp_path, text.replace("length: 4", "length: 16")).runs
    (left,) = load(tmp_path, text.replace(", length: 4", "")).runs
    assert given.run_id == left.run_id
    assert given.config.data.options == {}


def test_runs_of_other_tasks_have_other_ids(tmp_path: Path) -> None:
    found = {
        run.run_id
        for text in ("length: 4", "length: 4, curriculum_steps: 9")
        for run in load(tmp_path, BASE.replace("length: 4", text)).runs
    }
    assert len(found) == 2


@pytest.mark.parametrize(
    ("old", "new", "path", "said"),
    [
        ("s3_words", "s3_wrds", "base.data.task", "did you mean 's3_words'?"),
        ("length: 4", "lenght: 4", "base.data.lenght", "did you mean 'data.length'?"),
        ("length: 4", "length: 0", "base.data.length", "must be greater than 0, got 0"),
        ("length: 4", "length: four", "base.data.length", "got 'four'"),
        ("length: 4", "length: 4, seq_len: 9", "base.data.seq_len", "takes no data.seq_len"),
        ("length: 4", "corpus: sotu", "base.data.corpus", "takes no data.corpus"),
        ("task: s3_words, ", "", "base.data.length", "is an option of a task"),
        ("s3_words", "4", "base.data.task", "must be text"),
        ("s3_words", "no.such:Task", "base.data.task", "cannot be imported"),
        ("batch_tokens: 100", "batch_tokens: 101", "train.batch_tokens", "Write 100 or 105"),
        ("eval_tokens: 500", "eval_tokens: 3", "train.eval_tokens", "the 5 tokens of a sequence"),
    ],
)
def test_a_malformed_task_gets_one_clear_message(
    tmp_path: Path, old: str, new: str, path: str, said: str
) -> None:
    assert old in BASE
    with pytest.raises(GridError) as caught:
        load(tmp_path, BASE.replace(old, new))
    (message,) = str(caught.value).splitlines()
    assert path in message
    assert said in message


def test_conditions_choose_runs_by_task(tmp_path: Path) -> None:
    rules = "axes: {data: [{task: s3_words, length: 4}, {task: a5_words, length: 4}]}\n"
    exclude = "exclude: [{data.task: a5_words, data.length: 4}]\n"
    assert len(load(tmp_path, BASE + rules).runs) == 2
    (run,) = load(tmp_path, BASE + rules + exclude).runs
    assert run.config.data.task == "s3_words"


def test_a_generated_shape_counts_the_vocabulary_of_the_task(tmp_path: Path) -> None:
    text = BASE.replace("n_layers: 2, d_model: 32, ", "")
    ladder = "ladder: {from: 1e5, to: 4e5, rungs: 2, aspect: 16}\n"
    grid = load(tmp_path, text + ladder)
    sizes = [run.cost.n_params for run in plan(grid).runs]
    assert sizes == pytest.approx([1e5, 4e5], rel=0.02)


def test_the_manifest_keeps_what_a_blind_model_would_lose(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE)
    entropies = to_manifest(grid, plan(grid)).unigram_entropy_nats
    assert entropies == {"s3_words(length=4)": pytest.approx(np.log(6), abs=1e-3)}


def test_a_run_records_what_the_model_answers(sweep: SweepPaths) -> None:
    run = probe()
    paths = run_folder(sweep, run)
    record = train_once(run, paths)
    assert record is not None
    task = build_task("s3_words", {"length": 4})
    examples = task.held_out(100)
    state = torch.load(next(paths.checkpoints.glob("*.ckpt")), weights_only=True)["state_dict"]
    model = _model(run, state)
    with torch.no_grad():
        logits = model(torch.from_numpy(examples.inputs)).double().numpy()
    right, seen, surprise = dict.fromkeys(range(1, 5), 0), dict.fromkeys(range(1, 5), 0), []
    for i, row in enumerate(examples.labels):
        for t, label in enumerate(row):
            if label == IGNORED:
                continue
            seen[t] += 1
            right[t] += int(logits[i, t].argmax() == label)
            surprise.append(np.log(np.exp(logits[i, t]).sum()) - logits[i, t, label])
    wanted = {str(k): right[k] / seen[k] for k in right}
    assert record.accuracy_by_difficulty == pytest.approx(wanted)
    assert record.accuracy_by_position == pytest.approx(wanted)
    assert record.accuracy == pytest.approx(sum(right.values()) / sum(seen.values()))
    assert record.loss_nats == pytest.approx(np.mean(surprise), abs=1e-5)
    assert record.solved_difficulty == solved_difficulty(wanted)
    assert record.bits_per_byte is None
    assert (record.task, record.graded_by) == ("s3_words", "length")
    assert record.corpus == "s3_words(length=4)"


def _model(run: PlannedRun, state: dict[str, Any]) -> Transformer:
    from harness.config import RunConfig

    config = RunConfig.model_validate(run.config)
    model = Transformer(config.model, config.residual, run.vocab_size, config.seed)
    model.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
    return model.eval()


def test_a_stopped_probe_resumes_bit_for_bit(sweep: SweepPaths) -> None:
    run = probe()
    paths = run_folder(sweep, run)
    assert train_once(run, paths, stop=StopAt(5)) is None
    stopped = train_once(run, paths)
    whole_paths = SweepPaths(sweep.root.parent / "whole")
    undisturbed = train_once(run, run_folder(whole_paths, run))
    assert stopped is not None
    assert undisturbed is not None
    assert losses(paths) == losses(whole_paths.run(run.run_id))
    assert stopped.accuracy_by_difficulty == undisturbed.accuracy_by_difficulty


def test_microbatches_leave_the_loss_of_a_probe_alone(sweep: SweepPaths) -> None:
    run = probe(precision="fp64")
    whole, parts = run_folder(sweep, run), SweepPaths(sweep.root.parent / "parts")
    train_once(run, whole)
    train_once(run, run_folder(parts, run), QUICK.model_copy(update={"microbatch_seqs": 3}))
    assert losses(parts.run(run.run_id)) == pytest.approx(losses(whole), abs=1e-9)


def test_every_validation_carries_the_accuracies(sweep: SweepPaths) -> None:
    run = probe()
    paths = run_folder(sweep, run)
    train_once(run, paths)
    rows = [row for row in read_jsonl(paths.metrics) if row["kind"] == "val"]
    assert len(rows) == QUICK.n_evals
    assert all(set(row["accuracy_by_difficulty"]) == {"1", "2", "3", "4"} for row in rows)


def test_accuracies_are_those_of_the_labels_asked_for() -> None:
    task = build_task("s3_words", {"length": 3, "curriculum_steps": 30})
    examples = task.training(seed=1, step=0, n=5)
    hits = np.zeros(examples.labels.shape)
    hits[:4, 1] = 1
    found = measure_answers(examples, hits)
    assert found == {
        "accuracy": 0.8,
        "accuracy_by_difficulty": {"1": 0.8},
        "accuracy_by_position": {"1": 0.8},
    }


def test_solved_means_every_difficulty_up_to_it() -> None:
    assert solved_difficulty({"1": 1.0, "2": 0.9, "3": 0.5, "10": 0.95}) == 2
    assert solved_difficulty({"2": 0.5, "4": 1.0}) == 0
    assert solved_difficulty({"2": 1.0, "10": 1.0, "4": 1.0}) == 10


def test_steps_to_solved_are_the_first_that_stay_so() -> None:
    assert steps_to_solved([10, 20, 30, 40], [0.95, 0.5, 0.9, 1.0]) == 30
    assert steps_to_solved([10, 20], [0.95, 0.5]) is None
    assert steps_to_solved([], []) is None
