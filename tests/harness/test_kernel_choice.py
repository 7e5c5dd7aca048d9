"""``execution.kernel`` and ``execution.recompute``: how, and never what, is computed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

from harness.config import Execution, ModelConfig, ResidualConfig
from harness.errors import GridError
from harness.grid import load_grid
from harness.model import Transformer
from harness.module import token_loss
from recipes.base import KERNELS

GRID = """\
sweep: kernels
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 64}
  train: {budget: {tokens: 4096}, batch_tokens: 256}
axes: {residual: [standard, {name: block, block_size: 2}, multi_stream, delta]}
execution: {kernel: KERNEL}
"""


def written(path: Path, kernel: str) -> Path:
    grid = path / "grid.yaml"
    grid.write_text(GRID.replace("KERNEL", kernel))
    return grid


def test_the_grid_offers_the_kernels_that_recipes_know() -> None:
    assert get_args(Execution.model_fields["kernel"].annotation) == KERNELS


def test_the_kernel_never_enters_a_run_id(tmp_path: Path) -> None:
    ids = [
        [run.run_id for run in load_grid(written(tmp_path, kernel)).runs]
        for kernel in ("auto", "torch", "cached")
    ]
    assert ids[0] == ids[1] == ids[2]


def test_a_kernel_that_an_arm_cannot_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(GridError) as caught:
        load_grid(written(tmp_path, "two_phase"))
    text = str(caught.value)
    assert "grid.yaml:8: execution.kernel: recipe 'multi_stream': kernel 'two_phase'" in text
    assert "recipe 'delta': kernel 'two_phase' needs reads that replace the stream" in text
    assert "'block'" not in text


def gradients(recompute: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    config = ModelConfig(n_layers=3, d_model=32, head_dim=16)
    model = Transformer(config, ResidualConfig(name="full"), vocab_size=64, seed=0).double()
    model.recompute = recompute
    ids = torch.randint(64, (2, 33), generator=torch.Generator().manual_seed(0))
    loss = token_loss(model, ids)
    loss.backward()
    return loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_recomputing_sublayers_changes_no_gradient() -> None:
    torch.testing.assert_close(gradients(True), gradients(False), rtol=0, atol=0)
