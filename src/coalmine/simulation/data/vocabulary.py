"""Which word, or character, has which number."""

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

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
MARKS = ("<pad>", "<begin>", "<end>", "<unknown>")

Level = Literal["words", "characters"]

# Letters and digits with apostrophes inside (don't, o'clock), or a placeholder such as <url>.
_FIND_WORDS: Callable[[str], list[str]] = re.compile(r"<[a-z]+>|[^\W_]+(?:'[^\W_]+)*").findall


def words_in(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation: "It's <url>, OK?" gives it's, <url>, ok."""
    return _FIND_WORDS(text.lower().replace("’", "'"))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A frozen list of entries; an entry's place in it is its number.

    ``marks`` entries at the front are not text: padding, begin, end and unknown (or none of them, as in the alphabet of
    LEAF's Shakespeare; then text outside the vocabulary is refused instead of becoming "unknown").
    """

    entries: Sequence[str]
    level: Level = "words"
    marks: int = len(MARKS)

    def __post_init__(self) -> None:
        entries = tuple(self.entries)
        object.__setattr__(self, "entries", entries)
        if self.level not in ("words", "characters"):
            raise InputError(f"a vocabulary is of words or characters, got {self.level!r}")
        if self.marks not in (0, len(MARKS)) or entries[: self.marks] != MARKS[: self.marks]:
            raise InputError(f"a vocabulary must begin with {', '.join(MARKS)}, got {', '.join(entries[:4])}")
        if len(entries) <= self.marks:
            raise InputError("a vocabulary must hold at least one word, got none")
        if len(set(entries)) != len(entries):
            twice = next(entry for i, entry in enumerate(entries) if entry in entries[:i])
            raise InputError(f"a vocabulary must hold each word once, got {twice!r} twice")

    @classmethod
    def build(
        cls, words: Sequence[str], counts: ArrayLike, *, level: Level = "words", size: int | None = None
    ) -> Vocabulary:
        """The most frequent ``words`` (ties in alphabetical order); with the four marks at most ``size`` entries.

        ``counts`` are those among training users; words that only others use have a count of 0 and are left out.
        """
        numbers = np.asarray(counts)
        if size is not None:
            check_count("the vocabulary's size", size, least=len(MARKS) + 1)
        seen = sorted(np.flatnonzero(numbers > 0).tolist(), key=lambda i: (-numbers[i], words[i]))
        kept = [words[i] for i in seen if words[i] not in MARKS]
        room = None if size is None else size - len(MARKS)
        return cls(entries=(*MARKS, *kept[:room]), level=level)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} {self.level})"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        # Without the marks: a text that spells "<pad>" must not become padding.
        return {self.entries[i]: i for i in self.ordinary}

    @property
    def ordinary(self) -> range:
        """The numbers that stand for text, without the marks."""
        return range(self.marks, len(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        """int16 where it holds every number, else int32; never uint8, which means pixels."""
        return np.dtype(np.int16 if len(self) <= 1 << 15 else np.int32)

    def lookup(self, words: Sequence[str]) -> NDArray[Any]:
        """The number of each word, "unknown" for those that are not here."""
        if self.marks:
            get = self._numbers.get
            return np.fromiter((get(word, UNKNOWN) for word in words), dtype=self.dtype, count=len(words))
        for word in words:
            if word not in self._numbers:
                raise InputError(f"{word!r} is not among the vocabulary's {len(self)} {self.level}")
        return np.fromiter((self._numbers[word] for word in words), dtype=self.dtype, count=len(words))

    def encode(self, text: str) -> NDArray[Any]:
        """The numbers of a text's words or characters, without begin and end."""
        return self.lookup(list(text) if self.level == "characters" else words_in(text))

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of some numbers; padding, begin and end are left out."""
        entries = [self.entries[self._checked(number)] for number in numbers]
        if self.marks:
            entries = [entry for entry in entries if entry not in MARKS[:UNKNOWN]]
        return ("" if self.level == "characters" else " ").join(entries)

    def _checked(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise InputError(f"a word's number must be in 0..{len(self) - 1}, got {number}")
        return int(number)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` takes."""
        return {"level": self.level, "marks": self.marks, "entries": list(self.entries)}

    @classmethod
    def from_json(cls, content: Any, source: str) -> Vocabulary:
        """The vocabulary that ``to_json`` wrote into ``source``."""
        if not isinstance(content, dict) or not {"level", "marks", "entries"} <= content.keys():
            raise InputError(f"{source} holds no vocabulary: level, marks and entries are needed")
        entries = content["entries"]
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{source}: the entries of a vocabulary must be a list of texts")
        return cls(entries=entries, level=content["level"], marks=content["marks"])

    def save(self, path: Path | str) -> None:
        """Write the vocabulary as JSON text."""
        Path(path).write_text(json.dumps(self.to_json(), indent=0), encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> Vocabulary:
        """Read what ``save`` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a vocabulary that was saved: {error}") from None
        return cls.from_json(content, str(path))
