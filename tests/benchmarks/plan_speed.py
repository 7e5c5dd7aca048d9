"""Wall time of `isoloss plan` on a grid of 10,000 runs and of `isoloss --help`, imports included.

``python -m tests.benchmarks.plan_speed`` prints medians, and as ratios to the bare `import torch`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GRID = """
sweep: ten-thousand
base:
  residual: standard
  model: {n_layers: 4, d_model: 64}
  data: {corpus: sotu, seq_len: 128}
  train: {budget: {flops: 1e13}, batch_tokens: 8192}
axes:
  residual: [standard, full, {name: block, block_size: 4}, delta, low_rank]
  train.lr: [1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1e-2, 1.5e-2, 2e-2]
  model.n_layers: [4, 6, 8, 10, 12]
  train.budget: [{flops: 1e12}, {flops: 3e12}, {flops: 1e13}, {flops: 3e13}]
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""


def median_seconds(command: list[str], repeats: int = 5) -> float:
    """Median wall time of a command over ``repeats`` runs after one that warms the disk cache."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main() -> None:
    """Measure and print."""
    isoloss = [sys.executable, "-m", "harness.cli"]
    torch = median_seconds([sys.executable, "-c", "import torch"])
    with tempfile.TemporaryDirectory() as folder:
        grid = Path(folder) / "grid.yaml"
        grid.write_text(GRID, encoding="utf-8")
        planned = median_seconds([*isoloss, "plan", str(grid), "--results", folder])
    shown = median_seconds([*isoloss, "--help"])
    print(f"import torch  {torch:.2f} s")
    print(f"plan          {planned:.2f} s, {planned / torch:.2f}x import torch")
    print(f"--help        {shown:.2f} s, {shown / torch:.2f}x import torch")


if __name__ == "__main__":
    main()
