"""Rounds composed to the whole training agree with the accountant."""

from dataclasses import replace

import numpy as np
import pytest

from canary_models import PRESENT, result_of
from coalmine import claims
from coalmine.claims import AtMost, FixedSize
from coalmine.methods.canife.composition import compose
from coalmine.methods.canife.round_estimates import Period, round_estimate


def test_a_period_without_estimates_takes_those_of_its_neighbor():
    draw = np.random.default_rng(0)
    scores = PRESENT + draw.normal(0, 0.5, 100)
    terms = {"independent": True, "delta": 1e-5, "confidence": 0.95}
    scored = round_estimate(Period(0, 4, scores[:, None], PRESENT[:, None], np.ones((100, 1))), **terms)
    empty = round_estimate(Period(4, 3, np.zeros((2, 1)), np.ones((2, 1), dtype=bool), np.ones((2, 1))), **terms)
    both, _ = compose([scored, empty], sampling=AtMost(2), delta=1e-5)
    longer, _ = compose([replace(scored, rounds=7)], sampling=AtMost(2), delta=1e-5)
    assert both == longer


def test_replacing_a_client_moves_the_sum_twice_as_far():
    result = result_of(PRESENT + np.random.default_rng(0).normal(0, 1, 100), PRESENT, sampling=FixedSize(10, 100))
    noise = claims.noise_from_round_epsilon(result.periods[0].epsilon("best-threshold"), 1e-5)
    half = claims.Claim(noise_multiplier=noise / 2, sampling=FixedSize(10, 100), rounds=10, delta=1e-5)
    assert result.epsilon_hat("best-threshold", "exact") == pytest.approx(half.epsilon, rel=1e-6)


def test_a_client_listed_several_times_in_a_round_is_composed_like_the_claim():
    # Listed three times in a round, a client moves the sum thrice as far: that counts as nine rounds.
    exact = claims.round_epsilon(noise_multiplier=2.0, delta=1e-5)
    estimated = result_of(PRESENT + np.random.default_rng(0).normal(0, 1, 100), PRESENT).periods[0]
    period = replace(
        estimated, rounds=4, estimates=(replace(estimated.estimates[0], method="gdp", epsilon=exact, valid=False),)
    )
    composed, _ = compose([period], sampling=AtMost(9), delta=1e-5)
    claim = claims.Claim(noise_multiplier=2.0, sampling=AtMost(9), rounds=9, delta=1e-5)
    epsilon = next(c.epsilon for c in composed if (c.method, c.inversion) == ("gdp", "exact"))
    assert epsilon == pytest.approx(claim.epsilon, rel=1e-6)
