"""What is measured of the answers to a generated task: accuracy by difficulty and position.

Pure, on arrays; no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.tasks import Examples

SOLVED = 0.9
"""Accuracy from which a difficulty counts as solved."""
Hits = npt.NDArray[Any]
"""Whether each label was given, ``[sequences, seq_len]``; positions without a label are zero."""
Measure = Callable[[Hits], dict[str, Any]]


def measure_answers(examples: Examples, hits: Hits) -> dict[str, Any]:
    """Accuracy over all labels, by difficulty and by position.

    Parameters
    ----------
    examples
        The validation set.
    hits
        Which of its labels were given.

    Returns
    -------
    dict
        ``accuracy``; ``accuracy_by_difficulty`` and ``accuracy_by_position`` (from 0), whose keys
        are texts, as JSON wants them. Difficulties and positions without a label are left out.
    """
    asked = examples.asked
    given = hits[asked].astype(np.float64)
    positions = np.broadcast_to(np.arange(asked.shape[1]), asked.shape)[asked]
    return {
        "accuracy": float(given.mean()),
        "accuracy_by_difficulty": _by(examples.difficulty[asked], given),
        "accuracy_by_position": _by(positions, given),
    }


def _by(group: npt.NDArray[np.int64], given: npt.NDArray[np.float64]) -> dict[str, float]:
    values, index = np.unique(group, return_inverse=True)
    means = np.bincount(index, weights=given) / np.bincount(index)
    return {str(value): float(mean) for value, mean in zip(values, means, strict=True)}


def solved_difficulty(accuracy_by_difficulty: Mapping[str, float]) -> int:
    """Largest difficulty up to which every one is solved; 0 where the first is not.

    Solved is an accuracy of :data:`SOLVED` or more.
    """
    solved = 0
    for level in sorted(map(int, accuracy_by_difficulty)):
        if accuracy_by_difficulty[str(level)] < SOLVED:
            break
        solved = level
    return solved


def steps_to_solved(steps: Sequence[int], accuracies: Sequence[float]) -> int | None:
    """First of the validated steps from which on the accuracy stays solved; None if it ends below.

    Parameters
    ----------
    steps
        Ascending.
    accuracies
        As many.
    """
    found = None
    for step, accuracy in zip(steps, accuracies, strict=True):
        if accuracy < SOLVED:
            found = None
        elif found is None:
            found = step
    return found


def probe_fields(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of a record from its validations, ordered by step, the last at the end of the run."""
    last, steps = rows[-1], [int(row["step"]) for row in rows]
    levels = last["accuracy_by_difficulty"]
    return {
        "accuracy": last["accuracy"],
        "accuracy_by_difficulty": levels,
        "accuracy_by_position": last["accuracy_by_position"],
        "solved_difficulty": solved_difficulty(levels),
        "steps_to_90": steps_to_solved(steps, [row["accuracy"] for row in rows]),
        "steps_to_90_by_difficulty": {
            level: steps_to_solved(steps, [row["accuracy_by_difficulty"][level] for row in rows])
            for level in levels
        },
    }
