"""Tests by guesses against binomial tails of SciPy, sums over all outcomes and loops over all numbers."""

import math
import sys

import numpy as np
import pytest
from scipy import special, stats

from coalmine.stats import Scores
from coalmine.stats.exact_tests import (
    THRESHOLDS,
    CoinGuesses,
    TrialGuesses,
    highest_accuracy,
)
from coalmine.stats.one_run import (
    Guesses,
    GuessTests,
    guess_families,
    guess_power,
    most_powerful_guesses,
    right_guesses_needed,
)
from coalmine.stats.rank_tests import tail_guesses, tail_probability
from coalmine.stats.simultaneous_bound import JointBoundary, joint_p_value
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP, PrivacyProfile

PURE, APPROXIMATE, GAUSSIAN = ApproximateDP(1.0, 0.0), ApproximateDP(1.0, 0.01), GaussianDP(1.0)
ACCURACIES = [
    (PURE, special.expit(1.0)),
    (APPROXIMATE, (math.e + 0.01) / (math.e + 1)),  # TPR = e FPR + 0.01 = 1 − FPR
    (GAUSSIAN, stats.norm.cdf(0.5)),
]


# Trials


@pytest.mark.parametrize(("claim", "accuracy"), ACCURACIES)
def test_p_values_of_trials_are_binomial_tails_at_the_best_accuracy(claim, accuracy):
    assert highest_accuracy(claim) == pytest.approx(accuracy, rel=1e-9)
    for right in range(8):
        expected = stats.binom.sf(right - 1, 7, accuracy)
        assert TrialGuesses(7, right).p_value(claim) == pytest.approx(expected, rel=1e-8)


def test_attacks_keep_their_share_of_the_log_odds():
    claim, truth = ApproximateDP(2.0, 0.0), ApproximateDP(5.0, 0.0)
    share = math.log(70.5 / 30.5) / 2
    assert TrialGuesses(100, 70).accuracy_under(truth, claim) == pytest.approx(special.expit(share * 5))
    assert TrialGuesses(100, 100).accuracy_under(truth, claim) == pytest.approx(special.expit(5.0))
    assert TrialGuesses(100, 30).accuracy_under(truth, claim) == 0.5
    assert TrialGuesses(100, 90).accuracy_under(truth, ApproximateDP(0.0, 0.0)) == 0.5
    # A claim of ε = 0.3 is small, but not nothing: all right guesses reach all that a curve allows.
    assert TrialGuesses(9, 9).accuracy_under(truth, ApproximateDP(0.3, 0.0)) == pytest.approx(special.expit(5.0))


@pytest.mark.parametrize(("factor", "trials"), [(1.0, 12), (2.0, 24), (0.79, 9), (0.25, 3)])
@pytest.mark.parametrize(("right", "alpha"), [(9, 0.05), (12, 0.05), (8, 0.3), (12, 0.45)])
def test_power_in_trials_is_that_of_the_first_number_that_rejects(factor, trials, right, alpha):
    guesses, claim, truth = TrialGuesses(12, right), ApproximateDP(1.0, 0.0), ApproximateDP(3.0, 0.0)
    p_values = stats.binom.sf(np.arange(trials + 1) - 1, trials, special.expit(1.0))
    rejecting = np.flatnonzero(p_values <= alpha)
    accuracy = guesses.accuracy_under(truth, claim)
    expected = stats.binom.sf(rejecting[0] - 1, trials, accuracy) if rejecting.size else 0.0
    assert guesses.power(claim, truth, alpha, factor) == pytest.approx(expected, rel=1e-9)


# Canaries of one training


def test_planned_tests_are_one_in_both_tails_and_one_of_half_as_many_in_the_upper_tail():
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(1, 1, 40), rng.normal(0, 1, 40))
    both, upper = guess_families(scores, 36)
    _, guesses, right = tail_guesses(scores.members, scores.observed, 36, np.inf)
    assert (both.rows, both.weight) == ([Guesses(80, 36, int(right[0]))], 0.9)
    assert guesses.tolist() == [36]
    _, guesses, right = tail_guesses(scores.members, scores.observed, 18, np.inf, top_only=True)
    assert upper.rows == [Guesses(80, 18, int(right[0]))]
    assert guesses.tolist() == [18]
    assert upper.weight == pytest.approx(0.1)


