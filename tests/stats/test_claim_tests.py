"""Tests of a whole trade-off curve: curves, the rank-sum test, guesses about one run, and their false-alarm rates."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.claims.sampling import FixedSize
from coalmine.errors import InputError
from coalmine.results.claim_test import _separation, check_claim
from coalmine.results.verdict import Verdict
from coalmine.stats import NormalNull, Scores, epsilon_gdp
from coalmine.stats.claim_tests import ClaimTests, RankSum, seem_inverted
from coalmine.stats.one_run import (
    Guesses,
    one_run_curve_p_value,
    one_run_p_value,
)
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, GaussianDP, GroupCurve, PrivacyProfile

RATES = np.array([0.0, 1e-9, 1e-5, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.8, 0.98, 1 - 1e-6, 1.0])


def gaussian_profile(mu, points=2000):
    """Return δ at many ε of the Gaussian mechanism, in closed form."""
    epsilons = np.linspace(0, 12 * mu + mu**2, points)
    deltas = special.ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons + special.log_ndtr(-mu / 2 - epsilons / mu))
    return PrivacyProfile(epsilons, np.minimum.accumulate(np.clip(deltas, 0, 1)))


# Curves


@pytest.mark.parametrize("mu", [0.3, 1.3, 4.0])
def test_a_dense_profile_is_the_curve_it_was_taken_from(mu):
    profile, curve = gaussian_profile(mu), GaussianDP(mu)
    assert np.all(profile.tpr(RATES) >= curve.tpr(RATES) - 1e-12)
    assert profile.tpr(RATES) == pytest.approx(curve.tpr(RATES), rel=1e-3, abs=1e-15)
    assert profile.fpr(RATES) == pytest.approx(curve.fpr(RATES), rel=1e-3, abs=1e-6)
    assert profile.kink == pytest.approx(curve.kink, abs=1e-5)


def test_a_profile_is_the_lowest_of_all_its_pairs_however_they_are_shaped():
    rng = np.random.default_rng(0)
    for _ in range(50):
        epsilons = np.sort(rng.uniform(0, 8, 12))
        deltas = np.sort(rng.uniform(0, 1, 12))[::-1] ** 3  # neither convex nor smooth
        pairs = [ApproximateDP(e, d) for e, d in zip(epsilons, deltas, strict=True)]
        profile = PrivacyProfile(epsilons, deltas)
        assert profile.tpr(RATES) == pytest.approx(np.min([pair.tpr(RATES) for pair in pairs], axis=0), rel=1e-9)
        assert profile.fpr(RATES) == pytest.approx(np.max([pair.fpr(RATES) for pair in pairs], axis=0), abs=1e-12)
        with np.errstate(divide="ignore"):
            at_tails = profile.tpr_at_tails(np.log(RATES), np.log1p(-RATES))
        assert at_tails == pytest.approx(profile.tpr(RATES), abs=1e-12)


@pytest.mark.parametrize("curve", [ApproximateDP(1.5, 0.01), GaussianDP(1.5), gaussian_profile(1.5)])
def test_fpr_inverts_tpr_and_both_are_symmetric(curve):
    x = np.linspace(0.001, 0.9, 50)
    assert curve.fpr(curve.tpr(x)) == pytest.approx(x, abs=2e-4)
    assert 1 - curve.tpr(1 - x) == pytest.approx(curve.fpr(x), abs=1e-9)


def test_copies_compose_the_curve():
    one = GaussianDP(0.7)
    assert GroupCurve(one, 3).tpr(RATES) == pytest.approx(GaussianDP(2.1).tpr(RATES), rel=1e-9)
    assert GroupCurve(one, 3).fpr(RATES) == pytest.approx(GaussianDP(2.1).fpr(RATES), rel=1e-6, abs=1e-15)
    assert GroupCurve(one, 3).kink == pytest.approx(GaussianDP(2.1).kink, rel=1e-6)
    # Group privacy of (ε, 0)-DP is (kε, 0)-DP, which the composed curve never exceeds.
    assert np.all(GroupCurve(ApproximateDP(1.0, 0.0), 3).tpr(RATES) <= ApproximateDP(3.0, 0.0).tpr(RATES) + 1e-12)


# Curves of claims


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-mironov"])
def test_the_claimed_point_lies_on_the_claimed_curve(accountant):
    claim = Claim(noise_multiplier=1.0, sampling=Poisson(0.1), rounds=50, delta=1e-5, accountant=accountant)
    # δ at the claimed ε, read off the curve: the highest value of TPR − e^ε·FPR.
    x = np.exp(np.linspace(-40, 0, 20_000))
    delta = np.max(claim.curve().tpr(x) - np.exp(claim.epsilon) * x)
    assert delta == pytest.approx(1e-5, rel=0.03)


def test_the_curve_of_a_sampled_round_is_that_of_the_worse_direction():
    q, sigma, x = 0.2, 0.8, RATES[1:-1]
    claim = Claim(noise_multiplier=sigma, sampling=Poisson(q), rounds=1, delta=1e-5)
    thresholds = np.linspace(-8, 10, 20_001)
    null = stats.norm.sf(thresholds, 0, sigma)
    mixed = (1 - q) * null + q * stats.norm.sf(thresholds, 1, sigma)
    adding = np.interp(x, null[::-1], mixed[::-1])
    removing = 1 - np.interp(1 - x, mixed[::-1], null[::-1])  # members and non-members swapped
    worse = np.maximum(adding, removing)
    assert np.all(claim.curve().tpr(x) >= worse - 1e-6)
    # The curve that covers both directions is at most slightly above either.
    assert np.max(claim.curve().tpr(x) - worse) < 0.02


def test_more_noise_claims_more():
    for claim in (
        Claim(noise_multiplier=1.0, sampling=Poisson(0.1), rounds=50, delta=1e-5),
        Claim(noise_multiplier=1.0, sampling=FixedSize(5, 100), rounds=50, delta=1e-5),
        Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=5, delta=1e-5),
        Claim(local_epsilon=0.5, rounds=7, delta=1e-3),
        Claim(epsilon=2.0, delta=1e-5),
    ):
        curves = [claim.curve(noise).tpr(RATES) for noise in (0.5, 1.0, 2.0)]
        assert np.all(curves[0] >= curves[1] - 1e-9)
        assert np.all(curves[1] >= curves[2] - 1e-9)
        assert np.any(curves[0] > curves[2] + 0.01)


def test_reports_with_local_privacy_compose_like_randomized_response():
    epsilon, reports = 0.5, 3
    keep = special.expit(epsilon)
    outcomes = [list(bits) for bits in product([0, 1], repeat=reports)]
    first = np.array([math.prod(keep if b else 1 - keep for b in bits) for bits in outcomes])
    second = np.array([math.prod(1 - keep if b else keep for b in bits) for bits in outcomes])
    order = np.argsort(-first / second, kind="stable")
    fpr, tpr = np.append(0, np.cumsum(second[order])), np.append(0, np.cumsum(first[order]))
    curve = Claim(local_epsilon=epsilon, rounds=reports, delta=1e-3).curve()
    assert curve.tpr(RATES) == pytest.approx(np.interp(RATES, fpr, tpr), abs=1e-6)


def test_a_sampled_round_has_a_curve_for_each_direction():
    """With a client, q of a round's sum is shifted; FPR and TPR at a threshold follow from normal distributions."""
    curve = Claim(noise_multiplier=0.8, sampling=Poisson(0.3), rounds=1, delta=1e-5).curve()
    added, removed = curve.directions
    thresholds = np.linspace(-3, 4, 50) / 0.8
    fpr, shifted = special.ndtr(-thresholds), special.ndtr(1 / 0.8 - thresholds)
    tpr = 0.7 * fpr + 0.3 * shifted
    assert added.tpr(fpr) == pytest.approx(tpr, abs=2e-4)
    assert removed.tpr(1 - tpr) == pytest.approx(1 - fpr, abs=2e-4)
    assert added.tpr_at_tails(np.log(fpr), np.log1p(-fpr)) == pytest.approx(tpr, abs=2e-4)
    assert added.fpr(tpr) == pytest.approx(fpr, abs=2e-3)
    # Either exceeds the other somewhere, and the curve that covers both exceeds either.
    gap = added.tpr(RATES) - removed.tpr(RATES)
    assert gap.max() > 0.005
    assert gap.min() < -0.005
    assert np.all(curve.tpr(RATES) >= np.maximum(added.tpr(RATES), removed.tpr(RATES)) - 1e-12)


