"""Parts of the bounds, one at a time, against a loop over all possibilities or a closed form."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import METHODS, Estimate, Guesses, NormalNull, Scores, estimate, gaussian_shift, simultaneous
from coalmine.stats.claim_tests import seem_inverted
from coalmine.stats.gaussian import epsilon_gdp, threshold_epsilon
from coalmine.stats.one_run import one_run, one_run_curve_p_value, one_run_fdp, one_run_p_value
from coalmine.stats.rank_tests import (
    _among_extremes,
    guessing_scores,
    tail_guesses,
    tail_probability,
    two_tailed_tests,
)
from coalmine.stats.sequential import SequentialBound
from coalmine.stats.simultaneous_bound import JointBoundary, claim_families, first_crossings, joint_boundary
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP


def tied(seed, members=23, nonmembers=19):
    """Sorted scores of both sides on a coarse grid."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.integers(2, 9, members).astype(float)), np.sort(rng.integers(0, 7, nonmembers).astype(float))


# Ranks and guesses


@pytest.mark.parametrize("seed", range(4))
def test_numbers_in_the_top_and_thresholds_are_those_of_a_sorted_list(seed):
    members, nonmembers = tied(seed, 7, 5)
    # Ties go to the non-members: they come first among equal scores.
    order = sorted([(-s, False) for s in nonmembers] + [(-s, True) for s in members])
    r = np.arange(1, 13)
    inside = _among_extremes(members, nonmembers, r)
    assert inside.tolist() == [sum(member for _, member in order[:k]) for k in r]


@pytest.mark.parametrize("shift", [-50.0, 0.25, 50.0])
def test_thresholds_are_the_lowest_scores_that_are_guessed_to_be_members(shift):
    members, nonmembers = np.arange(20.0), np.arange(20.0) + shift
    together = np.sort(np.concatenate([members, nonmembers]))[::-1]
    thresholds, guesses, _ = tail_guesses(members, nonmembers, 40, 1.2, top_only=True)
    assert guesses.size > 3
    assert thresholds.tolist() == together[guesses - 1].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_right_guesses_in_the_tails_are_counted_against_ties(seed):
    members, nonmembers = tied(seed)
    top_down = sorted([(-s, False) for s in nonmembers] + [(-s, True) for s in members])
    bottom_up = sorted([(s, True) for s in members] + [(s, False) for s in nonmembers], key=lambda c: (c[0], not c[1]))
    thresholds, guesses, right = tail_guesses(members, nonmembers, 42, 1.3)
    assert guesses.size > 2
    for threshold, total, count in zip(thresholds, guesses, right, strict=True):
        each = total // 2
        assert threshold == -top_down[each - 1][0]
        assert count == sum(m for _, m in top_down[:each]) + sum(not m for _, m in bottom_up[:each])
    thresholds, guesses, right = tail_guesses(members, nonmembers, 42, 1.3, top_only=True)
    for threshold, total, count in zip(thresholds, guesses, right, strict=True):
        assert threshold == -top_down[total - 1][0]
        assert count == sum(m for _, m in top_down[:total])


