"""Noise in effect, detectable noise and canaries needed, against a loop over all shares of the noise."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from claim_parts import Evidence
from coalmine.claims import Claim, EveryRound
from coalmine.results.claim_test import (
    LEAST,
    MOST,
    RATIO,
    ClaimTest,
    _curve,
    _estimate_exceeds,
    _separation,
    check_claim,
    first_exponent,
    first_separated,
)
from coalmine.results.verdict import Verdict, overall
from coalmine.stats import Scores
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP, GroupCurve

SHARES = 1.03 ** np.arange(-130, 81)
"""All shares of the claimed noise that are looked at."""

THEORY = SimpleNamespace(curve=lambda share: GaussianDP(1.5 / share))
"""A claim of μ = 1.5, and of more for less noise."""


@dataclass
class FakeTests:
    """Tests whose p-values and powers are known functions of μ."""

    separation: float = 2.0
    members: int = 50
    nonmembers: int | None = 50
    dependent: bool = False
    standard_error: float = 0.2

    def p_value(self, claim):
        # Less is rejected the more a claim allows: p = 0.05 at μ = 1.8.
        return min(1.0, 0.05 * claim.mu / 1.8)

    def powers(self, claim, alpha, factor=1.0):
        return lambda truth: self.power(claim, truth, alpha, factor)

    def power(self, claim, truth, alpha, factor=1.0):
        assert claim.mu == pytest.approx(1.5)
        assert alpha == 0.05
        return stats.norm.cdf((truth.mu - claim.mu) * math.sqrt(self.members * factor) / 3 - 1.6)


def separation_with(mu, separation):
    """Return the separation once the noise allows μ instead of 1.5: its variance 1/μ² is replaced, the rest stays."""
    rest = max(0.0, 1 / separation**2 - 1 / _separation(GaussianDP(1.5)) ** 2)
    return 1 / math.sqrt(1 / _separation(GaussianDP(mu)) ** 2 + rest)


def evidence(**settings):
    return Evidence(FakeTests(**settings), THEORY)


@pytest.mark.parametrize("near", [-130, -20, 0, 7, 80])
@pytest.mark.parametrize("edge", [-130, -129, -31, 0, 6, 80])
def test_the_first_exponent_is_found_from_any_start(near, edge):
    assert first_exponent(lambda i: i >= edge, near=near) == edge
    assert first_exponent(lambda i: i >= edge, near=near, most=5) == (edge if edge <= 5 else None)


def test_no_exponent_is_found_where_the_condition_never_holds():
    assert first_exponent(lambda i: False, near=0) is None
    assert first_exponent(lambda i: False, near=0, most=0) is None


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 4.0])
def test_separation_of_a_gaussian_curve_is_its_parameter(mu):
    # AUC = Φ(μ/√2), which 2,000 midpoints integrate to about 1e-5.
    area = stats.norm.cdf(_separation(GaussianDP(mu)) / math.sqrt(2))
    assert area == pytest.approx(stats.norm.cdf(mu / math.sqrt(2)), abs=2e-5)


def test_separation_of_a_dp_curve_is_that_of_its_area():
    # The area above the curve of (ε, 0)-DP: two triangles that meet at (1, e^ε)/(1 + e^ε).
    right = math.exp(1.0) / (1 + math.exp(1.0))
    assert stats.norm.cdf(_separation(ApproximateDP(1.0, 0.0)) / math.sqrt(2)) == pytest.approx(right, abs=1e-4)


def test_the_noise_is_at_most_the_smallest_rejected_share():
    rejected = [share for share in SHARES if 1.5 / share <= 1.8]
    assert evidence().noise_at_most == pytest.approx(min(rejected), rel=1e-12)


@pytest.mark.parametrize("separation", [0.4, 1.5, 2.0, 7.0])
def test_the_estimate_is_the_share_that_separates_as_the_scores_do(separation):
    expected = min(share for share in SHARES if _separation(GaussianDP(1.5 / share)) <= separation)
    assert evidence(separation=separation).noise_estimate == pytest.approx(expected, rel=1e-12)


def test_there_is_no_estimate_beyond_the_shares_that_are_looked_at():
    assert evidence(separation=0.0).noise_estimate is None
    assert evidence(separation=1e9).noise_estimate is None


@pytest.mark.parametrize("separation", [0.9, 1.3, 2.0])
@pytest.mark.parametrize("members", [20, 400])
def test_detectable_noise_lies_between_the_last_share_with_enough_power_and_the_next(separation, members):
    found = evidence(separation=separation, members=members, standard_error=0.0).detectable
    shares = SHARES[SHARES <= 1]
    powers = [
        FakeTests(members=members).power(GaussianDP(1.5), GaussianDP(separation_with(1.5 / s, separation)), 0.05)
        for s in shares
    ]
    most = max((share for share, power in zip(shares, powers, strict=True) if power >= 0.8), default=None)
    for each in found:
        assert each is most is None or most <= each < 1.03 * most


def test_a_test_without_power_detects_nothing():
    assert evidence(separation=0.0, standard_error=0.0).detectable == [None, None, None]


@pytest.mark.parametrize(("separation", "members"), [(1.0, 3), (1.1, 3), (0.9, 5), (1.3, 2)])
def test_canaries_needed_are_the_first_power_of_root_two_with_enough_power(separation, members):
    half = 1.03 ** round(math.log(0.5, 1.03))
    truth = GaussianDP(separation_with(1.5 / half, separation + 2 * 0.2))
    tests = FakeTests(separation=separation, members=members)

    def enough(factor):
        return tests.power(GaussianDP(1.5), truth, 0.05, factor) >= 0.8

    factor = next(2.0**k for k in range(1, 30) if enough(2.0**k))
    needed = members * (factor / math.sqrt(2) if enough(factor / math.sqrt(2)) else factor)
    # Two digits, rounded up.
    unit = 10 ** max(0, len(str(math.floor(needed))) - 2)
    expected = math.ceil(needed / unit) * unit
    assert Evidence(tests, THEORY).canaries_needed == expected
    assert expected > members


def test_no_number_of_canaries_is_named_beyond_what_can_be_computed():
    hopeless = FakeTests(separation=0.0, standard_error=0.0)
    assert Evidence(hopeless, THEORY).canaries_needed is None
    # About 5,000 would do, but power for dependent scores is computed up to 4,000 only.
    assert evidence(separation=1.18, members=300, standard_error=0.0).canaries_needed > 4000
    assert evidence(separation=1.18, members=300, standard_error=0.0, dependent=True).canaries_needed is None


def test_copies_are_tested_as_a_group():
    assert _curve(THEORY, 1.0, 1) == GaussianDP(1.5)
    assert _curve(THEORY, 1.0, 3) == GroupCurve(GaussianDP(1.5), 3)


# Suspicion


CLAIM = Claim(noise_multiplier=2.0, sampling=EveryRound(), rounds=1, delta=1e-3)


@pytest.mark.parametrize(("shift", "suspicious"), [(0.5, False), (4.0, True)])
def test_an_estimate_above_the_claim_is_suspicious_if_scores_look_normal(shift, suspicious):
    quantiles = stats.norm.ppf((np.arange(150) + 0.5) / 150)
    scores = Scores(quantiles + shift, quantiles)
    assert _estimate_exceeds(scores, CLAIM, 0.95, 1) == suspicious
    assert not _estimate_exceeds(scores, CLAIM, 0.95, 2)
    skewed = Scores(np.exp(quantiles) + 2 * shift, np.exp(quantiles))
    assert not _estimate_exceeds(skewed, CLAIM, 0.95, 1)
    same = Scores(np.ones(5), np.zeros(5))
    assert not _estimate_exceeds(same, CLAIM, 0.95, 1)


# Verdicts


def test_no_finite_claim_is_no_claim():
    nothing = Claim(noise_multiplier=0.0, sampling=EveryRound(), rounds=1, delta=1e-3)
    test = check_claim(np.arange(5.0), np.arange(5.0), nothing)
    assert test == ClaimTest(verdict=Verdict.NO_CLAIM, claim=nothing)
    assert not test.refuted


def test_alarms_lead_and_weak_adversaries_come_after_one_that_was_not():
    order = [Verdict.REFUTED, Verdict.SUSPICIOUS, Verdict.NOT_REFUTED, Verdict.TOO_WEAK, Verdict.NO_CLAIM]
    for i, first in enumerate(order):
        for second in order[i:]:
            assert overall([second, first]) is first
    assert overall([]) is Verdict.NO_CLAIM


# Steeper and flatter than Gaussian noise, bent as for sampled rounds, and with a jump as for single (ε, δ) pairs.
LAWS = {
    "inverse": lambda i: RATIO**-i,
    "steep": lambda i: RATIO ** (-1.7 * i),
    "flat": lambda i: RATIO ** (-0.6 * i),
    "bent": lambda i: RATIO ** (-i - 0.01 * i * abs(i)),
    "jump": lambda i: RATIO ** (-0.6 * i) * (2.0 if i < -15 else 1.0),
    "none": lambda i: 0.0,
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("wanted", [0.03, 0.6, 1.0, 1.3, 2.5, 40.0])
def test_the_search_is_exact_whatever_the_law_and_looks_at_few_curves(law, wanted):
    looked_at = []

    def separation(exponent):
        looked_at.append(exponent)
        return law(exponent)

    assert first_separated(separation, wanted) == next((i for i in range(LEAST, MOST + 1) if law(i) <= wanted), None)
    assert all(LEAST <= exponent <= MOST for exponent in looked_at)
    assert len(looked_at) <= 14
    assert len(looked_at) == len(set(looked_at))


def test_no_separation_is_wanted_of_scores_without_any():
    assert first_separated(lambda exponent: 1.0, 0.0) is None
