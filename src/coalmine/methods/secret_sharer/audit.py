"""The secret-sharer audit: phrases inserted into users' data, then queries to the final model (Thakkar et al. 2020).

The canaries are in the data and not among the updates, so this audit adds nothing to a round: it waits for the final
model. docs/secret-sharer.md explains the scores and both units of privacy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coalmine.arrays import Bools, Floats, Ints
from coalmine.claims import Claim
from coalmine.errors import InputError, check_count
from coalmine.methods.estimates import normality
from coalmine.methods.secret_sharer.evaluation import (
    DEFAULT_LIMIT,
    PhraseScorer,
    SampledRanks,
    beam_search,
    random_suffixes,
    sampled_ranks,
)
from coalmine.methods.secret_sharer.evidence import phrase_evidence, user_evidence
from coalmine.methods.secret_sharer.phrases import PhraseCanaries
from coalmine.progress import shown_if_slow
from coalmine.protocol import Audit, Release, View
from coalmine.results.result import Result, common_delta
from coalmine.results.verdict import PHRASE, USER
from coalmine.simulation.flat import moved, parameter_vector, set_parameters
from coalmine.simulation.models.text import steps_of
from coalmine.stats import Scores
from coalmine.stats.exposure import RandomGuessing
from coalmine.vectors import CPU, flat, on

PrivacyUnit = Literal["user", "phrase"]
"""Whose ε: one user's, or that of all users who share a phrase together."""

