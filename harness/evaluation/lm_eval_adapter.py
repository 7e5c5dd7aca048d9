"""lm-evaluation-harness: its tasks on our models, and its results as metrics of ours.

The program ``lm_eval`` finds models of its own package only. To use it with the model ``isoloss``,
start it through this file, with its usual options::

    python -m harness.evaluation.lm_eval_adapter --model isoloss --tasks TASK \\
        --model_args run=results/SWEEP/runs/ID

Importing this file imports ``lm_eval``, which takes a second.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import IsolossError
from harness.evaluation.lm_eval import is_task_file
from harness.evaluation.lm_eval_model import IsolossLM
from harness.loading import LoadedModel

# isort: split
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

__all__ = ["IsolossLM", "main", "metrics_of", "run_lm_eval"]

BOOTSTRAPS = 1000
"""Resamples behind the standard error of metrics that are no means: it is good to 2%."""


class _Tasks(TaskManager):  # type: ignore[misc]
    """Tasks of ``lm_eval``, whose troubles are told in one message."""

    def load(self, task_list: list[str]) -> dict[str, Any]:
        unknown = [
            name for name in task_list if not is_task_file(name) and name not in self.task_index
        ]
        if unknown:
            where = f" under {self.include_path}" if self.include_path else ""
            raise IsolossError(
                f"lm_eval has no task, group or tag '{unknown[0]}'{where}. Its own are listed by "
                "`lm_eval ls tasks`; those of a folder are added with --include-path DIR."
            )
        try:
            loaded: dict[str, Any] = super().load(task_list)
        except Exception as error:  # whatever a task file or the loader of its data may raise
            raise IsolossError(
                f"lm_eval could not load {', '.join(task_list)}: {type(error).__name__}: {error}. "
                "Its data must be on this machine, or this machine must reach the place it is at."
            ) from error
        for name, task in loaded["tasks"].items():
            if getattr(task, "UNSAFE_CODE", False):
                raise IsolossError(
                    f"the task {name} executes code that the model writes. Run it with "
                    "`python -m harness.evaluation.lm_eval_adapter` and --confirm_run_unsafe_code."
                )
        return loaded


def run_lm_eval(
    loaded: LoadedModel,
    tasks: Sequence[str],
    include_path: Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, float]]:
    """Run tasks of lm-evaluation-harness.

    Parameters
    ----------
    tasks
        Names of tasks, groups or tags, or task files.
    include_path
        Folder of further task files. Paths in them (``data_files``) are relative to the folder
        that the command is run in, as always in ``lm_eval``.
    num_fewshot
        Examples before each question; None: as the task says.
    limit
        Most documents of each task; None: all.

    Returns
    -------
    dict
        By task and group: each metric under ``lm_eval``'s name (``acc``: a share; ``bits_per_byte``
        and ``perplexity`` as they say), under ``METRIC/FILTER`` where the task filters answers; its
        standard error under the same name and ``_stderr``, where there is one; ``n_documents``.

    Raises
    ------
    IsolossError
        There is no such task, its data cannot be loaded, or it asks for what is not supported.
    """
    if include_path is not None and not include_path.is_dir():
        raise IsolossError(f"{include_path}: no such folder of task files (--include-path)")
    manager = _manager(tasks, include_path)
    # lm_eval prints progress; what this process prints is a result.
    with contextlib.redirect_stdout(sys.stderr), _troubles_of(tasks):
        results = simple_evaluate(
            model=IsolossLM(loaded),
            tasks=list(tasks),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=BOOTSTRAPS,
            log_samples=False,
        )
    return {name: metrics_of(row) for name, row in results["results"].items()}


@contextlib.contextmanager
def _troubles_of(tasks: Sequence[str]) -> Iterator[None]:
    """Tell in one message whatever a task's own code may raise."""
    try:
        yield
    except IsolossError:
        raise
    except Exception as error:
        raise IsolossError(
            f"lm_eval failed on {', '.join(tasks)}: {type(error).__name__}: {error}. "
            "Look at the task's file and its data; the other tasks need not wait for it."
        ) from error


def _manager(tasks: Sequence[str], include_path: Path | None) -> _Tasks:
    """Index the folder alone where it has all tasks: the index of lm_eval's own takes seconds."""
    own = _index(include_path, defaults=False)
    if all(is_task_file(task) or task in own.all_subtasks for task in tasks):
        return own
    return _index(include_path, defaults=True)


@functools.cache
def _index(include_path: Path | None, *, defaults: bool) -> _Tasks:
    return _Tasks(include_path=include_path, include_defaults=defaults)


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Flatten what ``lm_eval`` says of one task: keys ``METRIC,FILTER`` and ``sample_len``."""
    metrics: dict[str, float] = {}
    for key, value in row.items():
        metric, comma, chosen = key.partition(",")
        if not comma or isinstance(value, str):
            continue
        stderr = "_stderr" if metric.endswith("_stderr") else ""
        name = metric.removesuffix(stderr) + ("" if chosen == "none" else f"/{chosen}")
        metrics[name + stderr] = float(value)
    if "sample_len" in row:
        metrics["n_documents"] = float(row["sample_len"])
    return metrics


def main() -> None:
    """Be the program ``lm_eval``, which here knows the model ``isoloss``."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except IsolossError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
