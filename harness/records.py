"""The on-disk truth of a sweep: its manifest, and one record per run.

Written by the harness, read by ``analysis``. Knows neither torch nor MLflow. Every JSON file is
replaced atomically; the metric files are append-only and may end in a torn line after a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import DataError
from harness.paths import SweepPaths

Status = Literal["planned", "queued", "running", "done", "diverged", "failed", "cancelled"]
Role = Literal["main", "equal_rate", "trial"]
"""main: enters the fits. equal_rate: an arm at the baseline's tuned values, for the comparison of
both only. trial: a search's try, in a sweep of its own."""
FINAL_STATUSES: tuple[Status, ...] = ("done", "diverged", "failed", "cancelled")


class RunCost(BaseModel):
    """Closed-form size and price of one run (convention: ``harness.cost``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_params: int
    """All parameters."""
    n_params_non_embedding: int
    """Without the token embedding and an untied head."""
    n_params_residual: int
    """Parameters of the residual recipe itself."""
    flops_per_token: int
    """Training FLOPs per token, the recipe's own included."""
    flops_per_token_residual: int
    """The recipe's own share of them."""
    steps: int
    """Optimiser steps."""
    tokens: int
    """steps x batch_tokens."""
    flops: float
    """Training FLOPs of the run, the recipe's own included."""
    flops_residual: float
    """The recipe's own share of them."""
    flops_6nd: float
    """6 x n_params_non_embedding x tokens, so that nobody has to trust our count."""
    state_bytes: int
    """Estimated peak of weights, gradients, optimiser state and activations, in bytes."""


class PlannedRun(BaseModel):
    """One run of a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    """12 hex digits over the science fields."""
    arm: str
    """Label of the recipe setting."""
    cell: str
    """Label of arm, shape and budget: what the seeds of one cell share."""
    config: dict[str, Any]
    """Resolved configuration (RunConfig as JSON)."""
    recipe_revision: int
    """Revision of the recipe's meaning."""
    recipe_sha256: str | None = None
    """Source of the recipe's files when it was planned."""
    corpus_sha256: str
    """Content of the corpus."""
    vocab_size: int
    """Tokens of its vocabulary."""
    cost: RunCost
    """Size and price."""
    role: Role = "main"
    """What the run is for; like all below, no part of its id."""
    tuned: dict[str, Any] = Field(default_factory=dict)
    """Values that a search chose, by dotted path; they stand in ``config`` too."""
    ratios: dict[str, float] = Field(default_factory=dict)
    """Ratios of its shape as the grid's ``depth_width`` declares them."""
    trunk: str | None = None
    """Id of the training that it shares with runs of other budgets; null where it shares none."""
    branch_step: int | None = None
    """Optimiser steps that are shared: at the next one its learning rate begins to fall."""


class Manifest(BaseModel):
    """What a grid asked for, as it was when the sweep was last run."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int
    sweep: str
    grid_text: str
    """The grid file, verbatim."""
    overrides: list[str] = Field(default_factory=list)
    """``--set key=value`` arguments."""
    profile: str | None = None
    """Which of the grid's own profiles was laid over it; null where it has none."""
    created_at: str
    """UTC time, ISO 8601."""
    baseline: str
    """Arm that multipliers compare with."""
    unigram_entropy_nats: dict[str, float] = Field(default_factory=dict)
    """By corpus: entropy of its token frequencies; a loss above it has learned no context."""
    runs: list[PlannedRun]


