"""The interface of a residual recipe, its registry, and its cost record.

A recipe owns the residual stream of a Transformer written over sublayers (attention and MLP counted
separately)::

    state = residual.start(embedding)                  # [batch, tokens, d_model]
    for t, sublayer in enumerate(sublayers):           # t = 0 .. n_sublayers - 1
        u, state = residual.read(state, t)             # what it sees, before its own pre-norm
        state = residual.write(state, sublayer(u), t)
    hidden = residual.finish(state)                    # what the final norm and head see

The state is a pytree (NamedTuple, tuple, list, dict) of tensors and ints and is never kept on the
module, so that it can cross a checkpointed function, a pipeline stage or a cache. ``read`` and
``write`` return a new state and leave the old one as it was.

Modules of this package are imported on first use; third parties register by the entry point group
``isoloss.recipes`` or are named ``package.module:Class``.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from recipes.transfer import Transfer

KERNELS = ("auto", "torch", "cached", "two_phase", "fla", "liger")
"""How a depth read is computed. torch: memory-lean autograd functions, anywhere. cached: plain
operations, which torch.compile traces. two_phase: earlier blocks for all reads of a block at once.
fla, liger: fused kernels of those libraries, on CUDA. auto: fla on CUDA where it is installed and
the options allow it, else torch."""

State = Any
"""A pytree of tensors and ints, private to the recipe."""


class RecipeError(ValueError):
    """A recipe is unknown, claimed twice, or given options that make no sense."""


@dataclass(frozen=True)
class Shape:
    """What a recipe must know of the model around it."""

    n_layers: int
    d_model: int

    @property
    def n_sublayers(self) -> int:
        """Attention and MLP counted separately: 2 n_layers."""
        return 2 * self.n_layers


@dataclass(frozen=True)
class ResidualCost:
    """Closed-form price of a recipe, per token where it says so."""

    params: int
    """Parameters of the recipe."""
    flops_per_token: int
    """Forward FLOPs of its reads and writes: matmuls and convolutions only, 2 per multiply-add."""
    elements_moved_per_token: int
    """Elements read and written by all its reads and writes in one forward pass."""
    state_elements_per_token: int
    """Elements that a decoder must keep per token between sublayers (sources, partial sums)."""


class Options(BaseModel):
    """Base of a recipe's options: immutable, typed strictly, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def check(self, shape: Shape) -> None:
        """Refuse options that do not fit the model.

        Raises
        ------
        ValueError
            Names the option, the rule, and what was given.
        """


AnyOptions: TypeAlias = Options
"""Options of some recipe; a name that the class attribute ``Residual.Options`` does not hide."""


