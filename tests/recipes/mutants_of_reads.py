"""Mutants of the read itself, of its precision and gradients, and of the baselines.

Left out, because nothing observable would change: the mean of the streams in place of their sum
before the head, of which the final norm forgets the factor (the equations notice it all the same);
a key sliced from a block's mean in place of its sum, of which the RMS forgets the factor.
"""

from __future__ import annotations

from tests.recipes.mutants import (
    EQUATIONS,
    FAMILY,
    OPTIONS,
    ZERO_QUERIES,
    Guard,
    Mutant,
    check,
    trap_test,
)

READ = "recipes/depth_attention.py"
LEAN = "recipes/lean_read.py"


def lean(name: str) -> Guard:
    return Guard("recipes.test_lean_read", name)


LIKE_PLAIN = lean("test_gradients_equal_those_of_plain_operations")
ROUNDED_ONCE = trap_test("test_a_bf16_read_is_the_exact_one_rounded_once")

OFF_DIAGONAL = Guard(
    "recipes.test_stream_mixing", "test_every_off_diagonal_mixing_logit_has_a_gradient_at_init"
)

READS = [
    Mutant(
        "softmax over tokens",
        FAMILY,
        "return logits_SBTH.softmax(dim=0)",
        "return logits_SBTH.softmax(dim=2)",
        check("is_causal", "full"),
    ),
    Mutant(
        "depth flattened into tokens",
        FAMILY,
        "return logits_SBTH.softmax(dim=0)",
        "flat = logits_SBTH.transpose(1, 2).flatten(0, 1).softmax(dim=0)\n"
        "        return flat.view(-1, *logits_SBTH.transpose(1, 2).shape[1:]).transpose(1, 2)",
        check("is_causal", "full"),
    ),
    Mutant(
        "an epsilon of the key norm that small sources see",
        READ,
        "EPS = 1e-8",
        "EPS = 1e-5",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "values normalised like keys",
        FAMILY,
        "self.ops.mix(weights_SBTH, [source.value for source in sources])",
        "self.ops.mix(weights_SBTH, [\n"
        "                nn.functional.rms_norm(s.value, s.value.shape[-1:]) for s in sources\n"
        "            ])",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "keys not normalised",
        READ,
        "        if not self.normalised:\n",
        "        if self.normalised:\n",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "logits divided by the square root of the width by default",
        OPTIONS,
        '"inverse_sqrt_rank"] = "one"',
        '"inverse_sqrt_rank"] = "inverse_sqrt_rank"',
        trap_test("test_by_default_logits_are_the_papers_unscaled_dot_products"),
    ),
    Mutant(
        "keys normalised before they are sliced",
        READ,
        "normed = wide if self.whole_norm else self.of(wide)",
        "normed = wide",
        check(EQUATIONS, "low_rank"),
    ),
    Mutant(
        "the first entries as key instead of the last",
        READ,
        "return value[..., value.shape[-1] - self.heads * self.width :]",
        "return value[..., : self.heads * self.width]",
        check(EQUATIONS, "low_rank"),
    ),
    Mutant(
        "keys averaged over a block instead of taken from its sum",
        FAMILY,
        "        return output if partial is None else widen(partial) + output\n",
        "        total = output.clone() if partial is None else widen(partial) + output\n"
        '        total.parts = [*getattr(partial, "parts", []), output]\n'
        "        return total\n",
        check(EQUATIONS, "low_rank"),
        (
            (
                "        return Source(value, scores, first_row)\n",
                '        parts = getattr(value_BTD, "parts", [value_BTD])\n'
                "        each = [self.ops.enter(p, queries_KHR, self.keys)[1] for p in parts]\n"
                "        scores = tuple(torch.stack(s).mean(0) for s in zip(*each))\n"
                "        return Source(value, scores, first_row)\n",
            ),
        ),
    ),
    Mutant(
        "a query that is not shared by all tokens",
        FAMILY,
        "return torch.stack([source.score(row) for source in sources])",
        "logits_SBTH = torch.stack([source.score(row) for source in sources])\n"
        "        return logits_SBTH * torch.linspace(1, 2, logits_SBTH.shape[2])[:, None]",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "the query of another read",
        FAMILY,
        "queries = widen(self.queries[rows])",
        "queries = widen(self.queries.roll(1, 0)[rows])",
        check(EQUATIONS, "full"),
    ),
    Mutant(
        "a counter on the module, which has torch.compile start over at every call",
        FAMILY,
        "if len(sources) == 1:\n            return sources[0].value.to(self.queries.dtype)",
        'self.calls = getattr(self, "calls", 0) + 1\n'
        "        if len(sources) == 1:\n"
        "            return sources[0].value.to(self.queries.dtype)",
        lean("test_one_graph_serves_all_reads_under_compile"),
    ),
    Mutant(
        "a convolution that sees later tokens",
        READ,
        "padded = F.pad(x_BTD, (0, 0, reach, 0))",
        "padded = F.pad(x_BTD, (0, 0, 0, reach))",
        check("is_causal", "multi_stream"),
    ),
    Mutant(
        "a decoder that forgets a token which the widest convolution sees",
        "recipes/multi_stream.py",
        "return max(widths) - 1",
        "return max(widths) - 2",
        check("mixes_no_more_tokens_than_declared", "multi_stream"),
    ),
    Mutant(
        "the identity tap on the oldest token instead of the newest",
        "recipes/multi_stream.py",
        "taps[..., -1] = 1.0",
        "taps[..., 0] = 1.0",
        ZERO_QUERIES,
    ),
]

