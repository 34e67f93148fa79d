"""The p-value of all tests of a claim together, and its power, from their parts."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import METHODS, CosineNull, Estimate, Guesses, NormalNull, Scores, estimate, estimates_from_guesses
from coalmine.stats.claim_tests import (
    RANK_SUM_SHARE,
    ClaimTests,
    CountedDetection,
    KnownNullDetection,
    RankSum,
    even_ranks,
    separation,
    uniform_order_statistics,
    uniform_sum_cdf,
)
from coalmine.stats.exposure import RandomGuessing, low_fpr_epsilon
from coalmine.stats.nulls import LargestOfNull, OrthogonalCosineNull, parse_null, symmetry_p_value
from coalmine.stats.one_run import guess_families, guess_power, one_run, one_run_fdp
from coalmine.stats.simultaneous_bound import claim_families, joint_p_value, significance_levels
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, GaussianDP, GroupCurve

CLAIM = ApproximateDP(0.3, 0.01)


def overlapping(members=24, nonmembers=16, seed=0):
    """Scores on a coarse grid, so that many are tied."""
    rng = np.random.default_rng(seed)
    return Scores(rng.integers(2, 9, members).astype(float), rng.integers(0, 7, nonmembers).astype(float))


@pytest.mark.parametrize("seed", range(4))
def test_separation_is_that_of_normal_scores_with_the_same_share_of_won_comparisons(seed):
    scores = overlapping(seed=seed)
    won = np.mean([(m > n) + (m == n) / 2 for m in scores.members for n in scores.observed])
    # P(N(s, 1) > N(0, 1)) = Φ(s/√2).
    separation = ClaimTests(scores).separation
    assert separation > 0.3
    assert stats.norm.cdf(separation / math.sqrt(2)) == pytest.approx(won, rel=1e-9)


def test_separation_with_a_known_null_counts_exact_comparisons():
    members = np.array([-0.5, 0.3, 2.0, 4.0])
    separation = ClaimTests(Scores(members, null=NormalNull(0.2, 1.5))).separation
    won = np.mean(stats.norm.cdf((members - 0.2) / 1.5))
    assert stats.norm.cdf(separation / math.sqrt(2)) == pytest.approx(won, rel=1e-9)


def test_separation_is_never_negative_and_at_most_what_half_a_comparison_shows():
    apart, inverted = Scores(np.arange(10.0) + 9, np.arange(4.0)), Scores(np.arange(10.0), np.arange(4.0) + 99)
    assert ClaimTests(inverted).separation == 0
    assert stats.norm.sf(ClaimTests(apart).separation / math.sqrt(2)) == pytest.approx(1 / 80, rel=1e-9)


def test_separation_from_a_known_null_has_no_limit():
    """It is that of the area where members and non-members overlap, and the mean distance where they do not."""
    assert ClaimTests(Scores(np.full(10, 60.0), null=NormalNull())).separation == pytest.approx(60, rel=1e-9)
    near = ClaimTests(Scores([-1.0, 0.5, 2.0], null=NormalNull()))
    assert stats.norm.sf(near.separation / math.sqrt(2)) == pytest.approx(stats.norm.sf([-1.0, 0.5, 2.0]).mean())
    # A quarter overlaps, just as much as two members can show: the area still counts.
    just_enough = separation(np.array([math.log(0.5), -math.inf]), members=2)
    assert stats.norm.sf(just_enough / math.sqrt(2)) == pytest.approx(0.25)


def test_standard_errors_are_those_of_means_of_unit_variance():
    assert ClaimTests(overlapping(24, 16)).standard_error == pytest.approx(math.sqrt(1 / 24 + 1 / 16))
    known = ClaimTests(Scores(np.arange(5.0), null=NormalNull()))
    assert known.standard_error == pytest.approx(math.sqrt(1 / 5))
    assert (known.members, known.nonmembers) == (5, None)
    assert ClaimTests(overlapping(24, 16)).nonmembers == 16


@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_half_of_the_significance_goes_to_the_rank_sum_and_half_to_the_ranks(design, shift):
    rng = np.random.default_rng(3)
    scores = Scores(rng.normal(shift, 1, 40), rng.normal(0, 1, 40))
    rank_sum = ClaimTests(scores).rank_sum.p_value(scores, CLAIM)
    at_ranks = joint_p_value(claim_families(scores, design, CLAIM), CLAIM)
    p_value = ClaimTests(scores, design=design).p_value(CLAIM)
    assert p_value == pytest.approx(min(1.0, 2 * rank_sum, 2 * at_ranks), rel=1e-12)
    assert (p_value < 0.01) == (shift > 0)


def test_either_part_can_decide():
    # Noise that is a little too small everywhere, and one canary in ten that is given away.
    rng = np.random.default_rng(0)
    everywhere = Scores(rng.normal(0.8, 1, 100), rng.normal(0, 1, 100))
    in_the_tail = Scores(np.append(rng.normal(0, 1, 90), np.full(10, 9.0)), rng.normal(0, 1, 100))
    claim = GaussianDP(0.3)
    for scores, rank_sum_decides in [(everywhere, True), (in_the_tail, False)]:
        rank_sum = ClaimTests(scores).rank_sum.p_value(scores, claim)
        at_ranks = joint_p_value(claim_families(scores, "fixed", claim), claim)
        assert (rank_sum < at_ranks) == rank_sum_decides
        assert ClaimTests(scores).p_value(claim) == pytest.approx(2 * min(rank_sum, at_ranks), rel=1e-12)


def test_canaries_that_share_a_length_reject_no_more_than_their_signs():
    members = np.append(np.full(6, 0.9), -0.1)
    tests = ClaimTests(Scores(members, null=OrthogonalCosineNull(50)))
    # P(at least 6 of 7 signs are positive) is 8/2⁷, and the tests see no less than that.
    assert symmetry_p_value(members) >= 1 / 2**7
    assert tests.p_value(ApproximateDP(0.0, 0.0)) >= symmetry_p_value(members)
    assert ClaimTests(Scores(members, null=CosineNull(50))).p_value(ApproximateDP(0.0, 0.0)) < 1 / 2**7


def test_dependent_scores_are_tested_by_guesses_alone():
    scores = overlapping(24, 20, seed=2)
    tests = ClaimTests(scores, design="coin-flips", dependent=True)
    assert tests.p_value(CLAIM) == joint_p_value(guess_families(scores, 22), CLAIM)  # half of the canaries
    fewer = ClaimTests(scores, design="coin-flips", dependent=True, guesses=16)
    assert fewer.p_value(CLAIM) == joint_p_value(guess_families(scores, 16), CLAIM)
    assert "coin" in tests.assumes
    assert "independent" in ClaimTests(scores).assumes
    assert "null distribution is exact" in ClaimTests(Scores([0.1], null=NormalNull())).assumes


@pytest.mark.parametrize("arguments", [{"design": "other"}, {"dependent": True}])
def test_impossible_designs_raise(arguments):
    with pytest.raises(InputError):
        ClaimTests(overlapping(), **arguments).p_value(CLAIM)


def test_dependent_scores_need_observed_nonmembers_and_coin_flips_need_fair_numbers():
    with pytest.raises(InputError, match="dependent scores"):
        ClaimTests(Scores([0.1, 0.2], null=NormalNull()), design="coin-flips", dependent=True)
    with pytest.raises(InputError, match="fair coin flips"):
        ClaimTests(Scores(np.arange(60.0), np.arange(4.0)), design="coin-flips").p_value(CLAIM)


@pytest.mark.parametrize(
    ("members", "nonmembers", "mu", "design", "audits"),
    [
        (30, 30, 1.0, "fixed", 60),
        pytest.param(20, 60, 1.5, "fixed", 500, marks=pytest.mark.slow),
        pytest.param(40, 40, 2.0, "coin-flips", 500, marks=pytest.mark.slow),
        pytest.param(150, 150, 3.5, "fixed", 500, marks=pytest.mark.slow),
        pytest.param(150, 150, 0.5, "coin-flips", 500, marks=pytest.mark.slow),
    ],
)
def test_power_with_counted_scores_is_how_often_the_p_value_is_small(members, nonmembers, mu, design, audits):
    """Four binomial standard errors; guesses in both tails, which are left out, add at most 2 points."""
    truth = mu + 3.3 * math.sqrt((1 / members + 1 / nonmembers) * (1 + mu**2 / 8))
    rng, claim = np.random.default_rng([members, int(10 * mu)]), GaussianDP(mu)
    scores = [Scores(rng.normal(truth, 1, members), rng.normal(0, 1, nonmembers)) for _ in range(audits)]
    rejected = np.mean([ClaimTests(each, design=design).p_value(claim) <= 0.05 for each in scores])
    power = ClaimTests(scores[0], design=design).powers(claim, 0.05)(GaussianDP(truth))
    assert 0.2 < power < 0.98
    error = 4 * math.sqrt(power * (1 - power) * (1 / audits + 1 / 1999))
    assert -error <= rejected - power <= error + 0.02


@pytest.mark.parametrize("members", [3, 20, 200])
def test_a_true_claim_is_rejected_about_as_often_as_stated_with_a_known_null(members):
    """1,999 simulated audits: 5% and four standard errors. The two tests overlap, so a little less than the 5%."""
    rejected = KnownNullDetection(members, GaussianDP(1.0), 0.05).power(GaussianDP(1.0))
    assert 0.022 < rejected <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 1999)


def test_power_with_more_canaries_is_that_of_larger_audits():
    claim, truth = GaussianDP(0.3), GaussianDP(1.2)
    few, more = (ClaimTests(Scores(np.arange(m), np.arange(n) + 0.5)) for m, n in ((30, 20), (75, 50)))
    assert few.powers(claim, 0.06, 2.5)(truth) == more.powers(claim, 0.06)(truth) > few.powers(claim, 0.06)(truth)
    known = ClaimTests(Scores(np.arange(10.0), null=NormalNull()))
    assert known.powers(claim, 0.06, 1.45)(truth) == KnownNullDetection(15, claim, 0.06).power(truth)


@pytest.mark.parametrize("claim", [GaussianDP(0.5), ApproximateDP(0.5, 1e-3)])
@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
def test_a_claim_is_rejected_at_the_ranks_where_the_p_value_is_small_enough(claim, design):
    members, nonmembers = 40, 30
    detection = CountedDetection(members, nonmembers, claim, 0.05, design)
    families = claim_families(Scores(np.arange(members), np.arange(nonmembers)), design, claim)
    level = significance_levels(families, 0.05 * (1 - RANK_SUM_SHARE))[-1]
    assert detection.compared_ranks[0].size > 2
    for column, first in zip(*detection.compared_ranks, strict=True):
        # The non-member at rank `first` scores lower, so up to first − 1 score at least as high.
        above = np.array([first - 1.0, float(first)])
        v = np.full(2, float(column))
        p_values = BetaPair(v, members - v + 1, above + 1, nonmembers - above).probability_below(claim)
        assert p_values[0] <= level < p_values[1]


@pytest.mark.parametrize(
    ("members", "mu"),
    [(25, 0.3), pytest.param(50, 1.7, marks=pytest.mark.slow), pytest.param(25, 5.5, marks=pytest.mark.slow),
     (25, 10.5), pytest.param(100, 10.5, marks=pytest.mark.slow)],
)  # fmt: skip
def test_power_with_a_known_null_is_how_often_the_p_value_is_small(members, mu):
    """Claims of ε = 1 to 100 at δ = 1e-5, tested 300 times: four binomial standard errors are below 12 points."""
    truth = mu + 3 / math.sqrt(members)  # detected in roughly half of the audits
    rng, claim = np.random.default_rng([members, int(10 * mu)]), GaussianDP(mu)
    scores = [Scores(rng.normal(truth, 1, members), null=NormalNull()) for _ in range(300)]
    rejected = np.mean([ClaimTests(each).p_value(claim) <= 0.05 for each in scores])
    power = ClaimTests(scores[0]).powers(claim, 0.05)(GaussianDP(truth))
    assert 0.1 < power < 0.95
    assert abs(rejected - power) <= 4 * math.sqrt(power * (1 - power) * (1 / 300 + 1 / 1999))


def test_dependent_scores_have_the_power_of_their_guesses():
    scores = Scores(np.arange(31.0), np.arange(28.0))
    truth = ApproximateDP(6.0, 0.3)
    tests = ClaimTests(scores, design="coin-flips", dependent=True, guesses=20)
    assert 0.05 < tests.powers(CLAIM, 0.3)(truth) == guess_power(59, np.array([20]), CLAIM, truth, 0.3)[0]


def test_estimates_from_guesses_are_the_two_bounds():
    guesses = Guesses(60, 40, 36)
    estimates = estimates_from_guesses(guesses, delta=1e-3, confidence=0.9)
    assert estimates == [
        one_run(guesses, delta=1e-3, confidence=0.9),
        one_run_fdp(guesses, delta=1e-3, confidence=0.9),
    ]
    assert estimates_from_guesses(guesses, methods=["one-run-fdp"])[0].method == "one-run-fdp"
    assert estimates_from_guesses(guesses, methods="one-run")[0].method == "one-run"


# Parts without a test of their own


def test_copies_at_far_tails_are_those_of_the_composed_curve():
    log_fpr = np.array([-300.0, -2.0, -1e-9])
    log_tnr = np.log(-np.expm1(log_fpr))
    for copies in (1, 2, 5):
        expected = GaussianDP(copies * 0.8).tpr_at_tails(log_fpr, log_tnr)
        np.testing.assert_allclose(GroupCurve(GaussianDP(0.8), copies).tpr_at_tails(log_fpr, log_tnr), expected)


def test_exposure_among_infinitely_many_references_is_exponential_in_bits():
    chance = RandomGuessing(math.inf)
    for p in (0.025, 0.5, 0.9):
        assert chance.quantile(p) == pytest.approx(-math.log2(1 - p), rel=1e-9)


def test_stricter_bounds_halve_the_significance_each_time():
    bound = Estimate("simultaneous", 1.0, 1.0, delta=0.0, confidence=0.9, assumes="luck", valid=True)
    stricter = bound.with_stricter(lambda confidence: 1 - confidence).stricter
    assert [significance for _, significance in stricter] == pytest.approx([0.1 / 2**k for k in range(1, 11)])
    assert all(level == pytest.approx(1 - significance) for level, significance in stricter)
    assert bound.with_stricter(lambda confidence: None).stricter[0][1] == 0
    records = bound.with_stricter(lambda confidence: math.inf).to_dict()["stricter"]
    assert [lower for _, lower in records] == ["inf"] * 10


@pytest.mark.parametrize(
    ("text", "null"),
    [
        (None, None),
        ("cosine:30", CosineNull(30)),
        ("normal", NormalNull()),
        ("normal:1,2", NormalNull(1.0, 2.0)),
        ("normal:3", NormalNull(3.0)),
        ("largest-of:20,orthogonal-cosine:900", LargestOfNull(OrthogonalCosineNull(900), 20)),
    ],
)
def test_nulls_have_names(text, null):
    assert parse_null(text) == null


@pytest.mark.parametrize("text", ["cosine", "cosine:x", "cosine:1", "normal:1,2,3", "normal:a", "other", "normal:0,0"])
def test_other_names_of_nulls_are_refused(text):
    with pytest.raises(InputError):
        parse_null(text)


@pytest.mark.parametrize("canaries", [4, 5])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_of_medians_reach_from_the_lower_to_the_upper_middle(canaries, confidence):
    baseline, tail = RandomGuessing(references=200, canaries=canaries), (1 - confidence) / 2
    # From the most exposed down, the middle positions of 4 are 2 and 3, and that of 5 is 3.
    upper, lower = (2, 3) if canaries == 4 else (3, 3)
    tail = (1 - confidence) / 2
    interval = baseline.quantile(tail, lower), baseline.quantile(1 - tail, upper)
    assert baseline.sample_median_interval(confidence) == interval
    assert baseline.sample_median_mean() == pytest.approx((baseline.mean(upper) + baseline.mean(lower)) / 2, rel=1e-12)


def test_estimates_carry_the_names_of_their_methods():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(1, 1, 30), rng.normal(0, 1, 30)
    for name in METHODS:
        if name == "exact-null":
            result = estimate(members, null=NormalNull(), methods=[name])[0]
        else:
            result = estimate(members, nonmembers, threshold=0.5, design="coin-flips", methods=[name])[0]
        assert result.method == name
        assert result.valid == (name in ("simultaneous", "exact-null", "one-run", "clopper-pearson"))
        assert (result.delta, result.confidence or 0.95) == (1e-5, 0.95)
    assert low_fpr_epsilon([1, 5], 10, 0.1).method == "low-fpr"


def test_an_estimator_that_does_not_apply_leaves_the_others():
    # Equal scores cannot be fitted, but have thresholds.
    methods = [result.method for result in estimate(np.ones(9), np.zeros(9))]
    assert "gaussian-shift" not in methods
    assert methods[-1] == "best-threshold"


# The rank-sum statistic


def test_the_rank_sum_is_the_share_of_comparisons_won():
    members, nonmembers = np.array([0.0, 1.0, 2.0, 2.0]), np.array([0.5, 1.0, 3.0])
    won = np.mean([m > n for m in members for n in nonmembers])
    test = RankSum(4, 3, np.random.default_rng(0), draws=9)
    assert test.statistic(Scores(members, nonmembers)) == pytest.approx(won, rel=1e-12)


def test_more_scores_are_compared_at_fifty_even_ranks():
    # The middle of each of 50 equal blocks of 3, from the top.
    members, nonmembers = np.arange(150.0), np.arange(150.0) + 0.5
    picked_members, picked_nonmembers = members[1::3], nonmembers[1::3]
    won = np.mean(picked_members[:, None] > picked_nonmembers)
    test = RankSum(150, 150, np.random.default_rng(0), draws=9)
    assert test.statistic(Scores(members, nonmembers)) == pytest.approx(won, rel=1e-12)


def test_rank_sum_p_values_and_powers_count_draws():
    test = RankSum(5, 6, np.random.default_rng(1), draws=39)
    claim, truth = GaussianDP(0.5), GaussianDP(3.0)
    drawn, against = test.drawn(claim), test.drawn(truth)
    for shift in (-2.0, 0.0, 1.0, 30.0):
        scores = Scores(np.arange(5.0) + shift, np.arange(6.0))
        reached = np.sum(drawn >= test.statistic(scores) - 1e-12)
        assert test.p_value(scores, claim) == pytest.approx((1 + reached) / 40)
    for level in (0.01, 0.025, 0.1, 0.5):
        rejected = np.mean([(1 + np.sum(drawn >= reached - 1e-12)) / 40 <= level + 1e-12 for reached in against])
        assert np.mean(against > test.critical(claim, level)) == pytest.approx(rejected)


@pytest.mark.parametrize("count", [3, 7])
def test_order_statistics_of_uniform_numbers_are_beta(count):
    # Kolmogorov–Smirnov at 1e-6 for each of 10 ranks: a false alarm in one of 100,000 runs with other seeds.
    drawn = uniform_order_statistics(count, even_ranks(count), np.random.default_rng(count), 4000)
    assert drawn.shape == (4000, count)
    for i in range(count):
        assert stats.kstest(drawn[:, i], stats.beta(i + 1, count - i).cdf).pvalue > 1e-6


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 30, 200])
def test_the_sum_of_uniform_numbers_has_the_volume_of_a_corner_of_the_cube(count):
    for share in (0.2, 0.37, 0.5, 0.8):
        total = share * count
        x = Fraction(total)  # by inclusion and exclusion, without rounding
        terms = [(-1) ** k * math.comb(count, k) * (x - k) ** count for k in range(math.floor(x) + 1)]
        volume = float(sum(terms) / math.factorial(count))
        assert volume <= float(uniform_sum_cdf(np.array(total), count)) <= volume * (1 + 1e-12) + 2e-15 * count
    np.testing.assert_array_equal(uniform_sum_cdf(np.array([0.0, count]), count).round(12), [0, 1])


def tails_under(claim, null, members):
    """The most likely scores at least as high as each member's, if the claim holds."""
    return claim.tpr_at_tails(null.log_sf(members), null.log_cdf(members))


