"""The backbone against an independent Llama, and its initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.config import ModelConfig, ResidualConfig
from harness.layers import RMSNorm
from harness.model import Transformer

VOCAB = 97
transformers = pytest.importorskip("transformers")


def ours(residual: str = "standard", seed: int = 0, **shape: object) -> Transformer:
    model = ModelConfig.model_validate({"n_layers": 3, "d_model": 64, "head_dim": 16, **shape})
    return Transformer(model, ResidualConfig(name=residual), VOCAB, seed)


def theirs(name: str, model: Transformer, weights: dict[str, Tensor]) -> torch.nn.Module:
    """A model of ``transformers`` of our model's shape that holds the given weights."""
    c = model.config
    config = getattr(transformers, f"{name}Config")(
        vocab_size=model.embedding.num_embeddings,
        hidden_size=c.d_model,
        intermediate_size=c.ffn_width,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_key_value_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.norm_eps,
        rope_theta=c.rope_theta,
        tie_word_embeddings=c.tied_head,
        attn_implementation="eager",
    )
    other: torch.nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    other.load_state_dict(weights, strict=not c.tied_head)
    return other.eval()


def _renamed(model: Transformer) -> dict[str, Tensor]:
    weights = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.final_norm.gain,
        "lm_head.weight": model.head.weight,
    }
    for layer in range(model.config.n_layers):
        attention, mlp = model.sublayers[2 * layer], model.sublayers[2 * layer + 1]
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": attention.norm.gain,
            f"{prefix}.self_attn.q_proj.weight": attention.body.query.weight,
            f"{prefix}.self_attn.k_proj.weight": attention.body.key.weight,
            f"{prefix}.self_attn.v_proj.weight": attention.body.value.weight,
            f"{prefix}.self_attn.o_proj.weight": attention.body.output.weight,
            f"{prefix}.post_attention_layernorm.weight": mlp.norm.gain,
            f"{prefix}.mlp.gate_proj.weight": mlp.body.gate.weight,
            f"{prefix}.mlp.up_proj.weight": mlp.body.up.weight,
            f"{prefix}.mlp.down_proj.weight": mlp.body.output.weight,
        }
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def tokens(batch: int = 2, length: int = 40) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    "shape",
    [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "d_ff": 96}, {"tied_head": True, "rope_theta": 5e5}],
    ids=["plain", "grouped", "one kv head", "tied"],
)
def test_standard_model_gives_the_logits_of_llama(shape: dict[str, object]) -> None:
    model = ours(**shape).eval()
    with torch.no_grad():
        expected = theirs("Llama", model, _renamed(model))(tokens()).logits
        torch.testing.assert_close(model(tokens()), expected, rtol=0, atol=1e-5)


def test_qk_norm_gives_the_logits_of_qwen3() -> None:
    model = ours(qk_norm=True).eval()
    for sublayer in model.sublayers[::2]:
        torch.nn.init.uniform_(sublayer.body.query_norm.gain, 0.5, 1.5)
    weights = _renamed(model)
    for layer in range(model.config.n_layers):
        body = model.sublayers[2 * layer].body
        weights[f"model.layers.{layer}.self_attn.q_norm.weight"] = body.query_norm.gain.detach()
        weights[f"model.layers.{layer}.self_attn.k_norm.weight"] = body.key_norm.gain.detach()
    qwen = theirs("Qwen3", model, weights)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), qwen(tokens()).logits, rtol=0, atol=1e-5)


def test_arms_of_one_seed_share_every_backbone_weight() -> None:
    standard, full = ours("standard", seed=3), ours("full", seed=3)
    shared = dict(full.named_parameters())
    for name, weight in standard.named_parameters():
        assert torch.equal(weight, shared[name]), name
    assert not torch.equal(standard.head.weight, ours("standard", seed=4).head.weight)


def test_initialisation_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = ours("full")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    for (name, left), right in zip(
        first.named_parameters(), ours("full").parameters(), strict=True
    ):
        assert torch.equal(left, right), name


def stream_scales(model: Transformer) -> list[float]:
    scales: list[float] = []
    model(tokens(), lambda t, before, u, y, after: scales.append(after.std().item()))
    return scales


def test_stream_of_the_standard_model_keeps_its_scale_at_any_depth() -> None:
    for n_layers in (2, 32):
        scales = stream_scales(ours(n_layers=n_layers))
        assert 0.8 < scales[-1] / scales[0] < 1.5


def test_rms_norm_takes_its_statistics_in_fp32() -> None:
    norm = RMSNorm(256, 1e-8)
    x = torch.full((1, 256), 3.0e-3, dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16
    torch.testing.assert_close(norm(x).float(), torch.ones(1, 256), rtol=0, atol=1e-2)
    wide = torch.linspace(-1, 1, 256, dtype=torch.float64)[None]
    exact = wide / (wide.square().mean() + 1e-8).sqrt()
    torch.testing.assert_close(norm.double()(wide), exact, rtol=1e-12, atol=0)


def test_logits_do_not_see_later_tokens() -> None:
    model, x = ours().eval(), tokens(1, 20)
    changed = x.clone()
    changed[0, 12] = (x[0, 12] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])


def test_random_depth_queries_have_nothing_to_do_with_the_backbone() -> None:
    shape = ModelConfig(n_layers=3, d_model=64, head_dim=16)
    random = ResidualConfig(name="full", options={"query_init_std": 0.02})
    model = Transformer(shape, random, VOCAB, seed=0)
    queries = model.residual.get_parameter("queries").detach()
    assert 0.015 < queries.std() < 0.025
    for weight in (model.embedding.weight, model.sublayers[0].body.query.weight):
        rows = weight.detach()[: len(queries)]
        assert torch.corrcoef(torch.stack((queries.flatten(), rows.flatten())))[0, 1].abs() < 0.15
