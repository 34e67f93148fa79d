"""Generated text that needs no file: made-up words with topics, habits and a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coalmine.errors import InputError, check_count
from coalmine.simulation.data.federated import Splits
from coalmine.simulation.data.splitting import SplitOptions
from coalmine.simulation.data.text import MARKS, Tokenized, language_splits

if TYPE_CHECKING:
    from coalmine.arrays import Floats, Ints

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = tuple(c + v for c in _CONSONANTS for v in _VOWELS)
_TOPICS = 8
_SUCCESSORS = np.array([0.7, 0.2, 0.1])  # probabilities of a word's three usual successors
_P_SUCCESSOR, _P_FUNCTION = 0.6, 0.35
_P_HABIT, _P_AGREES, _P_FIRST_TOPIC = 0.7, 0.9, 0.8


def generated_text(
    *,
    users: int = 300,
    sentences: int = 40,
    vocabulary_size: int = 1000,
    positions: int = 20,
    split: SplitOptions | None = None,
) -> Splits:
    """Generate sentences by user as language data; the same ``split.seed`` gives the same text.

    A user has two topics and a favorite opening word; a sentence has one topic. Word frequencies are Zipfian. A
    function word is usually followed by one of three places in the *topic's* word list, so a model that remembers the
    topic beats any table of word pairs. The last word of a sentence agrees with its first.

    Args:
        users: Number of users.
        sentences: Mean number of sentences per user; actual numbers range from half to one and a half times as many.
        vocabulary_size: Size of the vocabulary including the four special tokens, 50 to 100,000.
        positions: Sequence length; a sentence with its end token fits into it.
        split: How users are split; its seed also determines the text.

    Raises:
        InputError: If a size is out of range.

    Example:
        >>> splits = generated_text(users=20, sentences=5, positions=8)
        >>> words = splits.train.vocabulary
        >>> words.decode(splits.train.client(0).inputs[0])
        'fize sena zegu tufe remu'
    """
    check_count("users", users, least=2)
    check_count("sentences", sentences)
    check_count("positions", positions, least=6)
    if not 50 <= vocabulary_size <= 100_000:
        raise InputError(f"vocabulary_size must be 50 to 100,000 for generated text, got {vocabulary_size}")
    split = split or SplitOptions()
    rng = np.random.default_rng([split.seed, 1])
    sizes = rng.integers((sentences + 1) // 2, sentences + sentences // 2, size=users, endpoint=True)
    owners = np.repeat(np.arange(users), sizes)
    lengths = rng.integers(max(3, positions // 2), positions - 1, size=len(owners), endpoint=True)
    words = vocabulary_size - len(MARKS)
    # Opening words come first in the vocabulary, and the closing word that agrees with each right after them all.
    openers = min(16, words // 12)
    favorites = rng.integers(openers, size=users)[owners]
    has_habit = rng.random(len(owners)) < _P_HABIT
    opening = np.where(has_habit, favorites, rng.integers(openers, size=len(owners)))
    body = _sentences(rng, owners, opening, 2 * openers, words, int(lengths.max()))
    agrees = rng.random(len(owners)) < _P_AGREES
    body[np.arange(len(owners)), lengths - 1] = openers + np.where(agrees, opening, rng.permutation(opening))
    tokenized = Tokenized(
        users=[f"user-{i}" for i in range(users)],
        owners=owners,
        lengths=lengths,
        ids=body[np.arange(body.shape[1]) < lengths[:, None]],
        words=[made_up_word(i) for i in range(words)],
    )
    return language_splits(tokenized, split, level="words", positions=positions, vocabulary_size=vocabulary_size)


def made_up_word(number: int) -> str:
    """Return a pronounceable word, a different one per number: two syllables for the first 4,900, then three."""
    base = len(_SYLLABLES)
    # A step that is coprime to the number of words visits each once, and keeps neighbors from looking alike.
    if number < base**2:
        number = number * 2903 % base**2
        return _SYLLABLES[number // base] + _SYLLABLES[number % base]
    number = (number - base**2) * 200_003 % base**3
    return _SYLLABLES[number // base**2] + _SYLLABLES[number // base % base] + _SYLLABLES[number % base]


def _sentences(rng: np.random.Generator, owners: Ints, opening: Ints, first: int, words: int, length: int) -> Ints:
    """Draw (sentences, length) words: function words from ``first`` on, then the content words of each topic."""
    count = len(owners)
    functions = max(6, (words - first) // 12)
    content = (words - first - functions) // _TOPICS
    function_shares, content_shares = _zipf(functions), _zipf(content)
    topics = rng.permuted(np.tile(np.arange(_TOPICS), (owners[-1] + 1, 1)), axis=1)
    topic = topics[owners, (rng.random(count) > _P_FIRST_TOPIC).astype(np.int64)]
    # Usual successors: of a function word, a place in the topic's word list; of any other word, a function word.
    after_function = rng.choice(content, size=(functions, 3), p=content_shares)
    after_other = rng.choice(functions, size=(words, 3), p=function_shares)
    text = np.zeros((count, length), dtype=np.int64)
    text[:, 0] = opening
    for step in range(1, length):
        last = text[:, step - 1]
        after_a_function = (last >= first) & (last < first + functions)
        successor = rng.choice(3, size=count, p=_SUCCESSORS)
        free_function = rng.random(count) < _P_FUNCTION
        follows = rng.random(count) < _P_SUCCESSOR
        is_function = np.where(follows, ~after_a_function, free_function)
        any_function = rng.choice(functions, size=count, p=function_shares)
        function = np.where(follows, after_other[last, successor], any_function)
        usual_place = after_function[np.where(after_a_function, last - first, 0), successor]
        place = np.where(follows, usual_place, rng.choice(content, size=count, p=content_shares))
        text[:, step] = first + np.where(is_function, function, functions + topic * content + place)
    return text


def _zipf(count: int) -> Floats:
    """Return Zipfian probabilities of ``count`` words."""
    weights = 1 / (np.arange(count) + 2.0)
    return np.asarray(weights / weights.sum())
