"""Tokens per second with the cache of ``harness.decoding``, over those of a pass for every token.

``python -m tests.benchmarks.generation_speed [--n-layers 8] [--d-model 256] [--rows 1]``. A row of
the table is a context length: how fast one more token comes after so many. Medians over tokens; the
models are at their initialisation, which changes no speed. On the GPU where there is one; without,
on one core and by its own time, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from harness.config import ModelConfig, ResidualConfig
from harness.decoding import Decoder
from harness.model import Transformer

RECIPES = ("standard", "full", "multi_stream")
LENGTHS = (64, 256, 1024)
VOCAB = 256
REPEATS = 16
"""Tokens that are timed with the cache; a quarter of them without."""


def seconds(step: Callable[[], Tensor], repeats: int) -> float:
    """Median time of a step, after one that warms up."""
    clock = time.perf_counter if step().is_cuda else time.process_time
    times = []
    for _ in range(repeats):
        began = clock()
        step().sum().item()  # waits for the device
        times.append(clock() - began)
    return statistics.median(times)


@torch.no_grad()
def measured(model: Transformer, ids: Tensor) -> tuple[float, float]:
    """Seconds per token after ``ids``, with the cache and without."""
    decoder = Decoder(model)
    decoder.prefill(ids)
    newest = ids[:, -1]
    cached = seconds(lambda: decoder.step(newest), REPEATS)
    return cached, seconds(lambda: model(ids)[:, -1], REPEATS // 4)


def main() -> None:
    """Print one line per recipe and length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-layers", type=int, default=8)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--rows", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = ModelConfig(n_layers=given.n_layers, d_model=given.d_model)
    print(f"{'recipe':13} {'context':>7} {'cached/s':>9} {'uncached/s':>10} {'ratio':>6}")
    for name in RECIPES:
        model = Transformer(shape, ResidualConfig(name=name), VOCAB, seed=0).to(device).eval()
        for length in LENGTHS:
            ids = torch.randint(VOCAB, (given.rows, length), device=device)
            cached, whole = measured(model, ids)
            speeds = f"{given.rows / cached:9.0f} {given.rows / whole:10.1f}"
            print(f"{name:13} {length:7} {speeds} {whole / cached:6.1f}", flush=True)


if __name__ == "__main__":
    main()
