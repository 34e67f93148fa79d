"""CANIFE against a model that stays as it is: what the paper's histograms and ablations are made of.

A client that takes one step over all its examples sends the same from the same model each time. So the updates of all
clients are computed once, and a round is a sum of some of them: the same as in a round that is really held, but for
rounding, in a hundredth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import FACTS, CanaryMaker, CraftedUpdates, orthogonalize_directions
from coalmine.methods.canife.design.loop import DesignOutcome, DesignSettings
from coalmine.methods.canife.design.loss import CovarianceLoss, Loss
from coalmine.methods.canife.design.numeric import design_samples
from coalmine.methods.canife.design.texts import design_texts
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
"""The paper's for ε; it has 1/trials for ε̂ᵣ."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Whose data, and which network, trained on it for how many steps.

    ``options`` are those of ``load``, ``sizes`` the network's. A user has ``most`` examples at most, the first. Steps
    are central ones of ``optimizer``, or with ``noise`` rounds of DP-FedSGD with about ``batch_size`` clients. Then
    rounds are held with the first ``clients`` of the training users, each of whom takes one step of ``client_rate``
    over all its examples and is clipped to ``clip_norm``.
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
    noise: float = 0.0
    most: int | None = None
    clients: int = 1000
    seed: int = 0

    @property
    def client(self) -> LocalTraining:
        """What a client does."""
        return LocalTraining(optimizer=SGD(learning_rate=self.client_rate))

    def module(self, splits: Splits) -> nn.Module:
        """The network at its start."""
        return models.build(self.model, splits.train.task, seed=self.seed, **dict(self.sizes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Frozen:
    """A model that stays as it is, the clients of its rounds, and mock clients."""

    model: nn.Module
    clients: FederatedData
    mock: FederatedData
    client: LocalTraining
    clip_norm: float
    metrics: Mapping[str, float]

    @cached_property
    def updates(self) -> Tensor:
        """(clients, d): what each sends, clipped."""
        sent = updates(self.model, self.clients, self.client, self.clip_norm)
        return torch.stack([update.clone() for update in sent])


def frozen(scene: Scene) -> Frozen:
    """The trained model of a scene, and who comes to its rounds."""
    # Without noise, what clients do has no part in the training.
    of_training = scene if scene.noise else replace(scene, client_rate=1.0, clip_norm=1.0, clients=1)
    module, metrics = _trained(of_training)
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
"""The same, of the last scene: its clients' updates are then known."""


def users(scene: Scene) -> Splits:
    """Training, test and mock users of a scene."""
    splits = load(scene.data, seed=scene.seed, **dict(scene.options))
    assert splits.pool is not None
    return replace(splits, train=at_most(scene.most, splits.train), pool=at_most(scene.most, splits.pool))


@lru_cache(maxsize=1)
def _trained(scene: Scene) -> tuple[nn.Module, Mapping[str, float]]:
    splits = users(scene)
    training: CentralTraining | Training
    if scene.noise:
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
    """DP-FedSGD: rounds of about ``batch_size`` clients, with noise."""
    return Training(
        model=scene.module(splits),
        data=splits.train,
        test=splits.test,
        rounds=scene.steps,
        cohorts=PoissonCohorts(scene.batch_size / len(splits.train)),
        client=scene.client,
        mechanism=Mechanism(clipping=FixedClipping(scene.clip_norm), noise_multiplier=scene.noise),
        seed=scene.seed,
    )


@lru_cache(maxsize=1)
def _pool(target: Frozen, size: int) -> Pool:
    mock = target.mock.subset(range(size))
    return pool_updates(target.model, mock, target.client, target.clip_norm, clients=target.clients)


def at_most(count: int | None, users: FederatedData) -> FederatedData:
    """The same users with their first ``count`` examples."""
    if count is None:
        return users
    starts, stops = users.bounds.T
    return replace(users, bounds=np.stack([starts, np.minimum(stops, starts + count)], axis=1))


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """How a canary is designed, whether its pixels stay in their range, and where it is looked for."""

    name: str
    settings: DesignSettings
    pixels: Literal["free", "valid"]
    score: ScoreName

    def with_design(self, **changes: float | Loss) -> Adversary:
        """The same, but for some settings of the design."""
        return replace(self, settings=replace(self.settings, **changes))  # type: ignore[arg-type]


PAPER = Adversary(name="paper", settings=DesignSettings(loss=CovarianceLoss()), pixels="free", score="plain")
"""Loss 2, free pixels, scored along the canary's own update, as in the paper; but designed by a faster schedule."""

OURS = Adversary(name="ours", settings=DesignSettings(), pixels="valid", score="likelihood-ratio")
"""Designed for, and scored along, the likelihood ratio's direction, with pixels in their range."""


@dataclass(frozen=True, kw_only=True)
class Crafting:
    """``count`` canaries, designed at once but each for itself, against the first ``pool`` mock clients."""

    adversary: Adversary
    pool: int
    count: int = 1
    start: Start = "random"
    seed: int = 0

    def design(self, target: Frozen, pool: Pool) -> DesignOutcome:
        """The samples or texts."""
        task = target.mock.task
        make = design_texts
        if task.tokens is None:
            make = partial(design_samples, valid=None if self.adversary.pixels == "free" else (0.0, 1.0))
        # The paper leaves the example that a canary starts from out of the pool: here it is of mock clients beyond it.
        others = target.mock.subset(range(self.pool, len(target.mock))) if self.start == "pool" else None
        return make(
            target.model,
            pool,
            task=task,
            client=target.client,
            count=self.count,
            settings=self.adversary.settings,
            start=others,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """``trials`` rounds of about ``cohort`` clients, with or without the canary, and how they are scored."""

    cohort: float
    noise: float = 0.0
    trials: int = 100
    score: ScoreName


class Ready:
    """A canary whose update and direction are known: what there is left to do is to plant it."""

    count = 1

    def __init__(self, update: Vector, direction: ScoreDirection) -> None:
        self._crafted = orthogonalize_directions(
            update[None], direction.vector[None].astype(np.float64), np.array([direction.effective_sigma])
        )

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """It is designed: nothing new is known of it."""
        return np.full((1, len(FACTS)), np.nan)

    def crafted(self, model: Vector | None, *, clip_norm: float) -> CraftedUpdates:
        """What it sends."""
        return self._crafted

    def described(self) -> list[dict[str, Any]]:
        """Its sample is known elsewhere."""
        return []

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Nothing changes."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Nothing changes."""


Hold = Callable[..., Canife]
"""``held`` or ``really_held``."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Canaries of one kind in one scene, and the rounds that each of them is looked for in."""

    scene: Scene
    crafting: Crafting
    rounds: tuple[Rounds, ...]


def attack(cell: Cell) -> dict[str, Any]:
    """Train, design, hold the rounds; for each kind of rounds what was found of each canary."""
    target = remembered(cell.scene)
    return {"metrics": dict(target.metrics), "found": attacked(target, cell.crafting, cell.rounds)}


def attacked(
    target: Frozen, crafting: Crafting, rounds: Sequence[Rounds], *, hold: Hold | None = None
) -> list[list[dict[str, Any]]]:
    """For each kind of rounds, of each canary: attack accuracy, deviations, scores, and facts of its design."""
    pool = _pool(target, crafting.pool)
    made = crafting.design(target, pool)
    sent = [u.numpy().copy() for u in updates(target.model, made.clients, target.client, target.clip_norm)]
    found = []
    for kind in rounds:
        direction = likelihood_ratio_direction if kind.score == "likelihood-ratio" else plain_direction
        some = []
        for index, (update, canary) in enumerate(zip(sent, made.canaries, strict=True)):
            way = direction(update, pool, noise_multiplier=kind.noise, cohort=kind.cohort)
            ready = Ready(update, way)
            audit = (hold or held)(ready, target, kind, seed=1000 * crafting.seed + index)
            facts = {"health": canary.health, "norm": canary.norm, "iterations": made.iterations}
            some.append(summary(audit) | facts)
        found.append(some)
    return found


def held(canary: CanaryMaker, target: Frozen, rounds: Rounds, *, seed: int) -> Canife:
    """An audit after its rounds on the frozen model, from the clients' kept updates."""
    audit = Canife(canaries=canary, rounds=1, every=1, trials=rounds.trials, seed=seed)
    cohorts, mechanism = _terms(target, rounds)
    for trial in range(rounds.trials):
        planted = audit.plant(0, clip_norm=target.clip_norm, trial=trial)
        who = cohorts.cohort(len(target.clients), seed, 0, trial + 1)
        total = target.updates[torch.from_numpy(who)].sum(0).numpy()
        if planted is not None:
            total += planted.total
        if rounds.noise:
            total += mechanism.noise(len(total), seed, target.clip_norm, rounds.cohort, 0, trial + 1)
        audit.observe(Release(round=0, kind="update", vector=total, trial=trial, divisor=1.0))
    return audit


def really_held(canary: CanaryMaker, target: Frozen, rounds: Rounds, *, seed: int) -> Canife:
    """The same in rounds of a training, in which every client computes its update anew."""
    audit = Canife(canaries=canary, rounds=1, every=1, trials=rounds.trials, seed=seed)
    cohorts, mechanism = _terms(target, rounds)
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


def _terms(target: Frozen, rounds: Rounds) -> tuple[PoissonCohorts, Mechanism]:
    mechanism = Mechanism(clipping=FixedClipping(target.clip_norm), noise_multiplier=rounds.noise)
    return PoissonCohorts(rounds.cohort / len(target.clients)), mechanism


def perfect_update(target: Frozen) -> Vector:
    """A unit vector orthogonal to whatever a client sends: a random one, less its part in their span."""
    rows = target.updates.double()
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(rows.shape[1]))
    gram = rows @ rows.T
    gram.diagonal().add_(1e-12 * float(gram.diagonal().max()))  # for clients who send the same
    for _ in range(2):  # once more for what rounding left
        vector -= rows.T @ torch.linalg.solve(gram, rows @ vector)
    return np.asarray((vector / vector.norm()).float().numpy())


def summary(audit: Canife) -> dict[str, Any]:
    """Attack accuracy, the mean of the standard deviations with and without the canary, and the scores themselves."""
    (period,) = audit.periods
    scores = Scores(period.scores[period.present], period.scores[~period.present])
    deviations = scores.members.std(ddof=1), scores.observed.std(ddof=1)
    return {
        "accuracy": scores.max_accuracy,
        "std": float(np.mean(deviations)),
        "with": np.round(scores.members, 5).tolist(),
        "without": np.round(scores.observed, 5).tolist(),
    }


def mean(done: Mapping[str, Any], what: str, rounds: int = 0) -> float:
    """Over the canaries of a cell."""
    return float(np.mean([one[what] for one in done["found"][rounds]]))
