"""Tasks of lm-evaluation-harness: ``lm_eval:TASK``, or several with commas.

A task is one of its own, a group, a tag, one of the folder of ``--include-path``, or a task file.
Datasets must be on this machine, or it must reach them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import IsolossError, MissingExtraError
from harness.evaluation.base import Entry, Evaluation, Metrics, Settings

if TYPE_CHECKING:
    from harness.loading import LoadedModel

REVISION = 1
HEADLINE = (
    *("acc", "acc_norm", "exact_match", "f1"),
    *("bits_per_byte", "perplexity", "word_perplexity"),
)
"""What tasks are usually judged by; a table shows those that a task has. Those that arms are
compared by, ``analysis.evaluations.HIGHER_IS_BETTER``."""
_NAMED = re.compile(r"""[^\s"'\[\]{},#]+\.[A-Za-z0-9]+""")
_FUNCTION = re.compile(r"!function\s+[\"']?([\w.]+)\.\w+")


def entries(argument: str | None, settings: Settings) -> list[Entry]:
    """One entry for each task that is named."""
    tasks = [task.strip() for task in (argument or "").split(",") if task.strip()]
    if not tasks:
        raise IsolossError("lm_eval: name its tasks, as in -e lm_eval:hellaswag,piqa")
    try:
        version = importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError("eval", "eval", "lm_eval") from error
    folder = settings.include_path
    if folder is not None and not folder.is_dir():
        raise IsolossError(f"{folder}: no such folder of task files (--include-path)")
    beside = _task_files(folder) if folder else []
    return [_entry(task, version, settings, beside) for task in tasks]


def is_task_file(task: str) -> bool:
    """Whether a task is named by its file."""
    return Path(task).suffix == ".yaml" and Path(task).is_file()


def _entry(task: str, version: str, settings: Settings, beside: list[Path]) -> Entry:
    file = Path(task)
    files = [file, *beside] if is_task_file(task) else beside
    return Entry(
        name=f"lm_eval:{file.stem if file.suffix == '.yaml' else task}",
        measure=functools.partial(measure, task=task, settings=settings),
        headline=HEADLINE,
        identity={
            "package": version,
            "task_files": _digest(files),
            "num_fewshot": settings.num_fewshot,
            "limit": settings.limit,
            "revision": REVISION,
        },
    )


def _task_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".py"))


def _digest(files: Iterable[Path]) -> str | None:
    """SHA-256 of task files and of the files that they name; None where there are none."""
    digest, seen, waiting = hashlib.sha256(), set[Path](), list(files)
    while waiting:
        path = waiting.pop(0)
        if path.resolve() in seen or not path.is_file():
            continue
        seen.add(path.resolve())
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        digest.update(f"{path.name}\n".encode() + content)
        if path.suffix == ".yaml":
            waiting += _named_files(path)
    return digest.hexdigest() if seen else None


def _named_files(task_file: Path) -> list[Path]:
    """What a task file may name: data and code; ``include`` and functions are beside it."""
    text = re.sub(r"(?m)^\s*#.*$", "", task_file.read_text(encoding="utf-8", errors="replace"))
    modules = [f"{name.replace('.', '/')}.py" for name in _FUNCTION.findall(text)]
    names = dict.fromkeys([*_NAMED.findall(text), *modules])
    short = [name for name in names if len(name) < 256]  # longer ones are an error to look up
    return [folder / name for name in short for folder in (task_file.parent, Path())]


def measure(subject: LoadedModel, *, task: str, settings: Settings) -> Metrics:
    """Run one task.

    Returns
    -------
    dict
        As :func:`harness.evaluation.lm_eval_adapter.run_lm_eval` gives it for the task; of the
        tasks of a group or tag each metric under ``TASK/METRIC``.
    """
    from harness.evaluation.lm_eval_adapter import run_lm_eval

    found = run_lm_eval(
        subject, [task], settings.include_path, settings.num_fewshot, settings.limit
    )
    own = found.pop(task, {}) if len(found) > 1 else found.popitem()[1]
    within = {f"{name}/{key}": value for name, row in found.items() for key, value in row.items()}
    return own | within


EVALUATION = Evaluation(
    name="lm_eval",
    summary="tasks of lm-evaluation-harness: lm_eval:TASK,TASK",
    entries=entries,
)
