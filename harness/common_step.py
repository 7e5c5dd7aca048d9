"""A fair loss while a sweep runs: all arms at the same point of the same budget, same seeds.

Losses of different sizes, budgets or steps say nothing beside each other, so one size and budget is
chosen: the largest where every arm that has begun was validated at a common point. Pure, but for
:class:`CurveReader`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.paths import SweepPaths
from harness.status import RunState

Curve = Mapping[int, float]
"""Validation loss in nats by step."""
_LIVE = ("done", "running", "queued", "planned")
"""Statuses of runs that have, or may come to, a final loss."""


@dataclass(frozen=True)
class CommonStep:
    """Validation losses of the arms at one point that all of them have reached."""

    size: str
    """Shape and budget."""
    share: float
    """Of the budget that was spent at that point."""
    steps: tuple[int, int]
    """Lowest and highest step of that point: arms of one FLOPs budget differ in their steps."""
    n_runs: int
    """Runs per arm that are averaged: the same seeds and settings in all arms."""
    losses: dict[str, float]
    """Mean loss by arm, nats; arms that are missing are not there."""

    def describe(self) -> str:
        """Where and over what the losses were taken."""
        low, high = self.steps
        step = f"step {high}" if low == high else f"steps {low} to {high}"
        mean = f"mean of {self.n_runs} runs per arm" if self.n_runs > 1 else "one run per arm"
        return f"{self.size} at {step} ({100 * self.share:.0f}% of the budget), {mean}"


class CurveReader:
    """Validation losses from metrics files; what was read stays read."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self._read: dict[str, int] = {}
        self._rows: dict[str, dict[int, tuple[int, float]]] = {}

    def __call__(self, state: RunState) -> Curve:
        """Validation losses of a run so far; of a step trained twice, the newest attempt's."""
        run_id = state.run.run_id
        rows = self._rows.setdefault(run_id, {})
        for line in self._new_lines(run_id):
            row = _validation(line)
            if row and row[1] >= rows.get(row[0], (0, 0.0))[0]:
                rows[row[0]] = (row[1], row[2])
        return {step: loss for step, (_, loss) in rows.items()}

    def _new_lines(self, run_id: str) -> list[bytes]:
        """Return whole lines that were appended since the last call."""
        try:
            with self.paths.run(run_id).metrics.open("rb") as stream:
                stream.seek(self._read.get(run_id, 0))
                text = stream.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read[run_id] = self._read.get(run_id, 0) + len(whole)
        return whole.splitlines()


def _validation(line: bytes) -> tuple[int, int, float] | None:
    """Step, attempt and loss of a validation row; None for any other line."""
    if b'"val"' not in line:
        return None
    try:
        row = json.loads(line)
        if row["kind"] != "val":
            return None
        return int(row["step"]), int(row.get("attempt", 1)), float(row["loss_nats"])
    except (ValueError, KeyError, TypeError):
        return None


def common_step(
    states: Sequence[RunState], curve: Callable[[RunState], Curve]
) -> CommonStep | None:
    """Compare the arms of a sweep where they can be compared.

    Parameters
    ----------
    states
        All runs.
    curve
        Validation losses of a run by step; called only for runs that matter.

    Returns
    -------
    CommonStep or None
        The largest size and budget where every arm that has begun has a common point; failing
        that, where most arms have one; None when no two arms (or the only one) have any.
    """
    live = [state for state in states if state.step > 0 and state.status in _LIVE]
    n_begun = len({state.run.arm for state in live})
    groups: dict[tuple[object, ...], list[RunState]] = {}
    for state in live:
        model, budget = state.run.config["model"], state.run.config["train"]["budget"]
        key = (model["n_layers"], model["d_model"], *budget.values())
        groups.setdefault(key, []).append(state)
    ordered = sorted(groups.values(), key=_rank, reverse=True)
    ordered.sort(key=lambda members: -_n_arms(members))
    for members in ordered:
        if n_begun > 1 and _n_arms(members) == 1:
            break
        found = _compare(members, curve)
        if found is not None:
            return found
    return None


def _size(state: RunState) -> str:
    model, budget = state.run.config["model"], state.run.config["train"]["budget"]
    kind, value = next((k, v) for k, v in budget.items() if v is not None)
    return f"n_layers={model['n_layers']}, d_model={model['d_model']}, {kind}={value:.6g}"


def _rank(members: Sequence[RunState]) -> tuple[int, float]:
    costs = [state.run.cost for state in members]
    return max(c.n_params_non_embedding for c in costs), max(c.flops for c in costs)


def _n_arms(members: Sequence[RunState]) -> int:
    return len({state.run.arm for state in members})


def _compare(members: Sequence[RunState], curve: Callable[[RunState], Curve]) -> CommonStep | None:
    """Compare at the last point that at least one set of paired runs has reached in all arms."""
    size = _size(members[0])
    arms = dict.fromkeys(state.run.arm for state in members)
    pairs: dict[str, dict[str, RunState]] = {}
    for state in members:
        pairs.setdefault(_pair(state), {})[state.run.arm] = state
    complete = [pair for pair in pairs.values() if len(pair) == len(arms)]
    at_end = [final for pair in complete if (final := _final(pair)) is not None]
    if at_end:
        return _mean(size, 1.0, at_end)
    curves = [{arm: (state, curve(state)) for arm, state in pair.items()} for pair in complete]
    for share in sorted({share for pair in curves for share in _shares(pair)}, reverse=True):
        reached = [point for pair in curves if (point := _at(share, pair)) is not None]
        if reached:
            return _mean(size, share, reached)
    return None


def _pair(state: RunState) -> str:
    """Return what runs share that are compared with each other: all but the recipe."""
    config = {key: value for key, value in state.run.config.items() if key != "residual"}
    return json.dumps(config, sort_keys=True)


def _final(pair: Mapping[str, RunState]) -> dict[str, tuple[int, float]] | None:
    """Last step and final loss of every arm; None unless all are done."""
    ended = {
        arm: (state.step, state.loss_nats)
        for arm, state in pair.items()
        if state.status == "done" and state.loss_nats is not None
    }
    return ended if len(ended) == len(pair) else None


def _shares(pair: Mapping[str, tuple[RunState, Curve]]) -> set[float]:
    """Shares of the budget at which the arm of the most steps was validated."""
    state, losses = max(pair.values(), key=lambda item: item[0].run.cost.steps)
    return {step / state.run.cost.steps for step in losses}


def _at(
    share: float, pair: Mapping[str, tuple[RunState, Curve]]
) -> dict[str, tuple[int, float]] | None:
    """Step and loss of every arm within a step of ``share``; None unless all have been there."""
    found = {}
    for arm, (state, losses) in pair.items():
        wanted = share * state.run.cost.steps
        near = min(losses, key=lambda step: abs(step - wanted), default=None)
        if near is None or abs(near - wanted) > 1.0:
            return None
        found[arm] = (near, losses[near])
    return found


def _mean(size: str, share: float, points: list[dict[str, tuple[int, float]]]) -> CommonStep:
    steps = [step for point in points for step, _ in point.values()]
    arms = points[0]
    return CommonStep(
        size=size,
        share=share,
        steps=(min(steps), max(steps)),
        n_runs=len(points),
        losses={arm: sum(point[arm][1] for point in points) / len(points) for arm in arms},
    )
