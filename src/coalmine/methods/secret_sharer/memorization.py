"""What a model memorized of inserted phrases: ranks, extraction and losses, by configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.methods.secret_sharer.beam_search import beam_search
from coalmine.methods.secret_sharer.phrases import Configuration, PhraseCanaries, random_suffixes
from coalmine.methods.secret_sharer.random_sampling import DEFAULT_LIMIT, SampledRanks, sampled_ranks
from coalmine.methods.secret_sharer.scorer import PhraseScorer
from coalmine.methods.secret_sharer.whole_space import RankInterval, whole_space_ranks
from coalmine.progress import shown_if_slow
from coalmine.simulation.models.steps import steps_of

# Larger searches would take several gigabytes.
_LIMITS = {"references": 100_000_000, "width": 10_000}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How a model is probed for canaries.

    Args:
        prefix: Number of words of a canary that the adversary knows.
        references: Number of random suffixes that a canary's suffix is ranked among. With the default,
            exposures of up to log2(100,000) = 16.6 bits can be shown, which is more than a bound from a few hundred
            phrases can use; the paper has two million.
        limit: Most references before a canary for which it is ranked among more of them; None to rank every canary
            among all. See `coalmine.methods.secret_sharer.random_sampling.sampled_ranks`.
        width: Width of the beam search.
        whole_space: Budget for ranking a canary among all phrases, in model states to evaluate; 0 to skip the ranking.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> Probe(references=2_000_000).width
        5
    """

    prefix: int = 1
    references: int = 100_000
    limit: int | None = DEFAULT_LIMIT
    width: int = 5
    whole_space: int = 0

    def __post_init__(self) -> None:
        check_count("prefix", self.prefix, least=0)
        for name, most in _LIMITS.items():
            if check_count(name, getattr(self, name)) > most:
                raise InputError(
                    f"{name} must be at most {most:,} (more takes several gigabytes), got {getattr(self, name):,}"
                )
        check_count("whole_space", self.whole_space, least=0)
        if self.limit is not None:
            check_count("limit", self.limit)


