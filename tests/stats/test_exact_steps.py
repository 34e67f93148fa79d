"""Small pieces of the tests, against closed forms: steps of distributions, sums of walks, bets of several canaries."""

import math

import numpy as np
import pytest

from coalmine.stats.one_run import _BOTH_TAILS_SHARE, guess_power, right_guesses_needed
from coalmine.stats.rank_tests import binomial_steps, curve_tail_probability
from coalmine.stats.scores import largest
from coalmine.stats.sequential import EProcess
from coalmine.stats.tradeoff import GaussianDP


@pytest.mark.parametrize(("trials", "rate"), [(100_000, 0.5), (100_000, 0.01), (3_000, 0.9), (20, 0.3)])
def test_steps_of_a_binomial_are_rounded_up_by_less_than_a_step(trials, rate):
    values, weights = binomial_steps(trials, rate)
    mean, spread = trials * rate, np.sqrt(trials * rate * (1 - rate))
    step = 1 + min(trials, 18 * spread + 80) / 127
    assert weights.sum() == pytest.approx(1)
    assert -1e-6 * trials <= values @ weights - mean <= step
    assert values[-1] == trials or weights[values == trials].sum() == 0


def test_power_of_guesses_has_the_significance_of_both_tails():
    claim, truth, told_apart = GaussianDP(1.0), GaussianDP(2.0), 0
    for alpha in np.linspace(0.01, 0.2, 12):
        levels = [share * _BOTH_TAILS_SHARE * alpha for share in (1.0, 0.9)]
        needed, fewer = (right_guesses_needed(60, 30, claim, level) for level in levels)
        told_apart += needed != fewer
        expected = curve_tail_probability(np.array([30]), np.array([needed]), 60, truth)[0]
        assert guess_power(60, np.array([30]), claim, truth, alpha)[0] == pytest.approx(float(expected))
    assert told_apart >= 1  # a slightly smaller significance would have been noticed


@pytest.mark.parametrize("canaries", [2, 3])
def test_canaries_of_one_trial_make_one_bet(canaries):
    """The wealth after trials of several canaries is a product of means of factors."""
    rng = np.random.default_rng(canaries)
    coins = rng.random((40, canaries)) < 0.5
    scores = rng.normal(3.0 * coins)
    process = EProcess(np.array([0.5, 2.0]), 0.0)
    process.update(coins[:20], scores[:20])
    thresholds, gains, before = process._thresholds, process._gains, np.array(process.log_wealth)
    assert process._refit_at > 20  # the next trial has the same bets
    process.update(coins[20:21], scores[20:21])
    for claim in range(2):
        factors = []
        for coin, score in zip(coins[20], scores[20], strict=True):
            outcome = (score >= thresholds[0, claim]) + 2 * (score <= -thresholds[1, claim]) + 4 * coin
            factors.append(np.exp(gains[outcome, claim]))
        assert process.log_wealth[claim] == pytest.approx(before[claim] + np.log(np.mean(factors)))


@pytest.mark.parametrize("edge", [1e-7, 3e-4, 0.02, 5.0])
def test_the_largest_value_is_exact_to_ten_digits_down_to_a_thousandth(edge):
    assert edge - 1.1e-10 * max(edge, 1e-3) <= largest(lambda x: x - edge) <= edge


@pytest.mark.parametrize(
    "margin", [lambda x: x - 5.0, lambda x: x**3 - 125, lambda x: -math.inf if x <= 5 else math.inf]
)
def test_the_search_takes_few_evaluations_and_rounds_down(margin):
    asked = []

    def counted(x):
        asked.append(x)
        return margin(x)

    assert largest(counted) == pytest.approx(5, rel=1e-10)
    assert margin(largest(margin)) <= 0
    assert len(asked) < (50 if math.isinf(margin(1.0)) else 20)


def test_a_margin_that_is_flat_takes_no_longer_than_halving():
    asked = []

    def flat(x):
        asked.append(x)
        return -1e-9 if x < 2.9 else 0.0 if x < 5 else 4.0

    assert largest(flat) == pytest.approx(5.0)
    assert len(asked) < 80
