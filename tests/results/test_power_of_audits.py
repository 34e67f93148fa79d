"""What a claim test says it can detect, and the interval of composed estimates, against simulated audits."""

import math

import numpy as np
import pytest
from scipy import special

from coalmine.claims import Claim, EveryRound
from coalmine.claims.sampling import AtMost
from coalmine.methods.canife.epsilon import RoundEstimate, compose, shift_series
from coalmine.results.claim_test import check_claim
from coalmine.stats import NormalNull, Scores, epsilon_gdp, gaussian_shift
from coalmine.stats.claim_tests import RANK_SUM_SHARE, RankSum, even_ranks, uniform_sum_cdf
from coalmine.stats.rank_tests import member_ranks
from coalmine.stats.tradeoff import BetaPair, GaussianDP

AUDITS, ALPHA = 1000, 0.05
CLAIM = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)  # μ = 1
FOUR_ERRORS = 4 * math.sqrt(0.8 * 0.2 / AUDITS)


def normal_scores(n, shift):
    """Return n evenly spread quantiles of a shifted normal distribution."""
    return shift + special.ndtri((np.arange(n) + 0.5) / n)


def refuted(n, share, *, exact_null, seed):
    """Return which of many audits refute the claim, and which do by all comparisons, if a share of the noise is there.

    Every audit has n scores per side, all of them in two arrays. The tests are those of `ClaimTests`: the rank-sum, or
    the sum of tails, with half of the significance, and thresholds at ranks with the other half.
    """
    rng, claim, each = np.random.default_rng(seed), GaussianDP(1.0), min(n, 50)
    members = np.sort(rng.normal(1 / share, 1, (AUDITS, n)), axis=1)
    nonmembers = np.sort(rng.normal(0, 1, (AUDITS, n)), axis=1)
    ranks, top = even_ranks(n), member_ranks(n)
    chosen, thresholds, v = members[:, n - ranks], members[:, n - top], top.astype(float)
    if exact_null:
        by_rank_sum = uniform_sum_cdf(special.ndtr(1.0 - members).sum(axis=1), n) <= ALPHA * RANK_SUM_SHARE
        p_values = special.betainc(v, n - v + 1, claim.tpr(special.ndtr(-thresholds)))
    else:
        statistic = (chosen[:, :, None] > nonmembers[:, None, n - ranks]).sum(axis=(1, 2)) / each**2
        above = (nonmembers[:, None, :] >= thresholds[:, :, None]).sum(axis=2)
        flat, ranked = above.ravel().astype(float), np.tile(v, AUDITS)
        pairs = BetaPair(ranked, n - ranked + 1, flat + 1, np.maximum(n - flat, 1))
        p_values = np.where(above == n, 1.0, pairs.probability_below(claim).reshape(above.shape))
        test = RankSum(n, n, np.random.default_rng([seed, 1]))
        reached = np.array([np.count_nonzero(test.drawn(claim) >= value - 1e-12) for value in statistic])
        by_rank_sum = (1 + reached) / (1 + test.draws) <= ALPHA * RANK_SUM_SHARE
    return by_rank_sum | (p_values.min(axis=1) <= ALPHA * (1 - RANK_SUM_SHARE) / top.size), by_rank_sum


@pytest.mark.parametrize("exact_null", [False, True])
def test_noise_at_the_detectable_share_is_detected_in_80_percent_of_audits(exact_null):
    """1,000 audits: four standard errors of 80% are 5.1 points."""
    n = 100
    if exact_null:
        test = check_claim(normal_scores(n, 1.0), None, CLAIM, null=NormalNull())
    else:
        test = check_claim(normal_scores(n, 1.0), normal_scores(n, 0.0), CLAIM)
    whole, _ = refuted(n, test.detectable_noise, exact_null=exact_null, seed=1)
    assert np.mean(whole) == pytest.approx(0.8, abs=FOUR_ERRORS)


