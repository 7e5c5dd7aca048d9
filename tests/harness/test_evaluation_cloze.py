"""Questions about code, checked by Python's compiler; their scores, by enumeration."""

from __future__ import annotations

import ast
import itertools
import math
import warnings
from collections import Counter
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from harness.errors import DataError, IsolossError
from harness.evaluation import Settings, code_cloze, entries_of
from harness.evaluation.code_cloze import bracket_scores, identifier_scores, wilson
from harness.evaluation.code_items import CONTEXT_BYTES, Item, bracket_items, identifier_items
from harness.loading import LoadedModel
from harness.prepare import prepare
from harness.tokenization import BpeTokenizer, ByteTokenizer, Tokenizer
from tests.harness.test_evaluation import subject

FOLDER = Path(networkx.__file__).parent / "algorithms"
DOCUMENTS = [
    f.read_bytes() for f in sorted(FOLDER.glob("*.py")) if 4_000 < f.stat().st_size < 30_000
]
DOCUMENTS = [text for text in DOCUMENTS if text.isascii()]
ONE_NAME = "isoloss_one_name"


@pytest.fixture(scope="module")
def names() -> list[Item]:
    return identifier_items(DOCUMENTS, 28)


@pytest.fixture(scope="module")
def brackets() -> list[Item]:
    return bracket_items(DOCUMENTS, 18)


def replaced(item: Item, candidate: bytes) -> str:
    """The item's document with another word in place of the right one."""
    right = item.candidates[item.answer]
    whole = next(text for text in DOCUMENTS if item.context + right in text)
    at = whole.index(item.context + right) + len(item.context)
    return (whole[:at] + candidate + whole[at + len(right) :]).decode()


def words_of_the_tree(text: str) -> set[str]:
    """Every identifier of a module, as the parser sees it; no text of strings."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant):
            continue
        for _, value in ast.iter_fields(node):
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str):
                    found |= set(word.split("."))
    return found


def compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "document", "exec")
        except SyntaxError:
            return False
    return True


def test_what_is_asked_for_is_an_identifier_to_the_parser(names: list[Item]) -> None:
    assert len(names) == 28
    for item in names:
        assert ONE_NAME in words_of_the_tree(replaced(item, ONE_NAME.encode()))


def test_all_candidates_are_identifiers_that_stand_in_the_context(names: list[Item]) -> None:
    for item in names:
        known = words_of_the_tree(replaced(item, item.candidates[item.answer]))
        assert len(set(item.candidates)) == 4
        assert {word.decode() for word in item.candidates} <= known
        assert all(word in item.context for word in item.candidates)
        assert len(item.context) <= CONTEXT_BYTES


def test_candidates_stand_after_a_dot_all_or_none(names: list[Item]) -> None:
    for item in names:
        after_dot = item.context.rstrip().endswith(b".")
        for word in item.candidates:
            assert (b"." + word in item.context) or not after_dot


def test_the_place_of_the_answer_tells_nothing(names: list[Item]) -> None:
    places = Counter(item.answer for item in names)
    assert set(places) == {0, 1, 2, 3}
    assert max(places.values()) < 14


def test_only_the_right_bracket_compiles(brackets: list[Item]) -> None:
    assert Counter(item.answer for item in brackets) == {0: 6, 1: 6, 2: 6}
    for item in brackets:
        valid = [compiles(replaced(item, candidate)) for candidate in item.candidates]
        assert valid == [place == item.answer for place in range(3)]


def test_brackets_and_names_in_strings_and_comments_are_not_asked_for() -> None:
    quoted = '"""{}"""\n# {}\n'.format(*["alpha(beta[gamma{delta + alpha}]) beta gamma"] * 2)
    assert identifier_items([quoted.encode()], 9) == []
    assert bracket_items([quoted.encode()], 9) == []


def test_files_that_python_cannot_read_are_passed_over() -> None:
    broken = [
        b"def f(:\n  x = [\n",
        b"a = (1]\n)\n",
        b"\tif x:\n  y\n z\n",
        b"x = '\xff'\n",
        b")\n",
    ]
    for build in (identifier_items, bracket_items):
        assert build([*broken, b")\n", *DOCUMENTS], 6) == build(DOCUMENTS, 6) != []


def test_items_are_the_same_every_time(names: list[Item], brackets: list[Item]) -> None:
    assert identifier_items(list(DOCUMENTS), 28) == names
    assert bracket_items(iter(DOCUMENTS), 18) == brackets


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (10, 10), (3, 10), (130, 255), (1, 1)])
def test_interval_is_wilsons(hits: int, n: int) -> None:
    low, high = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((low, high), abs=1e-9)


class _Memory(nn.Module):
    """Knows one text by heart: likely goes on as it does, whatever stands before."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(256, 256))
        with torch.no_grad():
            for now, then in itertools.pairwise(text):
                self.weight[now, then] = 6.0

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens]


