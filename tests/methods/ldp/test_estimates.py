"""Estimates of the LDP audit: bounds that are tight and valid, and the paper's mean beside them."""

import numpy as np
import pytest
from scipy import stats

from coalmine.methods.ldp.distinguishers import Trials, white_box
from coalmine.methods.ldp.lower_bounds import empirical_epsilons, estimates, shared_bound, spread
from coalmine.simulation.mechanisms.local import LDPSGD, PrivUnit2
from ldp_games import EPSILONS, dummy


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_bound_is_within_five_percent_of_epsilon_in_the_worst_case(epsilon):
    trials = white_box(dummy(), LDPSGD(epsilon=epsilon), 100_000, np.random.default_rng(3))["white-box"]
    bound = estimates([trials], delta=0.0, confidence=0.95)[0]
    assert bound.valid
    assert 0.95 * epsilon < bound.lower <= epsilon


@pytest.mark.parametrize("measurements", [1, 3])
def test_the_quoted_bound_is_the_one_whose_coverage_is_tested(measurements):
    rng = np.random.default_rng(4)
    trials = [white_box(dummy(), LDPSGD(epsilon=1.0), 400, rng)["white-box"] for _ in range(measurements)]
    quoted = estimates(trials, delta=0.0, confidence=0.95)[0]
    assert quoted.lower == shared_bound(trials, delta=0.0, confidence=0.95) > 0


@pytest.mark.parametrize(
    ("mechanism", "view", "measurements"),
    [
        (LDPSGD, "white-box", 1),
        pytest.param(LDPSGD, "white-box", 3, marks=pytest.mark.slow),
        pytest.param(PrivUnit2, "likelihood-ratio", 1, marks=pytest.mark.slow),
        pytest.param(PrivUnit2, "likelihood-ratio", 3, marks=pytest.mark.slow),
    ],
)
def test_bounds_exceed_epsilon_in_at_most_five_percent_of_audits(mechanism, view, measurements):
    # 150 audits: a bound that fails in 5% has more than 16 failures in one of 690 runs with other seeds.
    exceeded = 0
    for seed in range(150):
        rng = np.random.default_rng([seed, measurements])
        trials = [white_box(dummy(50), mechanism(epsilon=1.0), 400, rng)[view] for _ in range(measurements)]
        exceeded += shared_bound(trials, delta=0.0, confidence=0.95) > 1.0
    assert exceeded <= 16


def test_bounds_of_a_mechanism_that_reveals_nothing_stay_at_zero():
    bounds = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        trials = Trials(rng.standard_normal(1000), np.arange(1000) < rng.binomial(1000, 0.5))
        bounds.append(shared_bound([trials], delta=0.0, confidence=0.95))
    # A bound that fails in 5% has more than 20 failures of 200 in one of 860 runs.
    assert np.sum(np.array(bounds) > 0) <= 20


def test_the_mean_of_the_measurements_is_an_estimate_with_their_spread_and_no_confidence():
    rng = np.random.default_rng(0)
    trials = [white_box(dummy(), LDPSGD(epsilon=2.0), 2000, rng)["white-box"] for _ in range(3)]
    epsilons = empirical_epsilons(trials, 0.0)
    several, single = (estimates(trials[:n], delta=0.0, confidence=0.95)[-1] for n in (3, 1))
    assert (several.method, several.valid, several.confidence) == ("empirical", False, None)
    assert several.epsilon == epsilons.mean()
    assert (several.lower, several.upper) == (epsilons.mean() - spread(epsilons), epsilons.mean() + spread(epsilons))
    assert (single.epsilon, single.lower, single.upper) == (epsilons[0], None, None)


def test_the_mean_is_doubtful_where_the_bound_exceeds_it():
    # Extreme reports of PrivUnit show more than a single threshold, those of LDP-SGD do not.
    for mechanism, doubtful in ((PrivUnit2(epsilon=4.0), True), (LDPSGD(epsilon=2.0), False)):
        trials = white_box(dummy(), mechanism, 30_000, np.random.default_rng(0))["white-box"]
        quoted, *_, mean = estimates([trials], delta=0.0, confidence=0.95)
        assert mean.doubtful == (mean.epsilon < quoted.epsilon) == doubtful


@pytest.mark.parametrize("seed", range(4))
def test_true_positives_of_trials_that_differ_have_lighter_tails_than_the_binomial(seed):
    """Theorem 6 of docs/proofs.md, exactly: coins and hits of 12 trials are enumerated by a product of polynomials."""
    rates = np.random.default_rng(seed).beta(0.5, 0.5, 12)
    joint = np.zeros((13, 13))  # probability of so many members, and so many true positives
    joint[0, 0] = 1.0
    for rate in rates:
        member = joint / 2
        joint = joint / 2
        joint[1:] += member[:-1] * (1 - rate)
        joint[1:, 1:] += member[:-1, :-1] * rate
    for members in range(1, 13):
        given, counts = joint[members] / joint[members].sum(), np.arange(13)
        mean = members * rates.mean()
        assert given @ counts == pytest.approx(mean)
        below, above = np.cumsum(given), np.cumsum(given[::-1])[::-1]
        low, high = counts <= mean - 1, counts >= mean + 1
        assert np.all(below[low] <= stats.binom.cdf(counts[low], members, rates.mean()) + 1e-12)
        assert np.all(above[high] <= stats.binom.sf(counts[high] - 1, members, rates.mean()) + 1e-12)
