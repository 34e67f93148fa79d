"""CANIFE against a frozen model: the building block of the paper's histograms and ablations.

A client that takes one step over all its examples always sends the same update from the same model. So all clients'
updates are computed once, and a round is a sum of some of them. Up to rounding this is the same as a round of a real
training (`real_rounds`), in a hundredth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import CanaryMaker, CraftedUpdates, GivenUpdates, orthogonalize_directions
from coalmine.methods.canife.design.loop import DesignOutcome, DesignSettings
from coalmine.methods.canife.design.loss import CovarianceLoss, Loss
from coalmine.methods.canife.design.samples import design_samples
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.designed_canaries import ScoreName, Start
from coalmine.methods.canife.mock_clients import pool_updates, updates
from coalmine.methods.canife.score_direction import ScoreDirection, likelihood_ratio_direction, plain_direction
from coalmine.protocol import Release, Vector
from coalmine.simulation import (
    SGD,
    CentralTraining,
    FixedClipping,
    LocalTraining,
    Mechanism,
    PoissonCohorts,
    Training,
    models,
)
from coalmine.simulation.data import FederatedData, Splits, load
from coalmine.simulation.optimizers import Optimizer
from coalmine.stats import Scores

DELTA = 1e-5
"""δ of ε in the paper, which uses 1/trials for ε̂ᵣ."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A model, its training, and the clients of the attacked rounds.

    Args:
        data: Data set.
        model: Network.
        steps: Central steps of ``optimizer``; with noise, rounds of DP-FedSGD.
        client_rate: Learning rate of clients, who take one step over all their examples.
        options: Options of `load`.
        sizes: Sizes of the network.
        clip_norm: Clip norm of updates.
        optimizer: Optimizer of the central training.
        batch_size: Examples per central step, or expected clients per round of DP-FedSGD.
        noise_multiplier: Noise multiplier of the training; 0 for central training.
        most: Keep at most the first ``most`` examples of each user; None for all.
        clients: Training users who take part in the attacked rounds.
        seed: Seed for all random choices.
    """

    data: str
    model: str
    steps: int
    client_rate: float
    options: tuple[tuple[str, Any], ...]
    sizes: tuple[tuple[str, int], ...] = ()
    clip_norm: float = 1.0
    optimizer: Optimizer = field(default_factory=lambda: SGD(learning_rate=0.05, momentum=0.9))
    batch_size: int = 64
    noise_multiplier: float = 0.0
    most: int | None = None
    clients: int = 1000
    seed: int = 0

    @property
    def client(self) -> LocalTraining:
        """One step of SGD over all examples of a client."""
        return LocalTraining(optimizer=SGD(learning_rate=self.client_rate))

    def module(self, splits: Splits) -> nn.Module:
        """Return the initial network."""
        return models.build(self.model, splits.train.task, seed=self.seed, **dict(self.sizes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Frozen:
    """A frozen model, the clients of its rounds, and mock clients."""

    model: nn.Module
    clients: FederatedData
    mock: FederatedData
    client: LocalTraining
    clip_norm: float
    metrics: Mapping[str, float]

    @cached_property
    def updates(self) -> Tensor:
        """The clipped update of each client, ``(clients, d)``."""
        clipped = updates(self.model, self.clients, self.client, self.clip_norm)
        return torch.stack([update.clone() for update in clipped])


def frozen(scene: Scene) -> Frozen:
    """Return the trained model of a scene with the clients of its rounds."""
    # Without noise the training is central. Settings of clients do not affect it, and must not cause another training.
    training_scene = scene if scene.noise_multiplier else replace(scene, client_rate=1.0, clip_norm=1.0, clients=1)
    module, metrics = _trained(training_scene)
    splits = users(scene)
    assert splits.pool is not None
    return Frozen(
        model=module,
        clients=splits.train.subset(range(min(scene.clients, len(splits.train)))),
        mock=splits.pool,
        client=scene.client,
        clip_norm=scene.clip_norm,
        metrics=metrics,
    )


remembered = lru_cache(maxsize=1)(frozen)
"""`frozen` with a cache of one scene, so that its clients' updates are computed once."""


def users(scene: Scene) -> Splits:
    """Return the training, test and mock users of a scene."""
    splits = load(scene.data, seed=scene.seed, **dict(scene.options))
    assert splits.pool is not None
    return replace(splits, train=at_most(scene.most, splits.train), pool=at_most(scene.most, splits.pool))


@lru_cache(maxsize=1)
def _trained(scene: Scene) -> tuple[nn.Module, Mapping[str, float]]:
    splits = users(scene)
    training: CentralTraining | Training
    if scene.noise_multiplier:
        training = private_training(scene, splits)
    else:
        training = CentralTraining(
            model=scene.module(splits),
            data=splits.train,
            test=splits.test,
            rounds=min(1, scene.steps),
            steps=max(1, scene.steps),
            batch_size=scene.batch_size,
            optimizer=scene.optimizer,
            seed=scene.seed,
        )
    training.run()
    return training.module(), training.evaluate()


def private_training(scene: Scene, splits: Splits) -> Training:
    """Return DP-FedSGD with Poisson rounds of ``batch_size`` expected clients."""
    return Training(
        model=scene.module(splits),
        data=splits.train,
        test=splits.test,
        rounds=scene.steps,
        cohorts=PoissonCohorts(scene.batch_size / len(splits.train)),
        client=scene.client,
        mechanism=Mechanism(clipping=FixedClipping(scene.clip_norm), noise_multiplier=scene.noise_multiplier),
        seed=scene.seed,
    )


