"""How well canaries are told apart: designed or not, scored along their own gradient or along the likelihood ratio's.

python benchmarks/canife_scores.py [--only NAME] [--canaries 6]        (needs COALMINE_DATA)
python benchmarks/canife_scores.py --strength [--seeds 3] [--pool 100]

For each data set a model is trained for a while, 100 mock clients make the design pool, and 150 clients of the training
are the others of the audited rounds: nothing of theirs is in the pool. Effective σ is the deviation of a round's score
over what the canary adds to it, with Poisson cohorts of 100 and noise of σ clip norms: the two hypotheses are then as
N(0, σ²) and N(1, σ²), and no canary gets below the noise's own σ. It is given as *along ĝ → along w*, each the median
over the canaries. *Accuracy* is that of the best threshold in 2,000 simulated rounds along w, half of them with the
canary, without noise to speak of (σ = 0.01), as in the paper's ablations; in brackets along ĝ. The clip norm is the
median norm of the pool's updates.

*Reference* follows the published schedule: Adam at rate 1 for images, free to leave the valid range, and 0.1 for texts,
1,000 iterations, Loss 2, one text drawn at the end. *Undesigned* are random pixels or tokens; *undesigned, real* are
examples of the pool's users. Times are processor seconds for all canaries of a row together.

``--strength`` prints one table for the CNN on CIFAR-10: the signal-to-noise ratio of each kind of canary, 1 / effective
σ at σ = 0.01, along ĝ and along w. Each seed has its own split, model and canaries; a cell has the mean over the seeds
of the median canary, and its standard deviation. *Real* are examples of test users, *mislabelled* the same with another
class. ``--pool`` is the number of mock clients. The same examples are always divided among four times as many clients,
a quarter of whom are the mock clients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.pool import MockClients, Pool, updates
from coalmine.methods.canife.samples import DesignOutcome, design_samples
from coalmine.methods.canife.score_direction import (
    ScoreDirection,
    held_out_sigma,
    likelihood_ratio_direction,
    plain_direction,
)
from coalmine.simulation import SGD, Adam, CentralTraining, LocalTraining, flat, models
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import Examples, FederatedData

POOL, OTHERS, COHORT = 100, 150, 100
NOISES = (0.01, 0.3)
ROUNDS = 2000


@dataclass(frozen=True)
class Setting:
    """A data set, a model, how it is trained before the audit, and at which rate its clients take their step."""

    name: str
    data: str
    options: Mapping[str, object]
    model: str
    steps: int
    optimizer: SGD | Adam
    client_rate: float
    sizes: Mapping[str, int] = field(default_factory=dict)


FAST, SLOW = SGD(learning_rate=0.05, momentum=0.9), Adam(learning_rate=0.003)
SETTINGS = [
    Setting("MNIST writers, LDP CNN", "mnist", {}, "ldp-cnn", 600, FAST, 0.3),
    Setting("CIFAR-10, LEAF CNN", "cifar10", {"partition": "iid:400"}, "leaf-cnn", 1200, FAST, 0.3),
    Setting(
        "Shakespeare roles, LSTM",
        "shakespeare",
        {"min_examples": 4},
        "shakespeare-lstm",
        400,
        SLOW,
        1.0,
        {"hidden": 64},
    ),
    Setting(
        "Sentiment140, LSTM",
        "sent140",
        {"min_examples": 3, "vocabulary_size": 2000},
        "sent140-lstm",
        90,
        SLOW,
        1.0,
        {"embedding": 50, "hidden": 50},
    ),
]


@dataclass(frozen=True, eq=False)
class Scene:
    """What the adversary has, and the others of the rounds."""

    model: nn.Module
    client: LocalTraining
    pool: Pool
    others: Pool
    users: FederatedData
    test: FederatedData
    text: bool

    @classmethod
    def of(cls, setting: Setting, seed: int = 0, mock_clients: int = POOL) -> tuple[Scene, str]:
        """Load, train, and compute everybody's updates; with a line about it."""
        splits = load(setting.data, pool_fraction=0.25, seed=seed, **setting.options)
        task = splits.train.task
        training = CentralTraining(
            model=models.build(setting.model, task, seed=seed, **setting.sizes),
            data=splits.train,
            test=splits.test,
            rounds=1,
            steps=setting.steps,
            batch_size=32,
            optimizer=setting.optimizer,
            seed=seed,
        )
        metrics = training.run()[-1]
        accuracy = metrics.get("accuracy", metrics.get("recall@1"))
        model, client = training.module(), LocalTraining(optimizer=SGD(learning_rate=setting.client_rate))
        # The smallest ones, of data whose users have up to hundreds of windows: it is their directions that count.
        mock, audited = (
            part.subset(np.sort(np.argsort(part.sizes, kind="stable")[:count]))
            for part, count in ((splits.pool, mock_clients), (splits.train, OTHERS))
        )
        clip_norm = float(np.median([float(flat.norms(u[None])) for u in updates(model, mock, client, 1e9)]))
        pool = MockClients(model, mock, client, clients=audited).pool(clip_norm)
        others = MockClients(model, audited, client).pool(clip_norm)
        line = f"{setting.name}: {pool.dim:,} parameters, {accuracy:.1%} right on test users, clip norm {clip_norm:.2g}"
        return cls(model, client, pool, others, mock, splits.test, task.tokens is not None), line

    def design(self, count: int, settings: DesignSettings, **options: object) -> tuple[DesignOutcome, float]:
        """Canaries, and the processor seconds that they took."""
        make: Callable[..., DesignOutcome] = design_samples
        start = time.process_time()
        found = make(
            self.model, self.pool, task=self.users.task, client=self.client, count=count, settings=settings, **options
        )
        return found, time.process_time() - start


