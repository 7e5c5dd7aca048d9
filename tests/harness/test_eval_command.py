"""`isoloss eval`: what is stored, what is done again, what cannot be evaluated, exit codes."""

from __future__ import annotations

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import networkx
import pytest

from harness.errors import CheckpointError
from harness.evaluation import Entry
from harness.evaluation.runner import evaluate_all, survey
from harness.evaluation.shown import means_table, measured_text
from harness.evaluation.store import all_results, join_record, stored_result, write_result
from harness.loading import LoadedModel
from harness.paths import RunPaths, SweepPaths, sweep_paths
from harness.prepare import prepare
from harness.records import Manifest, PlannedRun, read_record, write_manifest
from harness.trunks import states
from recipes.base import RecipeError
from tests.command_line import isoloss
from tests.conftest import plan_run, run_folder
from tests.harness.test_training import QUICK, StopAt, train_once

SLICE = Path(__file__).parent.parent / "data" / "sotu_slice.jsonl"
KEEPING = QUICK.model_copy(update={"n_checkpoints": 3, "n_diagnostics": 0})
RUNS = [plan_run(seed=0), plan_run(seed=1)]
UNTRAINED = plan_run("full")
TASK = plan_run(seed=2).model_copy(update={"run_id": "7a5c" * 3})
TASK = TASK.model_copy(
    update={"config": TASK.config | {"data": TASK.config["data"] | {"task": "s3_words"}}}
)
CHEAP = ("-e", "domains:sotu", "--tokens", "512")


