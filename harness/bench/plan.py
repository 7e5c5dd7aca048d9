"""What `isoloss bench` is asked to time: recipes, shapes and settings, read from the command line.

Everything wrong is found here, before anything is built or timed. Knows no clock and no tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from harness.config import ModelConfig, ResidualConfig
from harness.errors import IsolossError
from harness.yaml12 import parse_yaml

BASELINE = "standard"
"""The recipe that every time and every byte is compared with; always measured."""
DEFAULT_RECIPES = (
    *(BASELINE, "block(block_size=4)", "full", "low_rank"),
    "low_rank(key_rank=d_model)",
)
"""`low_rank` stands beside its full-rank twin: the same blocks, keys of full width."""
DEFAULT_SHAPES = ("12x256x8192", "8x64x2048")
QUICK_SHAPES = ("2x32x512",)
QUICK_DEPTHS = "4,6,8,12"
ALL = "all"
PARTS = ("step", "residual", "depth")
"""step: whole training steps. residual: the residual part alone, peers included. depth: whole steps
at several depths."""
PRECISIONS = ("fp32", "bf16", "fp64")
DEVICES = ("auto", "cpu", "cuda")
_WIDEST_HEAD = 32
_LABEL = re.compile(r"([\w.:-]+)\s*\((.*)\)", re.DOTALL)
_NOTATIONS = "NAME, 'NAME(OPTION=VALUE, ...)' or '{name: NAME, OPTION: VALUE}'"


@dataclass(frozen=True)
class BenchShape:
    """A model and a batch."""

    n_layers: int
    d_model: int
    batch_tokens: int
    seq_len: int
    head_dim: int

    @property
    def label(self) -> str:
        """``12x256x8192``: layers, width, tokens per step."""
        return f"{self.n_layers}x{self.d_model}x{self.batch_tokens}"

    @property
    def n_sublayers(self) -> int:
        """Attention and MLP counted separately: 2 n_layers."""
        return 2 * self.n_layers

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.batch_tokens // self.seq_len

    @property
    def model(self) -> ModelConfig:
        """Configuration of the backbone."""
        return ModelConfig(n_layers=self.n_layers, d_model=self.d_model, head_dim=self.head_dim)


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe with options, as written; the option value ``d_model`` means the shape's width."""

    label: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def at(self, shape: BenchShape) -> ResidualConfig:
        """Configuration at a shape."""
        options = {k: shape.d_model if v == "d_model" else v for k, v in self.options}
        return ResidualConfig(name=self.name, options=options)


