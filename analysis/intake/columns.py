"""Which column of a foreign table stands for what: by option, else by a known name.

Names are compared in lower case with every other mark as an underscore, so that ``Model Size``,
``model-size`` and ``model_size`` are one. A unit at the end of a known name is obeyed:
``tokens (B)``, ``flops_pf_days``, ``train_time_h``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.intake.options import Role

ALIASES: Mapping[Role, tuple[str, ...]] = {
    "n": (
        *("n_params", "n", "active_params", "params", "parameters", "num_params", "n_parameters"),
        *("num_parameters", "model_size", "model_params", "params_active_precise"),
        *("total_params", "n_active_params", "n_total_params", "param", "record_n_params"),
    ),
    "d": (
        *("tokens", "d", "n_tokens", "num_tokens", "train_tokens", "training_tokens"),
        *("tokens_seen", "total_tokens", "dataset_size", "n_train_tokens", "record_tokens"),
    ),
    "c": (
        *("flops", "c", "flop", "training_flop", "training_flops", "train_flops", "train_flop"),
        *("total_flops", "total_flop", "compute", "training_compute", "train_compute"),
        "record_flops",
    ),
    "loss": (
        *("loss_nats", "final_val_loss", "val_loss", "validation_loss", "valid_loss", "eval_loss"),
        *("final_loss", "loss", "test_loss", "c4_ce_last5mean", "cross_entropy", "ce_loss"),
        *("val_ce", "nll", "record_loss_nats", "train_loss", "training_loss"),
    ),
    "ppl": (
        *("val_ppl", "ppl", "perplexity", "val_perplexity", "validation_perplexity", "valid_ppl"),
        *("eval_ppl", "test_ppl", "final_ppl", "eval_perplexity"),
    ),
    "variant": ("arm", "variant", "method", "recipe", "residual", "architecture", "arch"),
    "seed": ("seed", "random_seed", "rng_seed"),
    "size": ("size", "scale", "size_name", "size_label"),
    "status": ("status", "state"),
    "time": (
        *("train_s", "wall_s", "train_time", "training_time", "wall_time", "wall_clock"),
        *("train_seconds", "runtime"),
    ),
    "cluster": ("run_id", "run_name", "run", "name", "id"),
    "eval": (
        *("eval", "eval_set", "eval_dataset", "evaluation_set", "val_set", "validation_set"),
        *("val", "split", "dataset", "corpus", "tokenizer", "tokeniser"),
    ),
}
CONVENTIONS = ("param_count", "flop_convention", "flops_convention", "count_convention")
"""Columns that say how N or C was counted; one table may hold one convention."""
_COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_WORDS = {"million": 1e6, "millions": 1e6, "billion": 1e9, "billions": 1e9, "bn": 1e9}
_WORDS |= {"thousand": 1e3, "trillion": 1e12, "1e6": 1e6, "1e9": 1e9, "e6": 1e6, "e9": 1e9}
PFLOP_DAY = 1e15 * 86_400
_DAYS = (
    *("pf_days", "pflops_days", "pflop_days", "pflop_s_days", "pflops_s_days", "pfdays"),
    *("petaflop_s_days", "petaflops_days", "pflop_s_day"),
)
_FLOPS = {"g": 1e9, "giga": 1e9, "t": 1e12, "tera": 1e12, "p": 1e15, "peta": 1e15}
_FLOPS |= {"e": 1e18, "exa": 1e18, "z": 1e21, "zetta": 1e21}
UNITS: Mapping[Role, Mapping[str, float]] = {
    "n": _COUNTS | _WORDS,
    "d": _COUNTS | _WORDS,
    "c": dict.fromkeys(_DAYS, PFLOP_DAY)
    | {f"{prefix}{unit}": by for prefix, by in _FLOPS.items() for unit in ("flop", "flops")}
    | {"1e18": 1e18, "1e21": 1e21, "flops": 1.0, "flop": 1.0},
    "time": {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "min": 60.0, "minutes": 60.0}
    | {"h": 3600.0, "hours": 3600.0, "hrs": 3600.0, "days": 86_400.0},
    "loss": {"nats": 1.0, "bits": math.log(2)},
}


@dataclass(frozen=True)
class Column:
    """A column with what it stands for."""

    role: Role
    name: str
    factor: float = 1.0
    """Unit of the column in parameters, tokens, FLOPs, seconds or nats."""
    by_option: bool = False


def choose(
    names: Sequence[str], mapped: Mapping[Role, str]
) -> tuple[dict[Role, Column], list[str]]:
    """Find the column of each role.

    Parameters
    ----------
    names
        Columns of the table.
    mapped
        Columns given by option: a name, or ``name*factor``.

    Returns
    -------
    tuple
        Columns by role, and one line for every option that names no column.
    """
    chosen: dict[Role, Column] = {}
    problems: list[str] = []
    for role, wanted in mapped.items():
        column = _by_option(role, wanted, names)
        if column is None:
            problems.append(_no_such_column(role, wanted, names))
        else:
            chosen[role] = column
    taken = {column.name for column in chosen.values()}
    for role in ALIASES:
        # One loss: a perplexity beside a loss is the same number again.
        if role in mapped or ({"loss": "ppl", "ppl": "loss"}.get(role) in mapped):
            continue
        found = known(role, [name for name in names if name not in taken])
        if found is not None:
            chosen[role] = found
            taken.add(found.name)
    if "loss" in chosen and "ppl" in chosen and "ppl" not in mapped:
        del chosen["ppl"]
    return chosen, problems


def known(role: Role, names: Sequence[str]) -> Column | None:
    """First column whose name is an alias of the role, in the order of :data:`ALIASES`."""
    ranked = [(rank, name, factor) for name in names for rank, factor in _meanings(role, name)]
    if not ranked:
        return None
    _, name, factor = min(ranked, key=lambda found: found[0])
    return Column(role, name, factor)


def all_known(role: Role, names: Sequence[str]) -> list[str]:
    """Every column whose name is an alias of the role."""
    return [name for name in names if _meanings(role, name)]


def normal(name: str) -> str:
    """``Training FLOP (1e18)`` as ``training_flop_1e18``."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _meanings(role: Role, name: str) -> list[tuple[int, float]]:
    """Rank among the aliases and factor, for a name with or without a unit."""
    text, aliases = normal(name), ALIASES[role]
    if text in aliases:
        return [(aliases.index(text), 1.0)]
    units = UNITS.get(role, {})
    found = [(text.removesuffix(f"_{unit}"), by) for unit, by in units.items()]
    return [(aliases.index(base), by) for base, by in found if base != text and base in aliases]


def _by_option(role: Role, wanted: str, names: Sequence[str]) -> Column | None:
    if wanted in names:
        found = _meanings(role, wanted)
        return Column(role, wanted, found[0][1] if found else 1.0, by_option=True)
    name, star, factor = wanted.rpartition("*")
    try:
        if star and name.strip() in names:
            return Column(role, name.strip(), float(factor), by_option=True)
    except ValueError:
        pass
    return None


def _no_such_column(role: Role, wanted: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(name for name in names[:12] if name)
    return f"no column {wanted!r} (--{role}){hint} Columns: {shown}{', …' * (len(names) > 12)}"
