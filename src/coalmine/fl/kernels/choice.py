"""Which kernel: by the shape of the work alone, so that the same training always takes the same one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.data.federated import FederatedData, Task
from coalmine.fl import flat
from coalmine.fl.client import Client, LocalTraining, input_tensor
from coalmine.fl.kernels.loop import Loop
from coalmine.fl.kernels.one_step import OneStep
from coalmine.fl.kernels.partial_sum import Kernel
from coalmine.fl.kernels.stacked import Stacked
from coalmine.fl.optimisers import SGD

# Numbers that layers put out in one pass: about what stays in cache, and far from what fills the memory.
_ACTIVATIONS = 8_000_000

# Measured (benchmarks/trainer.py): sharing a pass pays from about this many clients a pass on; stacking their
# parameters pays for nets that are small in both respects.
_CLIENTS_A_PASS = 6
_STACKED_PARAMETERS, _STACKED_ACTIVATIONS = 200_000, 8_000


def choose_kernel(module: nn.Module, data: FederatedData, training: LocalTraining) -> Kernel:
    """The fastest kernel for this module on such clients, that gives what the plain loop gives.

    A module may do what a faster kernel does not expect (use a layer's weight by other ways, mix the examples of a
    batch, draw random numbers): so it is tried on the first clients, and taken only if it agrees there.
    """
    task, sizes = data.task, data.sizes
    loop = Loop(module, task, training)
    plain = isinstance(training.optimiser, SGD) and training.optimiser.momentum == 0
    if not plain:
        return loop
    activations = max(1, _activations(module, task, data))
    rows = max(1, _ACTIVATIONS // activations)
    typical = int(np.median(sizes))
    if training.steps(int(sizes.max())) == 1:
        if OneStep.suits(module) and rows >= _CLIENTS_A_PASS * typical:
            return _agreeing(lambda: OneStep(module, task, training, rows=rows), loop, module, data)
    elif loop.dim <= _STACKED_PARAMETERS and activations <= _STACKED_ACTIVATIONS:
        return _agreeing(lambda: Stacked(module, task, training, rows=rows), loop, module, data)
    return loop


def _agreeing(build, loop: Loop, module: nn.Module, data: FederatedData) -> Kernel:  # type: ignore[no-untyped-def]
    weights = flat.parameter_vector(module)
    try:
        kernel: Kernel = build()
        found, expected = (
            way.clipped_sum(weights, _first_clients(data), 1.0, torch.empty_like(weights)) for way in (kernel, loop)
        )
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError):
        return loop
    close = torch.allclose(found.total, expected.total, rtol=0, atol=1e-3 * float(flat.norms(expected.total[None])))
    return kernel if close and np.allclose(found.norms, expected.norms, rtol=1e-3) else loop


def _first_clients(data: FederatedData) -> Sequence[Client]:
    return [Client(data.client(i), 1.0, partial(np.random.default_rng, i)) for i in range(min(3, len(data)))]


def _activations(module: nn.Module, task: Task, data: FederatedData) -> int:
    """How many numbers the layers of ``module`` put out for one example."""
    total = 0

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal total
        total += output.numel() if isinstance(output, Tensor) else 0

    model = flat.FlatModel(module).module
    for layer in model.modules():
        if next(layer.children(), None) is None:
            layer.register_forward_hook(count)
    with torch.no_grad():
        model(input_tensor(data.client(0).inputs[:1], task))
    return total
