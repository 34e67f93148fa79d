"""Bugs planted into a mechanism: the noise is spoiled as the name says, and nothing else changes."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.simulation import Mechanism
from coalmine.simulation.mechanisms.central import with_bug
from coalmine.simulation.settings import TrainingSettings

LAYERS = {"0.weight": (4, 3), "0.bias": (4,), "scale": ()}
CORRECT = Mechanism(clip_norm=0.5, noise_multiplier=2.0)


def noise(mechanism, round=0, trial=0):
    return mechanism.noise(17, seed=3, clip_norm=0.5, expected_clients=10, round=round, trial=trial)


def test_only_a_share_of_the_noise():
    np.testing.assert_allclose(noise(with_bug(CORRECT, "noise:0.5", LAYERS)), 0.5 * noise(CORRECT))


@pytest.mark.parametrize(("tensor", "bare"), [("0.weight", slice(0, 12)), ("0.bias", slice(12, 16)), ("scale", [16])])
def test_a_tensor_without_noise(tensor, bare):
    expected = noise(CORRECT)
    expected[bare] = 0
    np.testing.assert_array_equal(noise(with_bug(CORRECT, f"bare:{tensor}", LAYERS)), expected)


def test_noise_that_repeats_itself():
    mechanism = with_bug(CORRECT, "repeat:3", LAYERS)
    rounds = [noise(mechanism, round) for round in range(5)]
    np.testing.assert_array_equal(rounds[0], rounds[3])
    assert not np.array_equal(rounds[0], rounds[1])
    np.testing.assert_array_equal(rounds[1], noise(CORRECT, 1))


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("noise:x", "bug must be"),
        ("noise:-1", "positive"),
        ("bare:0.bia", "0.bias"),
        ("repeat:0", "rounds"),
        ("noise", "bug must be"),
    ],
)
def test_unknown_bugs_get_a_sentence(bug, message):
    with pytest.raises(InputError, match=message):
        with_bug(CORRECT, bug, LAYERS)
    with pytest.raises(InputError, match="noise_multiplier"):
        with_bug(Mechanism(), bug, LAYERS)


def test_the_claim_is_that_of_the_correct_mechanism():
    claims = []
    for bug in ({}, {"bug": "noise:0.5"}):
        training = TrainingSettings(rounds=2, **bug)
        splits = training.splits()
        claims.append(training.training(splits, training.module(splits)).claim(1e-5))
    assert claims[0] == claims[1]
