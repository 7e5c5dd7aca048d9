"""Searches of a small grid in this process: by a formula in place of training, or trained here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial
from rich.console import Console

from harness.grid import load_grid
from harness.job import Job, write_job
from harness.paths import SweepPaths
from harness.recording import build_record
from harness.records import (
    PlannedRun,
    RunRecord,
    append_jsonl,
    read_manifest,
    read_record,
    write_record,
)
from harness.stop import StopSignal
from harness.tuned import Tuned
from harness.tuning.controller import Search, search_lease
from harness.worker import Worker

GRID = """
sweep: tiny
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 5120}, batch_tokens: 256, eval_tokens: 1024, lr: 2e-2}
axes: {residual: ARMS}
seeds: [0, 1]
tune: {search: SEARCH, MORE}
execution: {checkpoint_every_s: 0.2, n_evals: 4, n_diagnostics: 0, log_every: 5}
mlflow: {mode: off}
"""
FACTS = {
    "code_version": "test",
    "library_versions": {},
    "hardware": {},
    "peak_bytes": None,
    "peak_flops_per_s": None,
}
N_EVALS = 4


def grid_text(
    search: str = "{train.lr: {factor: 2}}",
    more: str = "trials: 12, refine: 0",
    arms: str = "[standard]",
) -> str:
    return GRID.replace("SEARCH", search).replace("MORE", more).replace("ARMS", arms)


class Formula:
    """Executes trials by writing what a run leaves behind; ``loss`` makes it up from the rate."""

    rest_s = 0.0
    troubles: Sequence[str] = ()

    def __init__(self, paths: SweepPaths, loss: Callable[[float], float], at_once: int = 1) -> None:
        self.paths, self.loss, self.at_once = paths, loss, at_once
        self.executed: list[str] = []

    def __enter__(self) -> Formula:
        return self

    def __exit__(self, *about: object) -> None: ...

    def tend(self, runs: Sequence[PlannedRun]) -> None:
        for run in runs[: self.at_once]:
            self.execute(run)

    def execute(self, run: PlannedRun) -> None:
        here = self.paths.run(run.run_id)
        here.root.mkdir(parents=True, exist_ok=True)
        self.executed.append(run.run_id)
        final = self.loss(run.config["train"]["lr"])
        for k in range(1, N_EVALS + 1):
            step = math.ceil(run.cost.steps * k / N_EVALS)
            loss = final + (N_EVALS - k)
            row = {"kind": "val", "step": step, "loss_nats": loss, "bits_per_byte": loss}
            append_jsonl(here.metrics, {**row, "elapsed_s": 1.0, "attempt": 1})
        write_record(here.record, self.record(run))

    def record(self, run: PlannedRun) -> RunRecord:
        here = self.paths.run(run.run_id)
        name = self.paths.root.name
        return build_record(run, name, here, status="done", block_size=None, provenance=FACTS)


class Broken(Formula):
    """Every run fails."""

    def record(self, run: PlannedRun) -> RunRecord:
        from harness.failures import record_failure

        record_failure(self.paths, run, "ValueError: no", 1)
        return build_record(
            run,
            self.paths.root.name,
            self.paths.run(run.run_id),
            status="failed",
            block_size=None,
            provenance=FACTS,
            reason="failed: ValueError: no",
            error="ValueError: no",
        )


class Watched(StopSignal):
    """Lets the search look at the trials at every step of the run under way."""

    def __init__(self, search: Search) -> None:
        super().__init__()
        self.search = search

    def __bool__(self) -> bool:
        if self.search.pruner is not None:
            self.search._stop_hopeless(self.search.pruner)
        return False


class Trained(Formula):
    """Trains the trials, one after the other, in this process."""

    def __init__(self, search: Search) -> None:
        super().__init__(search.paths, lambda lr: math.nan)
        self.search = search

    def execute(self, run: PlannedRun) -> None:
        self.executed.append(run.run_id)
        job = Job(
            sweep=self.paths.root.name,
            sweep_dir=self.paths.root,
            runs=[run],
            execution=self.search.grid.execution,
        )
        file = self.paths.jobs / "job.json"
        write_job(file, job)
        Worker(job, file, job.runs, Watched(self.search)).work()


@dataclass
class Bench:
    """One grid and its results."""

    folder: Path
    text: str
    said: list[str] = field(default_factory=list)

    @property
    def sweep(self) -> SweepPaths:
        return SweepPaths(self.folder / "results" / "tiny")

    @property
    def trials(self) -> SweepPaths:
        return self.sweep.tuning

    def search(
        self, executor: Callable[[Search], Formula], *, parallel: int = 2
    ) -> tuple[Tuned | None, Formula]:
        """What `isoloss tune` does, with an executor of ours."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "grid.yaml"
        file.write_text(self.text)
        console = Console(width=200, record=True, file=(self.folder / "out").open("a"))
        try:
            with search_lease(self.trials) as lease:
                search = Search(load_grid(file), self.sweep, console, lease)
                trials = executor(search)
                if search.take_up(parallel):
                    search.run(trials)
                return search.conclude(), trials
        finally:
            self.said.append(console.export_text())

    def by(self, loss: Callable[[float], float], **how: int) -> tuple[Tuned | None, Formula]:
        return self.search(lambda search: Formula(search.paths, loss), **how)

    def studies(self) -> dict[str, list[FrozenTrial]]:
        """All trials by study, as Optuna itself reads the journal."""
        storage = JournalStorage(JournalFileBackend(str(self.trials.journal)))
        names = optuna.get_all_study_names(storage)
        return {n: optuna.load_study(study_name=n, storage=storage).trials for n in names}

    def states(self) -> list[str]:
        return [t.state.name for trials in self.studies().values() for t in trials]

    def records(self) -> dict[str, RunRecord]:
        runs = read_manifest(self.trials).runs
        found = {run.run_id: read_record(self.trials.run(run.run_id).record) for run in runs}
        return {run_id: record for run_id, record in found.items() if record is not None}


def bowl(best: float) -> Callable[[float], float]:
    """A loss whose minimum is at a rate."""
    return lambda lr: 3.0 + math.log(lr / best) ** 2
