"""Transferable parametrisations: the papers' tables, the base shape, refusals, and recipes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from harness.config import ModelConfig, ResidualConfig, RunConfig, TrainConfig
from harness.diagnostics import measure
from harness.identity import run_id
from harness.model import Transformer
from harness.module import token_loss
from harness.optimiser import build_optimizer
from harness.show import recipe_page
from recipes.base import Residual, Shape, available, get
from tests.harness.parametrised_models import (
    COMPLETEP,
    MUP,
    VOCAB,
    model_of,
    settings,
    tokens,
    trained,
)

# What must not change -----------------------------------------------------------------------------


def test_the_fields_leave_the_ids_of_older_runs_alone() -> None:
    config = RunConfig.model_validate(
        {
            "residual": {"name": "block", "options": {"block_size": 2}},
            "model": {"n_layers": 4, "d_model": 64},
            "data": {"corpus": "sotu", "seq_len": 128},
            "train": {"budget": {"flops": 1e13}, "lr": 0.001},
            "seed": 3,
        }
    )
    assert run_id(config, 7, "5" * 64) == "f365c331cff4"


@pytest.mark.parametrize(
    ("residual", "optimizer", "shape", "losses"),
    [
        (
            "full",
            "muon",
            {},
            [4.600292582352495, 3.616252436328385, 2.771319605163893, 2.0594070472768538],
        ),
        (
            "standard",
            "adamw",
            {},
            [4.600292661769824, 2.459410864953592, 1.4130842845353628, 0.8548988672140239],
        ),
        (
            "mhc",
            "muon",
            {"tied_head": True, "qk_norm": True},
            [4.9033816838459785, 3.493393720584593, 2.5626930775044277, 1.8603498511302023],
        ),
    ],
)
def test_standard_runs_take_the_steps_they_took_before_there_was_a_choice(
    residual: str, optimizer: str, shape: dict[str, Any], losses: list[float]
) -> None:
    config = ModelConfig.model_validate({"n_layers": 2, "d_model": 32, "head_dim": 16, **shape})
    model = Transformer(config, ResidualConfig(name=residual), 64, seed=0).double()
    train = TrainConfig.model_validate(
        {"budget": {"tokens": 1}, "optimizer": optimizer, "lr": 0.02}
    )
    batch = tokens(batch=4, length=17, vocab=64)
    assert trained(model, train, batch, 4) == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("residual", ["full", "mhc"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_parametrisation_is_standard_at_its_base_shape(
    optimizer: str, residual: str, tied: bool
) -> None:
    shape: dict[str, Any] = {"n_layers": 4, "tied_head": tied, "qk_norm": True}
    models = [model_of(residual, **shape, **kind).double() for kind in ({}, MUP, COMPLETEP)]
    logits = [model(tokens()) for model in models]
    for model in models:
        trained(model, settings(optimizer), tokens(), 1)
    for other, seen in zip(models[1:], logits[1:], strict=True):
        assert torch.equal(seen, logits[0])
        for left, right in zip(models[0].parameters(), other.parameters(), strict=True):
            assert torch.equal(left, right)


# The papers' tables, at four times the base width and twice the base depth ------------------------

LARGE: dict[str, Any] = {"d_model": 256, "n_layers": 8, "qk_norm": True}
ADAMW_MUP = {  # learning rate, weight decay, epsilon as multiples of those at the base shape
    "embedding.weight": (1.0, 0.0, 0.25),
    "final_norm.gain": (1.0, 0.0, 0.25),
    "head.weight": (1.0, 1.0, 0.25),
    "sublayers.0.body.query.weight": (0.25, 4.0, 0.25),
    "sublayers.0.body.output.weight": (0.25, 4.0, 0.25),
    "sublayers.1.body.gate.weight": (0.25, 4.0, 0.25),
    "sublayers.1.body.output.weight": (0.25, 4.0, 0.25),
    "sublayers.1.norm.gain": (1.0, 0.0, 0.25),
}
ADAMW_COMPLETEP = {  # the hidden parts' epsilon falls with depth too; nothing else follows it
    name: (lr, decay, 0.125 if name.startswith("sublayers.") else eps)
    for name, (lr, decay, eps) in ADAMW_MUP.items()
}


def applied(model: Transformer, optimizer: str) -> dict[str, tuple[float, float, float]]:
    """Rate, decay and epsilon of every parameter as multiples of what was asked for."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    built = build_optimizer(model, settings(optimizer, lr=0.01, weight_decay=0.1))
    return {
        names[id(parameter)]: (
            round(group["lr"] / 0.01, 9),
            round(group["weight_decay"] / 0.1, 9),
            round(group.get("eps", 0.0) / 1e-8, 9),
        )
        for group in built.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize(
    ("kind", "table"), [(MUP, ADAMW_MUP), (COMPLETEP, ADAMW_COMPLETEP)], ids=["mup", "completep"]
)
def test_adamw_follows_the_papers_tables(
    kind: dict[str, Any], table: dict[str, tuple[float, float, float]]
) -> None:
    found = applied(model_of(**LARGE, **kind), "adamw")
    assert {name: found[name] for name in table} == table


@pytest.mark.parametrize("kind", [MUP, COMPLETEP], ids=["mup", "completep"])
def test_muons_rate_falls_with_the_root_of_the_width_and_rate_times_decay_stays(
    kind: dict[str, Any],
) -> None:
    found = applied(model_of(**LARGE, **kind), "muon")
    hidden = {found[name] for name in found if name.endswith(("y.weight", "e.weight", "p.weight"))}
    assert hidden == {(0.5, 2.0, 0.0)}
    assert found["head.weight"][:2] == (1.0, 1.0)


def test_initial_scales_and_multipliers_follow_the_papers_tables() -> None:
    plain, mup, completep = (model_of(**LARGE, **kind) for kind in ({}, MUP, COMPLETEP))
    assert [m.logit_multiplier for m in (plain, mup, completep)] == [1.0, 0.25, 0.25]
    assert [m.branch_multiplier for m in (plain, mup, completep)] == [1.0, 1.0, 0.5]
    expected = {  # base: width 64, 4 layers, so 8 sublayers; here 16 sublayers
        "head.weight": (1 / 16, 1 / 8, 1 / 8),
        "embedding.weight": (1.0, 1.0, 1.0),
        "sublayers.0.body.query.weight": (1 / 16, 1 / 16, 1 / 16),
        "sublayers.0.body.output.weight": (1 / 64, 1 / 64, 1 / 16 / 8**0.5),
    }
    for name, stds in expected.items():
        found = [m.get_parameter(name).std().item() for m in (plain, mup, completep)]
        assert found == pytest.approx(list(stds), rel=0.03), name


def test_a_tied_head_starts_at_the_scale_of_the_base_model() -> None:
    model = model_of(d_model=256, tied_head=True, **MUP)
    assert model.embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert model.logit_multiplier == 0.25


FAN_INS = [  # rate of a recipe's parameters at four times the base width, by hand
    ("full", {}, "queries", 1 / 4),
    ("full", {}, "gains", 1.0),
    ("full", {"heads": 4}, "queries", 1 / 4),
    ("full", {"query": "input_dependent"}, "queries", 1 / 16),
    ("full", {"query": "none"}, "queries", 1.0),
    ("full", {"logit_scale": "inverse_sqrt_rank"}, "queries", 1 / 2),
    ("block", {"temperature": 2.0}, "queries", 1 / 4),
    ("delta", {}, "queries", 1 / 4),
    ("low_rank", {}, "queries", 1 / 4),
    ("low_rank", {"key_rank": 8}, "queries", 1.0),
    ("multi_stream", {}, "queries", 1 / 4),
    ("multi_stream", {}, "head_map", 1 / 4),
    ("multi_stream", {}, "head_logits", 1.0),
    ("multi_stream", {}, "taps.0", 1.0),
    ("hyper_connections", {}, "projections", 1 / 4),
    ("hyper_connections", {}, "static", 1.0),
    ("mhc", {}, "projections", 1 / 4),
    ("mhc", {}, "biases", 1.0),
    ("layer_scale", {}, "gains", 1.0),
    ("rezero", {}, "scales", 1.0),
    ("dense_former", {}, "weights.0", 1.0),
    ("post_norm", {}, "gains", 1.0),
]


@pytest.mark.parametrize(("recipe", "options", "name", "share"), FAN_INS)
def test_rates_of_readouts_fall_with_what_they_sum_over(
    recipe: str, options: dict[str, Any], name: str, share: float
) -> None:
    config = ModelConfig.model_validate({"n_layers": 4, "d_model": 256, "head_dim": 16, **MUP})
    model = Transformer(config, ResidualConfig(name=recipe, options=options), VOCAB, 0)
    found = applied(model, "muon")[f"residual.{name}"]
    assert found == pytest.approx((share, 0.0, 1.0))


def test_no_recipe_parameter_follows_the_width_under_standard() -> None:
    for recipe in ("full", "mhc"):
        found = applied(model_of(recipe, d_model=256), "muon")
        assert {row for name, row in found.items() if name.startswith("residual")} == {
            (1.0, 0.0, 1.0)
        }


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"base_d_model": 64}, "'standard' takes no base shape, got base_d_model"),
        ({"parametrisation": "mup"}, "'mup' takes base_d_model, got none"),
        ({**MUP, "base_n_layers": 2}, "'mup' takes base_d_model, got base_d_model and base_n_la"),
        (
            {"parametrisation": "completep", "base_d_model": 64},
            "'completep' takes base_d_model and base_n_layers, got base_d_model",
        ),
        ({**MUP, "base_d_model": 40}, "base_d_model must be a multiple of head_dim"),
    ],
)
def test_a_base_shape_is_given_where_it_counts_and_nowhere_else(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told) as caught:
        ModelConfig.model_validate({"n_layers": 2, "d_model": 64, "head_dim": 16, **fields})
    assert caught.value.error_count() == 1


