from itertools import product

import numpy as np
import pytest
from scipy import stats

from coalmine.stats import CosineNull, Scores
from coalmine.stats.nulls import OrthogonalCosineNull, symmetry_p_value
from coalmine.stats.simultaneous_bound import p_value
from coalmine.stats.tradeoff import ApproximateDP


def refutes(scores, epsilon, *, delta=0.0, confidence=0.95, design="fixed"):
    """Whether the scores refute (ε, δ)-DP."""
    claim = ApproximateDP(epsilon, delta)
    return p_value(scores, claim, design=design, confidence=confidence) <= 1 - confidence


@pytest.mark.parametrize(
    "magnitudes", [np.arange(1.0, 13), np.ones(12), np.repeat([1.0, 5.0], 6), np.array([2.0, 0.5, 0.5])]
)
def test_the_p_value_is_valid_by_enumeration_of_all_signs(magnitudes):
    p_values = np.sort([symmetry_p_value(magnitudes * signs) for signs in product([-1, 1], repeat=magnitudes.size)])
    # P(p ≤ α) ≤ α at every attained α.
    assert (np.arange(1, p_values.size + 1) / p_values.size <= p_values + 1e-12)[np.diff(p_values, append=2) > 0].all()


def test_the_p_value_is_the_smallest_binomial_tail_times_the_number_of_tests():
    scores = np.random.default_rng(0).normal(0.6, 1, 40)
    order = sorted(scores, key=abs, reverse=True)
    tails = [stats.binom.sf(sum(s > 0 for s in order[:k]) - 1, k, 0.5) for k in (10, 20, 40)]
    assert symmetry_p_value(scores) == pytest.approx(3 * min(tails), rel=1e-12)


def test_zeros_and_ties_count_against_a_leak():
    assert symmetry_p_value(np.zeros(50)) == 1.0
    # Eight largest of which six are positive, and ties beyond: the negative ones come first.
    scores = np.array([9.0] * 6 + [-9.0] * 2 + [1.0] * 4 + [-1.0] * 4)
    tails = stats.binom.sf([5, 9], [8, 16], 0.5)
    assert symmetry_p_value(scores) == pytest.approx(2 * tails.min())


def test_a_null_that_does_not_fit_raises_no_alarm_beyond_the_rate_if_signs_are_fair():
    """Scores five times too large and equal in groups: 73 alarms of 1,000 or more have a probability of 1e-3."""
    draw, alarms, wrong = np.random.default_rng(1), 0, 0
    for _ in range(1000):
        scores = np.repeat(draw.standard_normal(20), 10) * draw.choice([-1.0, 1.0], 200) * 5 / 1000**0.5
        scores = np.clip(scores, -0.99, 0.99)
        alarms += refutes(Scores(scores, null=OrthogonalCosineNull(1000)), 0.0, delta=1e-5)
        wrong += refutes(Scores(scores, null=CosineNull(1000)), 0.0, delta=1e-5)
    assert alarms < 73
    assert wrong > 990
