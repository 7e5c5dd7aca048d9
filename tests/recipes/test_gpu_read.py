"""Fused GPU kernels of other libraries compute our read, or say why not.

Parity is checked where there is CUDA; and where triton is installed, on any machine and at tiny
shapes, in its interpreter. Triton picks the interpreter when it is imported, so those tests run in
a process of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes import gpu_read
from recipes.gpu_read import LIBRARIES, fla_read, liger_read, why_not
from tests.gpu import check_kernels

READS = {"fla": fla_read, "liger": liger_read}
EPS = 1e-8
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ROOT = Path(__file__).resolve().parents[2]

in_the_interpreter = pytest.mark.skipif(
    not INTERPRETED, reason="runs in a process with TRITON_INTERPRET=1, started by another test"
)
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def reference(
    values: list[Tensor], query: Tensor, gain: Tensor | None, eps: float, scale: float
) -> Tensor:
    """Equations 2 to 4 of arXiv 2603.15031, stacked, in float64."""
    stacked = torch.stack([value.double() for value in values])
    keys = stacked / (stacked.square().mean(-1, keepdim=True) + eps).sqrt()
    keys = keys if gain is None else keys * gain.double()
    weights = ((keys @ query.double()) * scale).softmax(0)
    return (weights[..., None] * stacked).sum(0)


def leaves(n: int, d: int, dtype: torch.dtype, device: str, *, gain: bool) -> list[Tensor]:
    """A query, a gain, and n sources."""
    generator = torch.Generator().manual_seed(n * d)
    drawn = [torch.randn(d, generator=generator), torch.rand(d, generator=generator) + 0.5]
    drawn += [torch.randn(2, 3, d, generator=generator).to(dtype) for _ in range(n)]
    kept = drawn if gain else [drawn[0], *drawn[2:]]
    return [x.to(device).requires_grad_() for x in kept]


def assert_parity(
    kernel: str, n: int, d: int, dtype: torch.dtype, device: str, scale: float, *, gain: bool
) -> None:
    inputs = leaves(n, d, dtype, device, gain=gain)
    query, values = inputs[0], inputs[-n:]
    weight = inputs[1] if gain else None
    found = READS[kernel](values, query, weight, EPS, scale)
    expected = reference(values, query, weight, EPS, scale)
    # One rounding to the dtype of the sources; arithmetic in fp32 everywhere.
    unit = {torch.float32: 1e-5, torch.bfloat16: 2**-8}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=unit, atol=unit)
    cotangent = torch.ones_like(expected).cumsum(-1).sin()
    found_grads = torch.autograd.grad(found, inputs, cotangent.to(dtype))
    expected_grads = torch.autograd.grad(expected, inputs, cotangent)
    for ours, theirs in zip(found_grads, expected_grads, strict=True):
        scale_of = 1 + theirs.double().abs().max().item()
        torch.testing.assert_close(
            ours.double(), theirs.double(), rtol=2 * unit, atol=2 * unit * scale_of
        )


@pytest.mark.parametrize("kernel", READS)
def test_a_cpu_is_no_place_for_either_kernel(kernel: str) -> None:
    reason = why_not(kernel, torch.float32, "cpu", 5, 64)
    assert reason is not None
    assert reason.startswith(f"kernel '{kernel}' of {LIBRARIES[kernel].distribution} ")
    assert "runs on CUDA only, not on cpu" in reason


@pytest.mark.parametrize("kernel", READS)
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"values_dtype": torch.float64}, "would lower float64"),
        ({"d_model": 64, "key_rank": 16}, "full width only, not key_rank 16"),
        ({"heads": 4}, "one head, not heads 4"),
        ({"weighting": "sigmoid"}, "by softmax only, not by sigmoid"),
        ({"query": "input_dependent"}, "not query input_dependent"),
        ({"query": "none"}, "not query none"),
        ({"key_norm": "none"}, "not key_norm none"),
        ({"recency_init": 3.0}, "no recency_init 3"),
        ({"count_prior": True}, "no count_prior"),
        ({"value_scale": "mean"}, "not value_scale mean"),
        ({"n_sources": 5000}, "sources, not 5000"),
    ],
    ids=str,
)
def test_each_option_that_a_kernel_lacks_is_named(
    kernel: str, given: dict[str, Any], reason: str
) -> None:
    assert reason in (why_not(kernel, **given) or "")


def test_all_reasons_are_given_at_once() -> None:
    reason = why_not("fla", torch.float64, "cpu", heads=2) or ""
    assert all(part in reason for part in ("CUDA", "float64", "heads 2"))


def test_liger_takes_few_sources_and_32_bit_offsets() -> None:
    assert "at most 16 sources, not 17" in (why_not("liger", n_sources=17) or "")
    within = why_not("liger", n_sources=16, d_model=1024, n_tokens=2**17 - 1) or ""
    beyond = why_not("liger", n_sources=16, d_model=1024, n_tokens=2**17) or ""
    assert "32-bit" not in within
    assert "32-bit" in beyond
    assert "32-bit" not in (why_not("fla", n_sources=16, d_model=1024, n_tokens=2**17) or "")


def test_a_library_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_read, "_version", lambda distribution: None)
    reason = why_not("fla", device_type="cuda")
    assert reason is not None
    assert "fla-core (not installed) needs pip install fla-core" in reason


def test_a_library_that_cannot_be_imported_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kernel: str) -> None:
        raise ImportError("libcuda.so.1")

    monkeypatch.setattr(gpu_read, "_missing", lambda library: [])
    monkeypatch.setattr(gpu_read, "_load", fail)
    assert "cannot be imported: ImportError('libcuda.so.1')" in (why_not("liger") or "")


def test_an_unknown_kernel_is_an_error() -> None:
    with pytest.raises(ValueError, match="fla, liger, got 'cuda'"):
        why_not("cuda")


@on_cuda
@pytest.mark.parametrize("kernel", READS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("n", "d", "scale", "gain"), [(1, 64, 1.0, True), (5, 64, 1.0, True), (13, 1024, 0.5, False)]
)
def test_kernels_on_cuda_are_the_reference_in_values_and_gradients(
    kernel: str, dtype: torch.dtype, n: int, d: int, scale: float, gain: bool
) -> None:
    reason = why_not(kernel, dtype, "cuda", n, d)
    if reason is not None:
        pytest.skip(reason)
    assert_parity(kernel, n, d, dtype, "cuda", scale, gain=gain)


@on_cuda
@pytest.mark.parametrize("kernel", READS)
def test_sources_of_two_dtypes_are_read_in_the_wider_one(kernel: str) -> None:
    if reason := why_not(kernel, torch.float32, "cuda", 3, 64):
        pytest.skip(reason)
    mixed = [torch.randn(2, 3, 64, device="cuda") for _ in range(3)]
    mixed[1] = mixed[1].bfloat16()
    query = torch.randn(64, device="cuda")
    expected = reference(mixed, query, None, EPS, 1.0)
    found = READS[kernel](mixed, query, None, EPS, 1.0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="is the process that this test starts")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_kernels_in_tritons_interpreter_are_the_reference() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-k", "interpreted", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


CASES = [
    pytest.param(5, 20, torch.float32, 1.0, True, id="a width that is no power of two"),
    pytest.param(
        9, 32, torch.float32, 0.5, False, id="more sources than one bucket, scale, no gain"
    ),
    pytest.param(5, 32, torch.bfloat16, 1.0, True, id="bf16 sources"),
    pytest.param(1, 16, torch.float32, 1.0, True, id="one source"),
]


@in_the_interpreter
@pytest.mark.parametrize(("n", "d", "dtype", "scale", "gain"), CASES)
def test_interpreted_liger_is_the_reference(
    n: int, d: int, dtype: torch.dtype, scale: float, gain: bool
) -> None:
    pytest.importorskip("liger_kernel.ops.attn_res")
    assert why_not("liger", dtype, "cuda", n, d) is None
    assert_parity("liger", n, d, dtype, "cpu", scale, gain=gain)


@in_the_interpreter
@pytest.mark.parametrize(("n", "d", "dtype", "scale", "gain"), CASES)
def test_interpreted_fla_is_the_reference(
    n: int,
    d: int,
    dtype: torch.dtype,
    scale: float,
    gain: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fla.ops.attnres")
    assert why_not("fla", dtype, "cuda", n, d) is None
    kernels = interpretable_fla(tmp_path)
    monkeypatch.setattr(gpu_read, "_load", lambda kernel: kernels.fused_attnres)
    assert_parity("fla", n, d, dtype, "cpu", scale, gain=gain)


NOT_INTERPRETABLE = {
    # In the interpreter an index is a Python int, which has no `to`.
    "(i_l * BL).to(tl.int64)": "i_l * BL",
    "i_n.to(tl.int64)": "i_n",
    # There are no CUDA tensors.
    "if not residuals[0].is_cuda:": "if False:",
}


def interpretable_fla(folder: Path) -> ModuleType:
    """Load fla's kernels from a copy that the interpreter can run, without their autotuning."""
    fused = importlib.import_module("fla.ops.attnres.fused")
    source = Path(str(fused.__file__)).read_text(encoding="utf-8")
    for found, put in NOT_INTERPRETABLE.items():
        assert found in source, f"fla's kernels changed: no {found!r}"
        source = source.replace(found, put)
    path = folder / "interpretable_fla.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("attnres_fwd_kernel", "attnres_bwd_kernel_dv", "attnres_bwd_kernel_dqdw"):
        kernel = getattr(module, name)
        kernel.configs = kernel.configs[-1:]
    return module


def test_the_check_script_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    check_kernels.main(["--tiny"])
    printed = capsys.readouterr().out
    for recipe in ("full", "block"):
        for kernel in ("torch", "cached", "two_phase"):
            assert f"{recipe} {kernel}" in " ".join(printed.split()), printed
