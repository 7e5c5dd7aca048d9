"""What a figure says where a reader points: values in data coordinates, each with its text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HoverPoint:
    """One value of a figure."""

    axes: int
    """Index in ``figure.axes``."""
    x: float
    """Data coordinates of those axes."""
    y: float
    text: str
    """``block, 8x160, 3.1e11 FLOPs: 1.7532 nats (2 seeds, sd 0.0021)``."""


def short(value: float) -> str:
    """Two significant digits without a padded exponent: ``3.1e11``, ``0.0021``, ``20``."""
    mantissa, mark, exponent = f"{value:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa


def seeds_text(n_seeds: int, seed_sd: float | None) -> str:
    """``2 seeds, sd 0.0021``; ``1 seed`` where there is no spread."""
    seeds = f"{n_seeds} seed" + "s" * (n_seeds != 1)
    return seeds if seed_sd is None else f"{seeds}, sd {seed_sd:.4f}"


def interval_text(low: float | None, high: float | None, decimals: int = 4) -> str:
    """``[1.7501, 1.7563]``, or ``no interval``."""
    if low is None or high is None or not (low == low and high == high):
        return "no interval"
    return f"[{low:.{decimals}f}, {high:.{decimals}f}]"
