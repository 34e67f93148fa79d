"""Canaries that are phrases: random words, shared by some users in some of their examples (Thakkar et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Bools, Ints
from coalmine.errors import InputError, check_count, check_number
from coalmine.seeds import generator
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.data.vocabulary import BEGIN, END, MARKS, PAD, Vocabulary
from coalmine.stats import Design

# Fewer different phrases than so many times those drawn, and some would be nearly alike.
_ROOM = 100


@dataclass(frozen=True)
class Configuration:
    """Each user shares the canary with probability ``p_u``, in each example with probability ``p_e``."""

    p_u: float
    p_e: float

    def __post_init__(self) -> None:
        for name in ("p_u", "p_e"):
            if not 0 <= check_number(name, getattr(self, name)) <= 1:
                raise InputError(f"{name} must be in [0, 1], got {getattr(self, name)}")

    def __str__(self) -> str:
        return f"p_u {self.p_u:.4g}, p_e {self.p_e:.4g}"

    @property
    def frequency(self) -> tuple[float, float]:
        """What configurations are ordered by: expected insertions an example, then expected users."""
        return self.p_u * self.p_e, self.p_u


def grid(p_u: Sequence[float], p_e: Sequence[float]) -> tuple[Configuration, ...]:
    """All pairs, the least frequent first."""
    found = {Configuration(u, e) for u in p_u for e in p_e}
    if not found:
        raise InputError("at least one p_u and one p_e are needed, got none")
    return tuple(sorted(found, key=lambda configuration: configuration.frequency))


@dataclass(frozen=True, kw_only=True)
class Language:
    """Of what phrases are made: ``words`` are the numbers that stand for text among ``size``, all others are marks.

    A phrase stands at the beginning of an example, after ``begin`` where there is one.
    """

    size: int
    words: range
    begin: int | None = BEGIN
    vocabulary: Vocabulary | None = None

    @classmethod
    def of(cls, data: FederatedData) -> Language:
        """The language of a federated text data set."""
        task, vocabulary = data.task, data.vocabulary
        if task.tokens is None or not task.per_position or task.tokens != task.classes:
            raise InputError("phrases go into text whose next token is predicted at each position; this data is none")
        if vocabulary is None:
            return cls(size=task.tokens, words=range(len(MARKS), task.tokens))
        if not vocabulary.marks:
            raise InputError("phrases need a vocabulary with marks for padding; this one has none")
        begin = BEGIN if vocabulary.level == "words" else None
        return cls(size=len(vocabulary), words=vocabulary.ordinary, begin=begin, vocabulary=vocabulary)

    @property
    def context(self) -> tuple[int, ...]:
        """What stands before every phrase."""
        return () if self.begin is None else (self.begin,)

    def text(self, phrase: Ints) -> str:
        """The phrase in words."""
        if self.vocabulary is None:
            return " ".join(str(number) for number in phrase.tolist())
        return self.vocabulary.decode(phrase.tolist())

    def rows(self, phrases: Ints, positions: int) -> tuple[Ints, Ints]:
        """Inputs and targets (n, positions) of an example with nothing but the phrase."""
        count, length = phrases.shape
        lead = len(self.context)
        if lead + length > positions + 1:
            raise InputError(f"a phrase of {length} words does not fit into examples of {positions} positions")
        tokens = np.full((count, max(positions + 1, lead + length + 1)), PAD, dtype=np.int64)
        tokens[:, :lead] = self.context
        tokens[:, lead : lead + length] = phrases
        if lead:
            tokens[:, lead + length] = END
        return tokens[:, :positions], tokens[:, 1 : positions + 1]


@dataclass(frozen=True, kw_only=True, eq=False)
class PhraseCanaries:
    """Phrases (n, length), the configuration of each, and which of them are planted; the others are their twins.

    Twins are drawn in the same way and never planted: what a score says of them is what it says by chance.
    """

    phrases: Ints
    configurations: tuple[Configuration, ...]
    which: Ints
    planted: Bools
    language: Language
    design: Design = "fixed"
    seed: int = 0

    def __post_init__(self) -> None:
        phrases = np.asarray(self.phrases)
        object.__setattr__(self, "phrases", phrases)
        if phrases.ndim != 2 or phrases.size == 0 or phrases.dtype.kind not in "iu":
            raise InputError(f"phrases must be rows of whole numbers, got {phrases.dtype} of shape {phrases.shape}")
        if not (len(self.which) == len(self.planted) == len(phrases)):
            raise InputError(f"each of {len(phrases)} phrases needs a configuration and whether it is planted")
        words = self.language.words
        wrong = phrases[(phrases < words.start) | (phrases >= words.stop)]
        if wrong.size:
            raise InputError(
                f"a canary's words must be numbers in {words.start}..{words.stop - 1}, got the unknown word {wrong[0]}"
            )
        if not np.any(self.planted):
            raise InputError("at least one canary must be planted, got none")

    def __len__(self) -> int:
        return len(self.phrases)

    @property
    def length(self) -> int:
        """Words in a phrase."""
        return int(self.phrases.shape[1])

    def configuration(self, canary: int) -> Configuration:
        """Of one canary."""
        return self.configurations[int(self.which[canary])]


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
    """``each`` canaries of every configuration and ``twins`` for each of them, every word uniform, no phrase twice.

    With the design ``coin-flips`` a fair coin decides for every phrase whether it is planted: about ``each`` are.
    """
    check_count("canaries a configuration", each)
    check_count("twins", twins, least=0)
    check_count("the length of a phrase", length, least=2)
    if design not in ("fixed", "coin-flips"):
        raise InputError(f"the design must be fixed or coin-flips, got {design!r}")
    if design == "coin-flips" and twins != 1:
        raise InputError(f"with coin flips there is one twin for each canary, got twins = {twins}")
    count = len(configurations) * each * (1 + twins)
    if not count:
        raise InputError("at least one configuration is needed, got none")
    if len(language.words) ** length < _ROOM * count:
        raise InputError(
            f"a vocabulary of {len(language.words)} words is smaller than needed: it gives "
            f"{len(language.words) ** length} phrases of {length} words, and {count} of them are to be rare"
        )
    draw = generator(seed, "phrases")
    phrases = np.empty((0, length), dtype=np.int64)
    while len(phrases) < count:
        more = draw.integers(language.words.start, language.words.stop, (count, length))
        together = np.concatenate([phrases, more])
        first = np.sort(np.unique(together, axis=0, return_index=True)[1])
        phrases = together[first][:count]
    within = np.tile(np.arange(each * (1 + twins)), len(configurations))
    planted = within < each if design == "fixed" else draw.random(count) < 0.5
    return PhraseCanaries(
        phrases=phrases,
        configurations=tuple(configurations),
        which=np.repeat(np.arange(len(configurations)), each * (1 + twins)),
        planted=np.asarray(planted),
        language=language,
        design=design,
        seed=seed,
    )


def random_suffixes(language: Language, *, count: int, length: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Random word sequences (count, length) to rank canaries among: R of Thakkar et al. (2020)."""
    draw = generator(seed, "references")
    words = language.words
    return draw.integers(words.start, words.stop, (check_count("references", count), length), dtype=np.int32)
