"""Diagnostics rows made from formulas: shaped as a run writes them, measured on nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.records import PlannedRun

NEW_KEYS = (
    *("layer_grad_rms", "param_grad_l2", "mixing", "masking", "batch_loss_nats", "cost"),
    "collapsed_to_uniform_deep",
)
NEW_READ_KEYS = (
    *("total_weight", "max_weight_times_sources", "partial_mass", "older_mass"),
    *("token_variance", "contributions", "adjacent_cosine", "effective_rank"),
    *("query_norm", "query_grad_norm"),
)


def diagnostics_row(planned: PlannedRun, old: bool = False) -> dict[str, Any]:
    """The last diagnostics of a run; ``old``: as before there were the new keys."""
    n_sublayers = 2 * planned.config["model"]["n_layers"]
    name = planned.config["residual"]["name"]
    row = row_of(name, n_sublayers, planned.cost.steps)
    if old:
        row = {key: value for key, value in row.items() if key not in NEW_KEYS}
        for read in row["reads"]:
            for key in NEW_READ_KEYS:
                del read[key]
    return row


def row_of(name: str, n_sublayers: int, step: int = 100) -> dict[str, Any]:
    """A diagnostics row: reads but for ``standard``, and for ``mhc``, which mixes streams."""
    has_reads = name not in ("standard", "mhc")
    grow = 0.25 if has_reads else 1.0
    depth = np.arange(n_sublayers)
    return {
        "kind": "diagnostics",
        "step": step,
        "input_rms": (0.02 * (1 + grow * depth) ** 0.7).tolist(),
        "output_rms": (0.02 * (1 + grow * depth) ** 0.4).tolist(),
        "state_rms": (0.03 * (1 + grow * depth) ** 0.9).tolist(),
        "grad_rms": (1e-5 * np.exp(-0.1 * grow * depth)).tolist(),
        "layer_grad_rms": (2e-5 * np.exp(-0.1 * grow * depth[1::2])).tolist(),
        "param_grad_l2": (0.01 * (1.5 + depth % 2)).tolist(),
        "reads": reads(name, n_sublayers) if has_reads else [],
        "mixing": [mixing(t) for t in range(n_sublayers)] if name == "mhc" else [],
        "collapsed_to_newest": 0.1 if has_reads else None,
        "collapsed_to_uniform": 0.0 if has_reads else None,
        "collapsed_to_uniform_deep": 0.0 if has_reads else None,
        "batch_loss_nats": 2.0,
        "masking": masking(name, n_sublayers) if has_reads else [],
        "cost": {"sequences": 8, "forward_passes": 5.0, "backward_passes": 1},
        "attempt": 1,
    }


def reads(name: str, n_sublayers: int) -> list[dict[str, Any]]:
    return [read(t, labels(name, t)) for t in range(n_sublayers + 1)]


def labels(name: str, t: int) -> list[str]:
    if name != "block":
        return ["embedding", *(f"t{i}" for i in range(t))]
    blocks = [f"block {b + 1}" for b in range(t // 4)]
    return ["embedding", *blocks, *(["partial"] if t % 4 else [])]


def read(t: int, labels: list[str]) -> dict[str, Any]:
    n = len(labels)
    raw = np.linspace(1.0, 2.0, n) ** 2
    raw[0] += 1.0
    weights = raw / raw.sum()
    entropy = float(-(weights * np.log(weights)).sum() / np.log(n)) if n > 1 else None
    newest, embedding = float(weights[-1]), float(weights[0])
    return {
        "t": t,
        "labels": labels,
        "mean_weights": weights.tolist(),
        "total_weight": 1.0,
        "normalised_entropy": entropy,
        "max_weight": float(weights.max()),
        "max_weight_times_sources": float(weights.max() * n),
        "newest_mass": newest,
        "embedding_mass": embedding,
        "partial_mass": newest if labels[-1] == "partial" else None,
        "older_mass": 1.0 - newest - embedding if n > 1 else 0.0,
        "token_variance": 0.01 / n,
        "contributions": (weights * np.linspace(3.0, 1.0, n)).tolist(),
        "adjacent_cosine": 0.3 if n > 1 else None,
        "effective_rank": 1.0 + 0.5 * (n - 1),
        "query_norm": 0.1 * t if n > 1 else None,
        "query_grad_norm": 0.01 if n > 1 else None,
    }


def mixing(t: int) -> dict[str, Any]:
    errors = {"row_sum_error": 1e-7, "column_sum_error": 1e-4}
    return {"t": t, **errors, "off_diagonal_mass": 0.05 + 0.01 * t, "grad_norm": 1e-4 * t}


def masking(name: str, n_sublayers: int) -> list[dict[str, Any]]:
    """The older a source, the more the loss misses it."""
    seen = dict.fromkeys(
        label
        for t in range(1, n_sublayers + 1)
        for label in labels(name, t)
        if len(labels(name, t)) > 1
    )
    return [{"source": label, "loss_change_nats": 0.5 / (1 + i)} for i, label in enumerate(seen)]
