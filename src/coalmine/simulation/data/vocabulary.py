"""The numbering of words, or of characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InputError, check_count

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
        if self.level not in ("words", "characters"):
            raise InputError(f"level must be words or characters, got {self.level!r}")
        if entries[: len(MARKS)] != MARKS or len(entries) == len(MARKS):
            raise InputError(f"a vocabulary must have {', '.join(MARKS)}, then words, got {', '.join(entries[:5])}")
        if len(set(entries)) != len(entries):
            duplicate = next(entry for i, entry in enumerate(entries) if entry in entries[:i])
            raise InputError(f"a vocabulary must have each word once, got {duplicate!r} twice")

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
        order = sorted(np.flatnonzero(numbers > 0).tolist(), key=lambda i: (-numbers[i], words[i]))
        kept = [words[i] for i in order if words[i] not in MARKS]
        room = None if size is None else size - len(MARKS)
        return cls(entries=(*MARKS, *kept[:room]), level=level)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} {self.level})"

    @cached_property
    def _ids(self) -> dict[str, int]:
        # Without special tokens: a text that spells "<pad>" must not become padding.
        return {self.entries[i]: i for i in self.ordinary}

    @property
    def ordinary(self) -> range:
        """Token ids of words or characters, without special tokens."""
        return range(len(MARKS), len(self))

    def lookup(self, words: Sequence[str]) -> NDArray[Any]:
        """Return the token id of each word, ``<unknown>`` for those outside the vocabulary."""
        # Never uint8, which means pixels.
        dtype = np.int16 if len(self) <= 1 << 15 else np.int32
        get = self._ids.get
        return np.fromiter((get(word, UNKNOWN) for word in words), dtype=dtype, count=len(words))

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of token ids; padding, begin and end are left out.

        Raises:
            InputError: If a token id is outside the vocabulary.
        """
        entries = []
        for number in numbers:
            if not 0 <= number < len(self):
                raise InputError(f"a token id must be in 0..{len(self) - 1}, got {number}")
            if number not in (PAD, BEGIN, END):
                entries.append(self.entries[number])
        return ("" if self.level == "characters" else " ").join(entries)

    def to_json(self) -> dict[str, Any]:
        """Return the vocabulary as an object that JSON can hold, for `from_json`."""
        return {"level": self.level, "entries": list(self.entries)}

    @classmethod
    def from_json(cls, content: Any, source: str) -> Vocabulary:
        """Return the vocabulary of an object that `to_json` made; ``source`` is named in errors."""
        entries = content.get("entries") if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{source} holds no vocabulary: its entries must be a list of strings")
        return cls(entries=entries, level=content.get("level", "words"))
