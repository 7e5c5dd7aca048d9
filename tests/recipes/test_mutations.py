"""Mutation check: every known trap, put into a copy of the source, makes an existing test fail.

A mutant lives in memory. All packages of ours are imported anew around it, tests included, so that
neither the registry nor any class of the real source is involved; afterwards the modules that the
process had before are back.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import mutants, mutants_of_reads
from tests.recipes.mutants import Guard, Mutant

ROOT = Path(__file__).resolve().parents[2]
OURS = {"recipes", "harness", "analysis", "tests"}
MUTANTS = [*mutants.MUTANTS, *mutants_of_reads.MUTANTS]


def mutated(mutant: Mutant) -> str:
    """The source of a mutant.

    Raises
    ------
    ValueError
        An old text does not occur exactly once.
    """
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    for old, new in ((mutant.old, mutant.new), *mutant.then):
        if (found := text.count(old)) != 1:
            raise ValueError(
                f"the mutant '{mutant.trap}' is stale: its old text must occur once in "
                f"{mutant.file}, and occurs {found} times; bring it up to date:\n{old}"
            )
        text = text.replace(old, new)
    return text


class Copy(SourceLoader):
    """Finds and loads one module of ours from a text in memory; leaves no bytecode behind."""

    def __init__(self, file: str, text: str) -> None:
        self.module = file.removesuffix(".py").replace("/", ".")
        self.file, self.text = ROOT / file, text

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        return spec_from_loader(fullname, self, origin=str(self.file))

    def get_filename(self, fullname: str) -> str:
        return str(self.file)

    def get_data(self, path: str | bytes) -> bytes:
        return self.text.encode()


def our_modules() -> dict[str, Any]:
    return {name: m for name, m in sys.modules.items() if name.split(".")[0] in OURS}


@contextmanager
def imported(file: str, text: str) -> Iterator[None]:
    """Import everything of ours anew, with ``text`` in place of a source file."""
    before, copy = our_modules(), Copy(file, text)
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, copy)
    try:
        importlib.import_module(copy.module)
        yield
    finally:
        sys.meta_path.remove(copy)
        for name in our_modules():
            del sys.modules[name]
        sys.modules.update(before)


def arguments_of(test: Any) -> Iterator[dict[str, Any]]:
    """Argument sets of a parametrised test; one, empty, of a plain one."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
            rows = [getattr(value, "values", value) for value in values]
            axes.append(
                [dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in rows]
            )
    for parts in itertools.product(*axes):
        yield {name: value for part in parts for name, value in part.items()}


def run(guard: Guard) -> None:
    """Run a check over all example option sets of its recipe, or a test over its arguments."""
    module = importlib.import_module(f"tests.{guard.module}")
    function = getattr(module, guard.name)
    if guard.recipe is None:
        for arguments in arguments_of(function):
            function(**arguments)
        return
    base = importlib.import_module("recipes.base")
    cls, shape = base.get(guard.recipe), base.Shape(n_layers=3, d_model=12)
    for options in module.option_sets(cls, shape):
        function(cls, options, shape)


def notices(guard: Guard) -> bool:
    """Whether a guard fails; an error of another kind is the mutant's own, and passes through."""
    try:
        run(guard)
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.trap)
def test_the_suite_notices(mutant: Mutant) -> None:
    with imported(mutant.file, mutated(mutant)):
        noticed = notices(mutant.guard)
    assert noticed, f"the trap '{mutant.trap}' survives: {mutant.guard} passes with it"


@pytest.mark.parametrize("guard", sorted({mutant.guard for mutant in MUTANTS}, key=str), ids=str)
def test_the_unmutated_copy_passes(guard: Guard) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.guard == guard)
    with imported(mutant.file, (ROOT / mutant.file).read_text(encoding="utf-8")):
        run(guard)


HARMLESS = Mutant(
    "a remark that changes nothing",
    "recipes/dense_former.py",
    "weights[-1] = 1.0",
    "weights[-1] = 1.0  # one",
    mutants.check("keeps_its_init_identity", "dense_former"),
)


def test_a_trap_that_survives_is_named_with_what_passed_it() -> None:
    told = "the trap 'a remark that changes nothing' survives: .*init_identity of dense_former"
    with pytest.raises(AssertionError, match=told):
        test_the_suite_notices(HARMLESS)


def test_a_mutant_that_no_longer_fits_the_source_is_stale() -> None:
    with pytest.raises(ValueError, match=r"is stale: its old text must occur once .* 0 times"):
        mutated(HARMLESS._replace(old="weights[-1] = 2.0"))


def test_the_modules_of_the_process_are_back_afterwards() -> None:
    before = our_modules()
    test_the_suite_notices(next(m for m in MUTANTS if m.file == "recipes/dense_former.py"))
    assert our_modules() == before
