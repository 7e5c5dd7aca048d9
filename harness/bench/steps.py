"""What `isoloss bench` times: whole training steps, and the residual part alone.

A step is what the harness does in training: forward, backward, clipping and the optimiser on the
harness's own Transformer; only the batch is random tokens. The residual part replaces every
sublayer by :func:`stand_in`, so that little but reads and writes is left.

Shapes: B batch, T tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from harness.bench.plan import BenchPlan, BenchShape, RecipeChoice
from harness.config import Budget, ResidualConfig, TrainConfig
from harness.cost import count_params, peak_bytes
from harness.model import Transformer
from harness.module import token_loss
from harness.optimiser import build_optimizer, clip_gradients
from recipes.base import Residual, ResidualCost, Shape, build, get, parse_options

STAND_IN_SCALE = 0.1
"""Keeps sums over a hundred sublayers finite in every precision."""
STREAM_DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""Of our stream in training, by precision: bf16 autocast keeps it fp32."""
PEER_DTYPES = {**STREAM_DTYPES, "bf16": torch.bfloat16}
"""Of the input and parameters of other people's code."""


def stand_in(u_BTD: Tensor) -> Tensor:
    """The cheapest sublayer that makes a tensor of its own: ``y = 0.1 u``."""
    return u_BTD * STAND_IN_SCALE


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Autocast as in training: bf16 over the whole step, nothing otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def check_choice(choice: RecipeChoice, shape: BenchShape, kernel: str) -> None:
    """Build the recipe for a shape and set its kernel, or say why that cannot be.

    Raises
    ------
    RecipeError
        Unknown recipe, wrong options, a shape or a kernel that does not fit.
    """
    _residual(choice.at(shape), shape, kernel)


def recipe_price(choice: RecipeChoice, shape: BenchShape) -> ResidualCost:
    """Closed-form price of the recipe at a shape."""
    config, own = choice.at(shape), _shape(shape)
    options = parse_options(config.name, config.options, own)
    return get(config.name).cost(own, options)


def predicted_bytes(choice: RecipeChoice, shape: BenchShape, plan: BenchPlan) -> int:
    """Closed-form estimate of the peak memory of :func:`training_step`, in bytes."""
    price = recipe_price(choice, shape)
    n_params = count_params(shape.model, plan.vocab_size).total + price.params
    return peak_bytes(
        shape.model, plan.precision, shape.batch_tokens, n_params, plan.vocab_size, price
    )


def _shape(shape: BenchShape) -> Shape:
    return Shape(n_layers=shape.n_layers, d_model=shape.d_model)


def _residual(config: ResidualConfig, shape: BenchShape, kernel: str) -> Residual:
    generator = torch.Generator().manual_seed(0)
    residual = build(config.name, _shape(shape), config.options, generator)
    residual.use_kernel(kernel)
    return residual


def training_step(
    choice: RecipeChoice, shape: BenchShape, plan: BenchPlan, device: torch.device
) -> Callable[[], None]:
    """Build a model with its optimiser; each call takes one step on one batch."""
    model = Transformer(shape.model, choice.at(shape), plan.vocab_size, seed=0)
    model.residual.use_kernel(plan.kernel)
    if plan.precision == "fp64":
        model.double()
    model.to(device)
    train = TrainConfig(budget=Budget(tokens=shape.batch_tokens), batch_tokens=shape.batch_tokens)
    optimizer = build_optimizer(model, train)
    size = (shape.sequences, shape.seq_len + 1)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(plan.vocab_size, size, generator=generator).to(device)

    def step() -> None:
        optimizer.zero_grad()
        with precision_context(plan.precision, device):
            torch.autograd.backward(token_loss(model, tokens))
            clip_gradients(model, train.grad_clip)
            optimizer.step()

    return step


class ResidualPart(nn.Module):
    """The loop of the backbone over one recipe, with :func:`stand_in` for every sublayer."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return what the final norm would see, [B, T, D]."""
        residual = self.residual
        state = residual.start(x_BTD)
        for t in range(residual.shape.n_sublayers):
            u_BTD, state = residual.read(state, t)
            state = residual.write(state, stand_in(u_BTD), t)
        return residual.finish(state)


def recipe_part(choice: RecipeChoice, shape: BenchShape, kernel: str) -> ResidualPart:
    """Build the residual part of a recipe."""
    return ResidualPart(_residual(choice.at(shape), shape, kernel))


def forward_backward(
    part: nn.Module, shape: BenchShape, precision: str, device: torch.device, sequences: int
) -> Callable[[], None]:
    """Return a call that takes ``part`` forward and back, to its input and to its parameters.

    The input stands for the embedding, [sequences, seq_len, d_model]. Under bf16 autocast ours get
    it in fp32 and keep fp32 parameters, as in training, where embedding, stream and block sums are
    fp32; other people's code gets bf16 input and parameters, as it takes them.
    """
    dtype = (STREAM_DTYPES if isinstance(part, ResidualPart) else PEER_DTYPES)[precision]
    part.to(device, dtype)
    size = (sequences, shape.seq_len, shape.d_model)
    generator = torch.Generator().manual_seed(0)
    x_BTD, grad_BTD = (torch.randn(size, generator=generator).to(device, dtype) for _ in range(2))
    x_BTD.requires_grad_()
    leaves = [x_BTD, *part.parameters()]

    def call() -> None:
        for leaf in leaves:
            leaf.grad = None
        with precision_context(precision, device):
            out_BTD = part(x_BTD)
        torch.autograd.backward(out_BTD, grad_BTD.to(out_BTD.dtype))

    return call
