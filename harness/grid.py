"""A grid file as a typed sweep: the one entry from YAML to runs.

``load_grid`` reads the whole file, notes every mistake with file, line and dotted path, and only
then returns. Rules are expanded in :mod:`harness.expand` and typed in :mod:`harness.resolve`, the
``slurm`` block in :mod:`harness.slurm.block`, the ``tune`` block in :mod:`harness.tuning.config`.
Knows nothing of costs or results.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from harness import corpora
from harness.config import Execution, Strict, label_of
from harness.errors import GridError
from harness.expand import RuleCount, expand, read_rules
from harness.fields import LEAVES, MAX_SEED, SECTIONS, Choice, Reader, Setting
from harness.problems import HINTS, Problems, explain, show, unknown_key
from harness.profiles import choose, lay_profile
from harness.resolve import GridRun, Resolver
from harness.slurm.block import lay_over_profile, read_block
from harness.slurm.options import Slurm
from harness.tuned import Tuned
from harness.tuning.cells import check_cells
from harness.tuning.config import Tune, read_tune
from harness.yaml12 import Document, Loc, parse_yaml, read_yaml, sweep_name_fault
from recipes.base import RecipeError, Shape, get, parse_options

S = TypeVar("S", bound=Strict)


class Limits(Strict):
    """What a sweep may cost at most; ``plan`` refuses to exceed it."""

    runs: PositiveInt | None = None
    """Runs of the whole grid, seeds included."""
    gpu_hours: PositiveFloat | None = None
    """Device hours of the whole grid, checked once a throughput is known."""


class Mlflow(Strict):
    """The mirror of the records in MLflow."""

    mode: Literal["direct", "sync", "off"] = "direct"
    """direct: one process beside the workers mirrors the run folders. sync: nothing runs beside
    them; `isoloss sync` brings the mirror up to date. off: no MLflow at all."""


class Analysis(Strict):
    """How the runs are compared."""

    baseline: str | dict[str, Any] = Field(default="standard")
    """Arm that multipliers compare with: a label such as block(block_size=4), or its recipe."""


TOP_LEVEL = (
    *("sweep", "base", "axes", "zip", "ladder", "depth_width", "iso_flops"),
    *("when", "exclude", "include", "seeds"),
    *("limits", "tune", "slurm", "mlflow", "analysis", "execution", "profiles"),
)
ANY_RECIPE = ("auto", "torch", "cached")
"""Kernels that compute every recipe."""
_SET_BESIDE_BASE = (
    *("sweep", "seeds", "limits", "tune", "slurm", "mlflow", "analysis", "execution"),
    *("ladder", "depth_width", "iso_flops"),
)


@dataclass(frozen=True)
class Grid:
    """A grid file, checked and expanded."""

    file: str
    text: str
    overrides: tuple[str, ...]
    sweep: str
    runs: tuple[GridRun, ...]
    """Every run once, in the order of the file."""
    baseline: str
    """Arm that multipliers compare with."""
    execution: Execution
    limits: Limits
    slurm: Slurm | None
    """How it is submitted to Slurm; None where neither grid nor profile says so."""
    mlflow: Mlflow
    rules: tuple[RuleCount, ...]
    """What each rule did, in the order of application."""
    n_repeats: int
    """Runs that several rules or values asked for; they are run once."""
    notices: tuple[str, ...]
    """What is legal but probably not meant, each ``file:line: dotted.path: message``."""
    document: Document = field(repr=False)
    """The parsed file, to give later mistakes their place."""
    profile: str | None = None
    """Which of the grid's own profiles was laid over it; None where it has none."""
    tune: Tune | None = None
    """How hyperparameters are searched before the runs; None: they are not."""
    tuned: Tuned | None = field(default=None, repr=False)
    """The values that the runs have from a search; None before one."""
    untuned: tuple[GridRun, ...] = field(default=(), repr=False)
    """The runs before tuning, where ``tuned`` is set."""


