"""The layers of a model: what places are called, and numbers for each tensor."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.layers import Layers

LAYERS = Layers.of({"weight": 40, "bias": 10, "scale": ()})


@pytest.mark.parametrize(
    ("places", "name"),
    [
        (range(40, 50), ("bias", False)),
        ([50], ("scale", False)),
        ([*range(40), 50], ("weight and scale", True)),
        (range(42, 45), ("coordinates 2–4 of bias", True)),
        ([42], ("coordinate 2 of bias", False)),
        (range(38, 43), ("coordinates 38–42", True)),
        ([1, 2, 7], ("3 coordinates of weight, such as 1, 2 and 7,", True)),
        ([1, 2, 7, 50], ("4 coordinates, such as 1, 2 and 7,", True)),
        (range(1, 40, 3), ("every 3rd coordinate of weight, from coordinate 1 on,", False)),
        (range(1, 51, 2), ("every second coordinate, from coordinate 1 on,", False)),
        ([40, 42, 45, 48], ("4 coordinates of bias, such as 0, 2 and 5,", True)),
    ],
)
def test_places_have_names(places, name):
    assert LAYERS.name_of(np.array(places)) == name


def test_the_name_of_the_only_tensor_is_left_out():
    assert Layers.of({"output": 9}).name_of(np.array([3])) == ("coordinate 3", False)
    assert Layers({}).name_of(np.arange(3, 6), what="call") == ("calls 3–5", True)


def test_stretches_are_counted_among_the_places_that_were_looked_at():
    seen = np.arange(0, 1000, 10)
    assert Layers({}).name_of(seen[3:6], seen) == ("coordinates 30–50", True)
    assert Layers({}).name_of(seen[[0, 1, 3, 9, 20]], seen) == ("5 of 100 coordinates, such as 0, 10 and 30,", True)


def test_numbers_of_tensors_are_spread_over_their_parameters():
    numbers = LAYERS.spread({"weight": 1.0, "scale": 3.0, "bias": 2.0}, "noise")
    assert numbers.tolist() == [1.0] * 40 + [2.0] * 10 + [3.0]
    for wrong, words in [
        ({"weight": 1.0, "bias": 2.0}, "scale"),
        ({"weight": 1.0, "bias": 2.0, "scale": 0.0}, "noise of scale"),
        ({"weight": 1.0, "bias": 2.0, "scale": 1.0, "biass": 1.0}, "biass"),
    ]:
        with pytest.raises(InputError, match=words):
            LAYERS.spread(wrong, "noise")
