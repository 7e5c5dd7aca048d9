"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math

from harness.config import TrainConfig


def lr_fraction(train: TrainConfig, step: int, steps: int) -> float:
    """Learning rate of optimiser step ``step`` (from 0) as a share of the peak.

    Linear warm-up over ``warmup_frac`` of the steps, reaching the peak at its end; then

    - constant: the peak;
    - wsd: the peak, then linear to ``lr_end_frac`` over the last ``decay_frac`` of the steps
      (Hu et al. 2024, section 4);
    - cosine: half a cosine to ``lr_end_frac`` (Loshchilov and Hutter 2017, equation 5).

    The last step, ``steps - 1``, is one decay increment above the end value, so that no step trains
    at rate zero.
    """
    warmup = math.ceil(train.warmup_frac * steps)
    if step < warmup:
        return (step + 1) / warmup
    if train.schedule == "constant":
        return 1.0
    decay = steps - warmup if train.schedule == "cosine" else round(train.decay_frac * steps)
    left = (steps - step) / max(decay, 1)
    if left >= 1.0:
        return 1.0
    shape = left if train.schedule == "wsd" else 0.5 * (1.0 - math.cos(math.pi * left))
    return train.lr_end_frac + (1.0 - train.lr_end_frac) * shape
