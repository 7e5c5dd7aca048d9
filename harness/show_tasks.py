"""What `isoloss tasks` shows: the depth probes, and one of them in full."""

from __future__ import annotations

import inspect

from rich.console import RenderableType

from harness.console import table
from harness.show import meaning
from harness.tasks import Task, available, get
from harness.tasks.draws import Draws

SHOWN_TOKENS = 48
"""Tokens of the example that are shown."""


def task_table() -> list[RenderableType]:
    """The table of all tasks with their default options."""
    rows = [
        (name, cls.summary, cls.graded_by, str(task.seq_len), str(task.vocab_size))
        for name, cls in available().items()
        if (task := cls(cls.Options()))
    ]
    headers = ("task", "what must be said", "graded by", "tokens", "vocabulary")
    return [table(headers, rows, left=3), "Use one in a grid: data: {task: NAME, OPTION: VALUE}."]


def task_page(name: str) -> list[RenderableType]:
    """One task in full: docstring of its file, options with defaults, one sequence.

    Raises
    ------
    DataError
        No such task.
    """
    cls = get(name)
    task = cls(cls.Options())
    module = inspect.getmodule(cls)
    about = ((inspect.getdoc(module) if module else None) or "").replace("``", "")
    info = task.info
    facts = (
        f"source:    {cls.source}\n"
        f"graded by: {cls.graded_by}, {info.levels[0]} to {info.levels[-1]}\n"
        f"blind:     accuracy {info.chance:.3f}, loss {info.label_entropy_nats:.3f} nats"
    )
    options = [
        (option, repr(field.get_default()), meaning(field))
        for option, field in cls.Options.model_fields.items()
    ]
    return [
        about,
        "",
        facts,
        "",
        table(("option", "default", "meaning"), options, left=3),
        "",
        *_example(task),
    ]


def _example(task: Task) -> list[RenderableType]:
    """One sequence over its labels."""
    examples = task.sample(Draws(0, 0), 1, task.levels[-1])
    asked = examples.asked[0, :SHOWN_TOKENS]
    inputs = [str(token) for token in examples.inputs[0, :SHOWN_TOKENS]]
    labels = [
        str(label) if there else "."
        for label, there in zip(examples.labels[0, :SHOWN_TOKENS], asked, strict=True)
    ]
    width = max(map(len, inputs + labels))
    more = " …" if task.seq_len > SHOWN_TOKENS else ""
    return [
        "tokens " + " ".join(token.rjust(width) for token in inputs) + more,
        "labels " + " ".join(label.rjust(width) for label in labels) + more,
    ]
