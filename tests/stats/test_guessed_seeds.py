"""Noise from small seeds, at any places of a vector and beside a signal; other noise is not taken for it."""

import numpy as np
import pytest
from scipy import stats

from coalmine.stats.exact_tests import NUMBERS, SeedGuess, best_seed


@pytest.mark.parametrize("places", [None, np.arange(30, 50), np.array([2, 3, 5, 7, 11, 13, 17, 63, 64, 999])])
@pytest.mark.parametrize("size", [-2.5, 1e-4])
def test_small_seeds_are_found_at_the_places_that_are_known(places, size):
    noise = size * np.random.default_rng(4095).standard_normal(1000)
    guess = best_seed(noise if places is None else noise[places], places)
    assert guess.is_equal
    assert guess.name == "numpy.random.default_rng(4095)"
    np.testing.assert_allclose(guess.noise, noise[:NUMBERS], rtol=1e-5, atol=1e-6 * abs(size))


def test_a_small_seed_shows_beside_a_signal():
    """As in the update of a round, where what clients sent is added to the noise."""
    rng = np.random.default_rng([1, 2])
    signal = 0.5 * rng.standard_normal(NUMBERS)
    seeded = best_seed(2.0 * np.random.default_rng(3).standard_normal(NUMBERS) + signal)
    assert not seeded.is_equal
    assert seeded.name == "numpy.random.default_rng(3)"
    assert seeded.p_value(2.0) < 1e-30


def test_other_noise_has_no_small_seed():
    noise = np.random.default_rng(4095).standard_normal(100)
    assert not best_seed(noise[1:]).is_equal  # at other places
    assert not best_seed(noise + 0.01 * np.arange(100)).is_equal
    assert best_seed(noise[:7]) is None  # too few to tell
    assert best_seed(np.zeros(100)) is None


def test_secret_noise_is_taken_for_a_small_seed_at_the_stated_rate():
    """At 20%, of noise of the claimed size and few numbers: more than 19 of 60 have a probability below 1e-2."""
    rng = np.random.default_rng([7, 7])
    assert sum(best_seed(rng.standard_normal(12)).p_value(1.0) <= 0.2 for _ in range(60)) <= 19


def test_each_generator_is_found_by_its_name():
    noise = {
        "numpy.random.default_rng(11)": np.random.default_rng(11).standard_normal(60),
        "numpy.random.RandomState(11)": np.random.RandomState(11).standard_normal(60),
    }
    assert [best_seed(each).name for each in noise.values()] == list(noise)


def test_the_p_value_of_a_guess_is_that_of_what_it_leaves_for_all_that_were_tried():
    guess = SeedGuess("some", np.zeros(50), rest=40.0, length=8.0, compared=50, tries=3)
    assert guess.p_value(2.0) == pytest.approx(3 * stats.chi2.cdf(10.0, 49), rel=1e-9)
    assert guess.p_value(0.9) == pytest.approx(min(1.0, 3 * stats.chi2.cdf(40 / 0.81, 49)), rel=1e-9)
