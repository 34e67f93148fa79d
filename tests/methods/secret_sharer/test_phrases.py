"""Phrases: uniform words, configurations, and what they look like as examples."""

import json

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.insertion import insert
from coalmine.methods.secret_sharer.phrases import Configuration, Language, draw_phrases, grid, random_suffixes
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


def test_references_are_uniform_words_of_the_suffix():
    language = Language(size=100, words=range(4, 100))
    suffixes = random_suffixes(language, count=5000, length=4, seed=1)
    assert suffixes.shape == (5000, 4)
    assert (suffixes.min(), suffixes.max()) == (4, 99)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"length": 1}, "length"),
        ({"each": 0}, "each"),
        ({"design": "pairs"}, "fixed or coin-flips"),
        ({"design": "coin-flips", "twins": 2}, "twins"),
        ({"configurations": []}, "at least one configuration"),
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