SAMPLED_ROUNDS = Claim(noise_multiplier=0.6, sampling=Poisson(0.1), rounds=10, delta=1e-5)


@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
def test_a_claim_of_two_directions_is_as_likely_as_the_likelier_one(design):
    claim, rng = SAMPLED_ROUNDS.curve(), np.random.default_rng(3)
    tests = ClaimTests(Scores(rng.normal(1.2, 1, 60), rng.normal(0, 1, 60)), design=design)
    covering = tests.p_value(PrivacyProfile(claim.epsilons, claim.deltas))
    directions = [tests.p_value(each) for each in claim.directions]
    assert max(directions) < 0.5 * covering < 0.5
    if design == "fixed":
        assert tests.p_value(claim) == pytest.approx(max(directions))
    else:  # guesses in both tails are tested against the curve that covers both
        assert max(directions) * 0.999 <= tests.p_value(claim) < covering


def test_with_a_known_null_members_were_added():
    claim, rng = SAMPLED_ROUNDS.curve(), np.random.default_rng(3)
    tests = ClaimTests(Scores(rng.normal(1.0, 1, 100), null=NormalNull()))
    added, removed = (tests.p_value(each) for each in claim.directions)
    covering = tests.p_value(PrivacyProfile(claim.epsilons, claim.deltas))
    assert 0.1 * added > removed  # which would refute a true claim too often
    assert tests.p_value(claim) == added < 0.6 * covering < 0.6


