"""Estimators of papers, against their definitions."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.errors import InputError
from coalmine.stats import Counts, NormalNull, Scores
from coalmine_reproductions.estimators import jeffreys, joint_beta, katz_log, published_lower_bound

pytestmark = pytest.mark.slow
INTERVALS = (jeffreys, katz_log, joint_beta)


def one_way(right, wrong, delta):
    """ε of one ratio of rates."""
    if right <= delta:
        return 0.0
    return math.log((right - delta) / wrong) if wrong else math.inf


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("delta", [0.0, 0.1])
def test_the_published_bound_is_the_best_of_all_thresholds_with_jeffreys_rates(seed, delta):
    rng = np.random.default_rng(seed)
    scores = Scores(rng.normal(2, 1, 14).round(1), rng.normal(0, 1, 11).round(1))
    best = 0.0
    for threshold in {*scores.members, *scores.observed}:
        tp, fp = int(np.sum(scores.members >= threshold)), int(np.sum(scores.observed >= threshold))
        tpr = stats.beta.ppf(0.1, tp + 0.5, 14 - tp + 0.5) if tp else 0.0
        fpr = stats.beta.ppf(0.9, fp + 0.5, 11 - fp + 0.5) if fp < 11 else 1.0
        best = max(best, one_way(tpr, fpr, delta), one_way(1 - fpr, 1 - tpr, delta))
    assert best > 0.1
    assert published_lower_bound(scores, delta=delta, confidence=0.9).epsilon == pytest.approx(best, rel=1e-9)


def test_the_published_bound_with_a_known_null_has_exact_false_positive_rates():
    members = np.array([0.5, 1.0, 1.0, 2.5, 3.0])
    best = 0.0
    for threshold in members:
        tp, fpr = int(np.sum(members >= threshold)), stats.norm.sf(threshold)
        tpr = stats.beta.ppf(0.05, tp + 0.5, 5 - tp + 0.5)
        best = max(best, one_way(tpr, fpr, 0.01), one_way(1 - fpr, 1 - tpr, 0.01))
    estimate = published_lower_bound(Scores(members, null=NormalNull()), delta=0.01)
    assert estimate.epsilon == pytest.approx(best, rel=1e-9)


def test_the_published_bound_is_violated_far_more_often_than_it_says_and_is_marked_so():
    # The reason for the simultaneous bound. The true ε at δ = 0.1 of N(1, 1) against N(0, 1) is 1.1603.
    rng = np.random.default_rng(11)
    audits = [Scores(rng.normal(1, 1, 1000), null=NormalNull()) for _ in range(100)]
    estimates = [published_lower_bound(scores, delta=0.1) for scores in audits]
    assert sum(e.lower > 1.1603 for e in estimates) > 10
    assert not any(e.valid for e in estimates)


@pytest.mark.parametrize(
    ("interval", "expected"), [(jeffreys, 1.4348151), (katz_log, 1.5515132), (joint_beta, 1.5567980)]
)
def test_lower_ends_have_their_known_values(interval, expected):
    assert interval(Counts(tp=300, fn=700, fp=50, tn=950))[0] == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("cells", [(30, 20, 5, 35), (38, 2, 30, 10), (45, 5, 4, 46), (30, 20, 1, 39)])
def test_katz_intervals_are_those_of_the_delta_method(cells, delta):
    tp, fn, fp, tn = cells
    z = stats.norm.isf(0.05)
    lows, highs = [0.0], [0.0]
    for right, rights, wrong, wrongs in ((tp, tp + fn, fp, fp + tn), (tn, fp + tn, fn, tp + fn)):
        p, q = right / rights, wrong / wrongs
        # Var ln(p̂ − δ) = Var p̂ / (p − δ)² and Var ln q̂ = Var q̂ / q².
        spread = math.sqrt(p * (1 - p) / rights / (p - delta) ** 2 + q * (1 - q) / wrongs / q**2)
        lows.append(math.log((p - delta) / q) - z * spread)
        highs.append(math.log((p - delta) / q) + z * spread)
    assert katz_log(Counts(*cells), delta=delta) == pytest.approx((max(lows), max(highs)), rel=1e-12)


@pytest.mark.parametrize("cells", [(0, 10, 10, 0), (1, 9, 9, 1)])
def test_rates_within_delta_show_nothing(cells):
    assert katz_log(Counts(*cells), delta=0.2) == (0.0, 0.0)


def test_joint_beta_is_the_posterior_mass_of_the_privacy_region():
    lower, _ = joint_beta(Counts(tp=12, fn=8, fp=3, tn=17), delta=0.01)
    tpr, fpr = stats.beta(12.5, 8.5), stats.beta(3.5, 17.5)

    def inside(x):
        allowed = min(math.exp(lower) * x + 0.01, 1 - math.exp(-lower) * (1 - x - 0.01), 1)
        return fpr.pdf(x) * tpr.cdf(allowed)

    kink = 0.99 / (1 + math.exp(lower))
    mass = integrate.quad(inside, 0, kink)[0] + integrate.quad(inside, kink, 1)[0]
    assert mass == pytest.approx(0.05, abs=1e-8)


def test_joint_beta_is_finite_without_any_error():
    # Both posteriors are singular there; mpmath.quad in x = sin² t, 20 digits, gives these upper ends.
    assert joint_beta(Counts(10, 0, 0, 10))[1] == pytest.approx(9.8721, abs=1e-3)
    assert joint_beta(Counts(100, 0, 0, 100))[1] == pytest.approx(12.1961, abs=1e-3)


@pytest.mark.parametrize("interval", INTERVALS)
def test_arguments_out_of_range_raise(interval):
    with pytest.raises(InputError, match="delta"):
        interval(Counts(1, 1, 1, 1), delta=1.0)
    with pytest.raises(InputError, match="confidence"):
        interval(Counts(1, 1, 1, 1), confidence=2)
