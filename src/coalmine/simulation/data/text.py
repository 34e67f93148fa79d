"""Texts by user as arrays of tokens, with a vocabulary from training users only; and text that is generated."""

from __future__ import annotations

import re
import warnings
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.arrays import Array, Floats, Ints
from coalmine.errors import DataWarning, InputError, check_count
from coalmine.seeds import default_rng
from coalmine.simulation.data.federated import FederatedData, Splits, Task
from coalmine.simulation.data.splitting import SplitOptions, numbered_within, split_by_user

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
MARKS = ("<pad>", "<begin>", "<end>", "<unknown>")

Level = Literal["words", "characters"]

# Letters and digits with apostrophes inside (don't, o'clock), or a placeholder such as <url>.
_FIND_WORDS: Callable[[str], list[str]] = re.compile(r"<[a-z]+>|[^\W_]+(?:'[^\W_]+)*").findall


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation: "It's <url>, OK?" gives it's, <url>, ok."""
    return _FIND_WORDS(text.lower().replace("’", "'"))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A fixed list of words or characters; the token id of an entry is its position in the list.

    Args:
        entries: The special tokens ``<pad>``, ``<begin>``, ``<end>``, ``<unknown>``, then words or characters.
        level: ``"words"`` or ``"characters"``.

    Raises:
        InputError: If special tokens are missing, if there is nothing else, or if an entry occurs twice.

    Example:
        >>> words = Vocabulary(("<pad>", "<begin>", "<end>", "<unknown>", "the", "cat"))
        >>> words.lookup(words_in("The cat sat")).tolist()
        [4, 5, 3]
        >>> words.decode([1, 4, 5, 2, 0])
        'the cat'
    """

    entries: Sequence[str]
    level: Level = "words"

    def __post_init__(self) -> None:
        entries = tuple(self.entries)
        object.__setattr__(self, "entries", entries)
        if entries[: len(MARKS)] != MARKS or len(entries) == len(MARKS) or len(set(entries)) != len(entries):
            raise InputError(
                f"a vocabulary must have {', '.join(MARKS)}, then words, each once, got {', '.join(entries[:5])}, …"
            )

    @classmethod
    def build(
        cls, words: Sequence[str], counts: ArrayLike, *, level: Level = "words", size: int | None = None
    ) -> Vocabulary:
        """Build a vocabulary of the most frequent words; ties are broken alphabetically.

        Args:
            words: Distinct words or characters.
            counts: How often training users use each, (words,). Words with a count of 0 are left out.
            level: ``"words"`` or ``"characters"``.
            size: Largest number of entries including the four special tokens; None for no limit.

        Raises:
            InputError: If ``size`` leaves no room for a word, or if no word has a positive count.
        """
        numbers = np.asarray(counts)
        if size is not None:
            check_count("the vocabulary's size", size, least=len(MARKS) + 1)
        # Ties by alphabet: the order in which texts are read must not decide who gets into the vocabulary.
        order = sorted(np.flatnonzero(numbers > 0).tolist(), key=lambda i: (-numbers[i], words[i]))
        kept = [words[i] for i in order if words[i] not in MARKS]
        room = None if size is None else size - len(MARKS)
        return cls(entries=(*MARKS, *kept[:room]), level=level)

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def _ids(self) -> dict[str, int]:
        # Without special tokens: a text that spells "<pad>" must not become padding.
        return dict(zip(self.entries[len(MARKS) :], self.ordinary, strict=True))

    @property
    def ordinary(self) -> range:
        """Token ids of words or characters, without special tokens."""
        return range(len(MARKS), len(self))

    def lookup(self, words: Sequence[str]) -> NDArray[Any]:
        """Return the token id of each word, ``<unknown>`` for those outside the vocabulary."""
        # Never uint8, which means pixels.
        dtype = np.int16 if len(self) <= 1 << 15 else np.int32
        return np.fromiter((self._ids.get(word, UNKNOWN) for word in words), dtype=dtype, count=len(words))

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of token ids; padding, begin and end are left out."""
        separator = "" if self.level == "characters" else " "
        return separator.join(self.entries[number] for number in numbers if number not in (PAD, BEGIN, END))

    def to_json(self) -> dict[str, Any]:
        """Return the vocabulary as an object that JSON can hold, for `from_json`."""
        return {"level": self.level, "entries": list(self.entries)}

    @classmethod
    def from_json(cls, content: Any, source: str) -> Vocabulary:
        """Return the vocabulary of an object that `to_json` made; ``source`` is named in errors."""
        try:
            return cls(entries=[str(entry) for entry in content["entries"]], level=content["level"])
        except (KeyError, TypeError, InputError) as error:
            raise InputError(f"{source} holds no vocabulary with level and entries: {error}") from error


