"""The result of `isoloss bench`: one tidy row per subject, shape and part, and its files.

Pure but for :class:`BenchStore`; no torch. Conventions, also printed under every table and figure:
:data:`CONVENTIONS`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.bench.plan import BASELINE, BenchShape
from harness.bench.timing import Spread, paired_difference, paired_ratio, spread
from harness.cost import TRAIN_PER_FORWARD
from harness.records import write_text_atomically

STREAM_BYTES = {"fp32": 4, "bf16": 4, "fp64": 8}
"""Bytes of an element that reads and writes move; under bf16 autocast parameters, embedding, stream
and block sums are fp32."""
CONVENTIONS = {
    "times": "Times: medians over rounds in which all subjects take turns in one process; ratios: "
    "median and quartiles of the ratio inside a round.",
    "step": "Step: forward, backward, clipping and optimiser on random tokens.",
    "residual": "Residual part: forward and backward of reads and writes alone, every sublayer "
    "replaced by y = 0.1 u; that stand-in is timed with them. Under bf16 autocast ours get fp32, "
    "as in training; peers get bf16 input and parameters, as their code takes them.",
    "peers": "x ours: time over that of the recipe of ours nearest to the peer; how the peer "
    "differs stands beside it.",
    "memory": "Memory: most tensor bytes alive at one time during such a call, weights and "
    "optimiser state included.",
    "predicted": "Closed form of memory (predicted_bytes): an estimate of everything: weights, "
    "gradients, moments, activations, residual state.",
    "floor": "Floor: elements that reads and writes must move in a forward pass (closed form, "
    "every operand once) x 3 (backward counts twice) x bytes per element / bandwidth of plain "
    "copies over as much memory as all sources take. Of a step: what it moves beyond the standard "
    "residual, on top of that one's measured time.",
}


@dataclass(frozen=True)
class BenchRow:
    """One subject at one shape in one part. What is not known is None."""

    part: str
    """step, residual or depth."""
    subject: str
    origin: str
    """recipe or peer."""
    counterpart: str
    """Peers: the recipe of ours nearest to it."""
    n_layers: int
    n_sublayers: int
    d_model: int
    batch_tokens: int
    seq_len: int
    rounds: int = 0
    seconds: float | None = None
    """Median over the rounds, with quartiles below."""
    seconds_low: float | None = None
    seconds_high: float | None = None
    ratio: float | None = None
    """Time over the baseline's of the same round: median, with quartiles below."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    times_ours: float | None = None
    """Peers: time over the counterpart's of the same round, with quartiles below."""
    times_ours_low: float | None = None
    times_ours_high: float | None = None
    difference: str = ""
    """Peers: how it differs from its counterpart."""
    base_bytes: int | None = None
    """Tensors alive before the call: weights, optimiser state, batch."""
    peak_bytes: int | None = None
    """Most tensor bytes alive at one time, base included."""
    peak_ratio: float | None = None
    """Peak over the baseline's."""
    predicted_bytes: int | None = None
    """Steps: closed-form estimate of ``peak_bytes``."""
    moved_bytes: int | None = None
    """Closed form, forward and backward. Steps: beyond the baseline's."""
    moving_s: float | None = None
    """Time spent on it. Steps: beyond the baseline's, paired."""
    floor_s: float | None = None
    """``moved_bytes`` at the bandwidth of plain copies."""
    copy_bytes_per_s: float | None = None
    """That bandwidth."""
    note: str = ""
    """Why there is no time."""
    rounds_s: tuple[float, ...] = ()
    """Seconds of every round; in bench.json only."""

    @property
    def shape(self) -> str:
        """``12x256x8192``: layers, width, tokens per step."""
        return f"{self.n_layers}x{self.d_model}x{self.batch_tokens}"

    @property
    def bytes_per_s(self) -> float | None:
        """Achieved bandwidth; None where nothing is moved or no time was spent."""
        return self.moved_bytes / self.moving_s if self.moved_bytes and self.moving_s else None


@dataclass(frozen=True)
class Subject:
    """What is timed, and what was measured of it so far."""

    label: str
    origin: str = "recipe"
    counterpart: str = ""
    difference: str = ""
    moved_elements: int | None = None
    """Per token and forward pass; None for peers."""
    base_bytes: int | None = None
    peak_bytes: int | None = None
    predicted_bytes: int | None = None
    note: str = ""
    rounds_s: tuple[float, ...] = ()


