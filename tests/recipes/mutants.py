"""The known ways to get depth attention wrong, each as one small edit of the real source.

These are mistakes of public code. Every mutant names its guard: a check of the contract suite, run
over the example option sets of a recipe, or a test; ``test_mutations`` holds the guard to it. Here:
sources, blocks, start and optimiser; ``mutants_of_reads`` has the rest.
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """What must fail on a mutant."""

    module: str
    """Below ``tests``."""
    name: str
    """A check of the contract suite, or a test."""
    recipe: str | None = None
    """For a check: the recipe whose example option sets it goes over."""

    def __str__(self) -> str:
        of = f" of {self.recipe}" if self.recipe else ""
        return f"{self.module}.{self.name}{of}"


class Mutant(NamedTuple):
    """One trap."""

    trap: str
    file: str
    """The source, from the root of the checkout."""
    old: str
    """Text that occurs there once."""
    new: str
    guard: Guard
    then: tuple[tuple[str, str], ...] = ()
    """Further edits, for traps that take more than one."""


def check(name: str, recipe: str) -> Guard:
    return Guard("recipes.contract", name, recipe)


def identity(name: str) -> Guard:
    return Guard("recipes.test_identities", name)


def trap_test(name: str) -> Guard:
    return Guard("recipes.test_traps", name)


FAMILY = "recipes/attention_residual.py"
SCHEDULE = "recipes/depth_schedule.py"
OPTIONS = "recipes/depth_options.py"
EQUATIONS = "agrees_with_the_equations"
ZERO_QUERIES = identity("test_zero_queries_are_the_standard_residual_in_logits_and_gradients")
IMPOSSIBLE = Guard("recipes.test_registry", "test_impossible_options_are_refused_with_the_reason")
BLOCK_ENDS = identity("test_block_ends_follow_the_declared_convention")
AS_STANDARD = trap_test("test_the_backbone_leaves_a_recipe_its_start_as_the_standard_residual")
SPARED = Guard("harness.test_optimiser", "test_muon_and_decay_spare_gains_queries_and_embeddings")

SOURCES = [
    Mutant(
        "embedding counted twice",
        FAMILY,
        "rows(-1)),), None, stream)",
        "rows(-1)),), widen(embedding), stream)",
        ZERO_QUERIES,
    ),
    Mutant(
        "cumulative sources instead of restarting sums",
        FAMILY,
        "return DepthState(self._kept(bank, t), None, stream)",
        "return DepthState(self._kept(bank, t), partial, stream)",
        ZERO_QUERIES,
    ),
    Mutant(
        "the block just completed shown again as the partial",
        FAMILY,
        "            return seen\n",
        "            return (*seen, *seen[1:][-1:])\n",
        ZERO_QUERIES,
    ),
    Mutant(
        "no final read: the head sees the last partial",
        FAMILY,
        "return self.read(state, self.plan.n_sublayers)[0]",
        "return self.stream(state).to(self.queries.dtype)",
        identity("test_the_head_sees_a_read_of_all_sources_and_not_the_last_one"),
    ),
    Mutant(
        "block sums averaged",
        FAMILY,
        "completed = self._completed(state, partial, stream)",
        "completed = self._completed(state, partial, stream) / (t + 1 - self.plan.start_of(t))",
        ZERO_QUERIES,
    ),
    Mutant(
        "block sums averaged by default",
        OPTIONS,
        'value_scale: Literal["sum", "mean"] = "sum"',
        'value_scale: Literal["sum", "mean"] = "mean"',
        ZERO_QUERIES,
    ),
    Mutant(
        "a prior on block sizes by default",
        OPTIONS,
        "count_prior: bool = False",
        "count_prior: bool = True",
        ZERO_QUERIES,
    ),
    Mutant(
        "the block under way is no source",
        SCHEDULE,
        "return self.partial and t not in self._end_set",
        "return False and t not in self._end_set",
        ZERO_QUERIES,
    ),
    Mutant(
        "a zero tensor as source while the block is empty",
        FAMILY,
        "            return seen\n",
        "            row = self.row_of.get(t, -1)\n"
        "            empty = torch.zeros_like(seen[0].value)\n"
        "            return (*seen, *([self.enter(empty, row, row + 1)] if row >= 0 else []))\n",
        check(EQUATIONS, "block"),
    ),
    Mutant(
        "the window drops the embedding",
        FAMILY,
        "seen = state.bank[: self.plan",
        "seen = state.bank[self.plan.oldest_at(t) > 0 : self.plan",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "the window counts the embedding",
        SCHEDULE,
        "max(0, completed[t] + self.reads_partial(t) - self.window)",
        "max(0, completed[t] + self.reads_partial(t) + self.embedding - self.window)",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "old blocks detached",
        FAMILY,
        "self.enter(completed, *self.plan.rows(block))",
        "self.enter(completed.detach(), *self.plan.rows(block))",
        ZERO_QUERIES,
    ),
    Mutant(
        "the partial sum changed in place",
        FAMILY,
        "return output if partial is None else widen(partial) + output",
        "return output if partial is None else widen(partial).add_(output)",
        check("never_changes_a_state_it_was_given", "block"),
    ),
    Mutant(
        "the running sum changed in place",
        "recipes/standard.py",
        "return state + output",
        "return state.add_(output)",
        check("never_changes_a_state_it_was_given", "standard"),
    ),
    Mutant(
        "sources appended to a list on the module",
        FAMILY,
        "bank = (*bank, self.enter(completed, *self.plan.rows(block)))",
        "held = self.__dict__.setdefault('held', [])\n"
        "            held.append(self.enter(completed, *self.plan.rows(block)))\n"
        "            bank = (*bank[:1], *held)",
        check("never_changes_a_state_it_was_given", "block"),
    ),
    Mutant(
        "a bias towards the newest source",
        FAMILY,
        "        if self.options.has_count_prior:\n            logits_SBTH =",
        "        logits_SBTH = torch.cat([logits_SBTH[:-1], logits_SBTH[-1:] + 3.0])\n"
        "        if self.options.has_count_prior:\n            logits_SBTH =",
        ZERO_QUERIES,
    ),
    Mutant(
        "a bias towards the newest source by default",
        OPTIONS,
        "recency_init: float = 0.0",
        "recency_init: float = 3.0",
        ZERO_QUERIES,
    ),
    Mutant(
        "the bias for the newest source given to the oldest",
        FAMILY,
        "torch.cat([logits_SBTH[:-1], self.favoured(logits_SBTH[-1:], t)])",
        "torch.cat([self.favoured(logits_SBTH[:1], t), logits_SBTH[1:]])",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "a read of one source owns a query that can never train",
        SCHEDULE,
        "if self.n_sources(t) > 1))",
        "if self.n_sources(t) > 0))",
        check("gives_gradient_to_every_live_parameter", "full"),
    ),
]

DELTA = [
    Mutant(
        "Delta block sources as in the released code, by default",
        FAMILY,
        "if self.plan.as_released and stream is not None:",
        "if self.plan.additive and stream is not None:",
        identity("test_source_k_of_added_blocks_is_a_difference_of_the_stream"),
    ),
    Mutant(
        "a final read of Delta, which has none",
        "recipes/delta.py",
        'return self.combine == "replace" if self.final_read is None',
        "return True if self.final_read is None",
        check(EQUATIONS, "delta"),
    ),
    Mutant(
        "a Delta block seen by the attention at its end, not first by the MLP behind",
        "recipes/delta.py",
        "delayed=self.adds_to_stream and self.has_blocks and not self.has_partial",
        "delayed=False",
        identity("test_a_completed_delta_block_is_first_seen_by_the_next_mlp"),
    ),
    Mutant(
        "cumulative states as Delta's sources, by default",
        "recipes/delta.py",
        '"cumulative"] = "sublayer"',
        '"cumulative"] = "cumulative"',
        ZERO_QUERIES,
    ),
]

BLOCKS = [
    Mutant(
        "block size counted in layers instead of sublayers",
        SCHEDULE,
        "rows_per_block = size // unit",
        "rows_per_block = 2 * size // unit",
        BLOCK_ENDS,
    ),
    Mutant(
        "every block ends one sublayer late",
        SCHEDULE,
        "min(rows_per_block * j, rows)",
        "min(rows_per_block * j + 1, rows)",
        check(EQUATIONS, "block"),
    ),
    Mutant(
        "n_blocks that silently gives fewer blocks",
        SCHEDULE,
        'if tail == "short" and given != n_blocks:',
        'if tail == "none" and given != n_blocks:',
        IMPOSSIBLE,
    ),
    Mutant(
        "a block size that is silently cut to the model",
        SCHEDULE,
        "if size > n_sublayers:",
        "if size > 99 * n_sublayers:",
        IMPOSSIBLE,
    ),
    Mutant(
        "a short tail that joins the block before it",
        SCHEDULE,
        "return tuple(unit * min(rows_per_block * j, rows) for j in range(1, count + 1))",
        "whole = range(1, rows // rows_per_block)\n"
        "    return (*(unit * rows_per_block * j for j in whole), n_sublayers)",
        BLOCK_ENDS,
    ),
    Mutant(
        "a short tail that is silently balanced",
        SCHEDULE,
        'if tail == "balanced":',
        'if tail in ("short", "balanced"):',
        BLOCK_ENDS,
    ),
]

START = [
    Mutant(
        "queries that start random",
        FAMILY,
        "self.queries.zero_()",
        "self.queries.normal_(0.0, 0.02, generator=generator)",
        identity("test_queries_start_at_zero_and_all_but_dead_ones_receive_gradient"),
    ),
    Mutant(
        "a global initialisation that writes over zero queries",
        "harness/model.py",
        'residual.options, random_stream("residual", seed)\n        )\n',
        'residual.options, random_stream("residual", seed)\n        )\n'
        "        with torch.no_grad():\n"
        "            for parameter in self.residual.parameters():\n"
        '                parameter.normal_(0.0, 0.02, generator=random_stream("all", seed))\n',
        AS_STANDARD,
    ),
    Mutant(
        "sublayers without the pre-norm that forgets the number of sources",
        "harness/layers.py",
        "return self.body(self.norm(u_BTD))",
        "return self.body(u_BTD)",
        AS_STANDARD,
    ),
    Mutant(
        "an epsilon of the pre-norm that small models see",
        "harness/config.py",
        "norm_eps: PositiveFloat = 1e-8",
        "norm_eps: PositiveFloat = 1e-5",
        AS_STANDARD,
    ),
    Mutant(
        "Muon orthogonalises the queries",
        "harness/optimiser.py",
        "\n    head = set() if model.config.tied_head",
        "\n    hidden |= {id(matrix) for matrix in model.parameters() if matrix.ndim == 2}"
        "\n    head = set() if model.config.tied_head",
        SPARED,
    ),
    Mutant(
        "weight decay pulls queries to the uniform mean",
        "harness/optimiser.py",
        '*settings("residual", 0.0, train.residual_lr_scale)',
        '*settings("residual", train.weight_decay, train.residual_lr_scale)',
        SPARED,
    ),
    Mutant(
        "frozen queries that train",
        FAMILY,
        "requires_grad=not options.frozen_queries",
        "requires_grad=True",
        identity("test_frozen_queries_stay_out_of_training"),
    ),
]

MUTANTS = [*SOURCES, *DELTA, *BLOCKS, *START]
