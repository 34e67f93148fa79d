"""What the speed-only code in ``simulation`` gains: each on and off in turns. Prints a Markdown table.

python benchmarks/speedups.py [--seconds S]

A speedup that gains less than 1.3 times on its best workload should be deleted. Processor time of one process, medians
over the turns; results agree up to rounding (``tests/simulation/test_kernels.py``). The kernels themselves are compared
with the naive loop by ``benchmarks/trainer.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import torch

import trainer
from coalmine.simulation import flat
from coalmine.simulation.client import Participant
from coalmine.simulation.kernels import convolutions, loop, one_step
from coalmine.simulation.kernels.kernel import Kernel
from coalmine.simulation.workers import keep_freed_memory
from coalmine.simulation.workers import one_thread


@contextmanager
def without_kept_memory() -> Iterator[None]:
    """Let malloc return freed memory, as it does by default."""
    keep_freed_memory(False)
    yield
    keep_freed_memory(True)


@contextmanager
def without_reach() -> Iterator[None]:
    """Multiply padding, too."""

    def whole_kernel(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
        return slice(0, kernel), padding

    with mock.patch.object(convolutions, "reach", whole_kernel):
        yield


@contextmanager
def without_channels_last() -> Iterator[None]:
    """Keep images in torch's default memory format."""
    with mock.patch.object(flat, "prefers_channels_last", return_value=False):
        yield


# What is switched off, a kernel, a workload of benchmarks/trainer.py, its clients, and their examples.
CASES = [
    ("freed memory kept", without_kept_memory, one_step.OneStep, "LDP CNN 28×28", 30, 20),
    ("freed memory kept", without_kept_memory, loop.Loop, "LEAF CNN 84×84", 3, 20),
    ("channels_last", without_channels_last, one_step.OneStep, "LDP CNN 28×28", 30, 20),
    ("channels_last", without_channels_last, loop.Loop, "LDP CNN, 4 steps", 10, 20),
    ("no weights that only see padding", without_reach, loop.Loop, "ResNet18-GN 32×32", 1, 20),
]


def processor_time(kernel: Kernel, weights: torch.Tensor, clients: list[Participant]) -> float:
    """The processor seconds of one clipped sum."""
    start = time.process_time()
    kernel.clipped_sum(weights, clients, 0.1, torch.empty_like(weights))
    return time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per row")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    print("| speedup | kernel | workload | on | off | gain |\n|---|---|---|---|---|---|")
    workloads = {work.name: work for work in trainer.WORKLOADS}
    for name, switched_off, kind, workload, count, examples in CASES:
        work = replace(workloads[workload], clients=count, examples=examples)
        data, module = work.data(), work.module()
        clients = [Participant(data.client(i), 1.0, partial(np.random.default_rng, i)) for i in range(count)]
        weights = flat.parameter_vector(module)
        with one_thread():
            kernel = kind(module, work.task, work.client)
            with switched_off():
                plain = kind(module, work.task, work.client)
            times: list[tuple[float, float]] = []
            end = time.perf_counter() + seconds
            while len(times) < 4 or time.perf_counter() < end:
                fast = processor_time(kernel, weights, clients)
                with switched_off():
                    times.append((fast, processor_time(plain, weights, clients)))
        on, off = np.array(times[1:]).T  # the first turn warms up
        size = f"{workload}, {count} clients of {examples}"
        gain = float(np.median(off / on))
        cells = [name, kind.__name__, size, f"{1e3 * np.median(on):.0f} ms", f"{1e3 * np.median(off):.0f} ms"]
        print("| " + " | ".join([*cells, f"{gain:.2f}×"]) + " |", flush=True)


if __name__ == "__main__":
    main()
