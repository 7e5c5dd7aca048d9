"""The ``slurm:`` block where a grid or a profile spells it out: mistakes with their places.

A profile is a file with the one key ``slurm``, kept apart from grids: account, partition, setup of
a cluster. It lies under the grid's own block. Limits: what a partition allows is not known here
(:mod:`harness.slurm.limits`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.config import Execution, RunConfig
from harness.errors import GridError
from harness.fields import Reader
from harness.problems import Problems, explain, show, unknown_key
from harness.slurm.matching import check_condition
from harness.slurm.options import (
    Conflict,
    Container,
    Resources,
    Slurm,
    by_resources,
    check_execution,
    layered,
    matching,
    with_overrides,
)
from harness.yaml12 import Document, Loc, read_yaml

_PROCESSES = "write execution.devices (processes of one run on a node) at the top level"
_SCRIPT = "remove it; isoloss writes it into the script itself"
_HINTS = {
    **dict.fromkeys(("nodes", "num_nodes", "n_nodes"), "write execution.nodes at the top level"),
    **dict.fromkeys(("ntasks", "tasks", "ntasks_per_node", "tasks_per_node"), _PROCESSES),
    **dict.fromkeys(("gpus", "n_gpus", "num_gpus", "ngpus"), "write gpus_per_node"),
    **dict.fromkeys(("cpus", "n_cpus", "num_cpus"), "write cpus_per_task"),
    **dict.fromkeys(("memory", "mem_gb", "mem_mb"), "write mem, such as mem: 16G"),
    **dict.fromkeys(("timeout_min", "timeout", "walltime", "time_limit"), "write time"),
    **dict.fromkeys(("signal_delay_s", "signal_lead"), "write signal_lead_s"),
    **dict.fromkeys(("max_num_timeout", "max_restarts"), "write max_requeues"),
    **dict.fromkeys(("requeue", "no_requeue"), "write on_preempt: requeue or resubmit"),
    "experiments_per_job": "write runs_per_job",
    **dict.fromkeys(("modules", "setup_lines", "prologue"), "write setup: [module load …]"),
    **dict.fromkeys(
        ("job_name", "name", "array", "output", "error", "open_mode", "dependency"), _SCRIPT
    ),
}
"""Names that sbatch and other tools use, with ours."""
_WHOLE_SWEEP = ("max_queued", "canary", "overrides")


def lay_over_profile(problems: Problems, path: Path) -> None:
    """Put a profile's ``slurm:`` block under the one of the document.

    Mistakes in what the profile contributed will carry the profile's file and line.

    Raises
    ------
    GridError
        The profile is absent, a folder or not YAML.
    """
    if not path.exists():
        raise GridError([f"{path}: no such profile. Check --profile and $ISOLOSS_PROFILE."])
    if path.is_dir():
        raise GridError([f"{path}: is a folder. Name the profile's file in it."])
    profile, document = read_yaml(path), problems.document
    for loc in profile.lines:
        document.origins["--profile", *loc] = profile.where(loc)
    if not isinstance(profile.value, dict) or "slurm" not in profile.value:
        rule = "a profile is a mapping with the one key slurm"
        problems.add(("--profile",), f"{rule}, got {show(profile.value)}.")
        return
    for key in profile.value:
        if key != "slurm":
            rule = f"a profile holds nothing but slurm; '{key}' belongs in the grid"
            problems.add(("--profile", key), f"{rule}. Move it there.")
    _merge(problems, profile)


def _merge(problems: Problems, profile: Document) -> None:
    document, below = problems.document, profile.value["slurm"]
    if not isinstance(below, dict):
        problems.add(("--profile", "slurm"), f"must be a mapping, got {show(below)}.")
        return
    above = document.value.get("slurm", {})
    if not isinstance(above, dict):
        return
    merged = layered(below, above)
    for loc in profile.lines:
        if loc[:1] == ("slurm",) and not _spelled(document.value, loc):
            document.origins[loc] = profile.where(loc)
    document.value["slurm"] = merged


def _spelled(value: Any, loc: Loc) -> bool:
    """Whether a document itself has a value at a place, or one that hides all below it."""
    for part in loc:
        if not isinstance(value, dict):
            return True
        if part not in value:
            return False
        value = value[part]
    return True


def read_block(
    reader: Reader, execution: Execution, configs: Sequence[RunConfig], notices: list[str]
) -> Slurm | None:
    """Read the ``slurm:`` block of a document, and note every mistake.

    Parameters
    ----------
    configs
        The runs of the grid; none where the grid has mistakes.
    notices
        Gets a line for every override that matches no run.

    Returns
    -------
    Slurm
        None where the document has no such block, or after a mistake.
    """
    document = reader.problems.document
    if "slurm" not in document.value:
        return None
    block = document.value["slurm"]
    sound = _check_conditions(reader, block)
    try:
        slurm = Slurm.model_validate(block)
    except ValidationError as error:
        for loc, message in _mistakes(error):
            if loc[1:2] != ("overrides",) or loc[3:4] != ("if",) or "required" in message:
                reader.problems.add(loc, message)
        return None
    if not sound:
        return None
    used = _check_combinations(reader.problems, slurm, execution, configs)
    notices.extend(
        document.problem(("slurm", "overrides", i), "matches no run, so it does nothing.")
        for i in range(len(slurm.overrides))
        if configs and i not in used
    )
    return slurm


def _check_conditions(reader: Reader, block: Any) -> bool:
    """Check every override's ``if``, whatever else is wrong; return whether all are right."""
    overrides = block.get("overrides") if isinstance(block, dict) else None
    sound = True
    for i, override in enumerate(overrides if isinstance(overrides, list) else ()):
        if isinstance(override, dict) and "if" in override:
            loc = ("slurm", "overrides", i, "if")
            sound &= check_condition(reader, override["if"], loc) is not None
    return sound


