"""CANIFE against a frozen model: the building block of the paper's histograms and ablations.

A client that takes one step over all its examples always sends the same update from the same model. So all clients'
updates are computed and scored once, and the score of a round is the sum of the scores of some of them. Up to rounding
this is the same as a round of a real training (`real_rounds`), in a small share of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from coalmine.claims import Poisson
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import CanaryMaker, CraftedUpdates, GivenUpdates, orthogonalize_directions
from coalmine.methods.canife.design import DesignSettings, LossName
from coalmine.methods.canife.designed_canaries import (
    ScoreDirection,
    ScoreName,
    Start,
    likelihood_ratio_direction,
    plain_direction,
)
from coalmine.methods.canife.epsilon import Period
from coalmine.methods.canife.pool import MockClients, Pool, updates
from coalmine.methods.canife.samples import DesignOutcome, design_samples
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.simulation import SGD, LocalTraining, Mechanism, Training
from coalmine.stats import Scores
from coalmine_reproductions.canife_scenes import Frozen, Scene, remembered
from coalmine_reproductions.cells import Number

DELTA = 1e-5
"""δ of ε in the paper, which uses 1/trials for ε̂ᵣ."""


@lru_cache(maxsize=1)
def design_pool(target: Frozen, size: int) -> Pool:
    """Return the updates of the first ``size`` mock clients."""
    mock = target.mock.subset(range(size))
    return MockClients(target.model, mock, target.client, clients=target.clients).pool(target.clip_norm)


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """How a canary is designed and scored.

    Args:
        name: Name in file names.
        settings: Settings of the design.
        pixels: Whether pixels must stay in their valid range.
        score: Direction along which rounds are scored.
        own_rate: Learning rate of the canary's client; None for that of all clients.
    """

    name: str
    settings: DesignSettings
    pixels: Literal["free", "valid"]
    score: ScoreName
    own_rate: float | None = None

    def client(self, target: Frozen) -> LocalTraining:
        """Return how the canary's client trains."""
        if self.own_rate is None:
            return target.client
        return LocalTraining(optimizer=SGD(learning_rate=self.own_rate))

    def with_design(self, **changes: float | LossName) -> Adversary:
        """Return the adversary with other settings of the design."""
        return replace(self, settings=replace(self.settings, **changes))  # type: ignore[arg-type]

    def lasting(self, iterations: int) -> Adversary:
        """Return the adversary with a design of exactly that many iterations."""
        return self.with_design(iterations=iterations, patience=max(1, iterations))


PAPER = Adversary(name="paper", settings=DesignSettings(loss="covariance"), pixels="free", score="plain")
"""The paper's adversary: Loss 2, free pixels, scored along the canary's update; designed with a faster schedule."""

PUBLISHED = replace(
    PAPER,
    name="published",
    settings=replace(PAPER.settings, learning_rate=1.0, schedule="constant", patience=PAPER.settings.iterations),
)
"""The paper's adversary with the schedule of its published code for images: a constant learning rate of 1, and no early
stop. The best iterate is kept, not the last one."""

REFERENCE = replace(PUBLISHED, name="reference", own_rate=1.0)
"""The same by another convention of the published code, which divides the canary's update by the clients' learning
rate: a gradient of norm 1 is enough to send an update of the clip norm."""

OURS = Adversary(name="ours", settings=DesignSettings(), pixels="valid", score="likelihood-ratio")
"""Our adversary: designed for and scored along the likelihood-ratio direction, with valid pixels."""


