"""The paper's two evaluation methods, random sampling and beam search, and the log-perplexity behind both.

`sampled_ranks` finds the rank of a canary among random suffixes by branch and bound. The log-perplexity of a suffix is
a sum of non-negative terms, one per word, so a beginning that already costs more than the canary rules out every
reference that starts with it, and a beginning that many references share is read only once. `scored_ranks` scores every
reference; it is the plain path that tests compare with (``python benchmarks/secret_sharer.py`` times both). See Thakkar
et al. 2020, Section 4.1, "Evaluation Methods".
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.methods.secret_sharer.phrases import Language
from coalmine.progress import track
from coalmine.seeds import generator
from coalmine.simulation.models.text import State, Steps

Words = npt.NDArray[np.integer]

# Limits on what is computed at once: 32 MB of float32 logits, and this many model states.
_MAX_LOGITS, _MAX_STATES = 1 << 23, 4096

DEFAULT_LIMIT = 20
"""With more references than this before a canary, its exposure has a standard error below 1/(√20 ln 2) = 0.32 bits."""

# Canaries are ranked among nested parts of the references first, each ten times as large as the one before.
_GROWTH, _SMALLEST_PART = 10, 1000


@dataclass(frozen=True, eq=False)
class PhraseScorer:
    """Scores phrases with a language model that is read token by token.

    The adversary knows the first ``prefix`` words of a phrase, the prefix; the remaining words are its suffix.

    Args:
        steps: The model, as `coalmine.simulation.models.text.steps_of` wraps it.
        language: The words that phrases are made of, and the mark before each phrase.
        prefix: Number of words that the adversary knows; the paper has 1.

    Raises:
        InputError: If the prefix is empty and the language has no begin mark, so that the model has nothing to read.
    """

    steps: Steps
    language: Language
    prefix: int = 1

    def __post_init__(self) -> None:
        check_count("prefix", self.prefix, least=0)
        # A model predicts the next word after at least one token.
        if not self.prefix and self.language.begin is None:
            raise InputError("prefix must be at least 1 word for a language without a begin mark, got 0")

    @property
    def batch_size(self) -> int:
        """Number of model states to process at once."""
        # Each state gives one row of logits, as wide as the vocabulary.
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
        context = np.tile(np.array(self.language.context, dtype=np.int64), (len(phrases), 1))
        tokens = np.concatenate([context, phrases[:, : self.prefix]], axis=1)
        return self.steps.start(torch.from_numpy(tokens))

    def log_perplexities(self, phrases: Ints) -> Floats:
        """Return P_θ(suffix | prefix) = -log Pr(suffix | prefix) of each phrase (n, length) in nats, shape (n,).

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

    def costs(self, state: State, words: Words) -> Floats:
        """Return -log Pr of each row of ``words`` (n, length) after the same row of ``state``, in nats, shape (n,)."""
        tokens, rows = torch.from_numpy(words.astype(np.int64)), torch.arange(len(words))
        costs = np.zeros(len(words))  # float64, so that a sum of float32 terms is rounded once per term only
        for position, word in enumerate(tokens.unbind(1)):
            if position:  # the state after the prefix predicts the first word
                state = self.steps.extend(state, rows, tokens[:, position - 1])
            costs -= self.steps.log_probabilities(state)[rows, word].double().numpy()
        return costs


@dataclass(frozen=True, eq=False)
class SampledRanks:
    """Ranks of canaries among random suffixes.

    The rank is 1 + the number of references whose log-perplexity is not higher than the canary's.

    Args:
        ranks: Rank of each canary, shape (n,).
        among: Number of references it was ranked among, shape (n,): all of them, or a part in which more references
            than the search's limit come before it.
        references: Number of all references.
    """

    ranks: Ints
    among: Ints
    references: int

    @property
    def memorized(self) -> Bools:
        """Which canaries the model finds likelier than every reference."""
        return np.asarray((self.ranks == 1) & (self.among == self.references))

    @property
    def exposures(self) -> Floats:
        """Exposure in bits: log2 of the number of references it was ranked among - log2(rank)."""
        return np.asarray(np.log2(self.among) - np.log2(self.ranks))


