"""What a study over shapes and budgets shows, and how many pairs of arms its headline names."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.cells import FLOPS, cell_points
from analysis.collect import collect
from analysis.compare.pairwise import PairwiseTest
from analysis.estimates import Interval
from analysis.fit.shared import fit_shared
from analysis.page.wording import convention_sentence, separated_sentence, study_headline
from analysis.study import analyse, doubted
from analysis.study_shapes import at_best_rate, fills_a_map, isoflop_curves, shape_gains
from tests.analysis.synthetic_sweep import World, build_sweep

DEPTHS, WIDTHS = (2, 4, 8), (64, 128, 256)


def shape_runs(slope: float) -> pd.DataFrame:
    """Two arms over nine shapes at two rates; the arm gains 0.1 nats and ``slope`` per ln depth."""
    rows = []
    for arm, own in (("standard", 0.0), ("full", 1.0)):
        for depth in DEPTHS:
            for width in WIDTHS:
                for lr, worse in ((0.01, 0.0), (0.03, 0.2)):
                    bowl = 0.1 * math.log(depth / 4) ** 2 + 0.05 * math.log(width / 128) ** 2
                    wobble = 0.001 * ((depth * 7 + width * 3 + int(own)) % 5)
                    gain = own * (0.1 + slope * math.log(depth / 4))
                    rows.append(
                        {
                            "arm": arm,
                            "n_layers": depth,
                            "d_model": width,
                            "lr": lr,
                            "flops": 1e15,
                            "loss_nats": 3 + bowl - gain + worse + wobble,
                        }
                    )
    return pd.DataFrame(rows)


def test_of_several_learning_rates_the_best_one_counts() -> None:
    runs = shape_runs(0.0)
    best = at_best_rate(runs, ["arm", "n_layers", "d_model"])
    assert len(best) == 18
    assert set(best["lr"]) == {0.01}
    assert at_best_rate(runs.drop(columns="lr"), ["arm"]).shape[0] == 36


@pytest.mark.parametrize(("slope", "word"), [(0.0, "no trend"), (0.05, "changes")])
def test_gain_over_shapes_is_constant_or_not(slope: float, word: str) -> None:
    test = shape_gains(shape_runs(slope), "standard")["full"]
    assert test.mean_gain_nats.estimate == pytest.approx(0.1, abs=0.005)
    assert word in test.text


def test_runs_that_do_not_enter_a_curve_are_counted_in_its_notes() -> None:
    rows = [
        {"arm": "a", "flops": c, "n_params": n, "tokens": c / 6 / n, "lr": lr}
        | {"loss_nats": 2 + 0.1 * np.log(n / 3e7) ** 2 + (lr - 1e-3)}
        for c in (1e18, 1e19)
        for n in (1e7, 2e7, 4e7, 8e7)
        for lr in (1e-3, 2e-3)
    ]
    rows.append(rows[0] | {"flops": 1e20})
    found = isoflop_curves(pd.DataFrame(rows), "none")["a"]
    assert not isinstance(found, str)
    told = [note for note in found.notes if note.startswith("left_out: ")]
    assert told == [
        "left_out: 1 runs at budgets of fewer than 3 sizes",
        "left_out: 8 runs at another learning rate than the best",
    ]


def test_a_ladder_of_sizes_is_no_map() -> None:
    assert not fills_a_map((2, 4, 8), (64, 128, 256))
    assert not fills_a_map((2, 4, 2, 4), (64, 64, 128, 128))
    assert fills_a_map([d for d in DEPTHS for _ in WIDTHS], [*WIDTHS] * 3)


def pair(first: str, second: str, p_holm: float) -> PairwiseTest:
    ratio = Interval(estimate=0.9, low=0.8, high=1.0, method="m")
    return PairwiseTest(
        first=first,
        second=second,
        ratio=ratio,
        loss_difference=0.01,
        p_value=p_holm,
        p_holm=p_holm,
        n_sizes=4,
    )


def test_headline_counts_pairs_that_would_fill_it() -> None:
    apart = [pair("a", f"b{i}", 0.001) for i in range(6)]
    everything = "All 6 pairs of variants differ from each other after Holm's correction."
    assert separated_sentence(apart) == everything
    said = separated_sentence([*apart, pair("c", "d", 0.4)])
    assert said.startswith("6 of 7 pairs of variants differ")
    assert said.endswith("not told apart: c and d.")
    assert "a below b0 (adjusted p 0.001)" in separated_sentence(apart[:2])


def test_convention_is_a_sentence_whatever_the_table_says() -> None:
    assert convention_sentence("as given in the table") == "Compute: as given in the table."
    assert convention_sentence("FLOPs: matmuls only.") == "FLOPs: matmuls only."


def test_one_arm_alone_gets_its_law_in_the_headline(tmp_path: Path) -> None:
    world = World(multipliers={"standard": 1.0}, noise=0.001, seeds=(0,), diagnostics="none")
    said = study_headline(analyse(collect(build_sweep(tmp_path, world)), "standard"))
    assert said.startswith("One arm, so nothing is compared.")
    assert "multiplier" not in said
    alpha = re.search(r"alpha = (0\.\d+) \[", said)
    assert alpha is not None
    assert float(alpha.group(1)) == pytest.approx(0.1, abs=0.005)


def test_level_reaches_every_interval_of_a_study(tmp_path: Path) -> None:
    runs = collect(build_sweep(tmp_path, World(noise=0.002, diagnostics="none")))
    found = analyse(runs, "standard", level=0.8)
    fits = [found.joint, *found.laws.values()]
    levels = {
        at.level
        for fit in fits
        if not isinstance(fit, str)
        for name, at in fit.parameters.items()
        if at.reason is None
    }
    levels |= {m.ratio.level for m in found.comparisons["flops"]}
    levels |= {m.simultaneous.level for m in found.comparisons["flops"]}
    levels |= {row.ratio.level for rows in found.sensitivity.values() for row in rows}
    assert levels == {0.8}


def test_one_compute_level_gives_reasons_and_no_number(tmp_path: Path) -> None:
    same = [(2, 64)] * 1
    runs = collect(build_sweep(tmp_path, World(shapes=same, noise=0.002, diagnostics="none")))
    found = analyse(runs, "standard")
    assert isinstance(found.slopes, str)
    assert "compute levels" in found.slopes or "sizes" in found.slopes
    assert all(isinstance(law, str) for law in found.laws.values())


def test_a_true_law_is_seldom_said_to_miss_though_arms_share_deviations() -> None:
    rng, told, n_worlds = np.random.default_rng(12), 0, 150
    arms, sizes, seeds = 6, 5, 3
    compute = np.geomspace(1e17, 1e19, sizes)
    for _ in range(n_worlds):
        shared = rng.normal(0, 0.003, (1, sizes, seeds))
        own = rng.normal(0, 0.0015, (arms, sizes, seeds))
        loss = 12 * compute[None, :, None] ** -0.055 * np.exp(shared + own)
        told += "lack_of_fit" in " ".join(law_notes(loss, compute))
    assert told / n_worlds < 0.05 + 3 * (0.05 * 0.95 / n_worlds) ** 0.5


def law_notes(loss: np.ndarray, compute: np.ndarray) -> tuple[str, ...]:
    rows = [
        {"arm": f"arm {a}", "size": str(s), "size_key": str(s), "pair_key": "", "seed": k}
        | {"flops": compute[s], "loss_nats": loss[a, s, k]}
        for a, s, k in np.ndindex(loss.shape)
    ]
    used = pd.DataFrame(rows)
    law = doubted(fit_shared(cell_points(used, FLOPS), FLOPS), used)
    return () if isinstance(law, str) else law.notes
