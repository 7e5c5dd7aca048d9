"""What generating a task's batches costs, as a share of the training steps that use them.

``python -m tests.benchmarks.task_cost`` builds a small model (2 layers, d_model 64), the cheapest
that a shipped grid trains on tasks, and times in turn the batch of a step and the step itself, for
every task at its defaults and at published sizes. It prints medians of CPU time, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.config import ModelConfig, ResidualConfig
from harness.model import Transformer
from harness.tasks import IGNORED, Examples, Task, available, build_task

PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "mqar": [
        {"n_pairs": 4, "length": 64, "vocab_size": 8192},
        {"n_pairs": 64, "length": 512, "vocab_size": 8192},
    ],
    "mano": [{"prime": 23, "max_operators": 16}],
    "depo": [
        {"n_words": 100, "min_words": 10, "n_queries": 10, "max_hops": 16},
        {"n_words": 100, "min_words": 10, "n_queries": 10, "max_hops": 16, "word_tokens": 5},
    ],
}
"""Sizes of the papers where they are not the defaults."""


def timed(act: Callable[[], object]) -> float:
    """CPU time of one call, in seconds: other work on the machine hardly changes it."""
    begin = time.process_time()
    act()
    return time.process_time() - begin


def trainer(task: Task) -> Callable[[Examples], None]:
    """Return a function that does one optimiser step on a batch."""
    model = Transformer(
        ModelConfig(n_layers=2, d_model=64), ResidualConfig(name="standard"), task.vocab_size, 0
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(examples: Examples) -> None:
        optimizer.zero_grad()
        loss(model, examples).backward()
        optimizer.step()

    return step


def loss(model: Transformer, examples: Examples) -> Tensor:
    """Mean cross-entropy where something is asked."""
    logits = model(torch.from_numpy(examples.inputs))
    labels = torch.from_numpy(examples.labels)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def report(name: str, options: dict[str, Any], batch_tokens: int, repeats: int) -> float:
    """Measure one task and print a line; return the share of generation."""
    task = build_task(name, options)
    step, n = trainer(task), max(1, batch_tokens // task.seq_len)
    step(task.training(0, 0, n))
    times: dict[str, list[float]] = {"generate": [], "train": []}
    for i in range(1, repeats + 1):
        times["generate"].append(timed(partial(task.training, 0, i, n)))
        times["train"].append(timed(partial(step, task.training(0, i, n))))
    generate, train = (statistics.median(times[part]) for part in ("generate", "train"))
    label = ", ".join(f"{key}={value}" for key, value in options.items()) or "defaults"
    print(
        f"{name:10}{n:4} x {task.seq_len:<5} generate {1e3 * generate:6.2f} ms, train "
        f"{1e3 * train:7.1f} ms: {100 * generate / train:5.2f}%  {label}",
        flush=True,
    )
    return generate / train


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(available()))
    parser.add_argument("--batch-tokens", type=int, default=2176)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.tasks:
        for given in ({}, *PUBLISHED.get(name, [])):
            report(name, given, options.batch_tokens, options.repeats)


if __name__ == "__main__":
    main()
