"""Movements judged by averages over draws, where randomness cannot be repeated."""

import numpy as np
import pytest
from scipy import special

from coalmine.replaying import averages
from coalmine.replaying.movement import Scale
from coalmine.replaying.rounds import Round
from coalmine.replaying.running import Outcome

SHAPES = {
    "gaussian": lambda rng, dim: rng.standard_normal(dim),
    "laplace": lambda rng, dim: rng.laplace(0, np.sqrt(0.5), dim),
    "binomial": lambda rng, dim: (rng.binomial(16, 0.5, dim) - 8) / 2,
}


class Unrepeatable:
    """A sum with noise of unit variance that is new in every run."""

    state_varies = False

    def __init__(self, shape, dim, rng):
        self._noise = lambda: SHAPES[shape](rng, dim)

    def run(self, rounds, draw=0):
        vector = rounds[0][0] + self._noise()
        return Outcome(vector, (("output", vector.size),))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_movement_that_the_noise_just_covers_is_rarely_measured_as_more(shape, monkeypatch):
    """At a rate of 5% in 150 cases, without the margin for the noise; 5 binomial errors are 8.9%: once in 10⁶."""
    rate, cases, alarms = 0.05, 150, 0
    monkeypatch.setattr(averages, "_QUANTILE", float(-special.ndtri(rate / 2)))  # movement and scale share the rate
    for index in range(cases):
        rng = np.random.default_rng([index, 3])
        dim, noise_multiplier = int(rng.integers(5, 60)), float(np.exp(rng.normal()))
        direction = rng.standard_normal(dim)
        moved = direction / np.linalg.norm(direction) / noise_multiplier
        around = Round(
            Unrepeatable(shape, dim, rng), [[np.zeros(dim)]], draws=200, reproducible=False, precision=1e-16
        )  # fmt: skip
        scale = Scale(noise_multiplier=noise_multiplier, sensitivity=1 / noise_multiplier)
        alarms += around.compare([[moved]], scale, hint=moved).excess > 1
    assert alarms / cases < rate + 5 * np.sqrt(rate * (1 - rate) / cases)
