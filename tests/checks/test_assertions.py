"""Privacy as a unit test: right mechanisms pass, wrong ones fail with a readable message, at the stated rate."""

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest

from coalmine import Claim, check_claim, replay
from coalmine.errors import InputError
from coalmine.stats import sigma_gaussian
from coalmine.testing import assert_locally_private, assert_private

SIGMA = sigma_gaussian(1.0, 1e-5)


def noisy(sigma, seed=0):
    rng = np.random.default_rng(seed)
    return lambda total: total + sigma * rng.standard_normal(total.size)


def test_a_right_mechanism_passes_and_its_bound_is_given():
    bound = assert_private(noisy(SIGMA), epsilon=1.0, dim=4000, canaries=200, calls=50)
    assert bound.valid
    assert bound.epsilon <= 1.0
    assert bound.confidence == 0.9999  # a tenth of the rate; the battery has the rest


def test_a_mechanism_with_a_bug_fails_with_what_it_means():
    with pytest.raises(AssertionError) as raised:
        assert_private(noisy(SIGMA / 8), epsilon=1.0, dim=4000, canaries=200, calls=50)
    for part in (
        "deviation is 0.46",
        "0.13 times the 3.73",
        "ε = 1 at δ = 1e-05 is refuted",
        "at most 1 of 1,000 cases",
    ):
        assert part in str(raised.value)


def test_a_stated_noise_multiplier_is_tested_as_a_whole_curve():
    assert assert_private(noisy(SIGMA), noise_multiplier=SIGMA, dim=2000, calls=50).valid
    with pytest.raises(AssertionError, match=r"ε = 1 at δ = 1e-05 is refuted"):
        assert_private(noisy(0.8 * SIGMA), noise_multiplier=SIGMA, dim=2000, calls=50)


def test_half_of_the_noise_passes_with_a_warning_where_it_is_not_found_and_small_mechanisms_are_called_more_often():
    """That the few canaries of 300 calls find half of the noise has a probability below 1e-3; so has the opposite."""
    half = {"epsilon": 1.0, "dim": 50}
    with pytest.warns(UserWarning, match=r"9,000 canaries .* half of the noise might pass"):
        assert_private(noisy(SIGMA / 2), **half, calls=300)
    with pytest.raises(AssertionError, match="too small everywhere"):
        assert_private(noisy(SIGMA / 2), **half)


def test_no_warning_where_half_of_the_noise_would_be_found():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_private(noisy(SIGMA), noise_multiplier=SIGMA, dim=50, calls=500)
        assert_private(noisy(SIGMA), epsilon=1.0, dim=2000, calls=60)


def test_a_tensor_without_noise_is_named():
    sums = noisy(SIGMA)

    def forgetful(total):
        released = sums(total)
        released[1000:1010] = total[1000:1010]
        return released

    with pytest.raises(AssertionError, match=r"^fc.bias carries no noise"):
        assert_private(forgetful, epsilon=8.0, layers={"fc.weight": 1000, "fc.bias": 10, "out": 490}, calls=100)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": None}, "a claim needs"),
        ({"noise_multiplier": 1.0}, "state one of them"),
        ({"noise_multiplier": 0.0}, "must be a positive number, got 0"),
        ({"calls": 3}, "calls .* at least 16"),
        ({"layers": {"a": 3}, "dim": 4}, "layers have 3 parameters, but the audit is for 4"),
    ],
)
def test_claims_and_layers_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        assert_private(noisy(SIGMA), **({"epsilon": 1.0} | wrong))


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_mechanism_that_ignores_its_data_is_private(constant):
    assert assert_private(lambda total: np.full(total.size, constant), epsilon=0.0, dim=500, calls=50).epsilon == 0


def test_a_mechanism_without_noise_fails():
    with pytest.raises(AssertionError, match="There is no noise"):
        assert_private(lambda total: total, epsilon=1.0, dim=4000, canaries=200, calls=50)


@pytest.mark.slow
def test_half_the_noise_of_a_promise_of_2_fails():
    with pytest.raises(AssertionError):
        assert_private(noisy(sigma_gaussian(2.0, 1e-5) / 2), epsilon=2.0, dim=4000, calls=100)


def test_a_local_mechanism_is_judged_by_what_it_reports():
    def along(epsilon):
        rng, chance = np.random.default_rng(1), np.exp(epsilon) / (1 + np.exp(epsilon))
        # One bit of the gradient, told in all coordinates.
        return lambda gradient: np.full(5, float((gradient.sum() > 0) == (rng.random() < chance)))

    assert assert_locally_private(along(2.0), epsilon=2.0, dim=5, trials=300).epsilon > 1.0
    with pytest.raises(AssertionError, match="ε = 1 at δ = 0 is refuted"):
        assert_locally_private(along(2.0), epsilon=1.0, dim=5, trials=300)


