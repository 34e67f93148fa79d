"""Compare clients per second of coalmine's trainer with a naive loop and with pfl. Prints a Markdown table.

python benchmarks/trainer.py [--quick] [--only NAME]

All contenders run the same rounds in turns, each in its own process with one thread. A ratio is the median over the
turns; "best" compares the fastest round of each, which other work on the machine disturbed least. In a round every
client trains from the global model, its update is clipped, and the mean update is added to the model.

Data is random and every client has the same number of examples. Words are uniform and fill every sentence, which leaves
coalmine's word LSTM nothing to skip. Two rows are more realistic: sentences of Stack Exchange, if COALMINE_DATA has
them, with 18.4 of 20 words on average; and chat messages, with a start token and 3 to 18 Zipf-distributed words, 10.5
on average (Ubuntu chat: 10.6).

Two workers are compared with one in separate turns, for at least ten seconds. "Two trainings" is the speedup of two
independent trainings with one worker each in the same turns: what the machine allows. On a busy machine, none of these
ratios means much.

pfl is measured if it can be imported. Its pin of dp-accounting excludes the version that coalmine needs, but pfl does
not use it here: ``pip install --no-deps pfl==0.6.0 multiprocess dill prv-accountant``.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from coalmine.claims import FixedSize
from coalmine.errors import InputError
from coalmine.seeds import generator
from coalmine.simulation import SGD, FixedClipping, LocalTraining, Mechanism, Training, flat
from coalmine.simulation.client import ignored_index, tensors
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.choice import choose_kernel
from coalmine.simulation.kernels.kernel import PartialSum, clip_factors
from coalmine.simulation.models import build
from coalmine.simulation.workers import ClientWork, Workers, WorkItem

try:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly

    PFL = True
except ImportError:
    PFL = False

LEARNING_RATE, SEED = 0.1, 0
SECONDS = 10.0  # minimum duration of the comparison of one worker and two
AfterRound = Callable[[object], None]
Run = Callable[[AfterRound], object]

DIGITS = Task(input_shape=(1, 8, 8), classes=10)
MNIST = Task(input_shape=(1, 28, 28), classes=10)
CELEBA = Task(input_shape=(3, 84, 84), classes=2)
CIFAR = Task(input_shape=(3, 32, 32), classes=10)
WORDS = Task(input_shape=(20,), classes=10_000, tokens=10_000, per_position=True, ignored=0)
CHARACTERS = Task(input_shape=(80,), classes=80, tokens=80, per_position=True, ignored=0)


class TextbookWordLSTM(nn.Module):
    """The same function as ``word-lstm``, written position by position, with parameters of the same names."""

    def __init__(self, words: int, embedding: int = 96, units: int = 670) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.input_gates = nn.Linear(embedding, 3 * units)
        self.recurrent_gates = nn.Linear(embedding, 3 * units, bias=False)
        self.projection = nn.Linear(units, embedding, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, positions, words)."""
        embedded = self.embedding(tokens)
        hidden = embedded.new_zeros(len(tokens), embedded.shape[2])
        cell = embedded.new_zeros(len(tokens), self.projection.in_features)
        states = []
        for x in embedded.unbind(1):
            f, o, g = (self.input_gates(x) + self.recurrent_gates(hidden)).chunk(3, 1)
            forget = torch.sigmoid(f)
            cell = forget * cell + (1 - forget) * torch.tanh(g)
            hidden = self.projection(torch.sigmoid(o) * torch.tanh(cell))
            states.append(hidden)
        return F.linear(torch.stack(states, 1), self.embedding.weight)


