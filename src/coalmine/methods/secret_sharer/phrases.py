"""Phrase canaries, and their insertion into users' data (Thakkar et al. 2020, Section 4.1 and Figure 1).

A canary is a few uniformly random words. A user becomes a secret sharer of it with probability p_u, and each example of
a sharer is replaced by it with probability p_e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coalmine.arrays import Bools, Ints
from coalmine.errors import InputError, check_count, check_number
from coalmine.seeds import default_rng, generator
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.data.splitting import iid
from coalmine.simulation.data.text import BEGIN, END, MARKS, PAD, Vocabulary
from coalmine.stats import Design

# The vocabulary must allow this many times the phrases drawn; otherwise some of them would be nearly alike.
_SPARSITY = 100


@dataclass(frozen=True)
class Configuration:
    """How often a canary is inserted.

    Args:
        p_u: Probability that a user shares the canary (user-selection probability).
        p_e: Probability that an example of such a user is replaced by it (example-replacement probability).

    Example:
        >>> print(Configuration(p_u=0.01, p_e=0.1))
        p_u 0.01, p_e 0.1
    """

    p_u: float
    p_e: float

    def __post_init__(self) -> None:
        for name in ("p_u", "p_e"):
            check_number(name, getattr(self, name), "in [0, 1]", lambda p: 0 <= p <= 1)

    def __str__(self) -> str:
        return f"p_u {self.p_u:.4g}, p_e {self.p_e:.4g}"

    @property
    def frequency(self) -> tuple[float, float]:
        """The paper's order of configurations: expected insertions per example, then expected users (Section 4.2)."""
        return self.p_u * self.p_e, self.p_u


def grid(p_u: Sequence[float], p_e: Sequence[float]) -> tuple[Configuration, ...]:
    """Return all pairs of the two probabilities, the least frequent configuration first.

    Example:
        >>> [str(configuration) for configuration in grid([0.1, 0.01], [1.0])]
        ['p_u 0.01, p_e 1', 'p_u 0.1, p_e 1']
    """
    # Section 4.1: the cross product of p_u in {1/5K, 3/50K, 1/50K} and p_e in {1%, 10%, 100%}.
    pairs = {Configuration(u, e) for u in p_u for e in p_e}
    if not pairs:
        raise InputError("at least one p_u and one p_e are needed, got none")
    return tuple(sorted(pairs, key=lambda configuration: configuration.frequency))


