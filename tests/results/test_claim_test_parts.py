"""Parts of the claim test and of canary evidence, one at a time, against loops and closed forms."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from claim_parts import Evidence
from coalmine.claims import Claim, EveryRound
from coalmine.methods.estimates import (
    bounds_per_copy,
    canary_evidence,
    claim_test,
    neighbors_apart,
    normality,
    rough_epsilon,
    simultaneous_bound,
    with_stricter_bound,
)
from coalmine.results.claim_test import (
    ClaimTest,
    _curve,
    _estimate_exceeds,
    _separation,
    _strengths,
    _truth,
    check_claim,
    first_exponent,
)
from coalmine.results.result import Result
from coalmine.results.verdict import Finding, Verdict, overall, verdict_on
from coalmine.stats import Estimate, NormalNull, Scores, ceiling, epsilon_gdp, estimate, simultaneous
from coalmine.stats.claim_tests import ClaimTests
from coalmine.stats.gaussian import anderson_darling
from coalmine.stats.one_run import most_powerful_guesses
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP, GroupCurve
from gate_runs import result

CLAIM = Claim(noise_multiplier=0.5, sampling=EveryRound(), rounds=1, delta=1e-5)  # 2-GDP
SHARES = 1.03 ** np.arange(-130, 81)


# Searches over shares of the noise


@pytest.mark.parametrize("near", [-130, -20, 0, 80, 500])
@pytest.mark.parametrize("start", [-131, -130, -129, -40, -1, 0, 3, 79, 80, 81])
def test_the_first_exponent_is_that_of_a_loop(near, start):
    expected = next((i for i in range(-130, 81) if i >= start), None)
    assert first_exponent(lambda i: i >= start, near=near) == expected
    expected = next((i for i in range(-130, 1) if i >= start), None)
    assert first_exponent(lambda i: i >= start, near=near, most=0) == expected


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_the_separation_of_a_gaussian_curve_is_its_shift(mu):
    assert _separation(GaussianDP(mu)) == pytest.approx(mu, abs=2e-3)
    # Laplace-like curves have an area of their own: the integral of the curve by the trapezoid rule.
    curve, grid = ApproximateDP(mu, 0.0), np.linspace(0, 1, 100_001)
    area = np.trapezoid(curve.tpr(grid), grid)
    assert _separation(curve) == pytest.approx(math.sqrt(2) * stats.norm.ppf(area), abs=2e-3)


def test_a_curve_that_gives_everything_away_has_a_finite_separation():
    assert _separation(ApproximateDP(0.0, 1.0)) == 1000


def evidence(*, separation=2.0, members=50, power=None, p_value=None, dependent=False, standard_error=0.0):
    """Evidence of which only the separation of the scores, the p-values and the power of the tests matter."""
    power, p_value = power or (lambda claim, truth, alpha, factor: 0.0), p_value or (lambda curve: 1.0)
    tests = SimpleNamespace(
        nonmembers=50,
        separation=separation,
        standard_error=standard_error,
        members=members,
        dependent=dependent,
        powers=lambda claim, alpha, factor=1.0: lambda truth: power(claim, truth, alpha, factor),
        p_value=p_value,
    )
    return Evidence(tests, CLAIM)


def test_the_noise_in_effect_is_the_least_share_that_is_rejected():
    # A test that rejects whenever the curve allows less than 3-GDP, so shares above two thirds.
    bound = evidence(p_value=lambda curve: 0.05 if curve.mu < 3 else 0.051).noise_at_most
    assert bound == pytest.approx(min(SHARES[SHARES > 2 / 3]))
    assert evidence().noise_at_most is None


@pytest.mark.parametrize("separation", [1.0, 2.0, 3.0])
def test_the_estimated_share_is_the_claimed_separation_over_the_observed_one(separation):
    assert evidence(separation=separation).noise_estimate == pytest.approx(2 / separation, rel=0.031)
    assert evidence(separation=separation).noise_estimate >= 2 / separation * 0.999


def test_a_separation_as_claimed_is_all_of_the_noise():
    assert evidence(separation=_separation(GaussianDP(2.0))).noise_estimate == 1.0


def test_nothing_separates_scores_if_the_claim_allows_nothing():
    tests = SimpleNamespace(nonmembers=50, separation=1.0, standard_error=0.0)
    assert _truth(tests, Claim(epsilon=0.0, delta=0.0), 1, 0.5, 1.0) == GaussianDP(0.0)


def test_shares_beyond_the_range_are_not_estimated():
    assert evidence(separation=0.0).noise_estimate is None
    assert evidence(separation=1e9).noise_estimate is None


@pytest.mark.parametrize("rest", [0.0, 0.06])
def test_the_detectable_share_is_where_the_power_is_eighty_percent(rest):
    def power(claim, truth, alpha, factor):
        assert (claim, alpha, factor) == (GaussianDP(2.0), 0.05, 1.0)
        return stats.norm.cdf(8 * (truth.mu - 2.5)) + 0.3

    # What disturbs scores beside the noise stays: their variance is (share/2)² and the rest.
    reached = 2.5 + stats.norm.ppf(0.5) / 8
    expected = 2 * math.sqrt(reached**-2 - rest)
    weakest, likeliest, strongest = evidence(separation=(2.0**-2 + rest) ** -0.5, power=power).detectable
    assert weakest == likeliest == strongest == pytest.approx(expected, rel=2e-3)
    assert evidence(power=lambda *_: 0.9).detectable[0] == pytest.approx(1 / 1.03)
    assert evidence().detectable[0] is None


@pytest.mark.parametrize(("least", "needed"), [(2.0, 100), (2.5, 150), (2.9, 200), (16.0, 800), (20.0, 1200)])
def test_needed_canaries_are_the_first_multiple_with_power_rounded_up(least, needed):
    # Multiples are powers of the root of 2, tried two at a time.
    def power(claim, truth, alpha, factor):
        assert truth.mu == pytest.approx(4.0, rel=0.02)  # half the noise
        return 0.8 if factor >= least else 0.79

    assert evidence(power=power).canaries_needed == needed


def test_needed_canaries_are_limited_and_have_two_digits():
    def power(claim, truth, alpha, factor):
        return 0.8 if factor >= 80 else 0.0

    assert evidence(power=power).canaries_needed == 4600  # 50 · 64 · √2 = 4525
    assert evidence(power=power, dependent=True).canaries_needed is None
    assert evidence(power=power, members=31, dependent=True).canaries_needed == 2900  # 31 · 64 · √2 = 2806
    assert evidence().canaries_needed is None
    assert evidence(power=power, members=34, dependent=True).canaries_needed is None  # 34 · 128 is above 4,000
    assert evidence(members=3, power=lambda *_: 1.0).canaries_needed == 5  # 3 · √2 = 4.2


def test_few_scores_get_the_benefit_of_two_standard_errors():
    seen = []

    def power(claim, truth, alpha, factor):
        seen.append(truth.mu)
        return 1.0

    assert evidence(separation=1.0, standard_error=0.4, power=power).canaries_needed == 71
    # 1.8 now, so a variance of 1/1.8² − 1/2² beside the noise.
    assert seen == [pytest.approx((1.8**-2 - 2.0**-2 + 4.0**-2) ** -0.5, rel=0.02)] * 2


@pytest.mark.parametrize(("separation", "trusted"), [(0.5, 1.6), (5.0, 1.6), (-0.4, 1.2)])
def test_an_expected_separation_counts_unless_scores_are_four_standard_errors_below(separation, trusted):
    tests = evidence(separation=separation, standard_error=0.4).tests
    assert _strengths(tests, CLAIM, 1, 1.6) == (pytest.approx(trusted),) * 3


def test_an_attack_of_unknown_strength_is_as_strong_as_its_scores_leave_possible():
    def strengths(separation):
        return _strengths(evidence(separation=separation, standard_error=0.1).tests, CLAIM, 1, None)

    assert strengths(1.0) == pytest.approx((0.8, 1.0, 1.2))
    most = _separation(GaussianDP(2.0))  # which is all that the claim allows
    assert strengths(1.9) == pytest.approx((1.7, 1.9, most))
    assert strengths(5.0) == pytest.approx((most, most, most))
    truth = _truth(evidence().tests, CLAIM, 1, 0.5, 1.2)
    assert truth.mu == pytest.approx((1.2**-2 - 2.0**-2 + 4.0**-2) ** -0.5, rel=0.02)


def test_copies_make_a_group():
    assert _curve(CLAIM, 0.5, 1) == GaussianDP(4.0)
    assert _curve(CLAIM, 1.0, 3) == GroupCurve(GaussianDP(2.0), 3)


# Estimates beside the test


def test_estimates_count_if_the_scores_are_normal_and_the_claim_has_a_delta():
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(6, 1, 80), rng.normal(0, 1, 80))
    assert _estimate_exceeds(scores, CLAIM, 0.95, 1)
    assert not _estimate_exceeds(scores, CLAIM, 0.95, 2)
    assert _estimate_exceeds(scores, Claim(epsilon=2.0, delta=1e-5), 0.95, 1)
    assert not _estimate_exceeds(scores, Claim(epsilon=2.0, delta=0.0), 0.95, 1)
    few = Scores(scores.members[1:], scores.observed)
    assert not _estimate_exceeds(few, Claim(epsilon=2.0, delta=1e-5), 0.95, 1)
    assert _estimate_exceeds(few, CLAIM, 0.95, 1)
    alike = Scores(scores.observed, scores.observed)
    assert not _estimate_exceeds(alike, Claim(epsilon=0.5, delta=1e-5), 0.95, 1)
    outliers = Scores(np.append(scores.members, 40.0), scores.observed)
    assert not _estimate_exceeds(outliers, CLAIM, 0.95, 1)
    assert not _estimate_exceeds(Scores(np.full(40, 9.0), np.zeros(40)), CLAIM, 0.95, 1)


def test_dependent_scores_are_tested_by_the_number_of_guesses_that_detects_half_the_noise():
    rng = np.random.default_rng(1)
    scores = Scores(rng.normal(2, 1, 20), rng.normal(0, 1, 20))
    guesses = most_powerful_guesses(40, GaussianDP(1.0), GaussianDP(2.0), 0.05)
    assert guesses != 20
    tests = ClaimTests(scores, design="coin-flips", dependent=True, guesses=guesses)
    expected = tests.p_value(GaussianDP(1.0))
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)
    test = check_claim(scores.members, scores.observed, claim, design="coin-flips", dependent=True)
    assert 0 < expected < 1
    assert test.noise_at_most == Evidence(tests, claim).noise_at_most
    assert test.noise_at_most is not None
    assert test.p_value == pytest.approx(expected)


def test_infinite_claims_are_no_claims():
    test = check_claim([1.0, 2.0], [0.0, 1.0], Claim(epsilon=math.inf, delta=1e-5))
    assert (test.verdict, test.p_value) == (Verdict.NO_CLAIM, None)
    assert not test.refuted


def test_rough_epsilon_is_that_of_the_pooled_deviation():
    members, nonmembers = np.array([3.0, 4.0, 8.0]), np.array([0.0, 2.0])
    width = math.sqrt((7 + 2) / 2)  # variances 7 and 2
    assert rough_epsilon(members, nonmembers, 1e-3) == pytest.approx(float(epsilon_gdp(4 / width, 1e-3)))
    assert rough_epsilon(nonmembers, members) == 0.0
    assert rough_epsilon(members, nonmembers) == rough_epsilon(members, nonmembers, 1e-5)
    assert rough_epsilon(members, nonmembers[:1]) is None
    assert rough_epsilon(nonmembers[:1], members) is None
    assert rough_epsilon(np.ones(2), np.zeros(2)) is None
    assert rough_epsilon(np.array([0.0, 0.1]), np.array([0.0, 0.1])) == 0.0


def test_a_client_is_replaced_in_one_step_or_in_two_if_the_claim_is_for_adding_and_removing():
    assert neighbors_apart(3, None) == 3
    assert neighbors_apart(3, CLAIM.replace(adjacency="add-or-remove-one")) == 6
    assert neighbors_apart(3, CLAIM.replace(adjacency="replace-one")) == 3


def test_normality_metrics_are_those_of_the_test():
    scores = np.random.default_rng(0).normal(size=80)
    test = anderson_darling(scores)
    assert normality(scores, "inserted")[0] == {
        "anderson_darling": test.statistic,
        "anderson_darling_p": test.p_value,
    }
    assert normality(np.arange(3.0), "inserted")[0] == {}


# Bounds


def sides(seed=0, count=10, shift=4.0):
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1, count), rng.normal(0, 1, count)


@pytest.mark.parametrize("design", ["fixed", "coin-flips"])
def test_stricter_bounds_are_those_at_the_stricter_confidence(design):
    members, nonmembers = sides()
    bound, top = simultaneous_bound(Scores(members, nonmembers), delta=1e-3, confidence=0.9, design=design, copies=2)
    scores = Scores(members, nonmembers)
    assert bound.lower == simultaneous(scores, delta=1e-3, confidence=0.9, design=design, copies=2).lower > 0
    for confidence, lower in bound.stricter[:2]:
        assert lower == simultaneous(scores, delta=1e-3, confidence=confidence, design=design, copies=2).lower
    assert top == ceiling(10, 10, delta=1e-3, confidence=0.9, design=design, copies=2)


def test_the_quoted_bound_is_the_first_valid_one():
    members, nonmembers = sides()
    mere = Estimate("plug-in", 1.0, delta=1e-3)
    bounds = estimate(
        members, nonmembers, delta=1e-3, confidence=0.9, methods=["simultaneous", "plug-in"], threshold=0.5
    )
    first, quoted, other = with_stricter_bound([mere, *bounds], members, nonmembers)
    assert (first, other) == (mere, bounds[1])
    level, lower = quoted.stricter[0]
    assert lower == simultaneous(Scores(members, nonmembers), delta=1e-3, confidence=level).lower
    assert with_stricter_bound([mere], members, nonmembers) == [mere]
    assert claim_test(CLAIM, [mere], members, nonmembers) is None
    assert claim_test(None, bounds, members, nonmembers) is None


def test_bounds_per_copy_begin_with_the_one_that_assumes_least():
    scores = Scores(*sides())
    for design, methods in (("fixed", ["simultaneous"]), ("coin-flips", ["one-run", "simultaneous"])):
        bounds = bounds_per_copy(scores, delta=1e-3, confidence=0.9, design=design, copies=1)
        assert [bound.method for bound in bounds] == methods
        assert [bool(bound.stricter) for bound in bounds] == [True, False][: len(methods)]


def test_a_bound_above_the_claim_is_suspicious_if_the_test_does_not_reject():
    members, nonmembers = sides(shift=0.1)
    above = Estimate("simultaneous", 20.0, 20.0, delta=1e-5, confidence=0.95, assumes="", valid=True)
    below = Estimate("simultaneous", 0.1, 0.1, delta=1e-5, confidence=0.95, assumes="", valid=True)
    for bound, verdict in ((above, Verdict.SUSPICIOUS), (below, Verdict.TOO_WEAK)):
        test = claim_test(CLAIM, [bound], members, nonmembers)
        assert test.verdict is Verdict.TOO_WEAK
        assert replace(result(), estimates=[bound], claim=CLAIM, claim_test=test).verdict is verdict


@pytest.mark.parametrize("detects_half", [False, True])
@pytest.mark.parametrize("exceeded", [False, True])
@pytest.mark.parametrize("rejected", [False, True])
@pytest.mark.parametrize("bugs", [[], [Finding(check="fresh noise", sentence="The noise repeats.")]])
def test_the_strongest_evidence_decides_the_verdict(bugs, rejected, exceeded, detects_half):
    evidence = {"rejected": rejected, "exceeded": exceeded, "detects_half": detects_half, "bugs": bugs}
    expected = Verdict.NOT_REFUTED if detects_half else Verdict.TOO_WEAK
    if exceeded:
        expected = Verdict.SUSPICIOUS
    if rejected or bugs:
        expected = Verdict.REFUTED
    assert verdict_on(CLAIM, **evidence) is expected
    assert verdict_on(None, **evidence) is Verdict.NO_CLAIM
    unlimited = Claim(epsilon=math.inf, delta=1e-5)
    assert verdict_on(unlimited, **evidence) is (Verdict.REFUTED if rejected or bugs else Verdict.NO_CLAIM)


def test_evidence_uses_the_null_distribution_where_it_is_known():
    members, nonmembers = sides()
    options = {"design": "coin-flips", "delta": 1e-3, "confidence": 0.9, "claim": None}
    known = canary_evidence(members, nonmembers, null=NormalNull(), signs=False, **options)
    signs = canary_evidence(members, nonmembers, null=NormalNull(), signs=True, **options)
    unknown = canary_evidence(members, nonmembers, null=None, signs=False, **options)
    assert [e.method for e in known.estimates][:3] == ["exact-null", "one-run", "simultaneous"]
    assert unknown.estimates[0].method == "one-run"
    exact = {e.method: e for e in estimate(members, null=NormalNull(), delta=1e-3, confidence=0.9)}
    counted = {e.method: e for e in estimate(members, nonmembers, delta=1e-3, confidence=0.9, design="coin-flips")}
    for e in known.estimates:
        from_null = e.method in ("exact-null", "gaussian-shift")
        assert e.epsilon == (exact if from_null else counted)[e.method].epsilon
    assert {e.method for e in signs.estimates if "random signs" in e.assumes} == {"exact-null", "gaussian-shift"}
    assert known.ceiling == ceiling(10, 10, delta=1e-3, confidence=0.9, design="coin-flips")
    assert known.claim_test is None


# Verdicts and findings


def test_alarms_lead_and_weak_adversaries_do_not_matter_beside_strong_ones():
    order = [Verdict.REFUTED, Verdict.SUSPICIOUS, Verdict.NOT_REFUTED, Verdict.TOO_WEAK, Verdict.NO_CLAIM]
    for i, leading in enumerate(order):
        assert overall(reversed(order[i:])) is leading
    assert overall([]) is Verdict.NO_CLAIM


def test_tests_and_findings_come_back_from_dictionaries():
    test = ClaimTest(verdict=Verdict.TOO_WEAK, p_value=0.3, confidence=0.9, assumes="much", canaries_needed=70)
    finding = Finding(check="weights", sentence="They differ.", refutes=False, p_value=1e-4, example="x = 1")
    told = result(claim_test=test, findings=[finding]).to_dict()
    assert told["claim_test"]["verdict"] == "too weak"
    assert told["claim_test"]["claim"] == told["claim"]
    again = Result.from_dict(json.loads(json.dumps(told)))
    assert replace(again.claim_test, claim=None) == test
    assert again.findings == [finding]
    assert str(finding) == "They differ (p = 0.0001)."
    assert str(Finding(check="weights", sentence="They differ.")) == "They differ."
