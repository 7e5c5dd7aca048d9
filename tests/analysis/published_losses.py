"""Published losses of residual variants as points and as frames; and pairs drawn from a law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.cells import PairPoint

DATA = Path(__file__).parents[1] / "data"
KIMI = DATA / "attnres_kimi2026" / "table2_losses.csv"
DELTA = DATA / "delta_attnres2026" / "val_ppl.csv"
KIMI_ARMS = ("block_attnres", "full_attnres", "mhc_lite")
SLOPE = 0.055


def kimi_pairs(arm: str, asymptote: float = 0.0) -> list[PairPoint]:
    """ArXiv 2603.15031, Table 2, with C = 6 N D."""
    table = pd.read_csv(KIMI, comment="#")
    return [
        PairPoint(
            size=f"{row.active_params:.0f}",
            log_compute_base=float(np.log(6 * row.active_params * row.tokens)),
            log_compute_arm=float(np.log(6 * row.active_params * row.tokens)),
            log_excess_base=float(np.log(row.baseline - asymptote)),
            log_excess_arm=float(np.log(getattr(row, arm) - asymptote)),
            loss_base=row.baseline,
            loss_arm=getattr(row, arm),
            n_seeds=1,
        )
        for row in table.itertuples()
    ]


def kimi_runs() -> pd.DataFrame:
    """The same table, one row per run."""
    table = pd.read_csv(KIMI, comment="#")
    runs = table.melt(["active_params", "tokens"], var_name="arm", value_name="loss_nats")
    size = runs["active_params"].map("{:.0f}".format)
    flops = 6 * runs["active_params"] * runs["tokens"]
    return runs.assign(size=size, size_key=size, pair_key=size, seed=0, flops=flops)


def delta_runs() -> pd.DataFrame:
    """The three sizes of the Delta-AttnRes repository that ran every method; C as 6 N x steps."""
    table = pd.read_csv(DELTA, comment="#")
    chosen = table["scale"].isin(["220M", "533M", "1044M"])
    table = table[chosen & (table["method"] != "delta_attnres_rerun_ablation")]
    return pd.DataFrame(
        {
            "arm": table["method"],
            "size": table["scale"],
            "size_key": table["scale"],
            "pair_key": table["scale"],
            "seed": 0,
            "flops": 6 * table["params"] * table["steps"],
            "loss_nats": np.log(table["val_ppl"]),
        }
    )


def draw_pairs(
    rng: np.random.Generator, n: int, rho: float, tau: float, sd: float, trend: float = 0.0
) -> list[PairPoint]:
    """Pairs at equal compute; ``trend`` is the arm's exponent minus the baseline's."""
    x = np.linspace(0.0, np.log(8.4), n)
    shared = rng.normal(0, tau, n)
    base = 1.0 - SLOPE * x + shared + rng.normal(0, sd, n)
    arm = 1.0 - SLOPE * (x + np.log(rho)) - trend * x + shared + rng.normal(0, sd, n)
    return [
        PairPoint(f"s{i}", x[i], x[i], base[i], arm[i], np.exp(base[i]), np.exp(arm[i]), 1)
        for i in range(n)
    ]