PRECISION = [
    Mutant(
        "statistics and logits in bf16",
        LEAN,
        "wide_ND = widen(value_BTD).flatten(0, -2)\n        scores_KNH",
        "wide_ND = value_BTD.flatten(0, -2)\n        scores_KNH",
        ROUNDED_ONCE,
    ),
    Mutant(
        "statistics and logits in bf16 under compile",
        READ,
        "    wide = widen(value_BTD)\n    queries = queries_KHR",
        "    wide = value_BTD\n    queries = queries_KHR",
        ROUNDED_ONCE,
    ),
    Mutant(
        "softmax in bf16",
        FAMILY,
        "return logits_SBTH.softmax(dim=0)",
        "return logits_SBTH.to(self.queries.dtype).softmax(dim=0)",
        ROUNDED_ONCE,
    ),
    Mutant(
        "mixing in bf16",
        FAMILY,
        "mixed_BTD = self.ops.mix(weights_SBTH, [source.value for source in sources])",
        "narrow = [source.value.to(self.queries.dtype) for source in sources]\n"
        "            mixed_BTD = self.ops.mix(weights_SBTH.to(self.queries.dtype), narrow)",
        ROUNDED_ONCE,
    ),
    Mutant(
        "block sums in bf16",
        FAMILY,
        "return output if partial is None else widen(partial) + output",
        "return output if partial is None else partial + output",
        check("keeps_the_stream_in_the_embedding_dtype_under_autocast", "block"),
    ),
    Mutant(
        "autocast lowers the matmuls of a read",
        READ,
        "return torch.autocast(kind, enabled=False)",
        "return nullcontext()",
        check("keeps_the_stream_in_the_embedding_dtype_under_autocast", "block"),
    ),
]

LEAN_READ = [
    Mutant(
        "the gradient of a mix counted twice",
        LEAN,
        "notes = ctx.notes if ctx.task",
        "notes = 2 * ctx.notes if ctx.task",
        LIKE_PLAIN,
    ),
    Mutant(
        "the gradient of an unfinished walk counted again",
        LEAN,
        "if node.task != task:",
        "if node.task is None:",
        lean("test_notes_of_an_unfinished_walk_are_not_counted_again"),
    ),
    Mutant(
        "no gradient through the key norm",
        LEAN,
        "if inverse_NH is not None:\n                _add_norm_gradient",
        "if inverse_NH is None:\n                _add_norm_gradient",
        LIKE_PLAIN,
    ),
    Mutant(
        "no gradient through the keys",
        LEAN,
        "            _add_key_gradient(total_ND, raw_KNH,",
        "            _add_key_gradient(total_ND.clone(), raw_KNH,",
        LIKE_PLAIN,
    ),
    Mutant(
        "no gradient to the queries",
        LEAN,
        "if ctx.needs_input_grad[1]:",
        "if not ctx.needs_input_grad[1]:",
        check("gives_gradient_to_every_live_parameter", "full"),
    ),
    Mutant(
        "copies of all sources saved at every read",
        LEAN,
        "ctx.save_for_backward(weights_SBTH, *values)",
        "ctx.save_for_backward(weights_SBTH, *torch.stack(values).unbind())",
        lean("test_what_autograd_keeps_grows_with_depth_and_not_with_its_square"),
    ),
    Mutant(
        "copies of all sources saved at every read under compile",
        READ,
        "in zip(weights[1:], values[1:], strict=True):",
        "in zip(weights[1:], torch.stack(list(values))[1:], strict=True):",
        Guard("recipes.test_two_phase", "test_no_copy_of_all_sources_is_saved_for_the_backward"),
    ),
]

