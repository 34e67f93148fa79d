"""ε of Gaussian mechanisms and between Gaussians."""

import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.stats import epsilon_gdp, sigma_gaussian
from coalmine.stats.gaussian import threshold_epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [
        (0.5, 1e-5, 7.03182667558),
        (1, 1e-5, 3.73063163482),
        (3, 1e-6, 1.54386141778),
        (10, 1e-7, 0.579576961418),
        (10, 1e-5, 0.499888619709),
    ],
)
def test_sigma_is_balle_and_wangs(epsilon, delta, sigma):
    assert sigma_gaussian(epsilon, delta) == pytest.approx(sigma, rel=1e-11)


@pytest.mark.parametrize(
    ("sigma", "delta", "epsilon"),
    [(1, 1e-5, 4.377178096), (0.5, 1e-5, 9.997256146), (2, 1e-5, 1.993091404), (1, 0.01, 2.31778904)],
)
def test_epsilon_of_the_gaussian_mechanism(sigma, delta, epsilon):
    assert float(epsilon_gdp(1 / sigma, delta)) == pytest.approx(epsilon, abs=1e-9)


@given(sigma=st.floats(0.05, 20), log_delta=st.floats(-40, -2))
def test_epsilon_agrees_with_dp_accounting(sigma, log_delta):
    delta = math.exp(log_delta)
    ours, theirs = float(epsilon_gdp(1 / sigma, delta)), dp_accounting.get_epsilon_gaussian(sigma, delta)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)


@given(sigma=st.floats(0.01, 50), log_delta=st.floats(-60, -2))
def test_sigma_inverts_epsilon(sigma, log_delta):
    delta = math.exp(log_delta)
    epsilon = float(epsilon_gdp(1 / sigma, delta))
    if epsilon > 1e-3:
        assert sigma_gaussian(epsilon, delta) == pytest.approx(sigma, rel=1e-8)


@pytest.mark.parametrize(
    ("mu", "std", "delta", "epsilon"),
    [
        (1, 1, 1e-6, 4.88655412),
        (1, 1.05, 1e-6, 6.14881963),
        (1, 0.95, 1e-6, 6.52744584),
        (0.2367, 1.02, 1e-6, 1.38834529),
        (2, 1.5, 1e-5, 24.955564),
    ],
)
def test_epsilon_by_thresholds_has_its_known_values(mu, std, delta, epsilon):
    assert float(threshold_epsilon(0, 1, mu, std, delta)) == pytest.approx(epsilon, abs=1e-6)


def test_thresholds_between_equal_means_have_their_known_epsilon():
    assert float(threshold_epsilon(0, 1, 0, 1.05, 1e-6)) == pytest.approx(0.872240396, abs=1e-9)


def test_the_one_shot_papers_vacuous_epsilon_is_computed_without_overflow():
    # 51,300 in Table 3 of the one-shot paper: nothing overflows on the way there.
    assert float(epsilon_gdp(1 / 0.003, 1e-6)) == pytest.approx(57139.037, rel=1e-6)
    assert float(threshold_epsilon(0, 1, 300, 1.05, 1e-6)) > 46000


@given(
    mu=st.floats(-4, 4),
    std=st.floats(0.3, 3),
    shift=st.floats(-100, 100),
    scale=st.floats(0.01, 100),
)
def test_epsilon_is_symmetric_and_free_of_location_and_scale(mu, std, shift, scale):
    epsilon = float(threshold_epsilon(0, 1, mu, std, 1e-4))
    assert float(threshold_epsilon(mu, std, 0, 1, 1e-4)) == pytest.approx(epsilon, rel=1e-6, abs=1e-6)
    moved = threshold_epsilon(shift, scale, shift + scale * mu, scale * std, 1e-4)
    assert float(moved) == pytest.approx(epsilon, rel=1e-5, abs=1e-5)


def test_limits():
    assert epsilon_gdp(math.inf, 1e-5) == math.inf
    assert epsilon_gdp(1 / 1, 0) == math.inf
    assert epsilon_gdp(1 / 1e9, 1e-5) == 0
    assert epsilon_gdp(0, 0) == 0
    for far in (1.05e150, 1e160):
        assert threshold_epsilon(0, 1, far, 1, 1e-5) == math.inf
        assert threshold_epsilon(0, 1, 0, far, 1e-5) == math.inf
        assert threshold_epsilon(0, far, 0, 1, 1e-5) == math.inf
    assert sigma_gaussian(math.inf, 1e-5) == 0
    assert sigma_gaussian(1, 0) == math.inf
    # The narrower Gaussian has a bounded likelihood ratio over the wider one, but not the other way round.
    assert threshold_epsilon(0, 1, 0, 2, 0) == math.inf


def test_arrays_are_elementwise():
    mus = np.array([[0.5, 1.0], [2.0, 3.0]])
    together = epsilon_gdp(mus, 1e-5)
    assert together.shape == (2, 2)
    assert together[1, 0] == pytest.approx(float(epsilon_gdp(2.0, 1e-5)), rel=1e-12)


@pytest.mark.parametrize("call", [lambda: epsilon_gdp(math.nan, 1e-5), lambda: sigma_gaussian(-1, 1e-5)])
def test_negative_parameters_raise(call):
    with pytest.raises(InputError, match=r"got (-1|NaN)"):
        call()
