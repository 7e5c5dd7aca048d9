"""What a sweep of depth probes found, in words; every difference stands with its interval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.figures.probe_curves import layers
from analysis.page.facts import Facts, excluded_text, libraries, software
from analysis.page.numerals import listed, percent
from analysis.page.probe_tables import has_failed, points_texts
from analysis.probes.types import (
    CONTROLS,
    PASSED,
    SOLVED,
    Comparison,
    Probe,
    ProbeCell,
    Probes,
    TuningShare,
)

_NAMED = 6
"""Arms that one sentence names; more are counted."""


def probe_headline(probes: Probes) -> str:
    """What depth can compute, and which arms differ."""
    said = [sentence for probe in probes.items for sentence in _found(probe, probes.level)]
    return " ".join(said) or "No run of a generated task is planned."


def _found(probe: Probe, level: float) -> Iterator[str]:
    if probe.is_control:
        yield control_sentence(probe)
        return
    yield solved_sentence(probe)
    yield from difference_sentences(probe, level)
    yield from tuning_sentences(probe, level)


def solved_sentence(probe: Probe) -> str:
    """Say how far the baseline gets: ``standard solves length 3.3 and 8.7 at 1 and 8 layers``."""
    cells = [(cell.depth, at) for cell in probe.of_arm(probe.baseline) if (at := cell.solved)]
    if not cells:
        return f"{probe.label}: no usable run of {probe.baseline}."
    values = listed([f"{at.mean:.1f}" for _, at in cells], 12)
    depths = listed([str(depth) for depth, _ in cells], 12)
    n = sorted({at.n for _, at in cells})
    seeds = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
    return (
        f"{probe.label}: {probe.baseline} solves {probe.graded_by} {values} at {depths} "
        f"{'layer' if depths == '1' else 'layers'} (largest up to which every one is at "
        f"{SOLVED:.0%} or more; mean over {seeds} {'seed' if n[-1] == 1 else 'seeds'})."
    )


def difference_sentences(probe: Probe, level: float = 0.95) -> Iterator[str]:
    """Arms that differ in accuracy over depths, and those of which no difference was found."""
    for verdict, words in (("better", "more accurate"), ("worse", "less accurate")):
        found = _named(probe.pooled, verdict)
        if found:
            yield (
                f"Over depths {words} than {probe.baseline}, in points with {percent(level)} "
                f"interval: {'; '.join(f'{at.arm} {_points(at)}' for at in found)}."
            )
    same = _named(probe.pooled, "no difference found")
    n = sum(at.accuracy.p_holm is not None for at in probe.pooled)
    alone = [at for at in same if at.accuracy.interval.excludes(0.0)]
    if alone:
        yield (
            f"Interval without 0, yet no verdict after Holm's correction over {n} arms: "
            f"{_few([_corrected(at) for at in alone])}."
        )
    rest = [f"{at.arm} {_points(at)}" for at in same if at not in alone]
    if rest:
        yield f"No difference from {probe.baseline} found for {_few(rest)}."
    reasons: dict[str, list[str]] = {}
    for at in (at for at in probe.pooled if at.accuracy.verdict == "no verdict"):
        reasons.setdefault(at.accuracy.interval.reason or "no interval", []).append(at.arm)
    for reason, arms in reasons.items():
        yield f"No verdict ({reason}): {listed(arms)}."


def _corrected(found: Comparison) -> str:
    return f"{found.arm} {_points(found)} (Holm p {found.accuracy.p_holm:.2g})"


def _few(texts: Sequence[str]) -> str:
    """The first ones; the others are counted."""
    more = f"; {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return "; ".join(texts[:_NAMED]) + more


def control_sentence(probe: Probe) -> str:
    """Which arms fail a control at a depth that suffices for it, and where runs have yet to end.

    A run that diverged or failed has not passed.
    """
    enough = CONTROLS[probe.task]
    cells = [cell for cell in probe.cells if cell.depth >= enough]
    if not cells:
        return f"Control {probe.label}: no run has the {layers(enough)} that it needs."
    asked = f"{PASSED:.0%} or more in every seed at {layers(enough)} or more"
    failed = [_failure(cell) for cell in cells if has_failed(cell)]
    waiting = [
        f"{cell.arm} at {layers(cell.depth)} ({len(cell.runs)} of {cell.n_planned} runs)"
        for cell in cells
        if cell.is_waiting
    ]
    if not failed and not any(cell.runs for cell in cells):
        return f"Control {probe.label} ({asked}): not run yet."
    said = "passed so far" if waiting else "passed by every arm"
    said = f"not passed by {listed(failed)}" if failed else said
    missing = f"; not complete: {listed(waiting)}" if waiting else ""
    return f"Control {probe.label} ({asked}): {said}{missing}."


def _failure(cell: ProbeCell) -> str:
    """``delta at 8 layers (least 97.0%, 1 of 3 runs diverged)``."""
    at = cell.accuracy
    least = [f"least {at.low:.1%}"] if at and at.low < PASSED else []
    lost = [f"{n} of {cell.n_planned} runs {status}" for status, n in cell.ended_badly]
    return f"{cell.arm} at {layers(cell.depth)} ({', '.join([*least, *lost])})"


def tuning_sentences(probe: Probe, level: float = 0.95) -> Iterator[str]:
    """What tuning makes of the differences, for arms whose values are not the baseline's."""
    shares = [share for share in probe.tuning if share.n_same < share.n_runs]
    if not shares:
        return
    order = sorted(shares, key=lambda share: -abs(share.due.accuracy.interval.estimate or 0.0))
    yield (
        f"Accuracy against {probe.baseline} at the baseline's values, at own best ones, and the "
        f"part due to tuning, in points with {percent(level)} intervals: "
        f"{_few([_tuning_text(share) for share in order])}."
    )