@dataclass(frozen=True)
class Workload:
    """A model with data. ``targets`` are speedups to reach: over the naive loop, over pfl, of two workers over one."""

    name: str
    model: str
    task: Task
    clients: int
    examples: int
    batch_size: int | None = None
    repeats: int = 5
    targets: tuple[float | None, float | None, float | None] = (None, None, None)

    @property
    def client(self) -> LocalTraining:
        """One local epoch of plain SGD."""
        return LocalTraining(optimizer=SGD(learning_rate=LEARNING_RATE), batch_size=self.batch_size)

    def data(self) -> FederatedData:
        """Return random examples, or the first real users with enough examples."""
        if self.name == SENTENCES:
            return self._sentences()
        rng, count, task = np.random.default_rng(SEED), self.clients * self.examples, self.task
        if task.tokens is None:
            inputs = rng.random((count, *task.input_shape), dtype=np.float32)
            targets = rng.integers(task.classes, size=count)
        else:
            tokens = rng.integers(1, task.tokens, (count, task.input_shape[0] + 1))
            if self.name == CHAT:
                tokens = np.minimum(rng.zipf(1.2, tokens.shape) + 3, task.tokens - 1)
                tokens[:, 0] = 1
                tokens[np.arange(tokens.shape[1]) > rng.integers(3, 19, count)[:, None]] = 0
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
        return self._federated(inputs, targets)

    def _sentences(self) -> FederatedData:
        """Return the first users of Stack Exchange with enough sentences."""
        data = load("stackexchange").train
        assert data.task == self.task
        users = [data.client(i) for i in np.flatnonzero(data.sizes >= self.examples)[: self.clients].tolist()]
        return self._federated(
            np.concatenate([user.inputs[: self.examples] for user in users]),
            np.concatenate([user.targets[: self.examples] for user in users]),
        )

    def _federated(self, inputs: np.ndarray, targets: np.ndarray) -> FederatedData:
        """Distribute examples evenly over the clients."""
        bounds = self.examples * (np.arange(self.clients)[:, None] + [0, 1])
        names = [str(i) for i in range(self.clients)]
        return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=self.task)

    def trainings(self, data: FederatedData) -> Callable[..., Training]:
        """Return a factory of trainings in which every client takes part in every round."""
        cohorts = FixedSize(self.clients)
        return partial(Training, model=self.module(), data=data, client=self.client, sampling=cohorts, seed=SEED)

    def module(self) -> nn.Module:
        """Return the model as coalmine trains it."""
        return build(self.model, self.task, seed=SEED)

    def peer_module(self) -> nn.Module:
        """Return the model as the peers train it, with the same parameters."""
        module = self.module()
        if self.name not in (TEXTBOOK, SENTENCES, CHAT):
            return module
        textbook = TextbookWordLSTM(self.task.classes)
        textbook.load_state_dict(module.state_dict())
        return textbook


TEXTBOOK = "word LSTM (peers: textbook)"
SENTENCES = "word LSTM, Stack Exchange (peers: textbook)"
CHAT = "word LSTM, chat messages (peers: textbook)"
WORKLOADS = [
    Workload("MLP 64-128-10", "mlp", DIGITS, 1000, 20, repeats=9, targets=(15, 20, None)),
    Workload("LDP CNN 28×28", "ldp-cnn", MNIST, 100, 20, repeats=9, targets=(2.2, 2.2, None)),
    Workload("LEAF CNN 84×84", "leaf-cnn", CELEBA, 20, 20, targets=(1.2, 1.2, 1.7)),
    Workload(TEXTBOOK, "word-lstm", WORDS, 20, 40, repeats=11, targets=(1.5, 1.5, 1.7)),
    Workload(SENTENCES, "word-lstm", WORDS, 20, 40, targets=(1.5, 1.5, None)),
    Workload(CHAT, "word-lstm", WORDS, 20, 40, targets=(1.5, 1.5, None)),
    Workload("word LSTM (peers: same module)", "word-lstm", WORDS, 20, 40, repeats=3),
    Workload("char LSTM", "shakespeare-lstm", CHARACTERS, 20, 40, targets=(None, None, 1.7)),
    Workload("ResNet18-GN 32×32", "resnet18-gn", CIFAR, 64, 1, repeats=9, targets=(1.5, 1.5, 1.7)),
    Workload("MLP, 4 steps", "mlp", DIGITS, 1000, 20, batch_size=5, repeats=3),
    Workload("LDP CNN, 4 steps", "ldp-cnn", MNIST, 100, 20, batch_size=5),
]


class Naive:
    """The naive loop: copy the module, create an optimizer, train, subtract, clip, add."""

    def __init__(self, work: Workload, data: FederatedData, clip_norm: float) -> None:
        self.module, self.clip_norm, self.ignored = work.peer_module(), clip_norm, ignored_index(work.task)
        # Tensors are made in advance, and batches are those that coalmine's clients draw in their first round.
        streams = [partial(generator, SEED, "batches", i) for i in range(len(data))]
        batches = [work.client.batches(work.examples, stream) for stream in streams]
        self.clients = [(*tensors(data.client(i), work.task), batches[i]) for i in range(len(data))]

    def round(self) -> Tensor:
        """Run a round and return the clipped sum."""
        start = parameters_to_vector(self.module.parameters()).detach()
        total = torch.zeros_like(start)
        for inputs, targets, batches in self.clients:
            local = copy.deepcopy(self.module)
            optimizer = torch.optim.SGD(local.parameters(), lr=LEARNING_RATE)
            for rows in batches:
                x, y = (inputs, targets) if rows is None else (inputs[rows], targets[rows])
                optimizer.zero_grad()
                F.cross_entropy(local(x).flatten(0, -2), y.flatten(), ignore_index=self.ignored).backward()
                optimizer.step()
            update = parameters_to_vector(local.parameters()).detach() - start
            total += min(1.0, self.clip_norm / float(update.norm())) * update
        vector_to_parameters(start + total / len(self.clients), self.module.parameters())
        return total

    def run(self, after_round: AfterRound) -> None:
        """Run rounds until the process is stopped."""
        while True:
            after_round(self.round())


