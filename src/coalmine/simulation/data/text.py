"""Texts by user become arrays of tokens, with a vocabulary from the training users alone."""

from __future__ import annotations

import warnings
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from coalmine.errors import DataWarning, InputError, check_count
from coalmine.simulation.data.federated import Array, FederatedData, Splits, Task, numbered_within
from coalmine.simulation.data.splitting import Cut
from coalmine.simulation.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Level, Vocabulary, words_in

if TYPE_CHECKING:
    from coalmine.arrays import Ints

POSITIONS = {"words": 20, "characters": 80}
POSITIONS_TO_CLASSIFY = 25
VOCABULARY_SIZE = 10_000  # of words; of characters, all are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Texts, those of a user one after the other.

    ``owners`` says for each text which of ``users`` wrote it, in ascending order. ``labels`` are there where texts are
    to be classified.
    """

    source: str
    users: Sequence[str]
    owners: Ints
    texts: Sequence[str]
    labels: Ints | None = None

    @classmethod
    def of(cls, *, source: str, users: Sequence[str], texts: Sequence[str], labels: Array | None = None) -> Corpus:
        """Texts in any order, each with its user: those of a user are brought together, in their order."""
        numbers: dict[str, int] = {}
        column = np.array([numbers.setdefault(user, len(numbers)) for user in users], dtype=np.int64)
        order = np.argsort(column, kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            texts = [texts[i] for i in order.tolist()]
        found = None if labels is None else np.asarray(labels, dtype=np.int64)[order]
        return cls(source=source, users=list(numbers), owners=column[order], texts=texts, labels=found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenized:
    """Texts as numbers: text i is the next ``lengths[i]`` of ``ids``, each the place of a word in ``words``."""

    users: Sequence[str]
    owners: Ints
    lengths: Ints
    ids: Ints
    words: Sequence[str]

    def vocabulary(self, users: Ints, *, level: Level, size: int | None) -> Vocabulary:
        """The vocabulary of some users."""
        chosen = np.zeros(len(self.users), dtype=bool)
        chosen[users] = True
        ids = self.ids[np.repeat(chosen[self.owners], self.lengths)]
        return Vocabulary.build(self.words, np.bincount(ids, minlength=len(self.words)), level=level, size=size)


def by_line(corpus: Corpus) -> Corpus:
    """A text for each line of the texts: messages, posts or turns that a file keeps in one record."""
    if corpus.labels is not None:
        raise InputError(f"{corpus.source} has a label for each text, so texts cannot be cut at line breaks")
    lines = [text.split("\n") for text in corpus.texts]
    owners = np.repeat(corpus.owners, [len(found) for found in lines])
    return Corpus(source=corpus.source, users=corpus.users, owners=owners, texts=list(chain.from_iterable(lines)))


def word_tokens(corpus: Corpus) -> Tokenized:
    """The words of every text, numbered as they appear."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a word not seen before gets the next number
    ids = array("i")
    lengths = np.empty(len(corpus.texts), dtype=np.int64)
    for i, text in enumerate(corpus.texts):
        before = len(ids)
        ids.extend(map(numbers.__getitem__, words_in(text)))
        lengths[i] = len(ids) - before
    flat = np.frombuffer(ids, dtype=np.intc) if ids else np.empty(0, dtype=np.intc)
    return Tokenized(
        users=corpus.users, owners=corpus.owners, lengths=lengths, ids=flat.astype(np.int64), words=list(numbers)
    )


def character_tokens(corpus: Corpus) -> Tokenized:
    """The characters of every user, whose texts are joined by line breaks."""
    joined = ["\n".join(texts) for texts in _by_user(corpus)]
    codes = np.frombuffer("".join(joined).encode("utf-32-le", errors="replace"), dtype="<u4").astype(np.int64)
    found, ids = _renumbered(codes)
    return Tokenized(
        users=corpus.users,
        owners=np.arange(len(corpus.users)),
        lengths=np.array([len(text) for text in joined], dtype=np.int64),
        ids=ids,
        words=[chr(code) for code in found.tolist()],
    )


def language_splits(
    tokenized: Tokenized, cut: Cut, *, level: Level, positions: int | None = None, vocabulary_size: int | None = None
) -> Splits:
    """Next-word or next-character prediction, a target for each position.

    Words: each text is cut into pieces of at most ``positions`` words, each after a begin mark; the end mark follows
    where a text ends and there is room. Characters: windows of ``positions`` characters, one after the other, so that
    every character of a user but the first is predicted exactly once. Short pieces are padded; padding is not counted.
    """
    positions = check_count("positions", POSITIONS[level] if positions is None else positions, least=2)
    if vocabulary_size is None and level == "words":
        vocabulary_size = VOCABULARY_SIZE
    count = word_pieces if level == "words" else character_windows
    pieces = count(tokenized.lengths, positions)
    sizes = np.bincount(tokenized.owners, weights=pieces, minlength=len(tokenized.users)).astype(np.int64)
    if not sizes.any():
        raise InputError("the texts hold nothing to learn from: there is no word, or no more than one character a user")
    silent = np.flatnonzero(sizes == 0)
    if silent.size:
        some = f"such as {tokenized.users[int(silent[0])]!r:.60}"
        warnings.warn(
            f"{silent.size:,} of {len(sizes):,} users have no text to learn from and are left out, {some}",
            DataWarning,
            stacklevel=2,
        )
    users, parts = cut.divided(sizes)
    vocabulary = tokenized.vocabulary(users[parts[0]], level=level, size=vocabulary_size)
    ids = vocabulary.lookup(tokenized.words)[tokenized.ids]
    fill = _filled_words if level == "words" else _filled_characters
    tokens = fill(ids, tokenized.lengths, pieces, positions)
    size = len(vocabulary)
    task = Task(input_shape=(positions,), classes=size, tokens=size, per_position=True, ignored=PAD)
    return _splits(tokens[:, :-1], tokens[:, 1:], tokenized.users, sizes, users, parts, task, vocabulary)


