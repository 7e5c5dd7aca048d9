"""Looking tasks and their options up: what exists, what is refused, and in which words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.errors import DataError
from harness.tasks import available, base, build_task, get

TASK_FILE = '''
import numpy as np
from harness.tasks import Draws, Examples, Task, TaskOptions, task


class Options(TaskOptions):
    """Options of copying."""

    length: int = 5


{decorator}
class Copy(Task):
    """Says every token again."""

    Options = Options
    summary, source, graded_by = "the token itself", "none", "nothing"
    levels = (1,)
    vocab_size = 3

    @property
    def seq_len(self) -> int:
        return self.options.length

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        tokens = draws.integers(3, n, self.seq_len)
        return Examples(tokens, tokens, np.ones_like(tokens))
'''


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    copy = dict(available())
    monkeypatch.setattr(base, "_REGISTRY", copy)
    return copy


@pytest.fixture
def rediscover() -> Iterator[None]:
    """Look for files and entry points anew, in this test and after it."""
    base._discover.cache_clear()
    yield
    base._discover.cache_clear()


def write_module(folder: Path, name: str, decorator: str, monkeypatch: Any) -> None:
    (folder / f"{name}.py").write_text(TASK_FILE.format(decorator=decorator))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def message(call: Any) -> str:
    with pytest.raises(DataError) as caught:
        call()
    return str(caught.value)


def test_every_file_of_the_package_is_found() -> None:
    shipped = {"s3_words", "a5_words", "mqar", "k_hop", "mano", "depo"}
    assert shipped <= set(available())
    assert all(get(name).name == name for name in shipped)


def test_unknown_name_suggests_the_closest_and_lists_what_exists() -> None:
    text = message(lambda: get("s3_word"))
    assert text.startswith("unknown task 's3_word'; did you mean 's3_words'? Available: a5_words, ")
    assert "did you mean" not in message(lambda: get("zzz"))


def test_a_class_outside_the_package_is_reached_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "my_task", "", monkeypatch)
    mine = get("my_task:Copy")
    assert (mine.name, mine.revision) == ("my_task:Copy", 1)
    assert get("my_task:Copy") is mine
    info = build_task("my_task:Copy", {"length": 4}).info
    assert (info.name, info.seq_len, info.vocab_size) == ("my_task:Copy", 4, 3)
    assert info.chance == pytest.approx(1 / 3, abs=0.02)


def test_a_task_of_somebody_else_is_found_by_its_entry_point(
    rediscover: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "their_task", '@task("copy", revision=3)', monkeypatch)
    entry = EntryPoint("copy", "their_task", "isoloss.tasks")
    monkeypatch.setattr(base, "entry_points", lambda group: [entry])
    assert available()["copy"].revision == 3
    assert build_task("copy", {}).seq_len == 5


def test_an_entry_point_that_cannot_be_loaded_is_named(
    rediscover: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("mine", "no_such_package.tasks", "isoloss.tasks")
    monkeypatch.setattr(base, "entry_points", lambda group: [broken])
    assert "entry point 'mine = no_such_package.tasks' cannot be loaded" in message(available)


def test_two_files_that_claim_one_name_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "rival_task", '@task("mqar", revision=1)', monkeypatch)
    text = message(lambda: get("rival_task:Copy"))
    assert "task 'mqar' is claimed by" in text
    assert str(Path("harness", "tasks", "mqar.py")) in text
    assert "rival_task.py" in text
    assert get("mqar").__module__ == "harness.tasks.mqar"


def test_a_path_that_leads_nowhere_says_so() -> None:
    assert "cannot be imported" in message(lambda: get("no_such_package.module:Class"))
    assert "cannot be imported" in message(lambda: get("harness.tasks.mqar:Mqra"))
    assert "is not a subclass" in message(lambda: get("harness.tasks.mqar:MqarOptions"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mqar", {"length": 47}, "length 47 and vocab_size 64 must be even"),
        ("mqar", {"vocab_size": 63}, "length 48 and vocab_size 63 must be even"),
        ("mqar", {"n_pairs": 13}, "4 n_pairs must fit length, two tokens for a pair and two for "),
        ("mqar", {"n_pairs": 13}, "n_pairs 13 needs length 52 or more, got 48"),
        (
            "mqar",
            {"n_pairs": 8, "vocab_size": 16},
            "n_pairs must not exceed the vocab_size / 2 - 1 = 7 keys of vocab_size 16, got 8",
        ),
        ("k_hop", {"length": 17}, "must not exceed length - 2, the hops that a string has room"),
        ("k_hop", {"length": 17}, "got max_hops 16, length 17"),
        ("mano", {"prime": 91}, "prime must be prime, got 91, which 7 divides"),
        ("depo", {"n_words": 4}, "min_words must not exceed n_words, got min_words 5, n_words 4"),
        ("depo", {"n_queries": 6}, "n_queries must not exceed min_words, because queries are "),
        ("depo", {"n_queries": 6}, "got n_queries 6, min_words 5"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused_with_the_rule_and_what_was_given(
    name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        build_task(name, options)
    (problem,) = caught.value.errors()
    assert words in str(problem["ctx"]["error"])


@pytest.mark.parametrize(
    ("name", "options", "place"),
    [
        ("s3_words", {"length": 0}, "length"),
        ("a5_words", {"length": "8"}, "length"),
        ("s3_words", {"lenght": 8}, "lenght"),
        ("s3_words", {"curriculum_steps": 0}, "curriculum_steps"),
        ("mqar", {"power_a": 0.0}, "power_a"),
        ("mqar", {"random_non_queries": 1}, "random_non_queries"),
        ("mqar", {"curriculum_steps": 5}, "curriculum_steps"),
        ("mqar", {"vocab_size": 2}, "vocab_size"),
        ("k_hop", {"letters": 2}, "letters"),
        ("k_hop", {"max_hops": 0}, "max_hops"),
        ("mano", {"prime": 1}, "prime"),
        ("mano", {"max_operators": 0}, "max_operators"),
        ("depo", {"min_words": 1}, "min_words"),
        ("depo", {"n_queries": 0}, "n_queries"),
        ("depo", {"word_tokens": 9}, "word_tokens"),
    ],
)
def test_an_option_unknown_of_another_type_or_out_of_range_is_refused_at_its_place(
    name: str, options: dict[str, Any], place: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        build_task(name, options)
    assert [problem["loc"] for problem in caught.value.errors()] == [(place,)]
