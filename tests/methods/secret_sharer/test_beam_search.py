"""Beam search of all canaries at once is that of each."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from coalmine.methods.secret_sharer.beam_search import beam_search
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.simulation.models.steps import RecomputedSteps
from phrase_models import TOKENS, toy_model, toy_phrases, toy_scorer


def naive_beam(module, phrase, prefix, width, length):
    """One canary, one beam at a time, one forward pass each."""
    beams = [((), 0.0)]
    for _ in range(length):
        extended = []
        for words, score in beams:
            with torch.no_grad():
                log_probabilities = module(torch.tensor([[1, *phrase[:prefix], *words]]))[0, -1].double().log_softmax(0)
            extended += [((*words, w), score + float(log_probabilities[w])) for w in range(4, TOKENS)]
        beams = sorted(extended, key=lambda beam: -beam[1])[:width]
    return list(beams[0][0])


@pytest.mark.parametrize("name", ["word-lstm", "shakespeare-lstm"])
@pytest.mark.parametrize(("width", "prefix"), [(1, 1), (3, 2), (5, 1), (20, 2), (5, 0)])
def test_beam_search_of_all_canaries_is_that_of_each(name, width, prefix):
    scorer = toy_scorer(name, prefix)
    suffixes = beam_search(scorer, toy_phrases(), width=width)
    expected = [naive_beam(toy_model(name), phrase.tolist(), prefix, width, 4 - prefix) for phrase in toy_phrases()]
    assert suffixes.tolist() == expected


def test_a_beam_as_wide_as_the_vocabulary_finds_the_likeliest_pair():
    scorer = toy_scorer(prefix=2)
    every = np.array(list(itertools.product(range(4, TOKENS), repeat=2)))
    for phrase, suffix in zip(toy_phrases(), beam_search(scorer, toy_phrases(), width=12), strict=True):
        whole = np.concatenate([np.tile(phrase[:2], (len(every), 1)), every], axis=1)
        assert suffix.tolist() == every[scorer.log_perplexities(whole).argmin()].tolist()


class Tabled(nn.Module):
    """Four words whose log_probabilities depend on all words before, each time anew."""

    def forward(self, tokens):
        rows = [np.random.default_rng([len(row), *row]).standard_normal(4) for row in tokens.tolist()]
        return 1.5 * torch.tensor(np.array(rows), dtype=torch.float32)


def test_a_beam_wider_than_the_vocabulary_finds_the_likeliest_of_all():
    language = Language(size=4, words=range(1, 4), begin=0)
    scorer = PhraseScorer(RecomputedSteps(Tabled(), 4), language, 2)
    every = np.array(list(itertools.product(language.words, repeat=5)))
    given_words = np.array(list(itertools.product(language.words, repeat=2)))
    phrases = np.concatenate([given_words, np.ones((len(given_words), 5), dtype=int)], axis=1)
    for phrase, suffix in zip(phrases, beam_search(scorer, phrases, width=81), strict=True):
        whole = np.concatenate([np.tile(phrase[:2], (len(every), 1)), every], axis=1)
        np.testing.assert_array_equal(suffix, every[np.argmin(scorer.log_perplexities(whole))])