@pytest.mark.parametrize("share", [0.1, 0.02])
def test_noise_too_small_to_account_for_allows_everything(share):
    """ε over the share is 256 to 1,278, which allows less than the curve of more noise does."""
    claim = Claim(noise_multiplier=0.3, sampling=Poisson(0.001), rounds=3000, delta=1e-5)
    more, less = (claim.curve(each).tpr_at_tails(np.array([-300.0]), np.zeros(1))[0] for each in (0.2, share))
    assert 0.5 < more < less == 1.0
    assert claim.curve(share).fpr(np.array([0.0, 0.5, 1.0])).tolist() == [0.0, 0.0, 0.0]


def test_the_searches_over_shares_pass_where_the_kind_of_curve_changes():
    claim = Claim(noise_multiplier=0.3, sampling=Poisson(0.001), rounds=3000, delta=1e-5)
    # The true share is 0.2: members that took part lie 17 deviations away, most of them far beyond e^-100.
    rng = np.random.default_rng(0)
    rounds = rng.binomial(3000, 0.001, 200)
    scores = rng.normal(0, 1, 200) + rounds / 0.06
    test = check_claim(scores, None, claim, null=NormalNull())
    assert test.refuted
    assert 0.06 < test.noise_at_most < 1
    assert test.noise_estimate is None or test.noise_estimate > 0.06


# The rank-sum test