def _tuning_text(share: TuningShare) -> str:
    return (
        f"{share.arm} {_points(share.equal)} at equal values, {_points(share.own)} at own best, "
        f"{_points(share.due)} due to tuning"
    )


def lost_sentence(probe: Probe) -> str:
    """Which arms miss runs; empty where all are used."""
    by_arm: dict[str, dict[str, int]] = {}
    for cell in probe.cells:
        for status, n in cell.lost:
            counts = by_arm.setdefault(cell.arm, {})
            counts[status] = counts.get(status, 0) + n
    if not by_arm:
        return ""
    texts = [
        f"{arm} ({', '.join(f'{n} {status}' for status, n in counts.items())})"
        for arm, counts in by_arm.items()
    ]
    unstable = any(
        status in ("diverged", "failed") for counts in by_arm.values() for status in counts
    )
    flatters = " An arm's means leave out its lost runs, which flatters it." if unstable else ""
    return f"Runs that are not in these numbers: {listed(texts)}.{flatters}"


def method_sentences(probes: Probes) -> list[str]:
    """How the numbers were made and how far they reach."""
    seeds = sorted({len(at.seeds) for probe in probes.items for at in probe.pooled if at.seeds})
    if not seeds:
        return []
    n = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return [
        "Accuracy: share of the labels of a fixed validation set that the likeliest token gives. "
        f"Differences are paired by depth, settings and seed and averaged over depths; n = {n} "
        f"seeds, {percent(probes.level)} Student t intervals. Verdicts are Holm-corrected over the "
        "arms; the intervals are not."
    ]


def cannot_tell(runs: pd.DataFrame) -> tuple[str, ...]:
    """What a sweep of tasks leaves out."""
    n = int(runs["task"].isna().sum())
    if not n:
        return ()
    return (
        f"Laws and multipliers of {n} {'run' if n == 1 else 'runs'} on text: the sweep holds "
        "generated tasks, too; give text a sweep of its own.",
    )


def probe_methods(probes: Probes, facts: Facts) -> str:
    """The paragraph for a paper."""
    tasks = [probe.label for probe in probes.items]
    depths = sorted({depth for probe in probes.items for depth in probe.depths})
    arms = list(dict.fromkeys(arm for probe in probes.items for arm in probe.arms))
    seeds = ""
    if facts.seeds:
        low, high = facts.seeds
        seeds = f", {low if low == high else f'{low} to {high}'} seed{'s' * (high > 1)} each"
    sentences = [
        f"We trained {len(arms)} residual {'variant' if len(arms) == 1 else 'variants'} "
        f"({listed(arms, 14)}) at {listed([str(depth) for depth in depths], 14)} layers on "
        f"generated tasks ({listed(tasks)}){seeds}.",
        f"{facts.n_used} of {facts.n_runs} runs were used; {excluded_text(facts)}.",
        *method_sentences(probes),
        f"A level of difficulty counts as solved at an accuracy of {SOLVED:.0%}.",
        f"Computed with {software()} ({libraries()}).",
    ]
    return " ".join(sentences)


def _named(comparisons: Sequence[Comparison], verdict: str) -> list[Comparison]:
    """Those with a verdict in accuracy, the largest difference first."""
    found = [at for at in comparisons if at.accuracy.verdict == verdict]
    return sorted(found, key=lambda at: -abs(at.accuracy.interval.estimate or 0.0))


def _points(found: Comparison) -> str:
    return " ".join(points_texts(found.accuracy.interval)).strip()