@dataclass(frozen=True, kw_only=True)
class Language:
    """What phrases are made of. A phrase starts an example, after the begin mark where there is one.

    Args:
        size: Number of tokens, the width of the model's output.
        words: Tokens that stand for text; all others are marks.
        begin: Token before the first word, or None.
        vocabulary: Texts of the tokens, if known.
    """

    size: int
    words: range
    begin: int | None = BEGIN
    vocabulary: Vocabulary | None = None

    @classmethod
    def of(cls, data: FederatedData) -> Language:
        """Return the language of a federated text data set.

        Raises:
            InputError: If the data are not text.
        """
        task, vocabulary = data.task, data.vocabulary
        if task.tokens is None or not task.per_position or task.tokens != task.classes:
            raise InputError(
                "phrases need text data whose next token is predicted at each position: choose a text data set"
            )
        if vocabulary is None:
            return cls(size=task.tokens, words=range(len(MARKS), task.tokens))
        # Texts of characters are cut anywhere, so no mark says where one begins.
        begin = BEGIN if vocabulary.level == "words" else None
        return cls(size=len(vocabulary), words=vocabulary.ordinary, begin=begin, vocabulary=vocabulary)

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens before every phrase."""
        return () if self.begin is None else (self.begin,)

    def text(self, phrase: Ints) -> str:
        """Return the phrase as text, or its token numbers without a vocabulary."""
        if self.vocabulary is None:
            return " ".join(map(str, phrase.tolist()))
        return self.vocabulary.decode(phrase.tolist())

    def rows(self, phrases: Ints, positions: int) -> tuple[Ints, Ints]:
        """Return inputs and targets (n, positions) of examples that hold nothing but a phrase."""
        count, length = phrases.shape
        lead = len(self.context)
        if lead + length > positions + 1:
            raise InputError(f"a phrase of {length} words does not fit into examples of {positions} positions")
        # The end mark may fall behind the last position; it is cut off below.
        tokens = np.full((count, max(positions + 1, lead + length + 1)), PAD, dtype=np.int64)
        tokens[:, :lead] = self.context
        tokens[:, lead : lead + length] = phrases
        # Sentences of words end with a mark, and an example with a phrase must look like any other.
        if lead:
            tokens[:, lead + length] = END
        return tokens[:, :positions], tokens[:, 1 : positions + 1]


@dataclass(frozen=True, kw_only=True, eq=False)
class PhraseCanaries:
    """Inserted and held-out phrases, drawn in the same way.

    Held-out phrases are never inserted, so a model's scores for them show what chance alone looks like.

    Args:
        phrases: Words of each phrase, shape (n, length).
        configurations: The different (p_u, p_e), the least frequent first.
        configuration_index: Position of each phrase's configuration, shape (n,).
        inserted: Which phrases are inserted, shape (n,).
        language: What the phrases are made of.
        design: How the inserted ones were chosen: ``"fixed"`` numbers, or ``"coin-flips"``.
        seed: Seed they were drawn with.

    Raises:
        InputError: If a word is not in the language, or no phrase is inserted.
    """

    phrases: Ints
    configurations: tuple[Configuration, ...]
    configuration_index: Ints
    inserted: Bools
    language: Language
    design: Design = "fixed"
    seed: int = 0

    def __post_init__(self) -> None:
        # Marks never occur inside a text, so a phrase with one would be no phrase that a user could type.
        words = self.language.words
        unknown = self.phrases[(self.phrases < words.start) | (self.phrases >= words.stop)]
        if unknown.size:
            raise InputError(
                f"a canary's words must be in {words.start}..{words.stop - 1}, got the unknown word {unknown[0]}"
            )
        if not np.any(self.inserted):
            raise InputError("at least one canary must be inserted, got none")

    def __len__(self) -> int:
        return len(self.phrases)

    @property
    def length(self) -> int:
        """Number of words in a phrase."""
        return int(self.phrases.shape[1])

    def configuration(self, canary: int) -> Configuration:
        """Return the configuration of one canary."""
        return self.configurations[int(self.configuration_index[canary])]


def draw_phrases(
    language: Language,
    *,
    configurations: Sequence[Configuration],
    each: int = 10,
    twins: int = 1,
    length: int = 5,
    design: Design = "fixed",
    seed: int = 0,
) -> PhraseCanaries:
    """Draw canaries whose words are uniform over the language, no phrase twice.

    Args:
        language: What the phrases are made of.
        configurations: How often canaries are inserted.
        each: Number of inserted canaries per configuration; the paper has 10.
        twins: Number of held-out canaries per inserted one.
        length: Number of words.
        design: ``"fixed"`` inserts exactly ``each`` per configuration. ``"coin-flips"`` draws ``2 * each`` and inserts
            each with probability one half.
        seed: Seed for the words and the coins.

    Raises:
        InputError: If the vocabulary is too small for phrases that are rare.

    Example:
        >>> language = Language(size=1000, words=range(4, 1000))
        >>> canaries = draw_phrases(language, configurations=grid([0.01], [0.1, 1.0]), each=5)
        >>> len(canaries), int(canaries.inserted.sum())
        (20, 10)
    """
    check_count("each (canaries per configuration)", each)
    check_count("twins", twins, least=0)
    check_count("length", length, least=2)
    if design not in ("fixed", "coin-flips"):
        raise InputError(f"design must be fixed or coin-flips, got {design!r}")
    # A fair coin holds out as many phrases as it inserts, in expectation.
    if design == "coin-flips" and twins != 1:
        raise InputError(
            "design = coin-flips holds out one phrase per inserted one: set twins to 1 or design to fixed, got twins = "
            f"{twins}"
        )
    count = len(configurations) * each * (1 + twins)
    if len(language.words) ** length < _SPARSITY * count:
        raise InputError(
            f"a vocabulary of {len(language.words)} words is too small: it allows {len(language.words) ** length} "
            f"phrases of {length} words, and {count} rare ones need at least {_SPARSITY * count}"
        )
    rng = generator(seed, "phrases")
    phrases = np.empty((0, length), dtype=np.int64)
    # Repeated phrases are dropped and drawn again; the order of first occurrence keeps the phrases uniform.
    while len(phrases) < count:
        more = rng.integers(language.words.start, language.words.stop, (count, length))
        drawn = np.concatenate([phrases, more])
        first_occurrence = np.sort(np.unique(drawn, axis=0, return_index=True)[1])
        phrases = drawn[first_occurrence][:count]
    # The words are independent of the position, so which phrases are inserted may go by it.
    within = np.tile(np.arange(each * (1 + twins)), len(configurations))
    inserted = within < each if design == "fixed" else rng.random(count) < 0.5
    return PhraseCanaries(
        phrases=phrases,
        configurations=tuple(configurations),
        configuration_index=np.repeat(np.arange(len(configurations)), each * (1 + twins)),
        inserted=np.asarray(inserted),
        language=language,
        design=design,
        seed=seed,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Insertion:
    """Data in which clients hold canaries.

    Args:
        data: The data; its rows from ``first_row`` on are the phrases, one row each.
        phrases: The canaries.
        first_row: Row of the first phrase.
        replacements: Rows (canary, example) of all examples that a canary replaces, or would replace if it were
            inserted; the example is its place in ``data.indices``.
    """

    data: FederatedData
    phrases: PhraseCanaries
    first_row: int
    replacements: Ints

    @property
    def holdings(self) -> Ints:
        """Sorted rows (canary, client), one for each client that holds a copy of a canary."""
        rows = self.data.indices
        held = np.flatnonzero(rows >= self.first_row)  # rows behind the data's own are phrases
        return self._pairs(rows[held] - self.first_row, held)

    @property
    def users(self) -> Ints:
        """Number of clients that hold each canary, shape (canaries,)."""
        return np.bincount(self.holdings[:, 0], minlength=len(self.phrases))

    @property
    def copies(self) -> Ints:
        """Number of examples that were replaced by each canary, shape (canaries,)."""
        rows = self.data.indices
        return np.bincount(rows[rows >= self.first_row] - self.first_row, minlength=len(self.phrases))

    @property
    def most_users(self) -> int:
        """Largest number of clients that could hold one canary, whichever of the canaries had been inserted."""
        # Replacements are drawn for held-out canaries too, so this does not depend on which ones were inserted.
        pairs = self._pairs(self.replacements[:, 0], self.replacements[:, 1])
        return int(np.bincount(pairs[:, 0], minlength=1).max())

    def _pairs(self, canaries: Ints, examples: Ints) -> Ints:
        """Return the distinct pairs (canary, client that owns the example), sorted."""
        clients = np.searchsorted(np.cumsum(self.data.sizes), examples, side="right")
        return np.unique(np.stack([canaries, clients], axis=1), axis=0)

    def shuffled(self, seed: int = 0) -> Insertion:
        """Return all examples dealt at random to the same number of synthetic clients: the paper's IID data."""
        data = iid(self.data, len(self.data), seed)
        places = np.argsort(default_rng(seed).permutation(len(self.data.indices)))  # as `iid` deals them
        replacements = np.stack([self.replacements[:, 0], places[self.replacements[:, 1]]], axis=1)
        return replace(self, data=data, replacements=replacements)


