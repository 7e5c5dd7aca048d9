"""Options that the attention-residual recipes share, and which combinations make no sense.

One class per concern: how a read weighs (:class:`ReadOptions`), what queries and keys are
(:class:`KeyOptions`), how sublayers form depth blocks (:class:`BlockOptions`). A recipe inherits
those that apply to it. Knows no tensors.

Sources: Kimi Team, Attention Residuals, arXiv 2603.15031, section 5.3 (query, weighting, key norm,
window, heads, block size); Su, LR-AttnRes, arXiv 2607.09694 (key rank, norm scope, logit scale,
value scale, count prior); Multi-Head Attention Residuals, arXiv 2607.27230 (heads). In no paper:
``recency_init``, from public code (wdlctc/open-attention-residuals, modeling_attnres.py: 3 by
default). Its sources are cumulative states, of which a large one starts as the standard residual;
over outputs or block sums a large one that replaces the stream starts as a chain without residual.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from recipes.base import Options, Shape
from recipes.depth_attention import Keys
from recipes.depth_schedule import Schedule, Tail, block_ends, checked_sizes


class ReadOptions(Options):
    """How a read weighs its sources."""

    query_init_std: float = Field(default=0.0, ge=0.0)
    """Standard deviation of the initial queries; 0, as the paper requires, gives uniform reads."""
    recency_init: float = 0.0
    """Logit that a read adds to its newest source, learned from there on: one per read, shared by
    its heads. A softmax over zero queries then gives the newest source e^recency_init times the
    weight of any other. 0, the paper's form, has no such logit and no parameter."""
    frozen_queries: bool = False
    """Never train the queries (control: where the recipe starts as the standard residual and has no
    parameters but queries and gains, zero queries keep it so)."""
    key_norm: Literal["rms_gain", "rms", "none"] = "rms_gain"
    """rms_gain: RMS with a learned gain of ones per read (Kimi K3, FLA). rms: RMS alone. none: raw
    sources are keys."""
    weighting: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: weights add up to one. sigmoid: every source is gated alone, not normalised."""
    logit_scale: Literal["one", "inverse_sqrt_rank"] = "one"
    """Factor of the logits: 1, as in the paper, or 1 / sqrt(key entries per head)."""
    temperature: PositiveFloat = 1.0
    """Divides the logits."""
    window: PositiveInt | None = None
    """Newest sources that a read sees beside the embedding. Default: all."""
    embedding_source: bool = True
    """The embedding is a source of its own; false: it opens the sum of the first block."""
    final_read: bool = True
    """A last read feeds the final norm; false: the final norm sees the plain sum R."""

    def schedule(self, shape: Shape) -> Schedule:
        """Return which sources every read sees."""
        raise NotImplementedError

    def check(self, shape: Shape) -> None:
        """Refuse options that leave no read a choice."""
        super().check(shape)
        if not self.schedule(shape).readers:
            given = ", ".join(f"{k} {v}" for k, v in self.model_dump(exclude_defaults=True).items())
            raise ValueError(
                f"no read would have two sources to choose from at {shape.n_sublayers} sublayers "
                f"with {given or 'these options'}; allow it more sources"
            )

    @property
    def has_gain(self) -> bool:
        """Whether keys carry a learned gain."""
        return self.key_norm == "rms_gain"

    @property
    def has_recency(self) -> bool:
        """Whether reads own a logit for their newest source."""
        return self.recency_init != 0

    @property
    def takes_means(self) -> bool:
        """Whether sources are mixed as means over the outputs they add up."""
        return False

    @property
    def has_count_prior(self) -> bool:
        """Whether the number of outputs in a source enters its logit."""
        return False

    def keys(self, d_model: int) -> Keys:
        """Return the geometry of the keys: all d_model entries, one head."""
        return Keys(heads=1, width=d_model, normalised=self.key_norm != "none")

    def query_scale(self, keys: Keys) -> float:
        """Return the factor of the logits, temperature included."""
        scale = keys.width**-0.5 if self.logit_scale == "inverse_sqrt_rank" else 1.0
        return scale / self.temperature


class KeyOptions(ReadOptions):
    """What queries and keys are, for reads over the sources themselves."""

    query: Literal["static", "input_dependent", "none"] = "static"
    """static: a learned vector per read. input_dependent: a learned map of the newest source,
    RMS-normalised (our reading: the paper names no state). none: a learned logit per source."""
    key_rank: PositiveInt | None = None
    """Last entries of a source that serve as its key, 2 .. d_model. Default: all of them."""
    key_norm_scope: Literal["slice", "full"] = "slice"
    """slice: the RMS is over the entries of the key, per head. full: over all d_model entries."""
    heads: PositiveInt = 1
    """Heads over equal groups of channels, each with weights of its own on its part of a source."""

    @property
    def has_gain(self) -> bool:
        """Whether keys carry a learned gain."""
        return self.key_norm == "rms_gain" and self.query != "none"

    @property
    def has_recency(self) -> bool:
        """Whether reads own a logit for their newest source; bare logits include it."""
        return super().has_recency and self.query != "none"

    def rank_at(self, d_model: int) -> int:
        """Return the key entries of all heads at a width."""
        return d_model if self.key_rank is None else self.key_rank

    def keys(self, d_model: int) -> Keys:
        """Return the geometry of the keys."""
        return Keys(
            heads=self.heads,
            width=self.rank_at(d_model) // self.heads,
            normalised=self.key_norm != "none",
            whole_norm=self.key_norm_scope == "full",
        )

    def check(self, shape: Shape) -> None:
        """Refuse keys that the width cannot give, and switches that would switch nothing."""
        super().check(shape)
        self._check_scalars()
        d, rank = shape.d_model, self.rank_at(shape.d_model)
        if not 2 <= rank <= d:
            origin = " (the default at this width)" if self.key_rank is None else ""
            raise ValueError(f"key_rank must lie in 2..{d} (d_model), got {rank}{origin}")
        if d % self.heads:
            raise ValueError(f"heads must divide d_model {d}, got {self.heads}")
        if self.heads > 1 and rank != d:
            raise ValueError(
                f"heads {self.heads} split all channels, so key_rank must be {d} (d_model), "
                f"got {rank}"
            )
        if d // self.heads < 2 and self.query != "none":
            raise ValueError(f"a head needs two channels or more; {self.heads} heads split {d}")
        if self.key_norm_scope == "full" and (rank == d and self.heads == 1):
            raise ValueError("key_norm_scope 'full' is 'slice' for one head of full-width keys")
        if self.key_norm_scope == "full" and self.key_norm == "none":
            raise ValueError("key_norm_scope has no meaning with key_norm 'none'")

    def _check_scalars(self) -> None:
        if self.query != "none":
            return
        for name in ("key_norm", "key_rank", "key_norm_scope", "logit_scale", "temperature"):
            if name in self.model_fields_set and getattr(self, name) != self._default(name):
                raise ValueError(
                    f"query 'none' has no keys, so {name} has no meaning; leave it out"
                )

    def _default(self, name: str) -> object:
        return type(self).model_fields[name].default


class BlockOptions(ReadOptions):
    """How sublayers are grouped into depth blocks, and what a block's source is."""

    block_size: PositiveInt | None = None
    """Sublayers per depth block (the paper's S; attention and MLP count separately). Default: 4."""
    n_blocks: PositiveInt | None = None
    """Number of depth blocks (the paper's N), in place of block_size."""
    block_sizes: tuple[PositiveInt, ...] | None = Field(default=None, min_length=1, strict=False)
    """Sublayers of every depth block in turn, in place of block_size."""
    tail: Tail = "short"
    """When blocks do not divide the model. short: equal blocks, then a shorter last one.
    balanced: as many blocks, whose sizes differ by at most one."""
    include_partial: bool = True
    """The block under way is a source too."""
    value_scale: Literal["sum", "mean"] = "sum"
    """What is mixed: the sum over a block, or its mean over the outputs it adds up."""
    count_prior: bool = False
    """Add the logarithm of the number of outputs in a source to its logit."""

    @property
    def names_blocks(self) -> bool:
        """Whether a division is given."""
        return (self.block_size, self.n_blocks, self.block_sizes) != (None, None, None)

    def check(self, shape: Shape) -> None:
        """Refuse blocks that the model cannot be divided into; see :func:`block_ends`."""
        if self.block_sizes is not None:
            if self.block_size is not None or self.n_blocks is not None:
                raise ValueError("give one of block_size, n_blocks and block_sizes, not several")
            if self.tail != "short":
                raise ValueError("tail has no meaning with explicit block_sizes; leave it out")
        if not (self.has_partial or self.embedding_source or self.adds_to_stream):
            raise ValueError(
                "embedding_source false puts the embedding into the first block, which no read of "
                "that block would see with include_partial false; keep one of the two"
            )
        super().check(shape)

    @property
    def has_partial(self) -> bool:
        """Whether the block under way is a source."""
        return self.include_partial

    @property
    def adds_to_stream(self) -> bool:
        """Whether a read is added to the running sum, which then holds the embedding anyway."""
        return False

    def schedule(self, shape: Shape) -> Schedule:
        """Blocks as the options divide the model."""
        return Schedule(
            shape.n_sublayers,
            self.ends(shape),
            partial=self.has_partial,
            embedding=self.embedding_source,
            final=self.final_read,
            window=self.window,
        )

    def ends(self, shape: Shape, unit: int = 1) -> tuple[int, ...]:
        """Index after the last sublayer of every block; ``unit`` sublayers stay together."""
        if self.block_sizes is not None:
            return checked_sizes(shape.n_sublayers, self.block_sizes, unit)
        return block_ends(shape.n_sublayers, self.block_size, self.n_blocks, self.tail, unit)

    @property
    def has_counts(self) -> bool:
        """Whether the number of outputs in a source enters the read at all."""
        return self.takes_means or self.has_count_prior

    @property
    def takes_means(self) -> bool:
        """Whether sources are mixed as means over the outputs they add up."""
        return self.value_scale == "mean"

    @property
    def has_count_prior(self) -> bool:
        """Whether the number of outputs in a source enters its logit."""
        return self.count_prior
