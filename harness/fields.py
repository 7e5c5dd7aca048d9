"""Typed fields of a run by dotted path, and the settings and conditions that a grid makes of them.

A *setting* gives one field one value at one place of the file. ``train.budget`` is one field (a
later budget replaces an earlier one whatever its kind), and so is ``residual`` with the options
beside its name; ``residual.OPTION`` is a field of its own. Values are checked once, here, not once
per run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.config import Budget, DataConfig, ModelConfig, TrainConfig
from harness.errors import DataError
from harness.problems import Problems, explain, show, unknown_key
from harness.tasks import available as available_tasks
from harness.tasks import get as get_task
from harness.yaml12 import Loc
from recipes.base import RecipeError, Residual, get

SECTIONS: Mapping[str, type[BaseModel]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "train": TrainConfig,
}
BUDGET = "train.budget"
TASK = "data.task"
_INNER = ("data.options",)
"""Fields that a grid writes as entries beside a name."""
LEAVES = tuple(
    path
    for section in SECTIONS
    for name in SECTIONS[section].model_fields
    if (path := f"{section}.{name}") not in _INNER
)
PATHS = ("residual", *LEAVES, *(f"{BUDGET}.{name}" for name in Budget.model_fields))
MAX_SEED = 2**32 - 1
MISSING = object()
"""Stands for a field that has neither value nor default."""


@dataclass(frozen=True)
class Choice:
    """A recipe as a grid names it: ``block`` or ``{name: block, block_size: 4}``."""

    name: str
    options: dict[str, Any]
    recipe: type[Residual]


@dataclass(frozen=True, eq=False, slots=True)
class Setting:
    """One field, its value, and where that is written. Compared by identity."""

    path: str
    value: Any
    loc: Loc
    section: str
    valid: bool = True


Point = dict[str, Setting]
"""The settings of one run before seeds, by path."""


@dataclass(frozen=True)
class Condition:
    """What ``when.if`` and ``exclude`` ask of a run: every path has one of its values."""

    loc: Loc
    tests: tuple[tuple[str, tuple[Any, ...]], ...]
    seeds: tuple[int, ...] | None = None

    def matches(self, point: Point) -> bool:
        """Whether the run, seeds apart, is meant."""
        return all(_holds(point, path, values) for path, values in self.tests)


@cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    info = model.model_fields[name]
    if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
        return TypeAdapter(info.annotation)
    kind: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    return TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False))


def check_field(model: type[BaseModel], name: str, value: Any) -> Any:
    """Check one value against one field, and return it as that field's type.

    Raises
    ------
    ValidationError
        The value does not fit.
    """
    return _adapter(model, name).validate_python(value)


def value_of(point: Point, path: str) -> Any:
    """Value of a field in a run, defaults included; :data:`MISSING` where there is none."""
    setting = point.get(path)
    if setting is not None:
        return setting.value
    section, _, name = path.partition(".")
    if section == "residual":
        return _option(point, name)
    if path.startswith("data.") and path not in LEAVES:
        return _task_option(point, name)
    if path.startswith(f"{BUDGET}."):
        budget = value_of(point, BUDGET)
        return getattr(budget, path.rpartition(".")[2]) if isinstance(budget, Budget) else MISSING
    return _default(SECTIONS[section], name)


def _default(model: type[BaseModel], name: str) -> Any:
    info = model.model_fields.get(name)
    if info is None or info.is_required():
        return MISSING
    return info.get_default(call_default_factory=True)


def _option(point: Point, name: str) -> Any:
    chosen = point.get("residual")
    if chosen is None or not isinstance(chosen.value, Choice):
        return MISSING
    choice = chosen.value
    return choice.options[name] if name in choice.options else _default(choice.recipe.Options, name)


def _task_option(point: Point, name: str) -> Any:
    chosen = point.get(TASK)
    if chosen is None or not chosen.valid:
        return MISSING
    return _default(get_task(chosen.value).Options, name)


def _holds(point: Point, path: str, values: tuple[Any, ...]) -> bool:
    actual = value_of(point, path)
    if path != "residual":
        return actual in values
    return isinstance(actual, Choice) and any(_is_choice(point, actual, want) for want in values)


def _is_choice(point: Point, actual: Choice, want: Choice) -> bool:
    options = want.options.items()
    return actual.name == want.name and all(
        value_of(point, f"residual.{name}") == value for name, value in options
    )


@dataclass
class Reader:
    """Reads settings and conditions out of a grid, and notes what is wrong with them."""

    problems: Problems
    recipes: dict[str, type[Residual]] = field(default_factory=dict)
    """Recipes named anywhere in the grid."""
    tainted: set[str] = field(default_factory=set)
    """Sections with a mistake: what is absent there may be what was misspelt."""

    def settings(self, mapping: Any, loc: Loc, prefix: str = "") -> list[Setting]:
        """Read the settings of a mapping, nested or dotted; each field may occur once."""
        if not isinstance(mapping, dict):
            self._bad(loc, prefix, f"must be a mapping of fields, got {show(mapping)}.")
            self.tainted.update(() if prefix else ("residual", *SECTIONS))
            return []
        found: Point = {}
        for key, value in mapping.items():
            for setting in self.setting(prefix + key, value, (*loc, key)):
                first = found.setdefault(setting.path, setting)
                if first is not setting:
                    line = self.problems.document.line(first.loc)
                    message = f"{setting.path} is set twice here, first on line {line}. Keep one."
                    self.problems.add(setting.loc, message)
        return list(found.values())

    def setting(self, path: str, value: Any, loc: Loc) -> list[Setting]:
        """Read what one key sets: one field, or several where the value is a section."""
        section, _, name = path.partition(".")
        if path in SECTIONS:
            return self.settings(value, loc, f"{path}.")
        if path == "residual":
            return [self._residual(value, loc)]
        if section == "residual" and name and "." not in name:
            return [Setting(path, value, loc, "residual")]
        if path == TASK:
            return [self._task(value, loc)]
        if path in LEAVES:
            return [self._leaf(path, value, loc)]
        if section == "data" and name in self._task_options():
            return [Setting(path, value, loc, "data")]
        if path.startswith(f"{BUDGET}.") and path in PATHS:
            return [self._leaf(BUDGET, {path.rpartition(".")[2]: value}, loc, nested=False)]
        beside = [f"data.{name}" for name in sorted(self._task_options())]
        known = (*PATHS, *beside) if section == "data" else PATHS
        self._bad(loc, section, unknown_key(path, known))
        self.tainted.update(SECTIONS if section not in SECTIONS else ())
        return []

    @staticmethod
    def knows(path: str) -> bool:
        """Whether a dotted path names a field, a section or a recipe's option."""
        section, _, name = path.partition(".")
        option = section == "residual" and bool(name) and "." not in name
        of_task = section == "data" and name in Reader._task_options()
        return path in PATHS or path in SECTIONS or option or of_task

    @staticmethod
    def _task_options() -> set[str]:
        """Options of any registered task."""
        return {name for cls in available_tasks().values() for name in cls.Options.model_fields}

    def _task(self, value: Any, loc: Loc) -> Setting:
        checked = self._leaf(TASK, value, loc)
        if checked.valid and value is not None:
            try:
                get_task(value)
            except DataError as error:
                self._bad(loc, "data", f"{str(error).rstrip('.')}.")
                return Setting(TASK, None, loc, "data", valid=False)
        return checked

    def _leaf(self, path: str, value: Any, loc: Loc, *, nested: bool = True) -> Setting:
        section, _, name = path.partition(".")
        try:
            checked = check_field(SECTIONS[section], name, value)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                inner = item["loc"] if nested else ()
                self._bad((*loc, *inner), section, explain(item, Budget.model_fields))
            return Setting(path, None, loc, section, valid=False)
        return Setting(path, checked, loc, section)

    def _residual(self, value: Any, loc: Loc) -> Setting:
        choice = self.choice(value, loc)
        return Setting("residual", choice, loc, "residual", valid=choice is not None)

    def choice(self, value: Any, loc: Loc) -> Choice | None:
        """Read a recipe and the options beside its name; None after a mistake."""
        options = dict(value) if isinstance(value, dict) else {}
        name = options.pop("name", None) if isinstance(value, dict) else value
        if not isinstance(name, str):
            rule = "must be the name of a recipe, or a mapping {name: …, OPTION: …}"
            self._bad(loc, "residual", f"{rule}, got {show(value)}.")
            return None
        try:
            recipe = get(name)
        except RecipeError as error:
            place = (*loc, "name") if isinstance(value, dict) else loc
            self._bad(place, "residual", f"{str(error).rstrip('.')}.")
            return None
        self.recipes[name] = recipe
        return Choice(name, options, recipe)

    def condition(self, mapping: Any, loc: Loc) -> Condition | None:
        """Read a condition; a list of values means any of them. None after a mistake."""
        if not isinstance(mapping, dict) or not mapping:
            rule = "must be a mapping of fields to values, such as {residual: full}"
            self.problems.add(loc, f"{rule}, got {show(mapping)}.")
            return None
        tests: dict[str, tuple[Any, ...] | None] = {}
        for path, value, place in _leaves(mapping, loc):
            values = value if isinstance(value, list) else [value]
            checked = [self._wanted(path, item, place) for item in values]
            if not values:
                self.problems.add(place, "an empty list matches nothing. Give a value.")
            tests[path] = tuple(checked) if values and MISSING not in checked else None
        seeds = tests.pop("seed", None)
        kept = tuple((path, values) for path, values in tests.items() if values is not None)
        return Condition(loc, kept, seeds) if len(kept) == len(tests) else None

    def _wanted(self, path: str, value: Any, loc: Loc) -> Any:
        section, _, name = path.partition(".")
        if path == "residual":
            choice = self.choice(value, loc)
            return MISSING if choice is None else choice
        if section == "residual":
            return self.option(name, value, loc)
        if path == "seed":
            return self._wanted_seed(value, loc)
        if section == "data" and path not in PATHS and name in self._task_options():
            return value
        owner: type[BaseModel] = SECTIONS.get(section, Budget)
        if path.startswith(f"{BUDGET}."):
            owner, name = Budget, path.rpartition(".")[2]
        if path not in PATHS:
            self.problems.add(loc, unknown_key(path, (*PATHS, "seed")))
            return MISSING
        try:
            return check_field(owner, name, value)
        except ValidationError as error:
            self.problems.add(loc, explain(error.errors(include_url=False)[0], PATHS))
            return MISSING

    def _wanted_seed(self, value: Any, loc: Loc) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self.problems.add(loc, f"must be an integer, got {show(value)}. Write one of seeds.")
        return MISSING

    def option(self, name: str, value: Any, loc: Loc) -> Any:
        """Check a value of an option of any recipe in the grid; MISSING after a mistake."""
        owners = [r.Options for r in self.recipes.values() if name in r.Options.model_fields]
        known = sorted({n for r in self.recipes.values() for n in r.Options.model_fields})
        if not owners:
            self.problems.add(loc, unknown_key(name, known, "option", "this sweep's recipes"))
            return MISSING
        for options in owners:
            try:
                return check_field(options, name, value)
            except ValidationError as error:
                message = explain(error.errors(include_url=False)[0])
        self.problems.add(loc, message)
        return MISSING

    def _bad(self, loc: Loc, section: str, message: str) -> None:
        self.problems.add(loc, message)
        self.tainted.add(section.partition(".")[0])


def _leaves(mapping: dict[str, Any], loc: Loc, prefix: str = "") -> Iterable[tuple[str, Any, Loc]]:
    for key, value in mapping.items():
        path = prefix + key
        if isinstance(value, dict) and path in (*SECTIONS, BUDGET):
            yield from _leaves(value, (*loc, key), f"{path}.")
        else:
            yield path, value, (*loc, key)
