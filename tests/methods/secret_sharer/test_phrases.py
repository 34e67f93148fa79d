"""Phrases: uniform words, configurations, what they look like as examples, and who holds them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.phrases import (
    Configuration,
    Language,
    PhraseCanaries,
    draw_phrases,
    grid,
    insert,
)
from coalmine.simulation.data import generated_text, load
from coalmine.simulation.data.text import BEGIN, END, PAD
from federations import federation, texts


@pytest.fixture(scope="module")
def users():
    return generated_text(users=60, sentences=12, vocabulary_size=200, positions=10).train


def test_words_are_uniform_over_the_ordinary_vocabulary(users):
    language = Language.of(users)
    drawn = draw_phrases(language, configurations=grid([0.5], [0.5]), each=5000, twins=0).phrases
    counts = np.bincount(drawn.ravel(), minlength=language.size)
    assert counts[:4].sum() == 0
    expected = drawn.size / len(language.words)
    chi = ((counts[4:] - expected) ** 2 / expected).sum()
    freedom = len(language.words) - 1
    assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5  # false alarms: one in a million


def test_no_phrase_is_drawn_twice_and_the_same_seed_gives_the_same():
    data = texts([3, 3], positions=6, tokens=14)
    few = draw_phrases(Language.of(data), configurations=grid([0.5], [0.5]), each=10, length=4, seed=5)
    assert len(np.unique(few.phrases, axis=0)) == len(few)
    again = draw_phrases(Language.of(data), configurations=grid([0.5], [0.5]), each=10, length=4, seed=5)
    other = draw_phrases(Language.of(data), configurations=grid([0.5], [0.5]), each=10, length=4, seed=6)
    assert np.array_equal(few.phrases, again.phrases)
    assert not np.array_equal(few.phrases, other.phrases)


def test_every_configuration_has_its_canaries_and_their_twins(users):
    drawn = draw_phrases(Language.of(users), configurations=grid([0.2, 0.6], [0.3, 1.0]), each=7, twins=2)
    assert len(drawn) == 4 * 7 * 3
    for i in range(4):
        assert drawn.inserted[drawn.configuration_index == i].sum() == 7
    flips = draw_phrases(Language.of(users), configurations=grid([0.2, 0.6], [0.3, 1.0]), each=200, design="coin-flips")
    assert abs(flips.inserted.sum() - 800) < 5 * 20  # five standard deviations


def test_configurations_are_ordered_by_insertions_then_by_users():
    order = [(c.p_u, c.p_e) for c in grid([0.1, 0.01], [1.0, 0.1])]
    assert order == [(0.01, 0.1), (0.01, 1.0), (0.1, 0.1), (0.1, 1.0)]


def test_an_example_with_a_phrase_begins_ends_and_is_padded():
    data = texts([3], positions=8, tokens=60)
    inputs, targets = Language.of(data).rows(np.array([[10, 11, 12]]), 8)
    assert inputs.tolist() == [[BEGIN, 10, 11, 12, END, PAD, PAD, PAD]]
    assert targets.tolist() == [[10, 11, 12, END, PAD, PAD, PAD, PAD]]
    inputs, targets = Language.of(data).rows(np.array([[10, 11, 12]]), 3)
    assert (inputs.tolist(), targets.tolist()) == ([[BEGIN, 10, 11]], [[10, 11, 12]])


def test_characters_have_no_begin_mark(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"user": f"u{i}", "text": "abcdefghij" * 9}) for i in range(4)))
    data = load(path, level="characters", positions=8).train
    language = Language.of(data)
    assert language.context == ()
    inputs, _ = language.rows(np.array([[5, 6, 7]]), 8)
    assert inputs[0, :3].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"length": 1}, "length"),
        ({"each": 0}, "each"),
        ({"design": "pairs"}, "fixed or coin-flips"),
        ({"design": "coin-flips", "twins": 2}, "twins"),
        ({"configurations": []}, "at least one canary"),
    ],
)
def test_wrong_settings_are_refused(users, settings, sentence):
    arguments = {"configurations": grid([0.1], [0.1])} | settings
    with pytest.raises(InputError, match=sentence):
        draw_phrases(Language.of(users), **arguments)


def test_a_vocabulary_smaller_than_needed_is_refused():
    with pytest.raises(InputError, match="7 words"):
        draw_phrases(Language.of(texts([3], tokens=11)), configurations=grid([0.1], [0.1]), each=10, length=3)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "a"])
@pytest.mark.parametrize("name", ["p_u", "p_e"])
def test_probabilities_outside_0_and_1_are_refused(name, wrong):
    with pytest.raises(InputError, match=name):
        Configuration(**({"p_u": 0.5, "p_e": 0.5} | {name: wrong}))


def test_data_that_is_no_text_and_phrases_that_do_not_fit_are_refused(users):
    with pytest.raises(InputError, match="next token"):
        Language.of(federation([2, 3]))
    data = texts([3], positions=3, tokens=60)
    drawn = draw_phrases(Language.of(data), configurations=grid([1], [1]), each=1)
    with pytest.raises(InputError, match=r"5 words .* 3 positions"):
        insert(data, drawn)
    with pytest.raises(InputError, match=r"60 entries.* 188"):
        insert(users, drawn)


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
    assert [[int(canary), user] for canary, user, _ in sorted(holdings)] == insertion.holdings.tolist()
    copies = np.bincount([c for c, _, _ in holdings], [times for _, _, times in holdings], minlength=len(drawn))
    assert np.array_equal(insertion.copies, copies)
    assert np.array_equal(insertion.users, np.bincount([c for c, _, _ in holdings], minlength=len(drawn)))
    assert insertion.copies[~drawn.inserted].sum() == 0


def test_shares_of_users_and_examples_are_poisson(users):
    big = texts([20] * 2000, positions=6, tokens=300)
    drawn = draw_phrases(Language.of(big), configurations=[Configuration(0.05, 0.25)], each=8, twins=0)
    insertion = insert(big, drawn)
    # a sharer without a copy (0.75^20 = 0.3%) is no holder
    expected = 2000 * 0.05 * (1 - 0.75**20)
    assert np.all(np.abs(insertion.users - expected) < 5 * (2000 * 0.05 * 0.95) ** 0.5)
    # several canaries may select an example, which costs each a little
    assert np.all(np.abs(insertion.copies / insertion.users - 5) < 0.8)
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


def test_an_example_that_several_canaries_select_goes_to_each_with_equal_probability():
    # Exact shares: of three canaries, two select every example and one every other. Five standard errors: a false alarm
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
