"""Results in words, and which estimate stands beside the bound."""

from dataclasses import replace

import numpy as np
import pytest

from coalmine.claims import Claim
from coalmine.methods.estimates import canary_evidence
from coalmine.results import summary as words
from coalmine.results.claim_test import ClaimTest
from coalmine.results.result import Result
from coalmine.results.verdict import USER, Verdict, overall
from coalmine.stats import Estimate, NormalNull, Scores, epsilon_gdp, gaussian_shift


def bound(method, epsilon):
    return Estimate(method, epsilon, epsilon, delta=1e-5, confidence=0.95, assumes="all is well", valid=True)


@pytest.mark.parametrize(
    ("epsilon", "odds"), [(1.0, "at least 2.72 times"), (8.0, "at least 2,980 times"), (900.0, "more than a million")]
)
def test_odds_are_numbers_that_people_can_picture(epsilon, odds):
    assert odds in words.bound_sentence(bound("split", epsilon))


def result(members, claim=None):
    held_out = np.random.default_rng(0).normal(0, 1, 100)
    claim = None if claim is None else Claim(epsilon=claim, delta=1e-5)
    evidence = canary_evidence(
        members, held_out, null=NormalNull(), signs=False, design="fixed", delta=1e-5, confidence=0.95, claim=claim
    )
    return Result(
        method="one-shot",
        view="final",
        unit=USER,
        adversary="sees the final model",
        score_name="cosine",
        seed=0,
        estimates=evidence.estimates,
        scores=evidence.scores,
        claim=claim,
        claim_test=evidence.claim_test,
    )


def by_bound(estimates, claim):
    """Return a result whose claim is tested by its bound alone."""
    return Result(
        method="one-shot",
        view="final",
        unit=USER,
        adversary="sees the final model",
        score_name="cosine",
        seed=0,
        estimates=estimates,
        claim=Claim(epsilon=claim, delta=1e-5),
    )


def test_an_estimate_whose_assumption_fails_is_marked_and_is_not_the_best_guess():
    rng = np.random.default_rng(1)
    skewed, normal = result(3 + rng.exponential(2, 100)), result(rng.normal(2, 1, 100))
    assert normal.best_guess.method == "gaussian-shift"
    assert skewed.best_guess.method == "best-threshold"
    assert "assumption fails" in words.kind(skewed["gaussian-shift"])
    assert words.kind(skewed["best-threshold"]) == words.kind(normal["gaussian-shift"]) == "estimate"


def test_a_missing_best_guess_says_why_and_what_would_do():
    rng = np.random.default_rng(4)
    few = result(rng.normal(2, 1, 79))
    said = (
        "none, since an estimate takes 80 scores on each side, and there are 79 (inserted): about 120 canaries would do"
    )
    assert (few.best_guess, f"best guess  {said}" in str(few), f"Best guess: {said}." in few.summary) == (
        None,
        True,
        True,
    )
    trials = replace(few, side_names=("canary present", "canary absent"))
    assert "there are 79 (canary present): more trials would do" in str(trials)
    apart = result(rng.normal(50, 1, 100))
    assert words.no_guess(apart) == "none, since no reliable estimate is above the lower bound"


def test_the_verdict_follows_from_bound_estimate_and_claim():
    members = np.random.default_rng(2).normal(3, 1, 100)
    lower, guess = result(members).bound.epsilon, result(members).best_guess
    assert lower < guess.lower
    cases = {
        lower / 2: Verdict.REFUTED,
        (lower + guess.lower) / 2: Verdict.SUSPICIOUS,
        2 * guess.upper: Verdict.TOO_WEAK,
        None: Verdict.NO_CLAIM,
    }
    for claim, verdict in cases.items():
        shown = result(members, claim)
        assert shown.verdict is verdict
        assert shown.refuted is (verdict is Verdict.REFUTED)
        assert shown.to_dict()["verdict"] == verdict.value
    assert overall([Verdict.NO_CLAIM, Verdict.SUSPICIOUS, Verdict.NOT_REFUTED]) is Verdict.SUSPICIOUS
    assert overall([Verdict.TOO_WEAK, Verdict.NOT_REFUTED]) is Verdict.NOT_REFUTED


def test_a_result_read_back_is_the_same():
    shown = result(np.random.default_rng(3).normal(2, 1, 100), claim=4.0)
    again = Result.from_dict(shown.to_dict())
    assert again.to_dict() == shown.to_dict()


@pytest.mark.slow
def test_a_true_claim_is_rarely_suspicious():
    """400 audits of a Gaussian mechanism (μ = 1, 100 per side) with its exact ε: 5% and 3.5 deviations are 8.8%.

    A two-sided 95% interval lies above the truth in at most 5% of audits. It is not symmetric: 4,000 audits each gave
    5.0%, 4.0% and 3.6% above at 20, 100 and 1,000 per side, and 0.9%, 1.2% and 1.7% below. So 2.5% would be too little.
    """
    rng, claim = np.random.default_rng(11), float(epsilon_gdp(1.0, 1e-5))
    verdicts = []
    for _ in range(400):
        shift = gaussian_shift(Scores(rng.normal(1, 1, 100), rng.normal(0, 1, 100)), delta=1e-5)
        verdicts.append(by_bound([bound("simultaneous", 0.1), shift], claim).verdict)
    assert verdicts.count(Verdict.SUSPICIOUS) <= 400 * 0.05 + 3.5 * np.sqrt(400 * 0.05 * 0.95)


def judged(test, **more):
    """What a result with this test of its claim says about it."""
    about = {"method": "m", "view": "v", "unit": USER, "adversary": "a", "score_name": "s", "seed": 0}
    return words.verdict_sentence(Result(**about, estimates=[], claim=test.claim, claim_test=test, **more))


def test_a_claim_without_noise_is_not_compared_with_noise():
    claim = Claim(epsilon=3.0, delta=1e-5)
    fine = ClaimTest(verdict=Verdict.NOT_REFUTED, p_value=0.5, confidence=0.95, detectable_noise=0.75, claim=claim)
    assert "would have detected ε = 4 (80% power)" in judged(fine)
    assert "noise" not in judged(fine)
    unknown = replace(fine, detectable_at_worst=0.5)
    assert "At best, this audit would have detected ε = 4 (80% power); at worst, only ε = 6:" in judged(unknown)
    assert "at worst, nothing:" in judged(replace(fine, detectable_at_worst=0.0))
    assert "This audit would have detected ε = 4 (80% power)." in judged(
        replace(fine, detectable_at_worst=0.752)
    )  # the same to two digits
    weak = ClaimTest(verdict=Verdict.TOO_WEAK, p_value=0.5, confidence=0.95, canaries_needed=700, claim=claim)
    assert "twice this ε could go unnoticed. About 700 inserted canaries" in judged(weak)
    noisy = Claim(noise_multiplier=1.0, rounds=1, delta=1e-5)
    assert "detected noise below 0.75 of the claim (80% power)." in judged(replace(fine, claim=noisy))
    hopeless = ClaimTest(verdict=Verdict.TOO_WEAK, p_value=0.5, confidence=0.95, claim=noisy)
    assert "half the noise could go unnoticed. More canaries alone" in judged(hopeless)
    for test in (weak, hopeless):
        assert "more trials" in judged(test, side_names=("canary present", "canary absent"))


def test_a_suspicious_verdict_without_a_best_guess_does_not_say_that_nothing_was_found():
    test = ClaimTest(verdict=Verdict.SUSPICIOUS, claim=Claim(epsilon=1.0, delta=1e-5))
    assert judged(test).startswith("Suspicious")
