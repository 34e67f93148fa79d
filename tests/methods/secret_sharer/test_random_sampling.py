"""Branch and bound finds the ranks that scoring every reference gives."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.random_sampling import Trie, sampled_ranks, scored_ranks
from phrase_models import TOKENS, toy_phrases, toy_scorer


@pytest.mark.parametrize("name", ["word-lstm", "shakespeare-lstm"])
def test_branch_and_bound_gives_the_ranks_of_scoring_everything(name):
    scorer = toy_scorer(name)
    references = toy_phrases(3000, 3, seed=2).astype(np.int32)
    sampled = sampled_ranks(scorer, toy_phrases(), references, limit=None)
    assert np.array_equal(sampled.ranks, scored_ranks(scorer, toy_phrases(), references))
    assert set(sampled.among) == {3000}


@pytest.mark.parametrize("common", [1, 4])
def test_ranks_are_the_same_where_lower_bounds_are_loose(monkeypatch, common):
    monkeypatch.setattr("coalmine.simulation.models.word_lstm._COMMON", common)
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
    monkeypatch.setattr("coalmine.methods.secret_sharer.scorer._MAX_STATES", 8)
    monkeypatch.setattr("coalmine.methods.secret_sharer.random_sampling._SMALLEST_PART", 500)
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
    monkeypatch.setattr("coalmine.methods.secret_sharer.random_sampling._SMALLEST_PART", 30)
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
def test_a_trie_has_every_sequence(seed, highest, length):
    rows = np.random.default_rng(seed).integers(0, highest, (50, length))
    trie = Trie.of(rows)
    kept = trie.sequences(np.arange(len(trie.copies))).repeat(trie.copies, axis=0)
    assert np.array_equal(kept, rows[np.lexsort(rows.T[::-1])])


def test_references_of_another_length_are_refused():
    with pytest.raises(InputError, match="3 words, got 2"):
        sampled_ranks(toy_scorer(), toy_phrases(), toy_phrases(5, 2))
