"""Where a result comes from: code, libraries, hardware, environment.

What a record carries is small (:func:`library_versions`, :func:`hardware`); what an attempt tells
of itself is all of it (:func:`attempt_facts`). The code's own version: :mod:`harness.snapshot`.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from harness.config import Execution
from harness.snapshot import code_facts, code_version

__all__ = [
    "attempt_facts",
    "code_facts",
    "code_version",
    "device_name",
    "environment",
    "hardware",
    "library_versions",
    "machine",
    "peak_flops_per_s",
    "peak_memory_bytes",
    "reset_peak_memory",
]

LIBRARIES = ("torch", "lightning", "numpy", "pydantic", "mlflow", "optuna")
# Dense bf16 peak in FLOP/s from NVIDIA's data sheets (SXM parts, no sparsity).
DATA_SHEET_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
VARIABLES = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
        *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES"),
        *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "MKL_NUM_THREADS", "MKL_CBWR"),
        *("OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "LD_PRELOAD"),
        *("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHASHSEED", "PYTHONOPTIMIZE"),
        *("CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "ISOLOSS_CACHE"),
        *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "RANK", "LOCAL_RANK"),
        *("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"),
        *("SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_JOB_NODELIST"),
        *("SLURMD_NODENAME", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
        *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"),
        *("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"),
    )
)
"""Environment variables that an attempt writes down."""
VARIABLE_PREFIXES = ("NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_")
"""Prefixes of further ones."""
_DRIVER = r"Kernel Module.*?\s(\d+\.[\d.]+)"
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY|AUTH", re.IGNORECASE)


def attempt_facts(execution: Execution) -> dict[str, Any]:
    """Everything that an attempt tells of itself beside its host, process and times.

    Parameters
    ----------
    execution
        How the run is executed.

    Returns
    -------
    dict
        ``code_version``, ``code`` (:func:`code_facts`), ``library_versions``, ``hardware`` (as in
        records), ``machine``, ``environment`` and ``execution``. Seeds stand in the run's
        configuration.
    """
    return {
        "code_version": code_version(),
        "code": code_facts(),
        "library_versions": library_versions(),
        "hardware": hardware(execution.threads, execution.devices * execution.nodes),
        "machine": machine(),
        "environment": environment(os.environ),
        "execution": execution.model_dump(mode="json"),
    }


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that can change what a run computes or where it runs; never a secret.

    Those of :data:`VARIABLES`, and those with a prefix of :data:`VARIABLE_PREFIXES` whose name does
    not sound like a secret's.
    """
    return {
        name: environ[name]
        for name in sorted(environ)
        if name in VARIABLES or (name.startswith(VARIABLE_PREFIXES) and not _SECRET.search(name))
    }


def machine() -> dict[str, Any]:
    """Describe the machine; None where it does not tell.

    Returns
    -------
    dict
        ``system``, ``kernel``, ``machine``, ``usable_cpus`` (that this process may use),
        ``memory_bytes``, and where there is CUDA ``devices`` (names), ``device_bytes``,
        ``driver`` and ``cuda``.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {**_fixed_machine(), "usable_cpus": usable}


@functools.cache
def _fixed_machine() -> dict[str, Any]:
    about: dict[str, Any] = {
        "system": _system_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "memory_bytes": _memory_bytes(),
    }
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        about["devices"] = [device.name for device in devices]
        about["device_bytes"] = [device.total_memory for device in devices]
        about["driver"] = _first_match("/proc/driver/nvidia/version", _DRIVER)
        about["cuda"] = torch.version.cuda
    return about


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can change a number."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware(threads: int, processes: int = 1, *, device: str = "auto") -> dict[str, Any]:
    """Describe what a run trained on, as its record carries it.

    Parameters
    ----------
    threads
        CPU threads of one process.
    processes
        Processes that shared the run, one device each.
    device
        ``cpu`` describes the processor also where there is CUDA.
    """
    about = {"device": device_name(device), "host_cpus": os.cpu_count(), "threads": threads}
    return about if processes == 1 else {**about, "processes": processes}


def device_name(device: str = "auto") -> str:
    """Name of the first CUDA device; of the processor where there is none, or for ``cpu``."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return _cpu_model()


@functools.cache
def _cpu_model() -> str:
    name = _first_match("/proc/cpuinfo", r"(?m)^model name\s*:\s*(.*\S)")
    return name or platform.processor() or platform.machine()


@functools.cache
def peak_flops_per_s() -> float:
    """Peak FLOP/s of the device: the data sheet's where we know it, else measured.

    Measured means the best of five fp32 products of two 1024 x 1024 matrices with the threads of
    this process: what a matmul-bound program could reach here.
    """
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        known = [peak for part, peak in DATA_SHEET_PEAKS.items() if part in name]
        if known:
            return known[0]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.ones(1024, 1024, device=device)
    return max(_timed_product(matrix) for _ in range(5))


def _timed_product(matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    matrix @ matrix
    if matrix.is_cuda:
        torch.cuda.synchronize()
    return 2 * matrix.shape[0] ** 3 / (time.perf_counter() - begin)


def reset_peak_memory() -> None:
    """Start a new measurement of peak memory."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_memory_bytes() -> int | None:
    """Peak memory since :func:`reset_peak_memory`: of the device, or of this process on CPU.

    None where the system does not tell.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
    return peaks[0] if peaks else None