@pytest.mark.parametrize("exact_null", [False, True])
def test_as_many_canaries_as_needed_detect_half_of_the_noise(exact_null):
    """The number is found in steps of a factor √2, so half as many do not suffice."""
    n = 5
    if exact_null:
        weak = check_claim(normal_scores(n, 1.0), None, CLAIM, null=NormalNull())
    else:
        weak = check_claim(normal_scores(n, 1.0), normal_scores(n, 0.0), CLAIM)
    enough, _ = refuted(weak.canaries_needed, 0.5, exact_null=exact_null, seed=3)
    assert np.mean(enough) >= 0.8 - FOUR_ERRORS
    _, too_few = refuted(weak.canaries_needed // 2, 0.5, exact_null=exact_null, seed=4)
    assert np.mean(too_few) <= 0.8 + FOUR_ERRORS


MUS = np.linspace(0, 8, 4001)
EPSILONS = np.asarray(epsilon_gdp(MUS, 1e-5))


def composed_mu(epsilons):
    """Return μ of all rounds, of which each has one of these ε: without sampling, squares of μ add up."""
    return math.sqrt(np.sum(np.interp(epsilons, EPSILONS, MUS) ** 2))


def scored_round(rng, mu, trials, rounds=1):
    """A round in which a canary took part in about half of the trials, and its estimate."""
    inserted = int(rng.binomial(trials, 0.5))
    scores = Scores(rng.normal(mu, 1, inserted), rng.normal(0, 1, trials - inserted))
    return RoundEstimate(round=0, rounds=rounds, estimates=[gaussian_shift(scores, delta=1e-5)], scores=scores)


@pytest.mark.parametrize(
    ("rounds", "audits"),
    [
        ([1] * 4, 100),
        pytest.param([1], 300, marks=pytest.mark.slow),
        pytest.param([1, 3] * 5, 300, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "deviations", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)]
)
def test_composed_estimates_are_right_on_average_and_their_intervals_cover(rounds, audits, deviations):
    """Rounds that differ, with a mean μ̂ of so many standard errors: 95% less 3.5 standard errors; the mean to 5%."""
    rng, mus = np.random.default_rng(deviations), deviations * math.sqrt(4 / 60) * np.linspace(1.3, 0.7, len(rounds))
    truth, covered, estimates = math.sqrt(np.array(rounds) @ mus**2), 0, []
    for _ in range(audits):
        periods = [scored_round(rng, mu, 60, count) for mu, count in zip(mus, rounds, strict=True)]
        series = shift_series(periods, 1e-5)
        lower, estimate, upper = (
            composed_mu(np.repeat(*zip(*series[end], strict=True))) for end in ("lower", "epsilon", "upper")
        )
        covered += lower <= truth * (1 + 1e-6) and truth <= upper * (1 + 1e-6)
        estimates.append(estimate)
    assert covered / audits >= 0.95 - 3.5 * math.sqrt(0.05 * 0.95 / audits)
    if len(rounds) > 1 and deviations > 1:
        assert np.mean(estimates) == pytest.approx(truth, rel=0.05)


def test_the_variance_of_all_rounds_but_one_is_subtracted():
    """Three times the same scores: Σ μ̂², without the bias of 1/s², less twice the variance."""
    single = scored_round(np.random.default_rng(0), 1.0, 60)
    inserted, others = single.scores.members, single.scores.observed
    ratio = (others.size - 3) / (others.size - 1) / others.var(ddof=1)
    square = ratio * (inserted.mean() - others.mean()) ** 2
    variance = ratio * inserted.var(ddof=1) / inserted.size + 1 / others.size
    (epsilons, counts) = zip(*shift_series([single] * 3, 1e-5)["epsilon"], strict=True)
    assert counts == (1, 1, 1)
    assert composed_mu(epsilons) ** 2 == pytest.approx(3 * square - 2 * variance, rel=1e-3)
    composed, _ = compose([single] * 3, sampling=AtMost(3), delta=1e-5)
    (of_shift,) = (c for c in composed if c.method == "gaussian-shift")
    assert of_shift.epsilon == pytest.approx(float(epsilon_gdp(composed_mu(epsilons), 1e-5)), rel=1e-3)
    assert of_shift.lower < of_shift.epsilon < of_shift.upper


def test_a_claim_of_one_point_needs_canaries_too():
    weak = check_claim(normal_scores(5, 1.0), normal_scores(5, 0.0), Claim(epsilon=2.0, delta=1e-5))
    assert weak.canaries_needed > 5