def classification_splits(
    corpus: Corpus,
    cut: Cut,
    *,
    positions: int | None = None,
    vocabulary_size: int | None = None,
    test_users: Ints | None = None,
) -> Splits:
    """A label for each text, of whose words the first ``positions`` are taken; short texts are padded in front.

    So the last position, from which recurrent models answer, is always a word.

    A text without any word becomes a single unknown one. ``test_users`` are those that the data itself sets apart.
    """
    if corpus.labels is None:
        raise InputError(f"{corpus.source} has no labels to classify texts by")
    positions = check_count("positions", POSITIONS_TO_CLASSIFY if positions is None else positions)
    tokenized = word_tokens(corpus)
    sizes = np.bincount(corpus.owners, minlength=len(corpus.users))
    users, parts = cut.divided(sizes, test_users=test_users)
    size = VOCABULARY_SIZE if vocabulary_size is None else vocabulary_size
    vocabulary = tokenized.vocabulary(users[parts[0]], level="words", size=size)
    ids = vocabulary.lookup(tokenized.words)[tokenized.ids]
    tokens = np.full((len(corpus.texts), positions), PAD, dtype=ids.dtype)
    tokens[tokenized.lengths == 0, -1] = UNKNOWN
    tokens[_filled(tokenized.lengths, positions)[:, ::-1]] = ids[numbered_within(tokenized.lengths) < positions]
    classes = max(2, int(corpus.labels.max()) + 1)
    task = Task(input_shape=(positions,), classes=classes, tokens=len(vocabulary))
    return _splits(tokens, corpus.labels, corpus.users, sizes, users, parts, task, vocabulary)


def word_pieces(lengths: Ints, positions: int) -> Ints:
    """How many pieces texts of so many words are cut into."""
    return -(-lengths // positions)


def character_windows(lengths: Ints, positions: int) -> Ints:
    """How many windows texts of so many characters give; a single character gives none, as nothing follows it."""
    return np.maximum(0, -(-(lengths - 1) // positions))


def _filled(lengths: Ints, width: int) -> Array:
    return np.asarray(np.arange(width) < lengths[:, None])


def _filled_words(ids: Array, lengths: Ints, pieces: Ints, positions: int) -> Array:
    text = np.repeat(np.arange(len(lengths)), pieces)
    before = numbered_within(pieces) * positions
    left = lengths[text] - before
    tokens = np.full((len(text), positions + 1), PAD, dtype=ids.dtype)
    tokens[:, 0] = BEGIN
    # Pieces follow each other as the words do, and a mask is filled row by row.
    tokens[:, 1:][_filled(left, positions)] = ids
    ends = np.flatnonzero(left < positions)
    tokens[ends, left[ends] + 1] = END
    return tokens


def _filled_characters(ids: Array, lengths: Ints, pieces: Ints, positions: int) -> Array:
    text = np.repeat(np.arange(len(lengths)), pieces)
    before = numbered_within(pieces) * positions
    start = (np.cumsum(lengths) - lengths)[text] + before
    filled = _filled(lengths[text] - before, positions + 1)
    places = np.where(filled, start[:, None] + np.arange(positions + 1), 0)
    return np.where(filled, ids[places], ids.dtype.type(PAD))


def _splits(
    inputs: Array,
    targets: Array,
    names: Sequence[str],
    sizes: Ints,
    users: Ints,
    parts: tuple[Ints, Ints, Ints],
    task: Task,
    vocabulary: Vocabulary,
) -> Splits:
    stops = np.cumsum(sizes)
    data = FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.stack([stops - sizes, stops], axis=1)[users],
        names=[names[user] for user in users.tolist()],
        task=task,
        vocabulary=vocabulary,
    )
    train, test, pool = parts
    return Splits(train=data.subset(train), test=data.subset(test), pool=data.subset(pool) if pool.size else None)


def _by_user(corpus: Corpus) -> list[Sequence[str]]:
    bounds = np.searchsorted(corpus.owners, np.arange(len(corpus.users) + 1))
    return [corpus.texts[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def _renumbered(codes: Ints) -> tuple[Ints, Ints]:
    """The distinct codes in ascending order, and each code's place among them."""
    seen = np.bincount(codes) > 0
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[codes] if codes.size else codes
