"""Edges: levels that are met exactly, mirrored scores, and arguments of which only one is wrong."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import Estimate, Scores, epsilon_gdp, estimate
from coalmine.stats.claim_tests import RankSum
from coalmine.stats.exact_tests import TrialGuesses
from coalmine.stats.exposure import RandomGuessing, SkewNormal
from coalmine.stats.one_run import _LEAST_P_VALUE, Guesses, GuessTests, one_run_curve_p_value, one_run_p_value
from coalmine.stats.rank_tests import _MIN_MEMBERS, member_ranks, tail_guesses
from coalmine.stats.scores import binomial_cdf, largest
from coalmine.stats.sequential import EProcess, _past_events
from coalmine.stats.simultaneous_bound import (
    _RATIO,
    JointBoundary,
    claim_families,
    gdp,
    joint_p_value,
    significance_levels,
)
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP

NOTHING = ApproximateDP(0.0, 0.0)


def test_levels_that_are_met_exactly_reject():
    # Five right guesses of five have probability 1/32, exactly.
    assert TrialGuesses(5, 5).power(NOTHING, NOTHING, 1 / 32) == 1 / 32
    assert TrialGuesses(5, 5).power(NOTHING, NOTHING, 1 / 33) == 0.0
    walk = JointBoundary.at(Scores(np.arange(20.0) + 30, np.arange(20.0)), "coin-flips", level=0.01, delta=0.0)
    p_value = float(walk.p_values(NOTHING)[0])
    assert p_value < 1
    assert walk.margins(NOTHING, p_value)[0] == 0
    assert walk.margins(NOTHING, p_value * 0.999)[0] > 0


def test_the_power_against_the_claim_itself_counts_the_draws_beyond_the_threshold():
    test, claim = RankSum(9, 7, np.random.default_rng(0), draws=99), GaussianDP(1.0)
    statistics = np.sort(test.drawn(claim))
    for level in (0.01, 0.05, 0.2):
        allowed = round(level * 100) - 1
        expected = np.mean(statistics > statistics[-1 - allowed])
        assert np.mean(statistics > test.critical(claim, level)) == expected <= level
    assert test.critical(claim, 0.009) == np.inf


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 50, 1000])
def test_ranks_are_powers_of_one_and_a_half_up_to_all_scores(count):
    powers = {int(1.5**k) for k in range(40)}
    lowest = _past_events(np.arange(count) % 2 == 0, np.arange(count, 0.0, -1.0))[0][1]  # −rank at each rank
    assert (-lowest).tolist() == sorted({rank for rank in powers if rank < count} | {count})


@pytest.mark.parametrize("members", [1, 5, 40, 1000])
def test_ranks_of_members_are_halves_of_all_from_both_ends(members):
    halves = {round(members / 2**i) for i in range(20) if members / 2**i >= _MIN_MEMBERS}
    assert set(member_ranks(members)) == (halves | {members - half for half in halves} | {members}) - {0}


@pytest.mark.parametrize("level", [0.1, 1e-4])
def test_walks_report_the_score_at_the_number_of_guesses_with_the_best_rate(level):
    rng = np.random.default_rng(5)
    scores = Scores(rng.normal(1.5, 1, 60), rng.normal(0, 1, 60))
    thresholds, guesses, right = tail_guesses(scores.members, scores.observed, 60, _RATIO)
    rates = stats.beta.ppf(level, right, guesses - right + 1)
    assert len(set(rates)) > 2
    walk = JointBoundary.at(scores, "coin-flips", level=level, delta=0.0)
    assert walk.thresholds.tolist() == [thresholds[np.argmax(rates)]]


def test_p_values_below_the_least_are_rounded_up_to_it():
    assert one_run_curve_p_value(Guesses(40, 40, 40), NOTHING) == pytest.approx(_LEAST_P_VALUE)
    for right in (20, 29):
        p_value = one_run_curve_p_value(Guesses(right, right, right), NOTHING)
        assert 0.5**right * (1 - 1e-9) <= p_value <= 0.5**right * 1.0051


def test_families_without_tests_get_no_significance():
    tests, empty = GuessTests(np.zeros(4), [Guesses(20, 10, 5)] * 4, 3.0), GuessTests(np.zeros(0), [], 5.0)
    other = GuessTests(np.zeros(1), [Guesses(20, 10, 5)], 1.0)
    assert significance_levels([tests, empty, other], 0.1) == [
        pytest.approx(0.1 * 3 / 4 / 4),
        0.0,
        pytest.approx(0.025),
    ]
    assert joint_p_value([tests, empty, other], ApproximateDP(5.0, 0.0)) == 1.0


@pytest.mark.parametrize("references", [5, 6])
def test_quantiles_of_exposures_are_the_least_that_reach_their_probability(references):
    """Exact fractions: the number of references ahead of a canary is negative hypergeometric."""
    canaries, position = 4, 2
    ways = [
        math.comb(k + position - 1, k) * math.comb(references - k + canaries - position, references - k)
        for k in range(references + 1)
    ]
    chances = [Fraction(way, math.comb(references + canaries, canaries)) for way in ways]
    law = RandomGuessing(references, canaries)
    for ahead in range(references + 1):
        # An exposure of at most log2(references) − log2(1 + ahead) means at least so many ahead.
        reached = sum(chances[ahead:])
        for probability, rank in ((reached, ahead), (reached - Fraction(1, 10**6), ahead)):
            expected = math.log2(references) - math.log2(1 + rank)
            if 0 < probability < 1:
                assert law.quantile(float(probability), position) == pytest.approx(expected, abs=1e-12)


def test_all_trials_are_certain_to_be_at_most_all():
    assert binomial_cdf(np.array([-1, 3, 4]), 3, 0.5).tolist() == [0.0, 1.0, 1.0]
    assert binomial_cdf(np.array([0, 1, 2]), 3, 0.5) == pytest.approx([1 / 8, 1 / 2, 7 / 8])


@pytest.mark.parametrize("power", [2.5, 6.0])
def test_mirrored_losses_have_the_mirrored_fit(power):
    losses = np.arange(1.0, 40.0) ** power
    fit, mirrored = SkewNormal.fit(losses), SkewNormal.fit(-losses)
    assert mirrored.shape == pytest.approx(-fit.shape, rel=1e-3, abs=1e-3)
    assert mirrored.location == pytest.approx(-fit.location, rel=1e-3, abs=1e-2 * losses.std())
    assert mirrored.scale == pytest.approx(fit.scale, rel=1e-3)


# Arguments


@pytest.mark.parametrize(
    ("coins", "shape"), [(np.ones(3), (3,)), (np.ones(2, bool), (3,)), (np.ones((1, 1, 1), bool), (1, 1, 1))]
)
def test_trials_need_one_boolean_for_each_score(coins, shape):
    with pytest.raises(InputError, match="booleans"):
        EProcess(np.ones(1), 0.0).update(coins, np.zeros(shape))


def test_bounds_have_ten_stricter_values():
    bound = Estimate("split", 1.0, 1.0, delta=0.0, confidence=0.9, assumes="", valid=True).with_stricter(
        lambda level: level
    )
    assert [level for level, _ in bound.stricter] == pytest.approx([1 - 0.1 / 2**k for k in range(1, 11)])
    assert bound.to_dict()["stricter"] == [list(pair) for pair in bound.stricter]
    assert {"stricter", "doubtful", "few_scores"}.isdisjoint(Estimate("split", 1.0).to_dict())


@pytest.mark.parametrize("threshold", [None, 2.5])
def test_losses_are_scores_with_the_other_sign(threshold):
    members, nonmembers = np.array([0.0, 1.0, 2.0, 3.0, 5.0, 2.5]), np.array([1.0, 2.0, 4.0, 6.0, 7.0, 8.0])
    methods = ["best-threshold", *(["clopper-pearson"] if threshold else [])]
    plain = estimate(-members, -nonmembers, threshold=None if threshold is None else -threshold, methods=methods)
    mirrored = estimate(members, nonmembers, threshold=threshold, methods=methods, lower_is_member=True)
    assert [(e.method, e.epsilon, -e.threshold) for e in plain] == [
        (e.method, e.epsilon, e.threshold) for e in mirrored
    ]


def test_the_gdp_bound_is_where_the_tests_stop_to_reject():
    scores = Scores(np.arange(30.0) + 24.5, np.arange(30.0))
    bound = gdp(scores, delta=1e-3, confidence=0.9).lower
    mu = largest(lambda mu: float(epsilon_gdp(mu, 1e-3)) - bound)
    families = claim_families(scores, "fixed", GaussianDP(0.0))
    assert bound > 0.5
    assert joint_p_value(families, GaussianDP(mu * 0.999)) <= 0.1 < joint_p_value(families, GaussianDP(mu * 1.001))


def test_one_run_p_values_look_back_to_the_likeliest_number_of_right_guesses():
    # All 400 guesses are right, 20 standard deviations above the mean: canaries given away cost most near the mean.
    law = stats.binom.pmf(np.arange(400), 400, 0.5)
    means = np.cumsum(law[::-1]) / np.arange(1, 401)
    expected = 0.5**400 + 2 * 400 * 1e-4 * means.max()
    assert one_run_p_value(Guesses(400, 400, 400), 0.0, 1e-4) == pytest.approx(expected, rel=1e-9)
