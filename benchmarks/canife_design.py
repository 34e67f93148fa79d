"""Time and memory of one design iteration against the reference's formulation. Prints a Markdown table.

python benchmarks/canife_design.py [--only NAME] [--ways WAY] [--pool 100]

The baselines are written after the formulation of facebookresearch/canife (no code of it is used): the canary's
parameter gradient with a graph, normalized, multiplied with every update of the pool, the loss
d · meanᵢ⟨uᵢ, C g/‖g‖⟩² + d · max(c − ‖g‖, 0)² sent back through all of it, one step of Adam. They design one canary at
a time. *element-wise* multiplies and sums as the reference does; *matmul* computes the same products as one matrix
product, a change of one line, and all ratios compare with it. *one by one*, *vmap* and *by layers* are coalmine's ways
(`coalmine.methods.canife.sample_gradients`), *chosen* is the one that it takes.

Every contender runs in a process of its own with one thread, in short turns with *matmul*. A time is the least
processor time of an iteration, which other processes disturb less than the clock's median. A ratio is the median over
turns of the ratio of the least times in a turn and in the one after it, when the machine was about as fast for both:
*matmul* against itself shows how far to trust it. Memory is the process's highest (ru_maxrss) before *matmul* joins.
All see the same model, pool (100 mock clients of one random example) and canary. *Difference* is the largest deviation
of the derivative with respect to the canary from that of the baseline in float64, relative to the largest entry, for a
pool of six: in float32 the baselines themselves are off where all updates are much alike.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coalmine.methods.canife.design import DesignLoss, DesignSettings, descend, step_size
from coalmine.methods.canife.pool import MockClients, updates
from coalmine.methods.canife.sample_gradients import Batched, ByLayers, OneByOne, sample_gradients
from coalmine.parallel import single_thread
from coalmine.simulation import SGD, LocalTraining, models
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.models.text import SoftEmbedding

MOCK_CLIENTS = 100
FEW = 6  # mock clients of the comparison in float64
CLIENT = LocalTraining(
    optimizer=SGD(learning_rate=1.0)
)  # at other rates the reference and coalmine mean different norms
CLIP_NORM = 1.0
COLOUR = Task(input_shape=(3, 32, 32), classes=2)
TEXT = Task(input_shape=(25,), classes=2, tokens=101)


@dataclass(frozen=True)
class Workload:
    """A model, and how many turns of how many iterations to time."""

    name: str
    model: str
    task: Task
    turns: int
    iterations: int


WORKLOADS = [
    Workload("ResNet18-GN, 32 × 32 × 3", "resnet18-gn", COLOUR, 5, 2),
    Workload("LEAF CNN, 32 × 32 × 3", "leaf-cnn", COLOUR, 60, 8),
    Workload("LSTM, 25 of 101 characters", "sent140-lstm", TEXT, 20, 5),
]
CONTENDERS = [("exact", 1), ("matmul", 1), ("element-wise", 1)]
CONTENDERS += [(way, count) for count in (1, 16) for way in ("one by one", "vmap", "by layers", "chosen")]


def mock_clients(task: Task, count: int) -> FederatedData:
    """Clients of one random example."""
    draw = np.random.default_rng(0)
    inputs = draw.random((count, *task.input_shape), dtype=np.float32)
    return FederatedData(
        inputs=inputs if task.tokens is None else draw.integers(task.tokens, size=inputs.shape),
        targets=draw.integers(task.classes, size=count),
        bounds=np.stack([np.arange(count), np.arange(1, count + 1)], axis=1),
        names=[str(i) for i in range(count)],
        task=task,
    )


def start_of(task: Task, count: int) -> tuple[Tensor, Tensor]:
    """Pixels, or logits of tokens, and labels."""
    draw = torch.Generator().manual_seed(0)
    shape = (count, *task.input_shape) if task.tokens is None else (count, *task.input_shape, task.tokens)
    numbers = torch.rand(shape, generator=draw)
    return (numbers if task.tokens is None else 3 * numbers), torch.arange(count) % task.classes


class Baseline:
    """One canary, the reference's way."""

    def __init__(self, work: Workload, pool: int, way: str, dtype: torch.dtype = torch.float32) -> None:
        self.work, self.way, module = work, way, models.build(work.model, work.task)
        self.module = module.to(dtype)
        self.parameters = list(module.parameters())
        dim = sum(p.numel() for p in self.parameters)
        self.pool = torch.empty(pool, dim, dtype=dtype)
        for row, update in zip(
            self.pool, updates(module, mock_clients(work.task, pool), CLIENT, CLIP_NORM), strict=True
        ):
            row.copy_(update)
        canary, self.label = start_of(work.task, 1)
        self.canary = canary.to(dtype).requires_grad_()
        self.optimizer = torch.optim.Adam([self.canary], lr=1.0 if work.task.tokens is None else 0.1)

    def loss(self, inputs: Tensor) -> Tensor:
        """Of pixels or of distributions over tokens, with a graph through everything."""
        if self.work.task.tokens is not None:
            self.module.embedding.__class__ = SoftEmbedding  # takes distributions
        logits = self.module(inputs)
        gradients = torch.autograd.grad(F.cross_entropy(logits, self.label), self.parameters, create_graph=True)
        gradient = torch.cat([piece.flatten() for piece in gradients])
        short = (1.0 - gradient.norm()).clamp(min=0).square()
        unit = F.normalize(gradient, dim=0) * CLIP_NORM
        products = (unit[None] * self.pool).sum(1) if self.way == "element-wise" else self.pool @ unit
        return len(gradient) * (short + products.square().mean())

    def derivative(self) -> Tensor:
        """By the inputs, at the start, of the loss without its factor d."""
        inputs = self.canary.detach() if self.work.task.tokens is None else self.canary.detach().softmax(-1)
        inputs.requires_grad_()
        return torch.autograd.grad(self.loss(inputs), inputs)[0] / self.pool.shape[1]

    def iterate(self, times: int) -> list[float]:
        """The seconds that each iteration takes."""
        found = []
        for _ in range(times):
            start = time.process_time()
            self.optimizer.zero_grad()
            inputs = self.canary if self.work.task.tokens is None else F.gumbel_softmax(self.canary)
            self.loss(inputs).backward()
            self.optimizer.step()
            found.append(time.process_time() - start)
        return found


