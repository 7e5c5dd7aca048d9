"""The run card of a study: what a reader needs to redo or to doubt a scaling law.

Questions after the four parts of the checklist of Li, Kudugunta and Zettlemoyer 2025,
"(Mis)Fitting: A Survey of Scaling Laws", arXiv 2502.18969 (form, training setup, data extraction,
fit algorithm), in our words. Every answer comes from the manifest, the records or the fits; what
none of them holds is ``not recorded``. Pure but for :func:`save_card`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.cells import CURRENCIES, FLOPS
from analysis.collect import usable
from analysis.fit.shared import SharedFit
from analysis.page.facts import (
    Facts,
    distinct,
    excluded_text,
    facts_of,
    flat,
    libraries,
    software,
    span,
)
from analysis.page.numerals import estimate_texts, listed, percent
from analysis.page.probe_card import comparison, measures
from analysis.page.sweep_tables import column
from analysis.page.tuning_section import tuned_for
from analysis.study import Analysis
from analysis.tuning.types import Tuning
from harness.records import Manifest, write_text_atomically

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class CardEntry:
    """One question with its answer."""

    question: str
    answer: str

    @property
    def recorded(self) -> bool:
        """The data at hand answers it."""
        return self.answer != NOT_RECORDED


@dataclass(frozen=True)
class CardPart:
    """One part of the checklist."""

    title: str
    entries: tuple[CardEntry, ...]


@dataclass(frozen=True)
class RunCard:
    """The card of one study."""

    study: str
    parts: tuple[CardPart, ...]

    @property
    def n_recorded(self) -> int:
        """Entries with an answer."""
        return sum(entry.recorded for part in self.parts for entry in part.entries)

    @property
    def n_entries(self) -> int:
        """All entries."""
        return sum(len(part.entries) for part in self.parts)


def run_card(
    found: Analysis,
    study: str,
    manifest: Manifest | None = None,
    tuning: Tuning | None = None,
) -> RunCard:
    """Fill the card of a study.

    Parameters
    ----------
    found
        What was computed.
    study
        Name of the sweep or of the table.
    manifest
        The plan, where the runs are ours.
    tuning
        The search of their values, where there was one.
    """
    facts = facts_of(found)
    parts: tuple[tuple[str, Entries], ...]
    setup = ("Training setup", _setup(found, facts, manifest, tuning))
    parts = (
        ("Form", _form(found)),
        setup,
        ("Data extraction", _extraction(found, facts)),
        ("Fit algorithm", _algorithm(found, tuning)),
    )
    if found.probes is not None:
        measured = ("Measures", measures(found.probes, found.runs, facts))
        parts = (measured, setup, ("Comparison", comparison(found.probes)))
    return RunCard(
        study,
        tuple(
            CardPart(title, tuple(CardEntry(q, a or NOT_RECORDED) for q, a in entries))
            for title, entries in parts
        ),
    )


def card_markdown(card: RunCard) -> str:
    """The card as a markdown list, one heading per part."""
    lines = [f"# Run card: {card.study}", ""]
    lines += [f"{card.n_recorded} of {card.n_entries} entries recorded.", ""]
    for part in card.parts:
        lines += [f"## {part.title}", ""]
        lines += [f"- **{entry.question}:** {entry.answer}" for entry in part.entries]
        lines.append("")
    return "\n".join(lines)


def card_json(card: RunCard) -> str:
    """The card by part and question; null for what is not recorded."""
    content = {
        "schema_version": 1,
        "study": card.study,
        "parts": {
            part.title: {e.question: e.answer if e.recorded else None for e in part.entries}
            for part in card.parts
        },
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def save_card(card: RunCard, folder: Path) -> None:
    """Write ``run_card.md`` and ``run_card.json``."""
    write_text_atomically(folder / "run_card.md", card_markdown(card))
    write_text_atomically(folder / "run_card.json", card_json(card))


Entries = Iterator[tuple[str, str]]


def _form(found: Analysis) -> Entries:
    law = found.laws[FLOPS.name]
    fitted = None if isinstance(law, str) else law
    yield "Law", fitted.law if fitted else f"none fitted: {law}"
    yield "Variables", "C: training FLOPs; L: final validation loss, nats per token"
    yield "Free parameters", _free(fitted) if fitted else ""
    yield "Fixed parameters", f"E = {found.asymptote:g} nats"
    yield "Further laws", "; ".join(_further(found))
    yield "Compared quantity", "iso-loss multiplier, baseline compute over the arm's at equal loss"
    yield "Currencies", ", ".join(currency.label for currency in CURRENCIES)


def _free(law: SharedFit) -> str:
    n = len(law.log_coefficients)
    alpha = " ".join(estimate_texts(law.exponent, ".4g"))
    return f"alpha, shared by the arms, = {alpha}; a coefficient for each of {n} arms"


def _further(found: Analysis) -> Iterator[str]:
    candidates = (found.joint, found.block_size, *found.surfaces.values())
    yield from dict.fromkeys(fit.law for fit in candidates if not isinstance(fit, str))
    if any(not isinstance(fit, str) for fit in found.isoflop.values()):
        yield "isoFLOP minima by parabola, cubic and Akima interpolation"


def _setup(
    found: Analysis, facts: Facts, manifest: Manifest | None, tuning: Tuning | None
) -> Entries:
    runs = found.runs
    arms = listed([found.baseline, *facts.arms], most=12) if facts.n_used else ""
    yield "Arms", f"{arms} (baseline {found.baseline})" if arms else ""
    yield "Runs", f"{facts.n_runs}, of which {facts.n_used} used"
    yield "Sizes", listed(list(facts.sizes), most=10) if facts.sizes else ""
    yield "Parameters", _present(span(facts.n_params))
    counted = "all parameters, embedding and head included" if manifest else ""
    yield "How parameters are counted", counted
    yield "Training tokens", _present(span(facts.tokens))
    yield "Tokens per parameter", _tokens_per_param(usable(runs))
    yield "Data", _said(runs, "corpus")
    yield "Data identity (sha256)", "; ".join(text[:16] for text in distinct(runs, "corpus_sha256"))
    yield "Data repeated within a run", ""
    yield "Training compute", _present(span(facts.flops, "FLOPs"))
    yield "How compute is counted", found.flop_convention
    yield "Seeds per cell", "" if not facts.seeds else span((facts.seeds[0], facts.seeds[1]))
    yield "Optimiser", _said(runs, "optimizer")
    yield "Learning rate", _rates(runs)
    yield "Schedule", _said(runs, "schedule")
    yield "Batch", _unit(_said(runs, "batch_tokens"), "tokens")
    yield "Hyperparameters tuned for", tuned_for(tuning) if tuning else _tuning(manifest)
    yield "Context", _unit(_said(runs, "seq_len"), "tokens")
    yield "Vocabulary", _unit(_said(runs, "vocab_size"), "tokens")
    yield "Precision", _said(runs, "precision")
    yield "Hardware", "; ".join(flat(text) for text in distinct(runs, "hardware"))
    yield "Training code", _said(runs, "code_version")


def _extraction(found: Analysis, facts: Facts) -> Entries:
    runs = found.runs
    yield "Metric", "final validation loss, nats per token"
    yield "Evaluation set", _unit(_said(runs, "eval_tokens"), "tokens of the corpus' held-out part")
    yield "Checkpoints per run", "1, the last, at the end of the schedule" if facts.sizes else ""
    yield "Changes to the metric", "seeds averaged per cell; none else"
    yield "Exclusions", excluded_text(facts)
    yield "Points fitted", _points(found)


def _algorithm(found: Analysis, tuning: Tuning | None) -> Entries:
    law = found.laws[FLOPS.name]
    fitted = None if isinstance(law, str) else law
    known = [m for m in found.comparisons.get(FLOPS.name, ()) if m.ratio.estimate is not None]
    yield "Objective and algorithm", fitted.method if fitted else ""
    yield "Initialisation", _starts(fitted) if fitted else ""
    yield "Convergence", _certificate(fitted) if fitted else ""
    yield "Intervals of the law", _interval_method(fitted) if fitted else ""
    methods = dict.fromkeys(f"{percent(m.ratio.level)} {m.ratio.method}" for m in known)
    yield "Intervals of the multipliers", "; ".join(methods)
    paired = [m for m in known if m.paired]
    yield "Pairing", _pairing(len(paired), len(known))
    tested = sum(m.p_holm is not None for m in known)
    yield "Correction for several arms", f"Holm over {tested}" if tested else ""
    yield "Goodness of fit", f"residual {fitted.rms_nats:.3g} nats rms" if fitted else ""
    noise = found.noise
    sd = "" if isinstance(noise, str) else " ".join(estimate_texts(noise.sd_nats, ".2g"))
    yield "Seed noise", f"{sd} nats" if sd else ""
    slopes = found.slopes
    yield "Test of a shared exponent", "" if isinstance(slopes, str) else slopes.text
    doubts = [*(fitted.notes if fitted else ()), *(tuning.doubts if tuning else ())]
    yield "Doubts", "; ".join(doubts) or "none" if fitted else ""
    yield "Data identity (sha256)", fitted.data_sha256 if fitted else ""
    yield "Software", f"{software()} ({libraries()})"


def _said(runs: pd.DataFrame, name: str) -> str:
    return ", ".join(distinct(runs, name))


def _present(text: str) -> str:
    return "" if text == "–" else text


def _unit(text: str, unit: str) -> str:
    return f"{text} {unit}" if text else ""


def _rates(runs: pd.DataFrame) -> str:
    rates = sorted(set(column(runs, "lr").dropna().astype(float)))
    shown = [f"{rate:g}" for rate in rates]
    return ", ".join(shown) if len(shown) <= 6 else f"{len(shown)} from {shown[0]} to {shown[-1]}"


def _tokens_per_param(used: pd.DataFrame) -> str:
    ratio = (column(used, "tokens").astype(float) / column(used, "n_params").astype(float)).dropna()
    return "" if ratio.empty else span((float(ratio.min()), float(ratio.max())))


def _tuning(manifest: Manifest | None) -> str:
    if manifest is None:
        return ""
    if any(line.startswith("tune:") for line in manifest.grid_text.splitlines()):
        return "the grid declares a search (tune:); these runs use the values shown"
    return "no search declared in the grid"


def _points(found: Analysis) -> str:
    law = found.laws[FLOPS.name]
    if isinstance(law, str):
        return ""
    return f"{law.n_points}, one per arm and size; {law.n_levels} compute levels"


def _starts(law: SharedFit) -> str:
    n = law.certificate.n_starts
    return (
        "none needed, closed form" if n == 1 else f"{n} starts, {law.certificate.n_agreeing} agree"
    )


def _certificate(law: SharedFit) -> str:
    problems = law.certificate.problems
    if problems:
        return f"NOT certified: {', '.join(problems)}"
    return f"certified minimum, relative gradient {law.certificate.gradient:.1e}"


def _interval_method(law: SharedFit) -> str:
    return f"{percent(law.exponent.level)} {law.exponent.method}" if law.exponent.bounded else ""


def _pairing(n_paired: int, n_known: int) -> str:
    if not n_known:
        return ""
    return f"by configuration and seed for {n_paired} of {n_known} arms, one value per size"