def insert(data: FederatedData, phrases: PhraseCanaries) -> Insertion:
    """Insert canaries: select each one's users with probability p_u and replace their examples with probability p_e.

    All selections are independent (Poisson sampling, as in the paper). If several canaries select the same example, one
    of them gets it at random. A canary's draws do not depend on the other canaries.

    Args:
        data: Federated text data. It is not changed.
        phrases: The canaries. Held-out ones replace nothing; what they would replace is drawn all the same.

    Raises:
        InputError: If the vocabularies differ or the phrases do not fit into an example.

    Example:
        >>> from coalmine.simulation.data import generated_text
        >>> data = generated_text(users=20, sentences=10, vocabulary_size=100, positions=8).train
        >>> canaries = draw_phrases(Language.of(data), configurations=grid([0.5], [0.5]), each=2)
        >>> insertion = insert(data, canaries)
        >>> bool((insertion.copies[~canaries.inserted] == 0).all())
        True
    """
    language = Language.of(data)
    # A phrase of another vocabulary would be other words here.
    if language.size != phrases.language.size:
        raise InputError(
            f"the canaries are for a vocabulary of {phrases.language.size} entries, but the data has {language.size}"
        )
    # The new index lists the clients' examples one after another, whatever the old one did.
    stops = np.cumsum(data.sizes)
    starts = stops - data.sizes
    inputs, targets = language.rows(phrases.phrases, data.task.input_shape[0])
    rows = data.indices.copy()
    # The highest bid wins an example, which is a uniform choice among the canaries that select it.
    highest_bids = np.zeros(len(rows))
    replacements = [np.empty((0, 2), dtype=np.int64)]
    for canary, inserted in enumerate(phrases.inserted.tolist()):
        configuration = phrases.configuration(canary)
        # A stream per canary and user: more canaries, or other users, change nobody's draws.
        sharers = generator(phrases.seed, "sharers", canary).random(len(data)) < configuration.p_u
        for user in np.flatnonzero(sharers).tolist():
            rng = generator(phrases.seed, "sharers", canary, user + 1)
            selected = starts[user] + np.flatnonzero(rng.random(data.sizes[user]) < configuration.p_e)
            # Two canaries may select an example; with the paper's p_u that is rare.
            replacements.append(np.stack([np.full(len(selected), canary), selected], axis=1))
            if inserted:
                bids = rng.random(len(selected))
                wins = bids > highest_bids[selected]
                rows[selected[wins]] = len(data.inputs) + canary
                highest_bids[selected[wins]] = bids[wins]
    # Each phrase is one row behind the data's own; the clients' index says who holds it.
    extended = replace(
        data,
        inputs=np.concatenate([data.inputs, inputs.astype(data.inputs.dtype)]),
        targets=np.concatenate([data.targets, targets.astype(data.targets.dtype)]),
        bounds=np.stack([starts, stops], axis=1),
        rows=rows,
    )
    return Insertion(
        data=extended,
        phrases=phrases,
        first_row=len(data.inputs),
        replacements=np.concatenate(replacements),
    )
