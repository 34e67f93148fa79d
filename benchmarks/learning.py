"""Train on real data and print test metrics: MNIST with and without privacy, Shakespeare, Stack Exchange.

    COALMINE_DATA=… python benchmarks/learning.py [mnist mnist-private shakespeare stackexchange] [--workers 2]

Each line is an evaluation on users that were not trained on, beside the metrics of a model that knows only how frequent
each target is.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np

from coalmine import noise_for
from coalmine.claims import FixedSize, Poisson
from coalmine.simulation import (
    SGD,
    Adam,
    FixedClipping,
    LocalTraining,
    Mechanism,
    Training,
    models,
)
from coalmine.simulation.data import FederatedData, Splits, load

DELTA = 1e-5


def mnist(workers: int) -> Training:
    """Train on all 539 writers of MNIST, 50 per round, without privacy."""
    data = load("mnist")
    return Training(
        model=models.build("ldp-cnn", data.train.task),
        data=data.train,
        test=data.test,
        rounds=100,
        evaluate_every=20,
        sampling=FixedSize(50),
        client=LocalTraining(optimizer=SGD(learning_rate=0.2), epochs=2, batch_size=10),
        server=SGD(learning_rate=1.0),
        workers=workers,
    )


def mnist_private(workers: int) -> Training:
    """Train on MNIST writers split into clients of 20 digits: DP-FedAvg at ε = 8."""
    data, rounds, q = load("mnist", partition="balanced:20"), 60, 0.1
    noise = noise_for(epsilon=8.0, sampling=Poisson(q), rounds=rounds, delta=DELTA)
    return Training(
        model=models.build("ldp-cnn", data.train.task),
        data=data.train,
        test=data.test,
        rounds=rounds,
        evaluate_every=20,
        sampling=Poisson(q),
        client=LocalTraining(optimizer=SGD(learning_rate=0.1), batch_size=5),
        mechanism=Mechanism(clipping=FixedClipping(0.1), noise_multiplier=noise),
        server=SGD(learning_rate=3.0, momentum=0.9),
        workers=workers,
    )


def shakespeare(workers: int) -> Training:
    """Predict the next character, on roles with at least ten windows of 80 characters."""
    data = load("shakespeare", min_examples=10)
    return Training(
        model=models.build("shakespeare-lstm", data.train.task),
        data=data.train,
        test=_test_users(data),
        rounds=150,
        evaluate_every=30,
        sampling=FixedSize(10),
        client=LocalTraining(optimizer=SGD(learning_rate=1.0), batch_size=8),
        server=Adam(learning_rate=0.01, epsilon=1e-4),
        workers=workers,
    )


def stackexchange(workers: int) -> Training:
    """Predict the next of 10,000 words, on users of Stack Exchange."""
    data = load("stackexchange", min_examples=10)
    return Training(
        model=models.build("word-lstm", data.train.task),
        data=data.train,
        test=_test_users(data),
        rounds=150,
        evaluate_every=30,
        sampling=FixedSize(20),
        client=LocalTraining(optimizer=SGD(learning_rate=0.5), batch_size=16),
        server=Adam(learning_rate=0.01, epsilon=1e-4),
        workers=workers,
    )


RUNS = {"mnist": mnist, "mnist-private": mnist_private, "shakespeare": shakespeare, "stackexchange": stackexchange}


def _test_users(data: Splits) -> FederatedData:
    """Return at most 60 test users: enough for a stable metric, few enough for a fast one."""
    return data.test.subset(range(min(60, len(data.test))))


def unigram(training: Training) -> dict[str, float]:
    """Return the test metrics of a model that predicts the frequencies of the training targets."""
    task = training.data.task
    ignored = -1 if task.ignored is None else task.ignored
    train_targets = training.data.pooled().targets
    train_targets = train_targets[train_targets != ignored].ravel().astype(np.int64)
    counts = np.bincount(train_targets, minlength=task.classes) + 1.0  # add-one smoothing, for unseen targets
    assert training.test is not None
    targets = training.test.pooled().targets
    targets = targets[targets != ignored].astype(np.int64)
    loss = float(-np.log(counts / counts.sum())[targets].mean())
    correct = float((targets == counts.argmax()).mean())
    return {"accuracy": correct, "recall@1": correct, "perplexity": math.exp(loss), "loss": loss}


def main() -> None:
    """Run the trainings named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=list(RUNS), choices=[*RUNS, []], metavar="RUN")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    for name in options.runs:
        start = time.perf_counter()
        training = RUNS[name](options.workers)
        claim = training.claim(DELTA)
        print(f"\n{name}: {training.data}, {training.dim:,} parameters, kernel {training.kernel}")
        print(f"  claimed: ε = {claim.epsilon:.3f} at δ = {DELTA:g}, {claim.sampling}, {training.rounds} rounds")
        baseline = unigram(training)

        def show(metrics: dict[str, float], baseline: dict[str, float] = baseline, start: float = start) -> None:
            if "loss" in metrics:
                figures = ", ".join(
                    f"{key} {metrics[key]:.4f} (frequencies {baseline[key]:.4f})" for key in baseline if key in metrics
                )
                print(f"  round {metrics['round'] + 1:.0f}: {figures}; {time.perf_counter() - start:.0f} s", flush=True)

        training.run(progress=show)


if __name__ == "__main__":
    main()