def exact_rank_sum_tail(members, nonmembers, wins, curve):
    """Return P(statistic ≥ wins) under the least favorable pair of a discrete curve, by enumeration.

    For (ε, 0)-DP: a member's FPR is uniform below the kink with probability q and above it otherwise. Only the order
    matters, so draw the side of the kink for every score and count wins in the pooled order within a side.
    """
    q = special.expit(curve.epsilon)
    total = 0.0
    for sides in product([0, 1], repeat=members + nonmembers):  # 1: on the telling side of the kink
        probability = 1.0
        for i, side in enumerate(sides):
            probability *= (q if side else 1 - q) if i < members else (1 - q if side else q)
        total += probability * _tail_within(sides[:members], sides[members:], wins)
    return total


def _tail_within(member_sides, nonmember_sides, wins):
    fixed = sum(m > n for m in member_sides for n in nonmember_sides)
    counts = {0: 1.0}
    for side in (0, 1):
        m, n = member_sides.count(side), nonmember_sides.count(side)
        ways = _mann_whitney(m, n)
        new = {}
        for have, p in counts.items():
            for u, r in ways.items():
                new[have + u] = new.get(have + u, 0.0) + p * r
        counts = new
    return sum(p for u, p in counts.items() if fixed + u >= wins)


def _mann_whitney(m, n):
    """Return the distribution of the number of wins if all orders are equally likely."""
    if m == 0 or n == 0:
        return {0: 1.0}
    result = {}
    for u, p in _mann_whitney(m - 1, n).items():  # the highest score is a member's: it beats all n
        result[u + n] = result.get(u + n, 0.0) + p * m / (m + n)
    for u, p in _mann_whitney(m, n - 1).items():
        result[u] = result.get(u, 0.0) + p * n / (m + n)
    return result


