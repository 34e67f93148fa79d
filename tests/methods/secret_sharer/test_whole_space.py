"""Ranks among all phrases, exact or in an interval that holds them."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from coalmine.methods.secret_sharer.phrases import Language
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.methods.secret_sharer.whole_space import whole_space_ranks
from coalmine.simulation.models.steps import RecomputedSteps
from phrase_models import LANGUAGE, TOKENS, toy_phrases, toy_scorer


@pytest.mark.parametrize("prefix", [1, 2])
def test_the_rank_in_the_whole_space_is_that_of_listing_it(prefix):
    scorer = toy_scorer(prefix=prefix)
    every = np.array(list(itertools.product(range(4, TOKENS), repeat=4 - prefix)))
    intervals = whole_space_ranks(scorer, toy_phrases(), budget=10**6)
    for phrase, interval in zip(toy_phrases(), intervals, strict=True):
        whole = np.concatenate([np.tile(phrase[:prefix], (len(every), 1)), every], axis=1)
        losses = scorer.log_perplexities(whole)
        loss = losses[(every == phrase[prefix:]).all(axis=1)]
        rank = 1 + int((losses <= loss).sum()) - 1
        assert interval == (rank, rank)


def test_an_unfinished_search_bounds_the_rank_from_both_sides():
    scorer = toy_scorer(sharp=1.5)
    scorer = PhraseScorer(scorer.steps, LANGUAGE, 0)
    exact = whole_space_ranks(scorer, toy_phrases(), budget=10**6)
    open_ones = 0
    for budget in (1, 5, 50):
        intervals = whole_space_ranks(scorer, toy_phrases(), budget=budget)
        for (rank, _), (low, high) in zip(exact, intervals, strict=True):
            assert low <= rank <= high <= len(LANGUAGE.words) ** 4
            open_ones += low < high
    assert open_ones > 10


class Even(nn.Module):
    """All words alike, or with a chance of 0 from a word on."""

    def __init__(self, words, stop=None):
        super().__init__()
        self.logits = torch.zeros(words)
        self.logits[stop or words :] = -torch.inf

    def forward(self, tokens):
        return self.logits.expand(len(tokens), -1)


@pytest.mark.parametrize("words", [47, 63, 70])
def test_rounding_does_not_cut_the_interval_of_a_rank_short(words):
    scorer = PhraseScorer(RecomputedSteps(Even(words), words), Language(size=words, words=range(words), begin=0))
    (interval,) = whole_space_ranks(scorer, np.array([[1, 2, 3, 4, 4]]), budget=2)
    assert interval[0] <= words**4 <= interval[1]


def test_a_phrase_of_probability_0_is_last_of_all():
    scorer = PhraseScorer(RecomputedSteps(Even(9, stop=5), 9), Language(size=9, words=range(9), begin=0))
    (interval,) = whole_space_ranks(scorer, np.array([[1, 2, 8]]), budget=1)
    assert interval == (81, 81)
