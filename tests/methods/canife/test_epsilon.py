"""ε of one round and of all rounds: which estimates are valid, how trials are weighted, ceilings, composition."""

import math
from dataclasses import replace

import numpy as np
import pytest

from canary_models import PRESENT, result_of
from coalmine import claims
from coalmine.claims.sampling import AtMost, FixedSize
from coalmine.methods.canife.epsilon import Period, anytime_bound, compose, rate_ceiling, round_estimate


def test_only_the_one_run_bound_is_valid_when_scores_share_rounds():
    draw = np.random.default_rng(0)
    present = draw.random((60, 1)) < 0.5
    period = Period(0, 5, present + draw.normal(0, 0.3, present.shape), present, np.full(present.shape, 0.3))
    alone = round_estimate(period, independent=True, delta=1e-5, confidence=0.95)
    shared = round_estimate(period, independent=False, delta=1e-5, confidence=0.95)
    assert [e.method for e in alone.estimates if e.valid] == ["simultaneous", "one-run"]
    assert [e.method for e in shared.estimates if e.valid] == ["one-run"]
    for method in ("simultaneous", "gdp"):
        assert "does not hold here" in next(e.assumes for e in shared.estimates if e.method == method)
        assert "does not hold here" not in next(e.assumes for e in alone.estimates if e.method == method)


def test_noisy_trials_do_not_drown_informative_ones():
    draw = np.random.default_rng(0)
    present, sigma = draw.random((200, 1)) < 0.5, np.where(np.arange(200) < 60, 0.3, 20.0)[:, None]
    period = Period(0, 5, present + sigma * draw.standard_normal((200, 1)), present, sigma)
    weighed = round_estimate(period, independent=False, delta=1e-5, confidence=0.95)
    raw = round_estimate(replace(period, sigma=np.ones((200, 1))), independent=False, delta=1e-5, confidence=0.95)
    assert quoted(weighed) > 1 > 3 * quoted(raw)
    assert period.faded
    same = replace(period, sigma=np.full((200, 1), 0.3))
    assert np.allclose(same.comparable, same.scores)
    certain = replace(period, sigma=np.where(np.arange(200) < 60, 0.0, 1.0)[:, None])
    assert np.array_equal(certain.comparable, certain.scores)
    assert not same.faded


def test_rates_cannot_exceed_the_papers_ceiling():
    assert rate_ceiling(50, 50, 0.01) == pytest.approx(3.902, abs=1e-3)
    assert rate_ceiling(50, 50, 0.0) == pytest.approx(math.log(50))


def quoted(estimated):
    return next(e.epsilon for e in estimated.estimates if e.valid)


def test_a_period_without_estimates_takes_those_of_its_neighbor():
    draw = np.random.default_rng(0)
    scores = PRESENT + draw.normal(0, 0.5, 100)
    terms = {"independent": True, "delta": 1e-5, "confidence": 0.95}
    scored = round_estimate(Period(0, 4, scores[:, None], PRESENT[:, None], np.ones((100, 1))), **terms)
    empty = round_estimate(Period(4, 3, np.zeros((2, 1)), np.ones((2, 1), dtype=bool), np.ones((2, 1))), **terms)
    both, _ = compose([scored, empty], sampling=AtMost(2), delta=1e-5)
    longer, _ = compose([replace(scored, rounds=7)], sampling=AtMost(2), delta=1e-5)
    assert both == longer


def by_one_estimator(epsilon, rounds):
    """A period of which only ``gdp`` has an estimate: composing by all ways takes seconds."""
    estimated = result_of(PRESENT + np.random.default_rng(0).normal(0, 1, 100), PRESENT).periods[0]
    estimate = replace(estimated.estimates[0], method="gdp", epsilon=epsilon, valid=False)
    return replace(estimated, rounds=rounds, estimates=(estimate,), rate_ceiling=None)


def test_replacing_a_client_moves_the_sum_twice_as_far():
    period = by_one_estimator(claims.round_epsilon(noise_multiplier=2.0, delta=1e-5), rounds=10)
    (composed,), _ = compose([period], sampling=FixedSize(10, 100), delta=1e-5)
    half = claims.Claim(noise_multiplier=1.0, sampling=FixedSize(10, 100), rounds=10, delta=1e-5)
    assert (composed.method, composed.inversion) == ("gdp", "exact")
    assert composed.epsilon == pytest.approx(half.epsilon, rel=1e-6)


def test_a_client_listed_several_times_in_a_round_is_composed_like_the_claim():
    # Listed three times in a round, a client moves the sum thrice as far: that counts as nine rounds.
    period = by_one_estimator(claims.round_epsilon(noise_multiplier=2.0, delta=1e-5), rounds=4)
    (composed,), _ = compose([period], sampling=AtMost(9), delta=1e-5)
    claim = claims.Claim(noise_multiplier=2.0, sampling=AtMost(9), rounds=9, delta=1e-5)
    assert composed.epsilon == pytest.approx(claim.epsilon, rel=1e-6)


def test_trials_with_different_noise_are_compared_by_their_likelihood_ratio():
    rng = np.random.default_rng(0)
    present = rng.random((400, 1)) < 0.5
    sigma = np.where(np.arange(400) % 2, 0.5, 20.0)[:, None]
    scores = present + sigma * rng.standard_normal((400, 1))
    weighed = anytime_bound([Period(0, 1, scores, present, sigma)], 1e-5)
    raw = anytime_bound([Period(0, 1, scores, present, np.full((400, 1), np.nan))], 1e-5)
    halves = [
        Period(i, 1, scores[part], present[part], sigma[part]) for i, part in enumerate((slice(200), slice(200, 400)))
    ]
    assert weighed.lower() > 1 > raw.lower()
    assert anytime_bound(halves, 1e-5).lower() == weighed.lower()
