"""Texts as tokens: words, characters, vocabularies, and generated text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import DataWarning, InputError
from coalmine.simulation.data import Vocabulary, generated_text
from coalmine.simulation.data.splitting import SplitOptions
from coalmine.simulation.data.text import (
    MARKS,
    classification_splits,
    language_splits,
    made_up_word,
    tokenize_characters,
    tokenize_words,
    words_in,
)

pytestmark = pytest.mark.filterwarnings("ignore::coalmine.errors.DataWarning")


def corpus(*users):
    """Names of users, the user of each text, and the texts."""
    owners = np.repeat(np.arange(len(users)), [len(texts) for texts in users])
    return [f"u{i}" for i in range(len(users))], owners, [text for texts in users for text in texts]


def by_name(splits):
    """Each user's examples, whichever split they are in."""
    parts = [part for part in (splits.train, splits.test, splits.pool) if part is not None]
    return {name: client for part in parts for name, client in zip(part.names, part, strict=True)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's <url>, OK?", ["it's", "<url>", "ok"]),
        ("DON’T stop—ever…", ["don't", "stop", "ever"]),
        ("'quoted' o'clock 3.5 snake_case", ["quoted", "o'clock", "3", "5", "snake", "case"]),
        ("Füße, 東京", ["füße", "東京"]),
        (" ... \n", []),
    ],
)
def test_words_are_lower_case_and_keep_inner_apostrophes(text, words):
    assert words_in(text) == words


def test_a_vocabulary_orders_words_by_frequency_then_alphabet():
    words = Vocabulary.build(["b", "rare", "a", "the", "unseen"], [2, 1, 2, 9, 0], size=7)
    assert words.entries == (*MARKS, "the", "a", "b")
    assert words.lookup(words_in("The b rare")).tolist() == [4, 6, 3]
    assert words.decode([1, 4, 5, 3, 2, 0, 0]) == "the a <unknown>"
    assert words.ordinary == range(4, 7)


def test_a_text_cannot_spell_a_mark():
    splits = language_splits(
        tokenize_words(*corpus(*[["a <pad> <end> <url>"]] * 4)), SplitOptions(), level="words", positions=6
    )
    url, a = splits.train.vocabulary.lookup(["<url>", "a"]).tolist()
    assert splits.train.client(0).inputs.tolist() == [[1, a, 3, 3, url, 2]]


def test_a_vocabulary_survives_being_stored_as_json():
    words = Vocabulary.build(["été", 'a"b', "\n", "😀"], [4, 3, 2, 1], level="characters")
    back = Vocabulary.from_json(words.to_json(), "words.json")
    assert (back.entries, back.level) == (words.entries, words.level)
    for content in ([], {"level": "words"}, {"level": "words", "entries": [1]}):
        with pytest.raises(InputError, match=r"words\.json"):
            Vocabulary.from_json(content, "words.json")


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        (("a", "b"), {}, "must have <pad>"),
        (MARKS, {}, "then words"),
        ((*MARKS, "a", "a"), {}, "each once"),
    ],
)
def test_a_vocabulary_that_makes_no_sense_raises(entries, settings, message):
    with pytest.raises(InputError, match=message):
        Vocabulary(entries, **settings)


def test_a_vocabulary_has_room_for_its_marks():
    with pytest.raises(InputError, match="at least 5, got 4"):
        Vocabulary.build(["a"], [1], size=4)


def test_texts_are_cut_into_pieces_between_begin_and_end():
    splits = language_splits(
        tokenize_words(*corpus(["a b c d e", "a b c d"], ["a b c"], ["a"])),
        SplitOptions(test_fraction=0.3),
        level="words",
        positions=4,
    )
    vocabulary = splits.train.vocabulary
    a, b, c, d, e = vocabulary.lookup("abcde").tolist()
    examples = by_name(splits)["u0"]
    assert examples.inputs.tolist() == [[1, a, b, c], [1, e, 2, 0], [1, a, b, c]]
    assert examples.targets.tolist() == [[a, b, c, d], [e, 2, 0, 0], [a, b, c, d]]
    assert np.shares_memory(examples.inputs, examples.targets)
    assert splits.train.task.per_position
    assert splits.train.task.ignored == 0


def test_line_breaks_end_a_text():
    lines = tokenize_words(*corpus(["one two\nthree", "four"], ["five"]), by_line=True)
    assert lines.lengths.tolist() == [2, 1, 1, 1]
    assert lines.owners.tolist() == [0, 0, 0, 1]


