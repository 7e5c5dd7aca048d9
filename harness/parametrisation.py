"""Transferable parametrisations: how scales and rates follow width and depth, in closed form.

A rate found on a small base model holds on a larger one if every part of the model moves by as much
per step as in the base model. With ``m_N = d_model / base_d_model`` and ``m_L = n_layers /
base_n_layers``, and every factor 1 at the base shape, so that all parametrisations equal
``standard`` there:

=========================================  ==============  ===========  ==================
factor of                                  ``standard``    ``mup``      ``completep``
=========================================  ==============  ===========  ==================
hidden matrices: initial std               fan_in^-1/2     the same     the same
... of those that write to the stream      / sqrt(2 L)     the same     / sqrt(2 L_base)
head, and embedding where tied: std        d^-1/2          d_base^-1/2  d_base^-1/2
embedding: std                             1               1            1
a sublayer's output, before its write      1               1            1 / m_L
logits                                     1               1 / m_N      1 / m_N
rate of hidden matrices by AdamW           1               1 / m_N      1 / m_N
rate of hidden matrices by Muon            1               m_N^-1/2     m_N^-1/2
rate of embedding, gains, head             1               1            1
decay of hidden matrices                   1               1 / rate     1 / rate
decay of the head                          1               1            1
AdamW's epsilon: embedding, head, last     1               1 / m_N      1 / m_N
gain
... hidden matrices and gains              1               1 / m_N      1 / (m_N m_L)
a recipe's own parameters: rate            1               base / own   base / own fan-in
=========================================  ==============  ===========  ==================

Width: Yang et al. 2022 (arXiv 2203.03466), tables 3 and 8. The head is in the form of table 8, a
multiplier 1 / m_N of the logits with constant initial std and rate, which a tied head can share
with the embedding. Attention logits keep 1 / sqrt(head_dim), because head_dim stays as the width
grows (the paper's 1 / head_dim is for heads that widen). d_ff and the key/value width are taken to
grow with d_model, as their defaults do.

Depth: Dey et al. 2025, CompleteP (arXiv 2505.01618), table 1 and equation 40, with alpha = 1; the
initial std does not follow depth. Weight decay is AdamW's decoupled one, rate times decay: the
paper multiplies the decay of hidden matrices by m_N, which keeps that product.

Muon: an update is rate x 0.2 sqrt(max(rows, columns)) x orthogonal, so its spectral norm is
0.2 sqrt(max(rows, columns)) times the rate. Features move alike at every width if it is
proportional to sqrt(fan_out / fan_in) (Yang, Simon, Bernstein 2023, arXiv 2310.17813, condition 1).
With all sides proportional to d_model that ratio is constant while sqrt(max) grows as m_N^1/2: the
rate falls as m_N^-1/2, and the decay grows as m_N^1/2. Depth: the size of an orthogonal update, as
of Adam's, does not depend on the gradient's, so CompleteP's count holds for it: L branches, each
1 / m_L of an update of fixed size, move the stream by a fixed amount, and the rate follows depth
under neither optimiser. That is an argument, not a published result: CompleteP's theory of what
each layer learns, and its experiments, are for AdamW. Muon has no epsilon of that kind.

A recipe's parameters are trained by AdamW. A readout of the stream adds up as many aligned terms as
its fan-in, so its rate falls as an output weight's (table 3); the recipe says how many
(``Transfer.readout_fan_in``) and what theory leaves open (``Transfer.transfer_note``). Their
epsilon is left as it is: no source speaks of it. Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.config import ModelConfig

Role = Literal["hidden", "hidden_gain", "outer", "recipe"]
"""What a parameter is to a parametrisation; outer: the embedding, the head and the last gain."""
Rule = Literal["adamw", "muon"]
"""Which optimiser steps hidden matrices."""


@dataclass(frozen=True)
class Factors:
    """What a parametrisation multiplies the settings of one parameter by."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


def width_multiplier(model: ModelConfig) -> float:
    """Return ``m_N = d_model / base_d_model``; 1 under ``standard``."""
    return model.d_model / (model.base_d_model or model.d_model)


def depth_multiplier(model: ModelConfig) -> float:
    """Return ``m_L = n_layers / base_n_layers``; 1 under ``standard`` and ``mup``."""
    return model.n_layers / (model.base_n_layers or model.n_layers)


def logit_multiplier(model: ModelConfig) -> float:
    """Return the factor of the logits, ``1 / m_N`` (Yang et al. 2022, table 8)."""
    return 1.0 / width_multiplier(model)


def branch_multiplier(model: ModelConfig) -> float:
    """Return the factor of a sublayer's output, ``1 / m_L`` (CompleteP, table 1, alpha = 1)."""
    return 1.0 / depth_multiplier(model)


def hidden_std(model: ModelConfig, fan_in: int, writes_stream: bool) -> float:
    """Return the initial std of a hidden matrix.

    ``fan_in^-1/2``, and less by ``sqrt(2 L)`` for matrices that write to the stream, with the base
    model's L under ``completep``.
    """
    layers = model.base_n_layers or model.n_layers
    return float((fan_in * (2 * layers if writes_stream else 1)) ** -0.5)


def readout_std(model: ModelConfig) -> float:
    """Return the initial std of the head: ``d^-1/2``, of the base model's d where there is one."""
    return float((model.base_d_model or model.d_model) ** -0.5)


def factors(
    model: ModelConfig, role: Role, rule: Rule = "adamw", fan_in_growth: float = 1.0
) -> Factors:
    """Return what the settings of a parameter are multiplied by; see the table of this module.

    Parameters
    ----------
    role
        What the parameter is.
    rule
        Which optimiser steps hidden matrices; everything else is AdamW's.
    fan_in_growth
        recipe: the readout's fan-in over that of the base model.
    """
    width, depth = width_multiplier(model), depth_multiplier(model)
    if role == "hidden":
        growth = width**0.5 if rule == "muon" else width
        return Factors(lr=1 / growth, weight_decay=growth, eps=1 / (width * depth))
    if role == "hidden_gain":
        return Factors(eps=1 / (width * depth))
    if role == "recipe":
        return Factors(lr=1 / fan_in_growth)
    return Factors(eps=1 / width)
