"""The rank of a canary among all phrases there are: exact where the search finishes, bounded where it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import check_count
from coalmine.methods.secret_sharer.phrase_search import SLACK, Queries
from coalmine.progress import track
from coalmine.simulation.models.steps import State


@dataclass(frozen=True)
class RankInterval:
    """The rank lies between ``low`` and ``high``, surely; ``space`` is how many phrases there are."""

    low: float
    high: float
    space: float

    @property
    def exact(self) -> bool:
        """Whether the search finished."""
        return self.low == self.high

    @property
    def exposure(self) -> tuple[float, float]:
        """Between what the exposure lies, in bits."""
        return math.log2(self.space) - math.log2(self.high), math.log2(self.space) - math.log2(self.low)


@dataclass(frozen=True)
class _Branch:
    level: int
    words: Ints
    costs: Floats
    own: Bools
    state: State
    parents: Ints


def whole_space_ranks(queries: Queries, phrases: Ints, *, budget: int = 2000) -> list[RankInterval]:
    """The rank of every phrase's suffix among all sequences of words of its length, after the phrase's own prefix.

    At most ``budget`` states are read for a phrase. What is left open is bounded: of the continuations of a beginning
    with probability q at most q/p can have probability p or more, since they share q.
    """
    check_count("the budget", budget)
    most = queries.log_perplexities(phrases)
    start, suffixes = queries.start(phrases), queries.suffix(phrases)
    return [
        _rank(queries, tuple(tensor[i : i + 1] for tensor in start), suffixes[i], float(most[i]), budget)
        for i in track(range(len(phrases)), "ranks among all phrases")
    ]


def _rank(queries: Queries, start: State, suffix: Ints, most: float, budget: int) -> RankInterval:
    words, depth = queries.language.words, len(suffix)
    space = float(len(words)) ** depth
    if most == math.inf:
        return RankInterval(space, space, space)  # nothing costs more
    found, left = 0, budget
    stack: list[_Branch] = []
    rows = max(1, queries.rows // 8)  # every state has as many children as there are words

    def look(level: int, state: State, costs: Floats, own: Bools) -> None:
        nonlocal found, left
        left -= len(costs)
        chances = queries.steps.log_probabilities(state)[:, words.start : words.stop].double().numpy()
        paid = costs[:, None] - chances
        alive = paid <= most
        owned = int(suffix[level]) - words.start
        if level + 1 == depth:
            alive[own, owned] = False  # the canary itself is not ahead of itself
            found += int(alive.sum())
            return
        parents, children = np.nonzero(alive)
        paid = paid[alive]
        mine = own[parents] & (children == owned)
        order = np.argsort(paid)
        pieces = [order[i : i + rows] for i in range(0, len(order), rows)]
        stack.extend(
            _Branch(level + 1, children[some] + words.start, paid[some], mine[some], state, parents[some])
            for some in reversed(pieces)
        )

    look(0, start, np.zeros(1), np.ones(1, dtype=bool))
    while stack and left > 0:
        branch = stack.pop()
        state = queries.steps.extend(branch.state, torch.from_numpy(branch.parents), torch.from_numpy(branch.words))
        look(branch.level, state, branch.costs, branch.own)
    still = 0.0
    for branch in stack:
        beneath = (depth - branch.level) * math.log(len(words))
        # no more than there are, and no more than share the beginning's probability, which is rounded
        still += float(np.exp(np.minimum(beneath, most + SLACK - branch.costs)).sum())
    low = 1.0 + found
    return RankInterval(low, low if not stack else min(space, low + math.floor(still * (1 + 1e-9))), space)
