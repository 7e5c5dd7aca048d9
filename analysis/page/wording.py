"""Findings in words: the headline, what cannot be computed yet, and the conventions.

Pure; every number in a sentence stands with its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.cells import CURRENCIES, FLOPS
from analysis.collect import compact, usable
from analysis.compare.pairwise import PairwiseTest, pairwise_sentence
from analysis.compare.shown import ratio_text
from analysis.compare.types import Multiplier
from analysis.fit.shared import SharedFit
from analysis.page.numerals import estimate_texts
from analysis.page.probe_wording import cannot_tell, probe_headline
from analysis.page.sweep_tables import column
from analysis.study import Analysis

MAX_TIMING_SPREAD = 1.25
"""Ratio of step times of equal runs above which the machine counts as disturbed (our choice)."""

_PAIRS_NAMED = 4
"""Pairs that the headline names; more are counted."""


def counts_sentence(runs: pd.DataFrame) -> str:
    """Say how many runs were used: ``21 of 24 runs used; 3 excluded, each with its reason.``."""
    n_used, n_all = len(usable(runs)), len(runs)
    if n_used == n_all:
        return f"{n_used} of {n_all} runs used."
    return f"{n_used} of {n_all} runs used; {n_all - n_used} excluded, each with its reason."


def headline(multipliers: Sequence[Multiplier], baseline: str) -> str:
    """What the sweep found, in one paragraph; never a number without its interval."""
    groups = {
        verdict: [m for m in multipliers if m.verdict == verdict]
        for verdict in ("better", "worse", "no difference found", "undefined")
    }
    parts = []
    for verdict, word in (("better", "more"), ("worse", "fewer")):
        if groups[verdict]:
            listed = "; ".join(_named(m) for m in _strongest(groups[verdict]))
            parts.append(
                f"For the same loss, {baseline} needs {word} training FLOPs than "
                f"{_names(groups[verdict])} (multiplier and 95% interval: {listed})."
            )
    if groups["no difference found"]:
        listed = "; ".join(_named(m) for m in groups["no difference found"])
        parts.append(
            f"No difference from {baseline} found, after Holm's correction over arms, for {listed} "
            "(95% intervals before correction)."
        )
    for reason in dict.fromkeys(_reason(m) for m in groups["undefined"]):
        same = [m for m in groups["undefined"] if _reason(m) == reason]
        parts.append(f"No verdict ({reason}): {', '.join(_point(m) for m in same)}.")
    if not parts:
        return f"No multiplier: no arm besides {baseline} has a usable run."
    return " ".join(parts)


def study_headline(found: Analysis) -> str:
    """What the study found, or why nothing is compared."""
    if found.probes is not None:
        return probe_headline(found.probes)
    if found.refusal:
        return f"No multiplier: {found.refusal}."
    if found.runs["arm"].nunique() == 1:
        return single_headline(found)
    said = headline(found.comparisons.get(FLOPS.name, ()), found.baseline)
    if isinstance(found.pairwise, str) or len(found.comparisons.get(FLOPS.name, ())) < 2:
        return said
    return f"{said} {separated_sentence(found.pairwise)}".strip()


def single_headline(found: Analysis) -> str:
    """What the laws of one arm say; there is nothing to compare it with."""
    parts: list[str] = []
    for comparison in found.isoflop.values():
        laws = () if isinstance(comparison, str) else comparison.fits.items()
        for method, fit in laws:
            if fit.n_law is not None and not parts:
                a = " ".join(estimate_texts(fit.n_law.parameters["a"], ".3g"))
                parts.append(f"The best size grows as C^a with a = {a} (minima by {method}).")
    if not isinstance(found.joint, str):
        names = [name for name in ("E", "alpha", "beta") if name in found.joint.parameters]
        at = [f"{n} = {' '.join(estimate_texts(found.joint.parameters[n], '.3g'))}" for n in names]
        doubts = dict.fromkeys(note.partition(":")[0] for note in found.joint.notes)
        doubted = f" (doubts: {', '.join(doubts)})" if doubts else ""
        parts.append(f"{found.joint.law}: {', '.join(at)}{doubted}.")
    law = found.laws[FLOPS.name]
    if not parts and not isinstance(law, str):
        alpha = " ".join(estimate_texts(law.exponent, ".3g"))
        parts.append(f"{law.law}: alpha = {alpha}, E pinned at {law.asymptote:g} nats.")
    return " ".join(["One arm, so nothing is compared.", *parts])


def separated_sentence(tests: Sequence[PairwiseTest], level: float = 0.95) -> str:
    """Which variants separate, in one line however many: a long list becomes a count."""
    tested = [test for test in tests if test.p_holm is not None]
    same = [test for test in tested if (test.p_holm or 0.0) >= 1 - level]
    n, n_apart = len(tested), len(tested) - len(same)
    if n_apart <= _PAIRS_NAMED:
        return pairwise_sentence(tests, level)
    if not same:
        return f"All {n} pairs of variants differ from each other after Holm's correction."
    said = f"{n_apart} of {n} pairs of variants differ after Holm's correction"
    if len(same) > _PAIRS_NAMED:
        return f"{said}; see the table of pairs."
    return f"{said}; not told apart: {'; '.join(f'{at.first} and {at.second}' for at in same)}."


def convention_sentence(text: str) -> str:
    """How compute was counted, as a full sentence whatever the table's owner wrote."""
    text = text.strip()
    text = text if text.endswith(".") else f"{text}."
    return text if text.startswith("FLOPs") else f"Compute: {text}"


