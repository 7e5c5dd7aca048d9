"""The ``tune`` block of a grid: typed, and read with a message per mistake.

Knows neither costs nor Optuna. What it says of cells is checked in :mod:`harness.tuning.cells`,
once the runs are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError

from harness.config import Strict, TrainConfig
from harness.fields import MAX_SEED, MISSING, Reader, check_field
from harness.problems import explain, show, unknown_key
from harness.yaml12 import Loc

MIN_FACTOR = 1.1
"""Closer values would be equal after rounding to three digits."""
MAX_FACTOR = 100.0
"""Nothing is bracketed by wider steps."""
MIN_BRACKET = 3
"""Trials of the smallest bracket: a value and its two neighbours."""
MIN_SIZES = 2
"""Sizes that a law over sizes needs."""
NOT_SEARCHED = {
    "budget": "a budget is what arms are compared at",
    "eval_tokens": "losses of different validation sets cannot be compared",
}
"""Fields of train that no search may choose."""


class GeometricSearch(Strict):
    """Values ``start * factor**k``: tried from the start outwards."""

    start: PositiveFloat | None = None
    """First value; default: the run's own."""
    factor: float = Field(default=2.0, ge=MIN_FACTOR, le=MAX_FACTOR)
    """Ratio of two neighbouring values."""


class RangeSearch(Strict):
    """Values between two ends."""

    low: float
    """Smallest value; at_edge: widen may go below."""
    high: float
    """Largest value; at_edge: widen may go above."""
    log: bool = False
    """Search ratios instead of differences."""


Search = GeometricSearch | RangeSearch | list[Any]
"""How one field is searched; a list is tried value by value."""


class Stop(Strict):
    """Which trials end before their budget; runs that enter a fit never do."""

    pruner: Literal["none", "median", "asha"] = "none"
    """none: every trial trains to its end. median: a trial worse than the median of its cell at
    the same step ends. asha: all but the best third end at each rung."""
    min_trials: PositiveInt = 4
    """Trials of a cell that end normally before any other is stopped."""
    warmup_evals: int = Field(default=1, ge=0)
    """Validations of a trial before it may be stopped."""


class Tune(Strict):
    """Search of hyperparameters by arm and size, before the runs."""

    search: dict[str, Search]
    """Dotted fields train.* or residual.OPTION, the most important first: {start, factor},
    {low, high, log}, or a list of values."""
    method: Literal["bracket", "tpe", "random", "cmaes"] = "bracket"
    """bracket: one field after the other, outwards until worse on both sides. tpe, random, cmaes:
    Optuna's samplers."""
    trials: PositiveInt = 12
    """Finished trials per arm and size, in all; bracket: at most."""
    refine: int = Field(default=2, ge=0, le=4)
    """bracket: how often the step is halved around the best value, two trials each time."""
    sizes: PositiveInt | None = None
    """Search at so many of the cheapest sizes and transfer to the others; default: search all."""
    transfer: Literal["flops", "n_params"] | None = None
    """Variable of the power law, one per arm, that carries values to sizes without a search."""
    seed: int = Field(default=1000, ge=0, le=MAX_SEED)
    """Seed of every trial; must not be one of seeds."""
    parallel: PositiveInt | None = None
    """Trials at a time; default: as many as workers."""
    at_edge: Literal["widen", "flag"] = "widen"
    """What follows a best value at the end of {low, high}: widen the range, or say so."""
    stop: Stop = Field(default_factory=Stop)
    """Which trials end before their budget."""
    equal_rate: bool = True
    """Run every arm at the baseline's values as well, to say what its own values bring."""