@pytest.mark.parametrize(("members", "nonmembers"), [(3, 3), (5, 2), (2, 5)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_the_rank_sum_p_value_is_exact(members, nonmembers, epsilon):
    """Compared with enumeration: 40,000 draws have a standard error of at most 0.0025, so 0.011 is 4.4 of them."""
    test = RankSum(members, nonmembers, np.random.default_rng(0), draws=39_999)
    drawn = test.drawn(ApproximateDP(epsilon, 0.0))
    for wins in range(members * nonmembers + 1):
        expected = exact_rank_sum_tail(members, nonmembers, wins, ApproximateDP(epsilon, 0.0))
        reached = np.mean(drawn >= wins / (members * nonmembers) - 1e-12)
        assert reached == pytest.approx(expected, abs=0.011)


def test_ties_count_as_lost():
    scores = Scores([1.0, 1.0, 2.0], [1.0, 1.0, 0.0])
    assert ClaimTests(scores).rank_sum.statistic(scores) == pytest.approx((1 + 1 + 3) / 9)


def test_inverted_scores_are_noticed_and_useless_ones_are_not():
    rng = np.random.default_rng(2)
    assert seem_inverted(Scores(rng.normal(-1, 1, 60), rng.normal(0, 1, 60)))
    assert not seem_inverted(Scores(rng.normal(0, 1, 60), rng.normal(0, 1, 60)))
    assert not seem_inverted(Scores(rng.normal(-1, 1, 60), null=NormalNull()))


# Guesses about one run


def test_guesses_test_a_gaussian_curve_and_any_curve_alike():
    guesses = Guesses(canaries=400, guesses=100, correct=88)
    p_value = one_run_curve_p_value(guesses, GaussianDP(1.0))
    assert one_run_curve_p_value(guesses, gaussian_profile(1.0)) == pytest.approx(p_value, rel=0.1)
    # For (ε, 0)-DP the recursion cannot beat the binomial test, which is tight.
    assert one_run_curve_p_value(guesses, ApproximateDP(1.0, 0.0)) >= one_run_p_value(guesses, 1.0, 0.0)


# False alarms: a true claim is refuted in at most 5% of audits


def laplace(rng, n, shift):
    return rng.laplace(shift, 1, n)


def subsampled(rng, n, member, q=0.3, sigma=0.8):
    return rng.normal(0, sigma, n) + (member * (rng.random(n) < q))


def of_rounds(rng, n, member, q=0.1, sigma=0.6, rounds=10):
    sums = rng.normal(0, sigma, (n, rounds)) + member * (rng.random((n, rounds)) < q)
    return np.log(1 - q + q * np.exp((sums - 0.5) / sigma**2)).sum(axis=1)


def randomized_response(rng, n, member, epsilon=1.5):
    return (rng.random(n) < special.expit(epsilon if member else -epsilon)).astype(float)


SAMPLED = Claim(noise_multiplier=0.8, sampling=Poisson(0.3), rounds=1, delta=1e-5)
CASES = {
    "Gaussian": (GaussianDP(1.5), lambda rng, n: rng.normal(1.5, 1, n), lambda rng, n: rng.normal(0, 1, n)),
    "sampled, added": (SAMPLED.curve(), lambda rng, n: subsampled(rng, n, 1), lambda rng, n: subsampled(rng, n, 0)),
    "sampled, removed": (
        SAMPLED.curve(), lambda rng, n: -subsampled(rng, n, 0), lambda rng, n: -subsampled(rng, n, 1)
    ),
    "rounds, added": (
        SAMPLED_ROUNDS.curve(), lambda rng, n: of_rounds(rng, n, 1), lambda rng, n: of_rounds(rng, n, 0)
    ),
    "rounds, removed": (
        SAMPLED_ROUNDS.curve(), lambda rng, n: -of_rounds(rng, n, 0), lambda rng, n: -of_rounds(rng, n, 1)
    ),
    "Laplace": (ApproximateDP(1.0, 0.0), lambda rng, n: laplace(rng, n, 1), lambda rng, n: laplace(rng, n, 0)),
    "randomized response": (
        ApproximateDP(1.5, 0.0),
        lambda rng, n: randomized_response(rng, n, True),
        lambda rng, n: randomized_response(rng, n, False),
    ),
    "nothing": (ApproximateDP(0.0, 0.0), lambda rng, n: rng.standard_t(1, n), lambda rng, n: rng.standard_t(1, n)),
}  # fmt: skip


SLOW_CASES = "sampled, added", "sampled, removed", "rounds, added", "Laplace"


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW_CASES else name for name in CASES],
)
def test_a_true_claim_is_rarely_refuted(name):
    """300 audits of unequal sizes: 5% and 3.5 standard errors are 9.4%; benchmarks/bounds.py has more."""
    claim, members, nonmembers = CASES[name]
    rng = np.random.default_rng(5)
    refuted = [ClaimTests(Scores(members(rng, 40), nonmembers(rng, 25))).p_value(claim) <= 0.05 for _ in range(300)]
    assert np.mean(refuted) <= 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.usefixtures("few_draws")
def test_a_true_claim_is_rarely_refuted_with_a_known_null_or_dependent_scores():
    """300 audits: 5% and 3.5 standard errors are 9.4%."""
    rng, limit = np.random.default_rng(6), 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 300)
    known = [
        ClaimTests(Scores(rng.normal(1.5, 1, 40), null=NormalNull())).p_value(GaussianDP(1.5)) <= 0.05
        for _ in range(300)
    ]
    assert np.mean(known) <= limit
    # One hidden draw moves all scores of members together: far from independent, but each coin is fair.
    dependent = []
    for _ in range(300):
        coins = rng.random(100) < 0.5
        shared = rng.normal(0, 1)
        scores = rng.normal(0, 0.1, 100) + (coins - 0.5) * (0.3 + 0.2 * shared)
        tests = ClaimTests(Scores(scores[coins], scores[~coins]), design="coin-flips", dependent=True)
        dependent.append(tests.p_value(GaussianDP(8.0)) <= 0.05)
    assert np.mean(dependent) <= limit


# check_claim


