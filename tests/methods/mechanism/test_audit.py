"""One application of a mechanism as a black box."""

from dataclasses import replace

import numpy as np
import pytest

from coalmine import claims
from coalmine.errors import InputError
from coalmine.methods.mechanism.audit import check_mechanism, gaussian_mechanism
from coalmine.methods.mechanism.method import MechanismMethod
from coalmine.results.result import Result
from coalmine.results.verdict import APPLICATION
from coalmine.stats import sigma_gaussian
from coalmine.stats.gaussian import epsilon_gdp


def shift(result):
    return next(e.epsilon for e in result.estimates if e.method == "gaussian-shift")


def test_missing_noise_is_found_and_correct_noise_is_not():
    # The bound and the claim test see this without the battery, which has its own tests: the fewest calls do.
    claim = claims.Claim(noise_multiplier=sigma_gaussian(1.0, 1e-5), sampling=claims.EveryRound(), rounds=1, delta=1e-5)
    right = check_mechanism(gaussian_mechanism(sigma_gaussian(1.0, 1e-5), 1), dim=50_000, calls=16, claim=claim)
    wrong = check_mechanism(lambda total: total + np.float32(1e-3), dim=50_000, calls=16, claim=claim)
    assert (right.verdict.value, wrong.verdict.value) == ("not refuted", "refuted")
    assert wrong.bound.epsilon > 50


def test_a_result_says_what_it_is_about():
    result = check_mechanism(gaussian_mechanism(1.0, 0), dim=500, canaries=10)
    assert (result.method, result.view, result.unit) == ("mechanism", "release", APPLICATION)
    assert (result.adversary, result.score_name) == ("sees the mechanism's output", "cosine")
    assert result.null.startswith("cosine:")
    assert (result.metrics["inserted"], result.metrics["held_out"]) == (10, 10)
    stored = Result.from_dict(result.to_dict())
    assert replace(stored, scores=result.scores).to_dict() == result.to_dict()  # scores have a file of their own


def test_an_output_of_zeros_shows_nothing():
    result = check_mechanism(lambda total: 0 * total, dim=500, canaries=10)
    assert result.bound.epsilon == 0
    assert any("zeros" in warning for warning in result.warnings)


def test_any_callable_on_a_sum_is_a_mechanism():
    def doubled(total):
        assert total.dtype == np.float32
        return (2 * total + np.random.default_rng(0).normal(0, 4.0, total.size)).tolist()

    halved = check_mechanism(lambda t: t + np.random.default_rng(0).normal(0, 2.0, t.size), dim=30_000)
    assert shift(check_mechanism(doubled, dim=30_000)) == pytest.approx(shift(halved), rel=1e-4)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (lambda total: total[:-1], r"shape \(500,\)"),
        (lambda total: total * np.nan, "finite.* nan"),
        (lambda total: None, r"shape \(500,\)"),
    ],
)
def test_wrong_outputs_are_errors(mechanism, message):
    with pytest.raises(InputError, match=message):
        check_mechanism(mechanism, dim=500, canaries=10)


def test_negative_noise_and_no_canaries_are_errors():
    with pytest.raises(InputError, match=r"noise_multiplier .* at least 0, got -1"):
        gaussian_mechanism(-1.0, 0)
    with pytest.raises(InputError, match=r"canaries .* at least 1"):
        check_mechanism(lambda total: total, dim=500, canaries=0)
    with pytest.raises(InputError, match=r"dim .* at least 2"):
        check_mechanism(lambda total: total, dim=1)


@pytest.mark.parametrize("calls", [None, 16, pytest.param(0, marks=pytest.mark.slow)])
def test_the_battery_counts_for_the_power_that_is_stated(calls):
    """40 canaries say too little about ε = 2, and so do 16 calls; the battery with its default calls says enough."""
    rng, claim = np.random.default_rng(0), claims.Claim(epsilon=2.0, delta=1e-5)
    sigma = sigma_gaussian(2.0, 1e-5)
    result = check_mechanism(
        lambda total: total + rng.normal(0, sigma, total.size), dim=300, canaries=40, calls=calls, claim=claim
    )
    assert result.verdict.value == ("not refuted" if calls is None else "too weak")
    if calls is None:
        half = float(epsilon_gdp(1 / (sigma / 2), 1e-5))
        assert claim.epsilon / result.claim_test.detectable_noise == pytest.approx(half)
    again = MechanismMethod.recompute(result, [])
    assert again.claim_test == result.claim_test
