"""Target: coalmine's simulator with its default settings, audited as by `coalmine audit one-shot`.

Bugs of the noise are those of `[training] bug = …` where there is such a setting, and other mechanisms elsewhere.
Canaries join the simulator's sum with the clip norm, so its clipping cannot be tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from cases import Answer, Case, from_results
from noise import CORRECT_NOISE, CORRELATED, NOISE_BUGS, Noise, Place, noise_of

from coalmine import OneShot
from coalmine.arrays import Ints
from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.methods.one_shot.method import OneShotMethod, OneShotSettings
from coalmine.protocol import Vector
from coalmine.simulation import Mechanism
from coalmine.simulation.settings import TrainingSettings

VIEWS, DELTA, NOISE = ("updates", "final-change"), 1e-5, 2.0
TARGET = "simulator"

ClaimOf = Callable[[OneShot], Claim]
Choose = Callable[[np.random.Generator, int, int], Ints]


def _no_noise(call: int) -> Vector:
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AnyNoise(Mechanism):
    """A mechanism with noise of one's own.

    Args:
        draw: Function from a round to its noise for a clip norm of 1.
    """

    draw: Noise = _no_noise

    def noise(
        self, dim: int, seed: int, clip_norm: float, expected_clients: float, round: int, trial: int = 0
    ) -> Vector:
        """Return the noise of a round."""
        return (clip_norm * self.draw(round)).astype(np.float32)


@dataclass(frozen=True)
class Liar(Poisson):
    """Claims Poisson sampling, and chooses clients in another way."""

    choose: Choose | None = None

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Return the clients of a round."""
        assert self.choose is not None
        return np.sort(self.choose(np.random.default_rng([seed, round]), count, round))


def claim_of(audit: OneShot) -> Claim:
    """Return the claim of a correct training."""
    return Claim(noise_multiplier=NOISE, sampling=audit.participation, delta=DELTA)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A training of the simulator, with bugs to switch on.

    Args:
        noise: Name of noise that the simulator does not have itself.
        bug: The setting ``bug``.
        choose: Who takes part in a round.
        cohort: The setting ``cohort``.
        claim: The claim.
    """

    noise: str = ""
    bug: str | None = None
    choose: Choose | None = None
    cohort: str = "poisson:0.5"
    claim: ClaimOf = claim_of

    def audited(self, seed: int) -> Answer:
        """Train, and return what the audits say."""
        settings = TrainingSettings(seed=seed, bug=self.bug, cohort=self.cohort)
        splits = settings.splits()
        module = settings.module(splits)
        audits = OneShotMethod(OneShotSettings(view=VIEWS), training=settings).audits(splits, module)
        training = settings.training(splits, module, audits)
        if self.noise:
            place = Place(audits[0].dim, NOISE, settings.rounds, np.random.default_rng([seed, 5]))
            parts = {f.name: getattr(training.mechanism, f.name) for f in fields(Mechanism) if f.init}
            training.mechanism = AnyNoise(**parts, draw=noise_of(self.noise, place))
        if self.choose:
            training.sampling = Liar(0.5, self.choose)
        training.run()
        return from_results([audit.result(claim=self.claim(audit)) for audit in audits])


def _shuffled(rng: np.random.Generator, population: int, round: int) -> Ints:
    order, half = np.random.default_rng(round // 2).permutation(population), population // 2
    return order[half:] if round % 2 else order[:half]


def _favorites(rng: np.random.Generator, population: int, round: int) -> Ints:
    rates = np.where(np.arange(population) < population // 4, 0.9, 0.37)
    return np.flatnonzero(rng.random(population) < rates)


CHOICES: dict[str, Choose] = {
    "always the same cohort": lambda rng, population, round: np.arange(population // 2),
    "shuffles in place of Poisson": _shuffled,
    "in turn, not at random": lambda rng, population, round: np.arange(round % 2, population, 2),
    "fixed size in place of Poisson": lambda rng, population, round: rng.choice(population, population // 2, False),
    "twice the claimed rate": lambda rng, population, round: np.arange(population),
    "favorites": _favorites,
}


def _composed(share: float) -> ClaimOf:
    def claim(audit: OneShot) -> Claim:
        rounds = max(1, round(share * audit.rounds))
        return Claim(noise_multiplier=NOISE, sampling=Poisson(0.5), rounds=rounds, delta=DELTA)

    return claim


def _at(delta: float) -> ClaimOf:
    def claim(audit: OneShot) -> Claim:
        stated = Claim(noise_multiplier=NOISE, sampling=audit.participation, rounds=audit.rounds, delta=delta)
        return Claim(epsilon=stated.epsilon, delta=DELTA)

    return claim


ACCOUNTING = {
    "ε of a quarter of the rounds": Simulation(claim=_composed(0.25)),
    "ε of a single round": Simulation(claim=_composed(0)),
    "ε for a tenth of the sampling rate": Simulation(
        claim=lambda audit: Claim(noise_multiplier=NOISE, sampling=Poisson(0.05), rounds=audit.rounds, delta=DELTA)
    ),
    "ε for the squared noise multiplier": Simulation(
        claim=lambda audit: Claim(noise_multiplier=NOISE**2, sampling=audit.participation, delta=DELTA)
    ),
    "ε at δ = 0.01, claimed at 1e-5": Simulation(claim=_at(0.01)),
}

SETTINGS = {
    "0.5 of the noise": "noise:0.5",
    "none on the last 10 coordinates": "bare:3.bias",
    "hard-coded noise": "repeat:1",
}


def _simulation(name: str) -> Simulation:
    return Simulation(bug=SETTINGS[name]) if name in SETTINGS else Simulation(noise=name)


def _correct() -> dict[str, Simulation]:
    simulations = {name: Simulation(noise=name) for name in CORRECT_NOISE if name not in CORRELATED}
    simulations |= {f"{name}, as ε and δ": Simulation(noise=name, claim=_at(DELTA)) for name in CORRELATED}
    every = replace(
        Simulation(),
        claim=lambda audit: Claim(noise_multiplier=NOISE, sampling=EveryRound(), rounds=audit.rounds, delta=DELTA),
    )
    return simulations | {"the simulator itself": Simulation(), "a claim without amplification": every}


def cases() -> list[Case]:
    """Return all bugs of this target, and correct trainings."""
    simulations = [(kind, name, _simulation(name)) for name, (kind, _) in NOISE_BUGS.items()]
    simulations += [("freshness", "repeats after 3 rounds", Simulation(bug="repeat:3"))]
    simulations += [("sampling", name, Simulation(choose=choose)) for name, choose in CHOICES.items()]
    simulations += [("accounting", name, simulation) for name, simulation in ACCOUNTING.items()]
    simulations += [("correct", name, simulation) for name, simulation in _correct().items()]
    return [Case(target=TARGET, kind=kind, name=name, run=run.audited) for kind, name, run in simulations]