def load_grid(
    path: Path,
    overrides: Sequence[str] = (),
    profile: Path | None = None,
    *,
    profiles: Sequence[str] = (),
    describe: Callable[[str], corpora.CorpusInfo] = corpora.describe,
) -> Grid:
    """Read a grid file and enumerate its runs.

    Parameters
    ----------
    path
        The grid.
    overrides
        ``key=value`` texts of ``--set``: dotted fields of ``base``, or keys under ``execution``,
        ``limits``, ``tune``, ``slurm``, ``mlflow``, ``analysis``, ``sweep``, ``seeds``,
        ``ladder``, ``depth_width``, ``iso_flops``. Values are YAML.
    profile
        A file with a ``slurm`` block to lie under the grid's own.
    profiles
        One of the grid's own profiles by name (default: its first), or a file in place of
        ``profile``, or both.
    describe
        Looks a corpus up by name or folder.

    Raises
    ------
    GridError
        Every mistake of the files, each once, with file, line and dotted path.
    """
    document = _read_mapping(path)
    problems = Problems(document)
    chosen, profile = choose(document, profiles, profile)
    laid = lay_profile(problems, chosen, TOP_LEVEL)
    reader = Reader(problems)
    settings = _apply_overrides(reader, overrides)
    if profile is not None:
        lay_over_profile(problems, profile)
    value = document.value
    _check_top_level(reader, value)
    seeds = _seeds(problems, value.get("seeds", [0]))
    limits = _section(problems, value, "limits", Limits)
    execution = _section(problems, value, "execution", Execution)
    mlflow = _section(problems, value, "mlflow", Mlflow)
    analysis = _section(problems, value, "analysis", Analysis)
    rules = read_rules(reader, value, settings, seeds, describe)
    candidates, counts = expand(reader, rules)
    tune = read_tune(reader, value["tune"], seeds) if "tune" in value else None
    searched = tuple(tune.search) if tune else ()
    runs, repeats = Resolver(reader, describe, rules.batch).resolve(candidates, searched)
    if not problems:
        _check_count(problems, limits, len(runs))
        _check_kernel(problems, execution.kernel, runs)
        check_cells(problems, tune, runs)
    notices = _notices(document, counts, repeats)
    configs = [] if problems else [run.config for run in runs]
    slurm = read_block(reader, execution, configs, notices)
    baseline = _baseline(reader, analysis, "analysis" in value, runs, searched, notices)
    problems.raise_if_any()
    return Grid(
        file=document.file,
        text=document.text,
        overrides=tuple(overrides),
        sweep=value["sweep"],
        runs=tuple(runs),
        baseline=baseline,
        execution=execution,
        limits=limits,
        slurm=slurm,
        mlflow=mlflow,
        rules=tuple(counts),
        n_repeats=sum(repeats.values()),
        notices=tuple(notices),
        document=document,
        profile=laid,
        tune=tune,
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking torch's objects while many small ones are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_mapping(path: Path) -> Document:
    document = read_yaml(path)
    if not isinstance(document.value, dict):
        rule = "must be a mapping with the keys sweep and base"
        raise GridError([document.problem((), f"{rule}, got {show(document.value)}.")])
    return document


def _check_top_level(reader: Reader, value: dict[str, Any]) -> None:
    problems = reader.problems
    fault = sweep_name_fault(value)
    if fault:
        problems.add(("sweep",), fault)
    for key in value:
        if key not in TOP_LEVEL:
            problems.add((key,), _unknown_top_level(key))
    if value.get("base") is None:
        problems.add(("base",), "is required and not set: one complete run. Add it.")
        reader.tainted.update(("residual", *SECTIONS))
        value["base"] = {}


def _unknown_top_level(key: str) -> str:
    section = key.partition(".")[0]
    if section in ("residual", "model", "data", "train"):
        return (
            f"unknown key '{key}' at the top level; write it under base, or under axes to vary it."
        )
    if key in HINTS:
        return f"unknown key '{key}' at the top level; {HINTS[key]}."
    leaves = [path for path in LEAVES if path.rpartition(".")[2] == key]
    if leaves:
        return f"unknown key '{key}' at the top level; write {leaves[0]} under base."
    return unknown_key(key, TOP_LEVEL)


def _seeds(problems: Problems, value: Any) -> tuple[int, ...]:
    loc: Loc = ("seeds",)
    if not isinstance(value, list) or not value:
        problems.add(loc, f"must be a list of integers such as [0, 1], got {show(value)}.")
        return (0,)
    seen: dict[int, int] = {}
    for i, seed in enumerate(value):
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MAX_SEED:
            problems.add((*loc, i), f"must be an integer in 0..{MAX_SEED}, got {show(seed)}.")
        elif seed in seen:
            problems.add((*loc, i), f"the seed {seed} is given twice. Keep one of the two.")
        else:
            seen[seed] = i
    return tuple(seen) or (0,)


def _section(problems: Problems, value: dict[str, Any], name: str, kind: type[S]) -> S:
    try:
        return kind.model_validate(value.get(name, {}))
    except ValidationError as error:
        mistakes = {item["loc"][:1]: item for item in error.errors(include_url=False)}
        for loc, item in mistakes.items():
            problems.add((name, *loc), explain(item, kind.model_fields))
    return kind()


def _apply_overrides(reader: Reader, overrides: Sequence[str]) -> list[Setting]:
    """Read ``--set`` texts: fields of base become settings, the rest enters the document."""
    settings: dict[str, Setting] = {}
    document = reader.problems.document
    for text in overrides:
        path, equals, raw = text.partition("=")
        origin = f"--set {text}"
        document.origins["--set", text] = origin
        if not equals or not path:
            reader.problems.add(("--set", text), "write --set key=value, such as train.lr=1e-3.")
            continue
        loc: Loc = ("--set", path)
        document.origins[loc] = origin
        try:
            value = parse_yaml(raw, origin).value
        except GridError as error:
            reason = error.problems[0].rpartition(": ")[2]
            reader.problems.add(loc, f"the value is not YAML: {reason}")
            continue
        if path.partition(".")[0] in _SET_BESIDE_BASE:
            _enter(document, tuple(path.split(".")), value, origin)
        else:
            settings.update((s.path, s) for s in reader.setting(path, value, loc))
    return list(settings.values())


def _enter(document: Document, loc: Loc, value: Any, origin: str) -> None:
    """Put an overriding value into the document, where it is checked like any other."""
    document.origins[loc] = origin
    inner = document.value
    for part in loc[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[loc[-1]] = value


def _check_count(problems: Problems, limits: Limits, n_runs: int) -> None:
    if not n_runs:
        problems.add(("exclude",), "no run is left. Take an exclude rule away.")
    elif limits.runs is not None and n_runs > limits.runs:
        rule = f"the grid has {n_runs} runs, more than limits.runs {limits.runs}"
        problems.add(("limits", "runs"), f"{rule}. Raise the limit or take values out.")


def _check_kernel(problems: Problems, kernel: str, runs: list[GridRun]) -> None:
    if kernel in ANY_RECIPE:
        return
    arms = {(run.arm, run.config.model.n_layers, run.config.model.d_model): run for run in runs}
    refused: dict[str, str] = {}
    for (arm, n_layers, d_model), run in arms.items():
        residual = run.config.residual
        try:
            shape = Shape(n_layers, d_model)
            options = parse_options(residual.name, residual.options, shape)
            with torch.device("meta"):  # allocates nothing
                get(residual.name)(shape, options).use_kernel(kernel)
        except RecipeError as error:
            refused.setdefault(arm, str(error))
    for reason in refused.values():
        problems.add(("execution", "kernel"), f"{reason}.")


def _notices(document: Document, counts: list[RuleCount], repeats: dict[Loc, int]) -> list[str]:
    idle = [
        f"{document.file}:{count.line}: {count.rule}: matches no run, so the rule does nothing."
        for count in counts
        if not count.matched
    ]
    doubled = [
        document.problem(loc, f"{n} of its runs are already in the grid and count once.")
        for loc, n in repeats.items()
    ]
    return idle + doubled


def _baseline(
    reader: Reader,
    analysis: Analysis,
    given: bool,
    runs: list[GridRun],
    searched: Collection[str],
    notices: list[str],
) -> str:
    """Find the arm to compare with: by label, or by recipe where it has one arm only."""
    if not runs:
        return ""
    loc: Loc = ("analysis", "baseline") if given else ("analysis",)
    arms = {run.arm: run.config.residual.name for run in runs}
    wanted = analysis.baseline
    if isinstance(wanted, dict):
        choice = reader.choice(wanted, loc)
        wanted = label_of(choice.name, _given_options(choice, searched)) if choice else wanted
    of_recipe = [arm for arm, name in arms.items() if name == wanted]
    if isinstance(wanted, str) and wanted in arms:
        return wanted
    if len(of_recipe) == 1:
        return of_recipe[0]
    if not given:
        first = next(iter(arms))
        where = reader.problems.document.where(())
        notices.append(f"{where}: analysis.baseline: not given; arms are compared with '{first}'.")
        return first
    why = "names several arms" if of_recipe else "is not an arm of this sweep"
    rule = f"{show(wanted)} {why}. Give one of: {', '.join(of_recipe or arms)}"
    reader.problems.add(loc, f"{rule}.")
    return ""


def _given_options(choice: Choice, searched: Collection[str]) -> dict[str, Any]:
    """Options that stand in the label of an arm; as given where they do not fit."""
    try:
        options = choice.recipe.Options.model_validate(choice.options)
    except ValidationError:
        return choice.options
    kept = options.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in kept.items() if f"residual.{name}" not in searched}
