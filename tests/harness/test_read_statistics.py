"""Statistics of reads and of stream mixing against hand-computed values and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from harness.read_statistics import (
    collapse,
    mixing_statistics,
    read_statistics,
    source_statistics,
)


def test_a_read_is_summed_up_as_by_hand() -> None:
    # Two tokens: weights 0.5, 0.25, 0.25 and 0.1, 0.2, 0.7.
    weights = torch.tensor([[[0.5, 0.1]], [[0.25, 0.2]], [[0.25, 0.7]]], dtype=torch.float64)
    read = read_statistics(weights, 5, ["embedding", "block 1", "partial"])
    assert read["mean_weights"] == pytest.approx([0.3, 0.225, 0.475])
    assert read["total_weight"] == pytest.approx(1.0)
    entropies = [
        -sum(a * math.log(a) for a in token) for token in ((0.5, 0.25, 0.25), (0.1, 0.2, 0.7))
    ]
    assert read["normalised_entropy"] == pytest.approx(sum(entropies) / 2 / math.log(3))
    assert read["max_weight"] == pytest.approx(0.6)
    assert read["max_weight_times_sources"] == pytest.approx(1.8)
    masses = [read[f"{name}_mass"] for name in ("embedding", "older", "newest", "partial")]
    assert masses == pytest.approx([0.3, 0.225, 0.475, 0.475])
    assert read["token_variance"] == pytest.approx(0.2**2 + 0.025**2 + 0.225**2)


def test_a_read_of_one_source_has_no_entropy() -> None:
    read = read_statistics(torch.ones(1, 2, 3), 0, ["embedding"])
    assert read["normalised_entropy"] is None
    assert read["partial_mass"] is None
    masses = (read["newest_mass"], read["embedding_mass"], read["older_mass"])
    assert masses == (1.0, 1.0, 0.0)
    assert read["token_variance"] == 0.0


def test_a_read_without_the_embedding_has_no_embedding_mass() -> None:
    read = read_statistics(torch.full((2, 1, 1), 0.5), 3, ["block 1", "block 2"])
    assert read["embedding_mass"] is None
    assert (read["older_mass"], read["newest_mass"]) == (0.5, 0.5)


def test_weights_that_do_not_add_up_to_one_are_compared_by_their_shares() -> None:
    weights = torch.tensor([[[0.9]], [[-0.6]], [[0.3]]])
    read = read_statistics(weights, 4, ["embedding", "t0", "t1"])
    assert read["mean_weights"] == pytest.approx([0.9, -0.6, 0.3])
    assert read["total_weight"] == pytest.approx(0.6)
    assert read["max_weight"] == pytest.approx(0.5)
    assert read["embedding_mass"] + read["older_mass"] + read["newest_mass"] == pytest.approx(1.0)


def test_sources_agree_with_numpy_token_by_token() -> None:
    rng = np.random.default_rng(0)
    weights, values = rng.random((4, 7)), rng.normal(size=(4, 7, 5)) * rng.random((4, 1, 1)) * 9
    found = source_statistics(torch.from_numpy(weights), torch.from_numpy(values))
    parts = weights[..., None] * values
    assert found["contributions"] == pytest.approx(
        np.sqrt((parts**2).mean(-1)).mean(-1).tolist(), rel=1e-5
    )
    ranks, cosines = [], []
    for token in range(7):
        unit = values[:, token] / np.linalg.norm(values[:, token], axis=-1, keepdims=True)
        eigenvalues = np.linalg.eigvalsh(unit @ unit.T)
        ranks.append(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())
        cosines += [unit[i] @ unit[i + 1] for i in range(3)]
    assert found["effective_rank"] == pytest.approx(np.mean(ranks), rel=1e-5)
    assert found["adjacent_cosine"] == pytest.approx(np.mean(cosines), abs=1e-6)


def test_like_sources_have_rank_one_and_orthogonal_ones_full_rank() -> None:
    weights = torch.ones(3, 2)
    alike = source_statistics(weights, torch.tensor([1.0, 2.0, 5.0])[:, None, None].expand(3, 2, 4))
    assert alike["effective_rank"] == pytest.approx(1.0)
    assert alike["adjacent_cosine"] == pytest.approx(1.0)
    apart = source_statistics(weights, torch.eye(3)[:, None].expand(3, 2, 3))
    assert apart["effective_rank"] == pytest.approx(3.0)
    assert apart["adjacent_cosine"] == 0.0
    alone = source_statistics(weights[:1], torch.ones(1, 2, 4))
    assert (alone["effective_rank"], alone["adjacent_cosine"]) == (pytest.approx(1.0), None)


def test_mixing_tells_the_identity_from_a_swap_and_a_leak() -> None:
    def of(*rows: list[float]) -> dict[str, float]:
        return mixing_statistics(torch.tensor(rows)[None, None])

    nothing = {"row_sum_error": 0.0, "column_sum_error": 0.0}
    assert of([1.0, 0.0], [0.0, 1.0]) == {**nothing, "off_diagonal_mass": 0.0}
    assert of([0.0, 1.0], [1.0, 0.0]) == {**nothing, "off_diagonal_mass": 1.0}
    leak = of([0.9, 0.0], [0.2, 0.7])
    assert leak["row_sum_error"] == pytest.approx(0.1)
    assert leak["column_sum_error"] == pytest.approx(0.3)
    assert leak["off_diagonal_mass"] == pytest.approx(0.1)


def read(t: int, weights: list[float]) -> dict[str, object]:
    tensor = torch.tensor(weights, dtype=torch.float64)[:, None, None]
    return read_statistics(tensor, t, [f"t{i}" for i in range(len(weights))])


def test_collapse_counts_reads_that_choose_and_the_deep_half_apart() -> None:
    reads = [
        read(0, [1.0]),
        read(1, [0.05, 0.95]),
        read(2, [0.5, 0.5]),
        read(3, [0.3, 0.3, 0.4]),
        read(4, [0.1, 0.1, 0.8]),
    ]
    shares = collapse(reads, n_sublayers=4)
    assert shares["collapsed_to_newest"] == pytest.approx(1 / 4)
    assert shares["collapsed_to_uniform"] == pytest.approx(2 / 4)
    assert shares["collapsed_to_uniform_deep"] == pytest.approx(2 / 3)
    assert set(collapse(reads[:1], n_sublayers=4).values()) == {None}


def test_a_flat_read_is_uniform_by_its_largest_weight_too() -> None:
    # Six of seven sources alike: entropy ln 6 / ln 7 = 0.92, largest weight 7 / 6 of the uniform.
    flat, peaked = [0.0, *[1 / 6] * 6], [0.45, *[0.55 / 6] * 6]
    shares = collapse([read(4, flat), read(3, peaked)], n_sublayers=4)
    assert read(4, flat)["normalised_entropy"] == pytest.approx(math.log(6) / math.log(7))
    assert shares["collapsed_to_uniform"] == 0.0
    assert shares["collapsed_to_uniform_deep"] == pytest.approx(1 / 2)
