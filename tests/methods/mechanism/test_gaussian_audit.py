"""One application of a mechanism as a black box."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods.mechanism.audit import audit_mechanism, canary_cosines, gaussian_mechanism
from coalmine.stats import CosineNull, Scores, gaussian_shift, sigma_gaussian


def shift(result):
    return next(e.epsilon for e in result.estimates if e.method == "gaussian-shift")


@pytest.mark.parametrize("family", ["hadamard", "gaussian"])
def test_vectors_give_what_the_closed_form_simulation_gives(family):
    sigma, dim, canaries, delta = sigma_gaussian(3.0, 1e-6), 20_000, 300, 1e-6
    vectors = [
        shift(
            audit_mechanism(
                gaussian_mechanism(sigma, seed), dim=dim, canaries=canaries, family=family, delta=delta, seed=seed
            )
        )
        for seed in range(12)
    ]
    simulated = []
    for seed in range(100):
        cosines = canary_cosines(dim=dim, canaries=canaries, sigma=sigma, rng=np.random.default_rng(seed))
        simulated.append(gaussian_shift(Scores(cosines, null=CosineNull(dim)), delta=delta).epsilon)
    error = np.hypot(np.std(vectors, ddof=1) / np.sqrt(12), np.std(simulated, ddof=1) / 10)
    assert abs(np.mean(vectors) - np.mean(simulated)) < 4 * error
    # Twelve draws: their standard deviation is within a factor of 2.6 in all but one case of a thousand.
    assert 1 / 2.6 < np.std(vectors, ddof=1) / np.std(simulated, ddof=1) < 2.6


def test_a_forgotten_noise_is_found_and_a_right_one_is_not():
    claim = 1.0
    right = audit_mechanism(gaussian_mechanism(sigma_gaussian(claim, 1e-5), 1), dim=50_000)
    wrong = audit_mechanism(lambda total: total + np.float32(1e-3), dim=50_000)
    assert right.bound.epsilon < claim
    assert wrong.bound.epsilon > 50


def test_any_callable_on_a_sum_will_do():
    def doubled(total):
        assert total.dtype == np.float32
        return (2 * total + np.random.default_rng(0).normal(0, 4.0, total.size)).tolist()

    halved = audit_mechanism(lambda t: t + np.random.default_rng(0).normal(0, 2.0, t.size), dim=30_000)
    assert shift(audit_mechanism(doubled, dim=30_000)) == pytest.approx(shift(halved), rel=1e-4)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (lambda total: total[:-1], "must return 500 numbers in a row"),
        (lambda total: total * np.nan, "must be finite, got a norm of nan"),
        (lambda total: None, "must return 500 numbers"),
    ],
)
def test_mechanisms_that_return_something_else_are_refused(mechanism, message):
    with pytest.raises(InputError, match=message):
        audit_mechanism(mechanism, dim=500, canaries=10)


def test_negative_noise_and_no_canaries_are_refused():
    with pytest.raises(InputError, match="sigma must be at least 0"):
        gaussian_mechanism(-1.0, 0)
    with pytest.raises(InputError, match="canaries must be a whole number of at least 1"):
        audit_mechanism(lambda total: total, dim=500, canaries=0)
    with pytest.raises(InputError, match="dim must be a whole number of at least 2"):
        audit_mechanism(lambda total: total, dim=1)
