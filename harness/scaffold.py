"""Writes a new recipe with its test: a one-parameter variant that passes the contract as it stands.

Two places: a checkout of isoloss (a file in ``recipes/`` and one in ``tests/recipes/``), or an
installable package of its own that registers by entry point. The text lies in
``harness/templates``. All names and paths are checked before the first byte is written.
"""

from __future__ import annotations

import keyword
import re
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote
from string import Template

from harness.errors import IsolossError

MAX_NAME = 40
"""Longest name, so that no line of the templates outgrows 100 columns."""
NAME_RULE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
YAML_WORDS = ("true", "false", "null")
"""Names that a grid would read as a value."""
TEMPLATE_CLASSES = ("Any", "Options", "Residual", "ResidualCost", "Shape", "Tensor")
"""Names that the template imports; a class of the same name would hide one."""
_RECIPE_IS = "R_{t+1} = R_t + w_t y_t, a learned weight on every output"
_TEST_IS = "the contract suite, and that equation as a plain loop"


@dataclass(frozen=True)
class Scaffold:
    """What was written, and what its author does next."""

    files: dict[Path, str]
    """Written files and what each is for."""
    next_steps: tuple[str, ...]
    """Commands and edits, in order."""


def write_in_checkout(name: str, checkout: Path = Path()) -> Scaffold:
    """Write ``recipes/NAME.py`` and ``tests/recipes/test_NAME.py``.

    Parameters
    ----------
    name
        Snake-case name of the variant.
    checkout
        Root of a checkout of isoloss.

    Raises
    ------
    IsolossError
        The name cannot be used, this is no checkout, or a file exists; nothing was written.
    """
    _refuse_name(name)
    module = checkout / "recipes" / f"{name}.py"
    test = checkout / "tests" / "recipes" / f"test_{name}.py"
    for needed in (module.with_name("base.py"), test.with_name("contract.py")):
        if not needed.is_file():
            advice = "Run this in the root of a checkout of isoloss, or give --package DIR"
            raise IsolossError(f"{needed}: no such file. {advice}")
    if module.with_suffix("").exists():
        raise IsolossError(f"{module.with_suffix('')} is a folder; choose another name")
    words = _words(name, f"recipes.{name}")
    _write(
        {
            module: _text(words, "recipe.py"),
            test: _text(words, "test_in_checkout.py", "test_equation.py"),
        }
    )
    return Scaffold(
        {module: _RECIPE_IS, test: _TEST_IS},
        (
            f"pytest tests/recipes -k {name}: passes as it stands; edit the equation in both files",
            "README.md, table of Variants: one row, which `make test` asks for, such as\n"
            f"     | `{name}` | the sum of all outputs, each with a learned weight | unpublished |",
            f"in a grid: axes: {{residual: [standard, {name}]}}",
        ),
    )


def write_package(name: str, folder: Path) -> Scaffold:
    """Write an installable package: ``pyproject.toml``, ``isoloss_NAME.py`` and its test.

    Parameters
    ----------
    name
        Snake-case name of the variant.
    folder
        Root of the package; made where it is absent.

    Raises
    ------
    IsolossError
        The name cannot be used or a file exists; nothing was written.
    """
    _refuse_name(name)
    module = f"isoloss_{name}"
    project = folder / "pyproject.toml"
    recipe, test = folder / f"{module}.py", folder / "tests" / f"test_{name}.py"
    words = _words(name, module)
    _write(
        {
            project: _text(words, "pyproject.toml"),
            recipe: _text(words, "recipe.py"),
            test: _text(words, "test_in_package.py", "test_equation.py"),
        }
    )
    return Scaffold(
        {project: "registers it as an entry point", recipe: _RECIPE_IS, test: _TEST_IS},
        (
            f"pip install -e {quote(str(folder))}: from then on isoloss knows {name}",
            f"pytest {quote(str(folder))}: passes as it stands; edit the equation in both files",
            "the contract suite alone, in a checkout of isoloss: "
            f"ISOLOSS_RECIPES={name} pytest tests/recipes/test_contract.py",
            f"in a grid: axes: {{residual: [standard, {name}]}}",
        ),
    )


def _refuse_name(name: str) -> None:
    """Refuse a name that is no snake_case word, means something else, or is taken."""
    from recipes.base import RecipeError, available

    if not NAME_RULE.fullmatch(name) or len(name) > MAX_NAME:
        rule = f"use snake_case of at most {MAX_NAME} letters and digits, such as my_residual"
        raise IsolossError(f"'{name}' cannot name a recipe: {rule}")
    if keyword.iskeyword(name) or name in YAML_WORDS:
        raise IsolossError(f"'{name}' cannot name a recipe: it is a word of Python or YAML")
    if _class_name(name) in TEMPLATE_CLASSES:
        rule = f"its class {_class_name(name)} would hide a name that recipes import"
        raise IsolossError(f"'{name}' cannot name a recipe: {rule}")
    try:
        taken = name in available()
    except RecipeError as error:
        raise IsolossError(str(error)) from error
    if taken:
        raise IsolossError(f"the recipe '{name}' exists already; choose another name")


def _words(name: str, module: str) -> dict[str, str]:
    return {
        "name": name,
        "module": module,
        "class_name": _class_name(name),
        "title": name.replace("_", " ").capitalize(),
        "dashed": name.replace("_", "-"),
    }


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _text(words: dict[str, str], *templates: str) -> str:
    folder = files("harness").joinpath("templates")
    texts = [folder.joinpath(f"{name}.tmpl").read_text(encoding="utf-8") for name in templates]
    return Template("".join(texts)).substitute(words)


def _write(texts: dict[Path, str]) -> None:
    """Write all files or none: on a failure what was made is taken away again."""
    for path in texts:
        if path.exists() or path.is_symlink():
            raise IsolossError(f"{path} exists already; nothing was written")
    try:
        with ExitStack() as undo:
            for path, text in texts.items():
                for folder in reversed([p for p in path.parents if not p.exists()]):
                    folder.mkdir()
                    undo.callback(folder.rmdir)
                with path.open("x", encoding="utf-8") as file:
                    undo.callback(path.unlink)
                    file.write(text)
            undo.pop_all()
    except OSError as error:
        where = error.filename or next(iter(texts)).parent
        raise IsolossError(f"{where}: {error.strerror}; nothing was written") from error
