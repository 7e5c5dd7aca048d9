"""What the page says of a search: its section, sentences for the top and for the methods. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.page.layout import Block, Section, table_block
from analysis.page.numerals import listed, ratio_text
from analysis.page.table import Table
from analysis.tuning.types import OUTCOMES, Tuning

_METHODS = {
    "bracket": "a bracket that is extended until worse values stand on both sides",
    "tpe": "Optuna's tree-structured Parzen estimator",
    "random": "random search",
    "cmaes": "CMA-ES",
}
_MAX_LOST_SHOWN = 12


def tuning_section(
    tuning: Tuning, tables: Sequence[Table], figures: Sequence[Block], folded: Sequence[Block]
) -> Section:
    """What was searched, what it is worth, and what to doubt."""
    by_name = {table.name: table for table in tables}
    blocks = []
    if "tuning_gain" in by_name:
        blocks.append(table_block(by_name["tuning_gain"]))
    blocks += figures
    for name in ("tuned_values", "tuning_laws", "tuning_lost"):
        if name in by_name:
            table = by_name[name]
            long = name != "tuning_laws" and len(table.raw) > _MAX_LOST_SHOWN
            blocks.append(table_block(table, folded=f"{len(table.raw)} rows" if long else ""))
    notes = (search_sentence(tuning), optima_sentence(tuning), gain_sentence(tuning))
    said = tuple(note for note in (*notes, *tuning.doubts) if note)
    return Section(title="Tuning", notes=said, blocks=(*blocks, *folded))


def tuning_sentences(tuning: Tuning) -> list[str]:
    """For the top of the page: what was searched, what it changes, what to doubt."""
    said = [search_sentence(tuning), optima_sentence(tuning), gain_sentence(tuning)]
    return [text for text in (*said, *tuning.doubts) if text]


def search_sentence(tuning: Tuning) -> str:
    """What was searched, how, with which seed, in how many trials and how these ended."""
    tuned = tuning.tuned
    counts = {outcome: tuning.count(outcome) for outcome in OUTCOMES}
    ended = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
    searched = sum(cell.chosen.by == "search" for cell in tuning.cells)
    where = f"{searched} of {len(tuning.cells)}" if searched < len(tuning.cells) else f"{searched}"
    pairs = "pair" if where == "1" else "pairs"
    return (
        f"Searched for each arm and size: {listed(list(tuned.searched))}, by "
        f"{_METHODS.get(tuned.method, tuned.method)} (Optuna {tuned.optuna}, seed {tuned.seed}, "
        f"which no fit uses); {len(tuning.trials)} trials at {where} {pairs} of arm and size"
        f"{f': {ended}' if ended else ''}."
    )


def optima_sentence(tuning: Tuning) -> str:
    """Whether every optimum is interior; empty where no number was searched."""
    judged = [cell for cell in tuning.cells if cell.chosen.interior]
    at_edge = sum(bool(cell.at_edge) for cell in judged)
    if not judged:
        return ""
    if not at_edge:
        return "Every searched optimum is interior: worse values were tried on both sides."
    return f"{len(judged) - at_edge} of {len(judged)} optima are interior."


def gain_sentence(tuning: Tuning) -> str:
    """Arms whose tuning changes the multiplier; that there is none, where none was found."""
    known = [gain for gain in tuning.gains if gain.verdict]
    if not known:
        return ""
    parts = []
    for verdict, words in (
        ("tuning helps", "Due to tuning alone an arm needs less compute"),
        ("tuning hurts", "At its own values an arm needs more compute than at the baseline's"),
    ):
        named = [f"{gain.arm} {ratio_text(gain.due)}" for gain in known if gain.verdict == verdict]
        if named:
            parts.append(
                f"{words} (compute at the baseline's values over that at its own, 95% interval): "
                f"{'; '.join(named)}."
            )
    rest = [gain.arm for gain in known if gain.verdict == "no gain found"]
    if rest:
        parts.append(
            "No difference between the baseline's values and the arm's own best found for "
            f"{listed(rest)}."
        )
    if any(gain.p_holm is not None for gain in known):
        parts.append("These verdicts are Holm-corrected over the arms whose values differ.")
    return " ".join(parts)


def tuned_for(tuning: Tuning) -> str:
    """The run card's answer: which values were tuned for whom, at which sizes."""
    searched = [cell for cell in tuning.cells if cell.chosen.by == "search"]
    transferred = len(tuning.cells) - len(searched)
    arms = len({cell.arm for cell in tuning.cells})
    text = (
        f"{listed(list(tuning.tuned.searched))} for each of {arms} arms at each size, by "
        f"{tuning.tuned.method}, seed {tuning.tuned.seed}, {len(tuning.trials)} trials"
    )
    if transferred:
        text += f"; {transferred} of {len(tuning.cells)} by a law over smaller sizes"
    at_edge = sum(bool(cell.at_edge) for cell in tuning.cells)
    return text + (f"; {at_edge} optima at the edge" if at_edge else "; all optima interior")


def methods_sentence(tuning: Tuning) -> str:
    """For the paragraph of a paper."""
    transferred = sum(cell.chosen.by == "transfer" for cell in tuning.cells)
    carried = ""
    if transferred:
        carried = (
            f"; {transferred} of {len(tuning.cells)} values were carried to other sizes by a "
            "power law per arm, flat where the searched sizes show no trend"
        )
    return (
        f"Hyperparameters ({listed(list(tuning.tuned.searched))}) were tuned for each arm and size "
        f"by {_METHODS.get(tuning.tuned.method, tuning.tuned.method)} on a seed of its own "
        f"({len(tuning.trials)} trials){carried}."
    )
