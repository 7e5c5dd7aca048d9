"""Reads the measured step times that :mod:`harness.rates` estimates from.

Sources: records of this sweep and of its neighbours in the results folder, and the files of
`isoloss bench` in the same folder. A sweep of ten thousand runs costs as much as a small one: which
runs are alike is known from the manifest, and of those only the newest few records are opened.
Files that cannot be read are no evidence, and no error.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from harness.config import ModelConfig, TrainConfig, label_of
from harness.cost import TRAIN_PER_FORWARD, forward_flops_per_token
from harness.paths import SweepPaths
from harness.rates import STANDARD, Group, Pace, Ratio, Sample, group_of, likeliest_device

KEPT = 5
"""Records read of every arm at every size, the newest."""
TRIES = 10
"""Run folders opened for them: the newest may not have ended."""
MAX_OPENED = 600
"""Run folders opened in all."""
MAX_MANIFEST_BYTES = 16 * 2**20
"""Manifests of other sweeps read in all, the newest first."""
MAX_BENCHES = 20
"""Files of bench read, the newest."""
_DAMAGES = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StopIteration),
)
"""What reading a file of unexpected content may raise."""
A = TypeVar("A")
T = TypeVar("T")


def read_pace(paths: SweepPaths, device: str | None = None) -> Pace:
    """Read what was measured in a results folder.

    Parameters
    ----------
    paths
        The sweep to plan; it need not exist.
    device
        Name of the device that will train, as ``harness.provenance.device_name`` gives it here.
        None where another machine will: the device of most measurements, of this sweep first.
    """
    samples = list(_run_samples(paths))
    ratios: list[Ratio] = []
    for file in _newest(paths.root.parent.glob("bench/*/bench.json"))[:MAX_BENCHES]:
        found = _lenient(_bench, file)
        if found is not None:
            samples += found[0]
            ratios += found[1]
    return Pace(device or likeliest_device(samples), tuple(samples), tuple(ratios))


def _lenient(read: Callable[[A], T], what: A) -> T | None:
    try:
        return read(what)
    except _DAMAGES:
        return None


def _newest(files: Iterable[Path]) -> list[Path]:
    """Files that exist, the newest first."""
    dated = [(_lenient(lambda file: file.stat().st_mtime_ns, file) or 0, file) for file in files]
    return [file for when, file in sorted(dated, reverse=True) if when]


def _run_samples(paths: SweepPaths) -> Iterator[Sample]:
    """Samples of this sweep and of its neighbours: one of every group, then a second."""
    opened = 0
    for sweep in _sweeps(paths):
        groups = _lenient(_begun_runs, sweep) or {}
        kept = Counter[Group]()
        for nth, (group, run_ids) in itertools.product(range(TRIES), groups.items()):
            if nth >= len(run_ids) or kept[group] >= KEPT:
                continue
            if opened >= MAX_OPENED:
                return
            opened += 1
            sample = _lenient(_run_sample, (sweep, run_ids[nth], group))
            if sample is not None:
                kept[group] += 1
                yield replace(sample, own=sweep is paths)


def _sweeps(paths: SweepPaths) -> Iterator[SweepPaths]:
    yield paths
    left = MAX_MANIFEST_BYTES
    others = (f for f in paths.root.parent.glob("*/manifest.json") if f != paths.manifest)
    for manifest in _newest(others):
        left -= _lenient(lambda file: file.stat().st_size, manifest) or 0
        if left >= 0:
            yield SweepPaths(manifest.parent)


def _begun_runs(sweep: SweepPaths) -> dict[Group, list[str]]:
    """Ids of the runs that have a folder, by group, the newest first."""
    with os.scandir(sweep.runs) as entries:
        changed = {entry.name: entry.stat().st_mtime_ns for entry in entries}
    if not changed:
        return {}
    groups: dict[Group, list[str]] = {}
    for run in from_json(sweep.manifest.read_bytes())["runs"]:
        if run["run_id"] in changed:
            group = group_of(run["arm"], run["config"], run["vocab_size"])
            groups.setdefault(group, []).append(run["run_id"])
    for run_ids in groups.values():
        run_ids.sort(key=changed.__getitem__, reverse=True)
    return groups


def _run_sample(where: tuple[SweepPaths, str, Group]) -> Sample | None:
    """What one record tells; None where it tells no step time."""
    sweep, run_id, group = where
    record = from_json(sweep.run(run_id).record.read_bytes())
    if record["status"] != "done" or not record["step_time_s"]:
        return None
    hardware, steps = record["hardware"], int(record["steps"])
    own_steps = steps - (record.get("branched_at") or 0)
    processes = int(hardware.get("processes", 1))
    step_s = float(record["step_time_s"])
    outside = None
    if record["wall_s"] and record["attempts"] == 1:  # a resumed run did some steps twice
        outside = processes * max(0.0, float(record["wall_s"]) - own_steps * step_s)
    return Sample(
        group=group,
        device=str(hardware["device"]),
        threads=hardware.get("threads"),
        processes=processes,
        step_s=processes * step_s,
        step_flops=float(record["flops"]) / steps,
        overhead_s=outside,
        source=f"runs of {sweep.root.name}",
    )


def _bench(file: Path) -> tuple[list[Sample], list[Ratio]]:
    """Whole training steps of recipes, and what they cost beside the standard one's."""
    about = from_json(file.read_bytes())
    plan, device, name = (
        about["plan"],
        str(about["hardware"]["device"]),
        f"bench {file.parent.name}",
    )
    samples: list[Sample] = []
    ratios: list[Ratio] = []
    for row in about["rows"]:
        if row["part"] == "residual" or row["origin"] != "recipe" or not row["seconds"]:
            continue
        told = _bench_group(row, plan)
        if told is None:
            continue
        group, step_flops = told
        samples.append(
            Sample(
                group=group,
                device=device,
                threads=plan["threads"],
                processes=1,
                step_s=float(row["seconds"]),
                step_flops=step_flops,
                overhead_s=None,
                source=name,
                is_run=False,
            )
        )
        if row["ratio"] and group.arm != STANDARD:
            ratio = float(row["ratio"])
            ratios.append(Ratio(group.arm, device, group.precision, step_flops, ratio, name))
    return samples, ratios