class RunRecord(BaseModel):
    """The result of one run. What is not known is null, never a stand-in value."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int
    run_id: str
    sweep: str
    arm: str
    cell: str
    status: Status
    excluded_because: str | None = None
    """Why the run enters no fit; null for a usable run."""
    residual: str
    residual_options: dict[str, Any]
    recipe_revision: int
    recipe_sha256: str | None = None
    n_layers: int
    d_model: int
    block_size: int | None = None
    """Sublayers per depth block, for recipes that have one."""
    seq_len: int
    vocab_size: int
    corpus: str
    corpus_sha256: str
    seed: int
    lr: float
    optimizer: str
    schedule: str
    precision: str
    batch_tokens: int
    budget_kind: str
    budget_value: float
    steps: int
    tokens: int
    n_params: int
    n_params_non_embedding: int
    n_params_residual: int
    flops: float
    flops_residual: float
    flops_6nd: float
    loss_nats: float | None = None
    """Mean validation loss per token at the last step."""
    bits_per_byte: float | None = None
    task: str | None = None
    """Depth probe that was trained; null for text, like all of these."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    graded_by: str | None = None
    """What the difficulty of the task counts."""
    chance: float | None = None
    """Accuracy of always giving the most frequent label."""
    accuracy: float | None = None
    """Share of the validation's labels that the likeliest token gives, at the last step."""
    accuracy_by_difficulty: dict[str, float] = Field(default_factory=dict)
    accuracy_by_position: dict[str, float] = Field(default_factory=dict)
    solved_difficulty: int | None = None
    """Largest difficulty up to which every one has an accuracy of 90% or more; 0 if none."""
    steps_to_90: int | None = None
    """First validated step from which on the accuracy stays at 90% or more."""
    steps_to_90_by_difficulty: dict[str, int | None] = Field(default_factory=dict)
    eval_tokens: int | None = None
    loss_curve: str = "metrics.jsonl"
    """File beside the record with losses by step."""
    tokens_per_s: float | None = None
    """Training throughput: batch_tokens over the median step time."""
    step_time_s: float | None = None
    """Median wall time of an optimiser step, validation and checkpoints excluded."""
    mfu: float | None = None
    """Model FLOPs utilisation: achieved training FLOPs/s over peak_flops_per_s."""
    peak_flops_per_s: float | None = None
    """Peak of the devices of all processes together, measured with a matrix product or taken from
    a data sheet."""
    wall_s: float | None = None
    """Wall time of all attempts."""
    peak_bytes: int | None = None
    """Peak memory: of the device on CUDA, of the process on CPU; the largest of several."""
    microbatch_seqs: int | None = None
    """Sequences per forward pass of a process, where fewer than its share of the batch; halved
    when out of memory."""
    attempts: int
    role: Role = "main"
    """What the run was for."""
    evaluations: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)
    """By checkpoint ``step-N``, by evaluation, by metric: what ``isoloss eval`` measured."""
    tuned: dict[str, Any] = Field(default_factory=dict)
    """Values that a search chose, by dotted path."""
    branched_at: int | None = None
    """Optimiser step of another run's state that this one went on from; null for a run that
    trained from its own start. ``steps``, ``tokens`` and ``flops`` count the shared part."""
    branched_from: str | None = None
    """Id of the run that trained up to there."""
    last_step: int
    """Last optimiser step that was completed."""
    error: str | None = None
    """For failed runs: the exception, in one line."""
    started_at: str | None = None
    finished_at: str | None = None
    code_version: str
    library_versions: dict[str, str]
    hardware: dict[str, Any]


def write_text_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new file, never half of
    one. A write that fails leaves the old file and nothing beside it.
    """
    with _scratch(path, text) as scratch:
        scratch.replace(path)


@contextlib.contextmanager
def _scratch(path: Path, text: str) -> Iterator[Path]:
    """Text on its way to ``path``: safely on disk beside it, under a name of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with scratch.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


def write_record(path: Path, record: RunRecord) -> bool:
    """Write one run's record atomically, unless it has one; this is the last act of a run.

    Returns
    -------
    bool
        False when a record was there already: it stands, and this one is dropped. Of two processes
        that finish the same run, the first wins, on network file systems too.
    """
    with _scratch(path, record.model_dump_json(indent=2) + "\n") as scratch:
        try:
            os.link(scratch, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            scratch.replace(path)
    return True


def read_record(path: Path) -> RunRecord | None:
    """Read one run's record; None when the run has not ended.

    Raises
    ------
    DataError
        The file is there but is not a record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise DataError(
            f"{path}: not a run record ({where}: {first['msg']}). "
            "Move the file away and run the grid again to redo this run."
        ) from error


def write_manifest(paths: SweepPaths, manifest: Manifest) -> None:
    """Write the manifest of a sweep atomically."""
    write_text_atomically(paths.manifest, manifest.model_dump_json() + "\n")


def read_manifest(paths: SweepPaths) -> Manifest:
    """Read the manifest of a sweep.

    Raises
    ------
    DataError
        The sweep was never run, or the file is damaged.
    """
    try:
        return Manifest.model_validate_json(paths.manifest.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{paths.manifest}: no such sweep. Start it with: isoloss run GRID"
        ) from error
    except ValidationError as error:
        raise DataError(
            f"{paths.manifest}: not a sweep manifest. Run the grid again to rewrite it."
        ) from error


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """Append one row to a metrics file and hand it to the operating system."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def end_torn_line(path: Path) -> None:
    """Close a line that a kill cut short, so that later rows start on a line of their own."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            stream.write(b"\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a metrics file, newest attempt wins.

    A resumed run logs again the steps after its checkpoint; rows are keyed by (kind, step) and the
    one of the highest attempt stands, whenever it was written: a replaced process that wrote on for
    a moment changes nothing. Torn lines are skipped. Rows come back ordered by step.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in parsed_lines(path):
        key = (str(row.get("kind", "")), int(row["step"]))
        if key not in rows or row.get("attempt", 0) >= rows[key].get("attempt", 0):
            rows[key] = row
    return sorted(rows.values(), key=lambda row: (int(row["step"]), str(row.get("kind", ""))))


def parsed_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a metrics file as written, repeated steps included; torn lines are skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and "step" in row:
                yield row
