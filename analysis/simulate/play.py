"""Plays a declared grid in a synthetic world: noise is drawn once, losses follow from it.

The same noise under another multiplier gives the same studies with another truth, so that a search
over multipliers is not blurred by chance.
"""

from __future__ import annotations

import numpy as np

from analysis.laws import Floats
from analysis.simulate.declared import DeclaredGrid
from analysis.simulate.world import World


def draw_noise(grid: DeclaredGrid, world: World, studies: int, rng: np.random.Generator) -> Floats:
    """Deviation of ln L of every run: ``tau z_match + sigma z_run``.

    Returns
    -------
    ndarray
        ``[studies, arms, matches]``; NaN for a run that diverged or that the grid does not have.
    """
    n_arms, n_matches = grid.log_compute.shape
    noise = world.seed_sd * rng.standard_normal((studies, n_arms, n_matches))
    noise += world.shared_sd * rng.standard_normal((studies, 1, n_matches))
    if world.divergence:
        noise[rng.random(noise.shape) < world.divergence] = np.nan
    noise[:, ~np.isfinite(grid.log_compute)] = np.nan
    return noise


def true_loss(grid: DeclaredGrid, world: World, effects: Floats) -> Floats:
    """Loss of every run without noise, nats.

    ``L = E + (L_0 - E) exp(-alpha (x + ln rho + growth x))`` with ``x = ln C - ln C_0``.

    Parameters
    ----------
    grid
        Compute of the runs.
    world
        The law.
    effects
        ``[arms - 1]`` multiplier of each arm but the baseline at the middle of the ladder.

    Returns
    -------
    ndarray
        ``[arms, matches]``; NaN where the grid has no run.
    """
    x = grid.log_compute - grid.centre
    gain = np.zeros_like(x)
    gain[1:] = np.log(effects)[:, None] + world.growth * x[1:]
    return world.asymptote + (world.loss - world.asymptote) * np.exp(-world.alpha * (x + gain))


def play(grid: DeclaredGrid, world: World, effects: Floats, noise: Floats) -> Floats:
    """Final validation losses ``[studies, arms, matches]``, nats; NaN where there is none."""
    losses: Floats = true_loss(grid, world, effects) * np.exp(noise)
    return losses
