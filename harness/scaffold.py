"""Writes a new recipe file: a working copy of the standard residual, ready to be edited."""

from __future__ import annotations

import keyword
from pathlib import Path

from harness.errors import IsolossError

TEMPLATE = '''"""{title}: one line on what it does.

Paper: authors, title, arXiv number, equations. Equation: ``u_t = R_t``, ``R_{{t+1}} = R_t + y_t``.
Deviations: none.
"""

from __future__ import annotations

from torch import Tensor

from recipes.base import Options, Residual, ResidualCost, Shape, recipe


class {cls}Options(Options):
    """Options of {name}; each field needs a type, a default and a docstring."""


@recipe("{name}", revision=1)
class {cls}(Residual):
    """What the state is: here one running sum."""

    Options = {cls}Options
    equation = "u_t = x0 + sum_{{s<t}} y_s"
    source = "authors year, arXiv number, equation"

    def start(self, embedding: Tensor) -> Tensor:
        """Open the state on the embedding."""
        return embedding

    def read(self, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Return what sublayer ``t`` sees, and the state."""
        return state, state

    def write(self, state: Tensor, output: Tensor, t: int) -> Tensor:
        """Enter the output of sublayer ``t``."""
        return state + output

    def finish(self, state: Tensor) -> Tensor:
        """Return what the final norm sees."""
        return state

    def stream(self, state: Tensor) -> Tensor:
        """Return the state leaving a sublayer, for diagnostics."""
        return state

    @classmethod
    def cost(cls, shape: Shape, options: Options) -> ResidualCost:
        """State parameters, forward FLOPs, elements moved and kept, in closed form."""
        return ResidualCost(
            params=0,
            flops_per_token=0,
            elements_moved_per_token=3 * shape.d_model * shape.n_sublayers,
            state_elements_per_token=shape.d_model,
        )

    @classmethod
    def equals_standard_at_init(cls, options: Options) -> bool:
        """Claim it only where logits and gradients at initialisation are those of ``standard``."""
        return True
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
    words = name.split("_")
    cls = "".join(word.capitalize() for word in words)
    title = " ".join(words).capitalize()
    path.write_text(TEMPLATE.format(name=name, cls=cls, title=title), encoding="utf-8")
    return path