def _bench_group(row: dict[str, Any], plan: dict[str, Any]) -> tuple[Group, float] | None:
    """Group of a row of bench, and FLOPs of its step; None for recipes that are gone."""
    from recipes.base import RecipeError, Shape, get, parse_options

    recipe = next(r for r in plan["recipes"] if r["label"] == row["subject"])
    shapes = (s for s in plan["shapes"] if all(s[k] == row[k] for k in ("d_model", "seq_len")))
    model = ModelConfig(
        n_layers=row["n_layers"], d_model=row["d_model"], head_dim=next(shapes)["head_dim"]
    )
    options = {k: row["d_model"] if v == "d_model" else v for k, v in recipe["options"]}
    try:
        shape = Shape(n_layers=model.n_layers, d_model=model.d_model)
        price = get(recipe["name"]).cost(shape, parse_options(recipe["name"], options, shape))
    except RecipeError:
        return None
    forward = forward_flops_per_token(model, row["seq_len"], plan["vocab_size"])
    config = {
        "model": model.model_dump(mode="json"),
        "data": row,
        "train": {
            "batch_tokens": row["batch_tokens"],
            "precision": plan["precision"],
            "optimizer": TrainConfig.model_fields["optimizer"].default,
        },
    }
    arm = label_of(recipe["name"], options)
    step_flops = TRAIN_PER_FORWARD * (forward + price.flops_per_token) * row["batch_tokens"]
    return group_of(arm, config, plan["vocab_size"]), float(step_flops)
