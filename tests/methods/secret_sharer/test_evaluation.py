"""Log-perplexities, ranks by branch and bound, and beam search, each compared with the plain way."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.evaluation import (
    PhraseScorer,
    Trie,
    beam_search,
    random_suffixes,
    sampled_ranks,
    scored_ranks,
)
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.simulation.models.text import Steps, steps_of
from phrase_models import LANGUAGE, TOKENS, toy_model, toy_phrases, toy_scorer


def log_perplexity(module, phrase, prefix):
    """By definition: one forward pass of one phrase."""
    tokens = torch.tensor([[1, *phrase]])
    with torch.no_grad():
        log_probabilities = module(tokens[:, :-1]).double().log_softmax(2)[0]
    return -sum(float(log_probabilities[i, phrase[i]]) for i in range(prefix, len(phrase)))


@pytest.mark.parametrize("name", ["word-lstm", "shakespeare-lstm"])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_log_perplexity_is_that_of_one_forward_pass(name, prefix):
    scorer = toy_scorer(name, prefix)
    actual = scorer.log_perplexities(toy_phrases())
    expected = [log_perplexity(toy_model(name), phrase, prefix) for phrase in toy_phrases().tolist()]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_the_word_lstm_word_by_word_is_its_forward_pass():
    module = toy_model()
    steps, again = steps_of(module, TOKENS), Steps(module, TOKENS)
    tokens = torch.randint(4, TOKENS, (5, 3), generator=torch.Generator().manual_seed(0))
    parents, more = torch.tensor([4, 0, 0, 2]), torch.tensor([5, 6, 7, 8])
    for reader in (steps, again):
        state = reader.extend(reader.start(tokens), parents, more)
        expected = module(torch.cat([tokens[parents], more[:, None]], dim=1))[:, -1].log_softmax(1)
        torch.testing.assert_close(reader.log_probabilities(state), expected, rtol=1e-4, atol=1e-5)


def test_a_prefix_as_long_as_the_canary_is_refused():
    for query in (
        lambda scorer: scorer.log_perplexities(toy_phrases()),
        lambda scorer: beam_search(scorer, toy_phrases()),
    ):
        with pytest.raises(InputError, match=r"prefix = 4.* which have 4 words"):
            query(toy_scorer(prefix=4))


def test_a_model_of_another_width_is_refused():
    with pytest.raises(InputError, match="the model has 16 words, but the vocabulary has 20 entries"):
        steps_of(toy_model(), 20)
    wide = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 18))
    with pytest.raises(InputError, match="width 18, but the vocabulary has 20"):
        steps_of(wide, 20).log_probabilities((torch.tensor([[1, 5]]),))


def test_without_a_begin_mark_something_must_be_given():
    with pytest.raises(InputError, match="at least 1 word"):
        PhraseScorer(steps_of(toy_model(), TOKENS), Language(size=TOKENS, words=range(4, TOKENS), begin=None), 0)


def test_a_model_that_diverged_is_refused():
    module = toy_model()
    with torch.no_grad():
        module.embedding.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="diverged"):
        PhraseScorer(steps_of(module, TOKENS), LANGUAGE).log_perplexities(toy_phrases())


def test_references_are_uniform_words_of_the_suffix():
    language = Language(size=100, words=range(4, 100))
    suffixes = random_suffixes(language, count=5000, length=4, seed=1)
    assert suffixes.shape == (5000, 4)
    assert (suffixes.min(), suffixes.max()) == (4, 99)


@pytest.mark.parametrize("name", ["word-lstm", "shakespeare-lstm"])
def test_branch_and_bound_gives_the_ranks_of_scoring_everything(name):
    scorer = toy_scorer(name)
    references = toy_phrases(3000, 3, seed=2).astype(np.int32)
    sampled = sampled_ranks(scorer, toy_phrases(), references, limit=None)
    assert np.array_equal(sampled.ranks, scored_ranks(scorer, toy_phrases(), references))
    assert set(sampled.among) == {3000}


def test_ranks_are_the_same_for_long_phrases_of_a_sharp_model():
    scorer = toy_scorer(sharp=2.0)
    references = toy_phrases(2000, 5, seed=3)
    sampled = sampled_ranks(scorer, toy_phrases(length=6), references, limit=None)
    assert np.array_equal(sampled.ranks, scored_ranks(scorer, toy_phrases(length=6), references))
    assert len(set(sampled.ranks)) > 8


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 400), length=st.integers(2, 5), prefix=st.integers(0, 1))
def test_ranks_are_those_of_a_sorted_list_of_losses(seed, count, length, prefix):
    scorer = toy_scorer(prefix=prefix)
    canaries = toy_phrases(3, length, seed)
    references = toy_phrases(count, length - prefix, seed + 1)
    ranks = sampled_ranks(scorer, canaries, references, limit=None).ranks
    for phrase, rank in zip(canaries, ranks, strict=True):
        whole = np.concatenate([np.tile(phrase[:prefix], (count, 1)), references], axis=1)
        losses, loss = scorer.log_perplexities(whole), scorer.log_perplexities(phrase[None])[0]
        same = (references == phrase[prefix:]).all(axis=1)
        assert rank == 1 + int(((losses <= loss) | same).sum())


def test_a_reference_like_the_canary_itself_counts_as_not_higher():
    scorer = toy_scorer()
    canary = toy_phrases(1)
    references = np.tile(canary[:, 1:], (5, 1))
    assert sampled_ranks(scorer, canary, references, limit=None).ranks.tolist() == [6]


def test_a_memorized_canary_is_first_and_a_forgotten_one_is_ranked_among_fewer(monkeypatch):
    monkeypatch.setattr("coalmine.methods.secret_sharer.evaluation._MAX_STATES", 8)
    monkeypatch.setattr("coalmine.methods.secret_sharer.evaluation._SMALLEST_PART", 500)
    scorer = toy_scorer()
    every = np.array(list(itertools.product(range(4, TOKENS), repeat=3)))
    losses = scorer.log_perplexities(np.concatenate([np.full((len(every), 1), 7), every], axis=1))
    best, median = every[losses.argmin()], every[np.argsort(losses)[len(every) // 2]]
    canaries = np.concatenate([np.full((2, 1), 7), np.stack([best, median])], axis=1)
    references = np.repeat(every[(every != best).any(axis=1)], 3, axis=0)
    references = references[np.random.default_rng(0).permutation(len(references))]
    sampled = sampled_ranks(scorer, canaries, references, limit=100)
    assert sampled.memorized.tolist() == [True, False]
    assert sampled.among[0] == len(references) > sampled.among[1]
    assert sampled.exposures[0] == np.log2(len(references))
    exact = sampled_ranks(scorer, canaries, references, limit=None)
    assert sampled.exposures[1] == pytest.approx(exact.exposures[1], abs=0.3)


def test_a_part_of_the_references_decides_only_beyond_the_limit(monkeypatch):
    monkeypatch.setattr("coalmine.methods.secret_sharer.evaluation._SMALLEST_PART", 30)
    scorer = toy_scorer()
    references = toy_phrases(3000, 3, seed=2)
    limited = sampled_ranks(scorer, toy_phrases(), references, limit=20)
    assert set(limited.among) == {30, 300, 3000}
    for size in (30, 300, 3000):
        exact = scored_ranks(scorer, toy_phrases(), references[:size])
        ended = limited.among == size
        assert np.array_equal(limited.ranks[ended], exact[ended])
        assert size == 3000 or np.all(exact[ended] > 21)
        assert np.all(exact[limited.among > size] <= 21)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), highest=st.sampled_from([3, 1000, 2**31 - 1]), length=st.integers(1, 5))
def test_a_trie_has_every_sequence_as_often_as_it_occurs(seed, highest, length):
    rows = np.random.default_rng(seed).integers(0, highest, (50, length))
    trie = Trie.of(rows)
    assert np.array_equal(trie.rows.repeat(trie.copies, axis=0), rows[np.lexsort(rows.T[::-1])])
    # Walking down from every root, level by level, spells every different sequence once.
    nodes, paths = np.arange(len(trie.words[0])), trie.words[0][:, None]
    for level in range(length - 1):
        nodes, parents = trie.children(level, nodes)
        paths = np.concatenate([paths[parents], trie.words[level + 1][nodes][:, None]], axis=1)
    assert np.array_equal(paths, trie.rows)


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


def test_references_of_another_length_are_refused():
    with pytest.raises(InputError, match="3 words like the suffixes, got 2"):
        sampled_ranks(toy_scorer(), toy_phrases(), toy_phrases(5, 2))


def test_a_beam_wider_than_the_vocabulary_finds_the_likeliest_of_all():
    language = Language(size=4, words=range(1, 4), begin=0)
    scorer = PhraseScorer(Steps(Tabled(), 4), language, 2)
    every = np.array(list(itertools.product(language.words, repeat=5)))
    given_words = np.array(list(itertools.product(language.words, repeat=2)))
    phrases = np.concatenate([given_words, np.ones((len(given_words), 5), dtype=int)], axis=1)
    for phrase, suffix in zip(phrases, beam_search(scorer, phrases, width=81), strict=True):
        whole = np.concatenate([np.tile(phrase[:2], (len(every), 1)), every], axis=1)
        np.testing.assert_array_equal(suffix, every[np.argmin(scorer.log_perplexities(whole))])
