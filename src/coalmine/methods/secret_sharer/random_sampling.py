"""Random sampling (RS): the rank of a canary's suffix among random suffixes (Thakkar et al. 2020, Section 4.1).

`sampled_ranks` finds the ranks by branch and bound. The log-perplexity of a suffix is a sum of non-negative terms, one
per word, so a beginning that already costs more than the canary rules out every reference that starts with it, and a
beginning that many references share is read only once. `scored_ranks` scores every reference; it is the plain path
that tests compare with (``python benchmarks/secret_sharer.py`` times both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.progress import track
from coalmine.simulation.models.steps import State, rows_of

Words = npt.NDArray[np.int32]

DEFAULT_LIMIT = 20
"""With more references than this before a canary, its exposure has a standard error below 1/(√20 ln 2) = 0.32 bits."""

# With fewer children per state than this, cheap lower bounds on their cost are tried before the full softmax.
_FEW_CHILDREN = 4
SLACK = 1e-3
"""Nats by which a lower bound on a cost may exceed the cost itself through rounding, at most."""

# Canaries are ranked among nested parts of the references first, each ten times as large as the one before.
_GROWTH, _SMALLEST_PART = 10, 1000


@dataclass(frozen=True, eq=False)
class SampledRanks:
    """Ranks of canaries among random suffixes.

    The rank is 1 + the number of references whose log-perplexity is not higher than the canary's.

    Args:
        ranks: Rank of each canary, shape (n,).
        among: Number of references it was ranked among, shape (n,): all of them, or a part in which more references
            than the search's limit come before it.
        references: Number of all references.
    """

    ranks: Ints
    among: Ints
    references: int

    @property
    def memorized(self) -> Bools:
        """Which canaries the model finds likelier than every reference."""
        return np.asarray((self.ranks == 1) & (self.among == self.references))

    @property
    def exposures(self) -> Floats:
        """Exposure in bits: log2 of the number of references it was ranked among - log2(rank)."""
        return np.asarray(np.log2(self.among) - np.log2(self.ranks))


def sampled_ranks(
    scorer: PhraseScorer, phrases: Ints, references: npt.NDArray[np.integer], *, limit: int | None = DEFAULT_LIMIT
) -> SampledRanks:
    """Rank every phrase's suffix among reference suffixes, each read after the phrase's own prefix.

    The ranks are exact: the same as if every reference were scored. A rank of r is known to a relative error of about
    1/sqrt(r) however many references there are, so a canary is ranked among a small part of them first, and among ten
    times as many only while at most ``limit`` come before it.

    Args:
        scorer: The model and how much of a phrase the adversary knows.
        phrases: Words of the canaries, shape (n, length).
        references: Random suffixes in random order, shape (m, length - prefix).
        limit: Most references before a canary for which it is ranked among more of them; None to rank every canary
            among all.

    Raises:
        InputError: If the references are not as long as the suffixes.
    """
    suffixes = scorer.suffixes(phrases)
    if references.shape[1] != suffixes.shape[1]:
        raise InputError(
            f"references must be as long as the canaries' suffixes, {suffixes.shape[1]} words, got "
            f"{references.shape[1]}"
        )
    losses = scorer.log_perplexities(phrases)
    start = scorer.start(phrases)
    tries = {size: Trie.of(references[:size]) for size in _part_sizes(len(references), limit)}
    ranks, among = np.empty((2, len(phrases)), dtype=np.int64)
    for i in track(range(len(phrases)), "ranking phrases"):
        state = tuple(tensor[i : i + 1] for tensor in start)
        for size, trie in tries.items():
            ahead = _count_ahead(scorer, state, float(losses[i]), trie, trie.find(suffixes[i]))
            ranks[i], among[i] = 1 + ahead, size
            if limit is not None and ahead > limit:
                break
    return SampledRanks(ranks, among, len(references))


def _part_sizes(references: int, limit: int | None) -> list[int]:
    """Return the sizes of the parts that canaries are ranked among, in ascending order; all references are the last."""
    sizes = [references]
    while limit is not None and sizes[0] >= _GROWTH * max(limit, _SMALLEST_PART):
        sizes.insert(0, sizes[0] // _GROWTH)
    return sizes


def scored_ranks(
    scorer: PhraseScorer, phrases: Ints, references: npt.NDArray[np.integer], *, batch_size: int = 512
) -> Ints:
    """Return the ranks that `sampled_ranks` finds, by scoring every reference after every prefix."""
    suffixes = scorer.suffixes(phrases)
    ranks = np.empty(len(phrases), dtype=np.int64)
    for i, (phrase, loss) in enumerate(zip(phrases, scorer.log_perplexities(phrases), strict=True)):
        ahead = 0
        for begin in range(0, len(references), batch_size):
            batch = references[begin : begin + batch_size]
            rows = np.concatenate([np.tile(phrase[: scorer.prefix], (len(batch), 1)), batch], axis=1)
            same = (batch == suffixes[i]).all(axis=1)
            ahead += int(((scorer.log_perplexities(rows) <= loss) | same).sum())
        ranks[i] = 1 + ahead
    return ranks


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
        rows = _sorted_rows(rows).astype(np.int32, copy=False)
        words, first, above = [], [], None
        # A row starts a new node at a level if it differs from the row above in this column or an earlier one.
        starts_node = np.zeros(len(rows), dtype=bool)
        starts_node[0] = True
        for column in rows.T:
            starts_node[1:] |= column[1:] != column[:-1]
            begins = np.flatnonzero(starts_node)
            words.append(column[begins])
            if above is not None:
                first.append(np.append(np.searchsorted(begins, above), len(begins)).astype(np.int32))
            above = begins
        copies = np.diff(begins, append=len(rows)).astype(np.int32)
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


def _sorted_rows(rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Return the rows in lexicographic order."""
    base = int(rows.max()) + 1
    if rows.min() < 0 or base ** rows.shape[1] > np.iinfo(np.int64).max:
        return rows[np.lexsort(rows.T[::-1])]
    # A row whose words are the digits of one number sorts ten times as fast.
    return rows[np.argsort(rows @ base ** np.arange(rows.shape[1])[::-1])]