@lru_cache(maxsize=1)
def _pool(target: Frozen, size: int) -> Pool:
    mock = target.mock.subset(range(size))
    return pool_updates(target.model, mock, target.client, target.clip_norm, clients=target.clients)


def at_most(count: int | None, users: FederatedData) -> FederatedData:
    """Return the users with at most their first ``count`` examples."""
    if count is None:
        return users
    starts, stops = users.bounds.T
    return replace(users, bounds=np.stack([starts, np.minimum(stops, starts + count)], axis=1))


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

    def with_design(self, **changes: float | Loss) -> Adversary:
        """Return the adversary with other settings of the design."""
        return replace(self, settings=replace(self.settings, **changes))  # type: ignore[arg-type]


PAPER = Adversary(name="paper", settings=DesignSettings(loss=CovarianceLoss()), pixels="free", score="plain")
"""The paper's adversary: Loss 2, free pixels, scored along the canary's update; designed with a faster schedule."""

REFERENCE = replace(PAPER, name="reference", own_rate=1.0)
"""The paper's adversary by the convention of its published code, which divides the canary's update by the clients'
learning rate: a gradient of norm 1 is enough to send an update of the clip norm."""

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


HoldRounds = Callable[..., Canife]
"""`summed_rounds` or `real_rounds`."""


@dataclass(frozen=True, kw_only=True)
class AttackCell:
    """Canaries of one kind in one scene, and the rounds in which each of them is looked for."""

    scene: Scene
    crafting: Crafting
    rounds: tuple[AttackRounds, ...]


def attack(cell: AttackCell) -> dict[str, Any]:
    """Train, design and attack; return the findings of `attacked` with the model's metrics."""
    target = remembered(cell.scene)
    return {"metrics": dict(target.metrics), "found": attacked(target, cell.crafting, cell.rounds)}


def attacked(
    target: Frozen, crafting: Crafting, rounds: Sequence[AttackRounds], *, hold: HoldRounds | None = None
) -> list[list[dict[str, Any]]]:
    """Return, for each kind of rounds and each canary, the `summary` of its scores and facts about its design."""
    pool = _pool(target, crafting.pool)
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
            audit = (hold or summed_rounds)(prepared, target, kind, seed=1000 * crafting.seed + index)
            facts = {"health": canary.health, "norm": canary.norm, "iterations": design.iterations}
            by_canary.append(summary(audit) | facts)
        findings.append(by_canary)
    return findings


def summed_rounds(canary: CanaryMaker, target: Frozen, rounds: AttackRounds, *, seed: int) -> Canife:
    """Return an audit after rounds that are sums of the clients' precomputed updates."""
    audit = Canife(canaries=canary, rounds=1, every=1, trials=rounds.trials, seed=seed)
    cohorts, mechanism = _cohorts_and_mechanism(target, rounds)
    for trial in range(rounds.trials):
        contribution = audit.plant(0, clip_norm=target.clip_norm, trial=trial)
        cohort = cohorts.cohort(len(target.clients), seed, 0, trial + 1)
        total = target.updates[torch.from_numpy(cohort)].sum(0).numpy()
        if contribution is not None:
            total += contribution.total
        if rounds.noise_multiplier:
            total += mechanism.noise(len(total), seed, target.clip_norm, rounds.cohort, 0, trial + 1)
        audit.observe(Release(round=0, kind="update", vector=total, trial=trial, divisor=1.0))
    return audit


def real_rounds(canary: CanaryMaker, target: Frozen, rounds: AttackRounds, *, seed: int) -> Canife:
    """Return an audit after rounds of a training in which every client computes its update: the plain reference."""
    audit = Canife(canaries=canary, rounds=1, every=1, trials=rounds.trials, seed=seed)
    cohorts, mechanism = _cohorts_and_mechanism(target, rounds)
    Training(
        model=target.model,
        data=target.clients,
        rounds=1,
        cohorts=cohorts,
        client=target.client,
        mechanism=mechanism,
        audits=[audit],
        seed=seed,
    ).run()
    return audit


def _cohorts_and_mechanism(target: Frozen, rounds: AttackRounds) -> tuple[PoissonCohorts, Mechanism]:
    mechanism = Mechanism(clipping=FixedClipping(target.clip_norm), noise_multiplier=rounds.noise_multiplier)
    return PoissonCohorts(rounds.cohort / len(target.clients)), mechanism


def perfect_update(target: Frozen) -> Vector:
    """Return a random unit vector that is orthogonal to the updates of all clients."""
    rows = target.updates.double()
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(rows.shape[1]))
    gram = rows @ rows.T
    gram.diagonal().add_(1e-12 * float(gram.diagonal().max()))  # clients may send identical updates
    for _ in range(2):  # twice, to remove what rounding left
        vector -= rows.T @ torch.linalg.solve(gram, rows @ vector)
    return np.asarray((vector / vector.norm()).float().numpy())


def summary(audit: Canife) -> dict[str, Any]:
    """Return the attack accuracy, the mean standard deviation with and without the canary, and the scores."""
    (period,) = audit.periods
    scores = Scores(period.scores[period.present], period.scores[~period.present])
    deviations = scores.members.std(ddof=1), scores.observed.std(ddof=1)
    return {
        "accuracy": scores.max_accuracy,
        "std": float(np.mean(deviations)),
        "with": np.round(scores.members, 5).tolist(),
        "without": np.round(scores.observed, 5).tolist(),
    }


def mean(attacked_cell: Mapping[str, Any], name: str, rounds: int = 0) -> float:
    """Return the mean of a number over the canaries of a cell."""
    return float(np.mean([canary[name] for canary in attacked_cell["found"][rounds]]))