def statuses_text(runs: pd.DataFrame) -> str:
    """How many runs have which status: ``46 done, 2 failed``."""
    return ", ".join(f"{n} {status}" for status, n in runs["status"].value_counts().items())


def entropy_sentences(runs: pd.DataFrame, entropies: Mapping[str, float]) -> list[str]:
    """Compare the losses with what a model without context would reach."""
    losses = usable(runs)["loss_nats"]
    if not entropies or losses.empty:
        return []
    stated = ", ".join(f"{nats:.4f} nats per token ({name})" for name, nats in entropies.items())
    return [
        f"Unigram entropy of the corpus: {stated}; final losses lie between "
        f"{losses.min():.4f} and {losses.max():.4f}."
    ]


def method_sentences(multipliers: Sequence[Multiplier], asymptote: float) -> list[str]:
    """How the headline's numbers were made and how far they reach."""
    if not multipliers:
        return []
    tested = [m for m in multipliers if m.p_holm is not None]
    sentences = [
        "Multiplier = baseline compute over the arm's compute at equal loss; above 1 the arm is "
        f"cheaper. Power law with a shared exponent, E pinned at {asymptote:g} nats; paired by "
        "configuration and seed, one value per size; 95% Fieller interval, n - 1 degrees of "
        "freedom."
    ]
    if tested:
        sizes = sorted({m.n_sizes for m in tested})
        n = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        lows, highs = zip(*[m.domain for m in tested if m.domain], strict=True)
        sentences.append(
            f"n = {n} sizes from {compact(min(lows))} to {compact(max(highs))} training FLOPs. "
            f"Verdicts are Holm-corrected over {len(tested)} "
            f"{'arm' if len(tested) == 1 else 'arms'}; the intervals are not."
        )
    sentences += extrapolation_sentences(multipliers)
    moving = [m.arm for m in multipliers if m.slope_difference.excludes(0.0)]
    if moving:
        sentences.append(
            f"The exponent of {', '.join(moving)} differs from the baseline's: there the "
            "multiplier changes with compute and one number hides it; see the table by size."
        )
    return sentences


def extrapolation_sentences(multipliers: Sequence[Multiplier]) -> list[str]:
    """Say at which sizes an arm's loss lies outside what the baseline was measured at."""
    by_sizes: dict[tuple[str, ...], list[str]] = {}
    for m in multipliers:
        if m.extrapolated_at:
            by_sizes.setdefault(m.extrapolated_at, []).append(m.arm)
    if not by_sizes:
        return []
    listed = "; ".join(f"{', '.join(arms)} at {', '.join(at)}" for at, arms in by_sizes.items())
    return [f"Outside the measured losses of the baseline, where the law extrapolates: {listed}."]