@dataclass(frozen=True)
class BenchPlan:
    """Everything that one `isoloss bench` measures."""

    recipes: tuple[RecipeChoice, ...]
    """The baseline first."""
    shapes: tuple[BenchShape, ...]
    parts: tuple[str, ...]
    depths: tuple[int, ...] = ()
    """Sublayers; measured at the width and batch of the last shape."""
    device: str = "cpu"
    precision: str = "fp32"
    kernel: str = "auto"
    clock: str = "wall"
    threads: int = 1
    repeats: int = 7
    peer_repeats: int = 3
    peers: bool = True
    vocab_size: int = 256

    @property
    def depth_shapes(self) -> tuple[BenchShape, ...]:
        """The last shape at every depth asked for."""
        return tuple(replace(self.shapes[-1], n_layers=depth // 2) for depth in self.depths)

    @property
    def all_shapes(self) -> tuple[BenchShape, ...]:
        """Every shape at which something is built."""
        own = self.shapes if {"step", "residual"} & set(self.parts) else ()
        return (*own, *(self.depth_shapes if "depth" in self.parts else ()))


def parse_recipe(text: str) -> RecipeChoice:
    """Read a recipe: ``block``, ``block(block_size=4)`` or ``{name: block, block_size: 4}``.

    Values are YAML scalars or flow lists.

    Raises
    ------
    IsolossError
        The text is none of the three notations.
    """
    text = text.strip()
    if not text:
        raise IsolossError(f"an empty recipe: write {_NOTATIONS}.")
    label = _LABEL.fullmatch(text)
    source = text if label is None else _as_mapping(text, label[1], label[2])
    value = parse_yaml(source, f"recipe {text!r}").value
    options = dict(value) if isinstance(value, dict) else {"name": value}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise IsolossError(f"recipe {text!r}: write {_NOTATIONS}.")
    return RecipeChoice(_label(name, options), name, tuple(options.items()))


def _as_mapping(text: str, name: str, inside: str) -> str:
    """Rewrite ``name(a=1, b=[2, 3])`` as the mapping ``{"name": name, "a": 1, "b": [2, 3]}``."""
    pairs = [part.partition("=") for part in re.split(r",(?![^\[{(]*[\]})])", inside)]
    if any(not equals or not key.strip().isidentifier() for key, equals, _ in pairs):
        raise IsolossError(f"recipe {text!r}: write {_NOTATIONS}.")
    entries = [f'"name": "{name}"', *(f'"{key.strip()}": {value}' for key, _, value in pairs)]
    return "{" + ", ".join(entries) + "}"


def _label(name: str, options: dict[str, Any]) -> str:
    if not options:
        return name
    shown = (
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in options.items()
    )
    return f"{name}({', '.join(shown)})"


def choose_recipes(texts: Sequence[str], registered: Sequence[str]) -> tuple[RecipeChoice, ...]:
    """Read the recipes named, each once, the baseline first; ``all`` names every registered one."""
    named = [one for text in texts for one in (registered if text.strip() == ALL else (text,))]
    chosen = [parse_recipe(text) for text in (BASELINE, *(named or DEFAULT_RECIPES))]
    return tuple({choice.label: choice for choice in chosen}.values())


def parse_shape(text: str, seq_len: int, head_dim: int | None = None) -> BenchShape:
    """Read ``LAYERSxWIDTHxTOKENS``, such as ``12x256x8192``.

    Parameters
    ----------
    head_dim
        Width of an attention head; default: the largest even divisor of the width up to 32.

    Raises
    ------
    IsolossError
        Not three whole numbers, tokens that do not fill whole sequences, or an impossible model.
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        raise IsolossError(
            f"shape {text!r}: write LAYERSxWIDTHxTOKENS in whole numbers, such as 12x256x8192."
        )
    n_layers, d_model, tokens = map(int, text.split("x"))
    if tokens % seq_len:
        raise IsolossError(
            f"shape {text!r}: tokens per step must be a multiple of --seq-len, "
            f"got {tokens} and {seq_len}."
        )
    evens = [n for n in range(2, min(_WIDEST_HEAD, d_model) + 1, 2) if d_model % n == 0]
    shape = BenchShape(n_layers, d_model, tokens, seq_len, head_dim or max(evens, default=1))
    try:
        _ = shape.model
    except ValidationError as error:
        raise IsolossError(f"shape {text!r}: {error.errors()[0]['msg']}.") from error
    return shape


def parse_depths(text: str) -> tuple[int, ...]:
    """Read numbers of sublayers such as ``12,24,48,96``, ascending.

    Raises
    ------
    IsolossError
        Not a list of even numbers from 2: a layer is two sublayers.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 and int(part) % 2 == 0 for part in parts):
        raise IsolossError(
            f"--depths {text!r}: write even numbers of sublayers (two per layer), "
            "such as 12,24,48,96."
        )
    return tuple(sorted({int(part) for part in parts}))


def parse_parts(text: str | None, *, depths: bool) -> tuple[str, ...]:
    """Read which parts to measure; default: all that there is something to measure for.

    Raises
    ------
    IsolossError
        An unknown part, or `depth` without depths.
    """
    if text is None:
        return PARTS if depths else PARTS[:2]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not set(parts) <= set(PARTS):
        raise IsolossError(f"--parts {text!r}: write some of {', '.join(PARTS)}.")
    if "depth" in parts and not depths:
        raise IsolossError("--parts depth: say at which, such as --depths 12,24,48,96.")
    return tuple(part for part in PARTS if part in parts)


def one_of(option: str, value: str, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises
    ------
    IsolossError
        It is not; lists what is.
    """
    if value not in choices:
        raise IsolossError(f"{option} {value!r}: choose one of {', '.join(choices)}.")
    return value
