"""Phrases, and their way into users' data."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.insertion import insert
from coalmine.methods.secret_sharer.phrase_file import read_canaries, write_canaries
from coalmine.methods.secret_sharer.phrases import (
    Configuration,
    Language,
    PhraseCanaries,
    draw_phrases,
    grid,
    random_suffixes,
)
from coalmine.simulation.data import generated_text, load
from coalmine.simulation.data.appended import Appended
from coalmine.simulation.data.vocabulary import BEGIN, END, PAD, Vocabulary
from federations import federation, texts

WORDS = Vocabulary(entries=["<pad>", "<begin>", "<end>", "<unknown>", *(f"w{i}" for i in range(96))])


def phrases(data, p_u=(0.2, 0.6), p_e=(0.3, 1.0), **settings):
    return draw_phrases(Language.of(data), configurations=grid(p_u, p_e), **settings)


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
    drawn = phrases(users, each=7, twins=2)
    assert len(drawn) == 4 * 7 * 3
    for i in range(4):
        assert drawn.planted[drawn.which == i].sum() == 7
    flips = phrases(users, each=200, design="coin-flips")
    assert abs(flips.planted.sum() - 800) < 5 * 20  # five standard deviations


def test_configurations_are_ordered_by_insertions_then_by_users():
    order = [(c.p_u, c.p_e) for c in grid([0.1, 0.01], [1.0, 0.1])]
    assert order == [(0.01, 0.1), (0.01, 1.0), (0.1, 0.1), (0.1, 1.0)]


@given(seed=st.integers(0, 10**6), p_u=st.floats(0, 1), p_e=st.floats(0, 1))
def test_the_books_are_what_a_look_at_every_example_says(seed, p_u, p_e):
    data = texts([4, 1, 7, 3, 9], positions=7, tokens=40, seed=1)
    drawn = draw_phrases(
        Language.of(data), configurations=[Configuration(p_u, p_e), Configuration(0.5, 0.5)], each=2, seed=seed
    )
    insertion = insert(data, drawn)
    rows = Language.of(data).rows(drawn.phrases, 7)
    books = []
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
        books += [(canary, user, held[canary]) for canary in np.flatnonzero(held)]
    assert [list(map(int, entry)) for entry in sorted(books)] == insertion.books.tolist()
    assert insertion.copies.sum() == sum(times for _, _, times in books)
    assert np.array_equal(insertion.users, np.bincount([c for c, _, _ in books], minlength=len(drawn)))
    assert insertion.copies[~drawn.planted].sum() == 0


def test_shares_of_users_and_examples_are_poisson(users):
    big = texts([20] * 2000, positions=6, tokens=300)
    drawn = draw_phrases(Language.of(big), configurations=[Configuration(0.05, 0.25)], each=8, twins=0)
    insertion = insert(big, drawn)
    # a sharer without a copy (0.75^20 = 0.3%) is no holder
    expected = 2000 * 0.05 * (1 - 0.75**20)
    assert np.all(np.abs(insertion.users - expected) < 5 * (2000 * 0.05 * 0.95) ** 0.5)
    times = insertion.books[:, 2]
    # several canaries may claim an example, which costs each a little
    assert abs(times.mean() - 5) < 0.5
    assert abs(times.var() - 20 * 0.25 * 0.75) < 1
    everything = insert(big, draw_phrases(Language.of(big), configurations=[Configuration(1, 1)], each=1, twins=0))
    assert everything.copies.tolist() == [40_000]
    nothing = insert(big, draw_phrases(Language.of(big), configurations=[Configuration(0, 1)], each=1, twins=0))
    assert nothing.copies.tolist() == [0]


def test_a_canary_has_the_same_sharers_whatever_else_is_planted(users):
    alone = draw_phrases(Language.of(users), configurations=[Configuration(0.3, 0.2)], each=1, twins=0)
    both = PhraseCanaries(
        phrases=np.concatenate([alone.phrases, alone.phrases + 1 - 2 * (alone.phrases > 100)]),
        configurations=(Configuration(0.3, 0.2), Configuration(0.02, 0.1)),
        which=np.array([0, 1]),
        planted=np.array([True, True]),
        language=alone.language,
    )
    first, second = insert(users, alone), insert(users, both)
    mine = second.books[second.books[:, 0] == 0]
    assert set(mine[:, 1]) <= set(first.books[:, 1])
    assert first.copies[0] - second.copies[0] <= second.copies[1]


def test_the_data_is_not_copied_by_an_insertion():
    data = texts([100] * 400, positions=20, tokens=500)
    drawn = draw_phrases(Language.of(data), configurations=grid([0.01], [0.1]), each=5)
    tracemalloc.start()
    insertion = insert(data, drawn)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert insertion.data.inputs.first is data.inputs
    assert used < data.inputs.nbytes / 4
    before = data.pooled().inputs.copy()
    assert np.array_equal(data.pooled().inputs, before)


def test_shuffling_deals_every_example_to_synthetic_clients(users):
    drawn = phrases(users, each=3)
    insertion = insert(users, drawn)
    dealt = insertion.shuffled(seed=1)
    assert np.array_equal(dealt.copies, insertion.copies)
    assert np.array_equal(np.sort(dealt.data.indices), np.sort(insertion.data.indices))
    assert dealt.users[drawn.planted].sum() > insertion.users[drawn.planted].sum()


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
    found = random_suffixes(language, count=5000, length=4, seed=1)
    assert found.shape == (5000, 4)
    assert (found.min(), found.max()) == (4, 99)


def test_appended_arrays_read_as_their_concatenation():
    first, rest = np.arange(12).reshape(6, 2), np.arange(100, 106).reshape(3, 2)
    both, whole = Appended(first, rest), np.concatenate([first, rest])
    for index in (slice(2, 8), np.array([8, 0, 6]), 7, -1, slice(None), np.array([], dtype=int)):
        assert np.array_equal(both[index], whole[index])
    assert (both.shape, len(both), both.dtype) == (whole.shape, 9, whole.dtype)


def test_a_file_of_canaries_is_read_as_it_was_written(tmp_path, users):
    insertion = insert(users, phrases(users, each=2, seed=3))
    write_canaries(insertion, tmp_path / "canaries.json")
    found = read_canaries(tmp_path / "canaries.json")
    assert np.array_equal(found.canaries.phrases, insertion.phrases.phrases)
    assert np.array_equal(found.canaries.planted, insertion.phrases.planted)
    assert np.array_equal(found.users, insertion.users)
    assert found.canaries.configurations == insertion.phrases.configurations
    assert found.canaries.seed == 3


def entry(**more):
    return {"tokens": [4, 5, 6], "planted": True, **more}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"size": 50, "canaries": [entry(tokens=[4, 5, 50])]}, "the unknown word 50"),
        ({"size": 50, "canaries": [entry(tokens=[4, 1, 5])]}, "the unknown word 1"),
        ({"vocabulary": WORDS.to_json(), "canaries": [{"phrase": "w1 moon w3", "planted": True}]}, "'moon'"),
        ({"size": 50, "canaries": [entry(p_u=1.5)]}, r"p_u must be in \[0, 1\], got 1.5"),
        ({"size": 50, "canaries": [entry(), entry(tokens=[4, 5])]}, "equally many words"),
        ({"size": 50, "canaries": []}, "empty"),
        ({"size": 50, "canaries": [{"tokens": [4, 5]}]}, "planted"),
        ({"size": 50, "canaries": [{"phrase": "w1 w2", "planted": True}]}, "no vocabulary"),
        ({"size": 50, "words": [4, 60], "canaries": [entry()]}, "range within 0..50"),
        ({"size": 50, "version": 9, "canaries": [entry()]}, "version 9"),
        ({"size": 50, "canaries": [entry(planted=False)]}, "at least one canary must be planted"),
        ([], "holds no canaries"),
    ],
)
def test_wrong_files_of_canaries_are_refused(tmp_path, content, sentence):
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=sentence):
        read_canaries(path)


def test_phrases_in_words_are_looked_up(tmp_path):
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps({"vocabulary": WORDS.to_json(), "canaries": [{"phrase": "w1 w0 w3", "planted": True}]}))
    assert read_canaries(path).canaries.phrases.tolist() == [[5, 4, 7]]
    assert read_canaries(path).users is None


def test_files_that_are_no_text_or_not_there_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_canaries(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(InputError, match="not UTF-8"):
        read_canaries(tmp_path / "latin.json")
    (tmp_path / "cut.json").write_text('{"size": 50, "canar')
    with pytest.raises(InputError, match="not JSON"):
        read_canaries(tmp_path / "cut.json")


def test_a_text_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_bytes('{"user": "a", "text": "caf\xe9"}\n'.encode("latin-1"))
    with pytest.raises(InputError, match="line 1: not UTF-8 text"):
        load(path)


def test_an_empty_user_is_refused_by_name():
    data = texts([3, 2])
    with pytest.raises(InputError, match="client 'b' has no examples"):
        data.regrouped(bounds=np.array([[0, 3], [3, 3]]), names=["a", "b"], rows=None)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"length": 1}, "the length of a phrase"),
        ({"each": 0}, "canaries a configuration"),
        ({"design": "pairs"}, "fixed or coin-flips"),
        ({"design": "coin-flips", "twins": 2}, "one twin"),
        ({"configurations": []}, "at least one configuration"),
    ],
)
def test_wrong_settings_are_refused(users, settings, sentence):
    given = {"configurations": grid([0.1], [0.1])} | settings
    with pytest.raises(InputError, match=sentence):
        draw_phrases(Language.of(users), **given)


def test_a_vocabulary_smaller_than_needed_is_refused():
    with pytest.raises(InputError, match="a vocabulary of 7 words is smaller than needed"):
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
    with pytest.raises(InputError, match="5 words does not fit into examples of 3 positions"):
        insert(data, drawn)
    with pytest.raises(InputError, match="vocabulary of 60 entries, but the data has"):
        insert(users, drawn)
