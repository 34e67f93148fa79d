"""Estimates at chosen thresholds against a loop over all thresholds, and formulas against their definitions."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import Guesses, Scores
from coalmine.stats.gaussian import threshold_epsilon
from coalmine.stats.nulls import CosineNull, _fraction
from coalmine.stats.one_run import one_run_curve_p_value, one_run_p_value
from coalmine.stats.scores import best_threshold, epsilon_by_threshold, epsilon_from_counts, epsilon_from_rates
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP


def scores_of(seed, members=14, nonmembers=11):
    """Scores on a coarse grid, so that many are tied."""
    rng = np.random.default_rng(seed)
    return Scores(rng.integers(3, 12, members).astype(float), rng.integers(0, 8, nonmembers).astype(float))


def one_way(right, wrong, delta):
    """ln((right − δ)/wrong), at least 0."""
    return max(0.0, math.log((right - delta) / wrong)) if right > delta and wrong > 0 else 0.0


SEPARATED = Scores(np.arange(5.0) + 9, np.arange(4.0))


@pytest.mark.parametrize("scores", [scores_of(0), scores_of(1), scores_of(2), SEPARATED], ids=str)
@pytest.mark.parametrize("delta", [0.0, 0.2])
def test_the_best_threshold_is_the_best_of_all(scores, delta):
    thresholds, epsilons = epsilon_by_threshold(scores, delta=delta)
    assert thresholds.tolist() == sorted({*scores.members.tolist(), *scores.observed.tolist()}, reverse=True)
    for threshold, epsilon in zip(thresholds, epsilons, strict=True):
        tpr, fpr = np.mean(scores.members >= threshold), np.mean(scores.observed >= threshold)
        exact = max(one_way(tpr, fpr, delta), one_way(1 - fpr, 1 - tpr, delta))
        assert epsilon == pytest.approx(math.inf if (tpr, fpr) == (1, 0) else exact, abs=1e-12)
    estimate = best_threshold(scores, delta=delta, confidence=0.9)
    assert estimate.epsilon == max(epsilons)
    assert estimate.threshold == thresholds[int(np.argmax(epsilons))]
    interval = epsilon_from_counts(scores.counts(estimate.threshold), delta=delta, confidence=0.95)
    assert (estimate.lower, estimate.upper) == (interval.lower, interval.upper)


@pytest.mark.parametrize("a", [1.5, 10.0, 350.0])
@pytest.mark.parametrize("x", [0.02, 0.2, 0.5])
def test_the_continued_fraction_is_that_of_the_incomplete_beta_function(a, x):
    with mpmath.workdps(30):
        share = mpmath.betainc(a, 0.5, 0, x, regularized=True)
        exact = mpmath.mpf(x) ** a * mpmath.sqrt(1 - mpmath.mpf(x)) / (a * mpmath.beta(a, 0.5) * share)
    assert _fraction(a, 0.5, np.array([x]))[0] == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize(
    ("dim", "cosine"), [(2, 0.3), (40, 1 - 1e-15), (700, 0.92), (700, -0.01), (5000, 0.55), (9, 0.0)]
)
def test_tails_of_cosines_are_exact_where_they_underflow(dim, cosine):
    with mpmath.workdps(40):
        t = mpmath.mpf(cosine)
        tail = mpmath.betainc(mpmath.mpf(dim - 1) / 2, 0.5, 0, 1 - t * t, regularized=True) / 2
        expected = float(mpmath.log(tail if t >= 0 else 1 - tail))
        mirrored = float(mpmath.log1p(-tail) if t >= 0 else mpmath.log(tail))
    assert float(CosineNull(dim).log_sf(cosine)) == pytest.approx(expected, rel=1e-11, abs=1e-15)
    assert float(CosineNull(dim).log_cdf(cosine)) == pytest.approx(mirrored, rel=1e-9, abs=1e-300)


# Divergences of normal distributions by summing densities on a fine grid

PAIRS = [(1.0, 1.0, 2.5, 1.0), (-0.5, 1.3, 0.4, 0.7), (2.0, 0.6, 1.0, 1.1), (3.0, 1.0, 3.0, 1.6), (1.0, 1.0, -0.7, 1.2)]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_epsilon_is_where_the_best_threshold_reaches_delta(pair, delta):
    mu0, std0, mu1, std1 = pair
    x = np.linspace(-12, 16, 60_001)
    for first, second in [(mu0, mu1), (-mu0, -mu1)]:
        single = threshold_epsilon(first, std0, second, std1, delta)
        tails = [(stats.norm.sf(x, mu0, std0), stats.norm.sf(x, mu1, std1))]
        tails.append((1 - tails[0][0], 1 - tails[0][1]))
        best = max(np.max(a - np.exp(single) * b) for one, other in tails for a, b in ((one, other), (other, one)))
        assert best == pytest.approx(delta, abs=1e-5) if single > 0 else best <= delta


# Guesses about one run


def recursion_rejects(guesses, claim, significance):
    """Algorithm of Mahloujifar, Melis & Chaudhuri (2024), without any shortcut."""
    m, total, correct = guesses.canaries, guesses.guesses, guesses.correct
    right, wrong = significance * correct / m, significance * (total - correct) / m
    for i in range(correct - 1, -1, -1):
        reachable = max(wrong, float(claim.fpr(np.array(right))))
        right, wrong = min(1.0, right + i / (total - i) * (reachable - wrong)), reachable
    return right + wrong >= total / m


@pytest.mark.parametrize("claim", [GaussianDP(0.7), ApproximateDP(0.5, 0.01)], ids=str)
@pytest.mark.parametrize(
    "guesses", [Guesses(12, 12, 10), Guesses(30, 12, 11), Guesses(20, 16, 9), Guesses(9, 4, 4)], ids=str
)
def test_p_values_of_curves_are_where_the_recursion_starts_to_reject(claim, guesses):
    p_value = one_run_curve_p_value(guesses, claim)
    assert p_value == 1 or recursion_rejects(guesses, claim, p_value)
    assert not recursion_rejects(guesses, claim, p_value / 1.0051)  # it is rounded up by at most 0.5%


def test_no_right_guesses_reject_no_curve():
    assert one_run_p_value(Guesses(9, 4, 0), 0.5, 0.01) == 1
    assert one_run_curve_p_value(Guesses(9, 4, 0), GaussianDP(0.1)) == 1


@pytest.mark.parametrize(("tpr", "fpr"), [(-0.1, 0.5), (1.1, 0.5), (0.5, -0.1), (0.5, 1.1)])
def test_rates_outside_0_and_1_are_refused(tpr, fpr):
    with pytest.raises(InputError):
        epsilon_from_rates(tpr, fpr)
