"""The tables of a search: multipliers at equal and own values, chosen values, laws, lost trials.

Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from analysis.collect import compact
from analysis.page.numerals import DASH, ends, number, ratio_cell
from analysis.page.table import Cell, Raw, Table
from analysis.tuning.types import ChosenCell, LawReach, Outcome, Trial, Tuning

_LOST: tuple[Outcome, ...] = ("stopped early", "diverged", "failed")


def tuning_tables(tuning: Tuning) -> list[Table]:
    """Those that have a row."""
    tables = (
        gains_table(tuning),
        values_table(tuning),
        laws_table(tuning),
        stopped_table(tuning),
    )
    return [table for table in tables if table.raw]


def gains_table(tuning: Tuning) -> Table:
    """Multipliers of every arm at equal and at own best values, and what tuning makes of them."""
    cells, raw = [], []
    for gain in tuning.gains:
        sizes = f"{gain.n_sizes}" + (f", {gain.n_same} alike" if gain.n_same else "")
        cells.append(
            (
                Cell(gain.arm),
                ratio_cell(gain.equal),
                ratio_cell(gain.own),
                ratio_cell(gain.due),
                Cell(number(gain.p_holm, ".2g")),
                Cell(gain.verdict or DASH),
                Cell(sizes),
                Cell(f"{gain.n_lost}" if gain.n_lost else DASH),
            )
        )
        row: dict[str, Raw] = {"arm": gain.arm}
        for name, ratio in (("equal", gain.equal), ("own", gain.own), ("due", gain.due)):
            row |= ends(ratio, f"multiplier_{name}") | {f"{name}_reason": ratio.reason}
        raw.append(
            row
            | {
                "p_holm": gain.p_holm,
                "verdict": gain.verdict or None,
                "n_sizes": gain.n_sizes,
                "n_same": gain.n_same,
                "n_lost": gain.n_lost,
            }
        )
    header = (
        *("arm", "at equal values", "at own best", "due to tuning", "Holm p", "verdict", "sizes"),
        "lost at equal",
    )
    caption = (
        "Multipliers in training FLOPs with 95% intervals: every arm at the baseline's values, and "
        "every arm at its own best, over the same sizes and seeds. Due to tuning: compute the arm "
        "needs at the baseline's values over that at its own best, paired with itself. "
        "Values were chosen by trials of a seed that is not among these, so luck in the choice "
        "does not flatter them; what another search would have chosen is not in the intervals. "
        "Holm p: over the arms whose values differ; a verdict needs it, too. Alike: sizes where "
        "both values are the same; a field that was searched for the arm alone keeps its value on "
        "both sides. Lost: runs at the baseline's values that diverged or failed."
    )
    return Table(
        "tuning_gain",
        "What tuning is worth",
        header,
        tuple(cells),
        tuple(raw),
        caption,
    )


def values_table(tuning: Tuning) -> Table:
    """Chosen values by arm and size, where they come from and whether they are interior."""
    paths = list(tuning.tuned.searched)
    noted = any(at.chosen.notes for at in tuning.cells)
    counts = Counter((trial.arm, trial.size) for trial in tuning.trials)
    cells = tuple(
        (
            Cell(at.arm),
            Cell(at.size),
            *(_value_cell(at, path) for path in paths),
            Cell(at.chosen.by),
            Cell(str(counts[at.arm, at.size] or at.chosen.trials or DASH)),
            Cell(number(at.chosen.loss_nats, ".4f")),
            Cell(_inside(at)),
            *[Cell("; ".join(at.chosen.notes) or DASH)] * noted,
        )
        for at in tuning.cells
    )
    raw: list[dict[str, Raw]] = []
    for at in tuning.cells:
        row: dict[str, Raw] = {"arm": at.arm, "size": at.size, "flops": at.chosen.flops}
        row |= {path: _raw(at.chosen.values.get(path)) for path in paths}
        row |= {
            "by": at.chosen.by,
            "trials": at.chosen.trials,
            "loss_nats": at.chosen.loss_nats,
            "at_edge": " ".join(at.at_edge),
            "notes": "; ".join(at.chosen.notes),
        }
        raw.append(row)
    header = ("arm", "size", *map(_short, paths), "by", "trials", "best loss", "optimum")
    header += ("notes",) * noted
    caption = (
        "Best loss: of the trials, nats per token, one seed that no fit uses; the best of several, "
        "so it flatters. Interior: worse values were tried on both sides of the best."
    )
    return Table("tuned_values", "Tuned values", header, cells, tuple(raw), caption)


def _value_cell(at: ChosenCell, path: str) -> Cell:
    value = at.chosen.values.get(path)
    if value is None:
        return Cell(DASH)
    return Cell(_text(value))


def _inside(at: ChosenCell) -> str:
    if at.chosen.by == "transfer":
        return "not searched"
    if at.at_edge:
        return f"at the edge: {', '.join(map(_short, at.at_edge))}"
    return "interior" if at.chosen.interior else DASH


def laws_table(tuning: Tuning) -> Table:
    """Laws of transfer with the interval of their exponent and how far they were used."""
    cells = tuple(
        (
            Cell(at.law.arm),
            Cell(_short(at.law.path)),
            Cell(f"{compact(at.law.coefficient)} {'C' if at.law.over == 'flops' else 'N'}^x"),
            _exponent_cell(at),
            Cell(str(len(at.law.x))),
            Cell(f"{compact(min(at.law.x))} to {compact(max(at.law.x))}"),
            Cell(f"{at.beyond:.3g}x" if at.beyond is not None else DASH),
        )
        for at in tuning.laws
    )
    raw = tuple(_law_raw(at) for at in tuning.laws)
    header = ("arm", "value", "law", "exponent x", "sizes", "searched from", "used up to")
    caption = (
        "Power laws of the best value over the searched sizes, one per arm; C: training FLOPs, N: "
        "parameters; 95% interval of the exponent, none below three sizes. Used up to: largest "
        "size that took its value from the law, over the largest searched one."
    )
    return Table("tuning_laws", "Laws of transfer", header, cells, raw, caption)


def _exponent_cell(at: LawReach) -> Cell:
    found = at.law.exponent_interval
    detail = "[no interval]" if found is None else f"[{found[0]:.3g}, {found[1]:.3g}]"
    return Cell(f"{at.law.exponent:.3g}", detail)


def _law_raw(at: LawReach) -> dict[str, Raw]:
    low, high = at.law.exponent_interval or (None, None)
    return {
        "arm": at.law.arm,
        "path": at.law.path,
        "over": at.law.over,
        "coefficient": at.law.coefficient,
        "exponent": at.law.exponent,
        "exponent_low": low,
        "exponent_high": high,
        "n_sizes": len(at.law.x),
        "searched_from": min(at.law.x),
        "searched_to": max(at.law.x),
        "used_up_to": max(at.used_at, default=None),
        "notes": "; ".join(at.law.notes),
    }


def stopped_table(tuning: Tuning) -> Table:
    """Trials that were stopped early, diverged or failed: when and why."""
    lost = [trial for kind in _LOST for trial in tuning.trials if trial.outcome == kind]
    cells = tuple(
        (
            Cell(trial.arm),
            Cell(trial.size),
            Cell(_all(trial.values)),
            Cell(trial.outcome),
            Cell(_when(trial)),
            Cell(trial.why or DASH),
        )
        for trial in lost
    )
    raw: list[dict[str, Raw]] = [
        {
            "run_id": trial.run_id,
            "arm": trial.arm,
            "size": trial.size,
            "values": json.dumps(trial.values, sort_keys=True),
            "outcome": trial.outcome,
            "last_step": trial.last_step,
            "steps": trial.steps,
            "why": trial.why,
        }
        for trial in lost
    ]
    header = ("arm", "size", "values", "outcome", "after step", "why")
    caption = (
        "Only trials of the search are ever stopped before their budget, never a run that enters "
        "a fit."
    )
    return Table("tuning_lost", "Trials without a final loss", header, cells, tuple(raw), caption)


def _when(trial: Trial) -> str:
    if trial.last_step is None:
        return DASH
    return f"{trial.last_step} of {trial.steps}" if trial.steps else str(trial.last_step)


def _all(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{_short(path)} {_text(value)}" for path, value in values.items())


def _short(path: str) -> str:
    """A field without its section, where that is ``train``."""
    return path.removeprefix("train.")


def _text(value: Any) -> str:
    return compact(value) if isinstance(value, float) else str(value)


def _raw(value: Any) -> Raw:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)
