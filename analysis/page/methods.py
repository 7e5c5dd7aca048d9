"""The methods paragraph of a study: what was really computed, ready to be pasted into a paper.

Each sentence is built from a result; what was refused or not computed has no sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.cells import FLOPS
from analysis.compare.types import Multiplier
from analysis.fit.shared import SharedFit
from analysis.page.facts import Facts, excluded_text, facts_of, libraries, software, span
from analysis.page.numerals import estimate_texts, listed, percent
from analysis.page.probe_wording import probe_methods
from analysis.page.tuning_section import methods_sentence
from analysis.page.wording import convention_sentence
from analysis.study import Analysis
from analysis.tuning.types import Tuning


def methods_paragraph(found: Analysis, tuning: Tuning | None = None) -> str:
    """Say how the numbers of a study were made, in full sentences."""
    facts = facts_of(found)
    if found.probes is not None:
        said = methods_sentence(tuning) if tuning else ""
        return f"{probe_methods(found.probes, facts)} {said}".strip()
    multipliers = found.comparisons.get(FLOPS.name, ())
    sentences = [
        *_design(found, facts),
        methods_sentence(tuning) if tuning else "",
        *_law(found.laws[FLOPS.name]),
        *_comparison(multipliers, found),
        *_checks(found),
        convention_sentence(found.flop_convention),
        f"Computed with {software()} ({libraries()}).",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _design(found: Analysis, facts: Facts) -> list[str]:
    if not facts.n_used:
        return [f"None of {facts.n_runs} runs could be used; {excluded_text(facts)}."]
    base = "the baseline" if found.baseline == "baseline" else f"the baseline {found.baseline}"
    what = f"We trained {base}" if facts.arms else "We studied one arm"
    if facts.arms:
        kind = "variant" if len(facts.arms) == 1 else "variants"
        what = f"We compared {len(facts.arms)} {kind} ({listed(list(facts.arms))}) with {base}"
    sizes = f"at {len(facts.sizes)} {'size' if len(facts.sizes) == 1 else 'sizes'}"
    if facts.flops:
        sizes += f" from {span(facts.flops, 'training FLOPs')}"
    seeds = ""
    if facts.seeds:
        low, high = facts.seeds
        seeds = f", {low if low == high else f'{low} to {high}'} "
        seeds += "seed each" if high == 1 else "seeds each"
    return [
        f"{what} {sizes}{seeds}.",
        f"{facts.n_used} of {facts.n_runs} runs were used; {excluded_text(facts)}.",
        "The loss is the final validation loss in nats per token; seeds were averaged before "
        "fitting, so that replicates never count as sizes.",
    ]


def _law(law: SharedFit | str) -> list[str]:
    if isinstance(law, str):
        return []
    alpha = " ".join(estimate_texts(law.exponent, ".3g"))
    return [
        f"We fitted {law.law} ({law.method}; E = {law.asymptote:g} nats, {law.n_points} points, "
        f"{law.n_levels} compute levels): alpha = {alpha}, residual {law.rms_nats:.2g} nats rms."
    ]


def _comparison(multipliers: Sequence[Multiplier], found: Analysis) -> list[str]:
    known = [m for m in multipliers if m.ratio.estimate is not None]
    if not known:
        return []
    paired = [m for m in known if m.paired]
    sentences = [
        "The iso-loss multiplier of a variant is the baseline's compute over the variant's at "
        f"equal loss, with a common exponent of both and E pinned at {found.asymptote:g} nats."
    ]
    if paired:
        sizes = sorted({m.n_sizes for m in paired})
        n = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        sentences.append(
            f"Runs were paired by configuration and seed, one value per size (n = {n} sizes)."
        )
    unpaired = [m for m in known if not m.paired]
    for text, group in (("Intervals", paired), ("Intervals of unpaired variants", unpaired)):
        methods = dict.fromkeys((m.ratio.level, m.ratio.method) for m in group if m.ratio.bounded)
        sentences += [f"{text} ({percent(level)}): {method}." for level, method in methods]
    tested = [m for m in known if m.p_holm is not None]
    if tested:
        family = "1 variant" if len(tested) == 1 else f"{len(tested)} variants"
        sentences.append(f"Verdicts use p-values of Holm's procedure over {family}.")
    wild = dict.fromkeys(m.wild.method for m in known if m.wild.bounded)
    sentences += [f"Checked by {method}." for method in wild if method not in _methods(known)]
    jointly = dict.fromkeys(m.simultaneous.method for m in known if m.simultaneous.bounded)
    sentences += [f"Family-wise: {method}." for method in jointly if method not in _methods(known)]
    return sentences


def _methods(multipliers: Sequence[Multiplier]) -> set[str]:
    return {m.ratio.method for m in multipliers}


def _checks(found: Analysis) -> list[str]:
    sentences = []
    if not isinstance(found.slopes, str):
        sentences.append(
            "A common exponent was tested against one per arm "
            f"(F = {found.slopes.f:.3g}, p = {found.slopes.p:.2g}; AICc prefers "
            f"{found.slopes.preferred} exponents)."
        )
    if not isinstance(found.noise, str):
        sd = " ".join(estimate_texts(found.noise.sd_nats, ".2g"))
        sentences.append(f"The standard deviation over replicate seeds is {sd} nats.")
    if not isinstance(found.joint, str):
        sentences.append(f"We also fitted {found.joint.law} ({found.joint.method}).")
    return sentences