def random_suffixes(language: Language, *, count: int, length: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Return random word sequences (count, length) to rank canaries among: the paper's set R."""
    words = language.words
    return generator(seed, "references").integers(words.start, words.stop, (count, length), dtype=np.int32)


def sampled_ranks(
    scorer: PhraseScorer, phrases: Ints, references: Words, *, limit: int | None = DEFAULT_LIMIT
) -> SampledRanks:
    """Rank every phrase's suffix among reference suffixes, each read after the phrase's own prefix.

    The ranks are exact: the same as if every reference were scored. A rank of r is known to a relative error of about
    1/sqrt(r) however many references there are, so a canary is ranked among a small part of them first, and among ten
    times as many only while at most ``limit`` come before it.

    Args:
        scorer: The model and how much of a phrase the adversary knows.
        phrases: Words of the canaries, shape (n, length).
        references: Random suffixes in random order, shape (m, length - prefix): the paper's set R.
        limit: Most references before a canary for which it is ranked among more of them; None to rank every canary
            among all.

    Raises:
        InputError: If the references are not as long as the suffixes.
    """
    suffixes = scorer.suffixes(phrases)
    if references.shape[1] != suffixes.shape[1]:  # NumPy would compare one word with several, and give wrong ranks
        raise InputError(f"references must have {suffixes.shape[1]} words like the suffixes, got {references.shape[1]}")
    # The references are in random order, so the first tenth of them is a random part.
    sizes = [len(references)]
    while limit is not None and sizes[0] >= _GROWTH * max(limit, _SMALLEST_PART):
        sizes.insert(0, sizes[0] // _GROWTH)
    tries = [Trie.of(references[:size]) for size in sizes]
    losses = scorer.log_perplexities(phrases)
    start = scorer.start(phrases)
    ranks, among = np.empty((2, len(phrases)), dtype=np.int64)
    for i in track(range(len(phrases)), "ranking phrases"):
        state = tuple(tensor[i : i + 1] for tensor in start)  # references are read after the canary's own prefix
        for size, trie in zip(sizes, tries, strict=True):
            ahead = _Search(scorer, trie, state, suffixes[i], float(losses[i])).count()
            ranks[i], among[i] = 1 + ahead, size
            if limit is not None and ahead > limit:
                break  # its rank is known well enough, and more references would take longest for such canaries
    return SampledRanks(ranks, among, len(references))


def scored_ranks(scorer: PhraseScorer, phrases: Ints, references: Words, *, batch_size: int = 512) -> Ints:
    """Return the ranks that `sampled_ranks` finds, by scoring every reference after every prefix."""
    suffixes = scorer.suffixes(phrases)
    ranks = np.ones(len(phrases), dtype=np.int64)
    for i, (phrase, loss) in enumerate(zip(phrases, scorer.log_perplexities(phrases), strict=True)):
        for begin in range(0, len(references), batch_size):
            batch = references[begin : begin + batch_size]
            rows = np.concatenate([np.tile(phrase[: scorer.prefix], (len(batch), 1)), batch], axis=1)
            same = (batch == suffixes[i]).all(axis=1)  # as likely as the canary, whatever rounding says
            ranks[i] += int(((scorer.log_perplexities(rows) <= loss) | same).sum())
    return ranks


@dataclass(frozen=True, eq=False)
class Trie:
    """Sorted sequences of equal length; level k has one node for each different beginning of k + 1 words.

    Args:
        rows: The different sequences in lexicographic order, shape (n, length). Node i of the last level is row i.
        copies: How often each of them occurs, shape (n,).
        words: Last word of each node, one array per level.
        first: Where the children of each node begin in the next level, one array per level but the last. Each array
            has one more entry, the end of the list.
    """

    rows: Words
    copies: Ints
    words: list[Words]
    first: list[Ints]

    @classmethod
    def of(cls, sequences: Words) -> Trie:
        """Return the trie of sequences of shape (n, length)."""
        base = int(sequences.max()) + 1
        if base ** sequences.shape[1] <= np.iinfo(np.int64).max:
            # A row whose words are the digits of one number sorts ten times as fast.
            order = np.argsort(sequences @ base ** np.arange(sequences.shape[1])[::-1])
        else:
            order = np.lexsort(sequences.T[::-1])
        rows = sequences[order]
        # A row starts a new node at a level if it differs from the row above in this column or an earlier one.
        starts_node = np.arange(len(rows)) == 0
        words: list[Words] = []
        begins: list[Ints] = []
        for column in rows.T:
            starts_node[1:] |= column[1:] != column[:-1]
            begins.append(np.flatnonzero(starts_node))
            words.append(column[begins[-1]])
        first = [np.append(np.searchsorted(below, above), len(below)) for above, below in itertools.pairwise(begins)]
        copies = np.diff(begins[-1], append=len(rows))
        return cls(rows[begins[-1]], copies, words, first)

    def children(self, level: int, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the children of some nodes of a level, and for each the position of its parent in ``nodes``."""
        # Nodes of a level are sorted, so the children of one node are consecutive in the next level.
        start = self.first[level][nodes]
        counts = self.first[level][nodes + 1] - start
        parents = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        return start[parents] + within, parents


@dataclass(frozen=True, eq=False)
class _Search:
    """Counts the references that cost at most as much as one canary.

    Args:
        scorer: The model.
        trie: The references.
        start: State of the model after the canary's prefix.
        suffix: The rest of the canary.
        loss: Its log-perplexity.
    """

    scorer: PhraseScorer
    trie: Trie
    start: State
    suffix: Ints
    loss: float

    def count(self) -> int:
        """Return the number of references that cost at most ``loss``."""
        # A reference equal to the canary costs `loss` by definition; computed again, rounding could put it above.
        equal = int(self.trie.copies[(self.trie.rows == self.suffix).all(axis=1)].sum())
        roots = np.arange(len(self.trie.words[0]))
        return equal + self._below(0, self.start, np.zeros(1), roots, np.zeros_like(roots))

    def _below(self, level: int, state: State, costs: Floats, nodes: Ints, parents: Ints) -> int:
        """Count the references below some nodes of a level, but for the canary.

        Args:
            level: Level of the nodes.
            state: States of the model before the nodes' words.
            costs: Cost of all words before, shape (states,).
            nodes: The nodes.
            parents: The state that each node belongs to.
        """
        steps, words = self.scorer.steps, torch.from_numpy(self.trie.words[level][nodes]).long()
        rows = torch.from_numpy(parents)
        totals = costs[parents] - steps.log_probabilities(state)[rows, words].double().numpy()
        # Further words only add to the cost, so whatever is above the canary's loss already is ruled out.
        alive = np.flatnonzero(totals <= self.loss)
        if level + 1 == len(self.trie.words):
            leaves = nodes[alive]
            return int(self.trie.copies[leaves[(self.trie.rows[leaves] != self.suffix).any(axis=1)]].sum())
        # Depth first: only one batch of states per level is in memory.
        count, batch_size = 0, self.scorer.batch_size
        for begin in range(0, len(alive), batch_size):
            batch = alive[begin : begin + batch_size]
            extended = steps.extend(state, rows[batch], words[batch])
            children, owners = self.trie.children(level, nodes[batch])
            count += self._below(level + 1, extended, totals[batch], children, owners)
        return count


def beam_search(scorer: PhraseScorer, phrases: Ints, *, width: int = 5) -> Ints:
    """Return the likeliest continuation of each prefix that a beam search finds, shape (n, length - prefix).

    Only words are tried, no marks: the adversary knows the prefix and the length of the phrase and nothing else. All
    canaries are searched in one batch.

    Args:
        scorer: The model and how much of a phrase the adversary knows.
        phrases: Words of the canaries, shape (n, length); only their prefixes and their length are used.
        width: Number of beams; the paper has 5.
    """
    words, length = scorer.language.words, scorer.suffixes(phrases).shape[1]
    kept = min(width, len(words))
    # A state per beam of every canary.
    batch_size = max(1, scorer.batch_size // width)
    continuations = np.empty((len(phrases), length), dtype=np.int64)
    for begin in range(0, len(phrases), batch_size):
        batch = slice(begin, begin + batch_size)
        state = scorer.start(phrases[batch])
        n = len(phrases[batch])
        canary = torch.arange(n)[:, None]
        # Log-probability and words of each canary's beams, the likeliest first; in the beginning there is one, empty.
        scores, paths = torch.zeros(n, 1, dtype=torch.float64), torch.empty(n, 1, 0, dtype=torch.int64)
        for position in range(length):
            beams = scores.shape[1]
            log_probabilities = scorer.steps.log_probabilities(state)[:, words.start : words.stop]
            # The best paths overall are among each beam's best continuations.
            gains, places = log_probabilities.topk(kept, dim=1)
            totals = (scores[:, :, None] + gains.double().view(n, beams, kept)).flatten(1)
            scores, best = totals.topk(min(width, totals.shape[1]), dim=1)
            beam = best // kept
            word = places.view(n, -1).gather(1, best) + words.start
            paths = torch.cat([paths[canary, beam], word[:, :, None]], dim=2)
            if position + 1 < length:  # nothing follows the last word
                state = scorer.steps.extend(state, (canary * beams + beam).flatten(), word.flatten())
        continuations[batch] = paths[:, 0].numpy()
    return continuations
