"""Expansion of a grid's rules into runs before seeds, counted per rule.

base, then axes x zip x what :mod:`harness.generate` computes (full product), then ``when`` in
order, then ``exclude``, then ``include``; later settings win over earlier ones. The order of runs
is the order of the file, the last axis fastest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.corpora import CorpusInfo
from harness.fields import LEAVES, TASK, Condition, Point, Reader, Setting
from harness.generate import read_generated, refuse_dependents
from harness.iso_flops import Batch
from harness.problems import show, unknown_key
from harness.yaml12 import Loc, dotted

MAX_RUNS = 200_000
"""A product above this is a mistake; enumerating it would only fill the memory."""

Dimension = list[list[Setting]]
"""Alternatives of one axis or zip group; each sets one or several fields."""


_DEPTH = {"axes": 2, "zip": 2, "iso_flops": 2, "ladder": 1, "depth_width": 1}
"""Parts of a location that name a dimension of the product."""


@dataclass(frozen=True)
class RuleCount:
    """What one rule of the grid did."""

    rule: str
    """Where it stands, such as ``exclude[0]``."""
    line: int
    matched: int
    """Values of an axis or rows of a zip group; runs that any other rule met."""
    runs: int
    """Runs of the product for axes and zip; runs left in place of the matched ones otherwise."""


@dataclass(frozen=True)
class Candidate:
    """One run before seeds, with the seeds that it keeps and the rule that made it."""

    point: Point
    seeds: tuple[int, ...]
    loc: Loc


@dataclass(frozen=True)
class When:
    """Axes that exist for matching runs only."""

    condition: Condition
    dimensions: list[Dimension]


@dataclass
class Rules:
    """A grid's rules, read and typed."""

    base: Point
    dimensions: list[Dimension]
    whens: list[When]
    excludes: list[Condition]
    includes: list[tuple[Loc, list[Setting]]]
    seeds: tuple[int, ...]
    batch: Batch
    """How the batches of ``iso_flops`` follow size and budget."""


def read_rules(
    reader: Reader,
    value: dict[str, Any],
    overrides: Sequence[Setting],
    seeds: tuple[int, ...],
    describe: Callable[[str], CorpusInfo],
) -> Rules:
    """Read base and every rule over it; mistakes go to ``reader.problems``."""
    base = overlay({}, reader.settings(value["base"], ("base",)))
    base = overlay(base, overrides)
    axes = _axes(reader, value.get("axes", {}), ("axes",))
    zips = [
        _zip(reader, group, ("zip", i)) for i, group in _items(reader, value.get("zip", []), "zip")
    ]
    listed = axes + [z for z in zips if z]
    generated = read_generated(reader, value, base, describe)
    dimensions = listed + generated.dimensions
    _refuse_shared(reader, dimensions)
    _refuse_idle_overrides(reader, dimensions, overrides)
    include = _items(reader, value.get("include", []), "include")
    includes: list[tuple[Loc, list[Setting]]] = [
        (("include", i), reader.settings(diff, ("include", i))) for i, diff in include
    ]
    whens = [
        w
        for i, rule in _items(reader, value.get("when", []), "when")
        if (w := _when(reader, rule, i))
    ]
    for when in whens:
        _refuse_shared(reader, when.dimensions, {s.path: s for d in dimensions for s in d[0]})
    excludes = [
        c
        for i, rule in _items(reader, value.get("exclude", []), "exclude")
        if (c := reader.condition(rule, ("exclude", i)))
    ]
    varied = listed + [d for when in whens for d in when.dimensions]
    refuse_dependents(reader, value, base, [s for d in varied for row in d for s in row])
    return Rules(base, dimensions, whens, excludes, includes, seeds, generated.batch)


def overlay(point: Point, settings: Sequence[Setting]) -> Point:
    """Give a run later settings; a new recipe or task drops the options set for the earlier one."""
    merged = dict(point)
    for setting in settings:
        if setting.path == "residual":
            for path in [p for p in merged if p.startswith("residual.")]:
                del merged[path]
        if setting.path == TASK:
            for path in [p for p in merged if p.startswith("data.") and p not in LEAVES]:
                del merged[path]
    merged.update((setting.path, setting) for setting in settings)
    return merged


