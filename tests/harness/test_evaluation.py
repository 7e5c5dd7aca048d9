"""What evaluations measure, against training's own validation, a Llama, and plain loops."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.corpora import open_corpus
from harness.errors import IsolossError
from harness.evaluation import Settings, available, domains, entries_of, get, human_eval
from harness.evaluation.code_items import bracket_items
from harness.evaluation.scoring import Row, score, windows
from harness.evaluation.text import documents, in_tokenizer
from harness.loading import LoadedModel, load_model
from harness.model import Transformer
from harness.paths import SweepPaths
from harness.prepare import prepare
from harness.tokenization import BpeTokenizer, ByteTokenizer, Tokenizer
from tests.conftest import make_config, plan_run, run_folder
from tests.harness.test_model import _renamed, theirs
from tests.harness.test_training import QUICK, train_once

LN_2 = math.log(2)
SLICE = Path(__file__).parent.parent / "data" / "sotu_slice.jsonl"


def subject(tokenizer: Tokenizer, seq_len: int, residual: str = "standard") -> LoadedModel:
    """An untrained model whose logits are far from equal."""
    tokens = {"batch_tokens": seq_len, "eval_tokens": seq_len}
    config = make_config(residual, seq_len=seq_len, train=tokens)
    model = Transformer(config.model, config.residual, tokenizer.vocab_size, seed=3)
    with torch.no_grad():
        model.head.weight.mul_(3.0)
    return LoadedModel(model.eval(), tokenizer, config, step=0, run_id="0" * 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus of bytes."""
    output = tmp_path_factory.mktemp("corpora") / "slice"
    prepare([SLICE], output, val_fraction=0.4)
    return output


@pytest.fixture(scope="module")
def bpe(folder: Path) -> BpeTokenizer:
    return BpeTokenizer.train(documents(str(folder)), 400)


def test_domain_loss_is_the_final_validation_of_the_record(tmp_path: Path) -> None:
    run = plan_run("full", train={"eval_tokens": 2048})
    paths = run_folder(SweepPaths(tmp_path), run)
    record = train_once(run, paths, QUICK)
    assert record is not None
    found = domains.measure(load_model(paths, run), corpus="sotu", tokens=2048)
    assert found["loss_nats"] == record.loss_nats
    assert found["bits_per_byte"] == pytest.approx(record.bits_per_byte, rel=1e-12)
    assert found["n_tokens"] == record.eval_tokens


class _OtherBytes(ByteTokenizer):
    """Bytes under another name, so that a byte corpus is decoded and encoded anew."""

    def to_json(self) -> str:
        return '{"isoloss_tokenizer": "other"}\n'


def test_a_byte_corpus_encoded_anew_gives_the_same_numbers(folder: Path) -> None:
    direct = subject(ByteTokenizer(), 32)
    anew = LoadedModel(direct.model, _OtherBytes(), direct.config, 0, direct.run_id)
    assert in_tokenizer(str(folder), anew.tokenizer)[0].val is not open_corpus(str(folder)).val
    expected = domains.measure(direct, corpus=str(folder), tokens=4096)
    assert domains.measure(anew, corpus=str(folder), tokens=4096) == expected


def test_text_encoded_anew_stands_for_the_bytes_of_the_corpus(
    folder: Path, bpe: BpeTokenizer
) -> None:
    spelled, left_out = in_tokenizer(str(folder), bpe)
    assert bpe.decode(np.asarray(spelled.val)) == open_corpus(str(folder)).val.tobytes()
    assert left_out == 0