@dataclass(frozen=True, kw_only=True)
class ConfigurationSummary:
    """What was memorized of the inserted canaries of one configuration.

    Args:
        configuration: The configuration.
        canaries: Number of inserted canaries.
        memorized: How many random sampling finds memorized.
        extracted: How many beam search extracts.
        median_exposure: Median exposure in bits.
        users: Smallest and largest number of users per canary, if known.
        copies: Smallest and largest number of copies per canary, if known.
    """

    configuration: Configuration
    canaries: int
    memorized: int
    extracted: int
    median_exposure: float
    users: tuple[int, int] | None
    copies: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Memorization:
    """What a model says about every canary, inserted or held out. Arrays are in the canaries' order.

    Args:
        canaries: The canaries.
        probe: How the model was probed.
        losses: Log-perplexity of each suffix in nats, shape (n,).
        sampled: Ranks among random suffixes.
        beam_hits: Whether a beam search reproduces the canary, shape (n,).
        whole_space: Ranks among all phrases, if asked for.
        reference_losses: Log-perplexities under a reference model, shape (n,), if there is one.

    Example:
        >>> import torch
        >>> from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 50))
        >>> canaries = draw_phrases(Language(size=50, words=range(4, 50)), configurations=grid([0.1], [1.0]), each=2)
        >>> memorization = measure_memorization(model, canaries, Probe(references=100))
        >>> members, nonmembers = memorization.scores("loss")
        >>> members.shape, nonmembers.shape
        ((2,), (2,))
    """

    canaries: PhraseCanaries
    probe: Probe
    losses: Floats
    sampled: SampledRanks
    beam_hits: Bools
    whole_space: list[RankInterval] | None = None
    reference_losses: Floats | None = None

    @property
    def memorized(self) -> Bools:
        """Inserted canaries that rank before all references (random sampling)."""
        return self.sampled.memorized & self.canaries.inserted

    @property
    def extracted(self) -> Bools:
        """Inserted canaries that are the first result of a beam search."""
        return self.beam_hits & self.canaries.inserted

    def lowest(self, chosen: Bools) -> Configuration | None:
        """Return the least frequent configuration with a canary among ``chosen`` (n,), or None if there is none."""
        indices = np.unique(self.canaries.configuration_index[chosen])
        configurations = [self.canaries.configurations[int(i)] for i in indices]
        return min(configurations, key=lambda configuration: configuration.frequency, default=None)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Available scores: exposure, loss, and with a reference model the calibrated loss."""
        return ("exposure", "loss") if self.reference_losses is None else ("exposure", "loss", "calibrated")

    def scores(self, score: str) -> tuple[Floats, Floats]:
        """Return the membership scores of inserted and of held-out canaries, higher for members.

        Args:
            score: ``"exposure"``, ``"loss"`` (minus the log-perplexity) or ``"calibrated"`` (the reference model's
                log-perplexity minus this model's).

        Raises:
            InputError: If there is no such score, or no reference model to calibrate with.
        """
        match score:
            case "loss":
                values = -self.losses
            case "calibrated" if self.reference_losses is not None:
                values = self.reference_losses - self.losses
            case "exposure":
                values = self.sampled.exposures
            case _:
                raise InputError(f"score must be one of {', '.join(self.score_names)}, got {score!r}")
        return values[self.canaries.inserted], values[~self.canaries.inserted]

    def by_configuration(self, users: Ints | None = None, copies: Ints | None = None) -> list[ConfigurationSummary]:
        """Summarize each configuration, the least frequent first.

        Args:
            users: Number of users that hold each canary, shape (n,).
            copies: Number of copies of each canary, shape (n,).
        """
        summaries = []
        for i, configuration in enumerate(self.canaries.configurations):
            chosen = (self.canaries.configuration_index == i) & self.canaries.inserted
            if not chosen.any():
                continue
            summaries.append(
                ConfigurationSummary(
                    configuration=configuration,
                    canaries=int(chosen.sum()),
                    memorized=int((chosen & self.memorized).sum()),
                    extracted=int((chosen & self.extracted).sum()),
                    median_exposure=float(np.median(self.sampled.exposures[chosen])),
                    users=_span(users, chosen),
                    copies=_span(copies, chosen),
                )
            )
        return summaries

    def to_dict(self, users: Ints | None = None, copies: Ints | None = None) -> dict[str, Any]:
        """Return counts, configurations and every canary, ready for JSON; the content of ``memorization.json``."""
        lowest_sampled, lowest_beam = self.lowest(self.memorized), self.lowest(self.extracted)
        return {
            "planted": int(self.canaries.inserted.sum()),
            "references": self.sampled.references,
            "random_sampling": int(self.memorized.sum()),
            "random_sampling_lowest": None if lowest_sampled is None else [lowest_sampled.p_u, lowest_sampled.p_e],
            "beam_search": int(self.extracted.sum()),
            "beam_search_lowest": None if lowest_beam is None else [lowest_beam.p_u, lowest_beam.p_e],
            "configurations": [
                {
                    "p_u": summary.configuration.p_u,
                    "p_e": summary.configuration.p_e,
                    "canaries": summary.canaries,
                    "random_sampling": summary.memorized,
                    "beam_search": summary.extracted,
                    "median_exposure": summary.median_exposure,
                    "users": summary.users,
                    "copies": summary.copies,
                }
                for summary in self.by_configuration(users, copies)
            ],
            "canaries": [self._canary(i, users, copies) for i in range(len(self.canaries))],
        }

    def _canary(self, i: int, users: Ints | None, copies: Ints | None) -> dict[str, Any]:
        """Return what is known of one canary."""
        configuration = self.canaries.configuration(i)
        entry: dict[str, Any] = {
            "phrase": self.canaries.language.text(self.canaries.phrases[i]),
            "p_u": configuration.p_u,
            "p_e": configuration.p_e,
            "planted": bool(self.canaries.inserted[i]),
            "log_perplexity": float(self.losses[i]),
            "rank": int(self.sampled.ranks[i]),
            "among": int(self.sampled.among[i]),
            "exposure": float(self.sampled.exposures[i]),
            "extracted": bool(self.beam_hits[i]),
        }
        if users is not None:
            entry["users"] = int(users[i])
        if copies is not None:
            entry["copies"] = int(copies[i])
        if self.whole_space is not None:
            entry["rank_of_all"] = list(self.whole_space[i])
        if self.reference_losses is not None:
            entry["reference_log_perplexity"] = float(self.reference_losses[i])
        return entry


@shown_if_slow()
def measure_memorization(
    module: nn.Module,
    canaries: PhraseCanaries,
    probe: Probe | None = None,
    *,
    reference: nn.Module | None = None,
) -> Memorization:
    """Probe a language model for every canary.

    Args:
        module: From tokens (n, positions) to logits (n, positions, size). It must not look ahead. It is switched to
            evaluation (no dropout).
        canaries: Inserted and held-out phrases.
        probe: How to probe it.
        reference: A model that saw none of the canaries, to calibrate losses with.

    Returns:
        Losses, ranks and beam-search hits of every canary, inserted or held out.

    Raises:
        InputError: If the model's output does not fit the vocabulary, or its probabilities are NaN.

    Example:
        >>> import torch
        >>> from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 4), torch.nn.Linear(4, 100))
        >>> language = Language(size=100, words=range(4, 100))
        >>> canaries = draw_phrases(language, configurations=grid([0.1], [1.0]), each=5)
        >>> memorization = measure_memorization(model, canaries, Probe(references=1000))
        >>> int(memorization.memorized.sum())
        0
    """
    probe = probe or Probe()
    language = canaries.language
    scorer = PhraseScorer(steps_of(module, language.size), language, probe.prefix)
    suffixes = scorer.suffixes(canaries.phrases)
    references = random_suffixes(language, count=probe.references, length=suffixes.shape[1], seed=canaries.seed)
    sampled = sampled_ranks(scorer, canaries.phrases, references, limit=probe.limit)
    whole_space = whole_space_ranks(scorer, canaries.phrases, budget=probe.whole_space) if probe.whole_space else None
    reference_losses = None
    if reference is not None:
        reference_scorer = PhraseScorer(steps_of(reference, language.size), language, probe.prefix)
        reference_losses = reference_scorer.log_perplexities(canaries.phrases)
    return Memorization(
        canaries=canaries,
        probe=probe,
        losses=scorer.log_perplexities(canaries.phrases),
        sampled=sampled,
        beam_hits=np.asarray((beam_search(scorer, canaries.phrases, width=probe.width) == suffixes).all(axis=1)),
        whole_space=whole_space,
        reference_losses=reference_losses,
    )


def _span(values: Ints | None, chosen: Bools) -> tuple[int, int] | None:
    """Return the smallest and largest chosen value."""
    return None if values is None else (int(values[chosen].min()), int(values[chosen].max()))
