"""From the frame of ``collect`` to probes: tasks, settings, cells. Pure but for the curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.probes.types import ProbeCell, ProbeRun
from harness.paths import SweepPaths
from harness.records import read_jsonl

_TIDY = ["run_id", "corpus", "arm", "n_layers", "seed", "role"]
_ALONG = ["step", "tokens", "flops", "accuracy"]


def has_tasks(runs: pd.DataFrame) -> bool:
    """Tell whether some run is of a generated task."""
    return "task" in runs and bool(runs["task"].notna().any())


def settings_of(runs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Runs of the grid by task, and by setting where a depth was run in several.

    A setting is all that pairs must share, but for depth. Where width goes with depth, each depth
    has one setting, and all are one probe.

    Yields
    ------
    tuple
        Label and runs, those at the baseline's values too.
    """
    grid = runs[runs["in_grid"] & runs["task"].notna()]
    grid = grid.assign(setting=[_setting(key) for key in grid["pair_key"]])
    for corpus, rows in grid.groupby("corpus", sort=False):
        main = rows[rows["role"] != "equal_rate"]
        per_depth = main.groupby(["arm", "n_layers"])["setting"].nunique()
        if per_depth.max() <= 1:
            yield str(corpus), rows
            continue
        labels = _labels([str(setting) for setting in rows["setting"].unique()])
        for setting, own in rows.groupby("setting", sort=False):
            yield f"{corpus}, {labels[str(setting)]}", own


def _setting(pair_key: object) -> str:
    content = json.loads(str(pair_key))
    content.get("model", {}).pop("n_layers", None)
    return json.dumps(content, sort_keys=True)


def _labels(settings: list[str]) -> dict[str, str]:
    """What tells settings apart: ``d_model 64, batch_tokens 2048``."""
    flat = {setting: dict(_leaves(json.loads(setting))) for setting in settings}
    paths = dict.fromkeys(path for values in flat.values() for path in values)
    varied = [path for path in paths if len({json.dumps(v.get(path)) for v in flat.values()}) > 1]
    return {
        setting: ", ".join(f"{path.split('.')[-1]} {values.get(path)}" for path in varied)
        for setting, values in flat.items()
    }


def _leaves(content: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{under}{name}.")
        else:
            yield f"{under}{name}", value


def cells_of(rows: pd.DataFrame, arms: tuple[str, ...]) -> tuple[ProbeCell, ...]:
    """Runs by arm and depth, in the order of ``arms``, then by depth."""
    places: dict[tuple[str, int], list[Mapping[Any, Any]]] = {}
    for row in rows.to_dict("records"):
        places.setdefault((str(row["arm"]), int(row["n_layers"])), []).append(row)
    found = [_cell(arm, depth, own) for (arm, depth), own in places.items()]
    return tuple(sorted(found, key=lambda cell: (arms.index(cell.arm), cell.depth)))


def _cell(arm: str, depth: int, rows: Sequence[Mapping[Any, Any]]) -> ProbeCell:
    used = [row for row in rows if pd.isna(row["excluded_because"])]
    gone = [str(row["status"]) for row in rows if not pd.isna(row["excluded_because"])]
    return ProbeCell(
        arm=arm,
        depth=depth,
        runs=tuple(sorted(map(_run, used), key=lambda run: run.seed)),
        n_planned=len(rows),
        lost=tuple(Counter(gone).most_common()),
    )


def _run(row: Mapping[Any, Any]) -> ProbeRun:
    return ProbeRun(
        run_id=str(row["run_id"]),
        arm=str(row["arm"]),
        depth=int(row["n_layers"]),
        seed=int(row["seed"]),
        accuracy=float(row["accuracy"]),
        solved=_whole(row["solved_difficulty"]),
        steps_to_90=_whole(row["steps_to_90"]),
        by_level=by_level(row["accuracy_by_difficulty"]),
        steps_by_level=by_level(row["steps_to_90_by_difficulty"]),
    )


def by_level(text: object) -> dict[int, float]:
    """Read a column by level or position, ascending; {} where nothing is recorded.

    Levels without a value are left out.
    """
    content = json.loads(text) if isinstance(text, str) else {}
    known = {int(level): float(value) for level, value in content.items() if value is not None}
    return dict(sorted(known.items()))


def _whole(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)


def accuracy_by_difficulty(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run and level: accuracy, and the step from which it stayed at 90%."""
    found = _tidy(runs, "accuracy_by_difficulty", "difficulty")
    steps = runs.set_index("run_id")["steps_to_90_by_difficulty"].map(by_level)
    reached = [
        steps[run_id].get(level)
        for run_id, level in zip(found["run_id"], found["difficulty"], strict=True)
    ]
    return found.assign(steps_to_90=pd.array(reached, dtype="Int64"))


def accuracy_by_position(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run and labelled position."""
    return _tidy(runs, "accuracy_by_position", "position")


def _tidy(runs: pd.DataFrame, column: str, name: str) -> pd.DataFrame:
    rows = [
        {key: row[key] for key in _TIDY} | {name: level, "accuracy": accuracy}
        for row in runs[runs["task"].notna()].to_dict("records")
        for level, accuracy in by_level(row[column]).items()
    ]
    frame = pd.DataFrame(rows, columns=[*_TIDY, name, "accuracy"])
    return frame.rename(columns={"corpus": "task"})


def read_accuracy_curves(runs: pd.DataFrame, paths: SweepPaths) -> pd.DataFrame:
    """Validation accuracy along training of every run of a task, one row per validation."""
    rows = [
        {key: row[key] for key in (*_TIDY, "status")} | {key: at.get(key) for key in _ALONG}
        for row in runs[runs["task"].notna() & runs["in_grid"]].to_dict("records")
        for at in read_jsonl(paths.run(str(row["run_id"])).metrics)
        if at.get("kind") == "val" and at.get("accuracy") is not None
    ]
    frame = pd.DataFrame(rows, columns=[*_TIDY, "status", *_ALONG])
    return frame.rename(columns={"corpus": "task"})
