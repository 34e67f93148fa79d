"""Reference suffixes as a trie: those that begin alike share their beginning."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Ints
from coalmine.errors import InputError

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Trie:
    """Sequences of equal length, sorted: level k has a node for each different beginning of k + 1 words.

    ``words[k]`` is the last word of each node of level k, ``first[k]`` where its children begin in level k + 1 (one
    more entry ends the list), ``copies`` how often each whole sequence occurs.
    """

    words: tuple[Words, ...]
    first: tuple[Words, ...]
    copies: Words

    @classmethod
    def of(cls, sequences: npt.ArrayLike) -> Trie:
        """The trie of sequences (n, length)."""
        rows = np.asarray(sequences)
        if rows.ndim != 2 or rows.size == 0 or rows.dtype.kind not in "iu":
            raise InputError(f"references must be rows of whole numbers, got {rows.dtype} of shape {rows.shape}")
        rows = rows[_order(rows)].astype(np.int32, copy=False)
        words, starts = [], []
        new = np.zeros(len(rows), dtype=bool)
        new[0] = True
        for column in rows.T:
            new[1:] |= column[1:] != column[:-1]
            begins = np.flatnonzero(new).astype(np.int32)
            starts.append(begins)
            words.append(np.ascontiguousarray(column[begins]))
        first = [
            np.append(np.searchsorted(below, above), len(below)).astype(np.int32) for above, below in pairwise(starts)
        ]
        copies = np.diff(np.append(starts[-1], len(rows))).astype(np.int32)
        return cls(tuple(words), tuple(first), copies)

    @property
    def depth(self) -> int:
        """The length of the sequences."""
        return len(self.words)

    def children(self, level: int, nodes: Ints) -> tuple[Ints, Ints]:
        """The children of some nodes of a level, in their order, and whose each is (a place in ``nodes``)."""
        start = self.first[level][nodes].astype(np.int64)
        counts = self.first[level][nodes + 1] - start
        owners = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return start[owners] + within, owners

    def sequences(self, leaves: npt.NDArray[np.integer[Any]]) -> Words:
        """The whole sequences of some nodes of the last level, (n, length)."""
        columns, nodes = [self.words[-1][leaves]], leaves
        for level in reversed(range(self.depth - 1)):
            nodes = np.searchsorted(self.first[level], nodes, side="right") - 1
            columns.append(self.words[level][nodes])
        return np.stack(columns[::-1], axis=1)

    def find(self, sequence: Ints) -> int | None:
        """The node of a whole sequence, None where it is not here."""
        low, high = 0, len(self.words[0])
        for level, word in enumerate(sequence.tolist()):
            node = low + int(np.searchsorted(self.words[level][low:high], word))
            if node == high or self.words[level][node] != word:
                return None
            if level + 1 < self.depth:
                low, high = int(self.first[level][node]), int(self.first[level][node + 1])
        return node


def _order(rows: npt.NDArray[np.integer]) -> Ints:
    limit = int(rows.max()) + 1
    if limit ** rows.shape[1] >= 2**63:
        return np.lexsort(rows.T[::-1])
    keys = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        keys *= limit
        keys += column
    return np.argsort(keys)
