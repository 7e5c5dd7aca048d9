"""From the settings of each run to typed configurations with identity.

Checks what concerns several fields at once: required fields, rules of a section, options against
the recipe and the shape, windows against the corpus. Sections that many runs share are built once.
A failing rule is told once, at the setting that explains it (:mod:`harness.blame`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.blame import Failure, blame
from harness.config import DataConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig
from harness.corpora import CorpusInfo
from harness.errors import DataError
from harness.expand import Candidate
from harness.fields import BUDGET, LEAVES, TASK, Choice, Point, Reader, Setting
from harness.generate import declared_ratios
from harness.identity import arm_label, cell_label, run_id
from harness.iso_flops import KEY as ISO_FLOPS
from harness.iso_flops import Batch, backbone_flops_per_token, batch_tokens, too_small
from harness.problems import explain, unknown_key
from harness.records import Role
from harness.source import SourceInfo, describe_source, window_mistake
from harness.tasks import build_task
from harness.tasks import get as get_task
from harness.yaml12 import Loc
from recipes.base import Options, Residual, Shape

M = TypeVar("M", bound=BaseModel)
Key = tuple[Setting, ...]
_NAMED_IN_CELL = ("model.n_layers", "model.d_model", BUDGET)


@dataclass(frozen=True)
class ResolvedResidual:
    """A recipe with checked options, for one model shape."""

    config: ResidualConfig
    recipe: type[Residual]
    options: Options
    shape: Shape


@dataclass(frozen=True)
class GridRun:
    """One run of a sweep."""

    run_id: str
    arm: str
    cell: str
    config: RunConfig
    residual: ResolvedResidual
    corpus: SourceInfo
    budget_at: Loc
    """Where its budget is written."""
    role: Role = "main"
    """What it is for."""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """Values that a search chose, by dotted path; they stand in ``config`` too."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Ratios of its shape as ``depth_width`` declares them, never those of its integers."""


@dataclass(frozen=True)
class _Parts:
    """What the seeds of one run share."""

    candidate: Candidate
    residual: ResolvedResidual
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    corpus: SourceInfo
    ratios: Mapping[str, float]


