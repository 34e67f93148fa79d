"""A third-party method: a bump on one coordinate of the update, in rounds chosen by coin flips.

It asks whether one coordinate gets its share of the noise. `pip install examples/plugin` adds it to coalmine.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

import coalmine as cm
from coalmine import Audit, Result
from coalmine.config import Settings
from coalmine.methods.estimates import canary_evidence
from coalmine.methods.method import Method
from coalmine.protocol import Contribution, View
from coalmine.results import MethodResults
from coalmine.results.verdict import ROUND
from coalmine.simulation.settings import TrainingSettings


class BumpSettings(Settings):
    """A bump on one coordinate."""

    coordinate: int = Field(0, ge=0, description="coordinate of the update to bump")
    seed: int = Field(0, ge=0, description="seed of the coin flips")


class Bump(Audit):
    """Adds the clip norm to one coordinate in about half of the rounds, and watches that coordinate."""

    views = (View("update"),)

    def __init__(self, dim, rounds, settings):
        self.dim, self.coordinate = dim, settings.coordinate
        self.present = np.random.default_rng(settings.seed).random(rounds) < 0.5
        self.scores = np.zeros(rounds)

    def plant(self, round, *, clip_norm, trial=None):
        total = np.zeros(self.dim, dtype=np.float32)
        total[self.coordinate] = clip_norm * self.present[round]
        return Contribution(total, clients=0)

    def record(self, release):
        self.scores[release.round] = release.vector[self.coordinate]

    def state(self):
        return {"scores": self.scores}

    def restore(self, state):
        self.scores = np.array(state["scores"])


class BumpMethod(Method):
    """The method in a run: what users read about it, the audits it adds, and what it finds."""

    name = "bump"
    title = "A bump on one coordinate"
    question = "Does this coordinate of the update get its share of the noise?"
    description = "The clip norm was added to one coordinate of the sum in rounds chosen by coin flips."
    settings_type = BumpSettings
    training_type = TrainingSettings
    options = ("coordinate",)

    def audits(self, splits, module):
        dim = sum(parameter.numel() for parameter in module.parameters())
        self.audit = Bump(dim, self.training.rounds, self.settings)
        return [self.audit]

    def results(self, trained, metrics):
        claim = None
        if trained.private:  # what one round guarantees a client who is known to take part
            noise_multiplier = trained.mechanism.noise_multiplier
            claim = cm.Claim(noise_multiplier=noise_multiplier, sampling=cm.EveryRound(), rounds=1, delta=1e-5)
        sides = self.audit.scores[self.audit.present], self.audit.scores[~self.audit.present]
        # Every estimate that applies, the test of the claim, and the terms that `coalmine check` computes them from.
        evidence = canary_evidence(
            *sides, null=None, signs=False, design="coin-flips", delta=1e-5, confidence=0.95, claim=claim
        )
        result = Result(
            method="bump",
            view="updates",
            unit=ROUND,
            adversary="watches one coordinate of every round's noisy average",
            score_name="coordinate",
            side_names=("bumped", "not bumped"),
            seed=self.settings.seed,
            estimates=evidence.estimates,
            scores=evidence.scores,
            ceiling=evidence.ceiling,
            claim=claim,
            claim_test=evidence.claim_test,
            recipe=evidence.recipe,
            metrics=metrics,
            config=self.config,
        )
        return MethodResults(method="bump", results=[result])
