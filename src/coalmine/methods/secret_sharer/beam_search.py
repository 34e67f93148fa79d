"""Beam search (BS): the model's own continuation of a prefix (Thakkar et al. 2020, Section 4.1).

All canaries are searched in one batch, about 11 times as fast as one at a time with the model called on whole sequences
(``python benchmarks/secret_sharer.py beam``); tests compare with that plain search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Ints
from coalmine.errors import check_count
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.simulation.models.steps import State, rows_of


def beam_search(scorer: PhraseScorer, phrases: Ints, *, width: int = 5) -> Ints:
    """Return the likeliest continuation of each prefix that a beam search finds, shape (n, length - prefix).

    Only words are tried, no marks: the adversary knows the prefix and the length of the phrase and nothing else.

    Args:
        scorer: The model and how much of a phrase the adversary knows.
        phrases: Words of the canaries, shape (n, length); only their prefixes and their length are used.
        width: Number of beams.
    """
    check_count("width", width)
    length = scorer.suffixes(phrases).shape[1]
    batch_size = max(1, scorer.batch_size // width)
    continuations = np.empty((len(phrases), length), dtype=np.int64)
    for begin in range(0, len(phrases), batch_size):
        batch = slice(begin, begin + batch_size)
        beams = _Beams.start(scorer.start(phrases[batch]))
        for _ in range(length - 1):
            beams = beams.longer(scorer, width)
        continuations[batch] = beams.ends(scorer).numpy()
    return continuations


@dataclass(frozen=True, eq=False)
class _Beams:
    """The beams of n canaries, the likeliest first.

    Args:
        scores: Log-probabilities, shape (n, beams).
        paths: Words so far, shape (n, beams, words).
        state: States of the model before the last word of each path.
        parents: Row of ``state`` that belongs to each beam, shape (n, beams).
    """

    scores: Tensor
    paths: Tensor
    state: State
    parents: Tensor

    @classmethod
    def start(cls, state: State) -> _Beams:
        """Return one empty beam per state."""
        n = len(state[0])
        scores, paths = torch.zeros(n, 1, dtype=torch.float64), torch.empty(n, 1, 0, dtype=torch.int64)
        return cls(scores, paths, state, torch.arange(n)[:, None])

    def read(self, scorer: PhraseScorer, canaries: Tensor, beams: Tensor) -> State:
        """Return the states of some beams after all of their words."""
        parents = self.parents[canaries, beams]
        if not self.paths.shape[2]:
            return rows_of(self.state, parents)
        return scorer.steps.extend(self.state, parents, self.paths[canaries, beams, -1])

    def longer(self, scorer: PhraseScorer, width: int) -> _Beams:
        """Return the ``width`` likeliest paths with one more word, or all if there are fewer."""
        n, beams = self.scores.shape
        kept = min(width, len(scorer.language.words))
        every = torch.arange(n * beams)
        state = self.read(scorer, every // beams, every % beams)
        # The best paths overall are among each beam's best continuations.
        log_probabilities, words = _likeliest(scorer, state, kept)
        total = (self.scores[:, :, None] + log_probabilities.view(n, beams, kept)).flatten(1)
        scores, best = total.topk(min(width, total.shape[1]), dim=1)
        beam, canary = best // kept, torch.arange(n)[:, None]
        paths = torch.cat([self.paths[canary, beam], words.view(n, -1).gather(1, best)[:, :, None]], dim=2)
        return _Beams(scores, paths, state, canary * beams + beam)

    def ends(self, scorer: PhraseScorer) -> Tensor:
        """Return each canary's likeliest path with one more word, shape (n, words + 1).

        A word's probability is at most 1, so only beams that are likelier than the best end so far are read.
        """
        n, beams = self.scores.shape
        best = torch.full((n,), -math.inf, dtype=torch.float64)
        ends = torch.empty(n, self.paths.shape[2] + 1, dtype=torch.int64)
        for beam in range(beams):
            open_canaries = torch.nonzero(self.scores[:, beam] > best).flatten()
            if not len(open_canaries):
                break
            state = self.read(scorer, open_canaries, torch.full_like(open_canaries, beam))
            log_probabilities, words = _likeliest(scorer, state, 1)
            total = self.scores[open_canaries, beam] + log_probabilities[:, 0]
            better = total > best[open_canaries]
            winners = open_canaries[better]
            best[winners] = total[better]
            ends[winners] = torch.cat([self.paths[winners, beam], words[better]], dim=1)
        return ends


def _likeliest(scorer: PhraseScorer, state: State, kept: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the likeliest words after each state, and the words, both (n, kept)."""
    words = scorer.language.words
    log_probabilities = scorer.steps.log_probabilities(state)[:, words.start : words.stop]
    largest, places = log_probabilities.topk(kept, dim=1)
    return largest.double(), places + words.start