def write_sweep(results: Path, runs: list[PlannedRun]) -> SweepPaths:
    paths = sweep_paths(results, "tiny")
    paths.runs.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        schema_version=1,
        sweep="tiny",
        grid_text="sweep: tiny\n",
        created_at="2026-11-29T10:00:00+00:00",
        baseline="standard",
        runs=runs,
    )
    write_manifest(paths, manifest)
    return paths


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with two trained runs, each with checkpoints of three steps."""
    results = tmp_path_factory.mktemp("trained") / "results"
    sweep = write_sweep(results, RUNS)
    for run in RUNS:
        assert train_once(run, run_folder(sweep, run), KEEPING) is not None
    return results


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "results"))


def run_paths(results: Path, run: PlannedRun = RUNS[0]) -> RunPaths:
    return sweep_paths(results, "tiny").run(run.run_id)


def counted(name: str, calls: list[str], error: BaseException | None = None) -> Entry:
    """A measurement that writes down when it is taken, or fails."""

    def measure(model: LoadedModel) -> dict[str, float]:
        calls.append(f"{name} of {model.run_id[:4]} at {model.step}")
        if error:
            raise error
        return {"value": 1.5}

    return Entry(name=name, measure=measure, headline=("value",), identity={"revision": 1})


def steps(paths: RunPaths) -> list[int]:
    return sorted(step for step, _ in states(paths.checkpoints))


def test_checkpoints_for_evaluation_are_kept_over_a_resume(sweep: SweepPaths) -> None:
    run = plan_run(seed=5)
    paths = run_folder(sweep, run)
    eager = KEEPING.model_copy(update={"checkpoint_every_s": 1e-9})
    assert train_once(run, paths, eager, StopAt(7)) is None
    assert steps(paths) == [4, 6, 7]
    assert train_once(run, paths, eager) is not None
    assert steps(paths) == [4, 8, 11, 12]


def test_without_it_only_the_newest_two_are_kept(sweep: SweepPaths) -> None:
    run = plan_run(seed=5)
    paths = run_folder(sweep, run)
    eager = QUICK.model_copy(update={"checkpoint_every_s": 1e-9, "n_diagnostics": 0})
    assert train_once(run, paths, eager) is not None
    assert steps(paths) == [11, 12]


def test_a_grid_is_evaluated_but_for_runs_that_cannot_be(results: Path) -> None:
    bare = plan_run(seed=3)
    sweep = write_sweep(results, [*RUNS, bare, UNTRAINED, TASK])
    shutil.copytree(run_paths(results).root, sweep.run(bare.run_id).root)
    shutil.rmtree(sweep.run(bare.run_id).checkpoints)
    done = isoloss("eval", "tiny", *CHEAP, "--results", results)
    assert done.returncode == 1, done.stderr
    for run in RUNS:
        record = read_record(sweep.run(run.run_id).record)
        assert record is not None
        assert record.evaluations["step-12"]["domains:sotu"]["n_tokens"] == 512
    for run, reason in (
        (bare, "no checkpoint of step 12; none was kept"),
        (UNTRAINED, "not started"),
        (TASK, "trained on the task s3_words, not on text"),
    ):
        assert f"not evaluated: {run.run_id} {run.cell}: {reason}" in done.stdout
    assert "± SD" in done.stdout


def test_the_same_command_again_measures_nothing(results: Path) -> None:
    command = ("eval", "tiny", *CHEAP, "--checkpoints", "all", "--results", results)
    first = isoloss(*command)
    files = sorted(results.rglob("evaluations/*/*.json"))
    before = [(file, file.stat().st_mtime_ns) for file in files]
    again = isoloss(*command, "--json")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert [f"{f.parent.name}/{f.name}" for f in files] == 2 * [
        f"step-{step}/domains.sotu.json" for step in (12, 4, 8)
    ]
    assert [(file, file.stat().st_mtime_ns) for file in files] == before
    told = json.loads(again.stdout)
    assert told["not_evaluated"] == []
    found = {(r["run_id"], r["step"]): r["evaluations"]["domains:sotu"] for r in told["results"]}
    assert set(found) == {(run.run_id, step) for run in RUNS for step in (4, 8, 12)}
    assert {metrics["n_tokens"] for metrics in found.values()} == {512}


def test_one_run_is_named_by_its_first_digits_or_its_folder(results: Path) -> None:
    folder = run_paths(results, RUNS[1]).root
    for target in (f"tiny/{RUNS[1].run_id[:4]}", folder):
        done = isoloss("eval", target, *CHEAP, "--checkpoints", "4,8", "--results", results)
        assert done.returncode == 0, done.stderr
    assert [(r.step, r.name) for r in all_results(RunPaths(folder))] == [
        (4, "domains:sotu"),
        (8, "domains:sotu"),
    ]
    assert all_results(run_paths(results)) == []


def test_after_a_kill_only_the_rest_is_measured(results: Path) -> None:
    sweep, calls = sweep_paths(results, "tiny"), list[str]()
    killed = [counted("a", calls), counted("b", calls, KeyboardInterrupt()), counted("c", calls)]
    subjects, _ = survey(sweep, RUNS, killed, "last")
    with pytest.raises(KeyboardInterrupt):
        evaluate_all(subjects, lambda measured: None)
    record = read_record(run_paths(results).record)
    assert record is not None
    assert record.evaluations == {"step-12": {"a": {"value": 1.5}}}
    calls.clear()
    whole = [counted(name, calls) for name in "abc"]
    done, failed = evaluate_all(survey(sweep, RUNS, whole, "last")[0], lambda measured: None)
    first, second = (run.run_id[:4] for run in RUNS)
    assert calls == [f"{name} of {first} at 12" for name in "bc"] + [
        f"{name} of {second} at 12" for name in "abc"
    ]
    assert [[result.name for result in subject.stored] for subject in done] == [[*"abc"]] * 2
    assert failed == []


def test_a_torn_file_or_another_identity_is_measured_again(results: Path) -> None:
    sweep, calls = sweep_paths(results, "tiny"), list[str]()
    entries = [counted("a", calls), counted("b", calls), counted("c", calls)]
    evaluate_all(survey(sweep, RUNS[:1], entries, "last")[0], lambda measured: None)
    (run_paths(results).evaluations / "step-12" / "b.json").write_text('{"name": "b", "st')
    other = Entry(name="c", measure=entries[2].measure, headline=(), identity={"revision": 2})
    calls.clear()
    subjects, _ = survey(sweep, RUNS[:1], [*entries[:2], other], "last")
    assert [entry.name for entry in subjects[0].missing] == ["b", "c"]
    forced, _ = survey(sweep, RUNS[:1], entries, "last", force=True)
    assert [entry.name for entry in forced[0].missing] == ["a", "b", "c"]


def test_a_failure_of_one_checkpoint_leaves_the_others(results: Path) -> None:
    sweep, calls = sweep_paths(results, "tiny"), list[str]()
    entries = [counted("a", calls), counted("b", calls)]
    run_paths(results).checkpoints.joinpath("step-00000012.ckpt").write_bytes(b"torn")
    done, failed = evaluate_all(survey(sweep, RUNS, entries, "last")[0], lambda measured: None)
    assert [item.run for item in failed] == [RUNS[0]]
    assert [len(subject.stored) for subject in done] == [0, 2]
    calls.clear()
    bad = [counted("a", calls), counted("c", calls, CheckpointError("it is no use"))]
    done, failed = evaluate_all(survey(sweep, RUNS[1:], bad, "last")[0], lambda measured: None)
    assert [item.reason for item in failed] == ["it is no use"]
    assert [result.name for result in done[0].stored] == ["a"]


def test_joining_again_changes_nothing_and_what_is_deleted_goes(results: Path) -> None:
    sweep, paths = sweep_paths(results, "tiny"), run_paths(results)
    unevaluated = paths.record.read_bytes()
    entries = [counted("lm_eval:a b", []), counted("b", [])]
    evaluate_all(survey(sweep, RUNS[:1], entries, "all")[0], lambda measured: None)
    joined = paths.record.read_bytes()
    join_record(paths)
    assert paths.record.read_bytes() == joined != unevaluated
    record = read_record(paths.record)
    assert record is not None
    assert list(record.evaluations) == ["step-4", "step-8", "step-12"]
    assert set(record.evaluations["step-4"]) == {"lm_eval:a b", "b"}
    shutil.rmtree(paths.evaluations)
    join_record(paths)
    assert paths.record.read_bytes() == unevaluated


def test_values_that_are_no_numbers_leave_the_record_readable(results: Path) -> None:
    paths, entry = run_paths(results), counted("a", [])
    write_result(paths, 12, entry, {"value": 1.5, "nan": math.nan, "inf": math.inf})
    join_record(paths)
    record = read_record(paths.record)
    assert record is not None
    assert record.evaluations == {"step-12": {"a": {"value": 1.5}}}
    (file,) = paths.evaluations.rglob("*.json")
    assert json.loads(file.read_text())["metrics"] == {"value": 1.5, "nan": None, "inf": None}
    stored = stored_result(paths, 12, entry)
    assert stored is not None
    assert math.isnan(stored.metrics["inf"])
    wide = Entry(name="a", measure=entry.measure, headline=("inf",), identity=entry.identity)
    subjects, _ = survey(sweep_paths(results, "tiny"), RUNS[:1], [wide], "last")
    means = means_table(subjects * 2, [wide])
    assert means is not None
    assert list(means.columns[-1].cells) == ["nan"]


def test_names_that_share_a_file_are_told_apart(results: Path) -> None:
    paths = run_paths(results)
    write_result(paths, 12, counted("lm_eval:a b", []), {"value": 1.5})
    assert stored_result(paths, 12, counted("lm_eval:a b", [])) is not None
    assert stored_result(paths, 12, counted("lm_eval:a/b", [])) is None


def test_evaluations_at_once_lose_no_result(results: Path) -> None:
    paths = run_paths(results)

    def add(name: str) -> None:
        write_result(paths, 12, counted(name, []), {"value": 1.5})
        join_record(paths)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, "abcdefghijklmnop"))
    record = read_record(paths.record)
    assert record is not None
    assert list(record.evaluations["step-12"]) == [*"abcdefghijklmnop"]


@pytest.mark.parametrize("error", [OSError("disk is gone"), RecipeError("no such recipe")])
def test_a_failing_file_or_recipe_leaves_the_other_runs(results: Path, error: Exception) -> None:
    sweep = sweep_paths(results, "tiny")
    bad, good = counted("a", [], error), counted("a", [])
    subjects = [
        *survey(sweep, RUNS[:1], [bad], "last")[0],
        *survey(sweep, RUNS[1:], [good], "last")[0],
    ]
    done, failed = evaluate_all(subjects, lambda measured: None)
    assert [(item.run, item.reason) for item in failed] == [(RUNS[0], str(error))]
    assert [len(subject.stored) for subject in done] == [0, 1]


def test_headlines_are_found_under_filters_and_of_a_tag_with_no_own_metric() -> None:
    entry = Entry(name="t", measure=lambda model: {}, headline=("acc", "exact_match"))
    filtered = {"exact_match/strict": 0.5, "exact_match/strict_stderr": 0.1, "n_documents": 3.0}
    assert measured_text(entry, filtered) == "exact_match/strict 0.5000"
    group = {"one/acc": 0.25, "one/acc_stderr": 0.1, "two/exact_match/strict": 0.5}
    assert measured_text(entry, group) == "one/acc 0.2500, two/exact_match/strict 0.5000"
    assert measured_text(entry, {"acc": 0.75} | group) == "acc 0.7500"


def test_a_run_without_a_record_gets_none(results: Path) -> None:
    paths = run_paths(results)
    paths.record.unlink()
    join_record(paths)
    assert not paths.record.exists()


def test_code_and_corpora_of_ones_own_are_evaluated(results: Path, tmp_path: Path) -> None:
    texts = tmp_path / "code"
    texts.mkdir()
    for file in Path(networkx.__file__).parent.glob("algorithms/*.py"):
        shutil.copyfile(file, texts / f"{file.stem}.txt")
    prepare([texts], tmp_path / "own", val_fraction=0.5)
    asked = ("-e", "code_cloze", "-e", f"domains:{tmp_path / 'own'}", "--limit", "6")
    own = ("--code-corpus", tmp_path / "own", "--tokens", "256")
    done = isoloss("eval", f"tiny/{RUNS[0].run_id}", *asked, *own, "--results", results)
    assert done.returncode == 0, done.stderr
    found = {result.name: result.metrics for result in all_results(run_paths(results))}
    assert set(found) == {"code_cloze:brackets", "code_cloze:identifiers", "domains:own"}
    assert 0 < found["code_cloze:identifiers"]["n_items"] <= 6
    assert found["code_cloze:brackets"]["chance"] == pytest.approx(1 / 3)
    assert found["domains:own"]["n_bytes"] == 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "-e", "domain"], "unknown evaluation 'domain'; did you mean 'domains'?"),
        (["tiny", "-e", "domains:sotuu"], "unknown corpus 'sotuu'; did you mean 'sotu'?"),
        (["tiny", "-e", "code_cloze:strings"], "code_cloze has no part 'strings'"),
        (["tiny", "-e", "human_eval:3"], "human_eval takes no argument, got '3'"),
        (["tiny", *CHEAP, "--checkpoints", "first"], "expected last, all, or steps such as 100,20"),
        (["tiny", *CHEAP, "--checkpoints", "4,,8"], "got '4,,8'"),
        (["nowhere", *CHEAP], "no such sweep. Start it with: isoloss run GRID"),
        (["nosuch/3f2a", *CHEAP], "/nosuch/manifest.json: no such sweep."),
        (["tiny/ffff", *CHEAP], "no run matches 'ffff'"),
        (["tiny", "--tokens", "0"], "--tokens"),
        (["tiny", "--limit", "none"], "--limit"),
    ],
)
def test_malformed_arguments_are_named(trained: Path, arguments: list[str], message: str) -> None:
    done = isoloss("eval", *arguments, "--results", trained)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(trained.rglob("evaluations"))
