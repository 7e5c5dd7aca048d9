"""From a run's folder to its model, ready to be asked: weights of a checkpoint, and the tokenizer.

Reads, and changes no file. Starts no trainer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from harness.checkpoint_file import read_whole
from harness.config import RunConfig
from harness.corpora import describe, tokenizer_of
from harness.errors import CheckpointError, DataError
from harness.model import Transformer
from harness.paths import RunPaths
from harness.records import PlannedRun
from harness.tokenization import Tokenizer
from harness.trunks import states
from recipes.base import get

PREFIX = "model."
"""What names of parameters begin with in a checkpoint."""


@dataclass(frozen=True)
class LoadedModel:
    """A trained language model."""

    model: Transformer
    """In evaluation mode and fp32, on the GPU where there is one."""
    tokenizer: Tokenizer
    """That of the corpus it was trained on."""
    config: RunConfig
    step: int
    """Optimiser steps it was trained for."""
    run_id: str


def load_model(paths: RunPaths, run: PlannedRun, step: int | None = None) -> LoadedModel:
    """Load the model of a run from its newest whole checkpoint, or from that of one step.

    A damaged checkpoint is passed over for the one before it, with a note on standard error.

    Raises
    ------
    DataError
        The run has no checkpoint (of that step), was trained on a generated task, which has no
        text, or its corpus or recipe has changed since.
    CheckpointError
        The checkpoint was written by another run.
    RecipeError
        The run's recipe is not installed.
    """
    config = RunConfig.model_validate(run.config)
    _require_unchanged(run, config)
    found, state = _weights(paths, run, step)
    model = Transformer(config.model, config.residual, run.vocab_size, config.seed)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(
            f"{paths.checkpoints}: the weights do not fit this version's model of run "
            f"{run.run_id}: {error}. Load them with the version that trained them."
        ) from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LoadedModel(
        model=model.requires_grad_(False).to(device).eval(),
        tokenizer=tokenizer_of(config.data.corpus),
        config=config,
        step=found,
        run_id=run.run_id,
    )


def _require_unchanged(run: PlannedRun, config: RunConfig) -> None:
    if config.data.task is not None:
        raise DataError(
            f"run {run.run_id}: trained on the generated task {config.data.label}, so it knows no "
            "text. Choose a run that was trained on a corpus."
        )
    found = describe(config.data.corpus).sha256
    if found != run.corpus_sha256:
        raise DataError(
            f"run {run.run_id}: its corpus '{config.data.corpus}' has changed since (sha256 "
            f"{found[:12]}, planned {run.corpus_sha256[:12]}), so its tokens may mean other text. "
            "Restore the old corpus, or choose a run that was trained on the new one."
        )
    revision = get(config.residual.name).revision
    if revision != run.recipe_revision:
        raise DataError(
            f"run {run.run_id}: trained with revision {run.recipe_revision} of the recipe "
            f"'{config.residual.name}', which now has revision {revision} and another meaning. "
            "Load it with the version that trained it."
        )


def _weights(
    paths: RunPaths, run: PlannedRun, step: int | None
) -> tuple[int, dict[str, torch.Tensor]]:
    """Step and weights of the newest whole checkpoint that is asked for."""
    kept = states(paths.checkpoints)
    asked = [(number, path) for number, path in kept if step in (None, number)]
    for number, path in asked:
        try:
            state = read_whole(path)
        except FileNotFoundError:  # a worker has just replaced it
            continue
        if state is None:
            print(f"note: {path} is damaged", file=sys.stderr)
            continue
        _require_owner(state, run, str(path))
        return number, _of_model(state)
    raise DataError(_no_checkpoint(paths, run, step, [number for number, _ in kept]))


def _require_owner(state: dict[str, Any], run: PlannedRun, path: str) -> None:
    if (owner := state.get("run_id")) != run.run_id:
        raise CheckpointError(
            f"{path}: written by run {owner}, not by run {run.run_id}. "
            "Move the file back to its run."
        )


def _of_model(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(PREFIX): value for name, value in state["state_dict"].items()}


def _no_checkpoint(paths: RunPaths, run: PlannedRun, step: int | None, kept: list[int]) -> str:
    where = f"{paths.checkpoints}: run {run.run_id} has no whole checkpoint"
    train = "Train it with `isoloss run` and the sweep's grid file"
    if step is None:
        return f"{where}. {train}; it saves its newest two."
    others = ", ".join(str(number) for number in kept if number != step)
    instead = f"It has: {others}; leave --step out for the newest." if others else f"{train}."
    return f"{where} of step {step}. {instead}"