_POSITIONS = {"words": 20, "characters": 80}
_POSITIONS_TO_CLASSIFY = 25
_VOCABULARY_SIZE = 10_000  # of words; all characters are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenized:
    """Texts as numbers, user by user.

    Args:
        users: Names of the users.
        owners: The user of each text, ascending.
        lengths: Number of tokens of each text: text i is the next ``lengths[i]`` of ``ids``.
        ids: Positions in ``words``.
        words: Distinct words or characters.
    """

    users: Sequence[str]
    owners: Ints
    lengths: Ints
    ids: Ints
    words: Sequence[str]

    def encoded(self, training_users: Ints, *, level: Level, size: int | None) -> tuple[Vocabulary, Array]:
        """Return the vocabulary of the training users, and all texts as token ids of it."""
        is_training = np.zeros(len(self.users), dtype=bool)
        is_training[training_users] = True
        ids = self.ids[np.repeat(is_training[self.owners], self.lengths)]
        counts = np.bincount(ids, minlength=len(self.words))
        vocabulary = Vocabulary.build(self.words, counts, level=level, size=size)
        return vocabulary, vocabulary.lookup(self.words)[self.ids]


def tokenize_words(users: Sequence[str], owners: Ints, texts: Sequence[str], *, by_line: bool = False) -> Tokenized:
    """Return the words of every text, or of every line of it, numbered in order of appearance."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new word gets the next number
    ids = array("i")
    lengths: list[int] = []
    lines_of: list[int] = []
    for text in texts:
        lines = text.split("\n") if by_line else [text]
        for line in lines:
            before = len(ids)
            ids.extend(map(numbers.__getitem__, words_in(line)))
            lengths.append(len(ids) - before)
        lines_of.append(len(lines))
    return Tokenized(
        users=users,
        owners=np.repeat(owners, lines_of),
        lengths=np.array(lengths, dtype=np.int64),
        ids=np.array(ids, dtype=np.int64),
        words=list(numbers),
    )


def tokenize_characters(users: Sequence[str], owners: Ints, texts: Sequence[str]) -> Tokenized:
    """Return the characters of every user, whose texts are joined by line breaks."""
    bounds = np.searchsorted(owners, np.arange(len(users) + 1)).tolist()
    # Joined, so that windows run across the texts of a user, as in LEAF.
    joined = ["\n".join(texts[start:stop]) for start, stop in pairwise(bounds)]
    codes = np.frombuffer("".join(joined).encode("utf-32-le", errors="replace"), dtype="<u4").astype(np.int64)
    # Renumber the code points that occur, in ascending order. A table is faster than np.unique on millions of codes.
    occurs = np.bincount(codes, minlength=1) > 0
    return Tokenized(
        users=users,
        owners=np.arange(len(users)),
        lengths=np.array([len(text) for text in joined], dtype=np.int64),
        ids=(np.cumsum(occurs) - 1)[codes],
        words=[chr(code) for code in np.flatnonzero(occurs).tolist()],
    )


def language_splits(
    tokenized: Tokenized,
    split: SplitOptions,
    *,
    level: Level,
    positions: int | None = None,
    vocabulary_size: int | None = None,
) -> Splits:
    """Return data for next-word or next-character prediction, with a target at each position.

    Words: each text is cut into pieces of at most ``positions`` words, each after a begin token; an end token follows
    where a text ends, if there is room. Characters: consecutive windows of ``positions`` characters, so that every
    character of a user except the first is predicted exactly once. Short pieces are padded; padding is ignored.
    """
    positions = check_count("positions", _POSITIONS[level] if positions is None else positions, least=2)
    if vocabulary_size is None and level == "words":
        vocabulary_size = _VOCABULARY_SIZE
    # A text of n words has ⌈n / positions⌉ pieces. Of n characters n − 1 are predicted, so a single one has no window.
    predicted = tokenized.lengths if level == "words" else tokenized.lengths - 1
    pieces = np.maximum(0, -(-predicted // positions))
    sizes = np.bincount(tokenized.owners, weights=pieces, minlength=len(tokenized.users)).astype(np.int64)
    if not sizes.any():
        raise InputError("the texts hold nothing to learn from: no user has a word, or two characters")
    empty = int((sizes == 0).sum())
    if empty:
        message = f"{empty:,} of {len(sizes):,} users have no text to learn from and are dropped"
        warnings.warn(message, DataWarning, stacklevel=2)
    # Only training users count: a word that only test or pool users write is unknown to the model.
    vocabulary, ids = tokenized.encoded(split.split(tokenized.users, sizes)[0], level=level, size=vocabulary_size)
    text = np.repeat(np.arange(len(pieces)), pieces)  # the text that each piece is cut from
    before = numbered_within(pieces) * positions  # what precedes the piece in its text
    left = tokenized.lengths[text] - before
    if level == "words":
        # Begin, words, an end if it fits, padding. Pieces are in the order of the words, and assignment through a mask
        # fills row by row.
        tokens = np.full((len(text), positions + 1), PAD, dtype=ids.dtype)
        tokens[:, 0] = BEGIN
        tokens[:, 1:][np.arange(positions) < left[:, None]] = ids
        ends = np.flatnonzero(left < positions)
        tokens[ends, left[ends] + 1] = END
    else:
        # Characters and padding. A window repeats the last character of the one before, which predicts its first.
        start = (np.cumsum(tokenized.lengths) - tokenized.lengths)[text] + before
        is_character = np.arange(positions + 1) < left[:, None]
        places = np.where(is_character, start[:, None] + np.arange(positions + 1), 0)
        tokens = np.where(is_character, ids[places], ids.dtype.type(PAD))
    size = len(vocabulary)
    task = Task(input_shape=(positions,), classes=size, tokens=size, per_position=True, ignored=PAD)
    return split_by_user(_data(tokens[:, :-1], tokens[:, 1:], tokenized, sizes, task, vocabulary), split)


def classification_splits(
    tokenized: Tokenized,
    labels: Ints,
    split: SplitOptions,
    *,
    positions: int | None = None,
    vocabulary_size: int | None = None,
) -> Splits:
    """Return data for text classification: the first ``positions`` words of each text, and its label.

    Short texts are padded in front, so that the last position, from which recurrent models predict, is always a word. A
    text without words becomes a single unknown one.
    """
    positions = check_count("positions", _POSITIONS_TO_CLASSIFY if positions is None else positions)
    size = _VOCABULARY_SIZE if vocabulary_size is None else vocabulary_size
    lengths = tokenized.lengths
    sizes = np.bincount(tokenized.owners, minlength=len(tokenized.users))
    training_users = split.split(tokenized.users, sizes)[0]
    vocabulary, ids = tokenized.encoded(training_users, level="words", size=size)
    tokens = np.full((len(lengths), positions), PAD, dtype=ids.dtype)
    tokens[lengths == 0, -1] = UNKNOWN
    # Assignment through a mask fills row by row, in the order of the words.
    is_word = np.arange(positions) < lengths[:, None]
    tokens[is_word[:, ::-1]] = ids[numbered_within(lengths) < positions]
    task = Task(input_shape=(positions,), classes=max(2, int(labels.max()) + 1), tokens=len(vocabulary))
    return split_by_user(_data(tokens, labels, tokenized, sizes, task, vocabulary), split)


def _data(
    inputs: Array, targets: Array, tokenized: Tokenized, sizes: Ints, task: Task, vocabulary: Vocabulary
) -> FederatedData:
    """Return arrays that hold ``sizes`` consecutive examples per user as federated data, without empty users."""
    users, stops = np.flatnonzero(sizes), np.cumsum(sizes)
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.stack([stops - sizes, stops], axis=1)[users],
        names=[tokenized.users[user] for user in users.tolist()],
        task=task,
        vocabulary=vocabulary,
    )


# Generated text, which needs no file: made-up words with topics, habits and a grammar.

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
    rng = default_rng([split.seed, 1])
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
