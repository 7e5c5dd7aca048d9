"""The run card and the methods paragraph: from what was computed, or not at all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from analysis.collect import collect
from analysis.page.methods import methods_paragraph
from analysis.page.run_card import NOT_RECORDED, card_json, card_markdown, run_card, save_card
from analysis.study import Analysis, analyse
from harness.cost import FLOP_CONVENTION
from harness.records import Manifest, read_manifest
from tests.analysis.synthetic_sweep import World, build_sweep, run_id

PARTS = ["Form", "Training setup", "Data extraction", "Fit algorithm"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Manifest]:
    arms = {"standard": 1.0, "full": 1.3, "low_rank": 1.0}
    statuses = {run_id("full", 2, 1): "diverged"}
    world = World(multipliers=arms, noise=0.001, statuses=statuses, diagnostics="none")
    paths = build_sweep(tmp_path_factory.mktemp("sweep"), world)
    manifest = read_manifest(paths)
    return analyse(collect(paths), manifest.baseline), manifest


def answers(found: Analysis, manifest: Manifest | None) -> dict[str, str]:
    card = run_card(found, "synthetic", manifest)
    assert [part.title for part in card.parts] == PARTS
    return {f"{p.title}/{e.question}": e.answer for p in card.parts for e in p.entries}


def test_card_is_filled_from_manifest_records_and_fits(study: tuple[Analysis, Manifest]) -> None:
    card = answers(*study)
    assert card["Training setup/Arms"] == "standard, full and low_rank (baseline standard)"
    assert card["Training setup/Runs"] == "24, of which 23 used"
    assert card["Training setup/Sizes"] == "2x64, 4x96, 6x128 and 8x160"
    assert card["Training setup/Seeds per cell"] == "1 to 2"
    assert card["Training setup/Optimiser"] == "muon"
    assert card["Training setup/Batch"] == "4096 tokens"
    assert card["Training setup/How compute is counted"] == FLOP_CONVENTION
    assert card["Data extraction/Exclusions"] == "1 excluded (1 diverged in a test)"
    assert card["Fit algorithm/Correction for several arms"] == "Holm over 2"
    assert card["Fit algorithm/Pairing"].startswith("by configuration and seed for 2 of 2 arms")
    assert card["Form/Fixed parameters"] == "E = 0 nats"


def test_what_nobody_wrote_down_is_said_to_be_missing(study: tuple[Analysis, Manifest]) -> None:
    found, manifest = study
    assert answers(found, manifest)["Training setup/Data repeated within a run"] == NOT_RECORDED
    bare = found.runs.drop(columns=["optimizer", "lr", "hardware", "n_params"])
    card = answers(dataclasses.replace(found, runs=bare), None)
    for question in ("Optimiser", "Learning rate", "Hardware", "Parameters"):
        assert card[f"Training setup/{question}"] == NOT_RECORDED
    assert card["Training setup/How parameters are counted"] == NOT_RECORDED


def test_card_is_written_as_markdown_and_json(
    study: tuple[Analysis, Manifest], tmp_path: Path
) -> None:
    card = run_card(study[0], "synthetic", study[1])
    save_card(card, tmp_path)
    assert (tmp_path / "run_card.md").read_text() == card_markdown(card)
    content = json.loads((tmp_path / "run_card.json").read_text())
    assert list(content["parts"]) == PARTS
    flat = [answer for part in content["parts"].values() for answer in part.values()]
    assert len(flat) == card.n_entries
    assert sum(answer is None for answer in flat) == card.n_entries - card.n_recorded
    assert content == json.loads(card_json(card))


def test_methods_paragraph_states_design_law_interval_and_convention(
    study: tuple[Analysis, Manifest],
) -> None:
    text = methods_paragraph(study[0])
    law = study[0].laws["flops"]
    assert not isinstance(law, str)
    for words in (
        "We compared 2 variants (full and low_rank) with the baseline standard at 4 sizes",
        "1 to 2 seeds each",
        "23 of 24 runs were used; 1 excluded (1 diverged in a test)",
        f"{law.law} ({law.method}; E = 0 nats",
        "paired by configuration and seed, one value per size (n = 4 sizes)",
        "Intervals (95%):",
        "Fieller",
        "Holm's procedure over 2 variants",
        FLOP_CONVENTION,
        "isoloss 0.1.0",
        "numpy ",
    ):
        assert words in text, words
    assert "nan" not in text.lower().split()


def test_what_was_refused_is_not_claimed(study: tuple[Analysis, Manifest]) -> None:
    found = study[0]
    none = dataclasses.replace(
        found,
        laws=dict.fromkeys(found.laws, "too few sizes"),
        comparisons=dict.fromkeys(found.comparisons, ()),
    )
    text = methods_paragraph(none)
    assert "We fitted" not in text
    assert "Fieller" not in text
    card = answers(none, None)
    assert card["Form/Law"] == "none fitted: too few sizes"
    assert card["Fit algorithm/Objective and algorithm"] == NOT_RECORDED


def test_a_sweep_without_a_usable_run_still_has_a_card(study: tuple[Analysis, Manifest]) -> None:
    found = study[0]
    runs = found.runs.assign(excluded_because="not started")
    empty = dataclasses.replace(
        found,
        runs=runs,
        laws=dict.fromkeys(found.laws, "no run"),
        comparisons=dict.fromkeys(found.comparisons, ()),
    )
    assert answers(empty, study[1])["Training setup/Sizes"] == NOT_RECORDED
    assert methods_paragraph(empty).startswith("None of 24 runs could be used")
