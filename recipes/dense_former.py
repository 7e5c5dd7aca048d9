"""DenseFormer: after a transformer layer, a learned weighted sum of all layers' states.

Paper: Pagliardini et al. 2024, DenseFormer, arXiv 2402.02622, section 3; code epfml/DenseFormer.
With ``X_0`` the embedding and ``X_i`` the state leaving transformer layer i, whose attention and
MLP keep their residual additions::

    X_i = layer_i(Y_{i-1}),    Y_i = sum_{j <= i, j = i mod k} a_ij X_j    if p divides i
                               Y_i = X_i                                   otherwise

with dilation k and period p; the final norm sees ``Y_L``. Weights are scalars, unnormalised and of
either sign, one-hot on X_i at first, so the model is then the standard residual bit for bit. L (L
+ 3) / 2 of them at k = p = 1.

Sources are states (cumulative, before averaging) and there is one sum per transformer layer, as in
the paper; Kimi Team (arXiv 2603.15031) writes the method over outputs of sublayers, which this is
not. Weights that neither are positive nor sum to one are not drawn as depth weights.

Deviations: none. A state is dropped when no later sum reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from recipes.base import AnyOptions, Options, Residual, ResidualCost, Shape, recipe
from recipes.depth_attention import full_precision, widen


class DenseFormerOptions(Options):
    """Options of DenseFormer."""

    dilation: PositiveInt = 1
    """Layers from one source to the next (the paper's k), counted back from the newest."""
    period: PositiveInt = 1
    """Layers from one weighted sum to the next (the paper's p); the paper recommends 4 x 5."""

    def check(self, shape: Shape) -> None:
        """Refuse a model without a sum of two states or more."""
        last = shape.n_layers - shape.n_layers % self.period
        if not last:
            raise ValueError(
                f"period must not exceed the model's {shape.n_layers} layers, or nothing is "
                f"averaged; got {self.period}"
            )
        if self.dilation > last:
            raise ValueError(
                f"dilation must not exceed {last}, the last layer that is averaged, or every sum "
                f"has one state; got {self.dilation}"
            )

    def averages(self, layer: int) -> bool:
        """Whether a weighted sum follows a layer, 1 .. n_layers."""
        return layer % self.period == 0

    def sources(self, layer: int) -> list[int]:
        """Layers whose states enter the sum after a layer, oldest first; 0 is the embedding."""
        return list(range(layer % self.dilation, layer + 1, self.dilation))

    def kept(self, layer: int, n_layers: int) -> list[int]:
        """Layers, up to this one, whose states a later sum still reads."""
        later = [i for i in range(layer + 1, n_layers + 1) if self.averages(i)]
        return sorted({j for i in later for j in self.sources(i) if j <= layer})


class LayerStates(NamedTuple):
    """The state between sublayers."""

    stream: Tensor
    """What the next sublayer sees, [B, T, D]."""
    outputs: tuple[Tensor, ...]
    """States that a later sum still reads, oldest first."""


Mix = Callable[[Tensor, Sequence[Tensor]], Tensor]


def mix(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum values by scalar weights, one after the other and without stacking them."""
    mixed = weights[-1] * widen(values[-1])
    for i in range(len(values) - 1):
        mixed = torch.addcmul(mixed, weights[i], widen(values[i]))
    return mixed


def mix_countable(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Sum stacked values by one matmul."""
    stacked = torch.stack([widen(value) for value in values]).flatten(1)
    return (weights[None] @ stacked).view_as(values[0])


@recipe("dense_former", revision=1)
class DenseFormer(Residual):
    """Running sums, replaced after a layer by learned sums of all of them."""

    Options = DenseFormerOptions
    options: DenseFormerOptions
    equation = "X_i = layer_i(Y_{i-1}); Y_i = sum_{j<=i, j=i mod k} a_ij X_j every p layers"
    source = "Pagliardini et al. 2024, arXiv 2402.02622, sec. 3; epfml/DenseFormer"
    transfer_note = (
        "Width: the weights are scalars and keep their rate. Depth: the factor base_n_layers / "
        "n_layers of every output is CompleteP's, derived for a plain sum. Of learned sums of "
        "all states theory says nothing: a sum has as many weights as layers before it, and each "
        "moves by one rate per step, so a sum's change grows with depth. Tune residual_lr_scale "
        "at every depth."
    )

    def __init__(self, shape: Shape, options: DenseFormerOptions) -> None:
        super().__init__(shape, options)
        layers = range(1, shape.n_layers + 1)
        self.kept = [options.kept(i, shape.n_layers) for i in range(shape.n_layers + 1)]
        self.averaged = [i for i in layers if options.averages(i)]
        self.weights = nn.ParameterList(torch.empty(len(options.sources(i))) for i in self.averaged)
        """Per sum, in the order of the layers: a weight per source, oldest first."""
        self.mix: Mix = mix

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Put all weight on the newest state; draws nothing."""
        for weights in self.weights:
            weights.zero_()
            weights[-1] = 1.0

    def use_countable_ops(self) -> None:
        """Sum by a matmul over stacked states."""
        self.mix = mix_countable

    def start(self, embedding: Tensor) -> LayerStates:
        """Open the stream on the embedding, X_0."""
        return LayerStates(embedding, (embedding,) if self.kept[0] else ())

    def read(self, state: LayerStates, t: int) -> tuple[Tensor, LayerStates]:
        """Return the stream."""
        return state.stream, state

    def write(self, state: LayerStates, output: Tensor, t: int) -> LayerStates:
        """Add an output to the stream; after an MLP, average."""
        stream = state.stream + output
        if t % 2 == 0:
            return LayerStates(stream, state.outputs)
        layer = t // 2 + 1
        known = dict(zip(self.kept[layer - 1], state.outputs, strict=True)) | {layer: stream}
        if self.options.averages(layer):
            values = [known[j] for j in self.options.sources(layer)]
            with full_precision(stream):
                weights = self.weights[self.averaged.index(layer)].to(widen(stream).dtype)
                stream = self.mix(weights, values).to(stream.dtype)
        return LayerStates(stream, tuple(known[j] for j in self.kept[layer]))

    def finish(self, state: LayerStates) -> Tensor:
        """Return the stream."""
        return state.stream

    def stream(self, state: LayerStates) -> Tensor:
        """Return the stream."""
        return state.stream

    @classmethod
    def cost(cls, shape: Shape, options: Any) -> ResidualCost:
        """One parameter and 2 d FLOPs per source of a sum; 3 d moved per sublayer and d per source.

        State: the stream, and every state that a later sum reads.
        """
        n, d = shape.n_layers, shape.d_model
        sums = [len(options.sources(i)) for i in range(1, n + 1) if options.averages(i)]
        kept = max(len(options.kept(i, n)) for i in range(n))
        return ResidualCost(
            params=sum(sums),
            flops_per_token=2 * d * sum(sums),
            elements_moved_per_token=d * (3 * shape.n_sublayers + sum(sums) + len(sums)),
            state_elements_per_token=d * (1 + kept),
        )

    @classmethod
    def equals_standard_at_init(cls, options: AnyOptions) -> bool:
        """True: every sum is its newest state."""
        return True

    @classmethod
    def example_options(cls, shape: Shape) -> list[AnyOptions]:
        """Defaults, dilation, period, both, and the paper's 4 x 5."""
        return [
            DenseFormerOptions(),
            DenseFormerOptions(dilation=2),
            DenseFormerOptions(period=2),
            DenseFormerOptions(dilation=2, period=3),
            DenseFormerOptions(dilation=4, period=5),
        ]
