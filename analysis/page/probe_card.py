"""The parts of the run card that a sweep of depth probes has in place of laws. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.page.facts import Facts, distinct, excluded_text, libraries, software
from analysis.page.numerals import listed, percent
from analysis.probes.differences import METHOD
from analysis.probes.types import CONTROLS, PASSED, SOLVED, Probes

Entries = Iterator[tuple[str, str]]


def measures(probes: Probes, runs: pd.DataFrame, facts: Facts) -> Entries:
    """What was measured, on what, of which runs."""
    graded = {probe.task: probe.graded_by for probe in probes.items}
    yield "Tasks", listed([probe.label for probe in probes.items], 12)
    yield "Graded by", ", ".join(f"{name} of {task}" for task, name in graded.items())
    yield "Metric", "accuracy: share of validation labels that the likeliest token gives"
    yield "Solved", f"largest level up to which every one is at {SOLVED:.0%} or more"
    controls = [task for task in graded if task in CONTROLS]
    yield "Controls", ", ".join(f"{task}, passed at {PASSED:.0%}" for task in controls) or "none"
    yield "Evaluation set", ", ".join(f"{n} tokens" for n in distinct(runs, "eval_tokens"))
    yield "Checkpoints per run", "1, the last, at the end of the schedule" if facts.n_used else ""
    yield "Exclusions", excluded_text(facts)


def comparison(probes: Probes) -> Entries:
    """How arms were compared."""
    compared = [at for probe in probes.items for at in probe.pooled if at.seeds]
    yield "Compared quantity", "accuracy and solved level minus the baseline's"
    yield "Pairing", "by depth, settings and seed; each seed averaged over depths first"
    yield "Replicates", f"{span_of([len(at.seeds) for at in compared])} seeds" if compared else ""
    yield "Intervals", f"{percent(probes.level)} {METHOD}" if compared else ""
    tested = [sum(at.accuracy.p_holm is not None for at in probe.pooled) for probe in probes.items]
    n = [count for count in tested if count]
    yield (
        "Correction for several arms",
        f"Holm over {span_of(n)}, per task and measure" if n else "",
    )
    yield "Software", f"{software()} ({libraries()})"


def span_of(values: list[int]) -> str:
    """``3``, or ``2 to 3``."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