@pytest.mark.parametrize("canaries", [17, 40, 100, 2000])
def test_numbers_of_guesses_to_choose_from_fall_by_seven_percent_from_nearly_all_to_sixteen(canaries, monkeypatch):
    numbers = []

    def power(canaries, guesses, claim, truth, alpha):
        numbers.extend(guesses.tolist())
        return 1 / (1 + abs(guesses - 30))

    monkeypatch.setattr(sys.modules[most_powerful_guesses.__module__], "guess_power", power)
    best = most_powerful_guesses(canaries, PURE, GAUSSIAN, 0.05)
    expected, largest = set(), 0.95 * canaries
    while largest >= 16:
        expected.add(2 * math.floor(largest / 2))
        largest *= 0.93
    assert set(numbers) == expected
    assert best == min(sorted(expected), key=lambda number: abs(number - 30))


def test_fewer_canaries_than_the_smallest_number_are_nearly_all_guessed():
    claim, truth = ApproximateDP(0.0, 0.0), ApproximateDP(6.0, 0.0)
    assert most_powerful_guesses(12, claim, truth, 0.05) == 10
    assert most_powerful_guesses(12, truth, truth, 1e-9) == 6


@pytest.mark.parametrize("claim", [PURE, ApproximateDP(0.3, 1e-3), ApproximateDP(0.0, 0.0)])
@pytest.mark.parametrize(("canaries", "guesses"), [(20, 12), (40, 39), (6, 4)])
def test_power_is_the_tail_at_the_first_number_that_rejects_at_nine_tenths_of_the_significance(
    claim, canaries, guesses
):
    for alpha in (0.2, 0.05):
        p_values = GuessTests(np.zeros(1), [Guesses(canaries, guesses, v) for v in range(guesses + 1)]).p_values(claim)
        needed = next((right for right, p in enumerate(p_values) if p <= 0.9 * alpha), guesses + 1)
        assert right_guesses_needed(canaries, guesses, claim, 0.9 * alpha) == needed
        truth = ApproximateDP(4.0, 0.01)
        expected = tail_probability(np.array([guesses]), np.array([needed]), canaries, truth)[0]
        power = guess_power(canaries, np.array([guesses]), claim, truth, alpha)[0]
        assert power == pytest.approx(expected if needed <= guesses else 0.0, abs=1e-8)


# Canaries that differ from one another


def first_rejecting_level(scores, inserted, claim):
    """Return the joint p-value of all thresholds, from intervals of SciPy at each of the 241 levels."""
    n, smallest, levels = scores.size, 1.0, 10 ** (np.arange(241) / 8 - 30)
    for threshold in THRESHOLDS:
        pairs = [
            (np.sum(scores[inserted] > threshold), np.sum(scores[~inserted] > threshold)),
            (np.sum(scores[~inserted] < -threshold), np.sum(scores[inserted] < -threshold)),
        ]
        for right, wrong in pairs:
            low = stats.beta.ppf(levels / 2, right, n - right + 1) if right > 1 else np.zeros(241)
            high = stats.beta.isf(levels / 2, wrong + 1, n - wrong) if wrong < n else np.ones(241)
            rejected = levels[np.minimum(1, 2 * low) > claim.tpr(np.minimum(1, 2 * high))]
            smallest = min([smallest, *rejected])
    return min(1.0, 24 * smallest)


def tied_scores(seed, count, shift):
    """Scores on the thresholds themselves, so that ties decide."""
    rng = np.random.default_rng(seed)
    inserted = rng.random(count) < 0.5
    return np.round(rng.normal(np.where(inserted, shift, -shift), 1.0) * 2) / 2 + 0.0, inserted


@pytest.mark.parametrize("claim", [ApproximateDP(0.1, 0.0), GaussianDP(0.2)])
@pytest.mark.parametrize(("seed", "count", "shift"), [(0, 60, 1.5), (1, 50, 2.0), (2, 40, 0.1)])
def test_thresholds_count_scores_beyond_them_and_not_on_them(claim, seed, count, shift):
    scores, inserted = tied_scores(seed, count, shift)
    expected = first_rejecting_level(scores, inserted, claim)
    assert CoinGuesses.count(scores, inserted).thresholds_p_value(claim) == pytest.approx(expected, rel=1e-9)
    assert (expected < 0.05) == (shift > 0.5)


