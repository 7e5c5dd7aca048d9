"""The only builder of paths under the results folder and the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """Files of one run: ``results/<sweep>/runs/<id>/``."""

    root: Path

    @property
    def run_id(self) -> str:
        """Identity of the run: the folder's name."""
        return self.root.name

    @property
    def config(self) -> Path:
        """Resolved configuration, written before the first attempt."""
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Append-only training and validation metrics, one JSON object a line."""
        return self.root / "metrics.jsonl"

    @property
    def diagnostics(self) -> Path:
        """Append-only diagnostics, one JSON object a line."""
        return self.root / "diagnostics.jsonl"

    @property
    def record(self) -> Path:
        """The run's result: written last and atomically."""
        return self.root / "record.json"

    @property
    def cancel(self) -> Path:
        """Asks whoever executes the run to stop it for good."""
        return self.root / "cancel"

    @property
    def checkpoints(self) -> Path:
        """Resumable training state."""
        return self.root / "checkpoints"

    @property
    def evaluations(self) -> Path:
        """One folder ``step-<N>`` per evaluated checkpoint, one file per evaluation."""
        return self.root / "evaluations"

    @property
    def attempts(self) -> Path:
        """One numbered folder per try: who makes it, its sign of life, how it ended."""
        return self.root / "attempts"

    def attempt(self, number: int) -> Path:
        """Folder of attempt ``number`` (from 1)."""
        return self.attempts / str(number)

    def n_attempts(self) -> int:
        """Count the attempts begun so far."""
        try:
            names = os.listdir(self.attempts)
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdigit()), default=0)


@dataclass(frozen=True)
class SweepPaths:
    """Files of one sweep: ``results/<sweep>/``."""

    root: Path

    @property
    def manifest(self) -> Path:
        """What the grid asked for: every run, its configuration and cost."""
        return self.root / "manifest.json"

    @property
    def runs(self) -> Path:
        """Parent of the run folders."""
        return self.root / "runs"

    @property
    def controllers(self) -> Path:
        """One folder ``<host>-<pid>`` per ``isoloss run`` at work, with its lease and its runs."""
        return self.root / "controllers"

    def controller_runs(self, controller: str) -> Path:
        """Ids of the runs that one ``isoloss run`` has in hand, one a line."""
        return self.controllers / controller / "runs"

    @property
    def failures(self) -> Path:
        """Append-only: one line per failure, for those who must notice equal ones at once."""
        return self.root / "failures.jsonl"

    @property
    def slurm(self) -> Path:
        """One folder per submission to Slurm."""
        return self.root / "slurm"

    @property
    def code(self) -> Path:
        """Snapshots of the code that workers run."""
        return self.root / "code"

    @property
    def status_page(self) -> Path:
        """The live view as a page."""
        return self.root / "status.html"

    @property
    def status_cache(self) -> Path:
        """What is known of runs that have ended, to spare reading thousands of records."""
        return self.root / ".status-cache.json"

    @property
    def jobs(self) -> Path:
        """Job files of workers."""
        return self.root / "jobs"

    @property
    def logs(self) -> Path:
        """Logs of workers and of the MLflow mirror."""
        return self.root / "logs"

    @property
    def mirror_terms(self) -> Path:
        """One numbered folder per process that has mirrored the sweep to MLflow."""
        return self.logs / "mirror"

    @property
    def mlflow_db(self) -> Path:
        """Local MLflow store, shared by the sweeps of one results folder."""
        return self.root.parent / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Artifacts of the local MLflow store."""
        return self.root.parent / "mlartifacts"

    @property
    def tuning(self) -> SweepPaths:
        """Folder of the trials that search this sweep's values: a sweep of its own."""
        return SweepPaths(self.root.with_name(f"{self.root.name}-tuning"))

    @property
    def tuned(self) -> Path:
        """Values that a search chose for this sweep."""
        return self.root / "tuned.yaml"

    @property
    def journal(self) -> Path:
        """Optuna's journal of the searches, in the folder of the trials."""
        return self.root / "optuna.journal"

    def trunk(self, trunk_id: str) -> Path:
        """Folder of training states from which runs of several budgets branch."""
        return self.root / "trunks" / trunk_id

    @property
    def table(self) -> Path:
        """One row per run."""
        return self.root / "runs.parquet"

    @property
    def fits(self) -> Path:
        """Fitted laws and multipliers."""
        return self.root / "fits.json"

    @property
    def report(self) -> Path:
        """The self-contained report."""
        return self.root / "report.html"

    @property
    def figures(self) -> Path:
        """Figures as svg, png and pdf."""
        return self.root / "figures"

    @property
    def tables(self) -> Path:
        """Tables as csv, markdown and LaTeX."""
        return self.root / "tables"

    def run(self, run_id: str) -> RunPaths:
        """Files of one run."""
        return RunPaths(self.runs / run_id)


def sweep_paths(results: Path, sweep: str) -> SweepPaths:
    """Files of the sweep named ``sweep`` under the results folder."""
    return SweepPaths(results.resolve() / sweep)


def cache_dir() -> Path:
    """Where built corpora are kept: ``$ISOLOSS_CACHE`` or ``~/.cache/isoloss``."""
    chosen = os.environ.get("ISOLOSS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "isoloss"