DIAGNOSTICS = [
    Mutant(
        "an entropy that grows with the number of sources",
        "harness/read_statistics.py",
        "entropy / math.log(n_sources)",
        "entropy",
        Guard("harness.test_read_statistics", "test_a_read_is_summed_up_as_by_hand"),
    ),
]

BASELINES = [
    Mutant(
        "an mHC mixing matrix that underflows and never trains",
        "recipes/mhc.py",
        "return math.log(one / (1 - spread + one))",
        "return -8.0 / 0.05",
        OFF_DIAGONAL,
    ),
    Mutant(
        "mHC streams that start equal, so that mixing has no gradient",
        "recipes/mhc.py",
        "signs = torch.tensor([1.0, -1.0])",
        "signs = torch.tensor([0.0, 0.0])",
        trap_test("test_streams_differ_enough_for_their_mixing_to_have_a_gradient"),
    ),
    Mutant(
        "residual mixing of mHC transposed",
        "recipes/mhc.py",
        "square = logits.reshape(*logits.shape[:-1], n, n)",
        "square = logits.reshape(*logits.shape[:-1], n, n).mT",
        check(EQUATIONS, "mhc"),
    ),
    Mutant(
        "pre and post of mHC in the other order",
        "recipes/mhc.py",
        "pre, post, res = torch.split(logits,",
        "post, pre, res = torch.split(logits,",
        check(EQUATIONS, "mhc"),
    ),
    Mutant(
        "Sinkhorn that starts from a softmax",
        "recipes/mhc.py",
        "matrix = (logits - logits.amax(0, keepdim=True)).exp_()",
        "matrix = logits.softmax(1)",
        check(EQUATIONS, "mhc"),
    ),
    Mutant(
        "residual mixing of hyper-connections transposed",
        "recipes/hyper_connections.py",
        "return matrix[..., :-1].mT, matrix[..., -1]",
        "return torch.cat([matrix[..., :1].mT, matrix[..., 1:-1]], dim=-2), matrix[..., -1]",
        check(EQUATIONS, "hyper_connections"),
    ),
    Mutant(
        "the head sees one stream instead of all",
        "recipes/hyper_connections.py",
        "return state.streams.sum(-2)",
        "return state.streams[..., 0, :]",
        check(EQUATIONS, "hyper_connections"),
    ),
    Mutant(
        "hyper-connections that all first read stream 0",
        "recipes/hyper_connections.py",
        "self.static[t, t % n, 0] = 1.0",
        "self.static[t, 0, 0] = 1.0",
        Guard("recipes.test_baselines", "test_a_sublayer_first_reads_the_stream_of_its_number"),
    ),
    Mutant(
        "weights of DenseFormer off by one",
        "recipes/dense_former.py",
        "mixed = torch.addcmul(mixed, weights[i], widen(values[i]))",
        "mixed = torch.addcmul(mixed, weights[i - 1], widen(values[i]))",
        check(EQUATIONS, "dense_former"),
    ),
    Mutant(
        "DenseFormer over averages instead of states",
        "recipes/dense_former.py",
        "tuple(known[j] for j in self.kept[layer])",
        "tuple((known | {layer: stream})[j] for j in self.kept[layer])",
        check(EQUATIONS, "dense_former"),
    ),
    Mutant(
        "DenseFormer that starts from an even average",
        "recipes/dense_former.py",
        "weights[-1] = 1.0",
        "weights.fill_(1 / len(weights))",
        check("keeps_its_init_identity", "dense_former"),
    ),
]

MUTANTS = [*READS, *PRECISION, *LEAN_READ, *DIAGNOSTICS, *BASELINES]