@dataclass
class Resolver:
    """Builds runs; mistakes go to ``reader.problems``."""

    reader: Reader
    describe: Callable[[str], CorpusInfo]
    batch: Batch = "fixed"
    """How the batches of ``iso_flops`` follow size and budget."""
    _batched: dict[tuple[int, int], TrainConfig] = field(default_factory=dict)
    _sections: dict[tuple[str, Key], Any] = field(default_factory=dict)
    _residuals: dict[tuple[Key, int, int], ResolvedResidual | None] = field(default_factory=dict)
    _corpora: dict[str, SourceInfo | None] = field(default_factory=dict)
    _windows: dict[tuple[int, int], bool] = field(default_factory=dict)
    _failures: dict[str, list[Failure]] = field(default_factory=dict)
    _sound: dict[str, set[Loc]] = field(default_factory=dict)
    _missing: dict[str, None] = field(default_factory=dict)
    _unknown: set[Loc] = field(default_factory=set)

    def resolve(
        self, candidates: Iterable[Candidate], searched: Collection[str] = ()
    ) -> tuple[list[GridRun], dict[Loc, int]]:
        """Return the runs, each id once, and how many repeats each rule made.

        Fields that are ``searched`` stand in no label: their values change with tuning.
        """
        parts = [self._batched_part(p) for c in candidates if (p := self._parts(c)) is not None]
        self._report_missing()
        for rule, failures in self._failures.items():
            for loc, message in blame(failures, self._sound.get(rule.split(":")[0], set())):
                self.reader.problems.add(loc, message)
        return ([], {}) if self.reader.problems else _distinct(parts, searched)

    def _parts(self, candidate: Candidate) -> _Parts | None:
        buckets: dict[str, list[Setting]] = {"residual": [], "model": [], "data": [], "train": []}
        for setting in candidate.point.values():
            buckets[setting.section].append(setting)
        model = self._section("model", ModelConfig, tuple(buckets["model"]))
        data = self._section("data", DataConfig, tuple(buckets["data"]))
        train = self._section("train", TrainConfig, tuple(buckets["train"]))
        residual = self._residual(tuple(buckets["residual"]), model, candidate.point)
        corpus = self._corpus(data, candidate.point) if data else None
        if not (model and data and train and residual and corpus):
            return None
        misspelt = "data" in self.reader.tainted
        if misspelt or not self._windows_fit(data, train, corpus, candidate.point):
            return None
        ratios = declared_ratios(self.reader.problems.document, candidate.point)
        return _Parts(candidate, residual, model, data, train, corpus, ratios)

    def _batched_part(self, part: _Parts) -> _Parts:
        """Give a run of ``iso_flops`` the batch of its size and budget."""
        budget_at = part.candidate.point[BUDGET].loc
        if self.batch == "fixed" or budget_at[0] != ISO_FLOPS:
            return part
        seq_len, budget = part.data.seq_len, part.train.budget.value
        per_token = backbone_flops_per_token(part.model, seq_len, part.corpus.vocab_size)
        tokens = batch_tokens(self.batch, budget, per_token, seq_len, part.train.batch_tokens)
        if tokens is None:
            message = too_small(budget, per_token, part.model, seq_len)
            self.reader.problems.add(budget_at, message)
            return part
        train = self._batched.get((id(part.train), tokens))
        if train is None:
            train = part.train.model_copy(update={"batch_tokens": tokens})
            self._batched[id(part.train), tokens] = train
        return replace(part, train=train)

    def _section(self, name: str, kind: type[M], key: Key) -> M | None:
        cached = (name, key)
        if cached not in self._sections:
            self._sections[cached] = self._build_section(name, kind, key)
        found: M | None = self._sections[cached]
        return found

    def _build_section(self, name: str, kind: type[M], key: Key) -> M | None:
        if not all(setting.valid for setting in key):
            return None
        given = {setting.path: setting.loc for setting in key}
        values = {setting.path.partition(".")[2]: setting.value for setting in key}
        if kind is DataConfig and not self._task_fits(given, values):
            return None
        try:
            built = kind.model_validate(values)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                if item["type"] == "missing":
                    self._missing[f"{name}.{item['loc'][0]}"] = None
                    continue
                message = explain(item)
                self._fail(name, given, message, _named(message, kind.model_fields, f"{name}."))
            return None
        self._pass(name, given)
        return built

    def _task_fits(self, given: dict[str, Loc], values: dict[str, Any]) -> bool:
        """Replace the options of a task by its checked ones; False after a mistake."""
        name = values.get("task")
        options = {k: values.pop(k) for k in list(values) if k not in DataConfig.model_fields}
        if name is None:
            for k in options:
                message = f"{k} is an option of a task. Add task: NAME beside it, or remove it."
                self.reader.problems.add(given[f"data.{k}"], message)
            return not options
        beside = [f"data.{k}" for k in ("corpus", "seq_len") if k in values]
        if beside:
            rule = f"data.task {name} writes its own sequences and takes no {' or '.join(beside)}"
            self._fail("data", given, f"{rule}. Remove it.", tuple(beside))
            return False
        try:
            task = build_task(name, options)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                self._bad_task_option(item, name, given)
            return False
        kept = task.options.model_dump(mode="json", exclude_defaults=True)
        values.update(options=kept, seq_len=task.seq_len)
        return True

    def _bad_task_option(self, item: Any, name: str, given: dict[str, Loc]) -> None:
        known = get_task(name).Options.model_fields
        message = explain(item, known)
        if not item["loc"]:
            named = _named(message, known, "data.")
            self._fail("data", given, f"{name}: {message}", (*named, "data.task"))
            return
        option = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            message = unknown_key(option, known, "option", name)
        if item["type"] == "missing":
            message = f"{name} needs the option {option}; add it beside the task."
        self.reader.problems.add(given.get(f"data.{option}", given["data.task"]), message)

    def _report_missing(self) -> None:
        missing = [p for p in self._missing if p.partition(".")[0] not in self.reader.tainted]
        if missing:
            rule = f"{', '.join(missing)}: required and not set"
            advice = "Set it in base, or vary it under axes or zip"
            self.reader.problems.add(("base",), f"{rule}. {advice}.")

    def _residual(
        self, key: Key, model: ModelConfig | None, point: Point
    ) -> ResolvedResidual | None:
        if "residual" not in point:
            self._missing["residual"] = None
            return None
        if model is None or not all(setting.valid for setting in key):
            return None
        cached = (key, model.n_layers, model.d_model)
        if cached not in self._residuals:
            shape = Shape(n_layers=model.n_layers, d_model=model.d_model)
            self._residuals[cached] = self._build_residual(key, shape, point)
        return self._residuals[cached]

    def _build_residual(self, key: Key, shape: Shape, point: Point) -> ResolvedResidual | None:
        chosen = point["residual"]
        choice: Choice = chosen.value
        given = {f"residual.{name}": (*chosen.loc, name) for name in choice.options}
        given.update({setting.path: setting.loc for setting in key})
        extra = {s.path.partition(".")[2]: s.value for s in key if s.path != "residual"}
        try:
            options = choice.recipe.Options.model_validate({**choice.options, **extra})
            given.update(
                {p: point[p].loc for p in ("model.n_layers", "model.d_model") if p in point}
            )
            options.check(shape)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                self._bad_option(item, choice, given, extra)
            return None
        except ValueError as error:
            self._misfit(str(error), choice, given)
            return None
        self._pass("residual", given)
        kept = options.model_dump(mode="json", exclude_defaults=True)
        config = ResidualConfig(name=choice.name, options=kept)
        return ResolvedResidual(config, choice.recipe, options, shape)

    def _bad_option(
        self, item: Any, choice: Choice, given: dict[str, Loc], extra: dict[str, Any]
    ) -> None:
        known = choice.recipe.Options.model_fields
        if not item["loc"]:
            self._misfit(explain(item).rstrip("."), choice, given)
            return
        name = str(item["loc"][0])
        loc = given.get(f"residual.{name}", given["residual"])
        message = explain(item, known)
        if item["type"] == "missing":
            message = f"{choice.name} needs the option {name}; add it beside the name."
        if item["type"] == "extra_forbidden":
            loc = loc[:-1] if isinstance(loc[-1], int) else loc
            if loc in self._unknown:
                return
            self._unknown.add(loc)
            message = unknown_key(name, known, "option", choice.name)
            if name in extra:
                axes = f"{{if: {{residual: RECIPE}}, axes: {{residual.{name}: […]}}}}"
                message += f" For an option of some recipes only, write when: [{axes}]."
        self.reader.problems.add(loc, message)

    def _misfit(self, message: str, choice: Choice, given: dict[str, Loc]) -> None:
        named = _named(message, choice.recipe.Options.model_fields, "residual.")
        shape = _named(message, ModelConfig.model_fields, "model.")
        options = tuple(path for path in given if path.startswith("residual."))
        involved = (*(named or options), "residual", *(shape or ("model.n_layers",)))
        self._fail("residual", given, f"{message.rstrip('.')}.", involved)

    def _corpus(self, data: DataConfig, point: Point) -> SourceInfo | None:
        name = data.label
        if name not in self._corpora:
            try:
                self._corpora[name] = describe_source(data, self.describe)
            except DataError as error:
                setting = point.get("data.corpus") or point.get(TASK)
                loc = setting.loc if setting else ("base",)
                self.reader.problems.add(loc, str(error))
                self._corpora[name] = None
        return self._corpora[name]

    def _windows_fit(
        self, data: DataConfig, train: TrainConfig, corpus: SourceInfo, point: Point
    ) -> bool:
        cached = (id(data), id(train))
        if cached not in self._windows:
            paths = (
                *("data.seq_len", "train.batch_tokens"),
                *("train.eval_tokens", "data.corpus", "data.task"),
            )
            given = {path: point[path].loc for path in paths if path in point}
            message = window_mistake(data, train, corpus)
            if message is None:
                self._pass("windows", given)
            else:
                named = tuple(sorted((p for p in paths if p in message), key=message.index))
                self._fail("windows", given, message, named)
            self._windows[cached] = message is None
        return self._windows[cached]

    def _fail(
        self, unit: str, given: dict[str, Loc], message: str, involved: tuple[str, ...]
    ) -> None:
        rule = f"{unit}: {sorted(involved)}"
        self._failures.setdefault(rule, []).append(Failure(message, given, involved))

    def _pass(self, unit: str, given: dict[str, Loc]) -> None:
        self._sound.setdefault(unit, set()).update(given.values())


