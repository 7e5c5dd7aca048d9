"""`isoloss diff`: what differs between two runs, and their losses at the steps both validated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from harness.console import human, table
from harness.run_facts import RunFacts
from harness.run_page import flat

ABSENT = "-"


@dataclass(frozen=True)
class Contrast:
    """One thing that differs."""

    section: str
    """science, cost, code, libraries, hardware or execution."""
    name: str
    a: str
    b: str


@dataclass(frozen=True)
class CommonLoss:
    """Validation losses of both runs at one step, nats."""

    step: int
    a: float
    b: float


def contrasts(a: RunFacts, b: RunFacts) -> list[Contrast]:
    """What differs between two runs, section by section."""
    told_a, told_b = a.provenance, b.provenance
    sections: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("science", _science(a), _science(b)),
        ("cost", a.run.cost.model_dump(), b.run.cost.model_dump()),
        ("code", _code(a, told_a), _code(b, told_b)),
        ("libraries", told_a.get("library_versions") or {}, told_b.get("library_versions") or {}),
        ("hardware", told_a.get("hardware") or {}, told_b.get("hardware") or {}),
        ("execution", _execution(a), _execution(b)),
    ]
    return [
        Contrast(section, name, _text(left.get(name)), _text(right.get(name)))
        for section, left, right in sections
        for name in dict.fromkeys((*left, *right))
        if left.get(name) != right.get(name)
    ]


def _science(facts: RunFacts) -> dict[str, Any]:
    run = facts.run
    return {
        **flat(run.config),
        "recipe_revision": run.recipe_revision,
        "corpus_sha256": run.corpus_sha256[:12],
        "vocab_size": run.vocab_size,
    }


def _code(facts: RunFacts, told: Mapping[str, Any]) -> dict[str, Any]:
    recipe = facts.record.recipe_sha256 if facts.record else facts.run.recipe_sha256
    return {"code_version": told.get("code_version"), "recipe source": (recipe or "")[:12] or None}


def _execution(facts: RunFacts) -> dict[str, Any]:
    settings = facts.attempts[-1].about.get("execution") if facts.attempts else None
    told: dict[str, Any] = dict(settings) if isinstance(settings, dict) else {}
    told["attempts"] = len(facts.attempts)
    told["who"] = facts.attempts[-1].who if facts.attempts else None
    if facts.record is not None:
        told["status"] = facts.record.status
        told["microbatch_seqs"] = facts.record.microbatch_seqs
    return told


def _text(value: Any) -> str:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 10**6):
        return f"{value:.6g}"
    return ABSENT if value is None else str(value)


def common_losses(a: RunFacts, b: RunFacts) -> list[CommonLoss]:
    """Validation losses at the steps that both runs have reached and validated."""
    return [
        CommonLoss(step, loss, b.losses[step][0])
        for step, (loss, _) in a.losses.items()
        if step in b.losses
    ]


def diff_parts(a: RunFacts, b: RunFacts) -> Iterator[RenderableType]:
    """Everything `isoloss diff` prints."""
    for name, facts in (("A", a), ("B", b)):
        run = facts.run
        yield Text(f"{name}  {run.run_id}  {run.cell}, seed {run.config['seed']}", style="bold")
    found = contrasts(a, b)
    if not found:
        yield Text("\nNothing differs: same science, code, libraries and hardware.")
    for section in dict.fromkeys(contrast.section for contrast in found):
        yield Text(f"\n{section}", style="bold")
        rows = [(c.name, c.a, c.b) for c in found if c.section == section]
        yield table(("", "A", "B"), rows, left=3)
    yield from _loss_parts(a, b)


def _loss_parts(a: RunFacts, b: RunFacts) -> Iterator[RenderableType]:
    losses = common_losses(a, b)
    if not losses:
        yield Text(f"\nNo common validation step: A {_steps(a)}; B {_steps(b)}.")
        return
    yield Text("\nvalidation loss, nats", style="bold")
    rows = [
        (
            str(at.step),
            human(at.step * a.run.config["train"]["batch_tokens"]),
            f"{at.a:.6f}",
            f"{at.b:.6f}",
            "equal" if at.a == at.b else f"{at.b - at.a:+.2e}",
        )
        for at in losses
    ]
    yield table(("step", "tokens of A", "A", "B", "B - A"), rows, left=0)


def _steps(facts: RunFacts) -> str:
    steps = sorted(facts.losses)
    if not steps:
        return "was never validated"
    return f"was validated at {', '.join(map(str, steps[-4:]))}"


def diff_json(a: RunFacts, b: RunFacts) -> dict[str, Any]:
    """Everything `isoloss diff --json` prints."""
    return {
        "a": a.run.run_id,
        "b": b.run.run_id,
        "differs": [
            {"section": c.section, "name": c.name, "a": c.a, "b": c.b} for c in contrasts(a, b)
        ],
        "loss_nats": [{"step": at.step, "a": at.a, "b": at.b} for at in common_losses(a, b)],
    }
