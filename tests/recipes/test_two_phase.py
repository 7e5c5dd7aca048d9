"""The two-phase schedule gives what one softmax over all sources gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recipes.two_phase import Phase, earlier_blocks, merge

Q, B, T, D = 3, 2, 5, 8
SHAPES = [(s, h) for s in (1, 2, 4, 5, 12) for h in (1, 4)]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def one_softmax(scores_SBTH: Tensor, values: list[Tensor]) -> Tensor:
    """sum_s softmax_s(score_s) v_s, by the textbook: stacked, each head on its own channels."""
    weights = scores_SBTH.softmax(0)
    channels = values[0].shape[-1] // weights.shape[-1]
    return (weights.repeat_interleave(channels, -1) * torch.stack(values)).sum(0)


def case(
    n_sources: int, heads: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[Tensor], Tensor, list[Tensor]]:
    """Scores and values of completed sources, scores and values of the block's own; leaves."""
    scores = draw(Q, n_sources, B, T, heads, seed=1, dtype=dtype).mul(2).requires_grad_()
    values = [draw(B, T, D, seed=2 + s, dtype=dtype).requires_grad_() for s in range(n_sources)]
    own_scores = draw(Q, 1, B, T, heads, seed=50, dtype=dtype).requires_grad_()
    own = [draw(B, T, D, seed=51, dtype=dtype).requires_grad_()]
    return scores, values, own_scores, own


def read_all(scores: Tensor, values: list[Tensor], own_scores: Tensor, own: Tensor) -> Tensor:
    """Every read of a block after its first sublayer: phase 1 for all, then a merge each."""
    reads = earlier_blocks(scores, values).reads()
    return torch.stack([merge(r, z[0], own) for r, z in zip(reads, own_scores, strict=True)])


def softmax_all(
    scores: Tensor, values: list[Tensor], own_scores: Tensor, own: list[Tensor]
) -> Tensor:
    together = torch.cat([scores, own_scores], dim=1)
    return torch.stack([one_softmax(s, [*values, *own]) for s in together])


def assert_same_values_and_gradients(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    cotangent = draw(*found.shape, seed=99)
    found_grads = torch.autograd.grad(found, leaves, cotangent)
    expected_grads = torch.autograd.grad(expected, leaves, cotangent)
    torch.testing.assert_close(found_grads, expected_grads, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("n_sources", "heads"), SHAPES)
def test_both_phases_are_one_softmax_in_values_and_gradients(n_sources: int, heads: int) -> None:
    scores, values, own_scores, own = case(n_sources, heads)
    found = read_all(scores, values, own_scores, own[0])
    expected = softmax_all(scores, values, own_scores, own)
    assert_same_values_and_gradients(found, expected, [scores, *values, own_scores, *own])


@pytest.mark.parametrize(("n_sources", "heads"), SHAPES)
def test_the_first_read_of_a_block_is_the_first_phase_alone(n_sources: int, heads: int) -> None:
    scores, values, _, _ = case(n_sources, heads)
    expected = torch.stack([one_softmax(s, values) for s in scores])
    found = earlier_blocks(scores, values).mixed
    assert_same_values_and_gradients(found, expected, [scores, *values])


def test_peak_and_mass_are_the_maximum_and_the_sum_of_exponentials() -> None:
    scores, values, _, _ = case(5, 4)
    phase = earlier_blocks(scores, values)
    torch.testing.assert_close(phase.peak, scores.amax(1), rtol=0, atol=0)
    torch.testing.assert_close(phase.peak + phase.mass.log(), scores.logsumexp(1))


@pytest.mark.parametrize("own_score", [-1e4, 0.0, 1e4])
@pytest.mark.parametrize("top", [-1e4, 1e4])
def test_extreme_scores_stay_finite_in_fp32(top: float, own_score: float) -> None:
    scores, values, own_scores, own = case(4, 1, dtype=torch.float32)
    with torch.no_grad():
        scores[:, 1], own_scores[:] = top, own_score
    leaves = [scores, *values, own_scores, *own]
    found = read_all(scores, values, own_scores, own[0])
    expected = softmax_all(
        scores.double(), [v.double() for v in values], own_scores.double(), [own[0].double()]
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(found.sum(), leaves))


def hull_excess(found: Tensor, values: list[Tensor]) -> float:
    """How far a result lies outside the range that its sources span, entry by entry."""
    stacked = torch.stack(values).detach().double()
    above, below = found.double() - stacked.amax(0), stacked.amin(0) - found.double()
    return float(torch.maximum(above, below).clamp_min(0).max())


@pytest.mark.parametrize("store", [torch.float32, torch.bfloat16])
def test_bf16_sources_are_read_to_fp32_or_to_the_precision_of_the_store(store: torch.dtype) -> None:
    scores, values, own_scores, own = case(12, 1, dtype=torch.bfloat16)
    phase = earlier_blocks(scores, values)
    reads = phase._replace(mixed=phase.mixed.to(store)).reads()
    found = torch.stack([merge(reads[q], own_scores[q, 0], own[0]) for q in range(Q)]).detach()
    exact = softmax_all(
        scores.double(), [v.double() for v in values], own_scores.double(), [own[0].double()]
    )
    # The first phase is rounded once, to 2^-9 of itself, and it is within the largest source.
    largest = max(v.abs().max().item() for v in values)
    bound = largest * (2**-9 if store == torch.bfloat16 else 2**-20)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() <= bound
    assert hull_excess(found, [*values, own[0]]) <= bound


def test_a_flat_softmax_over_many_bf16_sources_does_not_drift() -> None:
    n = 128
    values = [draw(B, T, D, seed=s).add(3.0).bfloat16() for s in range(n)]
    phase = earlier_blocks(torch.zeros(1, n - 1, B, T, 1), values[:-1])
    exact = torch.stack(values).double().mean(0)
    found = merge(phase.reads()[0], torch.zeros(B, T, 1), values[-1])
    torch.testing.assert_close(found.double(), exact, rtol=2**-20, atol=0)
    rounded = phase._replace(mixed=phase.mixed.bfloat16())
    stored = merge(rounded.reads()[0], torch.zeros(B, T, 1), values[-1])
    torch.testing.assert_close(stored.double(), exact, rtol=2**-8, atol=0)
    # An unnormalised sum in bf16 drifts as it grows.
    running = torch.zeros(B, T, D, dtype=torch.bfloat16)
    for value in values:
        running = running + value
    assert (running.double() / n - exact).abs().max() > 10 * (stored - exact).abs().max()


def test_no_copy_of_all_sources_is_saved_for_the_backward() -> None:
    scores, values, _, _ = case(12, 1, dtype=torch.float32)
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        earlier_blocks(scores, values)
    sources = {value.untyped_storage().data_ptr() for value in values}
    wide = [x for x in saved if x.shape[-1] == D]
    assert len(wide) == len(values)
    assert {x.untyped_storage().data_ptr() for x in wide} == sources
    assert max(x.numel() for x in saved if x.shape[-1] != D) <= scores.numel()


def test_torch_compile_traces_both_phases_whole() -> None:
    scores, values, own_scores, own = case(4, 4)
    torch.compiler.reset()
    compiled = torch.compile(read_all, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(scores, values, own_scores, own[0]), read_all(scores, values, own_scores, own[0])
    )


def test_reads_of_a_phase_are_its_slices() -> None:
    phase = Phase(draw(Q, B, T, D), draw(Q, B, T, 1), draw(Q, B, T, 1))
    assert len(phase.reads()) == Q
    for part, whole in zip(phase.reads()[1], phase, strict=True):
        torch.testing.assert_close(part, whole[1], rtol=0, atol=0)