def _named(message: str, fields: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Paths of the fields that a message names, in its order."""
    names = set(fields)
    words = re.findall(r"[A-Za-z_]\w*", message)
    return tuple(dict.fromkeys(prefix + word for word in words if word in names))


def _distinct(
    parts: list[_Parts], searched: Collection[str]
) -> tuple[list[GridRun], dict[Loc, int]]:
    varying = [path for path in _varying(parts) if path not in searched]
    runs: dict[str, GridRun] = {}
    repeats: dict[Loc, int] = {}
    labels: dict[tuple[int, ...], tuple[str, str]] = {}
    memo: dict[int, str] = {}
    for part in parts:
        shared = (id(part.residual), id(part.model), id(part.data), id(part.train))
        for seed in part.candidate.seeds:
            config = RunConfig(
                residual=part.residual.config,
                model=part.model,
                data=part.data,
                train=part.train,
                seed=seed,
            )
            if shared not in labels:
                arm = arm_label(config, searched)
                labels[shared] = arm, cell_label(config, varying, searched)
            arm, cell = labels[shared]
            revision, sha256 = part.residual.recipe.revision, part.corpus.sha256
            identity = run_id(config, revision, sha256, memo=memo)
            if identity in runs:
                repeats[part.candidate.loc] = repeats.get(part.candidate.loc, 0) + 1
                continue
            budget_at = part.candidate.point[BUDGET].loc
            runs[identity] = GridRun(
                identity,
                arm,
                cell,
                config,
                part.residual,
                part.corpus,
                budget_at,
                ratios=part.ratios,
            )
    return list(runs.values()), repeats


def _varying(parts: list[_Parts]) -> tuple[str, ...]:
    """Fields that differ between runs and that a cell's label does not name anyway."""
    sections = {
        name: list({id(section): section for p in parts if (section := getattr(p, name))}.values())
        for name in ("model", "data", "train")
    }
    paths = []
    for path in LEAVES:
        section, _, name = path.partition(".")
        values = {getattr(item, name) for item in sections[section]}
        if len(values) > 1 and path not in _NAMED_IN_CELL:
            paths.append(path)
    sources: list[DataConfig] = sections["data"]
    if any(data.task for data in sources):  # its label holds all there is to tell
        paths = [path for path in paths if not path.startswith("data.")]
        paths += [TASK] * (len({data.label for data in sources}) > 1)
    return tuple(paths)
