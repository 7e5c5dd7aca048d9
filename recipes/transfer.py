"""What a recipe tells a transferable parametrisation: how its parameters' rates follow the width.

Whoever tunes a small model and trains a wide one needs to know which parameters read the stream out
(their learning rate falls with the width), and what theory leaves open. Which factors follow from
that is ``harness.parametrisation``'s. Knows no tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from recipes.base import Shape

DEPTH_READS = (
    "Width: a depth query is a readout of keys of RMS one, q . k sums aligned terms over the "
    "key, so its rate falls as 1 / width of the key (muP's output weights); a query map as 1 / "
    "(width of the key x d_model); gains, biases and bare logits keep their rate; a "
    "query_init_std other than 0 is taken as given at every width. Depth: CompleteP is derived "
    "for a sum of branches; of a softmax over sources it says nothing. The factor base_n_layers "
    "/ n_layers of every output is applied all the same: zero queries then give the standard "
    "residual at every depth, keys are RMS-normalised and do not see it, and it sets how outputs "
    "weigh against the embedding within a read. Whether rates transfer over depth is open, as "
    "the number of sources grows with it: measure it."
)
"""For recipes that attend over depth."""

PARALLEL_STREAMS = (
    "Width: the projections of the dynamic weights are readouts of normalised streams, so their "
    "rate falls as 1 / d_model (muP's output weights); static weights, biases, gates and gains "
    "keep theirs. Depth: the factor base_n_layers / n_layers of every output is CompleteP's, "
    "which is derived for one stream that nothing mixes. Of the mixing matrices theory says "
    "nothing: they are one product over all sublayers, whose change grows with depth at a fixed "
    "rate. Tune residual_lr_scale at every depth, or measure."
)
"""For recipes with parallel streams."""


class Transfer:
    """Base of every recipe: what muP and CompleteP say of its parameters."""

    transfer_note: ClassVar[str] = (
        "not stated for this recipe. Its own parameters keep their rate at every width unless it "
        "declares readout_fan_in; at every depth they keep it anyway. Tune every size, or "
        "measure the transfer first."
    )
    """What muP and CompleteP say of the recipe and what they leave open, for `isoloss recipes`."""

    @classmethod
    def readout_fan_in(cls, name: str, shape: Shape, options: Any) -> float:
        """Count the aligned terms that a change of one parameter adds up to in what it feeds.

        For a readout of the stream, such as a depth query, the width that it reads: its learning
        rate must fall as the stream widens (Yang et al. 2022, table 3, output weights). 1 for
        gains, scalars and what else sums over no width. Only how it grows with ``shape.d_model``
        counts, and only under ``mup`` and ``completep``.

        Parameters
        ----------
        name
            A parameter of the recipe, as in ``named_parameters``.
        shape
            The model, or the same one at the base width.
        options
            Options of the recipe.
        """
        return 1.0