@dataclass(frozen=True)
class _TrieBranch:
    """Nodes of one level of the trie, their costs so far (lower bounds unless ``exact``), their parents' states."""

    level: int
    nodes: Ints
    costs: Floats
    exact: bool
    state: State
    parents: Ints


def _count_ahead(scorer: PhraseScorer, start: State, loss: float, trie: Trie, canary: int | None) -> int:
    """Return how many sequences cost at most ``loss`` after ``start``.

    The sequence ``canary`` costs ``loss`` by definition: it is counted without computing its cost again, which
    rounding could put above itself.
    """
    count = 0 if canary is None else int(trie.copies[canary])
    stack: list[_TrieBranch] = []

    def expand(level: int, state: State, costs: Floats, exact: bool, children: Ints, owners: Ints) -> None:
        nonlocal count
        rows, words = torch.from_numpy(owners), torch.from_numpy(trie.words[level][children]).long()
        # Where a state has few children, lower bounds on their costs replace the softmax over the whole vocabulary.
        # Sequences that survive on bounds alone are scored at the end.
        floors = scorer.steps.cost_floors(state, rows, words) if len(children) < _FEW_CHILDREN * len(costs) else None
        if floors is None:
            totals = costs[owners] - scorer.steps.log_probabilities(state)[rows, words].double().numpy()
        else:
            totals, exact = costs[owners] + floors.double().numpy(), False
        alive = np.flatnonzero(totals <= (loss if exact else loss + SLACK))
        children, owners, totals = children[alive], owners[alive], totals[alive]
        if level + 1 == trie.depth:
            leaves = children if canary is None else children[children != canary]
            count += _count_copies(scorer, start, loss, trie, leaves, exact)
            return
        for begin in range(0, len(children), scorer.batch_size):
            batch = slice(begin, begin + scorer.batch_size)
            stack.append(_TrieBranch(level, children[batch], totals[batch], exact, state, owners[batch]))

    roots = np.arange(len(trie.words[0]))
    expand(0, start, np.zeros(1), True, roots, np.zeros_like(roots))
    while stack:
        branch = stack.pop()
        words = torch.from_numpy(trie.words[branch.level][branch.nodes]).long()
        state = scorer.steps.extend(branch.state, torch.from_numpy(branch.parents), words)
        children, owners = trie.children(branch.level, branch.nodes)
        expand(branch.level + 1, state, branch.costs, branch.exact, children, owners)
    return count


def _count_copies(scorer: PhraseScorer, start: State, loss: float, trie: Trie, leaves: Ints, exact: bool) -> int:
    """Return how many copies there are of the leaves that cost at most ``loss``; inexact ones are scored first."""
    if not exact:
        cheap = []
        for begin in range(0, len(leaves), scorer.batch_size):
            batch = leaves[begin : begin + scorer.batch_size]
            repeated = torch.zeros(len(batch), dtype=torch.int64)
            state = rows_of(start, repeated)
            cheap.append(batch[scorer.costs(state, trie.sequences(batch)) <= loss])
        leaves = np.concatenate([leaves[:0], *cheap])
    return int(trie.copies[leaves].sum())
