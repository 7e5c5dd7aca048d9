"""The tables of a probe: differences, solved lengths, accuracies, steps, controls, tuning. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from analysis.estimates import Interval
from analysis.figures.probe_curves import layers
from analysis.page.numerals import DASH, ends, estimate_texts, number
from analysis.page.table import Cell, Raw, Table
from analysis.probes.types import (
    CONTROLS,
    PASSED,
    Comparison,
    Difference,
    Probe,
    ProbeCell,
    spread_of,
)


def slug(probe: Probe) -> str:
    """A name for files: ``s3_words_length_16``."""
    return re.sub(r"[^a-z0-9]+", "_", probe.label.lower()).strip("_")


def probe_tables(probe: Probe) -> dict[str, Table]:
    """Those that have a row, by kind: what is read first comes first."""
    kinds: dict[str, Callable[[Probe], Table]] = {
        "differences": differences_table,
        "tuning": tuning_table,
        "solved": solved_table,
        "accuracy": accuracy_table,
        "steps": steps_table,
        "by_depth": by_depth_table,
    }
    if probe.is_control:
        kinds = {"control": control_table, "steps": steps_table}
    made = {kind: build(probe) for kind, build in kinds.items()}
    return {kind: table for kind, table in made.items() if table.raw}


def points_texts(interval: Interval) -> tuple[str, str]:
    """A difference of accuracies in points of percent: ``("+7.3", "[+5.1, +9.6]")``."""
    if interval.estimate is None:
        return DASH, ""
    scaled = {
        name: None if value is None else 100 * value
        for name, value in (("estimate", interval.estimate), *_ends(interval))
    }
    return estimate_texts(Interval(**scaled, method=interval.method), "+.1f")  # type: ignore[arg-type]


def levels_texts(interval: Interval) -> tuple[str, str]:
    """A difference in levels: ``("+0.8", "[+0.4, +1.2]")``."""
    return (DASH, "") if interval.estimate is None else estimate_texts(interval, "+.2f")


def _ends(interval: Interval) -> tuple[tuple[str, float | None], ...]:
    return (("low", interval.low), ("high", interval.high))


def differences_table(probe: Probe) -> Table:
    """Every arm against the baseline over depths, in both measures."""
    header = (
        *("arm", "accuracy, points", "Holm p", "verdict"),
        *(f"solved {probe.graded_by}", "Holm p", "verdict", "seeds", "depths"),
    )
    cells = tuple(
        (
            Cell(at.arm),
            *_difference_cells(at.accuracy, points_texts),
            *_difference_cells(at.solved, levels_texts),
            Cell(str(len(at.seeds))),
            Cell(", ".join(map(str, at.depths)) or DASH),
        )
        for at in probe.pooled
    )
    caption = (
        f"Arm minus {probe.baseline} at equal depth, settings and seed, each seed averaged over "
        "the depths named; 95% Student t interval over seeds, before correction. Points: of "
        f"percent, over all labels. Solved {probe.graded_by}: the largest up to which every one "
        f"is at 90% or more. Holm p: over the arms, in each measure by itself; a verdict needs "
        "it, too. No verdict: one seed, or the same difference in every seed."
    )
    return Table(
        f"probe_differences_{slug(probe)}",
        "Differences over depths",
        header,
        cells,
        tuple(_comparison_raw(at) for at in probe.pooled) if probe.by_depth else (),
        caption,
    )


def by_depth_table(probe: Probe) -> Table:
    """Every arm against the baseline at each depth, in accuracy; both measures in the csv."""
    at = {(c.arm, c.depths[0]): c for c in probe.by_depth}
    cells = tuple(
        (Cell(arm), *(_depth_cell(at.get((arm, depth))) for depth in probe.depths))
        for arm in probe.arms[1:]
    )
    caption = (
        f"Accuracy minus {probe.baseline}'s at equal settings and seed, in points of percent, with "
        "95% Student t intervals. Better and worse: after Holm's correction over the arms at that "
        "depth; over all depths together some verdicts may be luck."
    )
    return Table(
        f"probe_differences_by_depth_{slug(probe)}",
        "Differences at each depth",
        ("arm", *map(layers, probe.depths)),
        cells,
        tuple(_comparison_raw(comparison) for comparison in probe.by_depth),
        caption,
    )


def _depth_cell(found: Comparison | None) -> Cell:
    if found is None:
        return Cell(DASH)
    main, detail = points_texts(found.accuracy.interval)
    verdict = found.accuracy.verdict
    return Cell(main, f"{detail} {verdict if verdict in ('better', 'worse') else ''}".strip())


def _difference_cells(
    found: Difference, texts: Callable[[Interval], tuple[str, str]]
) -> tuple[Cell, ...]:
    return (
        Cell(*texts(found.interval)),
        Cell(number(found.p_holm, ".2g")),
        Cell(found.verdict),
    )


def _comparison_raw(found: Comparison) -> dict[str, Raw]:
    raw: dict[str, Raw] = {
        "arm": found.arm,
        "n_layers": " ".join(map(str, found.depths)),
        "seeds": " ".join(map(str, found.seeds)),
    }
    for name, at in (("accuracy", found.accuracy), ("solved", found.solved)):
        raw |= ends(at.interval, f"{name}_difference")
        raw |= {f"{name}_p": at.p_value, f"{name}_p_holm": at.p_holm}
        raw |= {f"{name}_verdict": at.verdict, f"{name}_reason": at.interval.reason}
    return raw


def solved_table(probe: Probe) -> Table:
    """Largest solved level by arm and depth."""
    caption = (
        f"Largest {probe.graded_by} up to which every one is at 90% or more: mean and range over "
        "seeds. Runs are counted where some cannot be used."
    )
    return _by_depth(
        probe, f"probe_solved_{slug(probe)}", f"Solved {probe.graded_by}", _solved_cell, caption
    )


def accuracy_table(probe: Probe) -> Table:
    """Accuracy by arm and depth."""
    caption = "Over all labels of the validation set: mean and range over seeds."
    return _by_depth(probe, f"probe_accuracy_{slug(probe)}", "Accuracy", _accuracy_cell, caption)


def steps_table(probe: Probe) -> Table:
    """Steps to 90% by arm and depth, at one level; without a row where no run got there."""
    level = common_level(probe)
    name, graded = f"probe_steps_{slug(probe)}", f"{probe.graded_by} {level}"
    if level is None:
        return Table(name, "Steps to 90%", (), (), ())
    others = len(probe.levels) > 1
    caption = (
        f"First validated step from which on the accuracy at {graded} stayed at 90% or more: mean "
        "over the seeds that got there, and how many did."
    )
    caption += (
        " It is the largest that half of the runs got to; tables/accuracy_by_difficulty.csv has "
        "every one."
        if others
        else ""
    )
    title = f"Steps to 90% at {graded}" if others else "Steps to 90%"
    return _by_depth(probe, name, title, lambda cell: _steps_cell(cell, level), caption)


def common_level(probe: Probe) -> int | None:
    """Largest level that half of the usable runs brought to 90% for good; None if there is none."""
    runs = [run for cell in probe.cells for run in cell.runs]
    reached = [
        level
        for level in probe.levels
        if 2 * sum(level in run.steps_by_level for run in runs) >= len(runs)
    ]
    return max(reached, default=None)


def control_table(probe: Probe) -> Table:
    """Accuracy by arm and depth, and whether every seed passes."""
    caption = (
        f"A control: every arm must pass where it has depth enough. Mean, least over seeds, and "
        f"passed where every seed is at {PASSED:.0%} or more; a run that diverged or failed has "
        f"not passed. It needs {layers(CONTROLS[probe.task])}."
    )
    return _by_depth(
        probe, f"probe_control_{slug(probe)}", "Control", _control_cell, caption, passed=True
    )


def _by_depth(
    probe: Probe,
    name: str,
    title: str,
    shown: Callable[[ProbeCell], Cell],
    caption: str,
    *,
    passed: bool = False,
) -> Table:
    cells = tuple(
        (
            Cell(arm),
            *(
                Cell(DASH) if (cell := probe.cell(arm, depth)) is None else shown(cell)
                for depth in probe.depths
            ),
        )
        for arm in probe.arms
    )
    raw = tuple(_cell_raw(cell, passed) for cell in probe.cells)
    return Table(name, title, ("arm", *map(layers, probe.depths)), cells, raw, caption)


def _cell_raw(cell: ProbeCell, passed: bool) -> dict[str, Raw]:
    raw: dict[str, Raw] = {"arm": cell.arm, "n_layers": cell.depth}
    raw |= {"n_used": len(cell.runs), "n_runs": cell.n_planned}
    raw["not_used"] = ", ".join(f"{n} {status}" for status, n in cell.lost)
    for name, at in (("accuracy", cell.accuracy), ("solved", cell.solved)):
        values = (at.mean, at.low, at.high) if at else (None, None, None)
        raw |= dict(zip((name, f"{name}_min", f"{name}_max"), values, strict=True))
    steps = [run.steps_to_90 for run in cell.runs if run.steps_to_90 is not None]
    raw |= {"n_reached_90": len(steps), "steps_to_90": sum(steps) / len(steps) if steps else None}
    return raw | ({"passed": str(has_passed(cell)).lower()} if passed else {})


def has_passed(cell: ProbeCell) -> bool:
    """Every planned run of the control ended at 99% or more."""
    enough = all(run.accuracy >= PASSED for run in cell.runs)
    return enough and len(cell.runs) == cell.n_planned


def has_failed(cell: ProbeCell) -> bool:
    """Some run of the control ended below 99%, or ended without an accuracy."""
    return bool(cell.ended_badly) or any(run.accuracy < PASSED for run in cell.runs)


def _missing(cell: ProbeCell) -> str:
    """``2 of 3 runs: 1 diverged``; empty where all are used."""
    if not cell.lost:
        return ""
    why = ", ".join(f"{n} {status}" for status, n in cell.lost)
    return f"{len(cell.runs)} of {cell.n_planned} runs: {why}"


def _details(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _solved_cell(cell: ProbeCell) -> Cell:
    at = cell.solved
    if at is None:
        return Cell(DASH, _missing(cell))
    spread = f"{at.low:g} to {at.high:g}" if at.high > at.low else ""
    return Cell(f"{at.mean:.1f}", _details(spread, _missing(cell)))


def _accuracy_cell(cell: ProbeCell) -> Cell:
    at = cell.accuracy
    if at is None:
        return Cell(DASH, _missing(cell))
    spread = f"{at.low:.1%} to {at.high:.1%}" if at.n > 1 else ""
    return Cell(f"{at.mean:.1%}", _details(spread, _missing(cell)))


def _control_cell(cell: ProbeCell) -> Cell:
    at = cell.accuracy
    if at is None:
        return Cell(DASH, _details("not passed" if has_failed(cell) else "", _missing(cell)))
    verdict = "passed" if has_passed(cell) else "not passed" if has_failed(cell) else ""
    return Cell(f"{at.mean:.2%}", _details(f"least {at.low:.2%}", verdict, _missing(cell)))


def _steps_cell(cell: ProbeCell, level: int) -> Cell:
    steps = [run.steps_by_level[level] for run in cell.runs if level in run.steps_by_level]
    at = spread_of(steps)
    if at is None:
        return Cell(DASH, "" if cell.runs else _missing(cell))
    return Cell(f"{at.mean:.0f}", "" if at.n == len(cell.runs) else f"{at.n} of {len(cell.runs)}")


def tuning_table(probe: Probe) -> Table:
    """Differences at the baseline's values, at own best ones, and what tuning makes of them."""
    header = (
        *("arm", "at equal values", "at own best", "due to tuning", "Holm p", "verdict"),
        *(f"solved {probe.graded_by}: equal", "own best", "due to tuning", "runs", "lost"),
    )
    cells = tuple(
        (
            Cell(share.arm),
            *(Cell(*points_texts(c.accuracy.interval)) for c in (share.equal, share.own)),
            Cell(*points_texts(share.due.accuracy.interval)),
            Cell(number(share.due.accuracy.p_holm, ".2g")),
            Cell(_tuning_verdict(share.n_same == share.n_runs, share.due.accuracy)),
            *(Cell(*levels_texts(c.solved.interval)) for c in (share.equal, share.own, share.due)),
            Cell(f"{share.n_runs}" + (f", {share.n_same} alike" if share.n_same else "")),
            Cell(str(share.n_lost) if share.n_lost else DASH),
        )
        for share in probe.tuning
    )
    raw = tuple(
        {"values": name, **_comparison_raw(comparison)}
        for share in probe.tuning
        for name, comparison in (("equal", share.equal), ("own", share.own), ("due", share.due))
    )
    caption = (
        f"Arm minus {probe.baseline}, in points of accuracy, with 95% Student t intervals over "
        "seeds: every arm at the baseline's values, every arm at its own best, over the same "
        "depths and seeds. Due to tuning: the arm at its own best minus itself at the baseline's "
        "values. Values were chosen by trials of a seed that is not among these. Alike: runs whose "
        "best values are the baseline's. Lost: runs at the baseline's values that diverged or "
        "failed, which flatters those values."
    )
    return Table(f"probe_tuning_{slug(probe)}", "What tuning is worth", header, cells, raw, caption)


def _tuning_verdict(same: bool, due: Difference) -> str:
    if same:
        return "same values"
    words = {"better": "tuning helps", "worse": "tuning hurts"}
    words["no difference found"] = "no gain found"
    return words.get(due.verdict, due.verdict)
