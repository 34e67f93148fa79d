"""Clients per second of coalmine's trainer against the loop everybody writes and against pfl. Prints a Markdown table.

python benchmarks/trainer.py [--quick] [--only NAME]

All take the same rounds with one thread each, in turns, each in a process of its own: a ratio is the median over the
turns; behind it, that of the fastest rounds of each, which other work on the machine disturbed least. In a round every
client trains from the global model, its update is clipped, and the mean of them is added to the model. Data is random;
every client has the same number of examples. Words are uniform and fill every sentence, which spares coalmine's word
LSTM nothing; but for two rows: sentences of Stack Exchange, where COALMINE_DATA names a directory that has them, 18.4
of 20 words in the mean; and chat messages, which have a begin mark, words by Zipf's law and 3 to 18 of them, 10.5 in
the mean (Ubuntu chat: 10.6).

One worker and two are compared in turns of their own, which take ten seconds at least. Behind their ratio stands what
this machine gives at the same time to two trainings of one worker each that have nothing to do with one another: nobody
can do much better. Beside other work, all of it says little.

pfl is measured where it can be imported (the column says so otherwise). Its pin of dp-accounting excludes the one that
coalmine needs, which it does without here: ``pip install --no-deps pfl==0.6.0 multiprocess dill prv-accountant``.
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

from coalmine.errors import InputError
from coalmine.seeds import generator
from coalmine.simulation import SGD, FixedClipping, FixedSizeCohorts, LocalTraining, Mechanism, Training, flat
from coalmine.simulation.client import ignored_index, tensors
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.choice import choose_kernel
from coalmine.simulation.kernels.partial_sum import PartialSum, clip_factors
from coalmine.simulation.models import build
from coalmine.simulation.workers import ClientWork, Job, Workers

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
SECONDS = 10.0  # that one worker and two are measured for, at least
AfterRound = Callable[[object], None]
Run = Callable[[AfterRound], object]

DIGITS = Task(input_shape=(1, 8, 8), classes=10)
MNIST = Task(input_shape=(1, 28, 28), classes=10)
CELEBA = Task(input_shape=(3, 84, 84), classes=2)
CIFAR = Task(input_shape=(3, 32, 32), classes=10)
WORDS = Task(input_shape=(20,), classes=10_000, tokens=10_000, per_position=True, ignored=0)
CHARACTERS = Task(input_shape=(80,), classes=80, tokens=80, per_position=True, ignored=0)


class TextbookWordLSTM(nn.Module):
    """The function of ``word-lstm``, its cell written down position by position; parameters of the same names."""

    def __init__(self, words: int, embedding: int = 96, units: int = 670) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.input_gates = nn.Linear(embedding, 3 * units)
        self.recurrent_gates = nn.Linear(embedding, 3 * units, bias=False)
        self.projection = nn.Linear(units, embedding, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, positions, words)."""
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
    """What is trained, and the ratios it should reach: to the naive loop, to pfl, of two workers to one."""

    name: str
    model: str
    task: Task
    clients: int
    examples: int
    batch_size: int | None = None
    repeats: int = 5
    bars: tuple[float | None, float | None, float | None] = (None, None, None)

    @property
    def client(self) -> LocalTraining:
        """One epoch of plain SGD."""
        return LocalTraining(optimizer=SGD(learning_rate=LEARNING_RATE), batch_size=self.batch_size)

    def data(self) -> FederatedData:
        """Random examples, or the first real users who have as many."""
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
        return self._shared_out(inputs, targets)

    def _sentences(self) -> FederatedData:
        users = load("stackexchange").train
        chosen = [users.client(i) for i in np.flatnonzero(users.sizes >= self.examples)[: self.clients].tolist()]
        assert users.task == self.task
        return self._shared_out(
            np.concatenate([user.inputs[: self.examples] for user in chosen]),
            np.concatenate([user.targets[: self.examples] for user in chosen]),
        )

    def _shared_out(self, inputs: np.ndarray, targets: np.ndarray) -> FederatedData:
        bounds = self.examples * (np.arange(self.clients)[:, None] + [0, 1])
        names = [str(i) for i in range(self.clients)]
        return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=self.task)

    def trainings(self, data: FederatedData) -> Callable[..., Training]:
        """Trainings in which everybody takes part in every round."""
        cohorts = FixedSizeCohorts(self.clients)
        return partial(Training, model=self.module(), data=data, client=self.client, cohorts=cohorts, seed=SEED)

    def module(self) -> nn.Module:
        """The model as coalmine trains it."""
        return build(self.model, self.task, seed=SEED)

    def peers_module(self) -> nn.Module:
        """The model as the others train it, with the same parameters."""
        module = self.module()
        if self.name not in (TEXTBOOK, SENTENCES, CHAT):
            return module
        plain = TextbookWordLSTM(self.task.classes)
        plain.load_state_dict(module.state_dict())
        return plain