def test_guesses_use_all_canaries_of_coin_flips_and_as_many_of_either_side_otherwise():
    scores = Scores(np.arange(30.0), np.arange(24.0) + 0.5)
    members, nonmembers, kept = guessing_scores(scores, "coin-flips")
    assert (members.size, nonmembers.size, kept) == (30, 24, 1)
    members, nonmembers, kept = guessing_scores(scores, "fixed")
    assert (members.size, nonmembers.size) == (24, 24)
    assert kept == pytest.approx(48 / 54)
    assert set(members) < set(scores.members)
    # Leaving out scores makes these tests weaker, so they get less of the significance.
    assert JointBoundary.at(scores, "fixed", level=0.01, delta=0.0).weight == pytest.approx(1.5 * 48 / 54)
    assert JointBoundary.at(scores, "coin-flips", level=0.01, delta=0.0).weight == 1.5
    # A curve is tested with guesses about three quarters of the 54 canaries, in pairs.
    curve_test = claim_families(scores, "coin-flips", GaussianDP(1.0))[0]
    assert (curve_test.canaries, curve_test.guesses.tolist(), curve_test.weight) == (54, [40], 1.5)


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("level", [0.3, 0.01])
def test_the_boundary_is_the_least_count_that_gives_as_large_a_bound(delta, level):
    guesses, right = np.array([4, 9, 16, 30]), np.array([4, 8, 14, 25])
    boundary = joint_boundary(guesses, right, 60, level, delta)

    def single_p_values(counts, epsilon):
        return tail_probability(guesses, counts, 60, ApproximateDP(epsilon, delta), steps=16)

    best, accepted = 0.0, 4.0  # by bisection, since p-values grow with ε
    for _ in range(40):
        middle = (best + accepted) / 2
        best, accepted = (middle, accepted) if single_p_values(right, middle).min() <= level else (best, middle)
    for i, total in enumerate(guesses):
        p = [single_p_values(np.minimum(guesses, count), best)[i] for count in range(total + 1)]
        assert boundary[i] == next((count for count in range(total + 1) if p[count] <= level), total + 1)


def test_fixed_numbers_cost_what_is_stated_and_so_do_canaries_given_away():
    def central(x):
        return math.gamma((x + 1) / 2) / (math.sqrt(math.pi) * math.gamma(x / 2 + 1))

    # All of 12 guesses about 20 canaries are right, with q = 3/4: a single step of the walk.
    canaries, guesses, q, delta = 20, 12, 0.75, 0.05
    least = canaries - 4 * q * (1 - q) * guesses
    expected = 0.0
    for given_away in range(canaries + 1):
        factor = central(least - given_away) / central(least) if given_away <= least else 1 / central(canaries)
        expected += stats.binom.pmf(given_away, canaries, delta) * factor * q ** max(0, guesses - given_away)
    expected *= (central(least) + 4 * stats.binom.cdf(guesses / 2 - 1, canaries, 0.5)) / central(canaries)
    claim = ApproximateDP(math.log(3), delta)
    test = JointBoundary(np.zeros(1), np.array([guesses]), np.array([guesses]), canaries, "fixed")
    p_value = test.p_values(claim)[0]
    assert p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_one_run_bounds_are_where_the_best_test_stops_to_reject(delta):
    rng = np.random.default_rng(1)
    scores = Scores(rng.normal(2, 1, 60), rng.normal(0, 1, 60))
    grids = {
        "both": tail_guesses(scores.members, scores.observed, 60, 4),
        "top": tail_guesses(scores.members, scores.observed, 60, 4, top_only=True),
    }
    rows = {
        name: [Guesses(120, int(g), int(c)) for g, c in zip(*grid[1:], strict=True)] for name, grid in grids.items()
    }

    def rejected(epsilon, alpha=0.1):
        # Tests in both tails get 3 parts of the significance, those in the upper tail 2.
        share = {"both": 0.6, "top": 0.4}
        return any(
            one_run_p_value(row, epsilon, delta) <= alpha * share[name] / len(rows[name])
            for name in rows
            for row in rows[name]
        )

    bound = one_run(scores, delta=delta, confidence=0.9).lower
    assert bound > 0.3
    assert rejected(bound * 0.999)
    assert not rejected(bound * 1.001)

    def rejected_gdp(mu):
        return any(one_run_curve_p_value(row, GaussianDP(mu)) <= 0.1 / len(rows["both"]) for row in rows["both"])

    gaussian = one_run_fdp(scores, delta=1e-3, confidence=0.9).lower
    # The p-value of a curve is rounded up by at most 8.5%, which is less than 0.1 in μ here.
    largest = max(mu for mu in np.linspace(0.02, 4, 200) if rejected_gdp(mu))
    assert epsilon_gdp(largest, 1e-3) <= gaussian <= epsilon_gdp(largest + 0.1, 1e-3)


