"""Which estimate stands beside the bound, and when one makes a claim suspicious."""

import numpy as np
import pytest

from coalmine.claims import Claim, EveryRound
from coalmine.methods.estimates import canary_evidence, normality
from coalmine.results import summary as words
from coalmine.results.claim_test import _estimate_exceeds
from coalmine.results.result import Result
from coalmine.results.verdict import USER
from coalmine.stats import Estimate, Scores


def result(estimates, **more):
    return Result(
        method="one-shot",
        view="final",
        unit=USER,
        adversary="sees the final model",
        score_name="cosine",
        seed=0,
        estimates=estimates,
        **more,
    )


def from_scores(members, nonmembers):
    evidence = canary_evidence(
        members, nonmembers, null=None, signs=False, design="fixed", delta=1e-5, confidence=0.95, claim=None
    )
    return result(evidence.estimates, scores=evidence.scores)


def test_few_scores_have_no_best_guess():
    rng = np.random.default_rng(0)
    few = from_scores(rng.normal(2, 1, 20), rng.normal(0, 1, 20))
    many = from_scores(rng.normal(2, 1, 100), rng.normal(0, 1, 100))
    assert few.best_guess is None
    assert "there are 20 (held out): about 120 canaries would do" in few.summary
    assert words.kind(few["gaussian-shift"]) == "estimate, too few scores"
    assert many.best_guess.method == "gaussian-shift"
    assert Result.from_dict(few.to_dict()).best_guess is None


def test_normality_of_few_scores_cannot_be_checked():
    rng = np.random.default_rng(1)
    assert "too few to check" in normality(rng.normal(size=20), "inserted")[1][0]
    assert "too few to check" in normality(np.arange(5.0), "inserted")[1][0]
    assert "not normal" in normality(rng.standard_cauchy(60), "inserted")[1][0]
    assert normality(rng.normal(size=100), "inserted")[1] == []
    # Too few to check is not the same as a failed check.
    assert not from_scores(rng.normal(2, 1, 20), rng.normal(0, 1, 20))["gaussian-shift"].doubtful


def test_an_estimate_below_the_bound_is_not_shown():
    bound = Estimate("simultaneous", 2.0, 2.0, delta=1e-5, confidence=0.95, assumes="all is well", valid=True)
    low, high = Estimate("gaussian-shift", 1.5, 1.0, 1.9, 0.95, 1e-5), Estimate("best-threshold", 3.0, delta=1e-5)
    assert result([bound, low, high]).best_guess == high
    assert result([bound, low]).best_guess is None
    assert result([low]).best_guess == low


GAUSSIAN = Claim(noise_multiplier=0.4, sampling=EveryRound(), rounds=1, delta=1e-5)


@pytest.mark.parametrize("n", [pytest.param(10, marks=pytest.mark.slow), 20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_true_gaussian_claim_is_rarely_suspicious(n):
    # At most 2.5% of audits, and 400 of them: 3.1 standard errors, a false alarm in 1,000.
    rng = np.random.default_rng(n)
    suspicious = sum(
        _estimate_exceeds(Scores(rng.normal(2.5, 1, n), rng.normal(0, 1, n)), GAUSSIAN, 0.95, 1) for _ in range(400)
    )
    assert suspicious <= 400 * 0.025 + 3.1 * np.sqrt(400 * 0.025 * 0.975)


@pytest.mark.parametrize(
    "n", [pytest.param(20, marks=pytest.mark.slow), 79, 80, pytest.param(100, marks=pytest.mark.slow)]
)
def test_laplace_noise_does_not_make_its_true_claim_suspicious(n):
    # Sensitivity 1 and scale 1/4 are (4, 0)-DP; as if normal they would have ε = 15. Up to 79 scores never, then at
    # most 8%; 300 audits and 3.1 standard errors.
    rng, claim = np.random.default_rng(n), Claim(epsilon=4.0, delta=1e-5)
    suspicious = sum(
        _estimate_exceeds(Scores(1 + rng.laplace(0, 0.25, n), rng.laplace(0, 0.25, n)), claim, 0.95, 1)
        for _ in range(300)
    )
    assert suspicious <= (0 if n < 80 else 300 * 0.08 + 3.1 * np.sqrt(300 * 0.08 * 0.92))