TEXTBOOK = "word LSTM, others textbook"
SENTENCES, CHAT = "word LSTM, Stack Exchange, others textbook", "word LSTM, chat messages, others textbook"
WORKLOADS = [
    Workload("MLP 64-128-10", "mlp", DIGITS, 1000, 20, repeats=9, bars=(15, 20, None)),
    Workload("LDP CNN 28×28", "ldp-cnn", MNIST, 100, 20, repeats=9, bars=(2.2, 2.2, None)),
    Workload("LEAF CNN 84×84", "leaf-cnn", CELEBA, 20, 20, bars=(1.2, 1.2, 1.7)),
    Workload(TEXTBOOK, "word-lstm", WORDS, 20, 40, repeats=11, bars=(1.5, 1.5, 1.7)),
    Workload(SENTENCES, "word-lstm", WORDS, 20, 40, bars=(1.5, 1.5, None)),
    Workload(CHAT, "word-lstm", WORDS, 20, 40, bars=(1.5, 1.5, None)),
    Workload("word LSTM, others by its forward", "word-lstm", WORDS, 20, 40, repeats=3),
    Workload("char LSTM", "shakespeare-lstm", CHARACTERS, 20, 40, bars=(None, None, 1.7)),
    Workload("Transformer", "transformer", WORDS, 20, 40),
    Workload("ResNet18-GN 32×32", "resnet18-gn", CIFAR, 64, 1, repeats=9, bars=(1.5, 1.5, 1.7)),
    Workload("MLP, 4 steps", "mlp", DIGITS, 1000, 20, batch_size=5, repeats=3),
    Workload("LDP CNN, 4 steps", "ldp-cnn", MNIST, 100, 20, batch_size=5),
]


class Naive:
    """The loop everybody writes: copy the module, make an optimizer, train, subtract, clip, add."""

    def __init__(self, work: Workload, data: FederatedData, clip_norm: float) -> None:
        self.module, self.clip_norm, self.ignored = work.peers_module(), clip_norm, ignored_index(work.task)
        # Made in advance: tensors, and the very batches that coalmine's clients draw in their first round.
        streams = [partial(generator, SEED, "batches", i) for i in range(len(data))]
        batches = [work.client.batches(work.examples, stream) for stream in streams]
        self.clients = [(*tensors(data.client(i), work.task), batches[i]) for i in range(len(data))]

    def round(self) -> Tensor:
        """A round; returns the clipped sum."""
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
        """Round after round."""
        while True:
            after_round(self.round())


class ForPfl(nn.Module):
    """A module with the methods that pfl asks for."""

    def __init__(self, module: nn.Module, ignored: int) -> None:
        super().__init__()
        self.module, self.ignored = module, ignored

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(self.module(inputs).flatten(0, -2), targets.flatten(), ignore_index=self.ignored)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, object]:
        """Next to nothing: evaluation is off, but for the first round, where pfl insists."""
        return {"examples": Weighted(len(inputs), 1)}


class Pfl:
    """Federated averaging with clipping as pfl's own benchmarks set it up; tensors made in advance."""

    def __init__(self, work: Workload, data: FederatedData, clip_norm: float) -> None:
        module = ForPfl(work.peers_module(), ignored_index(work.task))
        server = torch.optim.SGD(module.parameters(), lr=1.0)
        self.model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=server)
        users = [PyTorchTensorDataset(tensors(examples, work.task)) for examples in data]
        federation = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(range(len(users)))))
        clipping = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, clip_norm))
        self.backend = SimulatedBackend(training_data=federation, val_data=federation, postprocessors=[clipping])
        self.algorithm, self.cohort = FederatedAveraging(), len(users)
        self.training = NNTrainHyperParams(work.batch_size, local_num_epochs=1, local_learning_rate=LEARNING_RATE)

    def run(self, after_round: AfterRound) -> None:
        """One central iteration after another."""
        for rounds in itertools.count(1):
            params = NNAlgorithmParams(rounds, 1 << 30, self.cohort, None)  # evaluated in the first round alone
            self.algorithm.run(params, self.backend, self.model, self.training, send_metrics_to_platform=False)
            after_round(None)


class Contender:
    """A training in a process of its own that goes on by a round when told to: ``run`` calls back after each."""

    def __init__(self, run: Run) -> None:
        fork = multiprocessing.get_context("fork")
        self.connection, theirs = fork.Pipe()
        self.process = fork.Process(target=self._serve, args=(run, theirs))
        self.process.start()
        theirs.close()
        self.connection.recv()  # the first round warms up

    @staticmethod
    def _serve(run: Run, connection: Connection) -> None:
        def after_round(_: object) -> None:
            nonlocal start
            connection.send(time.perf_counter() - start)
            if not connection.recv():
                raise SystemExit
            start = time.perf_counter()

        start = time.perf_counter()
        run(after_round)

    def round(self) -> float:
        """The seconds that its next round takes."""
        self.begin()
        return self.end()

    def begin(self) -> None:
        """Let it begin its next round."""
        self.connection.send(True)

    def end(self) -> float:
        """The seconds that the round took which it has begun."""
        return float(self.connection.recv())

    def stop(self) -> None:
        """End the process."""
        self.connection.send(False)
        self.process.join()


