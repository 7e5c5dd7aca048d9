"""Checks of single values of the ``slurm:`` block, each bringing a value into one form.

Pure functions from what YAML gave to the text that sbatch gets; a ValueError says rule, got and
what to do, without the final full stop. Forms that sbatch 22.05 itself reads are accepted, except
those that ask for no time limit.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from harness.problems import show

PLAIN = (
    *("partition", "account", "qos", "constraint", "exclude", "nodelist", "reservation"),
    *("gres", "gpus_per_node", "gpus_per_task", "cpus_per_gpu"),
    *("mem", "mem_per_gpu", "mem_per_cpu", "time", "comment", "mail_type", "mail_user"),
)
"""Options that go to sbatch as they are, under their own names."""
_OURS = {
    **dict.fromkeys(
        ("job-name", "array", "output", "error", "open-mode", "dependency", "wrap", "wait"),
        "isoloss sets it itself",
    ),
    **dict.fromkeys(("parsable", "test-only"), "it is for calling sbatch by hand"),
    **dict.fromkeys(("clusters", "cluster"), "isoloss knows one cluster, the default one"),
    **dict.fromkeys(("requeue", "no-requeue"), "write slurm.on_preempt"),
    **dict.fromkeys(("gpus", "gpus-per-socket"), "write slurm.gpus_per_node"),
    "nodes": "write execution.nodes",
    **dict.fromkeys(
        ("ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-gpu"),
        "write execution.devices (processes of one run on a node)",
    ),
    "signal": "write slurm.signal and slurm.signal_lead_s",
}
"""Long options that would contradict the script, with the way out."""
_MAIL_EVENTS = (
    *("NONE", "ALL", "BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?")
_MEMORY = re.compile(r"(\d{1,12}) ?([KMGT]?)(?:I?B)?", re.IGNORECASE)
_FRACTION = re.compile(r"(\d{1,6}\.\d{1,6}) ?([MGT])(?:I?B)?", re.IGNORECASE)
_GPUS = re.compile(r"(?:[A-Za-z][\w.-]*:)?[0-9]{1,4}")
_BREAKS = frozenset(map(chr, (*range(32), 0x7F, 0x85, 0x2028, 0x2029)))


def one_line(text: str) -> str:
    """Text that fits on one line of a script, without spaces around it."""
    if _BREAKS.intersection(text):
        raise ValueError(f"must be one line without control characters, got {text[:60]!r}")
    if not text.strip():
        raise ValueError("must not be empty. Remove the key, or write null")
    return text.strip()


def shell_line(text: str) -> str:
    """A line of shell, which may be indented."""
    if _BREAKS.intersection(text) - {"\t"}:
        rule = "must be one shell line without control characters"
        raise ValueError(f"{rule}, got {text[:60]!r}. Write one list item a line")
    return text


def seconds_of(text: str) -> int:
    """Seconds that a time limit of sbatch means.

    Source: sbatch(1), ``--time``; seen in what slurmctld 22.05 made of each form.

    Raises
    ------
    ValueError
        The text has none of the forms.
    """
    parts = _TIME.fullmatch(text.strip())
    if parts is None:
        raise ValueError("not a time of sbatch")
    days, *fields = parts.groups()
    numbers = [int(field) for field in fields if field is not None]
    if days is None and len(numbers) < 3:
        numbers.insert(0, 0)
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def time_limit(value: Any) -> str:
    """A time limit as ``HH:MM:SS`` or ``D-HH:MM:SS``; a bare number is in minutes."""
    rule = "must be minutes, or text such as 2:00:00 (hours) or 1-12 (days-hours)"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{rule}, got {show(value)}")
    text = str(value).strip() if isinstance(value, str) or abs(value) < 10**40 else ""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        raise ValueError(f"{rule}; without a limit a hung run keeps its node, got {show(value)}")
    try:
        total = seconds_of(text)
    except ValueError:
        raise ValueError(f"{rule}, got {show(value)}") from None
    if not total:
        raise ValueError(f"{rule}; 0 means no limit to sbatch, and a hung run would keep its node")
    minutes, seconds = divmod(total, 60)
    days, minutes = divmod(minutes, 24 * 60)
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
    return f"{days}-{clock}" if days else clock


def memory(value: Any) -> str:
    """An amount of memory as ``16G``; a bare number is in megabytes (of 1024 * 1024 bytes)."""
    rule = "must be megabytes, or text such as 16G"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{rule}, got {show(value)}")
    text = str(value).strip() if isinstance(value, str) or abs(value) < 10**40 else ""
    parts = _MEMORY.fullmatch(text)
    if parts is None:
        fraction = _FRACTION.fullmatch(text)
        raise ValueError(f"{rule}, got {show(value)}{_whole(fraction) if fraction else ''}")
    return f"{int(parts[1])}{parts[2].upper() or 'M'}" if int(parts[1]) else "0"


def _whole(parts: re.Match[str]) -> str:
    smaller = {"M": "K", "G": "M", "T": "G"}[parts[2].upper()]
    return f". Write {round(float(parts[1]) * 1024)}{smaller}: sbatch knows no fractions"


def gpu_count(value: Any) -> str:
    """A number of GPUs, ``2`` or ``a100:2``."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _GPUS.fullmatch(text) or not int(text.split(":")[-1]):
        raise ValueError(f"must be a number of GPUs such as 2 or a100:2, got {show(value)}")
    return text


def gpus_of_gres(gres: str) -> int:
    """GPUs that a ``--gres`` text asks for on each node, such as 2 in ``gpu:a100:2,nvme:1``."""
    return sum(_gpus_of(item) for item in gres.split(","))


def without_gpus(gres: str) -> str:
    """The generic resources that are no GPUs."""
    return ",".join(item for item in gres.split(",") if not _gpus_of(item))


def _gpus_of(item: str) -> int:
    name, *rest = item.strip().removeprefix("gres/").split(":")
    if name != "gpu":
        return 0
    return int(rest[-1]) if rest and rest[-1].isdecimal() else 1


def mail_events(value: Any) -> str:
    """Events to mail about as sbatch takes them: ``END,FAIL``."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) for i in items):
        raise ValueError(f"must be events such as END,FAIL, got {show(value)}")
    names = [item.strip().upper() for item in items]
    for name in names:
        if name not in _MAIL_EVENTS:
            close = difflib.get_close_matches(name, _MAIL_EVENTS, n=1)
            hint = f". Did you mean '{close[0]}'?" if close else ""
            raise ValueError(f"must be some of {', '.join(_MAIL_EVENTS)}; got '{name}'{hint}")
    return ",".join(names)


def extra_option(name: str) -> str:
    """The name of a long option of sbatch that has no field of its own."""
    if name in _OURS:
        raise ValueError(f"--{name} cannot stand here: {_OURS[name]}")
    field = name.lstrip("-").replace("-", "_")
    if field in (*PLAIN, "cpus_per_task"):
        raise ValueError(f"this option has a key of its own: write slurm.{field}")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        fitting = name.lstrip("-").replace("_", "-").lower()
        hint = f", got '{name}'. Write {fitting}" if len(fitting) > 1 else f", got '{name}'"
        raise ValueError(f"must be a long option of sbatch without its dashes{hint}")
    return name


def extra_value(value: Any) -> str:
    """The value of an extra option; true, like empty text, stands for an option without one."""
    if value is True or value == "":
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return one_line(value)
    rule = "must be text, an integer, or true for an option without a value"
    raise ValueError(f"{rule}, got {show(value)}. Remove it, or put it in quotes")
