"""Reference suffixes as a trie: sequences that begin alike share their beginning."""

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
    """Sorted sequences of equal length; level k has one node for each different beginning of k + 1 words.

    Args:
        words: Last word of each node, one array per level.
        first: Where the children of each node begin in the next level, one array per level but the last. Each array
            has one more entry, the end of the list.
        copies: How often each whole sequence occurs, one entry per node of the last level.
    """

    words: tuple[Words, ...]
    first: tuple[Words, ...]
    copies: Words

    @classmethod
    def of(cls, sequences: npt.ArrayLike) -> Trie:
        """Return the trie of sequences of shape (n, length)."""
        rows = np.asarray(sequences)
        if rows.ndim != 2 or rows.size == 0 or rows.dtype.kind not in "iu":
            raise InputError(f"references must be an integer array (n, length), got {rows.dtype} of shape {rows.shape}")
        rows = rows[_lexicographic_order(rows)].astype(np.int32, copy=False)
        words, starts = [], []
        # A row starts a new node at a level if it differs from the row above in this column or an earlier one.
        starts_node = np.zeros(len(rows), dtype=bool)
        starts_node[0] = True
        for column in rows.T:
            starts_node[1:] |= column[1:] != column[:-1]
            begins = np.flatnonzero(starts_node).astype(np.int32)
            starts.append(begins)
            words.append(np.ascontiguousarray(column[begins]))
        first = [
            np.append(np.searchsorted(below, above), len(below)).astype(np.int32) for above, below in pairwise(starts)
        ]
        copies = np.diff(np.append(starts[-1], len(rows))).astype(np.int32)
        return cls(tuple(words), tuple(first), copies)

    @property
    def depth(self) -> int:
        """Length of the sequences."""
        return len(self.words)

    def children(self, level: int, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the children of some nodes of a level, and for each the position of its parent in ``nodes``."""
        start = self.first[level][nodes].astype(np.int64)
        counts = self.first[level][nodes + 1] - start
        parents = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        return start[parents] + within, parents

    def sequences(self, leaves: npt.NDArray[np.integer[Any]]) -> Words:
        """Return the whole sequences (n, length) that end in some nodes of the last level."""
        columns, nodes = [self.words[-1][leaves]], leaves
        for level in reversed(range(self.depth - 1)):
            nodes = np.searchsorted(self.first[level], nodes, side="right") - 1
            columns.append(self.words[level][nodes])
        return np.stack(columns[::-1], axis=1)

    def find(self, sequence: Ints) -> int | None:
        """Return the last node of a whole sequence, or None if the trie does not have it."""
        low, high = 0, len(self.words[0])
        for level, word in enumerate(sequence.tolist()):
            node = low + int(np.searchsorted(self.words[level][low:high], word))
            if node == high or self.words[level][node] != word:
                return None
            if level + 1 < self.depth:
                low, high = int(self.first[level][node]), int(self.first[level][node + 1])
        return node


def _lexicographic_order(rows: npt.NDArray[np.integer]) -> Ints:
    """Return the order that sorts the rows; one sort of 64-bit keys if whole rows fit into them."""
    base = int(rows.max()) + 1
    if base ** rows.shape[1] >= 2**63:
        return np.lexsort(rows.T[::-1])
    keys = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        keys *= base
        keys += column
    return np.argsort(keys)