def test_half_the_noise_is_refuted_where_a_bound_sees_nothing():
    claim = Claim(noise_multiplier=0.6, sampling=EveryRound(), rounds=1, delta=1e-5)
    assert claim.epsilon == pytest.approx(8.0, abs=0.01)
    rng = np.random.default_rng(3)
    for _ in range(4):
        test = check_claim(rng.normal(1 / 0.3, 1, 50), rng.normal(0, 1, 50), claim)
        assert test.verdict is Verdict.REFUTED
        assert test.p_value <= 0.05
        assert test.noise_at_most < 1
        assert 0.3 < test.noise_estimate < 0.8
        point = check_claim(rng.normal(1 / 0.3, 1, 50), rng.normal(0, 1, 50), Claim(epsilon=8.0, delta=1e-5))
        assert not point.refuted


def normal_scores(n, shift):
    """Return n evenly spread quantiles of a shifted normal distribution."""
    return shift + special.ndtri((np.arange(n) + 0.5) / n)


def test_the_noise_in_effect_is_bounded_and_estimated():
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)
    for share in (0.4, 0.8, 1.0, 1.5):
        test = check_claim(normal_scores(200, 1 / share), normal_scores(200, 0.0), claim)
        # The first share on a grid 3% apart whose normal distributions overlap at least as much as the scores do.
        observed = ClaimTests(Scores(normal_scores(200, 1 / share), normal_scores(200, 0.0))).separation
        assert 1 / observed <= test.noise_estimate * (1 + 1e-3)
        assert test.noise_estimate <= 1.03 / observed * (1 + 1e-3)  # 1e-3: the integral over the curve, tested below
        assert share < test.noise_at_most < 1.6 * share
        assert test.refuted is (test.noise_at_most <= 1)
        # Shares from the bound on are rejected, smaller ones are not: they contain the truth as often as the test says.
        tests = ClaimTests(Scores(normal_scores(200, 1 / share), normal_scores(200, 0.0)))
        assert tests.p_value(claim.curve(test.noise_at_most)) <= 0.05
        assert tests.p_value(claim.curve(test.noise_at_most / 1.03)) > 0.05


def test_the_separation_of_a_curve_and_of_scores_is_that_of_their_normal_distributions():
    """Counted scores: midpoints of 200 × 200 cells instead of an integral. Curves: midpoints of 2,000 intervals."""
    for mu in (0.5, 1.0, 2.5):
        assert _separation(GaussianDP(mu)) == pytest.approx(mu, rel=1e-3)
        scores = Scores(normal_scores(200, mu), normal_scores(200, 0.0))
        won = (
            np.mean(scores.members[:, None] > scores.observed) + np.mean(scores.members[:, None] == scores.observed) / 2
        )
        assert ClaimTests(scores).separation == pytest.approx(math.sqrt(2) * special.ndtri(won), rel=1e-9)


def test_a_weak_audit_says_so_and_how_many_canaries_would_do():
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)
    rng = np.random.default_rng(8)
    weak = check_claim(normal_scores(6, 1.0), normal_scores(6, 0.0), claim)
    assert weak.verdict is Verdict.TOO_WEAK
    assert 10 <= weak.canaries_needed <= 60
    useless = check_claim(rng.normal(0, 1, 300), rng.normal(0, 1, 300), claim)
    assert useless.verdict is Verdict.TOO_WEAK
    strong = check_claim(rng.normal(1, 1, 300), rng.normal(0, 1, 300), claim)
    assert strong.verdict is Verdict.NOT_REFUTED
    assert 0.7 < strong.detectable_noise < 1
    assert strong.canaries_needed is None


def test_nothing_is_claimed_without_noise():
    claim = Claim(noise_multiplier=0.0, sampling=EveryRound(), rounds=1, delta=1e-5)
    assert check_claim([5.0, 6.0], [0.0, 1.0], claim).verdict is Verdict.NO_CLAIM


