"""The rank of a canary among all phrases of its length: exact if the search finishes, an interval if it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import check_count
from coalmine.methods.secret_sharer.random_sampling import SLACK
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.progress import track
from coalmine.simulation.models.steps import State

RankInterval = tuple[float, float]
"""The smallest and the largest possible rank; equal if the search finished."""


@dataclass(frozen=True)
class _WordBranch:
    """Words to append at one level, their costs so far, which of them are the canary's, and their parents' states."""

    level: int
    words: Ints
    costs: Floats
    on_canary: Bools
    state: State
    parents: Ints


def whole_space_ranks(scorer: PhraseScorer, phrases: Ints, *, budget: int = 2000) -> list[RankInterval]:
    """Rank every phrase's suffix among all word sequences of its length, each read after the phrase's own prefix.

    Args:
        scorer: The model and how much of a phrase the adversary knows.
        phrases: Words of the canaries, shape (n, length).
        budget: Number of model states to evaluate per phrase. If they do not suffice, the rank is bounded: the
            continuations of a beginning with probability q share q among them, so at most q/p of them can have the
            canary's probability p or more.
    """
    check_count("budget", budget)
    losses = scorer.log_perplexities(phrases)
    start, suffixes = scorer.start(phrases), scorer.suffixes(phrases)
    return [
        _rank(scorer, tuple(tensor[i : i + 1] for tensor in start), suffixes[i], float(losses[i]), budget)
        for i in track(range(len(phrases)), "ranking among all phrases")
    ]


def _rank(scorer: PhraseScorer, start: State, suffix: Ints, loss: float, budget: int) -> RankInterval:
    """Return the rank of one suffix, by branch and bound with the cheapest beginnings first."""
    words, depth = scorer.language.words, len(suffix)
    space = float(len(words)) ** depth
    if loss == math.inf:
        return space, space  # nothing costs more
    ahead, left = 0, budget
    stack: list[_WordBranch] = []
    batch_size = max(1, scorer.batch_size // 8)  # every state has one child per word of the vocabulary

    def expand(level: int, state: State, costs: Floats, on_canary: Bools) -> None:
        nonlocal ahead, left
        left -= len(costs)
        log_probabilities = scorer.steps.log_probabilities(state)[:, words.start : words.stop].double().numpy()
        totals = costs[:, None] - log_probabilities
        alive = totals <= loss
        canary_word = int(suffix[level]) - words.start
        if level + 1 == depth:
            alive[on_canary, canary_word] = False  # the canary is not ahead of itself
            ahead += int(alive.sum())
            return
        parents, children = np.nonzero(alive)
        totals = totals[alive]
        stays_on_canary = on_canary[parents] & (children == canary_word)
        order = np.argsort(totals)
        batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        stack.extend(
            _WordBranch(
                level + 1,
                children[batch] + words.start,
                totals[batch],
                stays_on_canary[batch],
                state,
                parents[batch],
            )
            for batch in reversed(batches)
        )

    expand(0, start, np.zeros(1), np.ones(1, dtype=bool))
    while stack and left > 0:
        branch = stack.pop()
        state = scorer.steps.extend(branch.state, torch.from_numpy(branch.parents), torch.from_numpy(branch.words))
        expand(branch.level, state, branch.costs, branch.on_canary)
    open_phrases = 0.0
    for branch in stack:
        below = (depth - branch.level) * math.log(len(words))
        # Each open beginning has at most as many continuations as there are, and at most q/p that are likely enough;
        # its probability q is rounded, hence the slack.
        open_phrases += float(np.exp(np.minimum(below, loss + SLACK - branch.costs)).sum())
    low = 1.0 + ahead
    return low, low if not stack else min(space, low + math.floor(open_phrases * (1 + 1e-9)))