@dataclass(frozen=True, kw_only=True)
class Crafting:
    """Canaries designed in one batch, independently of one another.

    Args:
        adversary: How they are designed and scored.
        pool: Mock clients to design against: the first ``pool``.
        count: Number of canaries.
        start: Where a design starts.
        seed: Seed of the starts.
    """

    adversary: Adversary
    pool: int
    count: int = 1
    start: Start = "random"
    seed: int = 0

    def design(self, target: Frozen, pool: Pool) -> DesignOutcome:
        """The samples or texts."""
        # The paper leaves the example that a canary starts from out of the pool. We start from mock clients beyond it.
        others = target.mock.subset(range(self.pool, len(target.mock))) if self.start == "pool" else None
        return design_samples(
            target.model,
            pool,
            task=target.mock.task,
            client=self.adversary.client(target),
            count=self.count,
            settings=self.adversary.settings,
            start=others,
            valid=None if self.adversary.pixels == "free" else (0.0, 1.0),
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class AttackRounds:
    """Rounds with or without the canary.

    Args:
        cohort: Expected clients per round.
        noise_multiplier: Noise multiplier.
        trials: Number of rounds.
        score: Direction along which they are scored.
    """

    cohort: float
    noise_multiplier: float = 0.0
    trials: int = 100
    score: ScoreName


class PreparedCanary(GivenUpdates):
    """A canary whose update and score direction are known already."""

    def __init__(self, update: Vector, direction: ScoreDirection) -> None:
        super().__init__(update)
        self._crafted = orthogonalize_directions(
            update[None], direction.vector[None].astype(np.float64), np.array([direction.effective_sigma])
        )

    def crafted(self, model: Vector | None, *, clip_norm: float) -> CraftedUpdates:
        """Return the update as it is, with its direction."""
        return self._crafted


HoldRounds = Callable[..., Period]
"""`summed_rounds` or `real_rounds`."""


@dataclass(frozen=True, kw_only=True)
class AttackCell:
    """Canaries of one kind in one scene, and the rounds in which each of them is looked for."""

    scene: Scene
    crafting: Crafting
    rounds: tuple[AttackRounds, ...]


Attacked = Mapping[str, Any]
"""What `attack` returns: ``metrics`` of the model, and in ``found`` the findings of `attacked`."""


def attack(cell: AttackCell, *, hold: HoldRounds | None = None) -> dict[str, Any]:
    """Train, design and attack; return the findings of `attacked` with the model's metrics."""
    target = remembered(cell.scene)
    return {"metrics": dict(target.metrics), "found": attacked(target, cell.crafting, cell.rounds, hold=hold)}


def attacked(
    target: Frozen, crafting: Crafting, rounds: Sequence[AttackRounds], *, hold: HoldRounds | None = None
) -> list[list[dict[str, Any]]]:
    """Return, for each kind of rounds and each canary, the `summary` of its scores and facts about its design."""
    pool = design_pool(target, crafting.pool)
    design = crafting.design(target, pool)
    client = crafting.adversary.client(target)
    canary_updates = [u.numpy().copy() for u in updates(target.model, design.clients, client, target.clip_norm)]
    findings = []
    for kind in rounds:
        make_direction = likelihood_ratio_direction if kind.score == "likelihood-ratio" else plain_direction
        by_canary = []
        for index, (update, canary) in enumerate(zip(canary_updates, design.canaries, strict=True)):
            direction = make_direction(update, pool, noise_multiplier=kind.noise_multiplier, cohort=kind.cohort)
            prepared = PreparedCanary(update, direction)
            period = (hold or summed_rounds)(prepared, target, kind, seed=1000 * crafting.seed + index)
            facts = {"health": canary.health, "norm": canary.norm, "iterations": design.iterations}
            by_canary.append(summary(period) | facts)
        findings.append(by_canary)
    return findings


def summed_rounds(canary: CanaryMaker, target: Frozen, rounds: AttackRounds, *, seed: int) -> Period:
    """Return the scores of rounds that are sums of the clients' precomputed updates, each scored once."""
    cohorts, mechanism = _cohorts_and_mechanism(target, rounds)
    crafted = canary.crafted(None, clip_norm=target.clip_norm)
    # Scores are linear: that of a sum is the sum of the scores of its parts.
    by_client = target.updates.double().numpy() @ crafted.directions[0].astype(np.float64) / crafted.signals[0]
    present = generator(seed, "coins").random(rounds.trials) < 0.5  # the coins of Canife
    scores = np.zeros(rounds.trials)
    for trial in range(rounds.trials):
        scores[trial] = (
            by_client[cohorts.draw(len(target.clients), 1, seed=seed, round=0, trial=trial + 1)].sum() + present[trial]
        )
        if rounds.noise_multiplier:
            noise = mechanism.noise(crafted.updates.shape[1], seed, target.clip_norm, rounds.cohort, 0, trial + 1)
            scores[trial] += crafted.scores(noise)[0]
    return Period(0, 1, scores[:, None], present[:, None], np.full((rounds.trials, 1), crafted.effective_sigma[0]))


def real_rounds(canary: CanaryMaker, target: Frozen, rounds: AttackRounds, *, seed: int) -> Period:
    """Return the scores of rounds of a training in which every client computes its update: the plain reference."""
    audit = Canife(canaries=canary, rounds=1, every=1, trials=rounds.trials, seed=seed)
    cohorts, mechanism = _cohorts_and_mechanism(target, rounds)
    Training(
        model=target.model,
        data=target.clients,
        rounds=1,
        sampling=cohorts,
        client=target.client,
        mechanism=mechanism,
        audits=[audit],
        seed=seed,
    ).run()
    (period,) = audit.periods
    return period


def _cohorts_and_mechanism(target: Frozen, rounds: AttackRounds) -> tuple[Poisson, Mechanism]:
    mechanism = Mechanism(clip_norm=target.clip_norm, noise_multiplier=rounds.noise_multiplier)
    return Poisson(rounds.cohort / len(target.clients)), mechanism


def perfect_update(target: Frozen) -> Vector:
    """Return a random unit vector that is orthogonal to the updates of all clients."""
    rows = target.updates.double()
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(rows.shape[1]))
    gram = rows @ rows.T
    gram.diagonal().add_(1e-12 * float(gram.diagonal().max()))  # clients may send identical updates
    for _ in range(2):  # twice, to remove what rounding left
        vector -= rows.T @ torch.linalg.solve(gram, rows @ vector)
    return np.asarray((vector / vector.norm()).float().numpy())


def summary(period: Period) -> dict[str, Any]:
    """Return the attack accuracy, the mean standard deviation with and without the canary, and the scores."""
    scores = Scores(period.scores[period.present], period.scores[~period.present])
    deviations = scores.members.std(ddof=1), scores.observed.std(ddof=1)
    return {
        "accuracy": scores.max_accuracy,
        "std": float(np.mean(deviations)),
        "with": np.round(scores.members, 5).tolist(),
        "without": np.round(scores.observed, 5).tolist(),
    }


def mean(part: Attacked, name: str, rounds: int = 0) -> float:
    """Return the mean of a number over the canaries of an attack, in its first kind of rounds or another."""
    return float(np.mean([canary[name] for canary in part["found"][rounds]]))


def accuracy_and_std(part: Attacked, rounds: int = 0) -> list[Number]:
    """Return the mean attack accuracy and standard deviation over the canaries of an attack as cells of a table."""
    return [Number(mean(part, "accuracy", rounds), ".1%"), Number(mean(part, "std", rounds), ".3g")]
