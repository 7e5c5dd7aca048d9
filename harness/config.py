"""Typed configuration of one run.

:class:`RunConfig` holds the science: every field that can change a loss enters the run id.
:class:`Execution` holds the how (threads, micro-batches, checkpoint interval): it never does. The
split is a split of types, so that nothing has to be excluded by hand. Knows neither torch nor YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

SCHEMA_VERSION = 1
"""Enters every run id; raised when the meaning or the default of a field changes."""
RUNAWAY = 2.0
"""A training loss above this many times ln(vocab_size), the loss of a uniform guess, ends the
run."""


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """A name with the options that differ from their defaults, sorted: ``block(block_size=4)``."""
    if not options:
        return name
    return f"{name}({', '.join(f'{key}={short(options[key])}' for key in sorted(options))})"


def short(value: Any) -> str:
    """Spell a value as labels do: six significant digits where that is exact."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if float(text) == value else repr(value)
    return str(value)


class Strict(BaseModel):
    """Base of all configuration: immutable, typed strictly, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class ResidualConfig(Strict):
    """Which recipe carries the residual stream, and its options (checked by the recipe itself)."""

    name: str
    """A registered recipe, or ``package.module:Class``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options that differ from the recipe's defaults."""


BASE = ("base_d_model", "base_n_layers")
"""Fields of ModelConfig that name the base shape of a parametrisation."""


