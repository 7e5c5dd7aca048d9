"""Our adapter of lm-evaluation-harness against its own for transformers, with the same weights."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import lm_eval.evaluator
import pytest
import torch
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from analysis.evaluations import HIGHER_IS_BETTER
from harness import decoding
from harness.config import RunConfig
from harness.errors import IsolossError
from harness.evaluation import Settings, get, lm_eval_adapter, lm_eval_model
from harness.evaluation.lm_eval_adapter import IsolossLM, metrics_of, run_lm_eval
from harness.model import Transformer
from harness.paths import SweepPaths
from harness.records import Manifest
from tests.conftest import plan_run, run_folder
from tests.harness.lm_eval_pairs import SEQ_LEN, Pair, make_loaded, make_pair, requests, speech

TASKS = Path(__file__).parent.parent / "data" / "lm_eval"
NAMES = ["isoloss_choices", "isoloss_texts", "isoloss_endings"]
WORDS = ("the", "of", "and", "to", "in", "a", "for", "our", "be", "that", "is", "we", "will", "it")
LONG = "Fellow citizens of the Senate, I come before you once more. " * 4
"""Longer than the model's context in both vocabularies."""


@pytest.fixture(scope="module", params=["byte", "bpe"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pair(request.param)


@pytest.fixture(scope="module")
def bpe() -> Pair:
    return make_pair("bpe")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of local tasks, where their relative paths hold; nothing is left at home."""
    monkeypatch.chdir(TASKS)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)
    datasets.disable_progress_bars()
    yield TASKS
    datasets.enable_progress_bars()


CONTINUATIONS = [
    ("I embrace with great", " satisfaction the opportunity"),
    ("I embrace with great ", "satisfaction"),
    ("The pro", "sperity of our country"),
    ("", "Fellow-Citizens of the Senate"),
    (LONG, " and I am glad."),
    ("Naïve — the café's", " “owner” said 42\n\n"),
    ("x", "y"),
    *[("in the", " " + word) for word in WORDS],
    *[("of th", letter) for letter in string.ascii_lowercase if letter != "e"],
]
"""No ("of th", "e"): "the" is one token, and lm_eval's class gives another request's answer."""


def test_loglikelihoods_are_those_of_transformers_llama(pair: Pair) -> None:
    asked = requests("loglikelihood", *CONTINUATIONS)
    ours, theirs = pair.ours.loglikelihood(asked), pair.theirs.loglikelihood(asked)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert {greedy for _, greedy in ours} == {True, False}
    for (found, _), (expected, _), request in zip(ours, theirs, asked, strict=True):
        assert found == pytest.approx(expected, abs=1e-4), request.args


def test_rolling_loglikelihoods_are_those_of_transformers_llama(pair: Pair) -> None:
    texts = ["A", LONG, LONG[:SEQ_LEN], LONG[: SEQ_LEN + 1], speech()[:700].decode(), "a\n\n b"]
    asked = requests("loglikelihood_rolling", *[(text,) for text in texts])
    ours, theirs = pair.ours.loglikelihood_rolling(asked), pair.theirs.loglikelihood_rolling(asked)
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_greedy_generation_is_that_of_transformers_llama(pair: Pair) -> None:
    prompts = ["Fellow", "The state of the", LONG, "I am", "In 19", "of our people and of our"]
    how: list[dict[str, Any]] = [
        {"until": ["\n"], "max_gen_toks": 12},
        {"until": ["nd", "e"], "max_new_tokens": 12},
        {"until": [], "max_gen_toks": 9, "do_sample": False},
    ]
    asked = requests("generate_until", *[(text, dict(each)) for each in how for text in prompts])
    ours = pair.ours.generate_until(asked)
    assert ours == pair.theirs.generate_until(asked)
    assert len(set(ours)) > len(prompts)
    stopped, free = ours[len(prompts) : 2 * len(prompts)], ours[: len(prompts)]
    assert any(
        full.startswith(cut) and full != cut for cut, full in zip(stopped, free, strict=True)
    )


def test_tasks_give_the_metrics_of_transformers_llama(pair: Pair, tasks: Path) -> None:
    ours = run_lm_eval(pair.ours.loaded, NAMES, tasks)
    theirs = lm_eval.evaluator.simple_evaluate(
        model=pair.theirs,
        tasks=NAMES,
        task_manager=TaskManager(include_path=tasks, include_defaults=False),
        log_samples=False,
    )["results"]
    for name in NAMES:
        expected = {k: v for k, v in theirs[name].items() if k.partition(",")[1] and v != "N/A"}
        assert len(expected) >= 2
        for key, value in expected.items():
            metric, _, _ = key.partition(",")
            assert ours[name][metric] == pytest.approx(value, rel=1e-5), (name, metric)
        assert ours[name]["n_documents"] == theirs[name]["sample_len"]


def test_examples_before_a_question_and_a_limit_are_heeded(bpe: Pair, tasks: Path) -> None:
    plain = run_lm_eval(bpe.ours.loaded, NAMES[:1], tasks, limit=3)[NAMES[0]]
    assert plain["n_documents"] == 3
    manager = TaskManager(include_path=tasks, include_defaults=False)
    theirs = lm_eval.evaluator.simple_evaluate(
        model=bpe.theirs, tasks=NAMES[:1], task_manager=manager, num_fewshot=2
    )["results"][NAMES[0]]
    ours = run_lm_eval(bpe.ours.loaded, NAMES[:1], tasks, num_fewshot=2)[NAMES[0]]
    assert (ours["acc"], ours["acc_norm"]) == (theirs["acc,none"], theirs["acc_norm,none"])


def summed(model: IsolossLM, context: list[int], continuation: list[int]) -> float:
    tokens = torch.tensor([[*context, *continuation]])
    log_probs = model.loaded.model(tokens)[0, :-1].log_softmax(-1)
    return log_probs.gather(-1, tokens[0, 1:, None])[-len(continuation) :].sum().item()


def test_batches_change_no_answer_of_a_recipe_that_mixes_tokens() -> None:
    model = IsolossLM(make_loaded("byte", "multi_stream", steps=0), batch_size=3)
    pairs = [
        ("I embrace with great", " joy"),
        ("a", "b"),
        ("The state of", " the Union"),
        ("x", ""),
    ]
    found = model.loglikelihood(requests("loglikelihood", *pairs))
    for (total, _), pair in zip(found[:-1], pairs, strict=False):
        expected = summed(model, *map(model.tok_encode, pair))
        assert total == pytest.approx(expected, abs=1e-5)
    assert found[-1] == (0.0, True)


def test_white_space_alone_stands_after_a_separator(bpe: Pair) -> None:
    ((found, _),) = bpe.ours.loglikelihood(requests("loglikelihood", ("\n ", "the")))
    tokens = bpe.ours.tok_encode("\n the")
    expected = summed(bpe.ours, [bpe.ours.eot_token_id], tokens)
    assert found == pytest.approx(expected, abs=1e-5)


def test_continuation_that_melts_into_its_context_is_encoded_apart(bpe: Pair) -> None:
    (t,), (h,) = bpe.ours.tok_encode("t"), bpe.ours.tok_encode("h")
    assert len(bpe.ours.tok_encode("th")) == 1
    ((found, _),) = bpe.ours.loglikelihood(requests("loglikelihood", ("t", "h")))
    assert found == pytest.approx(summed(bpe.ours, [t], [h]), abs=1e-5)


def test_continuation_longer_than_the_context_window_is_scored_whole(bpe: Pair) -> None:
    ((found, _),) = bpe.ours.loglikelihood(requests("loglikelihood", ("", LONG)))
    (expected,) = bpe.theirs.loglikelihood_rolling(requests("loglikelihood_rolling", (LONG,)))
    assert found == pytest.approx(expected, abs=1e-4)


def test_generation_ends_before_the_first_of_several_stops(pair: Pair) -> None:
    prompts, until = ["Fellow", "The state", "I am", "In 19", "of our people"], [" the", "e ", "r"]
    free, stopped = (
        pair.ours.generate_until(requests("generate_until", *[(each, how) for each in prompts]))
        for how in ({"until": [], "max_gen_toks": 12}, {"until": until, "max_gen_toks": 12})
    )
    assert stopped == [min((text.split(end)[0] for end in until), key=len) for text in free]
    assert stopped != free


def test_nothing_is_computed_after_a_stop(monkeypatch: pytest.MonkeyPatch, bpe: Pair) -> None:
    rows: list[list[int]] = []

    def generate(*prompts: Any, **options: Any) -> list[list[int]]:
        rows.extend(decoding.generate(*prompts, **options))
        return rows

    monkeypatch.setattr(lm_eval_model, "generate", generate)
    how = {"until": ["e"], "max_gen_toks": 40}
    bpe.ours.generate_until(requests("generate_until", ("Fellow", how)))
    texts = [bpe.ours.tok_decode(rows[0][:n]) for n in range(1, len(rows[0]) + 1)]
    assert ["e" in text for text in texts] == [False] * (len(texts) - 1) + [True]


def test_sampling_repeats_itself_and_differs_between_requests(bpe: Pair) -> None:
    how = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.0, "top_k": 20}
    asked = requests("generate_until", *[("The", how)] * 6)
    first = bpe.ours.generate_until(asked)
    assert first == bpe.ours.generate_until(asked)
    assert len(set(first)) == 6


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_beams": 4}, "num_beams=4 cannot be heeded"),
        ({"max_gen_toks": SEQ_LEN}, f"up to {SEQ_LEN} tokens, and the model sees {SEQ_LEN}"),
    ],
)
def test_generation_that_is_not_possible_is_refused(
    bpe: Pair, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(IsolossError, match=told):
        bpe.ours.generate_until(requests("generate_until", ("The", options)))


def test_task_without_its_data_is_one_message(bpe: Pair, tmp_path: Path, tasks: Path) -> None:
    text = (tasks / "texts.yaml").read_text(encoding="utf-8").replace("texts.jsonl", "gone.jsonl")
    (tmp_path / "texts.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(IsolossError, match=r"could not load isoloss_texts: .*gone\.jsonl"):
        run_lm_eval(bpe.ours.loaded, ["isoloss_texts"], tmp_path)
    with pytest.raises(IsolossError, match="no such folder of task files"):
        run_lm_eval(bpe.ours.loaded, ["isoloss_texts"], tmp_path / "nowhere")


def test_run_is_loaded_by_its_folder(tmp_path: Path) -> None:
    run, sweep = plan_run(), SweepPaths(tmp_path / "results" / "study")
    paths = run_folder(sweep, run)
    paths.checkpoints.mkdir()
    config = RunConfig.model_validate(run.config)
    weights = Transformer(config.model, config.residual, run.vocab_size, seed=7).state_dict()
    state = {f"model.{name}": weight for name, weight in weights.items()}
    torch.save({"run_id": run.run_id, "state_dict": state}, paths.checkpoints / "step-12.ckpt")
    told = {"schema_version": 1, "grid_text": "", "created_at": "", "baseline": "standard"}
    manifest = Manifest(sweep="study", runs=[run], **told)  # type: ignore[arg-type]
    sweep.manifest.write_text(manifest.model_dump_json(), encoding="utf-8")

    model = get_model("isoloss").create_from_arg_string(f"run={paths.root}", {"batch_size": "auto"})
    assert model.get_model_info() == {"run_id": run.run_id, "step": 12}
    assert torch.equal(model.loaded.model.head.weight, weights["head.weight"])
    with pytest.raises(IsolossError, match="no whole checkpoint of step 5"):
        get_model("isoloss").create_from_arg_obj({"run": str(paths.root), "step": 5})
    with pytest.raises(IsolossError, match="takes run=results/SWEEP/runs/ID"):
        get_model("isoloss").create_from_arg_obj({"pretrained": "gpt2"})


def test_each_named_task_is_an_evaluation(bpe: Pair, tasks: Path) -> None:
    settings = Settings(include_path=tasks, limit=2)
    first, second = get("lm_eval").entries("isoloss_choices, isoloss_texts", settings)
    assert (first.name, second.name) == ("lm_eval:isoloss_choices", "lm_eval:isoloss_texts")
    metrics = second.measure(bpe.ours.loaded)
    assert (
        metrics == run_lm_eval(bpe.ours.loaded, ["isoloss_texts"], tasks, limit=2)["isoloss_texts"]
    )


def test_result_is_stale_once_a_task_file_changes(tmp_path: Path) -> None:
    settings, file = Settings(include_path=tmp_path), tmp_path / "t.yaml"
    file.write_text("task: t\n", encoding="utf-8")
    (before,) = get("lm_eval").entries("t", settings)
    (same,) = get("lm_eval").entries("t", settings)
    file.write_text("task: t\nnum_fewshot: 1\n", encoding="utf-8")
    (after,) = get("lm_eval").entries("t", settings)
    assert before.identity == same.identity != after.identity
    with pytest.raises(IsolossError, match="name its tasks"):
        get("lm_eval").entries(None, settings)


def identity(task: str, settings: Settings | None = None) -> dict[str, Any]:
    (entry,) = get("lm_eval").entries(task, settings or Settings())
    return entry.identity


def test_a_task_file_is_stale_by_itself_and_what_it_names_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "# other.yaml\ninclude: base.yaml\nprocess_docs: !function utils.docs\n"
    Path("t.yaml").write_text(text, encoding="utf-8")
    Path("base.yaml").write_text("dataset_kwargs: {data_files: {test: data/a.jsonl}}\n")
    Path("data").mkdir()
    seen = [identity("t.yaml")]
    for name in ("utils.py", "data/a.jsonl", "base.yaml", "t.yaml"):
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write("\n")
        seen.append(identity("t.yaml"))
    assert len({each["task_files"] for each in seen}) == 5
    for name in ("other.yaml", "other.py", "data/b.jsonl", "record.json"):
        Path(name).write_text("{}", encoding="utf-8")
    assert identity("t.yaml") == seen[-1]


def test_a_task_that_is_called_like_a_file_is_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("piqa").write_text("notes", encoding="utf-8")
    assert identity("piqa")["task_files"] is None


def test_what_a_task_raises_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch, bpe: Pair, tasks: Path
) -> None:
    def fail(**arguments: Any) -> None:
        raise KeyError("no column 'question'")

    monkeypatch.setattr(lm_eval_adapter, "simple_evaluate", fail)
    with pytest.raises(
        IsolossError, match=r"lm_eval failed on isoloss_texts: KeyError: .*question"
    ):
        run_lm_eval(bpe.ours.loaded, ["isoloss_texts"], tasks)


def test_what_arms_are_compared_by_is_shown_of_a_task() -> None:
    (entry,) = get("lm_eval").entries("piqa", Settings())
    assert {*entry.headline, "accuracy"} == set(HIGHER_IS_BETTER)


def test_evaluation_of_a_group_holds_its_tasks(monkeypatch: pytest.MonkeyPatch, bpe: Pair) -> None:
    found = {"all": {"acc": 0.5}, "one": {"acc": 0.25}, "two": {"acc": 0.75}}
    monkeypatch.setattr(lm_eval_adapter, "run_lm_eval", lambda *arguments: dict(found))
    (entry,) = get("lm_eval").entries("all", Settings())
    assert entry.measure(bpe.ours.loaded) == {"acc": 0.5, "one/acc": 0.25, "two/acc": 0.75}


def test_metrics_of_filtered_answers_keep_the_name_of_the_filter() -> None:
    row = {
        "alias": "gsm8k",
        "sample_len": 3,
        "exact_match,strict-match": 0.5,
        "exact_match_stderr,strict-match": 0.1,
        "acc,none": 1.0,
        "acc_stderr,none": "N/A",
    }
    assert metrics_of(row) == {
        "exact_match/strict-match": 0.5,
        "exact_match/strict-match_stderr": 0.1,
        "acc": 1.0,
        "n_documents": 3.0,
    }
