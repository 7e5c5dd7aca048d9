"""Intervals cover as often as they claim: a small seeded form of ``tests.benchmarks.coverage``."""

from __future__ import annotations

import pytest

from tests.benchmarks.coverage import BENT, HARSH, WORLDS, World, cover

SEED = 20260315
NOMINAL = 0.95
CHOSEN = [WORLDS[0], WORLDS[3], WORLDS[4], WORLDS[6]]


def error(studies: int) -> float:
    """Binomial standard error of a coverage of 95%."""
    return float((NOMINAL * (1 - NOMINAL) / studies) ** 0.5)


@pytest.mark.parametrize("world", CHOSEN, ids=str)
def test_default_interval_covers_the_truth_about_95_times_in_100(world: World) -> None:
    found = cover(world, 1000, SEED, ["fieller"])["fieller"]
    assert abs(found.coverage - NOMINAL) < 3 * error(1000)
    # An unbounded interval covers everything: few may stand behind that number.
    assert found.unbounded / found.n < 0.05


@pytest.mark.parametrize("world", CHOSEN[1:], ids=str)
def test_wild_bootstrap_covers_nearly_as_often(world: World) -> None:
    assert cover(world, 300, SEED, ["wild"])["wild"].coverage > 0.92 - 3 * error(300)


def test_family_of_arms_is_covered_at_once() -> None:
    found = cover(WORLDS[3], 300, SEED, ["family"])["family"]
    assert abs(found.coverage - NOMINAL) < 3 * error(300)


def test_band_along_compute_covers_at_its_ends_and_its_middle() -> None:
    found = cover(WORLDS[4], 400, SEED, ["curve"])
    for at in ("smallest", "middle", "largest"):
        assert abs(found[f"curve, {at}"].coverage - NOMINAL) < 3 * error(400), at


def test_unpaired_interval_wastes_what_pairing_removes_but_covers() -> None:
    shared = cover(WORLDS[3], 300, SEED, ["unpaired", "fieller"])
    assert shared["unpaired"].coverage > NOMINAL
    assert shared["unpaired"].width > 1.5 * shared["fieller"].width


def test_slope_variance_by_size_covers_where_shared_deviations_dominate() -> None:
    found = cover(HARSH[1], 500, SEED, ["by size", "fieller"])
    assert abs(found["by size"].coverage - NOMINAL) < 3 * error(500)
    # The default does not, which is why a note is given there.
    assert found["fieller"].coverage < 0.93


def test_asymptote_pinned_wrongly_widens_the_default_interval_and_never_narrows_it() -> None:
    mild, strong = (cover(world, 400, SEED, ["fieller"])["fieller"].coverage for world in BENT)
    assert mild > NOMINAL - 3 * error(400)
    assert strong > NOMINAL + 3 * error(400)
