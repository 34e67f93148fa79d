"""User-level membership inference, and users set aside for a reference model."""

import numpy as np
import pytest

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.secret_sharer.evidence import set_aside, user_attack
from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid, insert
from coalmine.results.verdict import USER
from coalmine.simulation import SGD, CentralTraining, models
from coalmine.simulation.data import generated_text, load
from coalmine.simulation.data.splitting import balanced, iid


@pytest.fixture(scope="module")
def splits():
    return generated_text(users=60, sentences=10, vocabulary_size=150, positions=8)


def small(splits, seed=0):
    return models.build("word-lstm", splits.train.task, embedding=16, units=48, seed=seed)


def test_users_in_the_training_are_told_from_others(splits):
    few = splits.train.subset(range(12))
    training = CentralTraining(
        model=small(splits), data=few, rounds=6, steps=60, optimizer=SGD(learning_rate=1.0, momentum=0.8)
    )
    training.run()
    others = splits.train.subset(range(12, 40))
    result = user_attack(training.module(), members=few, nonmembers=others)
    assert result.scores.members.mean() > result.scores.observed.mean() + 1
    assert result.bound.epsilon > 0.3
    assert (result.unit, result.side_names) == (USER, ("trained on", "not trained on"))
    untrained = user_attack(small(splits), members=few, nonmembers=others)
    assert untrained.bound.epsilon == 0
    dealt = iid(few, 5)
    with pytest.raises(InputError, match="synthetic"):
        user_attack(small(splits), members=dealt, nonmembers=others)
    with pytest.raises(InputError, match="p_u"):
        user_attack(small(splits), members=few, nonmembers=others, without=range(12))

    # another user takes the place of whoever is left out: two neighbors away where a claim is for one less
    claim = Claim(epsilon=8.0, delta=1e-5)
    halved = user_attack(training.module(), members=few, nonmembers=others, claim=claim)
    assert halved.bound.epsilon == pytest.approx(result.bound.epsilon / 2, rel=1e-3)
    pieces = balanced(few, 5)
    owners = [name.split("#")[0] for name in pieces.names]
    most = max(owners.count(owner) for owner in owners)
    assert most > 1
    cut = user_attack(training.module(), members=pieces, nonmembers=others)
    assert cut.ceiling == pytest.approx(result.ceiling / most, rel=1e-3)


def test_an_untrained_model_tells_no_users_apart_whatever_became_canaries():
    """Means of the few examples that canaries leave vary more, which would pass for a leak."""
    splits = load("generated-text", vocabulary_size=150, positions=8, test_fraction=0.4)
    canaries = draw_phrases(Language.of(splits.train), configurations=grid([0.3], [0.9]), each=5)
    insertion = insert(splits.train, canaries)
    assert set(np.unique(insertion.holdings[:, 1])) <= set(insertion.sharers)
    untrained = models.build("word-lstm", splits.train.task, embedding=8, units=8)
    result = user_attack(untrained, members=insertion.data, nonmembers=splits.test, without=insertion.sharers)
    assert result.bound.epsilon == 0
    assert len(result.scores.members) == len(insertion.data) - len(insertion.sharers)


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