def section_rows(
    part: str,
    shape: BenchShape,
    subjects: Sequence[Subject],
    precision: str,
    copy_bytes_per_s: float | None,
) -> list[BenchRow]:
    """Rows of one part at one shape; the baseline is the subject labelled :data:`BASELINE`."""
    known = {subject.label: subject for subject in subjects}
    base = known[BASELINE]
    rows = []
    for subject in subjects:
        ours = known.get(subject.counterpart)
        moved = _moved_bytes(part, subject, base, shape, precision)
        rows.append(
            BenchRow(
                **_spelled("seconds", spread(subject.rounds_s)),
                **_spelled("ratio", paired_ratio(subject.rounds_s, base.rounds_s)),
                **_spelled("times_ours", _over(subject, ours)),
                part=part,
                subject=subject.label,
                origin=subject.origin,
                counterpart=subject.counterpart,
                difference=subject.difference,
                n_layers=shape.n_layers,
                n_sublayers=shape.n_sublayers,
                d_model=shape.d_model,
                batch_tokens=shape.batch_tokens,
                seq_len=shape.seq_len,
                rounds=len(subject.rounds_s),
                base_bytes=subject.base_bytes,
                peak_bytes=subject.peak_bytes,
                peak_ratio=_ratio(subject.peak_bytes, base.peak_bytes),
                predicted_bytes=subject.predicted_bytes,
                moved_bytes=moved,
                moving_s=_moving_s(part, subject, base) if moved else None,
                floor_s=_ratio(moved, copy_bytes_per_s),
                copy_bytes_per_s=copy_bytes_per_s,
                note=subject.note,
                rounds_s=subject.rounds_s,
            )
        )
    return rows


def _spelled(name: str, value: Spread | None) -> dict[str, Any]:
    if value is None:
        return {}
    return {name: value.median, f"{name}_low": value.low, f"{name}_high": value.high}


def _over(subject: Subject, ours: Subject | None) -> Spread | None:
    return None if ours is None else paired_ratio(subject.rounds_s, ours.rounds_s)


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _moved_bytes(
    part: str, subject: Subject, base: Subject, shape: BenchShape, precision: str
) -> int | None:
    """Bytes moved in one training step; None for peers, and where a step moves no more."""
    elements = subject.moved_elements
    if elements is None:
        return None
    if part != "residual":
        elements -= base.moved_elements or 0
    moved = TRAIN_PER_FORWARD * elements * shape.batch_tokens * STREAM_BYTES[precision]
    return moved if moved > 0 else None


def _moving_s(part: str, subject: Subject, base: Subject) -> float | None:
    if part == "residual":
        found = spread(subject.rounds_s)
        return None if found is None else found.median
    extra = paired_difference(subject.rounds_s, base.rounds_s)
    return extra if extra is not None and extra > 0 else None


CSV_COLUMNS = tuple(f.name for f in fields(BenchRow) if f.name != "rounds_s")


@dataclass
class BenchStore:
    """The rows of one bench and their folder, ``results/bench/<name>/``.

    Files are replaced whenever a round ends, so that whatever stops the bench leaves what it
    measured.
    """

    folder: Path
    about: dict[str, Any]
    """Machine, versions, settings."""
    sections: dict[tuple[str, str], list[BenchRow]] = field(default_factory=dict)

    @property
    def rows(self) -> list[BenchRow]:
        """All rows, in the order measured."""
        return [row for rows in self.sections.values() for row in rows]

    @property
    def sentences(self) -> dict[str, str]:
        """:data:`CONVENTIONS` and, as ``machine``, where and how it was measured."""
        hardware, plan = self.about["hardware"], self.about["plan"]
        machine = (
            f"Device {plan['device']} of {hardware['device']}, CPU threads {plan['threads']}, "
            f"{plan['precision']}, kernel {plan['kernel']}, {plan['clock']} clock, "
            f"torch {self.about['library_versions']['torch']}."
        )
        return {"machine": machine, **CONVENTIONS}

    @property
    def table(self) -> Path:
        """One row per subject, shape and part."""
        return self.folder / "bench.csv"

    @property
    def record(self) -> Path:
        """The same rows with every round's seconds, and where they were measured."""
        return self.folder / "bench.json"

    @property
    def figures(self) -> Path:
        """Figures as svg, png and pdf."""
        return self.folder / "figures"

    def update(self, rows: Sequence[BenchRow]) -> None:
        """Replace the rows of a part at the shapes given, and both files."""
        for key, members in groupby(rows, lambda row: (row.part, row.shape)):
            self.sections[key] = list(members)
        write_text_atomically(self.table, as_csv(self.rows))
        listed = [asdict(row) for row in self.rows]
        told = {**self.about, "conventions": self.sentences, "rows": listed}
        write_text_atomically(self.record, json.dumps(told, indent=2) + "\n")


def as_csv(rows: Iterable[BenchRow]) -> str:
    """The tidy table; empty where a value is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def with_round(subjects: Sequence[Subject], seconds: Mapping[str, float]) -> list[Subject]:
    """Add the seconds of one round to the subjects that took part in it."""
    return [
        replace(s, rounds_s=(*s.rounds_s, seconds[s.label])) if s.label in seconds else s
        for s in subjects
    ]
