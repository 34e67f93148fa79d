"""Beam search: what a model says after a prefix, of many prefixes at once (Thakkar et al. 2020, "beam search")."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Bools, Ints
from coalmine.errors import check_count
from coalmine.methods.secret_sharer.phrase_search import Queries, Track
from coalmine.methods.secret_sharer.phrases import PhraseCanaries
from coalmine.simulation.models.steps import State

_BLOCK = 100  # words whose largest probability is taken first


def beam_search(queries: Queries, phrases: Ints, *, width: int = 5, track: Track = iter) -> Ints:
    """The likeliest continuation that a beam search of ``width`` finds after each prefix, (n, length − prefix).

    Only words are tried, no marks: the adversary knows the prefix and how long the phrase is, and nothing else of it.
    All canaries are searched together.
    """
    check_count("the beam's width", width)
    length = queries.suffix(phrases).shape[1]
    step = max(1, queries.rows // width)
    found = np.empty((len(phrases), length), dtype=np.int64)
    for begin in track(range(0, len(phrases), step)):
        some = slice(begin, begin + step)
        beams = _Beams.start(queries.start(phrases[some]))
        for _ in range(length - 1):
            beams = beams.longer(queries, width)
        found[some] = beams.ends(queries).numpy()
    return found


@dataclass(frozen=True, eq=False)
class _Beams:
    """The ``paths`` (n, beams, words so far) that n canaries' beams hold, the likeliest first.

    ``scores`` (n, beams) are their log-probabilities. The model has read them but for their last word, where there is
    one: row ``parents[i, j]`` of ``state`` comes before it.
    """

    scores: Tensor
    paths: Tensor
    state: State
    parents: Tensor

    @classmethod
    def start(cls, state: State) -> _Beams:
        """One beam for each state, without a word."""
        n = len(state[0])
        scores, paths = torch.zeros(n, 1, dtype=torch.float64), torch.empty(n, 1, 0, dtype=torch.int64)
        return cls(scores, paths, state, torch.arange(n)[:, None])

    def read(self, queries: Queries, canaries: Tensor, beams: Tensor) -> State:
        """States of some beams, with all of their words."""
        parents = self.parents[canaries, beams]
        if not self.paths.shape[2]:
            return tuple(tensor.index_select(0, parents) for tensor in self.state)
        return queries.steps.extend(self.state, parents, self.paths[canaries, beams, -1])

    def longer(self, queries: Queries, width: int) -> _Beams:
        """The ``width`` likeliest paths with one more word, or all where there are fewer."""
        n, beams = self.scores.shape
        kept = min(width, len(queries.language.words))
        every = torch.arange(n * beams)
        state = self.read(queries, every // beams, every % beams)
        chances, words = _likeliest(queries, state, kept)
        total = (self.scores[:, :, None] + chances.view(n, beams, kept)).flatten(1)
        scores, best = total.topk(min(width, total.shape[1]), dim=1)
        beam, own = best // kept, torch.arange(n)[:, None]
        paths = torch.cat([self.paths[own, beam], words.view(n, -1).gather(1, best)[:, :, None]], dim=2)
        return _Beams(scores, paths, state, own * beams + beam)

    def ends(self, queries: Queries) -> Tensor:
        """The likeliest path with one more word, of each canary, (n, words so far + 1).

        A word's probability is at most 1, so beams are read, the likeliest first, only where they are likelier than the
        best end so far.
        """
        n, beams = self.scores.shape
        best = torch.full((n,), -math.inf, dtype=torch.float64)
        found = torch.empty(n, self.paths.shape[2] + 1, dtype=torch.int64)
        for beam in range(beams):
            hopeful = torch.nonzero(self.scores[:, beam] > best).flatten()
            if not len(hopeful):
                break
            state = self.read(queries, hopeful, torch.full_like(hopeful, beam))
            chances, words = _likeliest(queries, state, 1)
            total = self.scores[hopeful, beam] + chances[:, 0]
            better = total > best[hopeful]
            winners = hopeful[better]
            best[winners] = total[better]
            found[winners] = torch.cat([self.paths[winners, beam], words[better]], dim=1)
        return found


def _likeliest(queries: Queries, state: State, kept: int) -> tuple[Tensor, Tensor]:
    """The likeliest words after each state, and their log-probabilities: beams' best are among their words' best.

    The largest of each block of words tells which blocks to look into, which is faster than ``topk`` of all.
    """
    words = queries.language.words
    chances = queries.steps.log_probabilities(state)[:, words.start : words.stop]
    blocks = len(words) // _BLOCK
    if blocks > kept:
        even = blocks * _BLOCK
        where = chances[:, :even].unflatten(1, (blocks, _BLOCK)).amax(2).topk(kept, dim=1).indices
        columns = (where[:, :, None] * _BLOCK + torch.arange(_BLOCK)).flatten(1)
        columns = torch.cat([columns, torch.arange(even, len(words)).expand(len(chances), -1)], dim=1)
        found, places = chances.gather(1, columns).topk(kept, dim=1)
        places = columns.gather(1, places)
    else:
        found, places = chances.topk(kept, dim=1)
    return found.double(), places + words.start


def extracted(queries: Queries, canaries: PhraseCanaries, *, width: int = 5, track: Track = iter) -> Bools:
    """Which canaries a beam search gives word by word."""
    found = beam_search(queries, canaries.phrases, width=width, track=track)
    return np.asarray((found == queries.suffix(canaries.phrases)).all(axis=1))
