"""Ranks of canaries among random phrases, by branch and bound (Thakkar et al. 2020, "random sampling").

The log-perplexity of a phrase is a sum of non-negative terms, one a word: a beginning that already costs more than the
canary is cut with all that begin so. Beginnings are read once, however many phrases share them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.methods.secret_sharer.references import Trie
from coalmine.progress import Track as Track
from coalmine.simulation.models.steps import State, Steps

_LOGITS, _ROWS = 1 << 23, 4096  # computed together: 32 MB of logits, and so many states
_FEW = 4  # children a state, below which a bound on their cost is tried before all of the softmax is computed
SLACK = 1e-3  # nats, more than rounding can make of a bound
_SHARE = 200  # of references that a canary beyond the limit is ranked among: one in so many
_LEAST = 1000


@dataclass(frozen=True, eq=False)
class Queries:
    """What can be asked about phrases: a model token by token, what stands before them, how many words are given.

    The ``prefix`` is what the adversary knows of a phrase, the suffix what is asked for.
    """

    steps: Steps
    language: Language
    prefix: int = 1

    def __post_init__(self) -> None:
        check_count("the prefix", self.prefix, least=0)
        if not self.prefix and self.language.begin is None:
            raise InputError("without a begin mark the prefix must be at least 1 word long, got 0")

    @property
    def rows(self) -> int:
        """How many states are looked at together."""
        return max(1, min(_ROWS, _LOGITS // self.steps.words))

    def suffix(self, phrases: Ints) -> Ints:
        """What is asked for, (n, length − prefix)."""
        if self.prefix >= phrases.shape[1]:
            raise InputError(
                f"the prefix of {self.prefix} words is not shorter than the canaries, which have {phrases.shape[1]}"
            )
        return phrases[:, self.prefix :]

    def start(self, phrases: Ints) -> State:
        """States after each phrase's prefix."""
        given = np.empty((len(phrases), len(self.language.context) + self.prefix), dtype=np.int64)
        given[:, : len(self.language.context)] = self.language.context
        given[:, len(self.language.context) :] = phrases[:, : self.prefix]
        return self.steps.start(torch.from_numpy(given))

    def log_perplexities(self, phrases: Ints) -> Floats:
        """−log Pr(suffix | prefix) of each phrase, in nats, (n,)."""
        suffix = self.suffix(phrases)
        found = np.empty(len(phrases))
        for begin in range(0, len(phrases), self.rows):
            some = slice(begin, begin + self.rows)
            found[some] = self.costs(self.start(phrases[some]), suffix[some])
        if np.isnan(found).any():
            raise InputError("the model's probabilities are not numbers (NaN): its training diverged")
        return found

    def costs(self, state: State, words: npt.NDArray[np.integer]) -> Floats:
        """−log Pr of each row of ``words`` (n, length) after its row of ``state``, in nats, (n,)."""
        tokens, own = torch.from_numpy(words.astype(np.int64)), torch.arange(len(words))
        found = np.zeros(len(words))
        for position, word in enumerate(tokens.unbind(1)):
            if position:
                state = self.steps.extend(state, own, tokens[:, position - 1])
            found -= self.steps.log_probabilities(state)[own, word].double().numpy()
        return found


@dataclass(frozen=True)
class _Branch:
    """Some nodes of a level of the trie, what they have cost so far, and the states of their parents.

    Where they are not ``exact``, they have cost at least as much.
    """

    level: int
    nodes: Ints
    costs: Floats
    exact: bool
    state: State
    parents: Ints


def _cheaper(
    queries: Queries, start: State, most: float, trie: Trie, own: int | None, limit: float
) -> tuple[int, bool]:
    """How many of the trie's sequences cost at most ``most`` after ``start``, and whether all were looked at.

    The cheapest beginnings are followed first; beyond ``limit`` it stops. Where beginnings have few words to go on
    with, lower bounds on the words' cost stand in for all of the softmax, and the whole sequences that are left in the
    end are scored. The sequence ``own`` costs ``most`` itself, and is counted whatever rounding says.
    """
    count = 0 if own is None else int(trie.copies[own])
    stack: list[_Branch] = []

    def look(level: int, state: State, costs: Floats, exact: bool, children: Ints, owners: Ints) -> None:
        nonlocal count
        rows, words = torch.from_numpy(owners), torch.from_numpy(trie.words[level][children]).long()
        floors = queries.steps.cost_floors(state, rows, words) if len(children) < _FEW * len(costs) else None
        if floors is None:
            paid = costs[owners] - queries.steps.log_probabilities(state)[rows, words].double().numpy()
        else:
            paid, exact = costs[owners] + floors.double().numpy(), False
        alive = paid <= (most if exact else most + SLACK)
        if level + 1 == trie.depth:
            leaves = children[alive] if own is None else children[alive & (children != own)]
            count += _copies(queries, start, most, trie, leaves, exact)
            return
        children, owners, paid = children[alive], owners[alive], paid[alive]
        order = np.argsort(paid)
        pieces = [order[i : i + queries.rows] for i in range(0, len(order), queries.rows)]
        stack.extend(
            _Branch(level, children[some], paid[some], exact, state, owners[some]) for some in reversed(pieces)
        )

    everything = np.arange(len(trie.words[0]))
    look(0, start, np.zeros(1), True, everything, np.zeros_like(everything))
    while stack and count <= limit:
        branch = stack.pop()
        words = torch.from_numpy(trie.words[branch.level][branch.nodes]).long()
        state = queries.steps.extend(branch.state, torch.from_numpy(branch.parents), words)
        children, owners = trie.children(branch.level, branch.nodes)
        look(branch.level + 1, state, branch.costs, branch.exact, children, owners)
    return count, not stack


