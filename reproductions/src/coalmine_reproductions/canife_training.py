"""Trainings that CANIFE attacks along the way (Figures 1, 4, 6 to 8 and Table 1 of Maddock et al. 2023).

The paper trains on CelebA (ResNet18), Sent140 and Shakespeare (LSTMs) for 510 to 8,895 rounds. We train a small CNN on
digits of MNIST's writers and smaller LSTMs on samples of the other two, for fewer rounds, with the noise that gives the
same ε.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coalmine import claims
from coalmine.claims import Poisson
from coalmine.methods.canife.samples import design_samples
from coalmine.simulation import SGD, Training
from coalmine.simulation.data import Splits
from coalmine_reproductions.canife_attack import DELTA, OURS, PAPER, AttackRounds, Crafting, attacked, design_pool
from coalmine_reproductions.canife_scenes import Frozen, Scene, private_training, users


@dataclass(frozen=True, kw_only=True)
class AttackedScene:
    """A training, the rounds between attacks on it, and the iterations of each design."""

    scene: Scene
    every: int
    iterations: int = 100


@dataclass(frozen=True, kw_only=True)
class MonitoringSize:
    """Which trainings are attacked, and how.

    Args:
        scenes: The trainings; the first is that of Figure 8.
        epsilons: Claimed ε of each.
        without_noise: Data sets that are trained without noise, too (Figure 6b).
        cohorts: Clients per round of Figure 8.
        trials: Trials per attack.
        more_trials: Trials per attack of the canary with more of them.
        pool: Mock clients.
        attacked: Clients that the attacked rounds draw from, at most.
        texts: Training texts that Table 1 starts from.
    """

    scenes: tuple[AttackedScene, ...]
    epsilons: tuple[float, ...]
    without_noise: tuple[str, ...]
    cohorts: tuple[int, ...]
    trials: int = 100
    more_trials: int = 1000
    pool: int = 100
    attacked: int = 600
    texts: int = 3

    def seeded(self, seed: int) -> MonitoringSize:
        """Return the same size with all trainings at another seed."""
        return replace(self, scenes=tuple(replace(kind, scene=replace(kind.scene, seed=seed)) for kind in self.scenes))


# Rates, clip norms and the server's momentum were chosen by the model's accuracy, before any attack. Momentum works on
# what the mechanism has released, so neither ε nor the attack on a round depends on it; without it, recurrent networks
# need thousands of rounds.
_MOMENTUM = SGD(learning_rate=1.0, momentum=0.9)
_WRITERS = Scene(
    data="mnist",
    model="ldp-cnn",
    steps=60,
    client_rate=0.5,
    clip_norm=0.6,
    options=(("pool_fraction", 0.2),),
    split=10,
    batch_size=100,
    server=_MOMENTUM,
)
_ROLES = Scene(
    data="shakespeare",
    model="shakespeare-lstm",
    steps=120,
    client_rate=3.0,
    clip_norm=0.5,
    options=(("pool_fraction", 0.15), ("min_examples", 4), ("positions", 40)),
    sizes=(("hidden", 32),),
    most=8,
    batch_size=60,
    server=replace(_MOMENTUM, learning_rate=2.0),
)
_ACCOUNTS = Scene(
    data="sent140",
    model="sent140-lstm",
    steps=120,
    client_rate=5.75,
    options=(("pool_fraction", 0.2), ("min_examples", 2), ("vocabulary_size", 500)),
    sizes=(("embedding", 25), ("hidden", 32)),
    batch_size=100,
    clients=3000,
    server=_MOMENTUM,
)
_IMAGES = AttackedScene(scene=_WRITERS, every=12)
_TEXTS = (AttackedScene(scene=_ROLES, every=30), AttackedScene(scene=_ACCOUNTS, every=24, iterations=200))
SIZES = {
    "quick": MonitoringSize(scenes=(_IMAGES,), epsilons=(10, 50), without_noise=("mnist",), cohorts=(25, 100)),
    "full": MonitoringSize(
        scenes=(_IMAGES, *_TEXTS),
        epsilons=(10, 30, 50),
        without_noise=("shakespeare",),
        cohorts=(25, 50, 100),
    ),
}


@dataclass(frozen=True, kw_only=True)
class MonitoredTraining:
    """A training to a claimed ε, infinite without noise, and the attacks on it."""

    kind: AttackedScene
    epsilon: float
    size: MonitoringSize

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"canife-{self.kind.scene.data}-{self.epsilon:g}-clients-{self.kind.scene.batch_size}"


def trainings(size: MonitoringSize) -> dict[tuple[str, float], MonitoredTraining]:
    """Return the trainings of Figures 1, 4, 6 and 7 by data set and claimed ε."""
    return {
        (kind.scene.data, epsilon): MonitoredTraining(kind=kind, epsilon=epsilon, size=size)
        for kind in size.scenes
        for epsilon in (*size.epsilons, *([math.inf] if kind.scene.data in size.without_noise else []))
    }


def cohort_trainings(size: MonitoringSize) -> dict[int, MonitoredTraining]:
    """Return the trainings of Figures 8b and 8c by clients per round."""
    first = size.scenes[0]
    kinds = {cohort: replace(first, scene=replace(first.scene, batch_size=cohort)) for cohort in size.cohorts}
    return {
        cohort: MonitoredTraining(kind=kind, epsilon=max(size.epsilons), size=size) for cohort, kind in kinds.items()
    }


def monitor(run: MonitoredTraining) -> dict[str, Any]:
    """Train, attack the current model every few rounds, and return the scores."""
    size, kind, scene = run.size, run.kind, run.kind.scene
    splits = users(scene)
    splits = replace(splits, train=splits.train.subset(range(min(scene.clients, len(splits.train)))))
    rate = scene.batch_size / len(splits.train)
    noise = 0.0
    if math.isfinite(run.epsilon):
        noise = claims.noise_for(
            epsilon=run.epsilon, sampling=Poisson(rate), rounds=scene.steps, delta=DELTA, accountant="rdp"
        )
    scene = replace(scene, noise_multiplier=noise)
    training = private_training(scene, splits)
    periods = []
    for start in range(0, scene.steps, kind.every):
        training.run(until=start)
        target = _target(training, splits, scene, size)
        period: dict[str, Any] = {"round": start, "rounds": min(kind.every, scene.steps - start)}
        # Ours is designed only where the claimed ε is largest, to save time.
        compared = run.epsilon == max(size.epsilons)
        adversaries = [(PAPER, [size.trials])] + ([(OURS, [size.trials, size.more_trials])] if compared else [])
        for adversary, amounts in adversaries:
            designing = adversary.with_design(iterations=kind.iterations)
            crafting = Crafting(adversary=designing, pool=size.pool, seed=scene.seed + start)
            rounds = [
                AttackRounds(cohort=scene.batch_size, noise_multiplier=noise, trials=trials, score=adversary.score)
                for trials in amounts
            ]
            names = [adversary.name, f"{adversary.name}-more"]
            first_canaries = [canaries[0] for canaries in attacked(target, crafting, rounds)]
            period |= dict(zip(names, first_canaries, strict=False))
        if noise:
            period["perfect"] = _perfect(noise, size.trials, (scene.seed, start))
        periods.append(period)
    training.run()
    texts = []
    if splits.train.task.per_position and math.isfinite(run.epsilon):
        texts = designed_texts(_target(training, splits, scene, size), size, kind.iterations)
    outcome = {"noise": noise, "rate": rate, "clients": len(splits.train), "periods": periods, "texts": texts}
    return outcome | _accuracy(training.evaluate())


def _target(training: Training, splits: Splits, scene: Scene, size: MonitoringSize) -> Frozen:
    """Return the current model with the clients of the attacked rounds."""
    assert splits.pool is not None
    return Frozen(
        model=training.module(),
        clients=splits.train.subset(range(min(size.attacked, len(splits.train)))),
        mock=splits.pool,
        client=scene.client,
        clip_norm=scene.clip_norm,
        metrics={},
    )


def _accuracy(metrics: Mapping[str, float]) -> dict[str, float]:
    return {"accuracy": metrics["accuracy"] if "accuracy" in metrics else metrics["recall@1"]}


def designed_texts(target: Frozen, size: MonitoringSize, iterations: int) -> list[dict[str, Any]]:
    """Return texts of training users with what the paper's design makes of each (Table 1)."""
    pool = design_pool(target, size.pool)
    vocabulary = target.clients.vocabulary
    assert vocabulary is not None
    rows = []
    for user in range(size.texts):
        text = target.clients.client(user)[:1]
        design = design_samples(
            target.model,
            pool,
            task=target.mock.task,
            client=target.client,
            settings=replace(PAPER.settings, iterations=iterations),
            start=text,
            seed=user,
        )
        (canary,) = design.canaries
        before, after = (vocabulary.decode(tokens) for tokens in (text.inputs[0], canary.inputs))
        rows.append({"before": before, "after": after, "health": canary.health, "norm": canary.norm})
    return rows


def _perfect(noise: float, trials: int, seed: tuple[int, int]) -> dict[str, Any]:
    """Return the scores of a perfect canary: those of the Gaussian mechanism itself."""
    rng = np.random.default_rng(seed)
    present = rng.random(trials) < 0.5
    scores = rng.normal(0, noise, trials) + present
    return {"with": scores[present].tolist(), "without": scores[~present].tolist()}
