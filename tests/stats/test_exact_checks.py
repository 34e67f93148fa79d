"""Tests for missing noise and for who took part, against SciPy's distributions and exact fractions."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.stats.exact_tests import (
    LEAST_P_VALUE,
    energy_p_value,
    near_zero_p_value,
    noise_at_most,
    rate_p_value,
    repeated_size_gain,
)

# Noise


def test_energies_have_the_chi_squared_distribution():
    energies, dimensions = np.array([0.5, 4.0, 30.0])[:, None], np.array([1.0, 2.0, 10.0, 25.0])
    np.testing.assert_allclose(
        energy_p_value(energies, dimensions), stats.chi2.cdf(energies, dimensions), rtol=1e-12, atol=0
    )
    # Two dimensions have a closed form.
    assert float(energy_p_value(3.0, 2)) == pytest.approx(1 - math.exp(-1.5), rel=1e-14)


def test_no_energy_is_the_least_p_value_and_no_dimensions_are_no_evidence():
    assert energy_p_value([0.0, -1e-9], 5).tolist() == [LEAST_P_VALUE] * 2
    assert energy_p_value([0.0, 0.7, 3.0], 0).tolist() == [1.0] * 3


@pytest.mark.parametrize(("energy", "dimensions", "alpha"), [(0.3, 1, 0.05), (4.0, 2, 0.2), (90.0, 1000, 0.01)])
def test_the_largest_share_of_the_noise_is_where_the_energy_has_probability_alpha(energy, dimensions, alpha):
    share = noise_at_most(energy, dimensions, alpha)
    assert stats.chi2.cdf(energy / share**2, dimensions) == pytest.approx(alpha, rel=1e-9)


@pytest.mark.parametrize("width", [0.1, 1.0, 3.0])
def test_numbers_near_zero_are_a_binomial_tail(width):
    chance = stats.norm.cdf(width) - stats.norm.cdf(-width)
    for total in range(5):
        for count in range(total + 1):
            outcomes = (o for o in itertools.product([0, 1], repeat=total) if sum(o) >= count)
            exact = sum(math.prod(chance if near else 1 - chance for near in outcome) for outcome in outcomes)
            assert float(near_zero_p_value(count, total, width)) == pytest.approx(exact, rel=1e-12)
    assert float(near_zero_p_value(500, 500, 1e-3)) == LEAST_P_VALUE
    assert near_zero_p_value([0, 1], [3, 3], width)[0] == 1.0


# Participation


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("trials", [1, 2, 7, 40])
def test_p_values_of_rates_are_one_over_a_capital_that_is_fair(trials, rate):
    """The capital is an integral over larger rates. It is fair at the claimed rate, and loses at smaller ones."""

    def weight(r, hits, misses):
        return r ** (hits - 0.5) * (1 - r) ** (misses - 0.5)

    prior = integrate.quad(weight, rate, 1, args=(0, 0))[0]
    capitals = np.array(
        [
            integrate.quad(weight, rate, 1, args=(hits, trials - hits))[0]
            / (prior * rate**hits * (1 - rate) ** (trials - hits))
            for hits in range(trials + 1)
        ]
    )
    assert stats.binom.pmf(np.arange(trials + 1), trials, rate) @ capitals == pytest.approx(1, rel=1e-6)
    assert stats.binom.pmf(np.arange(trials + 1), trials, 0.8 * rate) @ capitals < 1
    for hits, capital in enumerate(capitals):
        expected = min(1.0, 1 / capital) if hits else 1.0
        assert rate_p_value(hits, trials, rate) == pytest.approx(expected, rel=1e-6)


def test_a_rate_of_zero_is_refuted_by_one_exception_and_one_by_none():
    assert rate_p_value(1, 5, 0.0) == rate_p_value(5, 5, 0.0) == LEAST_P_VALUE
    assert rate_p_value(0, 5, 0.0) == rate_p_value(5, 5, 1.0) == rate_p_value(0, 5, 1.0) == 1.0
    assert rate_p_value(0, 0, 0.5) == rate_p_value(0, 50, 0.5) == 1.0
    assert rate_p_value(2000, 2000, 0.5) == LEAST_P_VALUE


@pytest.mark.parametrize(("population", "rate"), [(6, 0.3), (9, 0.5), (1, 0.9), (7, 0.25)])
def test_bets_on_repeated_sizes_pay_nine_tenths_over_the_largest_chance_and_are_never_favorable(population, rate):
    rng, sizes = np.random.default_rng(0), np.arange(population + 1)
    for before in sizes:
        gains = [repeated_size_gain(size, before, population, rate) for size in sizes]
        largest = max(stats.binom.pmf(before, n, rate) for n in sizes)  # n clients come at the whole rate
        assert gains[before] == pytest.approx(math.log(0.1 + 0.9 / largest))
        assert [gain for size, gain in enumerate(gains) if size != before] == [
            pytest.approx(math.log(0.1))
        ] * population
        for _ in range(20):  # any probabilities up to the rate
            chances = np.ones(1)
            for probability in rate * rng.beta(0.3, 0.3, population):
                chances = np.convolve(chances, [1 - probability, probability])
            assert chances @ np.exp(gains) <= 1 + 1e-9


def test_bets_on_repeated_sizes_are_lost_at_rates_that_leave_no_chance_and_limited_where_it_is_tiny():
    for rate in (0.0, 1.0):
        assert repeated_size_gain(4, 4, 4, rate) == pytest.approx(math.log(0.1))
    assert repeated_size_gain(5000, 5000, 5000, 0.5) == pytest.approx(600 + math.log(0.9))
