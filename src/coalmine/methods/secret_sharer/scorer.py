"""How likely a language model finds a phrase: log-perplexity of a suffix after its prefix (Thakkar et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.simulation.models.steps import State, Steps

# Limits on what is computed at once: 32 MB of float32 logits, and this many model states.
_MAX_LOGITS, _MAX_STATES = 1 << 23, 4096


@dataclass(frozen=True, eq=False)
class PhraseScorer:
    """Scores phrases with a language model that is read token by token.

    The adversary knows the first ``prefix`` words of a phrase, the prefix; the remaining words are its suffix.

    Args:
        steps: The model, as `coalmine.simulation.models.steps.steps_of` wraps it.
        language: The words that phrases are made of, and the mark before each phrase.
        prefix: Number of words that the adversary knows.

    Raises:
        InputError: If the prefix is empty and the language has no begin mark, so that the model has nothing to read.
    """

    steps: Steps
    language: Language
    prefix: int = 1

    def __post_init__(self) -> None:
        check_count("prefix", self.prefix, least=0)
        if not self.prefix and self.language.begin is None:
            raise InputError("prefix must be at least 1 word for a language without a begin mark, got 0")

    @property
    def batch_size(self) -> int:
        """Number of model states to process at once."""
        return max(1, min(_MAX_STATES, _MAX_LOGITS // self.steps.words))

    def suffixes(self, phrases: Ints) -> Ints:
        """Return the words (n, length - prefix) that the adversary does not know."""
        if self.prefix >= phrases.shape[1]:
            raise InputError(
                f"prefix = {self.prefix} must be shorter than the canaries, which have {phrases.shape[1]} words"
            )
        return phrases[:, self.prefix :]

    def start(self, phrases: Ints) -> State:
        """Return the model's states after each phrase's prefix."""
        context = self.language.context
        tokens = np.empty((len(phrases), len(context) + self.prefix), dtype=np.int64)
        tokens[:, : len(context)] = context
        tokens[:, len(context) :] = phrases[:, : self.prefix]
        return self.steps.start(torch.from_numpy(tokens))

    def log_perplexities(self, phrases: Ints) -> Floats:
        """Return -log Pr(suffix | prefix) of each phrase in nats, shape (n,).

        Args:
            phrases: Words of the phrases, shape (n, length).

        Raises:
            InputError: If the model's probabilities are NaN.
        """
        suffixes = self.suffixes(phrases)
        losses = np.empty(len(phrases))
        for begin in range(0, len(phrases), self.batch_size):
            batch = slice(begin, begin + self.batch_size)
            losses[batch] = self.costs(self.start(phrases[batch]), suffixes[batch])
        if np.isnan(losses).any():
            raise InputError("the model's probabilities are NaN: its training diverged")
        return losses

    def costs(self, state: State, words: npt.NDArray[np.integer]) -> Floats:
        """Return -log Pr of each row of ``words`` (n, length) after the same row of ``state``, in nats, shape (n,)."""
        tokens, rows = torch.from_numpy(words.astype(np.int64)), torch.arange(len(words))
        costs = np.zeros(len(words))
        for position, word in enumerate(tokens.unbind(1)):
            if position:
                state = self.steps.extend(state, rows, tokens[:, position - 1])
            costs -= self.steps.log_probabilities(state)[rows, word].double().numpy()
        return costs