class Residual(Transfer, nn.Module):
    """A residual recipe: how sublayer outputs reach later sublayers."""

    name: ClassVar[str]
    """Registered name, set by :func:`recipe`."""
    revision: ClassVar[int]
    """Raised when the meaning of the recipe changes; enters the run id."""
    Options: ClassVar[type[AnyOptions]] = Options
    """Typed options of the recipe."""
    equation: ClassVar[str]
    """One-line equation, shown by ``isoloss recipes``."""
    source: ClassVar[str]
    """Paper and equation numbers."""

    def __init__(self, shape: Shape, options: AnyOptions) -> None:
        super().__init__()
        self.shape = shape
        self.options = options

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialise the recipe's parameters from ``generator``, the only randomness it may use."""

    def start(self, embedding: Tensor) -> State:
        """Open the state on the token embedding, [batch, tokens, d_model]."""
        raise NotImplementedError

    def read(self, state: State, t: int) -> tuple[Tensor, State]:
        """Return what sublayer ``t`` sees, [batch, tokens, d_model], and the state."""
        raise NotImplementedError

    def write(self, state: State, output: Tensor, t: int) -> State:
        """Enter the output of sublayer ``t``, [batch, tokens, d_model], into the state."""
        raise NotImplementedError

    def finish(self, state: State) -> Tensor:
        """Return what the final norm sees, [batch, tokens, d_model]."""
        raise NotImplementedError

    def stream(self, state: State) -> Tensor:
        """Return what diagnostics call the state leaving a sublayer, [batch, tokens, d_model].

        The running sum for additive recipes, the running partial for block recipes, the newest
        output for recipes that keep every output apart. A value to look at: under kernel ``torch``
        its gradient bypasses autograd's edges.
        """
        raise NotImplementedError

    def depth_weights(self, state: State, t: int) -> Tensor | None:
        """Return the weights that read ``t`` puts on its sources, [n_sources, batch, tokens].

        ``state`` is the one that read ``t`` would see; ``t = n_sublayers`` is the final read. None
        where the recipe has no such weights or does not read there. Called by diagnostics only,
        never while training.
        """
        return None

    def depth_values(self, state: State, t: int) -> list[Tensor] | None:
        """Return the sources that read ``t`` mixes, each [batch, tokens, d_model], oldest first.

        In the order of :meth:`source_labels`; None where :meth:`depth_weights` returns None.
        """
        return None

    def source_labels(self, t: int) -> list[str]:
        """Name the sources of read ``t``, oldest first.

        Such as ``embedding``, ``block 1``, ``partial``, ``t3`` (the output of sublayer 3). Empty
        where :meth:`depth_weights` returns None.
        """
        return []

    def stream_mixing(self, state: State, t: int) -> Tensor | None:
        """Return the matrix that read ``t`` applies to parallel streams, [batch, tokens, n, n].

        Row i holds what stream i becomes of all streams. None for recipes with one stream. Called
        by diagnostics only.
        """
        return None

    def masking(self, label: str) -> AbstractContextManager[None]:
        """Hide one source from every read that has another; a softmax renormalises the rest.

        ``label`` is one of :meth:`source_labels`. For the causal check of diagnostics: how much the
        loss rises without it. Recipes without depth weights are left as they are.
        """
        return nullcontext()

    def use_kernel(self, kernel: str) -> None:
        """Choose how depth reads are computed, by one of :data:`KERNELS`; rounding alone differs.

        Recipes without a depth read have nothing to choose.

        Raises
        ------
        RecipeError
            The kernel is not installed, or cannot compute this recipe with these options.
        """

    def dead_parameters(self) -> set[str]:
        """Names of parameters that train but can never change the loss."""
        return set()

    def use_countable_ops(self) -> None:
        """Switch to a formulation whose every multiply-add is a matmul or a convolution.

        Same results, for FLOP counters; a recipe that multiplies elementwise overrides it.
        """

    @classmethod
    def cost(cls, shape: Shape, options: AnyOptions) -> ResidualCost:
        """Closed-form price; equal to real counts, which the contract suite checks."""
        raise NotImplementedError

    @classmethod
    def equals_standard_at_init(cls, options: AnyOptions) -> bool:
        """Whether logits and gradients at initialisation are those of ``standard``."""
        return False

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Option sets that the contract suite runs at this shape; the defaults come first."""
        return [cls.Options()]

    @classmethod
    def token_reach(cls, shape: Shape, options: AnyOptions) -> int:
        """How many earlier tokens a read itself sees; 0 for recipes that mix depth alone."""
        return 0

    @classmethod
    def block_size(cls, shape: Shape, options: AnyOptions) -> int | None:
        """Sublayers per depth block (the paper's S), for recipes that have one."""
        return None


R = TypeVar("R", bound=type[Residual])
_REGISTRY: dict[str, type[Residual]] = {}


def recipe(name: str, *, revision: int) -> Callable[[R], R]:
    """Register the class below under ``name``.

    Raises
    ------
    RecipeError
        Another class already claims the name; both files are named.
    """

    def register(cls: R) -> R:
        if hasattr(cls, "token_local"):
            raise RecipeError(f"recipe '{name}': replace token_local by the method token_reach")
        other = _REGISTRY.get(name)
        if other is not None and _origin(other) != _origin(cls):
            files = " and ".join(_origin(c)[0] for c in (other, cls))
            raise RecipeError(f"recipe '{name}' is claimed by {files}; rename one of them")
        cls.name, cls.revision = name, revision
        _REGISTRY[name] = cls
        return cls

    return register


def _origin(cls: type) -> tuple[str, str]:
    try:
        return inspect.getfile(cls), cls.__qualname__
    except (TypeError, OSError):  # defined in a notebook or a terminal
        return f"module {cls.__module__}", cls.__qualname__


def available() -> dict[str, type[Residual]]:
    """Import every recipe file and entry point, and return the registry by name.

    Raises
    ------
    RecipeError
        Two files claim one name, or an entry point cannot be loaded; the culprit is named.
    """
    for module in pkgutil.iter_modules(importlib.import_module("recipes").__path__):
        _import_file(module.name)
    for entry in entry_points(group="isoloss.recipes"):
        _load(entry)
    return dict(sorted(_REGISTRY.items()))


def _load(entry: EntryPoint) -> None:
    try:
        entry.load()
    except Exception as error:  # foreign code may raise anything
        owner = entry.dist.name if entry.dist else "an unknown distribution"
        raise RecipeError(
            f"entry point '{entry.name} = {entry.value}' of {owner} cannot be loaded: {error}"
        ) from error


def _import_file(name: str) -> None:
    try:
        importlib.import_module(f"recipes.{name}")
    except RecipeError:
        raise
    except Exception as error:  # a file under edit may raise anything
        raise RecipeError(f"recipes/{name}.py cannot be imported: {error!r}") from error


def source_sha256(cls: type[Residual]) -> str:
    """Hash the source of a recipe and of the recipe files that it inherits from.

    Differs when a recipe was edited; whether its meaning changed is what ``revision`` says.
    """
    modules = {base.__module__ for base in cls.__mro__ if issubclass(base, Residual)}
    return _sha256_of(tuple(sorted(modules)))


@cache
def _sha256_of(modules: tuple[str, ...]) -> str:
    sources = [inspect.getsource(importlib.import_module(name)) for name in modules]
    return hashlib.sha256("".join(sources).encode()).hexdigest()


def get(name: str) -> type[Residual]:
    """Look a recipe up by registered name, or by ``package.module:Class``.

    Raises
    ------
    RecipeError
        No such recipe; lists what exists and the closest name.
    """
    if ":" in name:
        return _import_class(name)
    if name not in _REGISTRY and name.isidentifier() and find_spec(f"recipes.{name}"):
        _import_file(name)
    known = _REGISTRY if name in _REGISTRY else available()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise RecipeError(f"unknown recipe '{name}'{hint} Available: {', '.join(known)}.")
    return known[name]


def _import_class(path: str) -> type[Residual]:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # foreign code may raise anything
        raise RecipeError(f"recipe '{path}' cannot be imported: {error!r}") from error
    if not (isinstance(found, type) and issubclass(found, Residual)):
        raise RecipeError(f"recipe '{path}' is not a subclass of recipes.base.Residual")
    if "name" not in found.__dict__:
        recipe(path, revision=found.__dict__.get("revision", 1))(found)
    return found


def parse_options(name: str, options: dict[str, Any], shape: Shape | None = None) -> Options:
    """Check the options of a recipe, all at once, and against a model shape if one is given.

    Raises
    ------
    RecipeError
        Unknown recipe, unknown or ill-typed option, or an option that does not fit the shape; every
        problem is named, one per line.
    """
    cls = get(name)
    try:
        parsed = cls.Options.model_validate(options)
    except ValidationError as error:
        known = list(cls.Options.model_fields)
        problems = [_problem(dict(e), name, known) for e in error.errors()]
        raise RecipeError("\n".join(problems)) from error
    try:
        if shape is not None:
            parsed.check(shape)
    except ValueError as error:
        raise RecipeError(f"residual: {error}") from error
    return parsed


def _problem(error: dict[str, Any], recipe_name: str, known: list[str]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"residual.{path}: {error['msg']}, got {error['input']!r}"
    close = difflib.get_close_matches(path, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    offered = f"It has: {', '.join(known)}." if known else "It has none."
    return f"residual.{path} is not an option of recipe '{recipe_name}'{hint} {offered}"


def build(name: str, shape: Shape, options: dict[str, Any], generator: torch.Generator) -> Residual:
    """Build the module of a recipe for a model shape, initialised.

    ``generator`` is the only source of randomness of the initialisation.

    Raises
    ------
    RecipeError
        See :func:`parse_options`.
    """
    module = get(name)(shape, parse_options(name, options, shape))
    module.reset_parameters(generator)
    return module