@pytest.mark.parametrize("member", [True, False])
def test_thresholds_need_canaries_of_both_sides(member):
    scores, inserted = np.full(12, 5.0 if member else -5.0), np.full(12, member)
    # Twelve right guesses and no wrong one: evidence against ε = 0, none against any guess that is wrong.
    expected = first_rejecting_level(scores, inserted, ApproximateDP(0.0, 0.0))
    assert CoinGuesses.count(scores, inserted).thresholds_p_value(ApproximateDP(0.0, 0.0)) == pytest.approx(
        expected, rel=1e-9
    )
    assert CoinGuesses.count(-scores, inserted).thresholds_p_value(ApproximateDP(0.0, 0.0)) == 1.0
    assert CoinGuesses.count(scores, inserted).boundary_p_value(ApproximateDP(0.0, 0.0)) == 1.0


@pytest.mark.parametrize(("claim", "accuracy"), ACCURACIES)
def test_accuracy_counts_every_right_guess(claim, accuracy):
    scores = np.array([0.0, 0.5, 1.5, -0.5, -1.5, 0.0])
    for pattern in range(64):
        inserted = np.array([bool(pattern >> i & 1) for i in range(6)])
        right = sum((score > 0) == member for score, member in zip(scores, inserted, strict=True))
        expected = stats.binom.sf(right - 1, 6, accuracy)
        assert CoinGuesses.count(scores, inserted).accuracy_p_value(claim) == pytest.approx(expected, rel=1e-8)


def test_walks_are_those_of_coin_flips_and_only_for_approximate_dp():
    scores, inserted = tied_scores(3, 80, 1.5)
    pair = Scores(scores[inserted], scores[~inserted])
    for claim in (ApproximateDP(0.5, 0.0), ApproximateDP(0.5, 0.01)):
        expected = joint_p_value([JointBoundary.at(pair, "coin-flips", level=1e-4, delta=claim.delta)], claim)
        assert CoinGuesses.count(scores, inserted).boundary_p_value(claim) == expected < 0.01
    assert CoinGuesses.count(scores, inserted).boundary_p_value(GaussianDP(0.1)) == 1.0


def test_joint_p_values_divide_each_one_by_its_share():
    smallest = set()
    for seed, shift in ((0, 0.4), (1, 1.0), (2, 0.3), (3, 2.5), (4, 0.5), (5, 0.6)):
        scores, inserted = tied_scores(seed, 100, shift)
        for claim, shares in ((ApproximateDP(0.1, 0.0), (0.6, 0.2, 0.2)), (GaussianDP(0.2), (0.0, 0.5, 0.5))):
            tests = [CoinGuesses.boundary_p_value, CoinGuesses.thresholds_p_value, CoinGuesses.accuracy_p_value]
            parts = [
                test(CoinGuesses.count(scores, inserted), claim) / share if share else 1.0
                for test, share in zip(tests, shares, strict=True)
            ]
            smallest.add((shares[0], int(np.argmin(parts))))
            assert CoinGuesses.count(scores, inserted).p_value(claim) == pytest.approx(min(1.0, *parts), rel=1e-12)
    assert {(0.6, 0), (0.6, 2), (0.0, 2)} <= smallest


def test_thresholds_share_the_significance_where_a_few_canaries_are_exposed():
    scores, inserted = tied_scores(7, 1000, 0.0)
    scores[:60] = np.where(inserted[:60], 9.0, -9.0)
    for claim, share in ((GaussianDP(0.2), 0.5), (PrivacyProfile(np.array([0.1]), np.array([0.0])), 0.5)):
        threshold, accuracy = (
            test(CoinGuesses.count(scores, inserted), claim)
            for test in (CoinGuesses.thresholds_p_value, CoinGuesses.accuracy_p_value)
        )
        assert threshold < accuracy
        assert CoinGuesses.count(scores, inserted).p_value(claim) == pytest.approx(threshold / share, rel=1e-12)
    # Right guesses at the ends and wrong ones in the middle: too few for the walk, and of no use to the accuracy.
    scores, inserted = tied_scores(8, 100, 0.0)
    scores[:20], scores[20:60] = np.where(inserted[:20], 9.0, -9.0), np.where(inserted[20:60], -1.0, 1.0)
    threshold = CoinGuesses.count(scores, inserted).thresholds_p_value(ApproximateDP(0.1, 0.0))
    assert threshold < 0.15
    assert CoinGuesses.count(scores, inserted).p_value(ApproximateDP(0.1, 0.0)) == pytest.approx(
        threshold / 0.2, rel=1e-12
    )
