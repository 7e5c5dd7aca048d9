"""Writes a new recipe file: a working copy of the standard residual, ready to be edited."""

from __future__ import annotations

import keyword
from importlib.resources import files
from pathlib import Path

from harness.errors import IsolossError

DOCSTRING = '''"""{title}: one line on what it does.

Paper: authors, title, arXiv number, equations. Equation: ``u_t = R_t``, ``R_{{t+1}} = R_t + y_t``.
Deviations: none.
"""

'''


def write_recipe(name: str, folder: Path) -> Path:
    """Write ``folder/name.py``.

    Raises
    ------
    IsolossError
        The name is no snake_case identifier, the folder is absent, or the file exists.
    """
    path = folder / f"{name}.py"
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise IsolossError(f"'{name}' cannot name a recipe: use a snake_case identifier")
    if not folder.is_dir():
        raise IsolossError(f"{folder}: no such folder. Run this in a checkout, or give --folder")
    if path.exists():
        raise IsolossError(f"{path} exists already; choose another name, or edit that file")
    path.write_text(recipe_text(name), encoding="utf-8")
    return path


def recipe_text(name: str) -> str:
    """Return the source of ``recipes/standard.py`` under another name, its docstring blank."""
    standard = files("recipes").joinpath("standard.py").read_text(encoding="utf-8")
    code = standard[standard.index("from __future__") :]
    words = name.split("_")
    renamed = code.replace('@recipe("standard"', f'@recipe("{name}"').replace(
        "class Standard(", f"class {''.join(word.capitalize() for word in words)}("
    )
    source = renamed[renamed.index("    source = ") :].split("\n")[0]
    renamed = renamed.replace(source, '    source = "authors year, arXiv number, equation"')
    renamed = renamed.replace(
        '"""True by definition."""',
        '"""Say True only where logits and gradients at initialisation are those of standard."""',
    )
    return DOCSTRING.format(title=" ".join(words).capitalize()) + renamed
