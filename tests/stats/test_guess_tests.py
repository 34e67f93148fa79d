"""Tests of a claim for canaries that differ from one another."""

import itertools

import numpy as np
import pytest
from scipy import stats

from coalmine.stats.exact_tests import (
    THRESHOLDS,
    CoinGuesses,
    value_p_value,
)
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP

CLAIMS = [ApproximateDP(1.0, 0.0), ApproximateDP(1.0, 0.01), GaussianDP(1.0)]


def different_canaries(rng, count, claim):
    """Scores of canaries of many scales, each as exposed as the claim allows."""
    inserted = rng.random(count) < 0.5
    uniform = rng.random(count)
    # The least favorable pair: non-members have uniform places, members the inverse of the curve at uniform places.
    place = np.where(inserted, claim.fpr(uniform), uniform)
    with np.errstate(divide="ignore"):
        scores = np.exp(rng.normal(0, 2, count)) * np.log(np.clip((1 - place) / place, 1e-9, 1e9))
    return scores + 0.0, inserted


@pytest.mark.parametrize("claim", CLAIMS)
def test_accuracy_is_a_binomial_tail_with_the_best_rate_of_the_curve(claim):
    grid = np.linspace(0, 1, 200_001)
    best = float(np.max((claim.tpr(grid) + 1 - grid) / 2))
    scores, inserted = np.array([1.0, 2.0, -1.0, 3.0, -2.0]), np.array([True, True, True, True, False])
    assert CoinGuesses.count(scores, inserted).accuracy_p_value(claim) == pytest.approx(
        stats.binom.sf(3, 5, best), rel=1e-4
    )
    assert CoinGuesses.count(scores, scores < 0).accuracy_p_value(claim) == 1.0


@pytest.mark.parametrize("claim", CLAIMS)
def test_thresholds_reject_when_clopper_and_pearson_do(claim):
    """The p-value agrees with intervals from SciPy at the first significance of a fine grid that rejects."""
    rng = np.random.default_rng(0)
    inserted = rng.random(300) < 0.5
    scores = rng.normal(np.where(inserted, 2.5, -2.5), 1.5)

    def rejects(level):
        for right, wrong in counts(scores, inserted):
            low = stats.beta.ppf(level / 2, right, 300 - right + 1) if right > 1 else 0.0
            high = stats.beta.isf(level / 2, wrong + 1, 300 - wrong) if wrong < 300 else 1.0
            if min(1.0, 2 * low) > claim.tpr(np.array(min(1.0, 2 * high))):
                return True
        return False

    p_value = CoinGuesses.count(scores, inserted).thresholds_p_value(claim) / (2 * THRESHOLDS.size)
    assert 1e-25 < p_value < 1e-3
    assert rejects(p_value * 1.0001)
    assert not rejects(p_value / 1.34)


def counts(scores, inserted):
    for threshold in THRESHOLDS:
        yield np.sum(scores[inserted] > threshold), np.sum(scores[~inserted] > threshold)
        yield np.sum(scores[~inserted] < -threshold), np.sum(scores[inserted] < -threshold)


@pytest.mark.parametrize(("hits", "guesses", "chance"), [(3, 5, 0.01), (0, 4, 0.1), (4, 4, 1e-5)])
def test_hits_are_a_binomial_tail(hits, guesses, chance):
    for claim in CLAIMS:
        rate = float(claim.tpr(np.array(chance)))
        outcomes = itertools.product([0, 1], repeat=guesses)
        exact = sum(np.prod([rate if hit else 1 - rate for hit in o]) for o in outcomes if sum(o) >= hits)
        assert value_p_value(hits, guesses, chance, claim) == pytest.approx(exact)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize(
    "test", [CoinGuesses.accuracy_p_value, CoinGuesses.thresholds_p_value, CoinGuesses.boundary_p_value]
)
def test_different_canaries_at_the_limit_of_the_claim_are_refuted_no_more_often_than_stated(claim, test):
    """At 10% in 60 audits of the least favorable pair: more than 14 have a probability below 1e-3."""
    rng = np.random.default_rng(1)
    refuted = sum(test(CoinGuesses.count(*different_canaries(rng, 200, claim)), claim) <= 0.1 for _ in range(60))
    assert refuted <= 14


def test_no_scores_prove_nothing():
    assert CoinGuesses.count(np.zeros(0), np.zeros(0, dtype=bool)).p_value(CLAIMS[0]) == 1.0