def test_bounds_say_what_they_assume():
    scores, known = Scores(np.arange(20.0), np.arange(20.0)), Scores(np.arange(20.0), null=NormalNull())
    assert "null distribution is exact" in simultaneous(known).assumes
    assert "null" not in simultaneous(scores).assumes
    assert "coin" in simultaneous(scores, design="coin-flips").assumes


# Trials one after another


def test_the_anytime_bound_is_the_last_of_the_rejected_claims():
    rng = np.random.default_rng(0)
    bound = SequentialBound(claim=0.52)
    coins = rng.random(80) < 0.5
    bound.update(coins, rng.normal(2.0 * coins, 1.0))
    for confidence in (0.6, 0.9, 0.999):
        needed = math.log(1 / (1 - confidence))
        peaks = itertools.takewhile(
            lambda pair, needed=needed: pair[1] >= needed, zip(bound.epsilons, bound.log_peak, strict=True)
        )
        expected = max((epsilon for epsilon, _ in peaks), default=0.0)
        assert bound.lower(confidence) == expected
        assert bound.refuted(confidence) == (expected > 0.52)
    assert bound.lower(0.6) > bound.lower(0.999)


# Normal distributions


@pytest.mark.parametrize("shift", [0.4, -0.4, 3.0, -3.0])
def test_equal_standard_deviations_give_the_gaussian_mechanism(shift):
    epsilon = threshold_epsilon(1.0, 2.0, 1.0 + 2.0 * shift, 2.0, 1e-3)
    assert epsilon == pytest.approx(float(epsilon_gdp(abs(shift), 1e-3)), rel=1e-9)


def test_the_shift_is_the_difference_of_means_in_units_of_the_non_members():
    members, nonmembers = np.arange(12.0) + 7.0, 2 * np.arange(12.0)
    shift = (members.mean() - nonmembers.mean()) / nonmembers.std(ddof=1)
    assert gaussian_shift(Scores(members, nonmembers), delta=1e-3).epsilon == epsilon_gdp(shift, 1e-3)


@pytest.mark.parametrize(("lower", "confidence"), [(None, 0.95), (1.0, None), (None, None), (0.9, 0.95)])
def test_valid_bounds_have_a_lower_end_which_is_epsilon_and_a_confidence(lower, confidence):
    with pytest.raises(ValueError, match="plug-in"):
        Estimate("plug-in", 1.0, lower, confidence=confidence, valid=True)
    assert Estimate("plug-in", 1.0, lower, confidence=confidence).lower == lower


@pytest.mark.parametrize(
    "pair",
    [(0.0, 1.0, 1.5, 0.6), (0.0, 1.0, -1.5, 0.6), (0.5, 1.0, 0.2, 1.7), (0.0, 1.0, 4.0, 0.5), (1.0, 2.0, 1.0, 0.9)],
)
def test_the_better_direction_of_the_best_threshold_reaches_delta(pair):
    mu0, std0, mu1, std1 = pair
    x = np.linspace(-12, 14, 100_001)
    epsilon = threshold_epsilon(*pair, 0.05)
    assert epsilon > 0.1
    gaps = []
    for sign in (1, -1):
        above0, above1 = stats.norm.sf(sign * x, sign * mu0, std0), stats.norm.sf(sign * x, sign * mu1, std1)
        gaps += [above1 - math.exp(epsilon) * above0, above0 - math.exp(epsilon) * above1]
    divergence = np.max(gaps)
    assert divergence == pytest.approx(0.05, abs=1e-5)


