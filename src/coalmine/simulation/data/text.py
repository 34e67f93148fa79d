"""Texts by user as arrays of tokens, with a vocabulary from training users only."""

from __future__ import annotations

import warnings
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import DataWarning, InputError, check_count
from coalmine.simulation.data.federated import FederatedData, Splits, Task, consecutive_bounds, numbered_within
from coalmine.simulation.data.splitting import SplitOptions
from coalmine.simulation.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Level, Vocabulary, words_in

if TYPE_CHECKING:
    from coalmine.arrays import Ints

POSITIONS = {"words": 20, "characters": 80}
POSITIONS_TO_CLASSIFY = 25
VOCABULARY_SIZE = 10_000  # of words; all characters are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Texts grouped by user.

    ``owners`` holds for each text the index of its user in ``users``, in ascending order. ``labels`` holds the class of
    each text if texts are to be classified.
    """

    source: str
    users: Sequence[str]
    owners: Ints
    texts: Sequence[str]
    labels: Ints | None = None

    @classmethod
    def from_columns(
        cls, *, source: str, users: Sequence[str], texts: Sequence[str], labels: Array | None = None
    ) -> Corpus:
        """Group texts by user; a user's texts keep their order."""
        numbers: dict[str, int] = {}
        column = np.array([numbers.setdefault(user, len(numbers)) for user in users], dtype=np.int64)
        order = np.argsort(column, kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            texts = [texts[i] for i in order.tolist()]
        classes = None if labels is None else np.asarray(labels, dtype=np.int64)[order]
        return cls(source=source, users=list(numbers), owners=column[order], texts=texts, labels=classes)

    def by_user(self) -> list[Sequence[str]]:
        """Return the texts of each user."""
        bounds = np.searchsorted(self.owners, np.arange(len(self.users) + 1))
        return [self.texts[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenized:
    """Texts as numbers: text i is the next ``lengths[i]`` of ``ids``, which are positions in ``words``."""

    users: Sequence[str]
    owners: Ints
    lengths: Ints
    ids: Ints
    words: Sequence[str]

    def vocabulary(self, users: Ints, *, level: Level, size: int | None) -> Vocabulary:
        """Return the vocabulary of some users."""
        chosen = np.zeros(len(self.users), dtype=bool)
        chosen[users] = True
        ids = self.ids[np.repeat(chosen[self.owners], self.lengths)]
        return Vocabulary.build(self.words, np.bincount(ids, minlength=len(self.words)), level=level, size=size)


def split_lines(corpus: Corpus) -> Corpus:
    """Return a corpus with one text per line, for files that keep several messages or posts in one record."""
    if corpus.labels is not None:
        raise InputError(f"{corpus.source} has a label per text, so texts cannot be cut at line breaks")
    lines = [text.split("\n") for text in corpus.texts]
    owners = np.repeat(corpus.owners, [len(parts) for parts in lines])
    return Corpus(source=corpus.source, users=corpus.users, owners=owners, texts=list(chain.from_iterable(lines)))


def tokenize_words(corpus: Corpus) -> Tokenized:
    """Return the words of every text, numbered in order of appearance."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new word gets the next number
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


def tokenize_characters(corpus: Corpus) -> Tokenized:
    """Return the characters of every user, whose texts are joined by line breaks."""
    joined = ["\n".join(texts) for texts in corpus.by_user()]
    codes = np.frombuffer("".join(joined).encode("utf-32-le", errors="replace"), dtype="<u4").astype(np.int64)
    # Renumber the code points that occur, in ascending order. A table is faster than np.unique on millions of codes.
    occurs = np.bincount(codes) > 0
    return Tokenized(
        users=corpus.users,
        owners=np.arange(len(corpus.users)),
        lengths=np.array([len(text) for text in joined], dtype=np.int64),
        ids=(np.cumsum(occurs) - 1)[codes] if codes.size else codes,
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
    positions = check_count("positions", POSITIONS[level] if positions is None else positions, least=2)
    if vocabulary_size is None and level == "words":
        vocabulary_size = VOCABULARY_SIZE
    # A text of n words has ⌈n / positions⌉ pieces. Of n characters n − 1 are predicted, so a single one has no window.
    predicted = tokenized.lengths if level == "words" else tokenized.lengths - 1
    pieces = np.maximum(0, -(-predicted // positions))
    sizes = np.bincount(tokenized.owners, weights=pieces, minlength=len(tokenized.users)).astype(np.int64)
    if not sizes.any():
        raise InputError("the texts hold nothing to learn from: no user has a word, or two characters")
    empty = np.flatnonzero(sizes == 0)
    if empty.size:
        warnings.warn(
            f"{empty.size:,} of {len(sizes):,} users have no text to learn from and are dropped, such as"
            f" {tokenized.users[int(empty[0])]!r:.60}",
            DataWarning,
            stacklevel=2,
        )
    users, parts = split.split(sizes)
    vocabulary = tokenized.vocabulary(users[parts[0]], level=level, size=vocabulary_size)
    ids = vocabulary.lookup(tokenized.words)[tokenized.ids]
    fill = _word_pieces if level == "words" else _character_windows
    tokens = fill(ids, tokenized.lengths, pieces, positions)
    size = len(vocabulary)
    task = Task(input_shape=(positions,), classes=size, tokens=size, per_position=True, ignored=PAD)
    return _splits(tokens[:, :-1], tokens[:, 1:], tokenized.users, sizes, users, parts, task, vocabulary)


def classification_splits(
    corpus: Corpus,
    split: SplitOptions,
    *,
    positions: int | None = None,
    vocabulary_size: int | None = None,
    test_users: Ints | None = None,
) -> Splits:
    """Return data for text classification: the first ``positions`` words of each text, and its label.

    Short texts are padded in front, so that the last position, from which recurrent models predict, is always a word. A
    text without words becomes a single unknown one. ``test_users`` are the test users that the data comes with.
    """
    if corpus.labels is None:
        raise InputError(f"{corpus.source} has no labels to classify texts by")
    positions = check_count("positions", POSITIONS_TO_CLASSIFY if positions is None else positions)
    tokenized = tokenize_words(corpus)
    sizes = np.bincount(corpus.owners, minlength=len(corpus.users))
    users, parts = split.split(sizes, test_users=test_users)
    size = VOCABULARY_SIZE if vocabulary_size is None else vocabulary_size
    vocabulary = tokenized.vocabulary(users[parts[0]], level="words", size=size)
    ids = vocabulary.lookup(tokenized.words)[tokenized.ids]
    tokens = np.full((len(corpus.texts), positions), PAD, dtype=ids.dtype)
    tokens[tokenized.lengths == 0, -1] = UNKNOWN
    tokens[_mask(tokenized.lengths, positions)[:, ::-1]] = ids[numbered_within(tokenized.lengths) < positions]
    classes = max(2, int(corpus.labels.max()) + 1)
    task = Task(input_shape=(positions,), classes=classes, tokens=len(vocabulary))
    return _splits(tokens, corpus.labels, corpus.users, sizes, users, parts, task, vocabulary)


def _mask(lengths: Ints, width: int) -> Array:
    """Return (texts, width): True for the first ``lengths[i]`` places of row i."""
    return np.asarray(np.arange(width) < lengths[:, None])


def _word_pieces(ids: Array, lengths: Ints, pieces: Ints, positions: int) -> Array:
    """Return (pieces, positions + 1) tokens: begin, words, end if it fits, padding."""
    text = np.repeat(np.arange(len(lengths)), pieces)
    before = numbered_within(pieces) * positions
    left = lengths[text] - before
    tokens = np.full((len(text), positions + 1), PAD, dtype=ids.dtype)
    tokens[:, 0] = BEGIN
    # Pieces are in the order of the words, and assignment through a mask fills row by row.
    tokens[:, 1:][_mask(left, positions)] = ids
    ends = np.flatnonzero(left < positions)
    tokens[ends, left[ends] + 1] = END
    return tokens


def _character_windows(ids: Array, lengths: Ints, windows: Ints, positions: int) -> Array:
    """Return (windows, positions + 1) tokens: characters and padding. A window repeats the last of the one before."""
    text = np.repeat(np.arange(len(lengths)), windows)
    before = numbered_within(windows) * positions
    start = (np.cumsum(lengths) - lengths)[text] + before
    mask = _mask(lengths[text] - before, positions + 1)
    places = np.where(mask, start[:, None] + np.arange(positions + 1), 0)
    return np.where(mask, ids[places], ids.dtype.type(PAD))


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
    """Return the splits of arrays that hold ``sizes`` consecutive examples per user."""
    data = FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=consecutive_bounds(sizes)[users],
        names=[names[user] for user in users.tolist()],
        task=task,
        vocabulary=vocabulary,
    )
    train, test, pool = parts
    return Splits(train=data.subset(train), test=data.subset(test), pool=data.subset(pool) if pool.size else None)
