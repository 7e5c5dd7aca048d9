"""What every recipe owes the backbone, as one list of checks.

A check takes a recipe class, an option set and a model shape, and raises on a broken promise. Run
them over everything registered, or over one recipe of your own, installed or importable::

    ISOLOSS_RECIPES=package.module:Class pytest tests/recipes/test_contract.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from recipes.base import KERNELS, Options, RecipeError, Residual, Shape, build
from tests.recipes import naive, naive_baselines
from tests.recipes.toy import ToyModel, loss_of, make, randomise, tokens

Recipe = type[Residual]
Check = Callable[[Recipe, Options, Shape], None]
CHECKS: list[Check] = []

SHAPES = tuple(Shape(n_layers=n, d_model=d) for n, d in ((2, 8), (3, 12), (5, 20)))


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def option_sets(cls: Recipe, shape: Shape) -> list[Options]:
    """Example options that fit the shape."""
    fitting = []
    for options in cls.example_options(shape):
        try:
            options.check(shape)
        except ValueError:
            continue
        fitting.append(options)
    assert fitting, f"no example option set fits {shape}"
    return fitting


def model_of(cls: Recipe, options: Options, shape: Shape, **keywords: Any) -> ToyModel:
    return ToyModel(make(cls, options, shape), **keywords)


def random_model(cls: Recipe, options: Options, shape: Shape, **keywords: Any) -> ToyModel:
    """An fp64 model whose every parameter is off its initial value."""
    model = model_of(cls, options, shape, **keywords).double()
    randomise(model.residual)
    return model


def gradients(model: ToyModel, ids: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss_of(model, ids).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def walk(residual: Residual, embedding: Tensor, outputs: list[Tensor]) -> Iterator[tuple[int, Any]]:
    """Yield the state before every read, the final one included, with fixed sublayer outputs."""
    state = residual.start(embedding)
    for t, output in enumerate(outputs):
        yield t, state
        _, state = residual.read(state, t)
        state = residual.write(state, output, t)
    yield len(outputs), state


def stream_parts(shape: Shape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(shape.n_sublayers + 1, 2, 5, shape.d_model, generator=generator)
    return drawn[0].to(dtype), list(drawn[1:].to(dtype))


def reads(residual: Residual, parts: Tensor) -> Tensor:
    """What every read returns, the final one included, of an embedding and fixed outputs."""
    seen = []
    for t, state in walk(residual, parts[0], list(parts[1:])):
        final = t == residual.shape.n_sublayers
        seen.append(residual.finish(state) if final else residual.read(state, t)[0])
    return torch.stack(seen)


@check
def describes_itself(cls: Recipe, options: Options, shape: Shape) -> None:
    assert cls.equation
    assert cls.source
    assert cls.__doc__
    assert isinstance(cls.revision, int)
    assert cls.revision >= 1
    assert cls.example_options(shape)[0] == cls.Options(), "the defaults come first"


@check
def options_survive_yaml(cls: Recipe, options: Options, shape: Shape) -> None:
    as_yaml = options.model_dump(mode="json", exclude_defaults=True)
    assert cls.Options.model_validate(as_yaml) == options


@check
def trains_in_every_precision(cls: Recipe, options: Options, shape: Shape) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = model_of(cls, options, shape).to(dtype)
        grads = gradients(model, tokens())
        assert model(tokens()).dtype == dtype
        assert all(g is None or (g.dtype == dtype and g.isfinite().all()) for g in grads.values())


@check
def keeps_the_stream_in_the_embedding_dtype_under_autocast(
    cls: Recipe, options: Options, shape: Shape
) -> None:
    residual = make(cls, options, shape)
    randomise(residual)
    embedding, outputs = stream_parts(shape, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = [y.bfloat16() for y in outputs]
        in_autocast = [residual.read(s, t)[0] for t, s in walk(residual, embedding, lowered[:-1])]
    exact = [
        residual.read(s, t)[0]
        for t, s in walk(residual, embedding, [y.float() for y in lowered[:-1]])
    ]
    assert all(u.dtype == torch.float32 for u in in_autocast)
    torch.testing.assert_close(in_autocast, exact)


@check
def gives_gradient_to_every_live_parameter(cls: Recipe, options: Options, shape: Shape) -> None:
    model = random_model(cls, options, shape)
    dead = model.residual.dead_parameters()
    gradients(model, tokens())
    names = {name for name, _ in model.residual.named_parameters()}
    assert dead <= names, f"declared dead, but no parameters: {dead - names}"
    for name, parameter in model.residual.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.any())
        if name in dead:
            # A dead gain multiplies a query that the control keeps at zero; here it was moved off.
            continue
        assert reached == parameter.requires_grad, name
        if reached and parameter.ndim > 1:
            assert parameter.grad.flatten(1).any(dim=1).all(), f"a row of {name} never trains"


@check
def dead_parameters_cannot_change_the_loss(cls: Recipe, options: Options, shape: Shape) -> None:
    model = model_of(cls, options, shape).double()
    before = model(tokens())
    with torch.no_grad():
        for name in model.residual.dead_parameters():
            model.residual.get_parameter(name).normal_(generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(model(tokens()), before, rtol=1e-10, atol=1e-10)


@check
def is_causal(cls: Recipe, options: Options, shape: Shape) -> None:
    model = random_model(cls, options, shape)
    ids, changed = tokens(length=9), tokens(length=9)
    changed[:, 4] = (changed[:, 4] + 1) % 11
    difference = (model(ids) - model(changed)).abs().amax((0, 2))
    assert not difference[:4].any()
    assert difference[4] > 0


@check
def mixes_no_more_tokens_than_declared(cls: Recipe, options: Options, shape: Shape) -> None:
    residual = make(cls, options, shape).double()
    randomise(residual)
    reach = cls.token_reach(shape, options)
    generator = torch.Generator().manual_seed(3)
    parts = torch.randn(shape.n_sublayers + 1, 2, reach + 6, shape.d_model, generator=generator)
    changed = parts.double().clone()
    changed[:, :, 0] = changed[:, :, 0].roll(1, dims=-1)
    with torch.no_grad():
        before, after = reads(residual, parts.double()), reads(residual, changed)
    beyond = (before - after)[:, :, reach + 1 :].abs().amax((1, 2, 3)).nonzero().flatten().tolist()
    found = f"reads {beyond} see more than the {reach} earlier tokens that token_reach declares"
    assert not beyond, f"{cls.name}: {found}; a decoder would forget the others"


@check
def initialises_from_its_generator_alone(cls: Recipe, options: Options, shape: Shape) -> None:
    before = torch.get_rng_state()
    first, second = make(cls, options, shape), make(cls, options, shape)
    assert torch.equal(torch.get_rng_state(), before), "the global generator was used"
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    randomise(second)
    second.reset_parameters(torch.Generator().manual_seed(0))
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)


@check
def keeps_its_init_identity(cls: Recipe, options: Options, shape: Shape) -> None:
    if not cls.equals_standard_at_init(options):
        return
    model = model_of(cls, options, shape).double()
    baseline = ToyModel(build("standard", shape, {}, torch.Generator())).double()
    claim = f"{cls.name} claims equals_standard_at_init, but its logits differ; claim it or mend it"
    torch.testing.assert_close(
        model(tokens()), baseline(tokens()), rtol=1e-6, atol=1e-6, msg=lambda m: f"{claim}: {m}"
    )
    grads = gradients(model, tokens())
    for name, expected in gradients(baseline, tokens()).items():
        torch.testing.assert_close(grads[name], expected, rtol=1e-5, atol=1e-7)


@check
def costs_what_is_counted(cls: Recipe, options: Options, shape: Shape) -> None:
    residual = make(cls, options, shape)
    cost = cls.cost(shape, options)
    assert cost.params == sum(p.numel() for p in residual.parameters())
    embedding, outputs = stream_parts(shape, torch.float32)
    residual.use_countable_ops()
    with FlopCounterMode(display=False) as counter:
        last = None
        for t, state in walk(residual, embedding, outputs):
            last = state if t == shape.n_sublayers else None
        residual.finish(last)
    assert counter.get_total_flops() == cost.flops_per_token * embedding[..., 0].numel()


@check
def countable_operations_give_the_same_result(cls: Recipe, options: Options, shape: Shape) -> None:
    model = random_model(cls, options, shape)
    plain_logits, plain = model(tokens()), gradients(model, tokens())
    model.residual.use_countable_ops()
    torch.testing.assert_close(model(tokens()), plain_logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(model, tokens()), plain, rtol=1e-9, atol=1e-9)


@check
def keeps_the_state_it_declares(cls: Recipe, options: Options, shape: Shape) -> None:
    residual = make(cls, options, shape)
    embedding, outputs = stream_parts(shape)
    largest = 0
    for _, state in walk(residual, embedding, outputs):
        leaves = tree_leaves(state)
        assert all(leaf is None or isinstance(leaf, Tensor | int) for leaf in leaves)
        vectors = [x for x in leaves if isinstance(x, Tensor) and x.shape[-1] == shape.d_model]
        distinct = {x.data_ptr(): x.numel() for x in vectors}
        largest = max(largest, sum(distinct.values()))
    assert largest == cls.cost(shape, options).state_elements_per_token * embedding[..., 0].numel()


@check
def never_changes_a_state_it_was_given(cls: Recipe, options: Options, shape: Shape) -> None:
    residual = make(cls, options, shape).double()
    embedding, outputs = stream_parts(shape)
    for t, state in walk(residual, embedding, outputs[:-1]):
        kept = [x.clone() if isinstance(x, Tensor) else x for x in tree_leaves(state)]
        u, after = residual.read(state, t)
        written = tree_leaves(residual.write(after, outputs[t], t))
        again = tree_leaves(residual.write(after, outputs[t], t))
        torch.testing.assert_close(tree_leaves(state), kept, rtol=0, atol=0)
        torch.testing.assert_close(again, written, rtol=0, atol=0)
        assert u.shape == embedding.shape


@check
def agrees_with_the_equations(cls: Recipe, options: Options, shape: Shape) -> None:
    forward = {**naive.FORWARD, **naive_baselines.FORWARD}.get(cls.name)
    if forward is None:  # a new recipe may come without; the shipped ones are counted elsewhere
        return
    model = random_model(cls, options, shape)
    residual = model.residual
    seen: list[Tensor] = []
    with torch.no_grad():
        embedding = model.embedding(tokens())
        state = residual.start(embedding)
        for t, sublayer in enumerate(model.sublayers):
            u, state = residual.read(state, t)
            seen.append(u)
            state = residual.write(state, sublayer(u), t)
        parameters = dict(residual.state_dict())
        inputs, hidden = forward(options, parameters, embedding, list(model.sublayers))
        torch.testing.assert_close(seen, inputs, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(residual.finish(state), hidden, rtol=1e-10, atol=1e-10)


@check
def computes_the_same_by_every_kernel(cls: Recipe, options: Options, shape: Shape) -> None:
    model = random_model(cls, options, shape)
    model.residual.use_kernel("cached")
    logits, expected = model(tokens()), gradients(model, tokens())
    for kernel in KERNELS:
        try:
            model.residual.use_kernel(kernel)
            found = model(tokens())
        except RecipeError:  # the kernel says that it cannot compute these reads
            assert kernel not in ("auto", "torch")
            continue
        torch.testing.assert_close(found, logits, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradients(model, tokens()), expected, rtol=1e-9, atol=1e-11)


@check
def survives_activation_checkpointing(cls: Recipe, options: Options, shape: Shape) -> None:
    model = random_model(cls, options, shape)
    plain = gradients(model, tokens())
    model.checkpointed = True
    torch.testing.assert_close(gradients(model, tokens()), plain, rtol=1e-12, atol=1e-12)


@check
def round_trips_through_its_state_dict(cls: Recipe, options: Options, shape: Shape) -> None:
    model = random_model(cls, options, shape)
    twin = model_of(cls, options, shape).double()
    twin.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(twin(tokens()), model(tokens()), rtol=0, atol=0)


@check
def names_every_weight_that_diagnostics_see(cls: Recipe, options: Options, shape: Shape) -> None:
    residual = make(cls, options, shape).double()
    randomise(residual)
    embedding, outputs = stream_parts(shape)
    for t, state in walk(residual, embedding, outputs):
        assert residual.stream(state).shape == embedding.shape
        weights, labels = residual.depth_weights(state, t), residual.source_labels(t)
        if weights is None:
            assert labels == []
            continue
        assert weights.shape == (len(labels), *embedding.shape[:2])
        assert len(set(labels)) == len(labels)


@check
def compiles_without_a_graph_break(cls: Recipe, options: Options, shape: Shape) -> None:
    if options != cls.Options():
        return
    model = random_model(cls, options, SHAPES[0])
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens()), model(tokens()), rtol=1e-10, atol=1e-10)