def local_gaussian(sigma, *, bare=None, every=None):
    """Gaussian noise on gradients clipped to norm 1, but not on one coordinate, or not in every so many reports."""
    rng, calls = np.random.default_rng(1), itertools.count(1)

    def randomize(gradient):
        noise = rng.normal(0, sigma, gradient.size)
        if bare is not None:
            noise[bare] = 0
        silent = every is not None and next(calls) % every == 0
        return gradient / max(1.0, np.linalg.norm(gradient)) + (0 if silent else noise)

    return randomize


LOCAL_SIGMA = 2 * sigma_gaussian(1.0, 1e-5)


@pytest.mark.parametrize("bug", [{"bare": 3}, pytest.param({"every": 10}, marks=pytest.mark.slow)])
def test_local_noise_that_is_missing_in_one_place_or_report_fails(bug):
    assert_locally_private(local_gaussian(LOCAL_SIGMA), epsilon=1.0, delta=1e-5, dim=40, trials=1000)
    with pytest.raises(AssertionError, match="ε = 1 at δ = 1e-05 is refuted"):
        assert_locally_private(local_gaussian(LOCAL_SIGMA, **bug), epsilon=1.0, delta=1e-5, dim=40, trials=1000)


def test_a_claimed_local_noise_multiplier_takes_less_evidence_and_clipping_is_tested_by_long_gradients():
    claim = {"noise_multiplier": LOCAL_SIGMA, "delta": 1e-5, "dim": 20, "trials": 1500}
    assert assert_locally_private(local_gaussian(LOCAL_SIGMA), **claim, norm=10.0).valid
    half = local_gaussian(LOCAL_SIGMA / 2)
    assert assert_locally_private(half, epsilon=1.0, delta=1e-5, dim=20, trials=1500).valid  # a pair says too little
    with pytest.raises(AssertionError, match=r"noise multiplier of 7\.46"):
        assert_locally_private(half, **claim)
    rng = np.random.default_rng(2)
    with pytest.raises(AssertionError, match="refuted"):
        assert_locally_private(lambda g: g + rng.normal(0, LOCAL_SIGMA, g.size), **claim, norm=10.0)


def test_a_test_that_could_never_fail_is_refused():
    with pytest.raises(InputError, match="could never fail"):
        assert_locally_private(lambda gradient: gradient, epsilon=5.0, dim=3, trials=20)


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"epsilon": "x"}, {"delta": 1.0}, {"false_alarm_rate": 0.0}])
def test_wrong_promises_are_refused(wrong):
    with pytest.raises(InputError):
        assert_private(noisy(SIGMA), **({"epsilon": 1.0} | wrong))


def test_a_delta_above_the_rate_is_refused_since_all_may_be_revealed_at_once():
    def reveals(total):  # (0, 0.01)-DP at best, and a failure whenever it reveals
        return total

    with pytest.raises(InputError, match=r"false-alarm rate, 0.001, got 0.01"):
        assert_private(reveals, epsilon=0.0, delta=0.01, dim=500, canaries=20)
    with pytest.raises(AssertionError):
        assert_private(reveals, epsilon=0.0, delta=0.01, dim=500, canaries=20, false_alarm_rate=0.01)


@pytest.mark.slow
def test_right_mechanisms_fail_no_more_often_than_stated():
    """At a rate of 20%, of mechanisms that keep ε = 1 and no less: 3.2 deviations beyond it are the most."""

    def sums(seed):
        assert_private(noisy(SIGMA, seed), epsilon=1.0, dim=600, canaries=30, calls=40, false_alarm_rate=0.2, seed=seed)

    failed = sum(fails(sums, seed) for seed in range(10))
    assert failed <= 0.2 * 10 + 3.2 * np.sqrt(10 * 0.2 * 0.8)


def fails(test, seed):
    try:
        test(seed)
    except AssertionError:
        return True
    return False


def test_importing_it_does_not_load_torch_nor_does_a_test_of_sums():
    code = "import numpy as np, sys; from coalmine.testing import assert_private; r = np.random.default_rng(0); "
    code += "assert_private(lambda t: t + 9 * r.standard_normal(t.size), epsilon=1, dim=500, calls=20); "
    found = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"


def test_no_draw_of_ours_depends_on_default_rng_which_code_under_audit_may_replace(monkeypatch):
    rng, scores = np.random.default_rng(0), np.random.default_rng(1).normal(0, 1, (2, 60))
    claim = Claim(noise_multiplier=1.0, rounds=1, delta=1e-5)

    def audit():
        rng.bit_generator.state = np.random.PCG64(0).state
        with warnings.catch_warnings(action="ignore"):
            bound = assert_private(lambda total: total + rng.normal(0, 2, 200), noise_multiplier=2.0, dim=200).lower
        local = assert_locally_private(lambda x: x + rng.normal(0, 2, 100), noise_multiplier=2.0).lower
        moved = replay(lambda clients: np.sum(clients, axis=0), [np.ones(9)], clip_norm=1.0, noise_multiplier=None)
        return bound, local, moved.findings, check_claim(*scores, claim)

    expected = audit()
    monkeypatch.setattr(np.random, "default_rng", lambda: rng)  # which takes no seed
    assert audit() == expected
