"""The trainings behind Tables 2 to 4 and Figures 1 and 2 of the one-shot paper (Andrew et al. 2023), scaled down.

The paper trains a next-word LSTM with 4.1 M parameters on 341,000 Stack Overflow users, each of whom takes part once in
2,048 rounds, with 1,000 canaries. We train a smaller LSTM on the #ubuntu chat, split into clients with equal numbers of
messages, each of whom also takes part once. docs/one-shot.md of this package says how the sizes were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from coalmine import OneShot
from coalmine.claims.sampling import Epochs
from coalmine.simulation import SGD, LocalTraining, Mechanism, Training, models
from coalmine.simulation.data import Splits, load
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.models.text import WordLSTM
from coalmine.stats import CosineNull, Scores
from coalmine.stats.gaussian import gaussian_fit
from coalmine.stats.nulls import parse_null
from coalmine_reproductions.estimators import published_lower_bound
from coalmine_reproductions.keras_weights import initialize_like_keras


@dataclass(frozen=True)
class OneShotSize:
    """Size of the trainings.

    Args:
        data: Data set.
        vocabulary_size: Words of the vocabulary.
        embedding: Dimension of the embedding.
        units: Units of the LSTM.
        positions: Words per message; longer ones are cut.
        examples: Messages per client.
        clients: Number of clients.
        rounds: Number of rounds.
        server_rate: Learning rate of the server.
        canaries: Inserted canaries, and the number of held-out ones.
        test_clients: Clients of the test set.
    """

    data: str
    vocabulary_size: int
    embedding: int
    units: int
    positions: int
    examples: int
    clients: int
    rounds: int
    server_rate: float
    canaries: int
    test_clients: int


_QUICK = OneShotSize(
    "ubuntu-irc",
    vocabulary_size=1000,
    embedding=32,
    units=64,
    positions=8,
    examples=4,
    clients=4096,
    rounds=256,
    server_rate=2.0,
    canaries=1000,
    test_clients=2000,
)
SIZES = {"quick": _QUICK, "full": replace(_QUICK, clients=8192, rounds=512)}


@dataclass(frozen=True)
class CanaryTraining:
    """One training.

    Args:
        noise_multiplier: Noise multiplier.
        repetitions: Rounds in which each canary is inserted; 0 for a training without canaries.
        size: Size of the training.
        seed: Seed for all random choices.
    """

    noise_multiplier: float
    repetitions: int
    size: OneShotSize
    seed: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"noise-{self.noise_multiplier}-times-{self.repetitions}"


@lru_cache(maxsize=1)  # all trainings of a seed share their data
def _data(size: OneShotSize, seed: int) -> Splits:
    """Return the messages of train and test clients."""
    return load(
        size.data,
        partition=f"balanced:{size.examples}",
        vocabulary_size=size.vocabulary_size,
        positions=size.positions,
        seed=seed,
    )


def train(cell: CanaryTraining) -> dict[str, Any]:
    """Run one training and return what the tables need."""
    size = cell.size
    splits = _data(size, cell.seed)
    data = splits.train.subset(np.random.default_rng(cell.seed).permutation(len(splits.train))[: size.clients])
    model = models.build("word-lstm", data.task, seed=cell.seed, embedding=size.embedding, units=size.units)
    assert isinstance(model, WordLSTM)
    initialize_like_keras(model, cell.seed)
    start = parameter_vector(model).numpy().copy()
    audits = []
    if cell.repetitions:
        updates = OneShot(
            start.size,
            rounds=size.rounds,
            canaries=size.canaries,
            view="updates",
            score="max",
            participation=Epochs(cell.repetitions),
            design="fixed",
            seed=cell.seed,
        )
        audits = [updates, updates.seen_by("final"), updates.seen_by("final-change", initial=start)]
    training = Training(
        model=model,
        data=data,
        test=splits.test.subset(range(min(size.test_clients, len(splits.test)))),
        rounds=size.rounds,
        sampling=Epochs(1),
        client=LocalTraining(optimizer=SGD(learning_rate=1.0), batch_size=size.examples),
        mechanism=Mechanism(clip_norm=0.3, quantile=0.5, noise_multiplier=cell.noise_multiplier),
        server=SGD(learning_rate=size.server_rate),
        audits=audits,
        seed=cell.seed,
    )
    rounds = training.run()
    final = training.state.model.numpy()
    kept: dict[str, Any] = {"recall": rounds[-1]["recall@1"], "dim": training.dim, "clients": len(data)}
    kept["clip_norm"] = float(np.mean([metrics["clip_norm"] for metrics in rounds]))
    kept["norms"] = {
        name: float(np.linalg.norm(vector))
        for name, vector in (("initial", start), ("final", final), ("change", final - start))
    }
    for audit in audits:
        delta = len(data) ** -1.1
        result = audit.result(delta=delta)
        assert result.scores is not None
        # The paper's estimates use the null distribution of a cosine. The largest cosine of all rounds has none in
        # closed form, so there held-out canaries take its place.
        null = parse_null(result.null)
        exact = isinstance(null, CosineNull)
        scores = Scores(result.scores.members, null=null) if exact else result.scores
        epsilons = {e.method: e.epsilon for e in result.estimates}
        kept[audit.view] = {
            "estimate": gaussian_fit(scores, delta=delta).epsilon,
            "published": published_lower_bound(scores, delta=delta).epsilon,
            "bound": epsilons["exact-null"],
            "anderson": result.metrics["anderson_darling"],
            "scores": np.round(result.scores.members, 7).tolist(),
        }
    return kept