def timing_sentences(used: pd.DataFrame) -> list[str]:
    """Warn when wall-clock compares different machines, or one that was busy with other work."""
    sentences = []
    kinds = column(used, "hardware").dropna().nunique()
    if kinds > 1:
        sentences.append(
            f"The runs were timed on {kinds} kinds of machine: read wall-clock with care."
        )
    step_time = column(used, "step_time_s").astype(float)
    by_cell = step_time.groupby(used["cell"])
    spread = (by_cell.max() / by_cell.min()).max()
    if spread > MAX_TIMING_SPREAD:
        sentences.append(
            f"Step times of runs that differ by seed alone differ up to {spread:.1f}-fold: the "
            "machine had other work, and wall-clock columns are no measure of the variants."
        )
    return sentences


def shared_rate_sentences(found: Analysis) -> list[str]:
    """Say that all arms were trained at one learning rate, none searched for an arm."""
    used = usable(found.runs)
    rates = column(used, "lr").astype(float)
    if used["arm"].nunique() < 2 or rates.isna().any() or rates.nunique() != 1:
        return []
    return [
        f"All arms share one learning rate, {rates.iloc[0]:g}: none was searched for an arm, so a "
        "difference may be one of tuning."
    ]


def law_sentence(law: SharedFit | str) -> str:
    """What the lines of the loss figure are, or why there are none."""
    if isinstance(law, str):
        return f"No law fitted: {law}."
    alpha = law.exponent
    ends = f"[{alpha.low:.3g}, {alpha.high:.3g}]" if alpha.bounded else "[no interval]"
    notes = "".join(f" Note: {note}." for note in law.notes)
    return (
        f"Lines: {law.law}, one exponent for all arms, alpha = {alpha.estimate:.3g} {ends}, E "
        f"pinned at {law.asymptote:g}; {law.n_points} points, residual {law.rms_nats:.2g} nats. "
        f"Small dots: single runs.{notes}"
    )


def cannot_sentences(found: Analysis) -> tuple[str, ...]:
    """What could not be computed and why, equal reasons told once."""
    if found.probes is not None:
        return cannot_tell(found.runs)
    laws, comparisons = found.laws, found.comparisons
    labels = {currency.name: currency.label for currency in CURRENCIES}
    refused: dict[str, list[str]] = {}
    for name, law in laws.items():
        # A currency that no run recorded is no failure of ours.
        if isinstance(law, str) and name in comparisons:
            refused.setdefault(law, []).append(labels[name])
    missing: dict[tuple[str, str], list[str]] = {}
    for name, multipliers in comparisons.items():
        for m in multipliers:
            if m.ratio.reason:
                missing.setdefault((m.arm, m.ratio.reason), []).append(labels[name])
    together: dict[tuple[str, str], list[str]] = {}
    for (arm, why), currencies in missing.items():
        where = "" if len(currencies) == len(labels) else f" in {', '.join(currencies)}"
        together.setdefault((where, why), []).append(arm)
    return (
        *(f"Law in {', '.join(names)}: {why}." for why, names in refused.items()),
        *(f"Multiplier of {', '.join(a)}{where}: {why}." for (where, why), a in together.items()),
    )


def _reason(multiplier: Multiplier) -> str:
    return multiplier.ratio.reason or "no interval"


def _point(multiplier: Multiplier) -> str:
    value = multiplier.ratio.estimate
    return multiplier.arm if value is None else f"{multiplier.arm} {value:.2f}"


def _named(multiplier: Multiplier) -> str:
    ratio = multiplier.ratio
    if ratio.low is None or ratio.high is None:
        return f"{multiplier.arm} (no interval)"
    return f"{multiplier.arm} {ratio_text(multiplier)}"


def _strongest(multipliers: Sequence[Multiplier]) -> list[Multiplier]:
    return sorted(multipliers, key=lambda m: -abs((m.ratio.estimate or 1.0) - 1.0))


def _names(multipliers: Sequence[Multiplier]) -> str:
    names = [m.arm for m in _strongest(multipliers)]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