def test_dependent_scores_need_coin_flips():
    with pytest.raises(InputError, match="coin-flips"):
        check_claim([1.0], [0.0], Claim(epsilon=1.0, delta=0.0), dependent=True)
    with pytest.raises(InputError, match="'cards'"):
        check_claim([1.0], [0.0], Claim(epsilon=1.0, delta=0.0), design="cards")
    with pytest.raises(InputError, match="Claim"):
        check_claim([1.0], [0.0], 8.0)


def test_copies_make_a_claim_weaker():
    rng = np.random.default_rng(9)
    members, nonmembers = rng.normal(2.5, 1, 60), rng.normal(0, 1, 60)
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)
    assert check_claim(members, nonmembers, claim).refuted
    assert not check_claim(members, nonmembers, claim, copies=3).refuted


def test_the_same_scores_give_the_same_test_whatever_their_scale():
    rng = np.random.default_rng(10)
    members, nonmembers = rng.normal(1, 1, 50), rng.normal(0, 1, 50)
    claim = Claim(epsilon=float(epsilon_gdp(1.0, 1e-5)), delta=1e-5)
    assert (
        check_claim(members, nonmembers, claim).p_value
        == check_claim(np.exp(members), np.exp(nonmembers), claim).p_value
    )


def test_noise_is_judged_by_its_terms_and_not_by_the_stated_epsilon_unless_nothing_follows_from_them():
    """ε grows faster than 1/noise: divided by a share of the noise, it would exclude the true share of 0.05."""
    claim = Claim(noise_multiplier=20.0, sampling=EveryRound(), rounds=1, delta=1e-3)
    inserted = np.random.default_rng(0).normal(1, 1, 1000)
    proved = check_claim(inserted, None, claim, null=NormalNull())
    assert proved.noise_at_most is not None
    assert proved.noise_at_most > 0.05
    stated = check_claim(inserted, None, claim.replace(accountant="opacus-gdp", epsilon=0.12), null=NormalNull())
    assert replace(stated, claim=claim) == proved
    unknown = check_claim(inserted, None, claim.replace(sampling=None, epsilon=0.12), null=NormalNull())
    assert unknown.refuted
    assert (unknown.noise_at_most, unknown.noise_estimate) == (None, None)


def test_nothing_is_said_about_noise_if_no_client_takes_part():
    claim = Claim(noise_multiplier=1.0, sampling=Poisson(0.0), rounds=10, delta=1e-5)
    rng = np.random.default_rng(0)
    test = check_claim(rng.normal(3, 1, 50), rng.normal(0, 1, 50), claim)
    assert test.refuted
    assert test.noise_at_most is None


@pytest.mark.parametrize(
    "curve",
    [
        GroupCurve(ApproximateDP(1.0, 0.0), 2),
        Claim(local_epsilon=1.5, rounds=2, delta=0.0).curve(),
        GroupCurve(GaussianDP(0.5), 3),
        PrivacyProfile.of_both(np.array([0.0, 1.0, 2.0]), np.array([0.3, 0.15, 0.05]), np.array([0.3, 0.05, 0.0])),
    ],
)
def test_p_values_of_thresholds_are_integrals_over_every_kink_of_the_curve(curve):
    """The midpoint rule is refined where V is large. Without splits at all kinks, p-values were up to 1% too small."""
    members, nonmembers = 30, 60
    rank, above = (grid.ravel().astype(float) for grid in np.meshgrid([30, 29, 27, 15], [0, 1, 3]))
    pairs = BetaPair(rank, members - rank + 1, above + 1, nonmembers - above)
    t = (np.arange(50_000) + 0.5) / 50_000
    fpr = special.betainccinv(above[:, None] + 1, nonmembers - above[:, None], t**6)
    below = [special.betainc(rank[:, None], members - rank[:, None] + 1, each.tpr(fpr)) for each in curve.directions]
    expected = np.mean(6 * t**5 * below, axis=2).max(axis=0)
    assert pairs.probability_below(curve) == pytest.approx(expected, rel=1e-4)