def loaded(model: nn.Module) -> LoadedModel:
    return LoadedModel(model, ByteTokenizer(), subject(ByteTokenizer(), 64).config, 0, "0" * 12)


def test_a_name_that_begins_another_one_has_no_advantage() -> None:
    item = Item(b"use ", (b"v", b"v_max"), answer=1)
    assert identifier_scores(loaded(_Memory(b"use v_max)")), [item]).argmax() == 1
    assert identifier_scores(loaded(_Memory(b"use v)")), [item]).argmax() == 0


def test_identifier_score_is_the_chance_of_that_word_and_no_longer_one() -> None:
    model = subject(ByteTokenizer(), 64)
    item = Item(b"return (alpha, ", (b"beta", b"b"), answer=0)
    found = identifier_scores(model, [item])[0]
    inside = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
    ends = [byte for byte in range(128) if byte not in inside]
    for word, value in zip(item.candidates, found, strict=True):
        text = item.context + word
        with torch.no_grad():
            logits = model.model(torch.tensor([list(text)]))[0].double()
        log_probs = torch.log_softmax(logits, dim=-1)
        first = len(item.context) - 1  # blanks before the word are scored with it
        spelled = sum(log_probs[at - 1, text[at]].item() for at in range(first, len(text)))
        end = math.log(log_probs[-1].exp()[ends].sum().item())
        assert value == pytest.approx(spelled + end, abs=1e-4)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return BpeTokenizer.train(DOCUMENTS, 600)


def test_bracket_score_sums_all_subwords_that_begin_with_it(bpe: Tokenizer) -> None:
    item = Item(b"x = f(a, b", (b")", b"]", b"}"), answer=0)
    model = subject(bpe, 64)
    (ids,) = bpe.encode([item.context])
    with torch.no_grad():
        logits = model.model(torch.from_numpy(ids.astype(np.int64))[None])[0, -1].double()
    probs = torch.softmax(logits, dim=-1)
    spelled = [bpe.decode(np.array([i], dtype=np.uint32)) for i in range(bpe.vocab_size)]
    sums = [
        sum(p.item() for p, text in zip(probs, spelled, strict=True) if text.startswith(bracket))
        for bracket in item.candidates
    ]
    assert sum(text.startswith(b")") for text in spelled) > 1
    np.testing.assert_allclose(bracket_scores(model, [item])[0], np.log(sums), atol=1e-5)


@pytest.mark.parametrize("seq_len", [16, 512])
def test_untrained_models_choose_at_random(
    names: list[Item], brackets: list[Item], bpe: Tokenizer, seq_len: int
) -> None:
    for tokenizer in (ByteTokenizer(), bpe):
        model = subject(tokenizer, seq_len)
        for scores, asked in ((identifier_scores, names), (bracket_scores, brackets)):
            chosen = scores(model, asked)
            assert np.isfinite(chosen).all()
            hits = int((chosen.argmax(axis=1) == [item.answer for item in asked]).sum())
            low, high = wilson(hits, len(asked), z=4.0)
            assert low < 1 / chosen.shape[1] < high


def test_a_corpus_without_code_is_refused(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(9):
        (texts / f"{i}.txt").write_text(f"No code here, whatever it is {i}.\n")
    prepare([texts], tmp_path / "prose", val_fraction=0.5)
    settings = Settings(code_corpus=str(tmp_path / "prose"))
    (entry,) = entries_of(["code_cloze:brackets"], settings)
    with pytest.raises(DataError, match="holds no Python code to ask about"):
        entry.measure(subject(ByteTokenizer(), 64))


def test_a_part_that_does_not_exist_is_named() -> None:
    with pytest.raises(IsolossError, match="no part 'strings'"):
        code_cloze.entries("strings", Settings())
