"""Users set aside for a reference model."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.evidence import set_aside
from coalmine.simulation.data import generated_text
from coalmine.simulation.data.splitting import balanced


@pytest.fixture(scope="module")
def splits():
    return generated_text(users=60, sentences=10, vocabulary_size=150, positions=8)


def test_users_are_set_aside_at_random(splits):
    aside = set_aside(splits.train, 0.5)[1]
    places = [splits.train.names.index(name) for name in aside.names]
    assert abs(np.mean(places) - (len(splits.train) - 1) / 2) < len(splits.train) / 6
    assert set_aside(splits.train, 0.5, seed=1)[1].names != aside.names


def test_users_set_aside_are_whole_users(splits):
    pieces = balanced(splits.train, 2)
    kept, aside = set_aside(pieces, 0.3)
    assert len(kept) + len(aside) == len(pieces)
    assert not {n.split("#")[0] for n in kept.names} & {n.split("#")[0] for n in aside.names}
    assert set_aside(pieces, 0.0) == (pieces, None)
    with pytest.raises(InputError, match="reference_share"):
        set_aside(pieces, 1.0)
