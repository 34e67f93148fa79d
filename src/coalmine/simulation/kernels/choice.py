"""Which kernel: by the shape of the work alone, so that the same training always takes the same one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.simulation import flat
from coalmine.simulation.client import Client, LocalTraining, has_other_loss, input_tensor
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.loop import Loop
from coalmine.simulation.kernels.one_step import OneStep
from coalmine.simulation.kernels.partial_sum import Kernel
from coalmine.simulation.kernels.stacked import Stacked
from coalmine.simulation.optimizers import SGD

# Numbers that layers put out in one pass: about what stays in cache, and far from what fills the memory.
_ACTIVATIONS = 8_000_000

# Measured (benchmarks/trainer.py): sharing a pass pays from about this many clients a pass on; stacking their
# parameters pays for nets that are small in both respects.
_CLIENTS_A_PASS = 6
_STACKED_PARAMETERS, _STACKED_ACTIVATIONS = 200_000, 8_000


def choose_kernel(module: nn.Module, data: FederatedData, training: LocalTraining) -> Kernel:
    """The fastest kernel for this module on such clients, that gives what the plain loop gives.

    A module may do what a faster kernel does not expect (use a layer's weight by other ways, mix the examples of a
    batch, draw random numbers, keep something of what it sees). So a faster one is tried on some clients, from weights
    in general position, and taken only if it agrees there.
    """
    loop = Loop(module, data.task, training)
    faster = promising_kernel(module, data, training)
    return faster if faster is not None and _agree(faster, loop, module, data, training.batch_size) else loop


def promising_kernel(module: nn.Module, data: FederatedData, training: LocalTraining) -> OneStep | Stacked | None:
    """The kernel that should be faster than the plain loop, by the shape of the work alone: it has not been tried."""
    if not isinstance(training.optimizer, SGD) or training.optimizer.momentum or has_other_loss(module):
        return None
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return None  # what fills up a batch would enter its statistics
    sizes, activations = data.sizes, _activations(module, data.task, data)
    rows = max(1, _ACTIVATIONS // activations)
    if training.steps(int(sizes.max())) == 1:
        if OneStep.suits(module) and rows >= _CLIENTS_A_PASS * int(np.median(sizes)):
            return OneStep(module, data.task, training, rows=rows)
    elif len(flat.parameter_vector(module)) <= _STACKED_PARAMETERS and activations <= _STACKED_ACTIVATIONS:
        return Stacked(module, data.task, training, rows=rows)
    return None


def _agree(
    kernel: OneStep | Stacked, loop: Loop, module: nn.Module, data: FederatedData, batch_size: int | None
) -> bool:
    start = flat.parameter_vector(module)
    # Weights that start at zero would hide what depends on them.
    shaken = torch.randn(len(start), generator=torch.Generator().manual_seed(0)).mul_(0.05).add_(start)
    before = torch.get_rng_state()
    for weights in (start, shaken):
        clients, read = _some_clients(data, batch_size), weights.clone()
        try:
            found = kernel.clipped_sum(read, clients, 1.0, torch.empty_like(weights))
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            return False
        if kernel.model.buffers_changed or not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            return False
        if not torch.equal(read, weights):  # the module writes to its parameters, which may be the global model's
            return False
        expected = loop.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        size = float(flat.norms(expected.total[None]))
        if not np.isfinite(expected.norms).all() or not (found.total - expected.total).abs().max() <= 1e-3 * size:
            return False
        if not np.allclose(found.norms, expected.norms, rtol=1e-3):
            return False
    return True


def _some_clients(data: FederatedData, batch_size: int | None) -> Sequence[Client]:
    """The first clients, the smallest, the largest, one whose last batch is short, and some from all over."""
    draw = np.random.default_rng(0)
    chosen = [*range(min(2, len(data))), int(data.sizes.argmin()), int(data.sizes.argmax())]
    if batch_size is not None:
        chosen.append(int(((data.sizes - 1) % batch_size).argmin()))
    chosen += draw.integers(len(data), size=4).tolist()
    return [Client(data.client(i), 1.0, partial(np.random.default_rng, i)) for i in dict.fromkeys(chosen)]


def _activations(module: nn.Module, task: Task, data: FederatedData) -> int:
    """How many numbers the layers of ``module`` put out for one example, one at least."""
    total = 0

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal total
        total += output.numel() if isinstance(output, Tensor) else 0

    model = flat.FlatModel(module).module.eval()
    for layer in model.modules():
        if next(layer.children(), None) is None:
            layer.register_forward_hook(count)
    some = input_tensor(data.client(int(data.sizes.argmax())).inputs[:2], task)
    with torch.no_grad():
        model(some if len(some) > 1 else some.repeat(2, *[1] * (some.ndim - 1)))
    return max(1, total // 2)
