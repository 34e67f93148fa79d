"""Insertion of phrases into users' data."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.methods.secret_sharer.insertion import insert
from coalmine.methods.secret_sharer.phrases import Configuration, Language, PhraseCanaries, draw_phrases, grid
from coalmine.simulation.data import generated_text
from federations import texts


@pytest.fixture(scope="module")
def users():
    return generated_text(users=60, sentences=12, vocabulary_size=200, positions=10).train


@given(seed=st.integers(0, 10**6), p_u=st.floats(0, 1), p_e=st.floats(0, 1))
def test_the_holdings_are_what_a_look_at_every_example_says(seed, p_u, p_e):
    data = texts([4, 1, 7, 3, 9], positions=7, tokens=40, seed=1)
    drawn = draw_phrases(
        Language.of(data), configurations=[Configuration(p_u, p_e), Configuration(0.5, 0.5)], each=2, seed=seed
    )
    insertion = insert(data, drawn)
    rows = Language.of(data).rows(drawn.phrases, 7)
    holdings = []
    for user in range(len(data)):
        before, after = data.client(user), insertion.data.client(user)
        assert len(before) == len(after)
        held = np.zeros(len(drawn), dtype=int)
        for i in range(len(before)):
            same = np.flatnonzero((rows[0] == after.inputs[i]).all(axis=1) & (rows[1] == after.targets[i]).all(axis=1))
            if len(same):
                held[same[0]] += 1
            else:
                assert np.array_equal(before.inputs[i], after.inputs[i])
                assert np.array_equal(before.targets[i], after.targets[i])
        holdings += [(canary, user, held[canary]) for canary in np.flatnonzero(held)]
    assert [list(map(int, entry)) for entry in sorted(holdings)] == insertion.holdings.tolist()
    assert insertion.copies.sum() == sum(times for _, _, times in holdings)
    assert np.array_equal(insertion.users, np.bincount([c for c, _, _ in holdings], minlength=len(drawn)))
    assert insertion.copies[~drawn.inserted].sum() == 0


def test_shares_of_users_and_examples_are_poisson(users):
    big = texts([20] * 2000, positions=6, tokens=300)
    drawn = draw_phrases(Language.of(big), configurations=[Configuration(0.05, 0.25)], each=8, twins=0)
    insertion = insert(big, drawn)
    # a sharer without a copy (0.75^20 = 0.3%) is no holder
    expected = 2000 * 0.05 * (1 - 0.75**20)
    assert np.all(np.abs(insertion.users - expected) < 5 * (2000 * 0.05 * 0.95) ** 0.5)
    times = insertion.holdings[:, 2]
    # several canaries may claim an example, which costs each a little
    assert abs(times.mean() - 5) < 0.5
    assert abs(times.var() - 20 * 0.25 * 0.75) < 1
    everything = insert(big, draw_phrases(Language.of(big), configurations=[Configuration(1, 1)], each=1, twins=0))
    assert everything.copies.tolist() == [40_000]
    nothing = insert(big, draw_phrases(Language.of(big), configurations=[Configuration(0, 1)], each=1, twins=0))
    assert nothing.copies.tolist() == [0]


def test_a_canary_has_the_same_sharers_whatever_else_is_inserted(users):
    alone = draw_phrases(Language.of(users), configurations=[Configuration(0.3, 0.2)], each=1, twins=0)
    both = PhraseCanaries(
        phrases=np.concatenate([alone.phrases, alone.phrases + 1 - 2 * (alone.phrases > 100)]),
        configurations=(Configuration(0.3, 0.2), Configuration(0.02, 0.1)),
        configuration_index=np.array([0, 1]),
        inserted=np.array([True, True]),
        language=alone.language,
    )
    first, second = insert(users, alone), insert(users, both)
    mine = second.holdings[second.holdings[:, 0] == 0]
    assert set(mine[:, 1]) <= set(first.holdings[:, 1])
    assert first.copies[0] - second.copies[0] <= second.copies[1]


def test_shuffling_deals_every_example_to_synthetic_clients(users):
    drawn = draw_phrases(Language.of(users), configurations=grid([0.2, 0.6], [0.3, 1.0]), each=3)
    insertion = insert(users, drawn)
    dealt = insertion.shuffled(seed=1)
    assert np.array_equal(dealt.copies, insertion.copies)
    assert np.array_equal(np.sort(dealt.data.indices), np.sort(insertion.data.indices))
    assert dealt.users[drawn.inserted].sum() > insertion.users[drawn.inserted].sum()


def test_no_coin_flips_give_a_canary_to_more_users_than_stated(users):
    drawn = draw_phrases(Language.of(users), configurations=grid([0.1, 0.5], [0.1, 1.0]), each=2)
    stated, dealt = insert(users, drawn).most_users, insert(users, drawn).shuffled(seed=4).most_users
    rng = np.random.default_rng(0)
    largest, largest_dealt = 0, 0
    for _ in range(20):
        inserted = rng.random(len(drawn)) < 0.5
        inserted[0] = True
        insertion = insert(users, replace(drawn, inserted=inserted))
        assert insertion.most_users == stated
        largest = max(largest, insertion.users.max())
        largest_dealt = max(largest_dealt, insertion.shuffled(seed=4).users.max())
    assert largest <= stated
    assert largest_dealt <= dealt
    alone = replace(drawn, inserted=np.arange(len(drawn)) == np.argmax(insert(users, drawn).users))
    assert insert(users, alone).users.max() <= stated


def test_an_example_that_several_canaries_claim_goes_to_each_with_equal_probability():
    # Exact shares: of three canaries, two claim every example and one every other. Five standard errors: a false alarm
    # in one of 500,000 runs with other seeds.
    data = texts([50] * 300, positions=6, tokens=300)
    always, half = Configuration(1.0, 1.0), Configuration(1.0, 0.5)
    language = Language.of(data)
    two = draw_phrases(language, configurations=[always], each=2, twins=0)
    three = draw_phrases(language, configurations=[always, half], each=2, twins=0)
    three = replace(three, inserted=np.array([True, True, True, False]))
    for drawn, shares in [(two, (1 / 2, 1 / 2)), (three, (5 / 12, 5 / 12, 1 / 6, 0.0))]:
        copies = insert(data, drawn).copies
        assert copies.sum() == 15_000
        for count, share in zip(copies, shares, strict=True):
            assert abs(count - 15_000 * share) <= 5 * math.sqrt(15_000 * share * (1 - share))
