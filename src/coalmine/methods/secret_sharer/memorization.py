"""What a model remembers of planted phrases: ranks, extraction, losses, by configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.methods.secret_sharer.beam_search import extracted
from coalmine.methods.secret_sharer.phrase_search import Queries, SampledRanks, Track, sampled_ranks
from coalmine.methods.secret_sharer.phrases import Configuration, PhraseCanaries, random_suffixes
from coalmine.methods.secret_sharer.whole_space import RankInterval, whole_space_ranks
from coalmine.simulation.models.steps import steps_of

_MOST_REFERENCES, _MOST_BEAMS = 100_000_000, 10_000


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a model is asked: ``prefix`` words are given, and the suffix is ranked among ``references`` random ones.

    ``limit`` is up to which rank that is exact (None: any), ``width`` that of the beam search, ``whole_space`` how many
    states may be read to rank a canary among all phrases there are (0: it is not).
    """

    prefix: int = 1
    references: int = 2_000_000
    limit: int | None = 1000
    width: int = 5
    whole_space: int = 0

    def __post_init__(self) -> None:
        check_count("the prefix", self.prefix, least=0)
        for name, most in (("references", _MOST_REFERENCES), ("width", _MOST_BEAMS)):
            if check_count(name, getattr(self, name)) > most:
                raise InputError(
                    f"{name} must be at most {most:,}, which take some gigabytes, got {getattr(self, name):,}"
                )
        check_count("whole_space", self.whole_space, least=0)
        if self.limit is not None:
            check_count("limit", self.limit)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration: its canaries, how many are memorized by random sampling and by beam search, how exposed."""

    configuration: Configuration
    canaries: int
    sampled: int
    extracted: int
    median_exposure: float
    users: tuple[int, int] | None
    copies: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Memorization:
    """What a model says of every canary, planted or not, in the canaries' order."""

    canaries: PhraseCanaries
    asking: Asking
    losses: Floats
    sampled: SampledRanks
    extracted: Bools
    spaces: list[RankInterval] | None = None
    reference_losses: Floats | None = None

    @property
    def memorized(self) -> Bools:
        """By random sampling: planted, and ahead of all references."""
        return self.sampled.memorized & self.canaries.planted

    @property
    def found(self) -> Bools:
        """By beam search: planted, and the likeliest continuation."""
        return self.extracted & self.canaries.planted

    def lowest(self, which: Bools) -> Configuration | None:
        """The rarest configuration with a canary among ``which``; None where there is none."""
        places = self.canaries.which[which]
        if not len(places):
            return None
        there: list[Configuration] = [self.canaries.configurations[int(i)] for i in np.unique(places)]
        return min(there, key=lambda configuration: configuration.frequency)

    def scores(self, score: str) -> tuple[Floats, Floats]:
        """Membership scores of the planted canaries and of their twins, higher for members."""
        match score:
            case "loss":
                values = -self.losses
            case "calibrated" if self.reference_losses is not None:
                values = self.reference_losses - self.losses
            case "exposure":
                values = self.sampled.exposures
            case _:
                raise InputError(f"the score must be one of {', '.join(self.possible_scores)}, got {score!r}")
        return values[self.canaries.planted], values[~self.canaries.planted]

    @property
    def possible_scores(self) -> tuple[str, ...]:
        """Exposure among random phrases, the loss itself, and the loss less that of a reference model."""
        return ("exposure", "loss") if self.reference_losses is None else ("exposure", "loss", "calibrated")

    def rows(self, users: Ints | None = None, copies: Ints | None = None) -> list[Row]:
        """A row for each configuration, the rarest first; ``users`` and ``copies`` are those of each canary."""
        found = []
        for i, configuration in enumerate(self.canaries.configurations):
            own = (self.canaries.which == i) & self.canaries.planted
            if not own.any():
                continue
            found.append(
                Row(
                    configuration=configuration,
                    canaries=int(own.sum()),
                    sampled=int((own & self.memorized).sum()),
                    extracted=int((own & self.found).sum()),
                    median_exposure=float(np.median(self.sampled.exposures[own])),
                    users=_range(users, own),
                    copies=_range(copies, own),
                )
            )
        return found

    def to_dict(self, users: Ints | None = None, copies: Ints | None = None) -> dict[str, Any]:
        """JSON-ready: counts, configurations, and every canary."""
        by_sampling, by_beam = self.lowest(self.memorized), self.lowest(self.found)
        return {
            "planted": int(self.canaries.planted.sum()),
            "references": self.sampled.references,
            "random_sampling": int(self.memorized.sum()),
            "random_sampling_lowest": None if by_sampling is None else [by_sampling.p_u, by_sampling.p_e],
            "beam_search": int(self.found.sum()),
            "beam_search_lowest": None if by_beam is None else [by_beam.p_u, by_beam.p_e],
            "configurations": [
                {
                    "p_u": row.configuration.p_u,
                    "p_e": row.configuration.p_e,
                    "canaries": row.canaries,
                    "random_sampling": row.sampled,
                    "beam_search": row.extracted,
                    "median_exposure": row.median_exposure,
                    "users": row.users,
                    "copies": row.copies,
                }
                for row in self.rows(users, copies)
            ],
            "canaries": [self._canary(i, users, copies) for i in range(len(self.canaries))],
        }

    def _canary(self, i: int, users: Ints | None, copies: Ints | None) -> dict[str, Any]:
        configuration = self.canaries.configuration(i)
        entry: dict[str, Any] = {
            "phrase": self.canaries.language.text(self.canaries.phrases[i]),
            "p_u": configuration.p_u,
            "p_e": configuration.p_e,
            "planted": bool(self.canaries.planted[i]),
            "log_perplexity": float(self.losses[i]),
            "rank": int(self.sampled.ranks[i]),
            "among": int(self.sampled.among[i]),
            "exposure": float(self.sampled.exposures[i]),
            "extracted": bool(self.extracted[i]),
        }
        if users is not None:
            entry["users"] = int(users[i])
        if copies is not None:
            entry["copies"] = int(copies[i])
        if self.spaces is not None:
            entry["rank_of_all"] = [self.spaces[i].low, self.spaces[i].high]
        if self.reference_losses is not None:
            entry["reference_log_perplexity"] = float(self.reference_losses[i])
        return entry


def ask(
    module: nn.Module,
    canaries: PhraseCanaries,
    asking: Asking | None = None,
    *,
    reference: nn.Module | None = None,
    track: Track = iter,
) -> Memorization:
    """Ask a language model about every canary; ``reference`` is a model that never saw any of them.

    Both are switched to evaluation (no dropout).
    """
    how = asking or Asking()
    language = canaries.language
    queries = Queries(steps_of(module, language.size), language, how.prefix)
    suffixes = queries.suffix(canaries.phrases)
    references = random_suffixes(language, count=how.references, length=suffixes.shape[1], seed=canaries.seed)
    sampled = sampled_ranks(queries, canaries.phrases, references, limit=how.limit, track=track)
    spaces = whole_space_ranks(queries, canaries.phrases, budget=how.whole_space) if how.whole_space else None
    calm = None
    if reference is not None:
        calm = Queries(steps_of(reference, language.size), language, how.prefix).log_perplexities(canaries.phrases)
    return Memorization(
        canaries=canaries,
        asking=how,
        losses=queries.log_perplexities(canaries.phrases),
        sampled=sampled,
        extracted=extracted(queries, canaries, width=how.width),
        spaces=spaces,
        reference_losses=calm,
    )


def _range(values: Ints | None, which: Bools) -> tuple[int, int] | None:
    return None if values is None else (int(values[which].min()), int(values[which].max()))
