"""Time of the clients' work in a round, by each way to compute it, over the time of the kernel that coalmine chooses.

python benchmarks/clients.py [--only NAME] [--turns 5]

Every row trains the same random clients from the same model with one thread. The ways take turns, and a ratio is the
median over the turns, in processor time, of one way's time over the chosen kernel's: above 1, the chosen one is faster.

- *lean*: `LeanLoop`, one client after another.
- *vmap*: `Stacked`, all clients at once through ``torch.func.vmap``.
- *textbook*: copies of the module and torch's optimizer.

A kernel that is not at least twice as fast as the faster of *lean* and *vmap* on some row should be deleted.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from coalmine.parallel import single_thread
from coalmine.simulation import SGD, LocalTraining, flat
from coalmine.simulation.client import Participant, tensors
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels import choose_kernel
from coalmine.simulation.kernels.kernel import Kernel, LeanLoop, Stacked
from coalmine.simulation.models import build

RATE, CLIP_NORM = 0.1, 0.1
DIGITS = Task(input_shape=(1, 8, 8), classes=10)
MNIST = Task(input_shape=(1, 28, 28), classes=10)
CELEBA = Task(input_shape=(3, 84, 84), classes=2)
CIFAR = Task(input_shape=(3, 32, 32), classes=10)
WORDS = Task(input_shape=(20,), classes=10_000, tokens=10_000, per_position=True, ignored=0)
FEW_WORDS = Task(input_shape=(20,), classes=500, tokens=500, per_position=True, ignored=0)


@dataclass(frozen=True)
class Workload:
    """A model, its clients and their examples; ``vmap`` says whether its layers have rules for vmap."""

    name: str
    model: str
    task: Task
    clients: int
    examples: int
    batch_size: int | None = None
    units: int | None = None
    vmap: bool = True

    def module(self) -> nn.Module:
        """Build the model."""
        settings = {} if self.units is None else {"embedding": 32, "units": self.units}
        return build(self.model, self.task, seed=0, **settings)

    def data(self) -> FederatedData:
        """Draw random examples; sentences have a start token, 3 to 18 Zipf-distributed words, and padding."""
        rng, count, task = np.random.default_rng(0), self.clients * self.examples, self.task
        if task.tokens is None:
            inputs = rng.random((count, *task.input_shape), dtype=np.float32)
            targets = rng.integers(task.classes, size=count)
        else:
            tokens = np.minimum(rng.zipf(1.2, (count, task.input_shape[0] + 1)) + 3, task.tokens - 1)
            tokens[:, 0] = 1
            tokens[np.arange(tokens.shape[1]) > rng.integers(3, 19, count)[:, None]] = 0
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
        bounds = self.examples * (np.arange(self.clients)[:, None] + [0, 1])
        names = [str(i) for i in range(self.clients)]
        return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=task)


WORKLOADS = [
    Workload("MLP 64-128-10, one step", "mlp", DIGITS, 300, 20),
    Workload("MLP 64-128-10, 4 steps", "mlp", DIGITS, 300, 20, batch_size=5),
    Workload("LDP CNN 28×28, one step", "ldp-cnn", MNIST, 40, 20),
    Workload("LDP CNN 28×28, 4 steps", "ldp-cnn", MNIST, 40, 20, batch_size=5),
    Workload("LEAF CNN 84×84, one step", "leaf-cnn", CELEBA, 4, 20),
    Workload("ResNet18-GN 32×32, one example", "resnet18-gn", CIFAR, 32, 1),
    Workload("ResNet18-GN 32×32, 10 examples", "resnet18-gn", CIFAR, 6, 10),
    Workload("word LSTM 96 units, 4 messages", "word-lstm", FEW_WORDS, 64, 4, units=96),
    Workload("word LSTM 670 units, 40 messages", "word-lstm", WORDS, 3, 40, vmap=False),
]


def textbook(module: nn.Module, data: FederatedData, training: LocalTraining) -> Tensor:
    """The clipped sum by copies of the module, as tutorials compute it."""
    start = parameters_to_vector(module.parameters()).detach()
    total = torch.zeros_like(start)
    for i in range(len(data)):
        inputs, targets = tensors(data.client(i), data.task)
        local = copy.deepcopy(module)
        optimizer = torch.optim.SGD(local.parameters(), lr=RATE)
        for rows in training.batches(len(inputs), partial(np.random.default_rng, i)):
            x, y = (inputs, targets) if rows is None else (inputs[rows], targets[rows])
            optimizer.zero_grad()
            F.cross_entropy(local(x).flatten(0, -2), y.flatten(), ignore_index=data.task.ignored).backward()
            optimizer.step()
        update = parameters_to_vector(local.parameters()).detach() - start
        total += min(1.0, CLIP_NORM / float(update.norm())) * update
    return total


def by_kernel(kernel: Kernel, weights: Tensor, data: FederatedData) -> Tensor:
    """The clipped sum by a kernel, chunk by chunk as a training computes it."""
    total, first = torch.zeros_like(weights), 0
    clients = [Participant(data.client(i), partial(np.random.default_rng, i)) for i in range(len(data))]
    for count in kernel.chunks(data.sizes.tolist()):
        chunk = clients[first : first + count]
        total += kernel.clipped_sum(weights, chunk, CLIP_NORM, torch.empty_like(weights)).total
        first += count
    return total


def measure(work: Workload, turns: int) -> str:
    """Measure one workload and return its row."""
    module, data = work.module(), work.data()
    training = LocalTraining(optimizer=SGD(learning_rate=RATE), batch_size=work.batch_size)
    chosen, weights = choose_kernel(module, data, training), flat.parameter_vector(module)
    ways: dict[str, Callable[[], Tensor]] = {"chosen": lambda: by_kernel(chosen, weights, data)}
    kernels = {"lean": LeanLoop(module, data.task, training)}
    if work.vmap:
        kernels["vmap"] = Stacked(module, data.task, training)
    for name, kernel in kernels.items():
        ways[name] = partial(by_kernel, kernel, weights, data)
    ways["textbook"] = partial(textbook, module, data, training)
    sums = {name: way() for name, way in ways.items()}  # warms up as well
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append(time.process_time() - start)
    cells = [work.name, type(chosen).__name__, f"{1e3 * np.median(times['chosen']) / work.clients:.2f}"]
    for name in ("lean", "vmap", "textbook"):
        ratio = np.median(np.array(times[name]) / times["chosen"]) if name in times else None
        cells.append("—" if ratio is None else f"{ratio:.2f}")
    difference = float((sums["chosen"] - sums["textbook"]).norm() / sums["textbook"].norm())
    return "| " + " | ".join([*cells, f"{difference:.0e}"]) + " |"


def main() -> None:
    """Measure all workloads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", metavar="NAME", default="", help="only rows whose name contains this")
    parser.add_argument("--turns", type=int, default=5, help="times that each way is measured")
    options = parser.parse_args()
    columns = ["clients", "kernel", "ms per client", "lean", "vmap", "textbook", "difference"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    with single_thread():
        for work in WORKLOADS:
            if options.only.lower() in work.name.lower():
                print(measure(work, options.turns), flush=True)


if __name__ == "__main__":
    main()
