"""Parameter groups, and the optimiser that steps Muon and AdamW as one.

Hidden matrices of attention and MLP go to Muon (Jordan et al. 2024; Liu et al. 2025, whose update
scaling 0.2 sqrt(max(rows, columns)) matches AdamW's update RMS, so that one learning rate serves
both). Everything else goes to AdamW. Gains, queries, embeddings and every parameter of a recipe are
never decayed and never orthogonalised: decay would pull a depth query to the uniform mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from harness.config import TrainConfig
from harness.model import Transformer
from harness.muon import BatchedMuon
from harness.parametrisation import Factors, Rule, factors
from harness.sharding import assembled, resharded

Groups = dict[str, list[nn.Parameter]]
ADAMW_EPS = 1e-8
"""AdamW's epsilon at the base shape."""


def parameter_groups(model: Transformer) -> Groups:
    """Split the trainable parameters by treatment.

    ``hidden``: weight matrices of attention and MLP. ``decayed``: an untied head. ``undecayed``:
    the embedding and the gains of norms. ``residual``: every parameter of the recipe.
    """
    hidden = {
        id(module.weight) for module in model.sublayers.modules() if isinstance(module, nn.Linear)
    }
    head = set() if model.config.tied_head else {id(model.head.weight)}
    recipe = {id(parameter) for parameter in model.residual.parameters()}
    members = {"hidden": hidden, "decayed": head, "residual": recipe}
    groups: Groups = {"hidden": [], "decayed": [], "undecayed": [], "residual": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            owner = (name for name, ids in members.items() if id(parameter) in ids)
            groups[next(owner, "undecayed")].append(parameter)
    return groups


class JointOptimizer(Optimizer):
    """Several optimisers stepped as one, so that a trainer counts one step for all of them.

    ``param_groups`` holds the groups of every part.
    """

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        every = [
            parameter for part in parts for g in part.param_groups for parameter in g["params"]
        ]
        super().__init__(every, {})
        self._share_groups()

    def _share_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every part."""
        loss = closure() if closure is not None else None
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """State of every part, in order, of whole tensors; see :func:`assembled` where sharded."""
        return {"parts": [assembled(part.state_dict()) for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore every part, from a state of whole tensors."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(resharded(state, part))
        self._share_groups()


def build_optimizer(model: Transformer, train: TrainConfig) -> JointOptimizer:
    """Build the optimiser of a run with every group at its peak learning rate.

    Every group carries ``lr_scale``, its rate as a share of ``train.lr``. A parametrisation other
    than ``standard`` splits groups by what it makes of their settings.
    """
    muon = train.optimizer == "muon"
    rest = train.adamw_lr_scale if muon else 1.0
    split = _by_factors(model, train.optimizer)

    def settings(name: str, decay: float, lr_scale: float) -> list[dict[str, Any]]:
        return [
            {"params": p, "weight_decay": decay * f.weight_decay, "lr_scale": lr_scale * f.lr}
            | ({} if muon and name == "hidden" else {"eps": ADAMW_EPS * f.eps})
            for f, p in split[name].items()
        ]

    hidden = settings("hidden", train.weight_decay, 1.0)
    others = [
        *settings("decayed", train.weight_decay, rest),
        *settings("undecayed", 0.0, rest),
        *settings("residual", 0.0, train.residual_lr_scale),
    ]
    adamw = AdamW(
        others if muon else [*hidden, *others], betas=(train.beta1, train.beta2), fused=True
    )
    parts: list[Optimizer] = [adamw]
    if muon:
        parts.insert(0, BatchedMuon(hidden, momentum=train.momentum))
    joint = JointOptimizer(parts)
    set_lr(joint, train.lr)
    return joint


def _by_factors(model: Transformer, rule: Rule) -> dict[str, dict[Factors, list[nn.Parameter]]]:
    """Split every group by what the parametrisation multiplies its settings by."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    split: dict[str, dict[Factors, list[nn.Parameter]]] = {}
    for group, parameters in parameter_groups(model).items():
        by_factors = split.setdefault(group, {})
        for parameter in parameters:
            found = _factors(model, group, names[id(parameter)], rule)
            by_factors.setdefault(found, []).append(parameter)
    return split


def _factors(model: Transformer, group: str, name: str, rule: Rule) -> Factors:
    if group == "residual":
        growth = _fan_in_growth(model, name.removeprefix("residual."))
        return factors(model.config, "recipe", fan_in_growth=growth)
    if group == "hidden":
        return factors(model.config, "hidden", rule)
    inside = name.startswith("sublayers.")
    return factors(model.config, "hidden_gain" if inside else "outer")


def _fan_in_growth(model: Transformer, name: str) -> float:
    """Fan-in of a recipe's parameter over that at the base width; 1 without a base."""
    residual = model.residual
    base = replace(residual.shape, d_model=model.config.base_d_model or residual.shape.d_model)
    own, at_base = (
        residual.readout_fan_in(name, shape, residual.options) for shape in (residual.shape, base)
    )
    return own / at_base


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group to its share of ``lr``."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def clip_gradients(model: nn.Module, max_norm: float) -> torch.Tensor:
    """Clip the global gradient norm in place and return the norm before clipping.

    ``max_norm = 0`` measures without clipping. The norm is that of all processes' gradients where
    these are sharded.
    """
    bound = max_norm if max_norm > 0 else float("inf")
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