def _check_combinations(
    problems: Problems, slurm: Slurm, execution: Execution, configs: Sequence[RunConfig]
) -> set[int]:
    """Check every set of options that a run will have; return the overrides in use."""
    found = matching(slurm, configs) if configs else {(): []}
    for chosen in found:
        place: Loc = ("slurm", "overrides", chosen[-1]) if chosen else ("slurm",)
        try:
            check_execution(with_overrides(slurm, chosen), execution)
        except ValidationError as error:
            for loc, message in _mistakes(error):
                problems.add((*place, *loc[1:]), message)
        except Conflict as conflict:
            problems.add((*place, conflict.key), f"{conflict}.")
    return {i for chosen in found for i in chosen}


def _mistakes(error: ValidationError) -> Iterator[tuple[Loc, str]]:
    """Tell each mistake once, with its place in the document."""
    seen: set[Loc] = set()
    for item in error.errors(include_url=False):
        loc: Loc = tuple(part for part in item["loc"] if part != "[key]")
        fault = (item.get("ctx") or {}).get("error")
        if isinstance(fault, Conflict):
            loc = (*loc, fault.key)
        if loc not in seen:
            seen.add(loc)
            message = _unknown(loc) if item["type"] == "extra_forbidden" else explain(item)
            yield ("slurm", *loc), message.replace("?.", "?")


def _unknown(loc: Loc) -> str:
    key = str(loc[-1])
    if loc[0] == "container":
        return unknown_key(key, Container.model_fields)
    inside = loc[0] == "overrides"
    if inside and key in _WHOLE_SWEEP:
        return f"'{key}' stands for the whole sweep. Write it directly under slurm."
    known = ["if", *Resources.model_fields] if inside else list(Slurm.model_fields)
    bare = key.lstrip("-").replace("-", "_").removeprefix("slurm_").removeprefix("sbatch_")
    fault = f"unknown key '{key}'"
    hint = _HINTS.get(bare) or (f"write {bare}" if bare in known else None)
    close = difflib.get_close_matches(bare, known, n=1, cutoff=0.7)
    if hint or close:
        return f"{fault}; {hint}." if hint else f"{fault}; did you mean '{close[0]}'?"
    option = key.replace("_", "-")
    return f"{fault}; if sbatch knows it, write it under extra: {{{option}: …}}."


def groups_to_submit(
    document: Document, slurm: Slurm | None, configs: Sequence[RunConfig]
) -> list[tuple[Slurm, list[int]]]:
    """Group runs by resources, as :func:`harness.slurm.options.by_resources` does.

    Raises
    ------
    GridError
        Runs without a time limit, which is required to submit them.
    """
    groups = by_resources(slurm or Slurm(), configs)
    untimed = sum(len(indices) for options, indices in groups if options.time is None)
    if untimed:
        rule = "is required to submit, and not set"
        which = "" if untimed == len(configs) else f" for {untimed} of {len(configs)} runs"
        advice = "Add slurm: {time: 2:00:00}; `isoloss plan` estimates the hours"
        raise GridError([document.problem(("slurm", "time"), f"{rule}{which}. {advice}.")])
    return groups