@pytest.mark.parametrize("null", [None, NormalNull(0.5, 2.0)])
def test_the_interval_of_the_shift_is_that_of_pivotal_draws(null):
    # (n − 1)s²/σ*² is χ² and (μ* − m)/(σ*/√n) is normal: with enough draws of our own, the same quantiles.
    members, nonmembers = np.array([0.0, 1.0, 2.5, 3.0, 7.0] * 20), np.array([-1.0, 0.0, 0.5, 2.0] * 30)
    rng = np.random.default_rng(7)

    def drawn(side):
        stds = np.sqrt((side.size - 1) * side.var(ddof=1) / stats.chi2(side.size - 1).rvs(200_000, random_state=rng))
        return side.mean() + stds * rng.standard_normal(200_000) / math.sqrt(side.size), stds

    scores = Scores(members, nonmembers) if null is None else Scores(members, null=null)
    means, stds = (null.mean, null.std) if null else drawn(nonmembers)
    low, high = np.quantile((drawn(members)[0] - means) / stds, [0.1, 0.9])
    estimate = gaussian_shift(scores, delta=1e-2, confidence=0.8)
    assert estimate.lower == pytest.approx(float(epsilon_gdp(low, 1e-2)), rel=0.03)
    assert estimate.upper == pytest.approx(float(epsilon_gdp(high, 1e-2)), rel=0.03)


def test_scores_seem_inverted_only_if_members_lie_below():
    low, high = np.arange(20.0), np.arange(20.0) + 12.5
    assert seem_inverted(Scores(low, high))
    assert not seem_inverted(Scores(high, low))
    assert not seem_inverted(Scores(low, low + 0.5))
    assert not seem_inverted(Scores(-high, null=NormalNull()))


@pytest.mark.parametrize(("boundary", "expected"), [((2, 4), (1.0, 0.0)), ((3, 4), (0.0, 1.0)), ((3, 5), (0.0, 0.0))])
def test_walks_that_are_always_right_cross_as_soon_as_they_can(boundary, expected):
    crossings = first_crossings(np.array([2, 4]), np.array(boundary), 1.0, np.zeros(1), np.ones(1))
    assert crossings.tolist() == list(expected)


def test_long_walks_cross_with_the_probability_of_their_sum():
    # From 300 values on the walk is convolved by the fast Fourier transform. A boundary out of reach until the last
    # number of guesses leaves P(Bin(80,000, q) ≥ limit).
    guesses, limit, q = np.array([40_000, 80_000]), 40_300, 0.5
    crossings = first_crossings(guesses, np.array([40_001, limit]), q, np.zeros(1), np.ones(1))
    assert crossings[0] < 1e-15
    assert crossings[1] == pytest.approx(stats.binom.sf(limit - 1, 80_000, q), rel=1e-9)


def test_the_two_tailed_test_guesses_about_a_share_of_the_canaries_in_pairs():
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, 70), rng.normal(0, 1, 60)
    tests = two_tailed_tests(Scores(members, others), 0.75)
    assert (tests.guesses.tolist(), tests.canaries, tests.weight) == ([96], 130, 1.5)
    assert two_tailed_tests(Scores(members[:10], others[:10]), 0.75).guesses.size == 0  # below 16 guesses


@pytest.mark.parametrize(
    ("terms", "methods"),
    [
        ({}, "simultaneous gdp gaussian-shift best-threshold"),
        ({"threshold": 0.5}, "simultaneous clopper-pearson gdp gaussian-shift best-threshold"),
        ({"design": "coin-flips"}, "simultaneous one-run gdp one-run-fdp gaussian-shift best-threshold"),
        ({"copies": 2}, "simultaneous"),
        ({"copies": 2, "design": "coin-flips"}, "simultaneous one-run"),
        ({"null": NormalNull()}, "exact-null gdp gaussian-shift"),
        ({"null": NormalNull(), "copies": 2}, "exact-null"),
    ],
)
def test_estimators_run_where_they_apply(terms, methods):
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(1, 1, 30), rng.normal(0, 1, 30)
    results = estimate(members, None if "null" in terms else nonmembers, **terms)
    assert [result.method for result in results] == methods.split()
    for name in METHODS:
        if name not in methods.split() and name not in ("plug-in", "gaussian-fit"):
            with pytest.raises(InputError, match=f"{name} does not apply here: it needs .*; applicable: {methods[:6]}"):
                estimate(members, None if "null" in terms else nonmembers, methods=[name], **terms)
