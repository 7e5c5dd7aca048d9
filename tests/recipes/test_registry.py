"""Looking recipes and their options up: what exists, what is refused, and in which words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes import base
from recipes.base import RecipeError, Shape, available, build, get, parse_options

SHAPE = Shape(n_layers=4, d_model=16)

RECIPE_FILE = '''
from recipes.base import Residual, recipe
from recipes.standard import Standard

{decorator}
class Mine(Standard):
    """Standard by another name."""
'''


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    available()
    copy = dict(base._REGISTRY)
    monkeypatch.setattr(base, "_REGISTRY", copy)
    return copy


def write_module(folder: Path, name: str, decorator: str, monkeypatch: Any) -> None:
    (folder / f"{name}.py").write_text(RECIPE_FILE.format(decorator=decorator))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def message(call: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        call()
    return str(caught.value)


def test_every_file_of_the_package_is_found() -> None:
    shipped = {"standard", "full", "block", "delta", "low_rank", "multi_stream"}
    assert shipped <= set(available())
    assert all(get(name).name == name for name in shipped)


def test_unknown_name_suggests_the_closest_and_lists_what_exists() -> None:
    text = message(lambda: get("blok"))
    assert text.startswith("unknown recipe 'blok'; did you mean 'block'? Available: block, delta, ")
    assert "did you mean" not in message(lambda: get("zzz"))


def test_a_module_that_registers_nothing_is_not_a_recipe() -> None:
    assert message(lambda: get("depth_attention")).startswith("unknown recipe 'depth_attention'")


def test_two_files_that_claim_one_name_are_both_named(
    registry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "rival_recipe", '@recipe("full", revision=1)', monkeypatch)
    text = message(lambda: get("rival_recipe:Mine"))
    assert "recipe 'full' is claimed by" in text
    assert str(Path("recipes", "full.py")) in text
    assert "rival_recipe.py" in text


def test_a_class_outside_the_package_is_reached_by_its_path(
    registry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "my_recipe", "", monkeypatch)
    mine = get("my_recipe:Mine")
    assert (mine.name, mine.revision) == ("my_recipe:Mine", 1)
    assert get("my_recipe:Mine") is mine
    built = build("my_recipe:Mine", SHAPE, {}, torch.Generator())
    assert type(built) is mine


def test_a_path_that_leads_nowhere_says_so() -> None:
    assert "cannot be imported" in message(lambda: get("no_such_package.module:Class"))
    assert "cannot be imported" in message(lambda: get("recipes.full:Fool"))
    assert "is not a subclass" in message(lambda: get("recipes.base:Shape"))


def test_an_entry_point_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = base.EntryPoint("mine", "no_such_package.recipes", "isoloss.recipes")
    monkeypatch.setattr(base, "entry_points", lambda group: [broken])
    assert "entry point 'mine = no_such_package.recipes'" in message(available)


def test_unknown_option_suggests_the_closest() -> None:
    text = message(lambda: parse_options("block", {"blocksize": 4}))
    assert text.startswith("residual.blocksize is not an option of recipe 'block'; did you mean ")
    assert "'block_size'" in text
    assert message(lambda: parse_options("standard", {"x": 1})).endswith("It has none.")


def test_every_mistake_is_reported_at_once() -> None:
    text = message(lambda: parse_options("block", {"block_size": "4", "tial": "short"}))
    assert len(text.splitlines()) == 2
    assert "residual.block_size: " in text


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("block", {"block_size": 9}, "block_size must not exceed the model's 8 sublayers"),
        ("block", {"n_blocks": 9}, "n_blocks must not exceed the model's 8 sublayers"),
        ("block", {"block_size": 2, "n_blocks": 2}, "block_size or n_blocks, not both"),
        ("block", {"n_blocks": 5}, "would give 4 blocks of 2 sublayers; use tail 'balanced'"),
        ("block", {"block_size": 0}, "residual.block_size: "),
        ("delta", {"block_size": 2}, "block_size needs source 'block_sum' or 'cumulative'"),
        ("delta", {"source": "block_sum", "block_size": 3}, "multiple of 2"),
        ("delta", {"source": "block_sum", "n_blocks": 5}, "the model's 4 transformer layers"),
        (
            "delta",
            {"source": "block_sum", "n_blocks": 1},
            "no read would have two sources to choose from at 8",
        ),
        ("delta", {"tail": "balanced"}, "needs blocks"),
        ("full", {"query": "none", "key_norm": "rms"}, "query 'none' has no keys"),
        ("full", {"heads": 3}, "heads must divide d_model 16, got 3"),
        ("full", {"heads": 2, "key_rank": 4}, "key_rank must be 16 (d_model)"),
        ("full", {"heads": 16}, "two channels or more"),
        ("full", {"key_norm_scope": "full"}, "is 'slice' for one head"),
        ("full", {"key_norm_scope": "full", "heads": 2, "key_norm": "none"}, "no meaning"),
        ("full", {"window": 1, "embedding_source": False}, "no read would have two sources"),
        ("block", {"n_blocks": 1, "embedding_source": False}, "no read would have two sources"),
        ("multi_stream", {"n_blocks": 1, "embedding_source": False}, "two sources to choose from"),
        ("full", {"temperature": 0.0}, "greater than 0"),
        ("full", {"block_size": 2}, "not an option of recipe 'full'"),
        ("block", {"block_sizes": [2, 3]}, "must add up to the model's"),
        ("block", {"block_sizes": [2, 4], "block_size": 2}, "not several"),
        ("block", {"embedding_source": False, "include_partial": False}, "keep one of the two"),
        ("delta", {"source": "block_sum", "block_sizes": [3, 5]}, "must be multiples of 2"),
        ("delta", {"include_partial": True}, "include_partial needs source"),
        ("delta", {"value_scale": "mean"}, "need block sums"),
        ("delta", {"source": "cumulative", "value_scale": "mean"}, "need block sums; cumulative"),
        ("delta", {"source": "cumulative", "count_prior": True}, "need block sums; cumulative"),
        ("delta", {"as_released": True}, "needs source 'block_sum' and combine 'add'"),
        ("multi_stream", {"heads": 2}, "not an option of recipe 'multi_stream'"),
        ("low_rank", {"key_rank": 1}, "key_rank must lie in 2..16 (d_model), got 1"),
        ("low_rank", {"key_rank": 17}, "key_rank must lie in 2..16 (d_model), got 17"),
        ("multi_stream", {"widths": []}, "residual.widths: "),
        ("full", {"query_init_std": -1.0}, "residual.query_init_std: "),
    ],
)
def test_impossible_options_are_refused_with_the_reason(
    name: str, options: dict[str, Any], words: str
) -> None:
    assert words in message(lambda: parse_options(name, options, SHAPE))


def test_the_default_block_size_says_that_it_is_the_default() -> None:
    text = message(lambda: parse_options("block", {}, Shape(n_layers=1, d_model=16)))
    assert text.endswith("2 sublayers (2 per layer), got 4 (the default)")


def test_a_recipe_file_that_raises_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_recipe.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = message(lambda: get("broken_recipe:Class"))
    assert "broken_recipe:Class" in told
    assert "ZeroDivisionError" in told