def directions(scene: Scene, update: Tensor, noise: float) -> tuple[ScoreDirection, ScoreDirection]:
    """Along ĝ and along w."""
    plain, ratio = (
        make(update.numpy(), scene.pool, noise_multiplier=noise, cohort=COHORT)
        for make in (plain_direction, likelihood_ratio_direction)
    )
    return plain, ratio


def accuracy(direction: ScoreDirection, scene: Scene, noise: float, draw: np.random.Generator) -> float:
    """Of the best threshold, in simulated rounds of a Poisson number of clients."""
    vector = torch.from_numpy(direction.vector).double()
    products = scene.others.dots(vector[None])[0].numpy()
    without = np.array([draw.choice(products, draw.poisson(COHORT)).sum() for _ in range(ROUNDS)])
    scores = without + draw.normal(0, noise * scene.pool.clip_norm, ROUNDS)
    scores[: ROUNDS // 2] += direction.signal
    ordered = np.argsort(-scores)
    hits = np.cumsum(ordered < ROUNDS // 2) - np.cumsum(ordered >= ROUNDS // 2)
    return 0.5 + max(0, hits.max()) / ROUNDS


def row(name: str, scene: Scene, design: DesignOutcome, seconds: float) -> None:
    """Print one."""
    sent = [update.clone() for update in updates(scene.model, design.clients, scene.client, scene.pool.clip_norm)]
    cells = [name, str(design.iterations), f"{seconds:.1f}", f"{np.median([c.health for c in design.canaries]):.3f}"]
    cells.append(f"{np.median([c.norm for c in design.canaries]):.2f}")
    for noise in NOISES:
        made = {"noise_multiplier": noise, "cohort": COHORT}
        pairs = [[held_out_sigma(d, scene.others, **made) for d in directions(scene, u, noise)] for u in sent]
        plain, ratio = np.median(pairs, axis=0)
        cells.append(f"{plain:.3f} → {ratio:.3f}")
    draw = np.random.default_rng(0)
    found = [[accuracy(d, scene, NOISES[0], draw) for d in directions(scene, u, NOISES[0])] for u in sent]
    plain, ratio = np.median(found, axis=0)
    cells.append(f"{ratio:.1%} ({plain:.1%})")
    print("| " + " | ".join(cells) + " |", flush=True)


def measure(setting: Setting, count: int) -> None:
    """Print a table."""
    scene, line = Scene.of(setting)
    columns = ["canary", "iterations", "seconds", "health", "norm"]
    columns += [*(f"σ = {noise:g}: ĝ → w" for noise in NOISES), "accuracy along w (ĝ)"]
    print(f"\n{line}\n\n| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    none = DesignSettings(iterations=0)
    free: dict[str, object] = {} if scene.text else {"valid": None}
    published = partial(
        DesignSettings,
        iterations=1000,
        patience=1000,
        learning_rate=0.1 if scene.text else 1.0,
        schedule="constant",
    )
    usual = DesignSettings()
    rows: Sequence[tuple[str, DesignSettings, dict[str, object]]] = [
        ("undesigned", none, {}),
        ("undesigned, real", none, {"start": scene.users}),
        ("reference", published(loss="covariance"), free),
        ("coalmine, Loss 1", DesignSettings(loss="mean"), {}),
        ("coalmine, Loss 2", DesignSettings(loss="covariance"), {}),
        ("coalmine", usual, {}),
        ("coalmine, real start", usual, {"start": scene.users}),
        ("coalmine, half the iterations", DesignSettings(iterations=usual.iterations // 2), {}),
    ]
    for name, settings, options in rows:
        row(name, scene, *scene.design(count, settings, **options))


def strength(count: int, seeds: int, mock_clients: int) -> None:
    """Print the signal-to-noise ratios of all kinds of canaries."""
    (setting,) = [setting for setting in SETTINGS if setting.model == "leaf-cnn"]
    setting = replace(setting, options={"partition": f"iid:{4 * mock_clients}"})
    noise, none = NOISES[0], DesignSettings(iterations=0)
    ratios: dict[str, list[Floats]] = {}
    for seed in range(seeds):
        scene, line = Scene.of(setting, seed, mock_clients)
        print(line, flush=True)
        test = scene.test.pooled()
        wrong = Examples(test.inputs, (test.targets + 1) % scene.users.task.classes)
        rows: Sequence[tuple[str, DesignSettings, dict[str, object]]] = [
            ("real", none, {"start": test}),
            ("mislabelled", none, {"start": wrong}),
            ("random pixels", none, {}),
            ("designed with Loss 2", DesignSettings(loss="covariance"), {}),
            ("designed for the likelihood ratio (default)", DesignSettings(), {}),
        ]
        for name, settings, options in rows:
            design, _ = scene.design(count, settings, seed=seed, **options)
            sent = updates(scene.model, design.clients, scene.client, scene.pool.clip_norm)
            sigmas = [
                [
                    held_out_sigma(d, scene.others, noise_multiplier=noise, cohort=COHORT)
                    for d in directions(scene, u, noise)
                ]
                for u in sent
            ]
            ratios.setdefault(name, []).append(1 / np.median(sigmas, axis=0))
            print(name, *(f"{ratio:.2f}" for ratio in ratios[name][-1]), flush=True)
    print("\n| canary | along its own direction | along the likelihood ratio |\n|---|---|---|")
    for name, values in ratios.items():
        means, deviations = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, seeds - 1))
        cells = [f"{mean:.1f} ± {deviation:.1f}" for mean, deviation in zip(means, deviations, strict=True)]
        print(f"| {name} | {cells[0]} | {cells[1]} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", metavar="NAME", default="", help="data sets whose name contains this")
    parser.add_argument("--canaries", type=int, default=6, help="in each row")
    parser.add_argument("--strength", action="store_true", help="print the table of signal-to-noise ratios instead")
    parser.add_argument("--seeds", type=int, default=3, help="of --strength")
    parser.add_argument("--pool", type=int, default=POOL, help="number of mock clients in --strength")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.strength:
        strength(options.canaries, options.seeds, options.pool)
        return
    for setting in SETTINGS:
        if options.only.lower() in setting.name.lower():
            measure(setting, options.canaries)


if __name__ == "__main__":
    main()
