"""`isoloss show`: one run in full, as tables and as JSON; takes facts, returns what to print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from harness.console import duration, human, loss_text, table, when
from harness.run_facts import AttemptFacts, RunFacts
from harness.show import status_json, whereabouts
from harness.status import RunState

SHOWN_LOSSES = 12
"""Newest validation losses that are listed; the metrics file has them all."""
RECORD_FIELDS = (
    *("loss_nats", "bits_per_byte", "tokens_per_s", "step_time_s", "mfu", "wall_s", "peak_bytes"),
    *("accuracy", "solved_difficulty", "steps_to_90", "graded_by"),
    *("microbatch_seqs", "error", "finished_at", "code_version"),
)
"""What is shown of a record beside the configuration."""


def run_parts(facts: RunFacts, state: RunState, now: float) -> Iterator[RenderableType]:
    """Everything `isoloss show` prints.

    Parameters
    ----------
    now
        The file system's time.
    """
    run = facts.run
    yield Text(f"{run.run_id}  {run.cell}, seed {run.config['seed']}", style="bold")
    yield Text(_standing(state))
    if state.place and state.holder:
        yield Text(f"Slurm: job {state.place.job_id}: {state.place.text}")
    yield from _section("Configuration", {k: _plain(v) for k, v in flat(run.config).items()})
    yield from _section("Cost", {k: human(v) for k, v in run.cost.model_dump().items()})
    if facts.attempts:
        yield Text("\nAttempts", style="bold")
        yield _attempt_table(facts.attempts)
    if facts.losses:
        yield Text("\nValidation", style="bold")
        yield _loss_table(facts)
    if facts.checkpoints:
        yield Text("\nCheckpoints", style="bold")
        for checkpoint in facts.checkpoints:
            age = duration(now - checkpoint.saved_at)
            size = human(checkpoint.n_bytes)
            yield Text(f"step {checkpoint.step}, {size}B, {age} old  {checkpoint.path.name}")
    if facts.record is not None:
        told = facts.record.model_dump(include=set(RECORD_FIELDS))
        known = {k: _plain(told[k]) for k in RECORD_FIELDS if told[k] is not None}
        yield from _section("Record", known)
    yield from _section("From", _origin(facts))
    yield from _section("Files", _files(facts))


def _standing(state: RunState) -> str:
    steps = state.run.cost.steps
    share = f"step {state.step} of {steps} ({100 * state.step / steps:.0f}%)"
    status = "resumable" if state.resumable else state.status
    parts = [status, share, loss_text(state), whereabouts(state)]
    return ", ".join(part for part in parts if part not in ("", "-"))


def _section(name: str, values: Mapping[str, object]) -> Iterator[RenderableType]:
    if values:
        yield Text(f"\n{name}", style="bold")
        made = table(("", ""), [(key, str(value)) for key, value in values.items()], left=2)
        made.show_header = False
        yield made


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings under their dotted names; what is left at none is left out."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = value
    return found


def _attempt_table(attempts: tuple[AttemptFacts, ...]) -> RenderableType:
    rows = [
        (
            str(attempt.number),
            attempt.who,
            attempt.how,
            when(attempt.began),
            duration(attempt.seconds),
            "-" if attempt.last_step is None else str(attempt.last_step),
        )
        for attempt in attempts
    ]
    return table(("attempt", "who", "how", "began", "took", "up to step"), rows, left=3)


def _loss_table(facts: RunFacts) -> RenderableType:
    batch_tokens = facts.run.config["train"]["batch_tokens"]
    rows = [
        (
            str(step),
            human(step * batch_tokens),
            f"{loss:.4f}",
            "-" if bits is None else f"{bits:.4f}",
        )
        for step, (loss, bits) in list(facts.losses.items())[-SHOWN_LOSSES:]
    ]
    return table(("step", "tokens", "loss (nats)", "bits per byte"), rows, left=0)


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _origin(facts: RunFacts) -> dict[str, str]:
    told = facts.provenance
    libraries = told.get("library_versions") or {}
    hardware = told.get("hardware") or {}
    origin = {
        "code": str(told.get("code_version", "")),
        "libraries": ", ".join(f"{name} {version}" for name, version in libraries.items()),
        "hardware": ", ".join(f"{name} {value}" for name, value in hardware.items()),
    }
    return {name: value for name, value in origin.items() if value}


def _files(facts: RunFacts) -> dict[str, str]:
    here = facts.paths
    files = {
        "folder": here.root,
        "log": facts.attempts[-1].log if facts.attempts else here.root / "log",
        "metrics": here.metrics,
        "diagnostics": here.diagnostics,
        "record": here.record,
    }
    return {name: str(path) for name, path in files.items() if path.exists()}


def run_json(facts: RunFacts, state: RunState) -> dict[str, Any]:
    """Everything `isoloss show --json` prints."""
    return {
        **status_json([state])[0],
        "config": facts.run.config,
        "cost": facts.run.cost.model_dump(),
        "attempt_list": [
            {
                "number": attempt.number,
                "who": attempt.who,
                "job": attempt.job,
                "how": attempt.how,
                "began": attempt.began,
                "seconds": attempt.seconds,
                "last_step": attempt.last_step,
                "log": str(attempt.log),
            }
            for attempt in facts.attempts
        ],
        "validation": [
            {"step": step, "loss_nats": loss, "bits_per_byte": bits}
            for step, (loss, bits) in facts.losses.items()
        ],
        "checkpoints": [str(checkpoint.path) for checkpoint in facts.checkpoints],
        "record": facts.record.model_dump(mode="json") if facts.record else None,
    }
