"""Log-perplexities, word by word and in one forward pass."""

import numpy as np
import pytest
import torch
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.beam_search import beam_search
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.simulation.models.steps import RecomputedSteps, steps_of
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
    steps, again = steps_of(module, TOKENS), RecomputedSteps(module, TOKENS)
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
