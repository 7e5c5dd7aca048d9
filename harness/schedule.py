"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math

from harness.config import TrainConfig


def warmup_steps(train: TrainConfig, steps: int) -> int:
    """Optimiser steps of linear warm-up: as many as ``warmup_tokens`` fill, or ``warmup_frac`` of
    all, rounded up.
    """
    if train.warmup_tokens is not None:
        return -(-train.warmup_tokens // train.batch_tokens)
    return math.ceil(train.warmup_frac * steps)


def decay_steps(train: TrainConfig, steps: int) -> int:
    """Steps from the last one at the peak to the end of the run; 0 where the rate never falls."""
    if train.schedule == "constant":
        return 0
    if train.schedule == "cosine":
        return steps - warmup_steps(train, steps)
    return round(train.decay_frac * steps)


def branch_step(train: TrainConfig, steps: int) -> int | None:
    """How many first steps have a rate that the number of steps does not enter.

    As many steps of a longer run with equal settings and an equal warm-up are the same training:
    the data of a step are a function of (seed, step) alone. The last step is left to every run, so
    that there is one to validate.

    Returns
    -------
    int or None
        None where there are none: with the cosine, whose every step depends on all.
    """
    if train.schedule == "cosine":
        return None
    decay = decay_steps(train, steps)
    # At step ``steps - decay`` (from 0) the rate is still the peak, see lr_fraction.
    return max(min(steps - max(decay, 1) + 1, steps - 1), 0) or None


def lr_fraction(train: TrainConfig, step: int, steps: int) -> float:
    """Learning rate of optimiser step ``step`` (from 0) as a share of the peak.

    Linear warm-up over :func:`warmup_steps`, reaching the peak at its end; then

    - constant: the peak;
    - wsd: the peak, then linear to ``lr_end_frac`` over the last ``decay_frac`` of the steps
      (Hu et al. 2024, section 4);
    - cosine: half a cosine to ``lr_end_frac`` (Loshchilov and Hutter 2017, equation 5).

    The last step, ``steps - 1``, is one decay increment above the end value, so that no step trains
    at rate zero.
    """
    warmup = warmup_steps(train, steps)
    if step < warmup:
        return (step + 1) / warmup
    if train.schedule == "constant":
        return 1.0
    left = (steps - step) / max(decay_steps(train, steps), 1)
    if left >= 1.0:
        return 1.0
    shape = left if train.schedule == "wsd" else 0.5 * (1.0 - math.cos(math.pi * left))
    return train.lr_end_frac + (1.0 - train.lr_end_frac) * shape