class ModelConfig(Strict):
    """Shape of the decoder-only Transformer."""

    n_layers: PositiveInt
    """Attention + MLP pairs; the model has twice as many sublayers."""
    d_model: PositiveInt
    """Width of the residual stream."""
    head_dim: PositiveInt = 32
    """Width of one attention head; must be even (rotary positions) and divide d_model."""
    n_kv_heads: PositiveInt | None = None
    """Key/value heads of grouped-query attention; default: as many as query heads."""
    d_ff: PositiveInt | None = None
    """Hidden width of SwiGLU; default: 8/3 d_model rounded up to a multiple of 16."""
    qk_norm: bool = False
    """RMS-normalise queries and keys per head before the rotary embedding."""
    tied_head: bool = False
    """Share the embedding matrix with the head."""
    norm_eps: PositiveFloat = 1e-8
    """Epsilon of every RMSNorm; small, because depth attention divides its input by the depth."""
    rope_theta: PositiveFloat = 10000.0
    """Base of the rotary frequencies."""
    parametrisation: Literal["standard", "mup", "completep"] = "standard"
    """How scales and rates follow the shape. standard: not at all. mup: they follow the width, so
    that a learning rate found at base_d_model holds. completep: they follow the depth as well."""
    base_d_model: PositiveInt | None = None
    """mup, completep: width at which the parametrisation equals standard."""
    base_n_layers: PositiveInt | None = None
    """completep: depth at which the parametrisation equals standard."""

    @model_validator(mode="after")
    def _base_is_given_where_it_counts(self) -> ModelConfig:
        wanted = {"standard": (), "mup": ("base_d_model",), "completep": BASE}[self.parametrisation]
        given = tuple(name for name in BASE if getattr(self, name) is not None)
        if given != wanted:
            raise ValueError(
                f"parametrisation '{self.parametrisation}' takes "
                f"{' and '.join(wanted) or 'no base shape'}, got {' and '.join(given) or 'none'}"
            )
        if self.base_d_model is not None and self.base_d_model % self.head_dim:
            raise ValueError(
                f"base_d_model must be a multiple of head_dim, which stays as the width grows, "
                f"got {self.base_d_model} and {self.head_dim}"
            )
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelConfig:
        if self.head_dim % 2 or self.d_model % self.head_dim:
            raise ValueError(
                f"head_dim must be even and divide d_model, got head_dim {self.head_dim} "
                f"and d_model {self.d_model}"
            )
        if self.n_heads % self.n_key_value_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads = d_model / head_dim = {self.n_heads}, "
                f"got {self.n_kv_heads}"
            )
        return self

    @property
    def n_sublayers(self) -> int:
        """Attention and MLP counted separately: 2 n_layers."""
        return 2 * self.n_layers

    @property
    def n_heads(self) -> int:
        """Query heads: d_model / head_dim."""
        return self.d_model // self.head_dim

    @property
    def n_key_value_heads(self) -> int:
        """Key/value heads after the default is applied."""
        return self.n_kv_heads or self.n_heads

    @property
    def ffn_width(self) -> int:
        """Hidden width of SwiGLU after the default is applied."""
        return self.d_ff or -(-8 * self.d_model // 48) * 16


class DataConfig(Strict):
    """Which tokens, and how long a sequence is."""

    corpus: str = "sotu"
    """An embedded corpus, or the folder of one made by ``isoloss prepare``."""
    seq_len: PositiveInt = 256
    """Tokens of context; follows from the task where one is given."""
    task: str | None = None
    """A depth probe in place of a corpus: a registered task, or ``package.module:Class``. Its
    options stand beside it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options that differ from the task's defaults."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        absent = ("task", "options") if self.task is None else ("corpus",)
        return {name: value for name, value in dump(self).items() if name not in absent}

    @property
    def label(self) -> str:
        """Name of the corpus, or of the task with its options: ``s3_words(length=16)``."""
        return self.corpus if self.task is None else label_of(self.task, self.options)


class Budget(Strict):
    """How long a run trains: exactly one of the three is given."""

    flops: PositiveFloat | None = None
    """Training FLOPs, the variant's own reads and writes included."""
    tokens: PositiveInt | None = None
    """Training tokens."""
    tokens_per_param: PositiveFloat | None = None
    """Training tokens per parameter (all parameters of the arm's own model)."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Budget:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of flops, tokens, tokens_per_param; got {got}")
        return self

    @property
    def kind(self) -> str:
        """Name of the field that is given."""
        return next(n for n in type(self).model_fields if getattr(self, n) is not None)

    @property
    def value(self) -> float:
        """Declared value of that field, never a rounded one."""
        return float(getattr(self, self.kind))


class TrainConfig(Strict):
    """Optimisation of one run."""

    budget: Budget
    """How long to train."""
    batch_tokens: PositiveInt = 8192
    """Tokens per optimiser step, over all micro-batches and devices."""
    lr: PositiveFloat = 1e-2
    """Peak learning rate; Muon's updates are matched in RMS to AdamW's."""
    adamw_lr_scale: PositiveFloat = 1.0
    """muon: rate of the embedding, head and gains, which AdamW trains, as a share of lr."""
    residual_lr_scale: PositiveFloat = 0.15
    """Rate of the recipe's own parameters (depth queries, key gains, …), as a share of lr: at the
    full rate of Muon's matrices, depth queries saturate their softmax within a few dozen steps."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: hidden matrices by Muon, the rest by AdamW. adamw: everything by AdamW."""
    schedule: Literal["wsd", "cosine", "constant"] = "wsd"
    """Learning-rate schedule after the linear warm-up."""
    warmup_frac: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the steps spent in linear warm-up."""
    warmup_tokens: PositiveInt | None = None
    """Tokens of linear warm-up, in place of warmup_frac: as long for every budget, so that runs of
    several budgets share their training up to the decay (schedule wsd)."""
    decay_frac: float = Field(default=0.3, ge=0.0, le=1.0)
    """wsd: share of the steps spent in the final linear decay."""
    lr_end_frac: float = Field(default=0.0, ge=0.0, le=1.0)
    """Learning rate at the last step as a share of the peak (wsd and cosine)."""
    weight_decay: float = Field(default=0.1, ge=0.0)
    """Decoupled decay of matrices; gains, queries and embeddings are never decayed."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """AdamW's first-moment decay."""
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    """AdamW's second-moment decay."""
    momentum: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Muon's momentum."""
    grad_clip: float = Field(default=1.0, ge=0.0)
    """Largest global gradient norm; 0 switches clipping off."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """fp32, bf16 autocast, or fp64 (for identities)."""
    eval_tokens: PositiveInt = 131072
    """Tokens of the fixed validation set behind loss_nats."""

    @model_validator(mode="after")
    def _schedule_fits(self) -> TrainConfig:
        if self.warmup_tokens is not None:
            usual = type(self).model_fields["warmup_frac"].default
            if self.warmup_frac != usual:
                raise ValueError(
                    f"give warmup_frac or warmup_tokens, "
                    f"got {self.warmup_frac} and {self.warmup_tokens}"
                )
        elif self.schedule == "wsd" and self.warmup_frac + self.decay_frac > 1:
            raise ValueError(
                f"warmup_frac + decay_frac must not exceed 1, "
                f"got {self.warmup_frac} + {self.decay_frac}"
            )
        return self


class RunConfig(Strict):
    """Everything that can change the loss of one run."""

    residual: ResidualConfig
    """The residual recipe."""
    model: ModelConfig
    """Shape of the Transformer."""
    data: DataConfig
    """Corpus and context."""
    train: TrainConfig
    """Budget and optimisation."""
    seed: int = Field(default=0, ge=0)
    """Seed of initialisation and of data order; paired across arms."""

    @model_validator(mode="after")
    def _tokens_fill_sequences(self) -> RunConfig:
        for name in ("batch_tokens", "eval_tokens"):
            tokens = getattr(self.train, name)
            if tokens % self.data.seq_len:
                raise ValueError(
                    f"train.{name} must be a multiple of data.seq_len, "
                    f"got {tokens} and {self.data.seq_len}"
                )
        return self


class Execution(Strict):
    """How a run is executed; none of it changes what is computed beyond rounding."""

    threads: PositiveInt = 1
    """CPU threads of one run; small models collapse when two threads share a busy core."""
    microbatch_seqs: PositiveInt | None = None
    """Sequences per forward pass; the global batch stays the same. Default: the whole batch."""
    kernel: Literal["auto", "torch", "cached", "two_phase", "fla", "liger"] = "auto"
    """How depth reads are computed. torch: memory-lean autograd functions. cached: plain
    operations. two_phase: earlier blocks for all reads of a block at once. fla, liger: fused CUDA
    kernels of those libraries. auto: fla where it is installed and fits, else torch."""
    recompute: bool = False
    """Recompute the inside of sublayers in the backward pass: less memory, more time."""
    devices: PositiveInt = 1
    """Processes of one run on one node, one GPU (or one share of the cores) each; they split the
    global batch, which stays the same."""
    nodes: PositiveInt = 1
    """Nodes of one run; more than one needs Slurm."""
    share_trunks: bool = True
    """Whether runs that differ in their budget alone, with schedule wsd or constant and a warm-up
    as long, train their common part once. Each ends as if it had trained alone."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How several processes share a run. ddp: every process holds the whole model. fsdp: parameters
    and optimiser state are sharded."""
    lease_s: PositiveFloat = 120.0
    """Seconds without a sign of life after which another process may take a run over."""
    equal_failures: PositiveInt = 3
    """Runs that may fail with the same error before no further run is started."""
    checkpoint_every_s: PositiveFloat = 20.0
    """Seconds between checkpoints."""
    n_evals: PositiveInt = 4
    """Validations over the run, evenly spaced in steps, the last at the end."""
    log_every: PositiveInt = 10
    """Optimiser steps between two logged training losses."""
    n_diagnostics: int = Field(default=3, ge=0)
    """Diagnostics over the run, evenly spaced in steps, the last at the end; 0 switches them
    off."""
    n_checkpoints: int = Field(default=0, ge=0)
    """Checkpoints kept for evaluation, evenly spaced in steps, beside the newest two. Of a run that
    went on from another one's state, those after the branch."""
