"""Replay of the simulation's mechanisms: they pass, and mechanisms with a bug do not."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.replaying import Client, replay_mechanism
from coalmine.simulation import (
    AdaptiveClipping,
    FixedClipping,
    Mechanism,
    NoClipping,
    WeightsBySize,
)

FIXED = FixedClipping(0.5)
ADAPTIVE = AdaptiveClipping(initial=0.5, count_noise=5.0)
WEIGHTED = [Client(update, examples=20) for update in np.random.default_rng(0).normal(0, 0.1, (5, 150))]


def checks(result):
    return {finding.check for finding in result.findings if finding.refutes}


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(clipping=FIXED, noise_multiplier=2.0),
        Mechanism(clipping=ADAPTIVE, noise_multiplier=2.0),
        Mechanism(clipping=AdaptiveClipping(initial=0.5, count_noise=1.1), noise_multiplier=2.0),
        Mechanism(clipping=FIXED, noise_multiplier=2.0, weighting=WeightsBySize(cap=30)),
        Mechanism(clipping=FIXED),
    ],
    ids=["fixed", "adaptive", "much of the budget for the count", "weighted", "no noise"],
)
def test_the_mechanisms_of_the_simulation_are_not_refuted(mechanism):
    """False-alarm probability at most 0.1% each, once for this seed."""
    result = replay_mechanism(mechanism, WEIGHTED)
    assert result.ok, str(result)
    assert result.reproducible


@dataclass(frozen=True, kw_only=True)
class SameNoise(Mechanism):
    """Noise that depends on the dimension only."""

    def noise(self, dim, seed, clip_norm, expected_clients, round, trial=0):
        return super().noise(dim, 3, clip_norm, expected_clients, 0, 0)


@dataclass(frozen=True, kw_only=True)
class SmallNoise(Mechanism):
    """Noise for an average, on a sum."""

    def noise(self, dim, seed, clip_norm, expected_clients, round, trial=0):
        return super().noise(dim, seed, clip_norm, expected_clients, round, trial) / expected_clients


@dataclass(frozen=True, kw_only=True)
class FreeCount(Mechanism):
    """Adaptive clipping whose count of clipped updates does not use any of the privacy budget."""

    def update_noise(self, expected_clients):
        return self.noise_multiplier


@dataclass(frozen=True)
class Uncapped(WeightsBySize):
    """Weights that may exceed 1."""

    def weights(self, sizes):
        return sizes / self.cap


BUGS = {
    "the same noise in every run": (SameNoise(clipping=FIXED, noise_multiplier=2.0), "size of the noise"),
    "noise for an average": (SmallNoise(clipping=FIXED, noise_multiplier=2.0), "size of the noise"),
    "weights above 1": (Mechanism(clipping=FIXED, noise_multiplier=2.0, weighting=Uncapped(cap=30)), "examples"),
    "a count for free": (
        FreeCount(clipping=AdaptiveClipping(initial=0.5, count_noise=0.1), noise_multiplier=1.0), "size of the noise"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_mechanism_with_a_bug_is_refuted(name):
    mechanism, check = BUGS[name]
    assert check in checks(replay_mechanism(mechanism, WEIGHTED)), name


def test_an_adaptive_clip_norm_moves_as_its_theorem_says():
    """z⁻² = z_updates⁻² + (2 · count noise)⁻² (Andrew et al., 2021): a clipped client moves the release by 1/z."""
    mechanism = Mechanism(clipping=AdaptiveClipping(initial=0.5, count_noise=1.5), noise_multiplier=2.0)
    result = replay_mechanism(mechanism, 5, dim=60, rounds=1)
    # The count is one number, so its noise is measured with (draws − 1) degrees of freedom: within five errors.
    draws = math.ceil(8000 / 61)
    assert result.moved[2].deviations == pytest.approx(1 / 2.0, rel=5 / math.sqrt(2 * (min(draws, 128) - 1)))


def test_a_mechanism_without_clipping_gets_a_sentence():
    with pytest.raises(InputError, match="does not clip"):
        replay_mechanism(Mechanism(clipping=NoClipping()))
    with pytest.raises(InputError, match="must be a coalmine"):
        replay_mechanism(2.0)
