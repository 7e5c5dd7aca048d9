"""Every way of computing the depth read, on one GPU: do they agree, and what do they cost?

``python -m tests.gpu.check_kernels`` trains ``standard``, ``full`` and ``block`` for some steps at
24 layers of width 1024 on 16k tokens under bf16 autocast, in turn, and prints the median step time
of every kernel over that of ``standard``, its spread, and peak memory; then how far logits and
gradients lie from those of ``cached`` in fp32. Kernels that cannot run here are named with the
reason. It ends within ``--minutes``: what is not done by then is left out and said so. ``--tiny``
shrinks the model to what a CPU does in seconds.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.config import ModelConfig, ResidualConfig
from harness.model import Transformer
from recipes.base import RecipeError
from recipes.gpu_read import LIBRARIES

VOCAB = 256
KERNELS = ("torch", "cached", "two_phase", "liger", "fla")
RESERVE_S = 60
"""Seconds kept for the measurement when kernels compile and tune themselves."""


@dataclass(frozen=True)
class Scale:
    """Shape of the model and of a step."""

    n_layers: int = 24
    d_model: int = 1024
    head_dim: int = 64
    seq_len: int = 2048
    batch: int = 8


TINY = Scale(n_layers=2, d_model=32, head_dim=16, seq_len=16, batch=2)


class OutOfTime(Exception):
    """A step did not end in time."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def build(recipe: str, kernel: str, scale: Scale, device: str) -> Transformer:
    """A model with that kernel, its depth queries off zero.

    Raises
    ------
    RecipeError
        The kernel cannot compute this recipe here.
    """
    config = ModelConfig(n_layers=scale.n_layers, d_model=scale.d_model, head_dim=scale.head_dim)
    model = Transformer(config, ResidualConfig(name=recipe), VOCAB, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.to(device)
    model.residual.use_kernel(kernel)
    return model


def batch_of(scale: Scale, device: str) -> Tensor:
    """Random token ids, one more than a sequence is long."""
    generator = torch.Generator().manual_seed(2)
    shape = (scale.batch, scale.seq_len + 1)
    return torch.randint(VOCAB, shape, generator=generator).to(device)


def step(model: Transformer, ids: Tensor, *, lowered: bool) -> Tensor:
    """Forward and backward, under bf16 autocast if ``lowered``; return the logits."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=lowered):
        logits: Tensor = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return logits.detach()


def seconds_of(model: Transformer, ids: Tensor) -> float:
    """Wall time of one step."""
    on_gpu = ids.is_cuda
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    step(model, ids, lowered=on_gpu)
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def peak_gib(model: Transformer, ids: Tensor) -> float | None:
    """Memory that one step adds at its peak, in GiB; None where it is not counted."""
    if not ids.is_cuda:
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(model, ids, lowered=True)
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest entry."""
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def parity(recipe: str, kernel: str, scale: Scale, device: str) -> tuple[float, float]:
    """Distance of logits and of gradients from those of ``cached``, in fp32."""
    ids = batch_of(scale, device)
    ours, theirs = (build(recipe, name, scale, device) for name in (kernel, "cached"))
    logits = relative(step(ours, ids, lowered=False), step(theirs, ids, lowered=False))
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return logits, max(relative(p.grad, q.grad) for p, q in pairs if p.grad is not None)  # type: ignore[arg-type]


def thin_autotuning() -> None:
    """Let fla tune its kernels over every fourth configuration: all of them would take too long."""
    try:
        fused = importlib.import_module("fla.ops.attnres.fused")
    except ImportError:
        return
    for name in ("attnres_fwd_kernel", "attnres_bwd_kernel_dv", "attnres_bwd_kernel_dqdw"):
        kernel = getattr(fused, name)
        kernel.configs = kernel.configs[::4]


def warm_up(
    arms: Sequence[tuple[str, str]], scale: Scale, device: str, end: float
) -> dict[tuple[str, str], Transformer]:
    """Build and run every arm once; say which cannot run, or did not in time."""
    ids, models = batch_of(scale, device), {}
    for recipe, kernel in arms:
        try:
            with at_most(end - RESERVE_S - time.perf_counter()):
                model = build(recipe, kernel, scale, device)
                peak = peak_gib(model, ids) or seconds_of(model, ids)
        except RecipeError as error:
            print(f"{recipe} {kernel}: not here: {error}", flush=True)
        except OutOfTime:
            print(f"{recipe} {kernel}: did not compile in time", flush=True)
        except torch.OutOfMemoryError:
            print(f"{recipe} {kernel}: out of memory", flush=True)
        else:
            models[recipe, kernel] = model
            unit = "GiB more at the peak of a step" if device == "cuda" else "s"
            print(f"{recipe} {kernel}: ready, {peak:.2f} {unit}", flush=True)
    return models


def measure(
    models: dict[tuple[str, str], Transformer], ids: Tensor, repeats: int, end: float
) -> list[dict[tuple[str, str], float]]:
    """Step times of every arm, one round after the other, until the time is over."""
    rounds: list[dict[tuple[str, str], float]] = []
    while len(rounds) < repeats and (not rounds or time.perf_counter() < end):
        rounds.append({arm: seconds_of(model, ids) for arm, model in models.items()})
    return rounds


def show_times(rounds: list[dict[tuple[str, str], float]]) -> None:
    """Print the median and the spread of every arm's ratio to ``standard`` within a round."""
    print(f"\nstep time over standard, median of {len(rounds)} interleaved rounds (range)")
    for arm in rounds[0]:
        ratios = [taken[arm] / taken["standard", "torch"] for taken in rounds]
        milliseconds = 1e3 * statistics.median(taken[arm] for taken in rounds)
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        name = f"{arm[0]} {arm[1]}"
        print(f"{name:<18} {middle:6.3f} ({low:.3f} to {high:.3f})  {milliseconds:9.2f} ms")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a model that a CPU runs in seconds")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--recipes", nargs="+", default=["full", "block"])
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scale = TINY if options.tiny or device == "cpu" else Scale()
    end = time.perf_counter() + 60 * options.minutes
    thin_autotuning()
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    libraries = ", ".join(library.label for library in LIBRARIES.values())
    print(f"{where}; torch {torch.__version__}, {libraries}; {scale}", flush=True)

    arms = [("standard", "torch")]
    arms += [(recipe, kernel) for kernel in options.kernels for recipe in options.recipes[::-1]]
    models = warm_up(arms, scale, device, end)
    show_times(measure(models, batch_of(scale, device), options.repeats, end - RESERVE_S / 2))

    print("\nlargest difference from cached in fp32, over the largest entry: logits, gradients")
    small = replace(scale, n_layers=min(4, scale.n_layers), seq_len=min(64, scale.seq_len))
    for recipe, kernel in list(models)[1:]:
        try:
            with at_most(end - time.perf_counter()):
                logits, gradients = parity(recipe, kernel, small, device)
        except OutOfTime:
            print(f"{recipe} {kernel}: no time left")
        else:
            print(f"{recipe} {kernel}: {logits:.1e}, {gradients:.1e}", flush=True)


if __name__ == "__main__":
    main()
