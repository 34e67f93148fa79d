"""Noise from small seeds, at any places of a vector and any size; other noise is not taken for it."""

import numpy as np
import pytest

from coalmine.stats.exact_tests import NUMBERS, guess_seed


@pytest.mark.parametrize("places", [None, np.arange(30, 50), np.array([2, 3, 5, 7, 11, 13, 17, 63, 64, 99])])
@pytest.mark.parametrize("size", [-2.5, 1e-4])
def test_small_seeds_are_found_at_the_places_that_are_known(places, size):
    noise = size * np.random.default_rng(4095).standard_normal(100)
    guess = guess_seed(noise if places is None else noise[places], places)
    assert guess[0] == "numpy.random.default_rng(4095)"
    np.testing.assert_allclose(guess[1], noise[:NUMBERS], rtol=1e-5, atol=1e-6 * abs(size))


def test_other_noise_has_no_small_seed():
    noise = np.random.default_rng(4095).standard_normal(100)
    assert guess_seed(noise[1:]) is None  # at other places
    assert guess_seed(noise[:7]) is None  # too few to tell
    assert guess_seed(np.zeros(100)) is None
    assert guess_seed(noise + 0.01 * np.arange(100)) is None
