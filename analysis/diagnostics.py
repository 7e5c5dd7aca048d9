"""Diagnostics of a sweep as tidy rows, and the one run per arm that figures show.

``diagnostics.jsonl`` holds one nested row per measurement (``harness.diagnostics.measure``); here
it becomes one number per row, for any tool. Rows of earlier versions lack some metrics: what is
absent stays absent.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.collect import read_diagnostics
from analysis.laws import Floats
from harness.paths import RunPaths, SweepPaths
from harness.records import write_text_atomically

Kind = Literal["attention", "mlp", "head"]
Row = Mapping[str, Any]

COLUMNS: dict[str, str] = {
    "run_id": "object",
    "arm": "object",
    "size": "object",
    "seed": "Int64",
    "step": "Int64",
    "t": "Int64",
    "kind": "object",
    "metric": "object",
    "source": "object",
    "value": "float64",
}
"""Columns of ``diagnostics.parquet``. ``t``: sublayer, n_sublayers for what feeds the head, null
for numbers of a whole run; ``kind``: attention, mlp or head; ``source``: a source of that read."""
BY_SUBLAYER = ("input_rms", "output_rms", "state_rms", "grad_rms", "param_grad_l2")
BY_READ = (
    *("total_weight", "normalised_entropy", "max_weight", "max_weight_times_sources"),
    *("newest_mass", "embedding_mass", "partial_mass", "older_mass", "token_variance"),
    *("adjacent_cosine", "effective_rank", "query_norm", "query_grad_norm"),
)
BY_SOURCE = {"mean_weights": "mean_weight", "contributions": "contribution"}
BY_MIXING = ("row_sum_error", "column_sum_error", "off_diagonal_mass", "grad_norm")
OF_RUN = (
    *("collapsed_to_newest", "collapsed_to_uniform", "collapsed_to_uniform_deep"),
    "batch_loss_nats",
)


@dataclass(frozen=True)
class Measurement:
    """The last diagnostics of one run."""

    arm: str
    row: Row

    @property
    def n_sublayers(self) -> int:
        """Attention and MLP counted separately."""
        return len(self.row["input_rms"])

    @property
    def reads(self) -> Sequence[Row]:
        """Reads over depth; none for recipes without."""
        return self.row.get("reads") or ()


@dataclass(frozen=True)
class Chosen:
    """One run per arm, at one size."""

    size: str
    runs: tuple[Measurement, ...]


def measurements(run: RunPaths) -> list[Row]:
    """Diagnostics rows of one run in order of steps; of a step taken twice, the later one."""
    by_step = {row["step"]: row for row in read_diagnostics(run)}
    return [by_step[step] for step in sorted(by_step)]


def read_all(paths: SweepPaths, runs: pd.DataFrame) -> dict[str, list[Row]]:
    """Diagnostics of every run of ``collect`` that has any, by run id."""
    found = {str(run_id): measurements(paths.run(str(run_id))) for run_id in runs["run_id"]}
    return {run_id: rows for run_id, rows in found.items() if rows}


def choose(
    by_run: Mapping[str, Sequence[Row]], used: pd.DataFrame, arms: Sequence[str]
) -> Chosen | None:
    """Take the last diagnostics of each arm at the largest size that most arms finished.

    Runs come in the order of ``arms``, the lowest seed of each. None when no usable run has any.
    """
    measured = used[used["run_id"].isin(by_run.keys())]
    if measured.empty:
        return None
    sizes = measured.groupby("size")
    n_arms, flops = sizes["arm"].nunique(), sizes["flops"].mean()
    size = max(n_arms.index, key=lambda name: (int(n_arms[name]), float(flops[name])))
    here = measured[measured["size"] == size].sort_values("seed").drop_duplicates("arm")
    here = here.sort_values("arm", key=lambda names: names.map(list(arms).index))
    runs = [Measurement(str(r.arm), by_run[str(r.run_id)][-1]) for r in here.itertuples()]
    return Chosen(str(size), tuple(runs))


def kind_of(t: int, n_sublayers: int) -> Kind:
    """Say what read or sublayer ``t`` feeds."""
    return "head" if t == n_sublayers else "mlp" if t % 2 else "attention"


def tidy(by_run: Mapping[str, Sequence[Row]], runs: pd.DataFrame) -> pd.DataFrame:
    """One number per row, columns :data:`COLUMNS`, in the order of ``runs``.

    Rows by source grow with the square of the depth and are kept of the last measurement alone.
    """
    about = runs.drop_duplicates("run_id").set_index("run_id")[["arm", "size", "seed"]]
    rows: list[tuple[Any, ...]] = []
    for run_id, measured in by_run.items():
        labels = tuple(about.loc[run_id])
        for row in measured:
            numbers = _numbers(row, with_sources=row is measured[-1])
            rows += [(run_id, *labels, row["step"], *number) for number in numbers]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


Number = tuple[int | None, Kind | None, str, str | None, float | None]
"""t, kind, metric, source, value."""


def _numbers(row: Row, *, with_sources: bool) -> Iterator[Number]:
    n = len(row["input_rms"])
    for name in BY_SUBLAYER:
        for t, value in enumerate(row.get(name) or ()):
            yield t, kind_of(t, n), name, None, value
    for layer, value in enumerate(row.get("layer_grad_rms") or ()):
        yield 2 * layer + 1, "mlp", "layer_grad_rms", None, value
    for read in row.get("reads") or ():
        yield from _read_numbers(read, n, with_sources)
    for mixing in row.get("mixing") or ():
        for name in BY_MIXING:
            yield mixing["t"], kind_of(mixing["t"], n), f"mixing_{name}", None, mixing[name]
    for name in OF_RUN:
        if name in row:
            yield None, None, name, None, row[name]
    for masked in row.get("masking") or ():
        yield None, None, "loss_change_nats", masked["source"], masked["loss_change_nats"]


def _read_numbers(read: Row, n_sublayers: int, with_sources: bool) -> Iterator[Number]:
    t, kind = int(read["t"]), kind_of(read["t"], n_sublayers)
    yield t, kind, "n_sources", None, len(read["labels"])
    for name in BY_READ:
        if name in read:
            yield t, kind, name, None, read[name]
    if with_sources:
        for name, metric in BY_SOURCE.items():
            for source, value in zip(read["labels"], read.get(name) or (), strict=False):
                yield t, kind, metric, source, value


def save_tidy(frame: pd.DataFrame, folder: Path) -> None:
    """Write ``diagnostics.csv`` and ``diagnostics.parquet``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = frame.to_csv(index=False, lineterminator="\n")
    write_text_atomically(folder / "diagnostics.csv", text)
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    scratch = folder / ".diagnostics.parquet"
    scratch.write_bytes(buffer.getvalue())
    scratch.replace(folder / "diagnostics.parquet")


def floats(values: Any) -> Floats:
    """As floats, null as NaN; empty for what was not measured."""
    listed = [] if values is None else list(values)
    return np.array([np.nan if value is None else float(value) for value in listed])
