"""What diagnostics cost: in passes over their batch, and in time against training steps.

``python -m tests.benchmarks.diagnostics_cost`` builds the quickstart's largest size for each recipe
and times, in turn, a training step, ordinary diagnostics and the last ones with the causal check;
it prints medians, and the share of a whole run. A training step is a forward and a backward pass
over its batch, here as many tokens as diagnostics look at.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from harness.config import RunConfig
from harness.diagnostics import measure
from harness.model import Transformer
from harness.module import token_loss
from harness.optimiser import build_optimizer, clip_gradients
from harness.training import DIAGNOSTIC_SEQUENCES
from tests.benchmarks.trainer_overhead import largest


def timed(act: Callable[[], object]) -> float:
    """Wall time of one call, in seconds."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def report(recipe: str, repeats: int) -> None:
    """Measure one recipe and print a line."""
    run = largest(recipe)
    config = RunConfig.model_validate(run.config)
    model = Transformer(config.model, config.residual, run.vocab_size, config.seed)
    optimizer = build_optimizer(model, config.train)
    shape = (DIAGNOSTIC_SEQUENCES, config.data.seq_len + 1)
    tokens = torch.randint(run.vocab_size, shape, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad()
        token_loss(model, tokens).backward()
        clip_gradients(model, config.train.grad_clip)
        optimizer.step()

    times: dict[str, list[float]] = {"step": [], "plain": [], "causal": []}
    for _ in range(repeats):
        times["step"].append(timed(step))
        times["plain"].append(timed(lambda: measure(model, tokens)))
        times["causal"].append(timed(lambda: measure(model, tokens, causal=True)))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    cost = measure(model, tokens, causal=True)["cost"]
    plain, causal = (seconds[name] / seconds["step"] for name in ("plain", "causal"))
    share = (plain + causal) / run.cost.steps
    print(
        f"{recipe:14} plain {plain:5.1f} steps; with the causal check {causal:5.1f} steps "
        f"({cost['forward_passes']:.1f} forward, {cost['backward_passes']} backward passes); "
        f"both in a run of {run.cost.steps} steps: {100 * share:.1f}%",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=["standard", "block", "full"])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in options.recipes:
        report(recipe, options.repeats)


if __name__ == "__main__":
    main()