def measure(work: Workload, data: FederatedData) -> None:
    """Print a row."""
    module = work.module()
    kernel = choose_kernel(module, data, work.client)

    def clipped_sum(clip_norm: float) -> PartialSum:
        everybody = Job(0, 0, np.arange(work.clients), np.ones(work.clients), clip_norm)
        return Workers(ClientWork(data, kernel, SEED), 1).sum(flat.parameter_vector(module), [everybody])

    clip_norm = float(np.median(clipped_sum(math.inf).norms))
    expected = Naive(work, data, clip_norm).round()
    difference = float((clipped_sum(clip_norm).total - expected).abs().max() / expected.abs().max())

    # No training starts in this process before the others have theirs: it would leave its traces in malloc's settings.
    trainings = partial(work.trainings(data), rounds=1 << 30, mechanism=Mechanism(clipping=FixedClipping(clip_norm)))
    contenders = {"naive": Contender(Naive(work, data, clip_norm).run)}
    if PFL:
        contenders["pfl"] = Contender(Pfl(work, data, clip_norm).run)
    contenders["coalmine"] = Contender(lambda after_round: trainings().run(progress=after_round))
    turns = [{name: contender.round() for name, contender in contenders.items()} for _ in range(work.repeats)]
    for contender in contenders.values():
        contender.stop()

    def cells(name: str, bar: float | None) -> list[str]:
        if name not in contenders:
            return ["not installed", "—"]
        speed = f"{work.clients / np.median([turn[name] for turn in turns]):,.1f}"
        return [speed, compared([turn[name] for turn in turns], [turn["coalmine"] for turn in turns], bar)]

    workers = two_workers(trainings, work) if work.bars[2] else "—"
    row = [f"{work.name}, {work.clients} clients of {work.examples}", type(kernel).__name__, cells("coalmine", None)[0]]
    row += [*cells("naive", work.bars[0]), *cells("pfl", work.bars[1]), workers, f"{difference:.0e}"]
    print("| " + " | ".join(row) + " |", flush=True)


def two_workers(trainings: Callable[..., Training], work: Workload) -> str:
    """How many times faster they are than one, and two trainings side by side than one after the other."""
    one, other = (Contender(lambda after_round: trainings().run(progress=after_round)) for _ in range(2))
    two = Contender(lambda after_round: trainings(workers=2).run(progress=after_round))
    alone, shared, beside = [], [], []
    while len(alone) < work.repeats or sum(alone) + sum(shared) < SECONDS:
        alone.append(one.round())
        shared.append(two.round())
        one.begin()
        other.begin()
        beside.append(max(one.end(), other.end()) / 2)
    for contender in (one, other, two):
        contender.stop()
    most = float(np.median(np.array(alone) / beside))
    return f"{compared(alone, shared, work.bars[2])}, two trainings {most:.2f}×, load {os.getloadavg()[0]:.1f}"


def compared(slow: list[float], fast: list[float], bar: float | None) -> str:
    """A ratio of times measured in turns."""
    ratio = float(np.median(np.array(slow) / fast))
    return f"{shown(ratio, bar)}, best {min(slow) / min(fast):.2f}×"


def shown(ratio: float, bar: float | None) -> str:
    """A ratio and what it should reach."""
    return f"{ratio:.2f}×" + ("" if bar is None else f" (≥ {bar:g}{'' if ratio >= bar else ', missed'})")


def mechanism_share(work: Workload) -> None:
    """Print what share of a private round goes to noise, clipping and aggregation: each of these done by itself."""
    mechanism = Mechanism(clipping=FixedClipping(0.1), noise_multiplier=1.0)
    training = work.trainings(work.data())(mechanism=mechanism, rounds=work.repeats)
    weights, vector, part, total = (torch.randn(training.dim) for _ in range(4))
    times = [time.perf_counter()]
    training.run(progress=lambda _: times.append(time.perf_counter()))
    start = time.perf_counter()
    for round in range(work.repeats):
        for _ in range(work.clients):
            norm = flat.norms(vector.sub_(weights)[None]).numpy()
            part.zero_().add_(vector, alpha=float(clip_factors(norm, np.ones(1), 0.1)[0]))
            total.add_(part)
        total.add_(torch.from_numpy(mechanism.noise(training.dim, SEED, 0.1, work.clients, round))).div_(work.clients)
    alone = (time.perf_counter() - start) / work.repeats
    share = f"{alone / np.median(np.diff(times)):.1%} (≤ 5%) of a round of {work.clients} clients, d = {training.dim:,}"
    print(f"\nNoise, clipping and aggregation take {share}.")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the clients, two repetitions; two workers as long as ever"
    )
    parser.add_argument("--only", metavar="NAME", default="", help="rows whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl asks for one
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
