"""Inputs that the tests of figures share: published shapes, a multiplier curve, a joint law."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.compare.curve import CurveAt, ExtrapolatedCurve, MultiplierCurve
from analysis.estimates import Interval
from analysis.figures.depth_width import (
    ShapeLoss,
)
from analysis.fit.joint import JointPoints

DATA = Path(__file__).parents[1] / "data"
KIMI = DATA / "attnres_kimi2026"


def kimi_shapes() -> list[ShapeLoss]:
    rows = csv.DictReader((KIMI / "depth_width.csv").open())
    return [
        ShapeLoss(
            arm, float(row["heads_per_layer"]), float(row["width_per_layer"]), float(row[arm])
        )
        for row in rows
        for arm in ("baseline", "attnres")
    ]


def rho_curve(arm: str, *, unbounded: bool = False, beyond: bool = False) -> MultiplierCurve:
    compute = tuple(map(float, np.geomspace(1e12, 1e13, 5)))
    rho = (1.3, 1.28, 1.26, 1.24, 1.22)
    at = CurveAt(compute=1e12, ratio=Interval(estimate=1.3, low=1.2, high=1.4, method="m"))
    extrapolated = ExtrapolatedCurve(
        compute=(1e13, 1e14),
        rho_low=(1.2, 1.0),
        rho_high=(1.24, 2.0),
        low=(1.1, 0.0),
        high=(1.3, math.inf),
        asymptotes=(0.0, 1.6),
        note="envelope",
    )
    return MultiplierCurve(
        arm=arm,
        baseline="standard",
        method="m",
        level=0.95,
        compute=compute,
        rho=rho,
        low=tuple(math.nan if unbounded else value / 1.1 for value in rho),
        high=tuple(math.nan if unbounded else value * 1.1 for value in rho),
        domain=(1e12, 1e13),
        overlap=(1e12, 1e13),
        smallest=at,
        middle=at,
        largest=at,
        extrapolated=extrapolated if beyond else None,
        notes=(),
    )


def lr_runs() -> pd.DataFrame:
    losses = {"standard": (2.0, 1.9, 1.95), "full": (1.8, 1.85, 1.9), "delta": (2.0,)}
    return pd.DataFrame(
        [
            {
                "arm": arm,
                "size": "2x64",
                "lr": lr,
                "loss_nats": loss + shift,
                "flops": 1e12,
                "seed": seed,
            }
            for arm, values in losses.items()
            for lr, loss in zip((1e-3, 2e-3, 4e-3), values, strict=False)
            for seed, shift in ((0, 0.01), (1, -0.01))
        ]
    )


def joint_points() -> JointPoints:
    n, d = np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 5))
    loss = 1.8 + 480 * n**-0.35 + 2085 * d**-0.37
    return JointPoints(n.ravel(), d.ravel(), loss.ravel() * (1 + 1e-3 * np.sin(np.arange(25))))