class Coalmine:
    """``count`` canaries, by one of coalmine's ways."""

    def __init__(self, work: Workload, pool: int, way: str, count: int) -> None:
        self.work, module = work, models.build(work.model, work.task)
        rows = MockClients(module, mock_clients(work.task, pool), CLIENT).pool(CLIP_NORM)
        self.canaries, self.labels = start_of(work.task, count)
        inputs = self.canaries if work.task.tokens is None else self.canaries.softmax(-1)
        match way:
            case "one by one":
                self.gradients = OneByOne(module)
            case "vmap":
                self.gradients = Batched(module, inputs[:1])
            case "by layers":
                self.gradients = ByLayers(module, inputs[:1])
            case _:
                self.gradients = sample_gradients(module, inputs, self.labels)
        used = self.gradients.used
        self.loss = DesignLoss(rows, "covariance", step=step_size(CLIENT), norm_constant=1.0, used=used)

    def derivative(self) -> Tensor:
        """By the first canary's inputs, at the start."""
        inputs = self.canaries[:1] if self.work.task.tokens is None else self.canaries[:1].softmax(-1)
        inputs = inputs.clone().requires_grad_()
        rows = self.gradients.of(inputs, self.labels[:1])
        valued = self.loss.derivative(rows.detach())
        return torch.autograd.grad(rows, inputs, valued[1])[0]

    def iterate(self, times: int) -> list[float]:
        """The seconds that each iteration takes."""
        ends = [time.process_time()]

        def samples(values: Tensor) -> tuple[Tensor, Tensor]:
            return (values if self.work.task.tokens is None else F.gumbel_softmax(values)), self.labels

        with single_thread():
            descend(
                self.canaries,
                samples,
                self.gradients,
                self.loss,
                DesignSettings(iterations=times),
                rate=0.1,
                schedule="constant",
                project=lambda _: ends.append(time.process_time()),
            )
        return np.diff(ends).tolist()


def run_one(work: Workload, way: str, count: int, pool: int, file: Path) -> None:
    """A contender alone in this process: its figures on stdout, its derivative for a small pool in ``file``."""
    torch.set_num_threads(1)
    if way == "exact":
        np.save(file, Baseline(work, FEW, "matmul", torch.float64).derivative().numpy())
        print(json.dumps({}))
        return

    def contender(size: int) -> Baseline | Coalmine:
        return Baseline(work, size, way) if way in ("matmul", "element-wise") else Coalmine(work, size, way, count)

    np.save(file, contender(FEW).derivative().numpy())
    measured = contender(pool)
    measured.iterate(2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    baseline = Baseline(work, pool, "matmul")
    # The first iteration of each turn warms up.
    least = np.array(
        [[min(each.iterate(work.iterations + 1)[1:]) for each in (measured, baseline)] for _ in range(work.turns)]
    )
    ms, ratio = 1e3 * least[:, 0].min() / count, float(np.median(least[:, 1] / (least[:, 0] / count)))
    print(json.dumps({"ms": ms, "ratio": ratio, "gigabytes": peak / 1e6}))


def measure(work: Workload, pool: int, ways: str) -> None:
    """Print a row for each contender, as it comes."""
    with tempfile.TemporaryDirectory() as directory:
        for way, count in CONTENDERS:
            if way not in ("exact", "matmul") and ways not in way:
                continue
            file = Path(directory) / f"{way}-{count}.npy"
            one = ["--contender", work.name, way, str(count), str(file), str(pool)]
            done = subprocess.run([sys.executable, __file__, *one], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            figures, derivative = json.loads(done.stdout.splitlines()[-1]), np.load(file)
            if way == "exact":
                exact = derivative
                continue
            difference = f"{np.abs(derivative - exact).max() / np.abs(exact).max():.0e}"
            row = [work.name, way, str(count), f"{figures['ms']:.1f}", f"{figures['ratio']:.2f}×"]
            print("| " + " | ".join([*row, f"{figures['gigabytes']:.1f}", difference]) + " |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", metavar="NAME", default="", help="rows whose name contains this")
    parser.add_argument("--pool", type=int, default=MOCK_CLIENTS, help="number of mock clients")
    parser.add_argument("--ways", default="", metavar="WAY", help="besides matmul, only ways whose name contains this")
    parser.add_argument(
        "--contender", nargs=5, metavar=("WORK", "WAY", "COUNT", "FILE", "POOL"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.contender:
        name, way, count, file, pool = options.contender
        (work,) = [work for work in WORKLOADS if work.name == name]
        run_one(work, way, int(count), int(pool), Path(file))
        return
    columns = ["model", "way", "canaries", "ms per iteration and canary", "against matmul", "GB", "difference"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for work in WORKLOADS:
        if options.only.lower() in work.name.lower():
            measure(work, options.pool, options.ways)


if __name__ == "__main__":
    main()
