"""Models that CANIFE attacks: how they were trained, on which users, and the clients of the attacked rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from torch import Tensor, nn

from coalmine.claims import Poisson
from coalmine.methods.canife.pool import updates
from coalmine.simulation import SGD, CentralTraining, LocalTraining, Mechanism, Training, models
from coalmine.simulation.client import Optimizer
from coalmine.simulation.data import FederatedData, Splits, load


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
        server: Optimizer of the server in DP-FedSGD.
        split: Make clients of ``split`` examples of one user, in random order; None for one client per user.
        most: Keep at most the first ``most`` examples of each client; None for all.
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
    server: Optimizer = field(default_factory=lambda: SGD(learning_rate=1.0))
    split: int | None = None
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
        return updates(self.model, self.clients, self.client, self.clip_norm)


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
    train, pool = (
        at_most(scene.most, divided(scene.split, data, seed=scene.seed)) for data in (splits.train, splits.pool)
    )
    return replace(splits, train=train, pool=pool)


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
        sampling=Poisson(scene.batch_size / len(splits.train)),
        client=scene.client,
        mechanism=Mechanism(clip_norm=scene.clip_norm, noise_multiplier=scene.noise_multiplier),
        server=scene.server,
        seed=scene.seed,
    )


def at_most(count: int | None, users: FederatedData) -> FederatedData:
    """Return the users with at most their first ``count`` examples."""
    if count is None:
        return users
    starts, stops = users.bounds.T
    return replace(users, bounds=np.stack([starts, np.minimum(stops, starts + count)], axis=1))


def divided(count: int | None, users: FederatedData, *, seed: int) -> FederatedData:
    """Return clients of at most ``count`` examples of one user each, in random order; without a count, the users."""
    if count is None:
        return users
    bounds = np.concatenate(
        [
            np.stack([starts, np.minimum(starts + count, stop)], axis=1)
            for start, stop in users.bounds
            for starts in [np.arange(start, stop, count)]
        ]
    )
    order = np.random.default_rng(seed).permutation(len(bounds))
    return replace(users, bounds=bounds[order], names=[f"client-{i}" for i in range(len(bounds))])
