"""Decoding with a cache against one pass over the whole, and against ``transformers``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.config import ModelConfig, ResidualConfig
from harness.decoding import Decoder, Sampling, generate
from harness.decoding.sampling import draw, probabilities
from harness.errors import IsolossError
from harness.model import Transformer
from recipes.base import Options
from tests.harness.parametrised_models import COMPLETEP, MUP
from tests.harness.test_model import VOCAB, _renamed, theirs
from tests.recipes.contract import Recipe
from tests.recipes.test_contract import CASES, SHAPE
from tests.recipes.toy import randomise

transformers = pytest.importorskip("transformers")
SMALL = {"n_layers": 2, "d_model": 32, "head_dim": 8}


def model_of(
    residual: str = "standard", options: Options | None = None, std: float = 0.3, **shape: Any
) -> Transformer:
    """A model with every parameter of its recipe, and every gain, off its initial value."""
    given = {} if options is None else options.model_dump(mode="json", exclude_defaults=True)
    config = ModelConfig.model_validate(SMALL | shape)
    model = Transformer(config, ResidualConfig(name=residual, options=given), VOCAB, seed=0)
    randomise(model.residual, std=std)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.gain"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return model.requires_grad_(False)


def tokens(batch: int = 2, length: int = 20, seed: int = 5) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def prompts(*lengths: int) -> list[list[int]]:
    return [tokens(1, n, seed)[0].tolist() for seed, n in enumerate(lengths)]


def in_pieces(model: Transformer, ids: Tensor, *lengths: int) -> Tensor:
    """Logits of a sequence read in pieces of these lengths, then token by token."""
    decoder, first, parts = Decoder(model), 0, []
    for length in lengths:
        parts.append(decoder.prefill(ids[:, first : first + length]))
        first += length
    parts += [decoder.step(ids[:, i])[:, None] for i in range(first, ids.shape[1])]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize(("cls", "options"), CASES)
def test_cached_logits_are_those_of_one_pass(cls: Recipe, options: Options) -> None:
    ids, shape = tokens(), {"n_layers": SHAPE.n_layers, "d_model": SHAPE.d_model, "head_dim": 4}
    model = model_of(cls.name, options, **shape).double()
    torch.testing.assert_close(in_pieces(model, ids, 3, 12), model(ids), rtol=0, atol=1e-10)
    single = model_of(cls.name, options, std=0.02, **shape)
    torch.testing.assert_close(in_pieces(single, ids, 3, 12), single(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("residual", ["standard", "multi_stream"])
@pytest.mark.parametrize(
    "shape",
    [
        *({"n_kv_heads": 2, "qk_norm": True}, {"n_kv_heads": 1, "tied_head": True}),
        *({"d_model": 64, "head_dim": 16, **given} for given in (MUP, COMPLETEP)),
        {"d_model": 128, "head_dim": 16, "tied_head": True, **MUP},
    ],
    ids=["grouped, qk_norm", "one kv head, tied", "mup", "completep", "mup, tied"],
)
def test_every_backbone_can_be_decoded(residual: str, shape: dict[str, Any]) -> None:
    model, ids = model_of(residual, **shape).double(), tokens(length=12)
    for pieces in ((), (1, 1, 7), (12,)):
        torch.testing.assert_close(in_pieces(model, ids, *pieces), model(ids), rtol=0, atol=1e-10)


def test_greedy_generation_is_that_of_llama() -> None:
    model = model_of(n_layers=3, n_kv_heads=2)
    llama: Any = theirs("Llama", model, _renamed(model))
    ids = tokens(3, 9)
    said = llama.generate(ids, max_new_tokens=30, do_sample=False, pad_token_id=0, eos_token_id=-1)
    ours = generate(model, ids.tolist(), max_tokens=30)
    assert ours == said[:, 9:].tolist()
    assert len({tuple(row) for row in ours}) == 3


@pytest.mark.parametrize("residual", ["full", "multi_stream"])
def test_prompts_of_unequal_length_continue_as_each_does_alone(residual: str) -> None:
    model, unequal = model_of(residual).double(), prompts(3, 11, 1, 11, 6)
    alone = [generate(model, [prompt], max_tokens=9)[0] for prompt in unequal]
    assert generate(model, unequal, max_tokens=9) == alone


def test_a_prompt_that_has_ended_is_computed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    model, unequal = model_of("multi_stream").double(), prompts(5, 9, 3)
    whole = generate(model, unequal, max_tokens=12)
    lengths = [4, 12, 7]
    sizes = []
    step = Decoder.step
    monkeypatch.setattr(Decoder, "step", lambda d, t: sizes.append(len(t)) or step(d, t))
    cut = generate(
        model, unequal, max_tokens=12, stop=lambda row, new: len(new) == lengths[row] < 12
    )
    assert cut == [new[:n] for new, n in zip(whole, lengths, strict=True)]
    # Ends at positions 5 + 4, 9 + 12 and 3 + 7; the last token of each is not read any more.
    assert sizes == [3] * 5 + [2] + [1] * 11


def test_draws_of_one_prompt_do_not_depend_on_the_others() -> None:
    model, sampling = model_of(), Sampling(temperature=1.5, seed=3)
    first, second, other = prompts(4, 6, 5)
    pair = generate(model, [first, second], max_tokens=12, sampling=sampling)
    assert pair == generate(model, [first, second], max_tokens=12, sampling=sampling)
    assert pair[1] == generate(model, [other, second], max_tokens=12, sampling=sampling)[1]
    twins = generate(model, [first, first], max_tokens=12, sampling=sampling)
    assert twins[0] == pair[0] != twins[1]
    reseeded = Sampling(temperature=1.5, seed=4)
    assert pair[0] != generate(model, [first], max_tokens=12, sampling=reseeded)[0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 7, 500])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.6, 0.97, 1.0])
def test_probabilities_are_those_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = 3 * torch.randn(20, 50, generator=torch.Generator().manual_seed(2))
    if top_p is None:
        logits[:, 5] = logits[:, 6]  # a tie, which top-k must not tear apart
    scores: Any = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        scores = transformers.TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = transformers.TopPLogitsWarper(top_p)(None, scores)
    expected = scores.softmax(dim=-1)
    found = probabilities(logits, Sampling(temperature, top_k, top_p))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(found > 0, expected > 0)


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits, n = torch.tensor([[2.0, 0.0, 1.0, -1.0, 1.5]]), 4000
    sampling = Sampling(temperature=0.8, top_k=4)
    expected = n * (logits[0] / 0.8).masked_fill(logits[0] < 0, float("-inf")).softmax(0)
    generator = [torch.Generator().manual_seed(0)]
    drawn = torch.tensor([draw(logits, sampling, generator)[0] for _ in range(n)])
    counts = torch.bincount(drawn, minlength=5)
    assert counts[3] == 0
    assert (counts - expected).abs().max() < 4 * (n * 0.25) ** 0.5


def test_a_low_temperature_is_greedy() -> None:
    logits = 1e4 * torch.randn(8, 30, generator=torch.Generator().manual_seed(1))
    generators = [torch.Generator().manual_seed(row) for row in range(8)]
    cold = draw(logits, Sampling(temperature=1e-4), generators)
    assert cold == draw(logits, Sampling(), generators) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "values",
    [
        *({"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": 1.0, "top_k": 0}),
        *({"temperature": 1.0, "top_p": 0.0}, {"temperature": 1.0, "top_p": 1.1}, {"top_k": 5}),
    ],
    ids=str,
)
def test_impossible_sampling_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=list(values)[-1]):
        Sampling(**values)


def test_logits_that_are_not_finite_end_in_a_clear_error() -> None:
    model = model_of()
    model.head.weight[3] = float("nan")
    with pytest.raises(IsolossError, match=r"not finite.*--step"):
        generate(model, prompts(3), max_tokens=2)


def test_a_long_generation_makes_few_rotary_tables() -> None:
    model = model_of()
    generate(model, prompts(3), max_tokens=100)
    assert len(model.sublayers[0].body.rotary._tables) <= 7


def test_a_model_trains_on_after_decoding_as_if_it_had_not_decoded() -> None:
    ids, gradients = tokens(length=16), []  # a length whose rotary table decoding makes too
    for decodes in (False, True):
        model = model_of("multi_stream").requires_grad_(True)
        if decodes:
            generate(model, ids.tolist(), max_tokens=12)
            assert not in_pieces(model, ids, 5).requires_grad
        model(ids).logsumexp(-1).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))