class ForPfl(nn.Module):
    """A module with the methods that pfl requires."""

    def __init__(self, module: nn.Module, ignored: int) -> None:
        super().__init__()
        self.module, self.ignored = module, ignored

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(self.module(inputs).flatten(0, -2), targets.flatten(), ignore_index=self.ignored)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, object]:
        """Return a cheap placeholder: evaluation is off, except in the first round, where pfl requires it."""
        return {"examples": Weighted(len(inputs), 1)}


class Pfl:
    """Federated averaging with clipping, set up as in pfl's benchmarks, with tensors made in advance."""

    def __init__(self, work: Workload, data: FederatedData, clip_norm: float) -> None:
        module = ForPfl(work.peer_module(), ignored_index(work.task))
        server = torch.optim.SGD(module.parameters(), lr=1.0)
        self.model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=server)
        users = [PyTorchTensorDataset(tensors(examples, work.task)) for examples in data]
        federation = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(range(len(users)))))
        clipping = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, clip_norm))
        self.backend = SimulatedBackend(training_data=federation, val_data=federation, postprocessors=[clipping])
        self.algorithm, self.cohort = FederatedAveraging(), len(users)
        self.training = NNTrainHyperParams(work.batch_size, local_num_epochs=1, local_learning_rate=LEARNING_RATE)

    def run(self, after_round: AfterRound) -> None:
        """Run central iterations until the process is stopped."""
        for rounds in itertools.count(1):
            params = NNAlgorithmParams(rounds, 1 << 30, self.cohort, None)  # evaluates in the first round only
            self.algorithm.run(params, self.backend, self.model, self.training, send_metrics_to_platform=False)
            after_round(None)


class Contender:
    """A training in its own process that runs one round per request. ``run`` must call back after each round."""

    def __init__(self, run: Run) -> None:
        fork = multiprocessing.get_context("fork")
        self.connection, child_end = fork.Pipe()
        self.process = fork.Process(target=self._serve, args=(run, child_end))
        self.process.start()
        child_end.close()
        self.connection.recv()  # the first round is a warm-up

    @staticmethod
    def _serve(run: Run, connection: Connection) -> None:
        """Run in the child process: send the duration of each round, then wait for the next request."""

        def after_round(_: object) -> None:
            nonlocal start
            connection.send(time.perf_counter() - start)
            if not connection.recv():
                raise SystemExit
            start = time.perf_counter()

        start = time.perf_counter()
        run(after_round)

    def round(self) -> float:
        """Run the next round and return its seconds."""
        self.begin()
        return self.end()

    def begin(self) -> None:
        """Start the next round without waiting for it."""
        self.connection.send(True)

    def end(self) -> float:
        """Wait for the round that was started and return its seconds."""
        return float(self.connection.recv())

    def stop(self) -> None:
        """Stop the process."""
        self.connection.send(False)
        self.process.join()


