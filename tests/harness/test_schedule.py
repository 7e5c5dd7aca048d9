"""Learning-rate schedules at their corners, and against independent implementations."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from harness.config import TrainConfig
from harness.schedule import lr_fraction


def settings(**values: object) -> TrainConfig:
    return TrainConfig.model_validate({"budget": {"tokens": 1}, **values})


@pytest.mark.parametrize("schedule", ["wsd", "cosine", "constant"])
def test_warm_up_is_linear_and_reaches_the_peak(schedule: str) -> None:
    train = settings(schedule=schedule, warmup_frac=0.1)
    assert [lr_fraction(train, step, 100) for step in range(10)] == [
        pytest.approx((step + 1) / 10) for step in range(10)
    ]
    assert lr_fraction(train, 10, 100) == 1.0


def test_wsd_equals_the_schedule_of_transformers() -> None:
    train = settings(schedule="wsd", warmup_frac=0.1, decay_frac=0.2, lr_end_frac=0.05)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = transformers.get_wsd_schedule(
        optimizer, 20, 40, num_training_steps=200, min_lr_ratio=0.05, decay_type="linear"
    )
    for step in range(200):
        if step >= 20:  # their warm-up starts at rate zero, ours at one increment
            assert lr_fraction(train, step, 200) == pytest.approx(theirs.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        theirs.step()


def test_cosine_follows_half_a_cosine() -> None:
    train = settings(schedule="cosine", warmup_frac=0.0, lr_end_frac=0.1)
    for step in range(50):
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / 50))
        assert lr_fraction(train, step, 50) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_no_step_trains_at_rate_zero(schedule: str) -> None:
    train = settings(schedule=schedule)
    for steps in (1, 2, 3, 17, 1000):
        assert all(lr_fraction(train, step, steps) > 0 for step in range(steps))