def read_tune(reader: Reader, value: Any, seeds: Sequence[int]) -> Tune | None:
    """Read the ``tune`` block; mistakes go to ``reader.problems``.

    Parameters
    ----------
    reader
        After the runs were read, so that it knows their recipes.
    value
        What stands under ``tune``.
    seeds
        The sweep's own seeds, which are never tuned on.

    Returns
    -------
    Tune | None
        None after a mistake.
    """
    loc: Loc = ("tune",)
    if not isinstance(value, dict):
        reader.problems.add(loc, f"must be a mapping with the key search, got {show(value)}.")
        return None
    search = _read_search(reader, value["search"]) if "search" in value else None
    block = {**value, **({"search": search or {}} if "search" in value else {})}
    try:
        tune = Tune.model_validate(block)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            known = Stop.model_fields if item["loc"][0] == "stop" else Tune.model_fields
            reader.problems.add((*loc, *item["loc"]), explain(item, known))
        return None
    if search is None:
        return None
    faults = list(_faults(tune, seeds))
    for name, message in faults:
        reader.problems.add((*loc, name), message)
    return None if faults else tune


def _faults(tune: Tune, seeds: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Settings of the block that contradict each other or the grid, each with its key."""
    numeric = [s for s in tune.search.values() if not isinstance(s, list)]
    if tune.seed in seeds:
        rule = f"must be none of the sweep's own seeds, got {tune.seed}"
        yield "seed", f"{rule}. Values chosen on a seed would favour its runs."
    if tune.sizes is not None and tune.sizes < MIN_SIZES:
        yield "sizes", f"must be at least {MIN_SIZES}: a law over sizes needs two. Raise it."
    if tune.sizes is not None and tune.transfer is None:
        rule = "leaves sizes without a search, and nothing carries values to them"
        yield "sizes", f"{rule}. Add transfer: flops, or transfer: n_params."
    if tune.sizes is None and tune.transfer is not None:
        yield "transfer", "has nothing to do: every size is searched. Add sizes, or remove it."
    if tune.method == "bracket" and numeric and tune.trials < MIN_BRACKET:
        yield "trials", f"must be at least {MIN_BRACKET} for a bracket, got {tune.trials}."
    if tune.method == "cmaes" and len(numeric) < max(2, len(tune.search)):
        yield "method", "cmaes searches two numbers or more, and no lists. Write tpe."


def _read_search(reader: Reader, value: Any) -> dict[str, Search] | None:
    """Read what is searched; None after a mistake."""
    loc: Loc = ("tune", "search")
    if not isinstance(value, dict) or not value:
        rule = "must be a mapping of fields to how they are searched"
        advice = "Write train.lr: {factor: 2}"
        reader.problems.add(loc, f"{rule}, got {show(value)}. {advice}.")
        return None
    found: dict[str, Search | None] = {}
    for path, how, place in _flat(value, loc):
        if path in found:
            reader.problems.add(place, f"{path} is given twice here. Keep one.")
        found[path] = _read_field(reader, path, how, place)
    kept = {path: how for path, how in found.items() if how is not None}
    return kept if len(kept) == len(found) else None


def _flat(value: dict[str, Any], loc: Loc) -> Iterator[tuple[str, Any, Loc]]:
    for key, inner in value.items():
        if key in ("train", "residual") and isinstance(inner, dict):
            yield from ((f"{key}.{name}", how, (*loc, key, name)) for name, how in inner.items())
        else:
            yield key, inner, (*loc, key)


def _read_field(reader: Reader, path: str, how: Any, loc: Loc) -> Search | None:
    fault = _not_searchable(path)
    if fault:
        reader.problems.add(loc, fault)
        return None
    if not _owners(reader, path):
        reader.option(path.partition(".")[2], None, loc)  # says which options there are
        return None
    if isinstance(how, list):
        return _read_choices(reader, path, how, loc)
    if not isinstance(how, dict):
        rule = "must be {factor: 2}, {low: …, high: …}, or a list of values"
        reader.problems.add(loc, f"{rule}, got {show(how)}.")
        return None
    as_range, as_ratio = RangeSearch.model_fields.keys(), GeometricSearch.model_fields.keys()
    if as_range & how.keys() and as_ratio & how.keys():
        reader.problems.add(loc, "mixes {start, factor} with {low, high, log}. Keep one of them.")
        return None
    kind = RangeSearch if as_range & how.keys() else GeometricSearch
    try:
        block = kind.model_validate(how)
    except ValidationError as error:
        known = (*GeometricSearch.model_fields, *RangeSearch.model_fields)
        for item in error.errors(include_url=False):
            reader.problems.add((*loc, *item["loc"]), explain(item, known))
        return None
    message = _range_fault(block) if isinstance(block, RangeSearch) else None
    if message:
        reader.problems.add(loc, message)
        return None
    return block if _ends_fit(reader, path, block, loc) else None


def _not_searchable(path: str) -> str | None:
    """Say why no search may choose a field; None where one may."""
    section, _, name = path.partition(".")
    if section == "residual" and name and "." not in name:
        return None
    if section == "train" and name.partition(".")[0] in NOT_SEARCHED:
        return f"is not searched: {NOT_SEARCHED[name.partition('.')[0]]}. Remove it."
    if section == "train" and name in TrainConfig.model_fields:
        return None
    if section in ("model", "data") or path in ("residual", "seed"):
        return (
            f"is not searched: {path} is what arms, sizes and seeds differ in. Put it under axes."
        )
    known = [f"train.{field}" for field in TrainConfig.model_fields if field not in NOT_SEARCHED]
    return unknown_key(path, known)


def _read_choices(reader: Reader, path: str, values: list[Any], loc: Loc) -> Search | None:
    if not values:
        reader.problems.add(loc, "has no values to choose from. Give two or more.")
        return None
    checked = [_checked(reader, path, value, (*loc, i)) for i, value in enumerate(values)]
    if MISSING in checked:
        return None
    if len(values) < 2 or any(value in values[:i] for i, value in enumerate(values)):
        advice = "Give two or more different values, or set the field under base"
        reader.problems.add(loc, f"leaves no choice, got {show(values)}. {advice}.")
        return None
    return checked


def _checked(reader: Reader, path: str, value: Any, loc: Loc) -> Any:
    """Return a value as its field's type; MISSING after a mistake."""
    section, _, name = path.partition(".")
    if section == "residual":
        return reader.option(name, value, loc)
    try:
        return check_field(TrainConfig, name, value)
    except ValidationError as error:
        reader.problems.add(loc, explain(error.errors(include_url=False)[0]))
        return MISSING


def _range_fault(block: RangeSearch) -> str | None:
    if block.low >= block.high:
        return f"low must be below high, got {block.low:g} and {block.high:g}. Swap them."
    if block.log and block.low <= 0:
        return f"low must be above 0 with log, got {block.low:g}. Raise it, or leave log out."
    if block.log and block.high / block.low < MIN_FACTOR**4:
        return "low and high are too close for log. Leave log out."
    return None


def _ends_fit(reader: Reader, path: str, block: GeometricSearch | RangeSearch, loc: Loc) -> bool:
    """Whether the field takes numbers, and these; one mistake is told where it does not."""
    name = path.partition(".")[2]
    if not any(_is_number(owner, name) for owner in _owners(reader, path)):
        rule = "takes no fractions of numbers"
        reader.problems.add(loc, f"{rule}. List the values to try, such as {path}: [A, B].")
        return False
    ends = ("start",) if isinstance(block, GeometricSearch) else ("low", "high")
    given = {end: float(v) for end in ends if (v := getattr(block, end)) is not None}
    found = [_checked(reader, path, value, (*loc, end)) for end, value in given.items()]
    return MISSING not in found


def _owners(reader: Reader, path: str) -> list[type[BaseModel]]:
    """Types that have a field: of an option, those of the grid's recipes that know it."""
    section, _, name = path.partition(".")
    if section == "train":
        return [TrainConfig]
    return [r.Options for r in reader.recipes.values() if name in r.Options.model_fields]


def _is_number(owner: type[BaseModel], name: str) -> bool:
    """Whether a field's type, bounds apart, takes 0.5."""
    bounds = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
    try:
        check_field(owner, name, 0.5)
    except ValidationError as error:
        return all(item["type"] in bounds for item in error.errors(include_url=False))
    return True