_SCORES = {
    "exposure": ("exposure in bits", "queries the final model and ranks each phrase among random ones"),
    "loss": ("minus the log-perplexity", "queries the final model and compares losses"),
    "calibrated": (
        "log-perplexity of the reference model minus that of the model",
        "queries the final model and a reference model and compares losses",
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Memorization:
    """What a model says about every canary, inserted or held out. Arrays are in the canaries' order.

    Args:
        canaries: The canaries.
        losses: Log-perplexity of each suffix in nats, shape (n,).
        sampled: Ranks among random suffixes.
        beam_hits: Whether a beam search reproduces the canary, shape (n,).
        reference_losses: Log-perplexities under a reference model, shape (n,), if there is one.
    """

    canaries: PhraseCanaries
    losses: Floats
    sampled: SampledRanks
    beam_hits: Bools
    reference_losses: Floats | None = None

    @property
    def memorized(self) -> Bools:
        """Inserted canaries that rank before all references (random sampling)."""
        return self.sampled.memorized & self.canaries.inserted

    @property
    def extracted(self) -> Bools:
        """Inserted canaries that are the first result of a beam search."""
        return self.beam_hits & self.canaries.inserted

    @property
    def values(self) -> dict[str, Floats]:
        """All available scores by name, shape (n,) each: exposure, loss, and with a reference model calibrated loss."""
        # A memorized phrase has a low log-perplexity and a high exposure.
        values = {"exposure": self.sampled.exposures, "loss": -self.losses}
        if self.reference_losses is not None:
            # How hard a phrase is for any model cancels out (Jagielski 2023, calibration).
            values["calibrated"] = self.reference_losses - self.losses
        return values

    def scores(self, score: str) -> tuple[Floats, Floats]:
        """Return the membership scores of inserted and of held-out canaries, higher for members.

        Args:
            score: ``"exposure"``, ``"loss"`` (minus the log-perplexity) or ``"calibrated"`` (the reference model's
                log-perplexity minus this model's).

        Raises:
            InputError: If there is no such score, or no reference model to calibrate with.
        """
        values = self.values
        if score not in values:
            raise InputError(f"score must be one of {', '.join(values)}, got {score!r}")
        return values[score][self.canaries.inserted], values[score][~self.canaries.inserted]

    def by_configuration(self, users: Ints | None = None, copies: Ints | None = None) -> list[dict[str, Any]]:
        """Return how many inserted canaries of each configuration are memorized, the least frequent first.

        Args:
            users: Number of users that hold each canary, shape (n,).
            copies: Number of copies of each canary, shape (n,).
        """
        rows = []
        for i, configuration in enumerate(self.canaries.configurations):
            chosen = (self.canaries.configuration_index == i) & self.canaries.inserted
            if not chosen.any():  # coin flips may hold out all canaries of a configuration
                continue
            row: dict[str, Any] = {
                "p_u": configuration.p_u,
                "p_e": configuration.p_e,
                "canaries": int(chosen.sum()),
                "random_sampling": int((chosen & self.memorized).sum()),
                "beam_search": int((chosen & self.extracted).sum()),
                "median_exposure": float(np.median(self.sampled.exposures[chosen])),
            }
            for name, counts in (("users", users), ("copies", copies)):
                row[name] = None if counts is None else (int(counts[chosen].min()), int(counts[chosen].max()))
            rows.append(row)
        return rows

    def to_dict(self, users: Ints | None = None, copies: Ints | None = None) -> dict[str, Any]:
        """Return counts, configurations and every canary, ready for JSON; the content of ``memorization.json``."""
        configurations = self.by_configuration(users, copies)
        content: dict[str, Any] = {"planted": int(self.canaries.inserted.sum()), "references": self.sampled.references}
        for test in ("random_sampling", "beam_search"):
            content[test] = sum(row[test] for row in configurations)
            # The paper also states the rarest configuration with a memorized canary, in the order of `frequency`.
            with_hits = (row for row in configurations if row[test])
            rarest = min(with_hits, key=lambda row: (row["p_u"] * row["p_e"], row["p_u"]), default=None)
            content[f"{test}_lowest"] = None if rarest is None else [rarest["p_u"], rarest["p_e"]]
        optional = {"users": users, "copies": copies, "reference_log_perplexity": self.reference_losses}
        canaries = []
        for i, phrase in enumerate(self.canaries.phrases):
            configuration = self.canaries.configuration(i)
            entry: dict[str, Any] = {
                "phrase": self.canaries.language.text(phrase),
                "p_u": configuration.p_u,
                "p_e": configuration.p_e,
                "planted": bool(self.canaries.inserted[i]),
                "log_perplexity": float(self.losses[i]),
                "rank": int(self.sampled.ranks[i]),
                "among": int(self.sampled.among[i]),
                "exposure": float(self.sampled.exposures[i]),
                "extracted": bool(self.beam_hits[i]),
            }
            entry |= {name: values[i].item() for name, values in optional.items() if values is not None}
            canaries.append(entry)
        return {**content, "configurations": configurations, "canaries": canaries}


@shown_if_slow()
def measure_memorization(
    model: nn.Module,
    canaries: PhraseCanaries,
    *,
    prefix: int = 1,
    references: int = 100_000,
    limit: int | None = DEFAULT_LIMIT,
    width: int = 5,
    reference: nn.Module | None = None,
) -> Memorization:
    """Query a trained language model for every canary.

    Args:
        model: From tokens (n, positions) to logits (n, positions, size). It must not look ahead. It is switched to
            evaluation (no dropout).
        canaries: Inserted and held-out phrases.
        prefix: Number of words of a canary that the adversary knows.
        references: Number of random suffixes that a canary's suffix is ranked among; the paper has two million. The
            default shows exposures of up to log2(100,000) = 16.6 bits, more than a bound from a few hundred phrases
            can use.
        limit: Most references before a canary for which it is ranked among more of them; None to rank every canary
            among all. See `coalmine.methods.secret_sharer.evaluation.sampled_ranks`.
        width: Width of the beam search.
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
        >>> memorization = measure_memorization(model, canaries, references=1000)
        >>> int(memorization.memorized.sum())
        0
    """
    language, phrases = canaries.language, canaries.phrases
    scorer = PhraseScorer(steps_of(model, language.size), language, prefix)
    suffixes = scorer.suffixes(phrases)
    # One set R for all canaries, as in the paper, from a random stream of its own.
    drawn = random_suffixes(language, count=references, length=suffixes.shape[1], seed=canaries.seed)
    reference_losses = None
    if reference is not None:
        reference_losses = PhraseScorer(steps_of(reference, language.size), language, prefix).log_perplexities(phrases)
    return Memorization(
        canaries=canaries,
        losses=scorer.log_perplexities(phrases),
        sampled=sampled_ranks(scorer, phrases, drawn, limit=limit),
        beam_hits=np.asarray((beam_search(scorer, phrases, width=width) == suffixes).all(axis=1)),
        reference_losses=reference_losses,
    )


class SecretSharer(Audit):
    """Audits a training of a language model with phrases inserted into users' data (Thakkar et al. 2020).

    Train on the data of `coalmine.methods.secret_sharer.phrases.insert`, with this audit among the training's audits
    or by handing it the final model through `observe`. Inserted and held-out phrases are exchangeable, which is what
    makes the lower bound valid as long as their scores do not influence each other. If a fair coin decided about each
    phrase (the design ``"coin-flips"``), the quoted bound holds even if they do.

    Args:
        model: The module that is trained, with any weights. It is not changed.
        canaries: Inserted and held-out phrases.
        users: Number of users that hold each canary, shape (canaries,), `Insertion.users` as a rule. Without it there
            is no ε of one user.
        most_users: Largest number of users that could hold a canary, whichever of them had been inserted:
            `Insertion.most_users`. By default the largest of ``users``.
        prefix: Number of words of a canary that the adversary knows.
        references: Number of random suffixes that a canary's suffix is ranked among.
        limit: Most references before a canary for which it is ranked among more of them; None for no limit.
        width: Width of the beam search.
        reference: A model that saw none of the canaries, to calibrate losses with.
        device: Where the final model is queried; where the module is if None.

    Raises:
        InputError: If there is no such device, or a count is too small.

    Example:
        >>> from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid, insert
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import generated_text
        >>> from coalmine.simulation.flat import parameter_vector
        >>> data = generated_text(users=20, sentences=10, vocabulary_size=100, positions=8).train
        >>> canaries = draw_phrases(Language.of(data), configurations=grid([0.2], [1.0]), each=4)
        >>> insertion = insert(data, canaries)
        >>> model = models.build("word-lstm", data.task, embedding=4, units=4)
        >>> audit = SecretSharer(model, canaries=canaries, users=insertion.users, references=500)
        >>> final = parameter_vector(model).numpy()  # as if training on insertion.data had changed nothing
        >>> audit.observe(0, model=final)
        >>> audit.result(unit="phrase").bound.epsilon
        0.0
    """

    views = (View("model", every=None),)

    def __init__(
        self,
        model: nn.Module,
        *,
        canaries: PhraseCanaries,
        users: Ints | None = None,
        most_users: int | None = None,
        prefix: int = 1,
        references: int = 100_000,
        limit: int | None = DEFAULT_LIMIT,
        width: int = 5,
        reference: nn.Module | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.canaries, self.users, self.most_users = canaries, users, most_users
        self.prefix = check_count("prefix", prefix, least=0)
        self.references, self.limit = check_count("references", references), limit
        self.width = check_count("width", width)
        # A copy only if it has to move: a device that does not exist is an error now, not after the training.
        self._module, self._reference = moved(model, device), reference
        self._final = np.zeros(0, dtype=np.float32)  # until the final model is observed
        self._memorization: Memorization | None = None

    def record(self, release: Release) -> None:
        """Keep the final model."""
        if release.trial is None:  # frozen rounds of another audit lead to models that are thrown away
            self._final, self._memorization = np.array(on(CPU, flat(release.vector))), None

    def memorization(self) -> Memorization:
        """Return what the final model says about every canary; it is queried once.

        Raises:
            InputError: If no final model was observed, or it does not fit the module.
        """
        if self._memorization is None:
            if not self._final.size:
                raise InputError("the final model was never observed: call observe with the last round's release")
            module = copy.deepcopy(self._module)  # the training goes on with the module itself
            expected, got = parameter_vector(module).numel(), len(self._final)
            if expected != got:
                raise InputError(f"the final model has {got} parameters, but the audit's module has {expected}")
            # A release holds the trainable parameters only; buffers and frozen layers are the module's.
            set_parameters(module, torch.tensor(self._final))
            self._memorization = measure_memorization(
                module,
                self.canaries,
                prefix=self.prefix,
                references=self.references,
                limit=self.limit,
                width=self.width,
                reference=self._reference,
            )
        return self._memorization

    def result(
        self,
        *,
        claim: Claim | None = None,
        delta: float | None = None,
        confidence: float = 0.95,
        metrics: Mapping[str, float] | None = None,
        score: str = "exposure",
        unit: PrivacyUnit = "user",
    ) -> Result:
        """Return the evidence about ε from one score, for one user or for all users who share a phrase.

        The ε of a phrase is that of all its users together. For one user, group privacy divides it: by the number of
        users who could hold the most widespread canary, and by twice that if ``claim`` is about adding or removing a
        user, since a sharer takes part with or without the phrase, only with other examples. With coin flips, bound and
        claim test hold however canaries influence one another (docs/proofs.md, Theorem 5).

        Args:
            claim: The claimed guarantee of one user; it does not apply to a phrase.
            delta: δ at which ε is stated: that of ``claim`` by default, else 1e-5.
            confidence: Confidence of bounds and intervals.
            metrics: Numbers to keep with the result, such as the model's perplexity.
            score: ``"exposure"``, ``"loss"`` or, with a reference model, ``"calibrated"``.
            unit: ``"user"`` or ``"phrase"``.

        Raises:
            InputError: If no final model was observed, no phrase was held out, the score is not available, or the
                numbers of users are missing for the unit ``"user"``.
        """
        if unit not in ("user", "phrase"):
            raise InputError(f"unit must be user or phrase, got {unit!r}")
        memorization, canaries = self.memorization(), self.canaries
        members, nonmembers = memorization.scores(score)
        if not len(nonmembers):
            raise InputError(
                "no phrase was held out to compare the inserted ones with: draw phrases with twins=1 or more"
            )
        terms: dict[str, Any] = {
            "delta": common_delta(delta, claim),
            "confidence": confidence,
            "design": canaries.design,
        }
        if unit == "phrase":
            # A claim about one user says nothing about all users of a phrase together.
            claim, warnings = None, normality(members, "inserted")[1]
            evidence = phrase_evidence(Scores(members, nonmembers), **terms)
        else:
            if self.users is None:
                raise InputError(
                    "one user's ε needs the number of users that hold each canary: pass users, or ask for "
                    'unit="phrase"'
                )
            warnings = []  # the estimates that normality matters for are not among one user's
            # The most widespread canary decides: group privacy holds for the largest group.
            most = int(np.max(self.users)) if self.most_users is None else self.most_users
            median = float(np.median(memorization.sampled.exposures[canaries.inserted]))
            evidence = user_evidence(Scores(members, nonmembers), median, claim, most_users=most, **terms)
        score_name, adversary = _SCORES[score]
        inserted, exposures = canaries.inserted, memorization.sampled.exposures
        # What the median of as many exposures would be if ranks were uniform (Jagielski 2023).
        chance = RandomGuessing(memorization.sampled.references, int(inserted.sum()))
        low, high = chance.sample_median_interval()
        counted = {
            "inserted": float(len(members)),
            "held_out": float(len(nonmembers)),
            "memorized": float(memorization.memorized.sum()),
            "extracted": float(memorization.extracted.sum()),
            "median exposure": float(np.median(exposures[inserted])),
            "median exposure at random": chance.sample_median_mean(),
            "95% of random medians, from": low,
            "95% of random medians, to": high,
            "median exposure, held out": float(np.median(exposures[~inserted])),
        }
        return Result(
            method="secret-sharer",
            view=f"{score}:{unit}",
            unit=USER if unit == "user" else PHRASE,
            adversary=adversary,
            score_name=score_name,
            seed=canaries.seed,
            **vars(evidence),
            claim=claim,
            warnings=warnings,
            metrics={**counted, **(metrics or {})},
            config={
                "score": score,
                "unit": unit,
                "length": canaries.length,
                "prefix": self.prefix,
                "references": self.references,
                "limit": self.limit,
                "width": self.width,
            },
        )

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return the final model, empty before it was observed."""
        return {"model": self._final}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to a state that `state` returned."""
        self._final, self._memorization = np.array(state["model"]), None

    def __repr__(self) -> str:
        return f"SecretSharer({len(self.canaries)} phrases, seed {self.canaries.seed})"
