"""Where a result comes from: code version, libraries, hardware."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("harness", "recipes", "analysis")
LIBRARIES = ("torch", "lightning", "numpy", "pydantic", "mlflow", "optuna")
# Dense bf16 peak in FLOP/s from NVIDIA's data sheets (SXM parts, no sparsity).
DATA_SHEET_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


@functools.cache
def code_version() -> str:
    """Version of isoloss, with commit when run from a git checkout.

    ``+dirty`` says that a source file was changed or added since the commit.
    """
    try:
        base = version("isoloss")
    except PackageNotFoundError:
        base = "unknown"
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return base
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return base
    dirty = "+dirty" if _git(root, "status", "--porcelain", "--", *PACKAGES) else ""
    return f"{base}+g{commit}{dirty}"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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


def hardware(threads: int) -> dict[str, Any]:
    """Describe the device a run trained on."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else _cpu_model()
    return {"device": device, "host_cpus": os.cpu_count(), "threads": threads}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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