def test_with_a_known_null_the_sum_of_the_tails_is_that_of_uniform_numbers():
    null, claim, members = NormalNull(1.0, 2.0), GaussianDP(0.5), np.array([3.0, 5.0])
    a, b = tails_under(claim, null, members)
    assert a + b < 1
    assert ClaimTests(Scores(members, null=null)).p_value(claim) == pytest.approx(
        (a + b) ** 2
    )  # half of it is a corner
    far = ClaimTests(Scores(np.full(100, 30.0), null=NormalNull())).p_value(GaussianDP(25.0))
    assert far < 1e-12


@pytest.mark.parametrize("level", [0.05, 0.0005])
def test_the_p_value_with_a_known_null_is_as_small_as_often_as_it_says(level):
    """20,000 audits of 34 members: four standard errors. The tests at ranks are left out."""
    rng = np.random.default_rng(34)
    sums = stats.norm.sf(rng.normal(0, 1, (20_000, 34))).sum(axis=1)
    small = np.mean(uniform_sum_cdf(sums, 34) <= level)
    assert small == pytest.approx(level, abs=4 * math.sqrt(level / 20_000))


def test_scores_that_share_a_length_are_averaged_over_it():
    null, claim = OrthogonalCosineNull(20), GaussianDP(0.5)
    scores = Scores(np.array([0.1, 0.2, 0.3, 0.5, 0.6]), null=null)
    shares, log_fpr, _ = null.given_shared(scores.members)
    sums = stats.norm.sf(stats.norm.isf(np.exp(log_fpr)) - claim.mu).sum(axis=0)
    expected = sum(share * uniform_sum_cdf(total, 5) for share, total in zip(shares, sums, strict=True))
    at_ranks = joint_p_value(claim_families(scores, "fixed", claim), claim)
    assert symmetry_p_value(scores.members) < 2 * expected < 2 * at_ranks
    assert ClaimTests(scores).p_value(claim) == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize(
    ("members", "dim", "mu"), [(50, 60, 1.67), pytest.param(300, 400, 5.0, marks=pytest.mark.slow)]
)
def test_a_true_claim_is_refuted_in_at_most_5_percent_if_scores_share_a_length(members, dim, mu):
    """300 audits (1,000 slow ones), by the sum of tails alone: 5% and 3.5 standard errors."""
    rng, audits = np.random.default_rng(dim), 300 if members == 50 else 1000
    refuted = 0
    for _ in range(audits):
        inserted = rng.normal(mu, 1, members)
        cosines = inserted / np.sqrt(inserted**2 + rng.chisquare(dim - 1))
        tests = ClaimTests(Scores(cosines, null=OrthogonalCosineNull(dim)))
        shares, log_fpr, log_tnr = tests._tails
        sums = GaussianDP(mu).directions[0].tpr_at_tails(log_fpr, log_tnr).sum(axis=0)
        refuted += shares @ uniform_sum_cdf(sums, members) <= 0.05
    assert 0.01 < refuted / audits <= 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / audits)
