"""A simulation for reading and as JSON; takes results, returns text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.simulate.declared import DeclaredGrid
from analysis.simulate.design import Design
from analysis.simulate.forecast import MIN_STEP, multiplier_text
from analysis.simulate.power import ArmOutlook, Question
from analysis.simulate.world import World

_WORLD = {
    "alpha": "exponent of C",
    "asymptote": "true E, nats; the analysis pins 0",
    "loss": "baseline at the middle of the ladder, nats",
    "shared_sd": "relative sd of a loss, shared by the arms of a size and seed",
    "seed_sd": "relative sd of a loss, of each run by itself",
    "divergence": "share of runs without a loss",
    "growth": "d ln multiplier / d ln C",
}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A grid played in a world, and designs beside it."""

    sweep: str
    grid: DeclaredGrid
    world: World
    sources: Mapping[str, str]
    """Where each number of the world is from."""
    question: Question
    arms: Sequence[ArmOutlook]
    designs: Sequence[Design]


def heading(found: Simulation) -> str:
    """What is played, in one line."""
    grid, question = found.grid, found.question
    return (
        f"{found.sweep}: {grid.n_runs} runs of {len(grid.arms)} arms at {grid.n_sizes} sizes, "
        f"{grid.flops:.3g} FLOPs, played {question.studies:,} times"
    )


def world_rows(found: Simulation) -> list[tuple[str, ...]]:
    """Name, value, source, meaning."""
    return [
        (name.replace("_", "-"), f"{getattr(found.world, name):.3g}", found.sources[name], meaning)
        for name, meaning in _WORLD.items()
    ]


def arm_headers(question: Question) -> tuple[str, ...]:
    """Headers of :func:`arm_rows`."""
    return (
        "arm",
        f"{100 * question.level:g}% interval",
        "bounded",
        "coverage",
        f"finds {question.effect:g}",
        "finds 1 (false)",
        f"found in {100 * question.power:g}%",
    )


def arm_rows(found: Simulation) -> list[tuple[str, ...]]:
    """One row per arm."""
    return [
        (
            at.arm,
            _width(at.half_width_percent),
            _share(at.bounded),
            _share(at.coverage),
            _share(at.power),
            _share(at.false_alarms),
            "none up to 10" if at.detectable is None else multiplier_text(at.detectable),
        )
        for at in found.arms
    ]


HOW_READ = (
    "Interval: median half width. Finds: the verdict after Holm, with one arm at a time different "
    "from the baseline. Finds 1: where none is."
)
DESIGN_HEADERS = ("sizes", "seeds", "runs", "FLOPs", "of the grid's", "interval", "finds it", "")


def design_rows(found: Simulation) -> list[tuple[str, ...]]:
    """One row per design."""
    return [
        (
            str(at.n_sizes),
            str(at.n_seeds),
            str(at.runs),
            f"{at.flops:.3g}",
            f"{at.flops / found.grid.flops:.2f}x",
            _width(at.half_width_percent),
            _share(at.power),
            ", ".join(_marks(at)),
        )
        for at in found.designs
    ]


def verdict(found: Simulation) -> list[str]:
    """The cheapest design in words, and what must be known of the table."""
    question = found.question
    asked = f"finds {question.effect:g} in {100 * question.power:g}% of studies"
    best = next((at for at in found.designs if at.cheapest), None)
    if best is None:
        lines = [f"No design of the table {asked}: ask for a larger effect, or add seeds."]
    else:
        lines = [
            f"Cheapest that {asked}: {best.n_sizes} sizes x "
            f"{best.n_seeds} seed{'s' if best.n_seeds > 1 else ''}, "
            f"{best.runs} runs, {best.flops:.3g} FLOPs."
        ]
    lines.append(
        "Designs keep the arms and the grid's range of compute, extended upwards where sizes would "
        f"lie closer than {MIN_STEP}x. Of each design, the arm known worst."
    )
    if found.grid.n_settings > 1:
        lines.append(
            f"note: the grid varies {found.grid.n_settings} settings at a size. The analysis "
            "averages them, and here they differ by noise alone."
        )
    return lines


def simulation_json(found: Simulation) -> dict[str, Any]:
    """Everything at full precision; null for what is unbounded or undefined."""
    grid = found.grid
    return {
        "schema_version": 1,
        "sweep": found.sweep,
        "grid": {"runs": grid.n_runs, "arms": list(grid.arms), "sizes": grid.n_sizes}
        | {"settings_per_size": grid.n_settings, "flops": grid.flops},
        "world": {
            name: {"value": getattr(found.world, name), "source": source}
            for name, source in found.sources.items()
        },
        "question": dataclasses.asdict(found.question),
        "arms": [_finite(dataclasses.asdict(at)) for at in found.arms],
        "designs": [_finite(dataclasses.asdict(at)) for at in found.designs],
    }


def _marks(at: Design) -> list[str]:
    return ["cheapest"] * at.cheapest + ["as declared"] * at.declared


def _width(half_width_percent: float) -> str:
    if not math.isfinite(half_width_percent):
        return "unbounded"
    return f"±{half_width_percent:.2g}%"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}%"


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
