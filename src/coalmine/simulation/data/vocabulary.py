"""The numbering of words, or of characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InputError, check_count
from coalmine.reading import parse_json, read_text

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
MARKS = ("<pad>", "<begin>", "<end>", "<unknown>")

Level = Literal["words", "characters"]

# Letters and digits with apostrophes inside (don't, o'clock), or a placeholder such as <url>.
_FIND_WORDS: Callable[[str], list[str]] = re.compile(r"<[a-z]+>|[^\W_]+(?:'[^\W_]+)*").findall

_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character, which no file of text can hold


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation: "It's <url>, OK?" gives it's, <url>, ok."""
    return _FIND_WORDS(text.lower().replace("’", "'"))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A fixed list of words or characters; the token id of an entry is its position in the list.

    Args:
        entries: Special tokens first, then words or characters.
        level: ``"words"`` or ``"characters"``.
        marks: Number of special tokens at the front: the four ``<pad>``, ``<begin>``, ``<end>``, ``<unknown>``, or none
            as in the alphabet of LEAF's Shakespeare. Without them, text outside the vocabulary is an error instead of
            ``<unknown>``.

    Raises:
        InputError: If special tokens are missing, if there is nothing else, if an entry occurs twice, or if it has
            half of a character.

    Example:
        >>> words = Vocabulary(("<pad>", "<begin>", "<end>", "<unknown>", "the", "cat"))
        >>> words.encode("The cat sat").tolist()
        [4, 5, 3]
        >>> words.decode([1, 4, 5, 2, 0])
        'the cat'
    """

    entries: Sequence[str]
    level: Level = "words"
    marks: int = len(MARKS)

    def __post_init__(self) -> None:
        entries = tuple(self.entries)
        object.__setattr__(self, "entries", entries)
        if self.level not in ("words", "characters"):
            raise InputError(f"level must be words or characters, got {self.level!r}")
        if self.marks not in (0, len(MARKS)) or entries[: self.marks] != MARKS[: self.marks]:
            raise InputError(f"a vocabulary must begin with {', '.join(MARKS)}, got {', '.join(entries[:4])}")
        if len(entries) <= self.marks:
            raise InputError("a vocabulary must have at least one word, got none")
        if len(set(entries)) != len(entries):
            duplicate = next(entry for i, entry in enumerate(entries) if entry in entries[:i])
            raise InputError(f"a vocabulary must have each word once, got {duplicate!r} twice")
        half = next((entry for entry in entries if _SURROGATE.search(entry)), None)
        if half is not None:
            raise InputError(f"a vocabulary must consist of text, got {half!r}, which has half of a character")

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

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} {self.level})"

    @cached_property
    def _ids(self) -> dict[str, int]:
        # Without special tokens: a text that spells "<pad>" must not become padding.
        return {self.entries[i]: i for i in self.ordinary}

    @property
    def ordinary(self) -> range:
        """Token ids of words or characters, without special tokens."""
        return range(self.marks, len(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        """int16 if it holds every token id, else int32; never uint8, which means pixels."""
        return np.dtype(np.int16 if len(self) <= 1 << 15 else np.int32)

    def lookup(self, words: Sequence[str]) -> NDArray[Any]:
        """Return the token id of each word, ``<unknown>`` for those outside the vocabulary.

        Raises:
            InputError: If a word is outside a vocabulary that has no special tokens.
        """
        outside = None if self.marks else next((word for word in words if word not in self._ids), None)
        if outside is not None:
            raise InputError(f"{outside!r} is not among the vocabulary's {len(self)} {self.level}")
        get = self._ids.get
        return np.fromiter((get(word, UNKNOWN) for word in words), dtype=self.dtype, count=len(words))

    def encode(self, text: str) -> NDArray[Any]:
        """Return the token ids of a text's words or characters, without begin and end."""
        return self.lookup(list(text) if self.level == "characters" else words_in(text))

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of token ids; padding, begin and end are left out.

        Raises:
            InputError: If a token id is outside the vocabulary.
        """
        entries = [self.entries[self._checked(number)] for number in numbers]
        if self.marks:
            entries = [entry for entry in entries if entry not in MARKS[:UNKNOWN]]
        return ("" if self.level == "characters" else " ").join(entries)

    def _checked(self, number: int) -> int:
        """Return a token id, or raise if it is outside the vocabulary."""
        if not 0 <= number < len(self):
            raise InputError(f"a token id must be in 0..{len(self) - 1}, got {number}")
        return int(number)

    def to_json(self) -> dict[str, Any]:
        """Return the vocabulary as an object that JSON can hold, for `from_json`."""
        return {"level": self.level, "marks": self.marks, "entries": list(self.entries)}

    @classmethod
    def from_json(cls, content: Any, source: str) -> Vocabulary:
        """Return the vocabulary of an object that `to_json` made; ``source`` is named in errors."""
        if not isinstance(content, dict) or not {"level", "marks", "entries"} <= content.keys():
            raise InputError(f"{source} holds no vocabulary: it needs level, marks and entries")
        entries = content["entries"]
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{source}: the entries of a vocabulary must be a list of strings")
        return cls(entries=entries, level=content["level"], marks=content["marks"])

    def save(self, path: Path | str) -> None:
        """Write the vocabulary to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=0), encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> Vocabulary:
        """Read a vocabulary that `save` wrote.

        Raises:
            InputError: If the file is missing or holds no vocabulary.
        """
        return cls.from_json(parse_json(read_text(Path(path)), path), str(path))
