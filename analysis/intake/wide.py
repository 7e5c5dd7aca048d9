"""Tables with one column of losses per variant: found and turned into one row per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.intake.columns import ALIASES, Column, normal
from analysis.intake.numbers import numbers
from analysis.intake.options import Role

VARIANT, LOSS = "variant", "loss"
"""Columns that :func:`melt` adds."""
NO_LOSS = (
    *("lr", "learning_rate", "batch_size", "batch_tokens", "n_layers", "layers", "depth", "width"),
    *("d_model", "hidden_size", "n_heads", "heads", "head_dim", "seq_len", "context", "steps"),
    *("step", "epoch", "epochs", "vocab_size", "warmup", "weight_decay", "beta1", "beta2", "mfu"),
    *("heads_per_layer", "width_per_layer", "block_size", "d_ff", "tokens_per_s", "x", "y"),
)
"""Numbers that describe a run; never a loss."""
LARGEST_LOSS = 20.0
"""Nats per token: above the log of any vocabulary, so it was a perplexity."""
ALIKE = 3.0
"""Losses of one size differ by less than this factor."""


def loss_columns(
    raw: pd.DataFrame, chosen: Mapping[Role, Column], named: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Find the loss columns of a wide table.

    Parameters
    ----------
    raw
        The table as written.
    chosen
        Columns that stand for something already.
    named
        Loss columns given by option; empty: every number column that is left.

    Returns
    -------
    tuple
        The columns, and one line per fault. No column at all is left to the caller.
    """
    if named:
        missing = [name for name in named if name not in raw.columns]
        return list(named), [f"no column {name!r} (--variants)" for name in missing]
    taken = {column.name for column in chosen.values()}
    described = {alias for aliases in ALIASES.values() for alias in aliases} | set(NO_LOSS)
    rest = [name for name in raw.columns if name not in taken and normal(name) not in described]
    found = [name for name in rest if name and _mostly_numbers(raw[name])]
    return found, _unlike(raw, found)


def melt(raw: pd.DataFrame, losses: Sequence[str]) -> pd.DataFrame:
    """One row per run: row names gain the variant, ``variant`` and ``loss`` are added.

    Runs of one row stay together.
    """
    kept = raw.drop(columns=[name for name in raw.columns if name in losses])
    parts = [
        kept.assign(**{VARIANT: name, LOSS: raw[name]}).set_axis(
            [f"{at} {name}" for at in raw.index]
        )
        for name in losses
    ]
    stacked = pd.concat(parts)
    order = np.arange(len(stacked)).reshape(len(losses), len(raw)).T.ravel()
    return stacked.iloc[order]


def _mostly_numbers(cells: pd.Series) -> bool:
    values, texts = numbers(list(cells))
    return len(texts) * 2 < len(values) and bool(np.isfinite(values).any())


def _unlike(raw: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Columns whose numbers are unlike the others': which are losses must be said."""
    if not names:
        return []
    middles = {name: float(np.nanmedian(numbers(list(raw[name]))[0])) for name in names}
    possible = [at for at in middles.values() if 0 < at <= LARGEST_LOSS]
    usual = float(np.median(possible or list(middles.values())))
    odd = [n for n, at in middles.items() if not usual / ALIKE <= at <= usual * ALIKE]
    if not odd:
        return []
    rest = ",".join(name for name in names if name not in odd)
    return [
        f"no column of losses was found, and the number columns are unlike each other "
        f"({', '.join(f'{n} about {middles[n]:.3g}' for n in odd)}): name the loss column with "
        f"--loss, or the loss column of each variant with --variants {rest or 'a,b,c'}"
    ]