def measure(work: Workload, data: FederatedData) -> None:
    """Measure one workload and print its row."""
    module = work.module()
    kernel = choose_kernel(module, data, work.client)

    def clipped_sum(clip_norm: float) -> PartialSum:
        all_clients = WorkItem(0, 0, np.arange(work.clients), clip_norm)
        return Workers(ClientWork(data, kernel, SEED), 1).sum(flat.parameter_vector(module), [all_clients])

    clip_norm = float(np.median(clipped_sum(math.inf).norms))
    expected = Naive(work, data, clip_norm).round()
    difference = float((clipped_sum(clip_norm).total - expected).abs().max() / expected.abs().max())

    # No training may start in this process before the contenders fork: it would change malloc's settings for all.
    trainings = partial(work.trainings(data), rounds=1 << 30, mechanism=Mechanism(clipping=FixedClipping(clip_norm)))
    contenders = {"naive": Contender(Naive(work, data, clip_norm).run)}
    if PFL:
        contenders["pfl"] = Contender(Pfl(work, data, clip_norm).run)
    contenders["coalmine"] = Contender(lambda after_round: trainings().run(progress=after_round))
    turns = [{name: contender.round() for name, contender in contenders.items()} for _ in range(work.repeats)]
    for contender in contenders.values():
        contender.stop()

    def cells(name: str, target: float | None) -> list[str]:
        if name not in contenders:
            return ["not installed", "—"]
        speed = f"{work.clients / np.median([turn[name] for turn in turns]):,.1f}"
        return [speed, speedup([turn[name] for turn in turns], [turn["coalmine"] for turn in turns], target)]

    workers = parallel_speedup(trainings, work) if work.targets[2] else "—"
    row = [f"{work.name}, {work.clients} clients of {work.examples}", type(kernel).__name__, cells("coalmine", None)[0]]
    row += [*cells("naive", work.targets[0]), *cells("pfl", work.targets[1]), workers, f"{difference:.0e}"]
    print("| " + " | ".join(row) + " |", flush=True)


def parallel_speedup(trainings: Callable[..., Training], work: Workload) -> str:
    """Describe the speedup of two workers over one, and of two trainings in parallel over two in sequence."""
    single, second = (Contender(lambda after_round: trainings().run(progress=after_round)) for _ in range(2))
    double = Contender(lambda after_round: trainings(workers=2).run(progress=after_round))
    one_worker, two_workers, two_trainings = [], [], []
    while len(one_worker) < work.repeats or sum(one_worker) + sum(two_workers) < SECONDS:
        one_worker.append(single.round())
        two_workers.append(double.round())
        single.begin()
        second.begin()
        two_trainings.append(max(single.end(), second.end()) / 2)
    for contender in (single, second, double):
        contender.stop()
    limit = float(np.median(np.array(one_worker) / two_trainings))
    gain = speedup(one_worker, two_workers, work.targets[2])
    return f"{gain}, two trainings {limit:.2f}×, load {os.getloadavg()[0]:.1f}"


def speedup(slow: list[float], fast: list[float], target: float | None) -> str:
    """Format the ratio of times measured in turns, its target, and the ratio of the fastest rounds."""
    ratio = float(np.median(np.array(slow) / fast))
    bar = "" if target is None else f" (≥ {target:g}{'' if ratio >= target else ', missed'})"
    return f"{ratio:.2f}×{bar}, best {min(slow) / min(fast):.2f}×"


def mechanism_share(work: Workload) -> None:
    """Print the share of noise, clipping and aggregation in a private round, by timing them on their own."""
    mechanism = Mechanism(clipping=FixedClipping(0.1), noise_multiplier=1.0)
    training = work.trainings(work.data())(mechanism=mechanism, rounds=work.repeats)
    weights, vector, part, total = (torch.randn(training.dim) for _ in range(4))
    times = [time.perf_counter()]
    training.run(progress=lambda _: times.append(time.perf_counter()))
    start = time.perf_counter()
    for round in range(work.repeats):
        for _ in range(work.clients):
            norm = flat.norms(vector.sub_(weights)[None]).numpy()
            part.zero_().add_(vector, alpha=float(clip_factors(norm, 0.1)[0]))
            total.add_(part)
        total.add_(torch.from_numpy(mechanism.noise(training.dim, SEED, 0.1, work.clients, round))).div_(work.clients)
    overhead = (time.perf_counter() - start) / work.repeats
    share = (
        f"{overhead / np.median(np.diff(times)):.1%} (≤ 5%) of a round of {work.clients} clients, d = {training.dim:,}"
    )
    print(f"\nNoise, clipping and aggregation take {share}.")


def main() -> None:
    """Measure all workloads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the clients, two repetitions; full time for two workers"
    )
    parser.add_argument("--only", metavar="NAME", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl needs one
    chosen = [work for work in WORKLOADS if options.only.lower() in work.name.lower()]
    if options.quick:
        chosen = [replace(work, clients=max(8, work.clients // 4), repeats=2) for work in chosen]
    columns = ["workload", "kernel", "clients/s", "naive", "faster", "pfl", "faster", "two workers", "difference"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for work in chosen:
        try:
            data = work.data()
        except InputError as error:
            print(f"| {work.name} | not measured: {error} |" + " |" * (len(columns) - 2))
        else:
            measure(work, data)
    for work in (work for work in chosen if work.name == TEXTBOOK):
        mechanism_share(work)


if __name__ == "__main__":
    main()