def test_bits_per_byte_of_subwords_are_nats_of_targets_over_their_bytes(
    folder: Path, bpe: BpeTokenizer
) -> None:
    model = subject(bpe, 32)
    found = domains.measure(model, corpus=str(folder), tokens=1000)
    val = in_tokenizer(str(folder), bpe)[0].val.astype(np.int64)
    starts = [i * (len(val) - 1) // 31 for i in range(31)]
    nats, n_bytes = 0.0, 0
    for start in starts:
        window = val[start : start + 33]
        n_bytes += len(bpe.decode(window[1:].astype(np.uint32)))
        logits = model.model(torch.from_numpy(window[None, :-1]))[0]
        log_probs = torch.log_softmax(logits.double(), dim=-1)
        nats -= log_probs[torch.arange(32), torch.from_numpy(window[1:])].sum().item()
    assert found["n_tokens"] == 31 * 32
    assert found["n_bytes"] == n_bytes > 1.2 * found["n_tokens"]
    assert found["bits_per_byte"] == pytest.approx(nats / LN_2 / n_bytes, rel=1e-6)
    assert found["nats_per_byte"] == pytest.approx(nats / n_bytes, rel=1e-6)
    assert found["loss_nats"] == pytest.approx(nats / (31 * 32), rel=1e-6)


def test_a_corpus_shorter_than_what_is_asked_is_scored_as_far_as_it_goes(folder: Path) -> None:
    found = domains.measure(subject(ByteTokenizer(), 64), corpus=str(folder), tokens=10**9)
    n_targets = open_corpus(str(folder)).info.n_val_tokens - 1
    assert found["n_tokens"] == n_targets // 64 * 64


def test_solutions_lose_what_llama_says() -> None:
    model = subject(ByteTokenizer(), 4096)
    llama = theirs("Llama", model.model, _renamed(model.model))
    asked = human_eval.problems(12)
    found = human_eval.measure(model, asked)
    nats = []
    for prompt, solution in asked:
        text = torch.tensor([[0, *prompt, *solution]])
        with torch.no_grad():
            log_probs = torch.log_softmax(llama(text).logits[0].double(), dim=-1)
        first = 1 + len(prompt)
        chosen = log_probs[first - 1 : -1].gather(1, text[0, first:, None])
        nats.append(-chosen.sum().item())
    n_bytes = [len(solution) for _, solution in asked]
    assert found["n_problems"] == 12
    assert found["n_bytes"] == found["n_tokens"] == sum(n_bytes)
    assert found["n_prompts_cut"] == 0
    assert found["bits_per_byte"] == pytest.approx(sum(nats) / LN_2 / sum(n_bytes), rel=1e-5)
    by_problem = np.mean([n / b for n, b in zip(nats, n_bytes, strict=True)])
    assert found["loss_nats_by_problem"] == pytest.approx(by_problem, rel=1e-5)
    assert found["bits_per_byte_by_problem"] == pytest.approx(by_problem / LN_2, rel=1e-5)


def test_a_prompt_that_does_not_fit_is_cut_from_the_left() -> None:
    model = subject(ByteTokenizer(), 64)
    prompt, solution = b"def f(x):\n" + b"    # a long remark\n" * 10, b"    return x + 1\n"
    found = human_eval.measure(model, [(prompt, solution)])
    read = (prompt + solution)[-65:]
    with torch.no_grad():
        log_probs = torch.log_softmax(model.model(torch.tensor([list(read[:-1])]))[0], dim=-1)
    chosen = log_probs[-len(solution) :].gather(1, torch.tensor(list(solution))[:, None])
    assert found["n_prompts_cut"] == 1
    assert found["nats_per_problem"] == pytest.approx(-chosen.sum().item(), rel=1e-6)


def test_the_package_brings_164_problems_whose_solutions_compile() -> None:
    every = human_eval.problems()
    assert len(every) == 164
    for prompt, solution in every:
        compile(prompt + solution, "problem", "exec")


@pytest.mark.parametrize(
    ("context", "targets", "seq_len"),
    [(1, 5, 32), (40, 5, 32), (40, 200, 32), (1, 200, 32), (3, 30, 32), (3, 31, 32), (9, 9, 1)],
)
def test_windows_score_every_target_once_after_enough_text(
    context: int, targets: int, seq_len: int
) -> None:
    text = list(range(context + targets))
    scored: list[int] = []
    for row in windows(text[:context], text[context:], seq_len):
        assert row.tokens == tuple(range(row.tokens[0], row.tokens[-1] + 1))
        assert len(row.tokens) <= seq_len + 1
        own = row.tokens[len(row.tokens) - row.n_targets :]
        assert own[0] - row.tokens[0] >= min(own[0], seq_len - seq_len // 2)
        scored += own
    assert scored == text[context:]


def test_rows_in_a_batch_score_as_each_alone() -> None:
    model = subject(ByteTokenizer(), 64, "full").model
    rows = [Row(tuple(range(1, n + 2)), max(1, n // 2)) for n in (3, 50, 7, 21)]
    ends = torch.zeros(2, 256, dtype=torch.bool)
    ends[0, :128] = ends[1, 40] = True
    together, after = score(model, rows, vocab_size=256, endings=ends)
    for row, found, ending in zip(rows, together, after, strict=True):
        with torch.no_grad():
            probs = torch.softmax(model(torch.tensor([row.tokens]))[0].double(), dim=-1)
        tokens = torch.tensor(row.tokens)[-row.n_targets :, None]
        expected = probs[-row.n_targets - 1 : -1].gather(1, tokens)[:, 0]
        np.testing.assert_allclose(found, expected.log(), atol=1e-5)
        last = [probs[-1, :128].sum(), probs[-1, 40]]
        np.testing.assert_allclose(ending, torch.stack(last).log(), atol=1e-5)


def test_evaluations_are_found_by_their_files() -> None:
    assert {"domains", "human_eval", "code_cloze"} <= set(available())
    assert get("domains").default
    assert "base" not in available()


def test_each_measurement_is_named_once(folder: Path) -> None:
    asked = [f"domains:{folder}", "domains:sotu", f"domains:{folder}"]
    assert [e.name for e in entries_of(asked, Settings())] == ["domains:slice", "domains:sotu"]


def test_two_corpora_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    prepare([SLICE], tmp_path / "slice", val_fraction=0.2)
    with pytest.raises(IsolossError, match="two different evaluations are called 'domains:slice'"):
        entries_of([f"domains:{folder}", f"domains:{tmp_path / 'slice'}"], Settings())


def test_brackets_are_asked_for_even_where_few_are_wanted() -> None:
    text = b"def f(x):\n    y = [x, (x + 1)]\n    return {x: y[0]}\n"
    assert len(bracket_items([text * 3] * 4, 2)) == 3