def expand(reader: Reader, rules: Rules) -> tuple[list[Candidate], list[RuleCount]]:
    """Enumerate the runs and count what each rule did; nothing if the product is too large."""
    n_points = math.prod(len(d) for d in rules.dimensions)
    if _too_many(reader, n_points * len(rules.seeds), ("axes",)):
        return [], []
    points = [
        overlay(rules.base, [s for alternative in combination for s in alternative])
        for combination in itertools.product(*rules.dimensions)
    ]
    n_seeds = len(rules.seeds)
    counts = [_count(reader, d, n_seeds * n_points) for d in rules.dimensions]
    for when in rules.whens:
        points, count = _apply_when(reader, points, when, n_seeds)
        counts.append(count)
    runs = [Candidate(point, rules.seeds, ("axes",)) for point in points]
    for condition in rules.excludes:
        runs, count = _apply_exclude(reader, runs, condition)
        counts.append(count)
    for loc, settings in rules.includes:
        runs.append(Candidate(overlay(rules.base, settings), rules.seeds, loc))
        counts.append(RuleCount(dotted(loc), reader.problems.document.line(loc), n_seeds, n_seeds))
    return runs, counts


def _items(reader: Reader, value: Any, name: str) -> list[tuple[int, Any]]:
    if isinstance(value, list):
        return list(enumerate(value))
    reader.problems.add((name,), f"must be a list of mappings, got {show(value)}. Start with '- '.")
    return []


def _axes(reader: Reader, value: Any, loc: Loc) -> list[Dimension]:
    if not isinstance(value, dict):
        rule = "must be a mapping of fields to lists of values"
        reader.problems.add(loc, f"{rule}, got {show(value)}.")
        return []
    columns = {key: _column(reader, key, values, (*loc, key)) for key, values in value.items()}
    return [
        [settings for settings in column if settings] for column in columns.values() if any(column)
    ]


def _column(reader: Reader, key: str, values: Any, loc: Loc) -> Dimension:
    """Read the values of one axis or zip column; an unknown field is one mistake in all."""
    section = key.partition(".")[0]
    if isinstance(values, dict):
        inner = next(iter(values), "n_layers")
        advice = f"Write one dotted key per field, such as {key}.{inner}: […]"
        reader.problems.add(loc, f"must be a list of values, got {show(values)}. {advice}.")
    elif not isinstance(values, list):
        advice = f"Write {key}: [{values}]" if values is not None else "Give at least one value"
        reader.problems.add(loc, f"must be a list of values, got {show(values)}. {advice}.")
    elif not values:
        reader.problems.add(
            loc, "has no values, so the grid has no runs. Give one, or remove the key."
        )
    elif not reader.knows(key):
        reader.setting(key, values[0], loc)
    else:
        return [reader.setting(key, value, (*loc, i)) for i, value in enumerate(values)]
    reader.tainted.add(section)
    return []


def _zip(reader: Reader, group: Any, loc: Loc) -> Dimension:
    if not isinstance(group, dict) or not group:
        rule = "must be a mapping of fields to lists of equal length"
        reader.problems.add(loc, f"{rule}, got {show(group)}.")
        return []
    columns = {key: _column(reader, key, values, (*loc, key)) for key, values in group.items()}
    lengths = {key: len(column) for key, column in columns.items() if column}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {n}" for key, n in lengths.items())
        reader.problems.add(loc, f"columns must be equally long, got {listed}. Even them out.")
        reader.tainted.update(key.partition(".")[0] for key in group)
        return []
    rows = [
        [setting for cell in row for setting in cell]
        for row in zip(*(column for column in columns.values() if column), strict=True)
    ]
    _refuse_shared(reader, [[[setting]] for setting in rows[0]] if rows else [])
    return [row for row in rows if row]


def _when(reader: Reader, rule: Any, index: int) -> When | None:
    loc: Loc = ("when", index)
    if not isinstance(rule, dict) or not {"if", "axes"} <= rule.keys():
        shape = "must be {if: {FIELD: VALUE}, axes: {FIELD: [VALUES]}}"
        reader.problems.add(loc, f"{shape}, got {show(rule)}.")
        return None
    for key in rule.keys() - {"if", "axes"}:
        reader.problems.add((*loc, key), unknown_key(key, ("if", "axes")))
    dimensions = _axes(reader, rule["axes"], (*loc, "axes"))
    condition = reader.condition(rule["if"], (*loc, "if"))
    if condition and condition.seeds is not None:
        message = "seed cannot select axes: the seeds of one cell share them. Remove seed."
        reader.problems.add((*loc, "if", "seed"), message)
    return When(condition, dimensions) if condition and dimensions else None