def test_diagnostics_resume_a_pass_with_the_factors_of_the_parametrisation() -> None:
    model, batch = model_of("full", n_layers=8, d_model=128, **COMPLETEP).double(), tokens()
    torch.nn.init.normal_(model.residual.get_parameter("queries"), 0.0, 0.3)
    found = measure(model, batch, causal=True)
    for one in found["masking"]:
        with torch.no_grad(), model.residual.masking(one["source"]):
            masked = token_loss(model, batch).item()
        with torch.no_grad():
            change = masked - token_loss(model, batch).item()
        assert one["loss_change_nats"] == pytest.approx(change, abs=1e-9)


# Recipes ------------------------------------------------------------------------------------------


def test_recipes_that_start_as_standard_do_so_at_every_depth_under_completep() -> None:
    shape = Shape(n_layers=8, d_model=128)
    large: dict[str, Any] = {"n_layers": 8, "d_model": 128, **COMPLETEP}
    expected = model_of("standard", **large).double()(tokens())
    checked = 0
    for name, cls in available().items():
        if cls.equals_standard_at_init(cls.Options()) and cls.example_options(shape):
            found = model_of(name, **large).double()(tokens())
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # epsilon of norms
            checked += 1
    assert checked >= 7


def test_every_shipped_recipe_says_what_theory_says_and_its_page_shows_it() -> None:
    for name, cls in available().items():
        if cls.__module__.startswith("recipes."):
            assert cls.transfer_note != Residual.transfer_note, name
    page = "".join(str(part) for part in recipe_page("rezero", 4, 64))
    assert all(part in page for part in get("rezero").transfer_note.split(" Depth: "))
