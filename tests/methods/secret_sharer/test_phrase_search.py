"""Searches give what scoring everything gives."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.beam_search import beam_search
from coalmine.methods.secret_sharer.phrase_search import Queries, SampledRanks, sampled_ranks, scored_ranks
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.methods.secret_sharer.references import Trie
from coalmine.methods.secret_sharer.whole_space import whole_space_ranks
from coalmine.simulation import models
from coalmine.simulation.data import Task
from coalmine.simulation.models.steps import RecomputedSteps, steps_of

TOKENS = 16
LANGUAGE = Language(size=TOKENS, words=range(4, TOKENS))
TASK = Task(input_shape=(8,), classes=TOKENS, tokens=TOKENS, per_position=True, ignored=0)


def model(name="word-lstm", sharp=3.0):
    """A model of strong opinions: some beginnings are much likelier than others."""
    settings = {"word-lstm": {"embedding": 6, "units": 9}, "transformer": {"width": 8, "heads": 2}}[name]
    module = models.build(name, TASK, seed=1, **settings)
    with torch.no_grad():
        module.embedding.weight.mul_(sharp if name == "word-lstm" else 40 * sharp)
    return module.eval()


def queries(name="word-lstm", prefix=1, **more):
    return Queries(steps_of(model(name, **more), TOKENS), LANGUAGE, prefix)


def phrases(count=12, length=4, seed=0):
    return np.random.default_rng(seed).integers(4, TOKENS, (count, length))


def log_perplexity(module, phrase, prefix):
    """By definition: one forward pass of one phrase."""
    tokens = torch.tensor([[1, *phrase]])
    with torch.no_grad():
        chances = module(tokens[:, :-1]).double().log_softmax(2)[0]
    return -sum(float(chances[i, phrase[i]]) for i in range(prefix, len(phrase)))


@pytest.mark.parametrize("name", ["word-lstm", "transformer"])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_log_perplexity_is_that_of_one_forward_pass(name, prefix):
    asked = queries(name, prefix)
    found = asked.log_perplexities(phrases())
    expected = [log_perplexity(model(name), phrase, prefix) for phrase in phrases().tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_word_lstm_word_by_word_is_its_forward_pass():
    module = model()
    steps, again = steps_of(module, TOKENS), RecomputedSteps(module, TOKENS)
    tokens = torch.randint(4, TOKENS, (5, 3), generator=torch.Generator().manual_seed(0))
    parents, more = torch.tensor([4, 0, 0, 2]), torch.tensor([5, 6, 7, 8])
    for reader in (steps, again):
        state = reader.extend(reader.start(tokens), parents, more)
        expected = module(torch.cat([tokens[parents], more[:, None]], dim=1))[:, -1].log_softmax(1)
        torch.testing.assert_close(reader.log_probabilities(state), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["word-lstm", "transformer"])
def test_branch_and_bound_gives_the_ranks_of_scoring_everything(name):
    asked = queries(name)
    references = phrases(3000, 3, seed=2).astype(np.int32)
    found = sampled_ranks(asked, phrases(), references, limit=None)
    assert np.array_equal(found.ranks, scored_ranks(asked, phrases(), references))
    assert set(found.among) == {3000}


@pytest.mark.parametrize("common", [1, 4])
def test_ranks_are_the_same_where_lower_bounds_are_loose(monkeypatch, common):
    monkeypatch.setattr("coalmine.simulation.models.word_lstm._COMMON", common)
    asked = queries(sharp=2.0)
    references = phrases(2000, 5, seed=3)
    found = sampled_ranks(asked, phrases(length=6), references, limit=None)
    assert np.array_equal(found.ranks, scored_ranks(asked, phrases(length=6), references))
    assert len(set(found.ranks)) > 8


def test_a_trie_gives_its_sequences_back():
    rows = phrases(300, 4, seed=5)
    trie = Trie.of(rows)
    leaves = np.arange(len(trie.copies))
    assert np.array_equal(np.repeat(trie.sequences(leaves), trie.copies, axis=0), rows[np.lexsort(rows.T[::-1])])


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 400), length=st.integers(2, 5), prefix=st.integers(0, 1))
def test_ranks_are_those_of_a_sorted_list_of_losses(seed, count, length, prefix):
    asked = queries(prefix=prefix)
    canaries = phrases(3, length, seed)
    references = phrases(count, length - prefix, seed + 1)
    found = sampled_ranks(asked, canaries, references, limit=None).ranks
    for phrase, rank in zip(canaries, found, strict=True):
        whole = np.concatenate([np.tile(phrase[:prefix], (count, 1)), references], axis=1)
        losses, own = asked.log_perplexities(whole), asked.log_perplexities(phrase[None])[0]
        same = (references == phrase[prefix:]).all(axis=1)
        assert rank == 1 + int(((losses <= own) | same).sum())


def test_a_reference_like_the_canary_itself_counts_as_not_higher():
    asked = queries()
    canary = phrases(1)
    references = np.tile(canary[:, 1:], (5, 1))
    assert sampled_ranks(asked, canary, references, limit=None).ranks.tolist() == [6]


def test_a_memorized_canary_is_first_and_a_forgotten_one_is_ranked_among_fewer(monkeypatch):
    monkeypatch.setattr("coalmine.methods.secret_sharer.phrase_search._ROWS", 8)
    asked = queries()
    every = np.array(list(itertools.product(range(4, TOKENS), repeat=3)))
    losses = asked.log_perplexities(np.concatenate([np.full((len(every), 1), 7), every], axis=1))
    best, median = every[losses.argmin()], every[np.argsort(losses)[len(every) // 2]]
    canaries = np.concatenate([np.full((2, 1), 7), np.stack([best, median])], axis=1)
    references = np.repeat(every[(every != best).any(axis=1)], 3, axis=0)
    references = references[np.random.default_rng(0).permutation(len(references))]
    found = sampled_ranks(asked, canaries, references, limit=100)
    assert found.memorized.tolist() == [True, False]
    assert found.among[0] == len(references) > found.among[1]
    assert found.exposures[0] == np.log2(len(references))
    exact = sampled_ranks(asked, canaries, references, limit=None)
    assert found.exposures[1] == pytest.approx(exact.exposures[1], abs=0.3)


def test_a_rank_among_few_shows_no_more_than_the_rank_among_all_allows():
    first_of_few = SampledRanks(np.array([1]), np.array([10_000]), np.array([1002]), 2_000_000)
    assert first_of_few.exposures == pytest.approx([np.log2(2_000_000 / 1002)])


def test_the_search_stops_early_only_beyond_the_limit(monkeypatch):
    monkeypatch.setattr("coalmine.methods.secret_sharer.phrase_search._ROWS", 16)
    asked = queries()
    references = phrases(3000, 3, seed=2)
    exact = sampled_ranks(asked, phrases(), references, limit=None).ranks
    limited = sampled_ranks(asked, phrases(), references, limit=200)
    within = limited.among == 3000
    assert (limited.exposures[~within] <= np.log2(3000 / 202)).all()
    assert (limited.least <= exact).all()
    assert np.array_equal(limited.ranks[within], exact[within])
    assert np.all(exact[~within] > 200)
    assert 0 < within.sum() < len(within)


@pytest.mark.parametrize("prefix", [1, 2])
def test_the_rank_in_the_whole_space_is_that_of_listing_it(prefix):
    asked = queries(prefix=prefix)
    every = np.array(list(itertools.product(range(4, TOKENS), repeat=4 - prefix)))
    found = whole_space_ranks(asked, phrases(), budget=10**6)
    for phrase, interval in zip(phrases(), found, strict=True):
        whole = np.concatenate([np.tile(phrase[:prefix], (len(every), 1)), every], axis=1)
        losses = asked.log_perplexities(whole)
        own = losses[(every == phrase[prefix:]).all(axis=1)]
        assert interval.exact
        assert interval.low == 1 + int((losses <= own).sum()) - 1
        assert interval.space == len(every)


def test_an_unfinished_search_bounds_the_rank_from_both_sides():
    asked = queries(sharp=1.5)
    asked = Queries(asked.steps, LANGUAGE, 0)
    exact = whole_space_ranks(asked, phrases(), budget=10**6)
    open_ones = 0
    for budget in (1, 5, 50):
        for whole, part in zip(exact, whole_space_ranks(asked, phrases(), budget=budget), strict=True):
            assert part.low <= whole.low <= part.high <= part.space
            assert part.exposure[0] <= whole.exposure[0] <= part.exposure[1]
            open_ones += not part.exact
    assert open_ones > 10


def naive_beam(module, phrase, prefix, width, length):
    """One canary, one beam at a time, one forward pass each."""
    beams = [((), 0.0)]
    for _ in range(length):
        found = []
        for words, score in beams:
            with torch.no_grad():
                chances = module(torch.tensor([[1, *phrase[:prefix], *words]]))[0, -1].double().log_softmax(0)
            found += [((*words, w), score + float(chances[w])) for w in range(4, TOKENS)]
        beams = sorted(found, key=lambda beam: -beam[1])[:width]
    return list(beams[0][0])


@pytest.mark.parametrize("name", ["word-lstm", "transformer"])
@pytest.mark.parametrize(("width", "prefix"), [(1, 1), (3, 2), (5, 1), (20, 2), (5, 0)])
def test_beam_search_of_all_canaries_is_that_of_each(name, width, prefix):
    asked = queries(name, prefix)
    found = beam_search(asked, phrases(), width=width)
    expected = [naive_beam(model(name), phrase.tolist(), prefix, width, 4 - prefix) for phrase in phrases()]
    assert found.tolist() == expected


def test_a_beam_as_wide_as_the_vocabulary_finds_the_likeliest_pair():
    asked = queries(prefix=2)
    every = np.array(list(itertools.product(range(4, TOKENS), repeat=2)))
    for phrase, found in zip(phrases(), beam_search(asked, phrases(), width=12), strict=True):
        whole = np.concatenate([np.tile(phrase[:2], (len(every), 1)), every], axis=1)
        assert found.tolist() == every[asked.log_perplexities(whole).argmin()].tolist()


@given(rows=st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=60))
def test_a_trie_holds_every_sequence_as_often_as_it_occurs(rows):
    trie = Trie.of(np.array(rows))
    found = {}
    for first in range(len(trie.words[0])):
        for second in trie.children(0, np.array([first]))[0]:
            for third in trie.children(1, np.array([second]))[0]:
                key = tuple(int(trie.words[k][n]) for k, n in enumerate((first, second, third)))
                found[key] = int(trie.copies[third])
                assert trie.find(np.array(key)) == third
    assert found == {row: rows.count(row) for row in rows}
    assert trie.find(np.array([6, 6, 6])) is None


def test_sequences_too_long_for_one_number_are_sorted_too():
    rows = np.random.default_rng(0).integers(0, 50_000, (200, 5))
    trie = Trie.of(rows)
    assert all(trie.find(row) is not None for row in rows)
    assert np.all(np.diff(trie.words[0]) > 0)


def test_a_prefix_as_long_as_the_canary_is_refused():
    for ask in (lambda q: q.log_perplexities(phrases()), lambda q: beam_search(q, phrases())):
        with pytest.raises(InputError, match="the prefix of 4 words is not shorter than the canaries, which have 4"):
            ask(queries(prefix=4))


def test_references_of_another_length_are_refused():
    with pytest.raises(InputError, match="3 words, got 2"):
        sampled_ranks(queries(), phrases(), phrases(5, 2))


def test_a_model_of_another_width_is_refused():
    with pytest.raises(InputError, match="the model has 16 words, but the vocabulary has 20 entries"):
        steps_of(model(), 20)
    wide = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 18))
    with pytest.raises(InputError, match="width 18, but the vocabulary has 20"):
        steps_of(wide, 20).log_probabilities((torch.tensor([[1, 5]]),))


def test_without_a_begin_mark_something_must_be_given():
    with pytest.raises(InputError, match="at least 1 word"):
        Queries(steps_of(model(), TOKENS), Language(size=TOKENS, words=range(4, TOKENS), begin=None), 0)


class Tabled(nn.Module):
    """Four words whose chances depend on all words before, each time anew."""

    def forward(self, tokens):
        rows = [np.random.default_rng([len(row), *row]).standard_normal(4) for row in tokens.tolist()]
        return 1.5 * torch.tensor(np.array(rows), dtype=torch.float32)


def test_a_beam_wider_than_the_vocabulary_finds_the_likeliest_of_all():
    language = Language(size=4, words=range(1, 4), begin=0)
    asked = Queries(RecomputedSteps(Tabled(), 4), language, 2)
    every = np.array(list(itertools.product(language.words, repeat=5)))
    given_words = np.array(list(itertools.product(language.words, repeat=2)))
    some = np.concatenate([given_words, np.ones((len(given_words), 5), dtype=int)], axis=1)
    for phrase, found in zip(some, beam_search(asked, some, width=81), strict=True):
        whole = np.concatenate([np.tile(phrase[:2], (len(every), 1)), every], axis=1)
        np.testing.assert_array_equal(found, every[np.argmin(asked.log_perplexities(whole))])


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
    asked = Queries(RecomputedSteps(Even(words), words), Language(size=words, words=range(words), begin=0))
    (found,) = whole_space_ranks(asked, np.array([[1, 2, 3, 4, 4]]), budget=2)
    assert found.low <= words**4 <= found.high


def test_a_phrase_of_probability_0_is_last_of_all():
    asked = Queries(RecomputedSteps(Even(9, stop=5), 9), Language(size=9, words=range(9), begin=0))
    (found,) = whole_space_ranks(asked, np.array([[1, 2, 8]]), budget=1)
    assert (found.low, found.high) == (81, 81)


def test_a_model_that_diverged_is_refused():
    module = model()
    with torch.no_grad():
        module.embedding.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="diverged"):
        Queries(steps_of(module, TOKENS), LANGUAGE).log_perplexities(phrases())
