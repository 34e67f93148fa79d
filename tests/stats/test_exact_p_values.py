"""Every p-value against exact enumeration of the least favorable scores, for few canaries. Nothing here is random."""

import itertools
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from coalmine.stats import Guesses, NormalNull, Scores
from coalmine.stats.one_run import one_run_p_value
from coalmine.stats.rank_tests import (
    curve_tail_probability,
    tail_guesses,
    tail_probability,
    threshold_tests,
)
from coalmine.stats.simultaneous_bound import _RATIO, JointBoundary, first_crossings, p_value
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, GaussianDP


def refutes(scores, epsilon, *, delta=0.0, confidence=0.95, design="fixed"):
    """Whether the scores refute (ε, δ)-DP."""
    claim = ApproximateDP(epsilon, delta)
    return p_value(scores, claim, design=design, confidence=confidence) <= 1 - confidence


# Odds e^ε and δ as fractions, so that probabilities are exact.
CLAIMS = [(1, Fraction(0)), (3, Fraction(0)), (1, Fraction(1, 10)), (3, Fraction(1, 20)), (9, Fraction(1, 4))]


def dp(odds, delta):
    return ApproximateDP(math.log(odds), float(delta))


def compositions(total, parts):
    """All ways to write a total as an ordered sum of non-negative parts."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def multinomial(counts, probabilities):
    """The probability of these counts."""
    result = Fraction(math.factorial(sum(counts)))
    for count, probability in zip(counts, probabilities, strict=True):
        result *= probability**count / Fraction(math.factorial(count))
    return result


def symbols(odds, delta, member):
    """Probabilities of the four symbols of an (ε, δ) pair, from the one that gives a member away downward."""
    right, wrong = Fraction(odds, 1 + odds), Fraction(1, 1 + odds)
    top = [delta, (1 - delta) * right, (1 - delta) * wrong, Fraction(0)]
    return top if member else top[::-1]


# Theorem 1: single thresholds


def at_most(members, nonmembers, v, a):
    """P(A ≤ a) where symbols have these counts of members and non-members, each symbol in random order."""
    above = 0
    for m, n in zip(members, nonmembers, strict=True):
        if v <= m:
            # The v-th of m members is behind k of n non-members: a negative hypergeometric distribution.
            ways = [math.comb(v - 1 + k, k) * math.comb(m - v + n - k, n - k) for k in range(n + 1)]
            return Fraction(sum(ways[: max(a - above + 1, 0)]), math.comb(m + n, m))
        v, above = v - m, above + n
    raise AssertionError("there are fewer than v members")


def exactly_at_most(odds, delta, m, n, v, a):
    """P(A ≤ a) for the least favorable scores of m members and n non-members."""
    member_counts = [(c, float(multinomial(c, symbols(odds, delta, True)))) for c in compositions(m, 4)]
    nonmember_counts = [(c, float(multinomial(c, symbols(odds, delta, False)))) for c in compositions(n, 4)]
    pairs = itertools.product(member_counts, nonmember_counts)
    return sum(p * q * float(at_most(c, d, v, a)) for (c, p), (d, q) in pairs if p * q > 1e-15)


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 2), (2, 4)])
def test_beta_pairs_are_the_exact_probabilities_of_the_least_favorable_scores(odds, delta, m, n):
    for v, a in itertools.product(range(1, m + 1), range(n)):
        pair = BetaPair(*(np.array([float(x)]) for x in (v, m - v + 1, a + 1, n - a)))
        exact = exactly_at_most(odds, delta, m, n, v, a)
        assert pair.probability_below(dp(odds, delta))[0] == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize("above", [0, 1, 2])
def test_threshold_p_values_are_the_exact_probabilities_of_the_least_favorable_scores(odds, delta, above):
    # Two non-members, of which this many beat all members.
    scores = Scores(np.arange(16.0), np.where(np.arange(2) < above, 99.0, -99.0))
    tests = threshold_tests(scores)
    p_values = tests.p_values(dp(odds, delta))
    for threshold, p in zip(tests.thresholds, p_values, strict=True):
        v = int(np.sum(scores.members >= threshold))
        assert p == pytest.approx(exactly_at_most(odds, delta, 16, 2, v, above), abs=1e-9)


@pytest.mark.parametrize("nonmembers", [[0.0, 1.0, 2.0, 9.0], [0.0, 5.0, 5.0, 9.0], [6.0, 7.0, 8.0, 9.0]])
def test_threshold_tests_count_nonmembers_at_or_above_the_members_score(nonmembers):
    # With ε = δ = 0 all orders are equally likely; ties count against us.
    members = np.arange(5.0, 25.0)
    tests = threshold_tests(Scores(members, nonmembers))
    p_values = tests.p_values(ApproximateDP(0.0, 0.0))
    m, n = members.size, len(nonmembers)
    for threshold, p in zip(tests.thresholds, p_values, strict=True):
        v = int(np.sum(members >= threshold))
        a = int(np.sum(np.array(nonmembers) >= threshold))
        assert p == pytest.approx(float(at_most((m,), (n,), v, a)), abs=1e-9)


@pytest.mark.parametrize("curve", [ApproximateDP(1.0, 0.05), GaussianDP(1.5)])
def test_known_null_p_values_are_binomial(curve):
    scores = Scores(np.linspace(-1, 3, 12), null=NormalNull())
    tests = threshold_tests(scores)
    p_values = tests.p_values(curve)
    for threshold, p in zip(tests.thresholds, p_values, strict=True):
        v = int(np.sum(scores.members >= threshold))
        rate = float(curve.tpr(np.array(math.erfc(threshold / math.sqrt(2)) / 2)))
        exact = sum(math.comb(12, k) * rate**k * (1 - rate) ** (12 - k) for k in range(v, 13))
        assert p == pytest.approx(exact, rel=1e-9)


# Theorem 2: guesses in both tails


@cache
def coin_flip_orders(odds, delta, canaries):
    """Probabilities of all sequences of labels from the top score down, least favorable scores, coin flips."""
    probabilities = dict.fromkeys(itertools.product((0, 1), repeat=canaries), 0.0)
    half = Fraction(1, 2)
    mix = [half * (x + y) for x, y in zip(symbols(odds, delta, True), symbols(odds, delta, False), strict=True)]
    # Probability of a member, for each symbol.
    member = [1.0, float(Fraction(odds, 1 + odds)), float(Fraction(1, 1 + odds)), 0.0]
    for counts in compositions(canaries, 4):
        weight = float(multinomial(counts, mix))
        if weight == 0:
            continue
        rates = np.repeat(member, counts)
        for labels in probabilities:
            probabilities[labels] += weight * float(np.prod(np.where(labels, rates, 1 - rates)))
    return probabilities


@cache
def fixed_orders(odds, delta, canaries):
    """The same with exactly half of the canaries members."""
    flips = coin_flip_orders(odds, delta, canaries)
    balanced = {labels: p for labels, p in flips.items() if 2 * sum(labels) == canaries}
    total = sum(balanced.values())
    return {labels: p / total for labels, p in balanced.items()}


ORDERS = {"coin-flips": coin_flip_orders, "fixed": fixed_orders}


def right_guesses(labels, guesses):
    """Number of right guesses in both tails."""
    each = guesses // 2
    return sum(labels[:each]) + each - sum(labels[len(labels) - each :])


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize("canaries", [4, 7])
def test_tail_probabilities_are_those_of_given_away_and_guessed_canaries(odds, delta, canaries):
    q = Fraction(odds, 1 + odds)
    for guesses in range(1, canaries + 1):
        for right in range(guesses + 1):
            exact = Fraction(0)
            # Every canary is given away or not; of those that are not, the guessed ones are right or wrong.
            for away in range(canaries + 1):
                for lucky in range(max(guesses - away, 0) + 1):
                    if min(away, guesses) + lucky >= right:
                        exact += multinomial((away, canaries - away), (delta, 1 - delta)) * multinomial(
                            (lucky, max(guesses - away, 0) - lucky), (q, 1 - q)
                        )
            bound = tail_probability(np.array([guesses]), np.array([right]), canaries, dp(odds, delta))
            assert bound[0] == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize(("design", "canaries"), [("coin-flips", 8), ("fixed", 8)])
def test_two_tailed_p_values_bound_the_exact_probabilities(odds, delta, design, canaries):
    orders = ORDERS[design](odds, delta, canaries)
    for guesses in (2, 4):
        for right in range(1, guesses + 1):
            exact = sum(p for labels, p in orders.items() if right_guesses(labels, guesses) >= right)
            tests = JointBoundary(np.zeros(1), np.array([guesses]), np.array([right]), canaries, design)
            bound = tests.p_values(dp(odds, delta))[0]
            assert exact <= bound + 1e-12
            if design == "coin-flips" and delta == 0:
                # Guesses go against the sign only if hardly any canary has it: the bound is nearly attained.
                assert bound <= exact + 2 * sum(math.comb(8, k) for k in range(guesses // 2)) / 2**8


@pytest.mark.parametrize("canaries", [8, 12])
@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
def test_the_factor_for_fixed_numbers_is_the_stated_one(odds, delta, canaries):
    # Central probabilities of a binomial distribution at whole numbers x, checked at q = ½, where all x are whole.
    def central(x):
        return math.exp(math.lgamma((x + 1) / 2) - math.lgamma(x / 2 + 1)) / math.sqrt(math.pi)

    assert central(6) == pytest.approx(math.comb(6, 3) / 2**6)
    q = odds / (1 + odds)
    guesses, right = 4, 3
    few = sum(math.comb(canaries, k) for k in range(guesses // 2)) / 2**canaries
    expected = 0.0
    for away in range(canaries + 1):
        chance = float(multinomial((away, canaries - away), (delta, 1 - delta)))
        tail = sum(
            math.comb(guesses - away, k) * q**k * (1 - q) ** (guesses - away - k)
            for k in range(max(right - away, 0), guesses - away + 1)
        )
        room = max(canaries - 4 * q * (1 - q) * guesses - away, 0)
        expected += chance * (tail if away < right else 1.0) * (central(room) + 4 * few) / central(canaries)
    bound = JointBoundary(np.zeros(1), np.array([guesses]), np.array([right]), canaries, "fixed").p_values(
        dp(odds, delta)
    )
    # The factor is bounded by a product of two, one of which counts the canaries that were given away.
    assert bound[0] == pytest.approx(min(expected, 1.0), rel=1e-9) or (delta > 0 and expected < bound[0] < 2 * expected)


# Theorem 3: the walk

BOUNDARIES = [
    ((2, 4, 6), (2, 4, 5)),
    ((2, 4, 8), (3, 4, 6)),
    ((1, 2, 3, 5), (2, 2, 3, 4)),
    ((3, 6), (4, 6)),
    ((4,), (0,)),
]


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize(("guesses", "boundary"), BOUNDARIES)
def test_first_crossings_are_those_of_all_walks(odds, delta, guesses, boundary):
    q, canaries, last = odds / (1 + odds), 8, guesses[-1]
    away = np.arange(canaries + 1.0)
    mass = np.array([float(multinomial((g, canaries - g), (delta, 1 - delta))) for g in range(canaries + 1)])
    expected = np.zeros(len(guesses))
    for g, chance in enumerate(mass):
        for steps in itertools.product((0, 1), repeat=last):
            weight = chance * math.prod(q if step else 1 - q for step in steps)
            for j, (total, limit) in enumerate(zip(guesses, boundary, strict=True)):
                if min(g, total) + sum(steps[: max(total - g, 0)]) >= limit:
                    expected[j] += weight
                    break
    first = first_crossings(np.array(guesses), np.array(boundary), q, away, mass)
    np.testing.assert_allclose(first, expected, atol=1e-12)


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize("design", ["coin-flips", "fixed"])
def test_the_walks_p_value_bounds_the_exact_probability_of_a_crossing(odds, delta, design):
    canaries = 8
    orders = ORDERS[design](odds, delta, canaries)
    for guesses, boundary in [((2, 4, 6), (2, 4, 5)), ((2, 4, 6), (3, 4, 5)), ((2, 6), (2, 6)), ((4,), (4,))]:
        exact = sum(
            p
            for labels, p in orders.items()
            if any(right_guesses(labels, g) >= b for g, b in zip(guesses, boundary, strict=True))
        )
        test = JointBoundary(np.zeros(1), np.array(guesses), np.array(boundary), canaries, design)
        bound = test.p_values(dp(odds, delta))[0]
        assert exact <= bound + 1e-12


@pytest.mark.parametrize("delta", [0.0, 0.02])
def test_the_boundary_is_where_single_counts_would_give_the_best_observed_bound(delta):
    rng = np.random.default_rng(1)
    scores = Scores(rng.normal(1.5, 1, 60), rng.normal(0, 1, 60))
    walk = JointBoundary.at(scores, "coin-flips", level=0.01, delta=delta)

    def bound(guesses, right):
        """The largest ε that a count alone rejects, by bisection."""
        low, high = 0.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            p = tail_probability(np.array([guesses]), np.array([right]), 120, ApproximateDP(middle, delta), steps=16)[0]
            low, high = (middle, high) if p <= 0.01 else (low, middle)
        return low

    _, numbers, right = tail_guesses(scores.members, scores.observed, 60, _RATIO)
    assert walk.guesses.tolist() == numbers.tolist()
    best = max(bound(g, w) for g, w in zip(numbers, right, strict=True))
    assert best > 0.5
    for guesses, limit in zip(walk.guesses, walk.boundary, strict=True):
        # The walk rounds the best bound down by 1e-4 of itself.
        assert limit > guesses or bound(guesses, limit) >= best * (1 - 2e-4)
        assert bound(guesses, limit - 1) < best
    assert (walk.canaries, walk.design, walk.thresholds.size) == (120, "coin-flips", 1)


def test_scores_that_show_nothing_have_a_walk_with_p_value_1():
    walk = JointBoundary.at(Scores(np.arange(40.0), np.arange(40.0)), "fixed", level=0.01, delta=0.0)
    assert walk.p_values(ApproximateDP(0.0, 0.0))[0] == 1


def test_long_walks_agree_with_a_direct_recursion():
    # The fast Fourier transform and the states left out change nothing.
    guesses, boundary, q = np.array([700, 1600, 4000]), np.array([560, 1230, 3040]), 0.75
    state, expected = np.ones(1), []
    for before, total, limit in zip(np.r_[0, guesses[:-1]], guesses, boundary, strict=True):
        for _ in range(total - before):
            state = np.append(state * (1 - q), 0) + np.append(0, state * q)
        expected.append(state[limit:].sum())
        state[limit:] = 0
    np.testing.assert_allclose(
        first_crossings(guesses, boundary, q, np.zeros(1), np.ones(1)), expected, rtol=1e-9, atol=1e-13
    )


@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
@pytest.mark.parametrize(("odds", "n"), [(1, 24), pytest.param(3, 24, marks=pytest.mark.slow), (20, 24)])
def test_tied_randomized_response_is_refuted_in_at_most_5_percent_of_all_audits(odds, n, design):
    # All outcomes of n members and n non-members with two tied scores, weighted by their probabilities: no simulation.
    right = odds / (1 + odds)
    chances = [math.comb(n, k) * right**k * (1 - right) ** (n - k) for k in range(n + 1)]
    rate = 0.0
    for high, low in itertools.product(range(n + 1), repeat=2):
        chance = chances[high] * chances[low]
        scores = Scores(np.r_[np.ones(high), np.zeros(n - high)], np.r_[np.zeros(low), np.ones(n - low)])
        # Improbable outcomes count as refuted without a look.
        rate += chance if chance < 1e-6 else chance * refutes(scores, math.log(odds) + 1e-9, design=design)
    assert rate <= 0.05


# Theorem 4: any curve


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
@pytest.mark.parametrize("canaries", [6, 20])
def test_tails_of_a_curve_are_those_of_given_away_canaries_where_the_curve_is_that_of_dp(odds, delta, canaries):
    # Two formulas for the same probability: an integral over the size of the tails, a sum over canaries given away.
    for guesses in {2, canaries // 2, canaries - 1}:
        right = np.arange(guesses + 1)
        everywhere = np.full(guesses + 1, guesses)
        np.testing.assert_allclose(
            curve_tail_probability(everywhere, right, canaries, dp(odds, delta)),
            tail_probability(everywhere, right, canaries, dp(odds, delta)),
            atol=1e-8,
        )


# One run


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
def test_one_run_p_values_are_those_of_the_stated_formula(odds, delta):
    q, canaries, guesses = Fraction(odds, 1 + odds), 9, 6
    law = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    for right in range(1, guesses + 1):
        means = [sum(law[right - i : right]) / i for i in range(1, right + 1)]
        exact = min(Fraction(1), sum(law[right:]) + 2 * canaries * delta * max(means))
        p_value = one_run_p_value(Guesses(canaries, guesses, right), math.log(odds), float(delta))
        assert p_value == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(("odds", "delta"), CLAIMS)
def test_one_run_p_values_bound_the_exact_probabilities(odds, delta):
    orders = coin_flip_orders(odds, delta, 8)
    for guesses in (2, 4, 6):
        for right in range(1, guesses + 1):
            exact = sum(p for labels, p in orders.items() if right_guesses(labels, guesses) >= right)
            assert exact <= one_run_p_value(Guesses(8, guesses, right), math.log(odds), float(delta)) + 1e-12


def test_guesses_in_the_tails_are_those_of_the_sequence_of_labels():
    labels = (1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1)
    heights = np.arange(len(labels), 0, -1.0)
    member = np.array(labels, dtype=bool)
    _, guesses, right = tail_guesses(np.sort(heights[member]), np.sort(heights[~member]), len(labels), 1.1)
    assert guesses.size > 1
    for g, w in zip(guesses, right, strict=True):
        assert w == right_guesses(labels, int(g))