@given(
    st.lists(st.lists(st.text("ab c", max_size=30), min_size=1, max_size=4), min_size=3, max_size=6), st.integers(2, 6)
)
def test_no_word_is_lost_or_doubled(users, positions):
    users = [*users, ["a b"], ["c c a"], ["b"]]
    splits = language_splits(tokenize_words(*corpus(*users)), SplitOptions(), level="words", positions=positions)
    vocabulary = splits.train.vocabulary
    clients = by_name(splits)
    for number, texts in enumerate(users):
        words = [word if word in vocabulary.entries else "<unknown>" for text in texts for word in words_in(text)]
        if not words:
            assert f"u{number}" not in clients
            continue
        client = clients[f"u{number}"]
        assert vocabulary.decode(client.targets.ravel().tolist()).split() == words
        assert ((client.targets > 0).sum(axis=1) >= 1).all()


@given(st.lists(st.text("xyz", max_size=25), min_size=3, max_size=6), st.integers(2, 6))
def test_every_character_but_the_first_is_predicted_once(texts, positions):
    users = [[text] for text in [*texts, "xyz", "zyx", "yyy"]]
    splits = language_splits(
        tokenize_characters(*corpus(*users)), SplitOptions(), level="characters", positions=positions
    )
    clients = by_name(splits)
    for number, (text,) in enumerate(users):
        if len(text) < 2:
            assert f"u{number}" not in clients
            continue
        client = clients[f"u{number}"]
        expected = "".join(c if c in splits.train.vocabulary.entries else "<unknown>" for c in text[1:])
        assert splits.train.vocabulary.decode(client.targets.ravel().tolist()) == expected
        assert (client.targets[:-1] > 0).all()


def test_a_users_texts_are_joined_by_line_breaks_at_the_level_of_characters():
    users = [["ab", "é"], ["ab"], ["ba"], ["bb"], ["aa"], ["ab"], ["ab"]]
    splits = language_splits(
        tokenize_characters(*corpus(*users)), SplitOptions(seed=1), level="characters", positions=10
    )
    assert "u0" in splits.train.names
    client = by_name(splits)["u0"]
    assert splits.train.vocabulary.decode(client.inputs[0].tolist()) == "ab\né"
    assert client.inputs.shape == (1, 10)


def test_the_vocabulary_knows_training_users_alone():
    users = [[f"common rare{i}"] for i in range(20)]
    splits = language_splits(
        tokenize_words(*corpus(*users)), SplitOptions(test_fraction=0.2, pool_fraction=0.2), level="words"
    )
    rare = {name.replace("u", "rare") for name in splits.train.names}
    assert set(splits.train.vocabulary.entries[4:]) == {"common", *rare}
    for part in (splits.test, splits.pool):
        assert (part.pooled().inputs[:, 2] == 3).all()
        assert part.vocabulary is splits.train.vocabulary


def test_a_vocabulary_can_be_kept_small():
    splits = language_splits(
        tokenize_words(*corpus(*[["a a a b b c"]] * 4)), SplitOptions(), level="words", vocabulary_size=6
    )
    assert splits.train.vocabulary.entries == (*MARKS, "a", "b")
    assert splits.train.task.classes == 6


@pytest.mark.parametrize("level", ["words", "characters"])
def test_texts_without_any_text_raise(level):
    empty = corpus([""], [""])
    tokenized = tokenize_words(*empty) if level == "words" else tokenize_characters(*empty)
    with pytest.raises(InputError, match="nothing to learn from"):
        language_splits(tokenized, SplitOptions(), level=level)


@pytest.mark.parametrize("level", ["words", "characters"])
def test_users_without_any_text_are_left_out_with_a_warning(level):
    texts = corpus(["a b"], [""], ["c d"], [" " if level == "words" else "x"])
    tokenized = tokenize_words(*texts) if level == "words" else tokenize_characters(*texts)
    with pytest.warns(DataWarning, match="2 of 4 users have no text"):
        splits = language_splits(tokenized, SplitOptions(), level=level)
    assert sorted([*splits.train.names, *splits.test.names]) == ["u0", "u2"]


def test_texts_to_classify_are_cut_and_padded_in_front():
    tokenized = tokenize_words(*corpus(["a b c d", "!?"], ["a"], ["b b"]))
    splits = classification_splits(tokenized, np.array([1, 0, 1, 0]), SplitOptions(), positions=3)
    a, b, c = splits.train.vocabulary.lookup("abc").tolist()
    clients = by_name(splits)
    assert clients["u0"].inputs.tolist() == [[a, b, c], [0, 0, 3]]
    assert clients["u0"].targets.tolist() == [1, 0]
    assert clients["u2"].inputs.tolist() == [[0, b, b]]
    assert not splits.train.task.per_position
    assert splits.train.task.classes == 2


