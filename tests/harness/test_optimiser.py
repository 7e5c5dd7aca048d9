"""Parameter groups, the joint step, and clipping."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from harness.config import ModelConfig, ResidualConfig, TrainConfig
from harness.model import Transformer
from harness.muon import BatchedMuon, orthogonalise
from harness.optimiser import build_optimizer, clip_gradients, parameter_groups, set_lr


def model_of(residual: str = "full", **shape: object) -> Transformer:
    config = ModelConfig.model_validate({"n_layers": 2, "d_model": 32, "head_dim": 16, **shape})
    return Transformer(config, ResidualConfig(name=residual), 64, seed=0)


def settings(**values: object) -> TrainConfig:
    return TrainConfig.model_validate({"budget": {"tokens": 1}, **values})


def fill_gradients(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def names(model: Transformer, group: list[nn.Parameter]) -> set[str]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return {known[id(parameter)] for parameter in group}


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    for tied in (False, True):
        model = model_of(tied_head=tied, qk_norm=True)
        groups = parameter_groups(model)
        grouped = [id(p) for group in groups.values() for p in group]
        assert sorted(grouped) == sorted({id(p) for p in model.parameters()})


def test_muon_and_decay_spare_gains_queries_and_embeddings() -> None:
    model = model_of(qk_norm=True)
    optimizer = build_optimizer(model, settings())
    hidden = names(model, optimizer.parts[0].param_groups[0]["params"])
    assert all(name.startswith("sublayers.") and name.endswith(".weight") for name in hidden)
    spared = [g for g in optimizer.param_groups if g["weight_decay"] == 0.0]
    undecayed = set().union(*(names(model, group["params"]) for group in spared))
    assert undecayed == {
        name for name, _ in model.named_parameters() if name not in hidden | {"head.weight"}
    }


def test_frozen_queries_are_left_out() -> None:
    config = ModelConfig(n_layers=2, d_model=32, head_dim=16)
    frozen = ResidualConfig(name="full", options={"frozen_queries": True})
    model = Transformer(config, frozen, 64, seed=0)
    assert "residual.queries" not in names(model, parameter_groups(model)["residual"])


def test_joint_step_equals_the_two_optimisers_stepped_apart() -> None:
    joint_model, apart_model = model_of(), model_of()
    train = settings(lr=0.02, adamw_lr_scale=0.5, residual_lr_scale=0.1)
    joint = build_optimizer(joint_model, train)
    groups = parameter_groups(apart_model)
    muon = BatchedMuon(groups["hidden"], lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW(
        [
            {"params": groups["decayed"], "weight_decay": 0.1},
            {"params": groups["undecayed"], "weight_decay": 0.0},
            {"params": groups["residual"], "weight_decay": 0.0, "lr": 0.002},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    for seed in range(3):
        for model in (joint_model, apart_model):
            fill_gradients(model, seed)
        joint.step()
        muon.step()
        adamw.step()
    for left, right in zip(joint_model.parameters(), apart_model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_state_survives_a_round_trip_through_disk(tmp_path: Path) -> None:
    first, second = model_of(), model_of()
    optimizer = build_optimizer(first, settings())
    fill_gradients(first)
    optimizer.step()
    torch.save({"m": first.state_dict(), "o": optimizer.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    second.load_state_dict(saved["m"])
    restored = build_optimizer(second, settings())
    restored.load_state_dict(saved["o"])
    for model, each in ((first, optimizer), (second, restored)):
        fill_gradients(model, seed=1)
        set_lr(each, 1e-3)
        each.step()
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)


def test_clipping_bounds_the_global_norm_and_zero_only_measures() -> None:
    model = model_of()
    fill_gradients(model)
    raw = clip_gradients(model, 0.0)
    assert clip_gradients(model, 1.0) == raw
    squares = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(
        torch.as_tensor(squares).sqrt(), torch.tensor(1.0), rtol=1e-4, atol=0
    )


def matrices(seed: int, *shapes: tuple[int, int]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


SHAPES = [(32, 32), (88, 32), (32, 88), (32, 32), (88, 32), (8, 64)]


def test_muon_follows_torchs_own_within_the_rounding_of_its_bf16() -> None:
    ours, theirs = matrices(0, *SHAPES), matrices(0, *SHAPES)
    start = [parameter.detach().clone() for parameter in ours]
    settings = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95}
    steppers = [
        BatchedMuon(ours, **settings),
        torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings),
    ]
    for step in range(4):
        for parameters, stepper in zip((ours, theirs), steppers, strict=True):
            for parameter, gradient in zip(parameters, matrices(step + 1, *SHAPES), strict=True):
                parameter.grad = gradient.detach()
            stepper.step()
    for left, right, begin in zip(ours, theirs, start, strict=True):
        moved, difference = right - begin, left - right
        assert difference.norm() < 0.02 * moved.norm()


def test_newton_schulz_equals_the_written_out_polynomial() -> None:
    stack = torch.randn(3, 5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for ours, matrix in zip(orthogonalise(stack), stack, strict=True):
        u, s, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
        for _ in range(5):  # the iteration acts on singular values alone
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        torch.testing.assert_close(ours, u @ torch.diag(s) @ v, rtol=1e-9, atol=1e-10)
        assert (s > 0.5).all()
        assert (s < 1.3).all()


def test_newton_schulz_leaves_a_zero_gradient_at_zero() -> None:
    assert torch.equal(orthogonalise(torch.zeros(1, 4, 6)), torch.zeros(1, 4, 6))
