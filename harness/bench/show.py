"""What `isoloss bench` prints: a table per part and shape, and the conventions under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType

from harness.bench.rows import CONVENTIONS, BenchRow
from harness.console import human, table

_TITLES = {
    "step": "Training step",
    "residual": "Residual part alone (forward and backward)",
    "depth": "Training step by depth",
}
UNSTEADY = 0.15
"""Distance between the quartiles of a ratio, as a share of it, from which a note warns."""
_COMMON = ("time", "x standard", "memory", "x standard", "moved", "floor", "achieved", "of copies")
_PEERS = ("x ours", "difference")


def bench_tables(rows: Sequence[BenchRow]) -> list[RenderableType]:
    """Everything that is printed at the end, in the order measured; all depths in one table."""
    groups: dict[tuple[str, str], list[BenchRow]] = {}
    for row in rows:
        groups.setdefault((row.part, "" if row.part == "depth" else row.shape), []).append(row)
    shown: list[RenderableType] = []
    for (part, _), members in groups.items():
        shown += [_title(part, members), _table(part, members), ""]
    return [*shown, *_doubts(rows), *CONVENTIONS.values()]


def _doubts(rows: Sequence[BenchRow]) -> list[str]:
    """Say so where rounds disagree so much that a ratio means little."""
    unsteady = [
        f"{row.subject} at {row.shape}"
        for row in rows
        if row.ratio and row.ratio_low and row.ratio_high
        if (row.ratio_high - row.ratio_low) > UNSTEADY * row.ratio
    ]
    if not unsteady:
        return []
    named = ", ".join(unsteady[:3]) + (f" and {len(unsteady) - 3} more" if unsteady[3:] else "")
    return [
        f"note: the quartiles of {named} are more than {100 * UNSTEADY:.0f}% apart: something else "
        "uses this machine. Use --clock cpu and more --repeats, or an idle machine.",
        "",
    ]


def _title(part: str, rows: Sequence[BenchRow]) -> str:
    first = rows[0]
    layers = list(dict.fromkeys(str(row.n_layers) for row in rows))
    return (
        f"{_TITLES[part]}: n_layers {', '.join(layers)}, d_model {first.d_model}, "
        f"{first.batch_tokens} tokens per step, seq_len {first.seq_len}; "
        f"copies move {human(first.copy_bytes_per_s)}B/s"
    )


def _table(part: str, rows: Sequence[BenchRow]) -> RenderableType:
    if part == "depth":
        headers = ("recipe", "sublayers", *_COMMON)
        return table(
            headers, [(cells[0], str(row.n_sublayers), *cells[1:]) for row, cells in _shown(rows)]
        )
    peers = any(row.origin == "peer" for row in rows)
    headers = ("recipe", *_COMMON, *(_PEERS if peers else ()))
    return table(headers, [cells for _, cells in _shown(rows, peers)])


def _shown(rows: Sequence[BenchRow], peers: bool = False) -> list[tuple[BenchRow, tuple[str, ...]]]:
    return [(row, _cells(row, peers)) for row in rows]


def _cells(row: BenchRow, peers: bool) -> tuple[str, ...]:
    if row.note:
        return (f"{row.subject}: {row.note}", *[""] * (len(_COMMON) + peers * len(_PEERS)))
    share = row.floor_s / row.moving_s if row.floor_s and row.moving_s else None
    cells = (
        row.subject,
        seconds_text(row.seconds),
        spread_text(row.ratio, row.ratio_low, row.ratio_high),
        "-" if row.peak_bytes is None else human(row.peak_bytes) + "B",
        spread_text(row.peak_ratio),
        "-" if row.moved_bytes is None else human(row.moved_bytes) + "B",
        seconds_text(row.floor_s),
        "-" if row.bytes_per_s is None else human(row.bytes_per_s) + "B/s",
        "-" if share is None else f"{100 * share:.0f}%",
    )
    ours = spread_text(row.times_ours, row.times_ours_low, row.times_ours_high)
    return (*cells, ours, row.difference) if peers else cells


def seconds_text(seconds: float | None) -> str:
    """``6.91 s`` or ``182 ms``; ``-`` for what is not known."""
    if seconds is None:
        return "-"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def spread_text(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """``1.08 [1.07, 1.10]``, as much of it as is known."""
    if value is None:
        return "-"
    digits = 0 if value >= 100 else 1 if value >= 10 else 3
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def peers_text(versions: Mapping[str, str]) -> str:
    """One line: every peer and its version, or why it is not timed."""
    return "peers: " + "; ".join(f"{name} ({found})" for name, found in versions.items())