def _copies(queries: Queries, start: State, most: float, trie: Trie, leaves: Ints, exact: bool) -> int:
    """How many copies there are of the leaves that cost at most ``most``: all, where that is known of them."""
    if not exact:
        kept = []
        for begin in range(0, len(leaves), queries.rows):
            some = leaves[begin : begin + queries.rows]
            again = torch.zeros(len(some), dtype=torch.int64)
            state = tuple(tensor.index_select(0, again) for tensor in start)
            kept.append(some[queries.costs(state, trie.sequences(some)) <= most])
        leaves = np.concatenate([leaves[:0], *kept])
    return int(trie.copies[leaves].sum())


@dataclass(frozen=True, eq=False)
class SampledRanks:
    """The rank of each canary, ``ranks[i]``, among ``among[i]`` random suffixes, and of how many there are in all.

    The rank is 1 + the number of references whose log-perplexity is not higher. It is among all ``references`` where
    it was found exactly; a canary that is beyond the search's limit is ranked exactly among the first of them instead,
    and ``least[i]`` is what its rank among all is at least.
    """

    ranks: Ints
    among: Ints
    least: Ints
    references: int

    @property
    def memorized(self) -> Bools:
        """Which canaries come before all references."""
        return np.asarray((self.ranks == 1) & (self.among == self.references))

    @property
    def exposures(self) -> Floats:
        """In bits, log2(references) − log2(rank); no more than the rank among all references allows."""
        most = np.log2(self.references) - np.log2(self.least)
        return np.asarray(np.minimum(np.log2(self.among) - np.log2(self.ranks), most))


def sampled_ranks(
    queries: Queries,
    phrases: Ints,
    references: npt.NDArray[np.integer],
    *,
    limit: int | None = 1000,
    track: Track = iter,
) -> SampledRanks:
    """The rank of every phrase's suffix among ``references`` (n, suffix), each after the phrase's own prefix.

    Exact: by branch and bound, the same as if every reference were scored. Of a canary that more than ``limit``
    references come before, only that much is found out, and its rank is taken among one in 200 of them, which is as
    exact for what is then at most 11 bits of 21; ``limit=None`` ranks all of them among all.
    """
    suffixes = queries.suffix(phrases)
    if references.shape[1] != suffixes.shape[1]:
        raise InputError(
            f"references must be as long as what is asked for, {suffixes.shape[1]} words, got {references.shape[1]}"
        )
    most = queries.log_perplexities(phrases)
    start = queries.start(phrases)
    whole = Trie.of(references)
    few = min(len(references), max(_LEAST, len(references) // _SHARE))
    part = Trie.of(references[:few])
    ranks, among, least = np.empty((3, len(phrases)), dtype=np.int64)
    for i in track(range(len(phrases))):
        own = tuple(tensor[i : i + 1] for tensor in start)
        stop = math.inf if limit is None else limit
        found, complete = _cheaper(queries, own, float(most[i]), whole, whole.find(suffixes[i]), stop)
        ranks[i], among[i], least[i] = 1 + found, len(references), 1 + found
        if not complete:
            found, _ = _cheaper(queries, own, float(most[i]), part, part.find(suffixes[i]), math.inf)
            ranks[i], among[i] = 1 + found, few
    return SampledRanks(ranks, among, least, len(references))


def scored_ranks(queries: Queries, phrases: Ints, references: npt.NDArray[np.integer], *, batch: int = 512) -> Ints:
    """The same ranks the long way, for comparison: every reference is scored after every prefix, in full batches."""
    suffixes = queries.suffix(phrases)
    found = np.empty(len(phrases), dtype=np.int64)
    for i, (phrase, most) in enumerate(zip(phrases, queries.log_perplexities(phrases), strict=True)):
        count = 0
        for some in _batches(references, batch):
            rows = np.concatenate([np.tile(phrase[: queries.prefix], (len(some), 1)), some], axis=1)
            same = (some == suffixes[i]).all(axis=1)
            count += int(((queries.log_perplexities(rows) <= most) | same).sum())
        found[i] = 1 + count
    return found


def _batches(rows: npt.NDArray[np.integer], size: int) -> Iterator[npt.NDArray[np.integer]]:
    return (rows[i : i + size] for i in range(0, len(rows), size))