@pytest.mark.parametrize("positions", [0, 1, 2.5])
def test_positions_must_be_a_whole_number(positions):
    with pytest.raises(InputError, match="positions must"):
        language_splits(tokenize_words(*corpus(["a"], ["b"])), SplitOptions(), level="words", positions=positions)


def test_made_up_words_differ_and_can_be_said():
    words = [made_up_word(i) for i in range(30_000)]
    assert len(set(words)) == len(words)
    assert all(words_in(word) == [word] for word in words)
    assert len(made_up_word(4899)) == 4
    assert len(made_up_word(4900)) == 6


def test_generated_text_is_the_same_for_the_same_seed():
    first, second, other = (generated_text(users=20, sentences=5, split=SplitOptions(seed=seed)) for seed in (3, 3, 4))
    assert np.array_equal(first.train.inputs, second.train.inputs)
    assert first.train.vocabulary.entries == second.train.vocabulary.entries
    assert first.train.inputs.shape != other.train.inputs.shape or not np.array_equal(
        first.train.inputs, other.train.inputs
    )


def test_generated_text_has_the_size_asked_for():
    splits = generated_text(
        users=40, sentences=10, vocabulary_size=200, positions=12, split=SplitOptions(pool_fraction=0.1)
    )
    assert (len(splits.train), len(splits.test), len(splits.pool)) == (32, 4, 4)
    assert splits.train.task.input_shape == (12,)
    assert 150 < splits.train.task.classes <= 200
    assert generated_text(users=20, vocabulary_size=50, positions=6).train.task.classes <= 50
    assert splits.train.sizes.min() >= 5
    assert splits.train.sizes.max() <= 15
    # Every sentence begins with the mark and ends within its positions.
    pooled = splits.train.pooled()
    assert (pooled.inputs[:, 0] == 1).all()
    assert ((pooled.targets == 2).sum(axis=1) == 1).all()


def entropy(train, test, context, classes):
    """Cross-entropy in nats of counts given ``context``, smoothed toward the word frequencies."""
    words, contexts = train[0], context(*train)
    unigram = (np.bincount(words, minlength=classes) + 0.1) / (len(words) + 0.1 * classes)
    counts = np.zeros((max(contexts.max(), context(*test).max()) + 1, classes))
    np.add.at(counts, (contexts, words), 1)
    held_out = context(*test)
    chance = (counts[held_out, test[0]] + 10 * unigram[test[0]]) / (counts[held_out].sum(axis=1) + 10)
    return -np.log(chance).mean()


def test_generated_text_can_be_learned_from_words_before_and_better_from_further_back():
    splits = generated_text(users=200, vocabulary_size=150, split=SplitOptions(seed=1))

    def columns(part):
        # (target, last word, the word before it, the sentence's first word) wherever all are words or the end.
        inputs, targets = (array.astype(int) for array in (part.pooled().inputs, part.pooled().targets))
        real = targets[:, 2:] != 0
        first = np.repeat(inputs[:, 1:2], targets.shape[1] - 2, axis=1)
        return targets[:, 2:][real], inputs[:, 2:][real], inputs[:, 1:-1][real], first[real]

    train, test = columns(splits.train), columns(splits.test)
    classes = splits.train.task.classes
    none = entropy(train, test, lambda word, *_: np.zeros_like(word), classes)
    by_last = entropy(train, test, lambda _, last, *__: last, classes)
    two = entropy(train, test, lambda _, last, before, __: last * classes + before, classes)
    # Measured: 4.17, 2.99 and 2.87 nats.
    assert none - by_last > 0.8
    assert by_last - two > 0.05


def test_the_last_word_of_a_generated_sentence_agrees_with_the_first():
    splits = generated_text(users=100, split=SplitOptions(seed=2))
    examples = splits.train.pooled()
    ends = np.argmax(examples.targets == 2, axis=1)
    first, last = examples.inputs[:, 1], examples.inputs[np.arange(len(ends)), ends]
    usual = {word: np.bincount(last[first == word]).argmax() for word in np.unique(first)}
    agreeing = np.mean([usual[word] == end for word, end in zip(first, last, strict=True)])
    assert agreeing > 0.85
    assert len(set(usual.values())) == len(usual) == 16


@pytest.mark.parametrize(
    "settings",
    [{"users": 1}, {"sentences": 0}, {"vocabulary_size": 20}, {"vocabulary_size": 10**6}, {"positions": 3}],
)
def test_generated_text_rejects_invalid_sizes(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        generated_text(**settings)