def _refuse_shared(
    reader: Reader, dimensions: Sequence[Dimension], taken: Point | None = None
) -> None:
    """Refuse a field that two axes vary: their product would keep the later value only."""
    seen = dict(taken or {})
    for dimension in dimensions:
        for setting in {
            s.path: s for alternative in reversed(dimension) for s in alternative
        }.values():
            first = seen.setdefault(setting.path, setting)
            if first is not setting and first.loc[:-1] != setting.loc[:-1]:
                place = (
                    f"{dotted(first.loc[:-1])} (line {reader.problems.document.line(first.loc)})"
                )
                message = f"{setting.path} is already varied by {place}. Keep one of the two."
                reader.problems.add(setting.loc[:-1], message)


def _refuse_idle_overrides(
    reader: Reader, dimensions: Sequence[Dimension], overrides: Sequence[Setting]
) -> None:
    varied = {s.path: s for d in dimensions for alternative in d for s in alternative}
    for setting in overrides:
        rival = varied.get(setting.path)
        if setting.section == "residual":
            rival = rival or varied.get("residual")
        if rival is not None:
            place = reader.problems.document.where(rival.loc)
            rule = f"would change nothing: {dotted(rival.loc[:-1])} ({place}) varies it"
            reader.problems.add(setting.loc, f"{rule}. Edit the grid instead.")


def _too_many(reader: Reader, n_runs: int, loc: Loc) -> bool:
    if n_runs <= MAX_RUNS:
        return False
    rule = f"the product is {n_runs} runs, more than {MAX_RUNS}"
    reader.problems.add(loc, f"{rule}. Take values out, or zip axes that belong together.")
    return True


def _count(reader: Reader, dimension: Dimension, n_runs: int) -> RuleCount:
    loc = dimension[0][0].loc
    rule = loc[: _DEPTH[str(loc[0])]]
    return RuleCount(dotted(rule), reader.problems.document.line(rule), len(dimension), n_runs)


def _apply_when(
    reader: Reader, points: list[Point], when: When, n_seeds: int
) -> tuple[list[Point], RuleCount]:
    loc = when.condition.loc[:-1]
    rows = list(itertools.product(*when.dimensions))
    matched = [when.condition.matches(point) for point in points]
    n_after = len(points) + sum(matched) * (len(rows) - 1)
    if _too_many(reader, n_after * n_seeds, loc):
        return [], RuleCount(dotted(loc), reader.problems.document.line(loc), 0, 0)
    result: list[Point] = []
    for point, hit in zip(points, matched, strict=True):
        if hit:
            _refuse_second_when(reader, point, rows[0])
            result += [overlay(point, [s for cell in row for s in cell]) for row in rows]
        else:
            result.append(point)
    n_matched = sum(matched) * n_seeds
    line = reader.problems.document.line(loc)
    return result, RuleCount(dotted(loc), line, n_matched, n_matched * len(rows))


def _refuse_second_when(reader: Reader, point: Point, row: Sequence[list[Setting]]) -> None:
    for setting in (s for cell in row for s in cell):
        first = point.get(setting.path)
        if first is not None and first.loc[0] == "when":
            place = f"{dotted(first.loc[:-1])} (line {reader.problems.document.line(first.loc)})"
            message = f"{setting.path} of the same runs is already varied by {place}. Keep one."
            reader.problems.add(setting.loc[:-1], message)


def _apply_exclude(
    reader: Reader, runs: list[Candidate], condition: Condition
) -> tuple[list[Candidate], RuleCount]:
    kept: list[Candidate] = []
    for run in runs:
        dropped = condition.seeds if condition.seeds is not None else run.seeds
        if not condition.matches(run.point):
            kept.append(run)
        elif remaining := tuple(seed for seed in run.seeds if seed not in dropped):
            kept.append(Candidate(run.point, remaining, run.loc))
    removed = sum(len(r.seeds) for r in runs) - sum(len(r.seeds) for r in kept)
    line = reader.problems.document.line(condition.loc)
    return kept, RuleCount(dotted(condition.loc), line, removed, 0)
