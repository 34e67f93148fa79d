"""The choice of a kernel, from the shapes of the work alone: the same training always takes the same kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant, has_other_loss, input_tensor
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.loop import Loop
from coalmine.simulation.kernels.model_step import ModelStep
from coalmine.simulation.kernels.one_step import OneStep
from coalmine.simulation.kernels.partial_sum import Kernel
from coalmine.simulation.kernels.stacked import Stacked
from coalmine.simulation.optimizers import SGD

# Layer outputs per pass, as a count of numbers: about what stays in cache.
_ACTIVATIONS = 8_000_000

# Measured with benchmarks/trainer.py: sharing a pass pays off from about six clients per pass; stacking parameters pays
# off for networks with few parameters and small activations.
_CLIENTS_PER_PASS = 6
_STACKED_PARAMETERS, _STACKED_ACTIVATIONS = 200_000, 8_000


def choose_kernel(module: nn.Module, data: FederatedData, training: LocalTraining) -> Kernel:
    """The fastest kernel for this work that reproduces the plain loop.

    A module may do things that a fast kernel does not expect: use a layer's weight elsewhere, mix the examples of a
    batch, draw random numbers, keep state. A fast kernel is therefore tried on a few clients and used only if it agrees
    with the loop there.
    """
    loop = Loop(module, data.task, training)
    fast = promising_kernel(module, data, training)
    return fast if fast is not None and _agree(fast, loop, module, data, training.batch_size) else loop


def promising_kernel(
    module: nn.Module, data: FederatedData, training: LocalTraining
) -> OneStep | ModelStep | Stacked | None:
    """The kernel that should beat the loop, judged by shapes alone and not yet tried; None if there is none."""
    if not isinstance(training.optimizer, SGD) or training.optimizer.momentum or has_other_loss(module):
        return None
    if training.mixed_precision:
        return None  # torch chooses the precision of each operation, and fast kernels have others
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return None  # padding would enter the batch statistics
    sizes, activations = data.sizes, _activations(module, data.task, data)
    rows = max(1, _ACTIVATIONS // activations)
    if training.steps(int(sizes.max())) == 1:
        if ModelStep.suits(module, data):
            return ModelStep(module, data.task, training)
        if OneStep.suits(module) and rows >= _CLIENTS_PER_PASS * int(np.median(sizes)):
            return OneStep(module, data.task, training, rows=rows)
    elif len(flat.parameter_vector(module)) <= _STACKED_PARAMETERS and activations <= _STACKED_ACTIVATIONS:
        return Stacked(module, data.task, training, rows=rows)
    return None


def _agree(
    kernel: OneStep | ModelStep | Stacked, loop: Loop, module: nn.Module, data: FederatedData, batch_size: int | None
) -> bool:
    """Whether a kernel reproduces the loop on a few clients, without drawing random numbers or changing buffers."""
    start = flat.parameter_vector(module)
    # Try perturbed weights as well: weights that start at zero would hide whatever depends on them.
    perturbed = torch.randn(len(start), generator=torch.Generator().manual_seed(0)).mul_(0.05)
    perturbed = perturbed.to(start).add_(start)
    rng_state = torch.get_rng_state()
    for weights in (start, perturbed):
        clients = _trial_clients(data, batch_size)
        try:
            actual = kernel.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            return False
        if kernel.model.buffers_changed or not torch.equal(rng_state, torch.get_rng_state()):
            torch.set_rng_state(rng_state)
            return False
        expected = loop.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        tolerance = 1e-3 * float(flat.norms(expected.total[None]))
        if not np.isfinite(expected.norms).all() or not (actual.total - expected.total).abs().max() <= tolerance:
            return False
        if not np.allclose(actual.norms, expected.norms, rtol=1e-3):
            return False
    return True


def _trial_clients(data: FederatedData, batch_size: int | None) -> Sequence[Participant]:
    """The first, smallest and largest clients, one with a short last batch, and four at random."""
    draw = np.random.default_rng(0)
    chosen = [*range(min(2, len(data))), int(data.sizes.argmin()), int(data.sizes.argmax())]
    if batch_size is not None:
        chosen.append(int(((data.sizes - 1) % batch_size).argmin()))
    chosen += draw.integers(len(data), size=4).tolist()
    return [Participant(data.client(i), 1.0, partial(np.random.default_rng, i)) for i in dict.fromkeys(chosen)]


def _activations(module: nn.Module, task: Task, data: FederatedData) -> int:
    """How many numbers the layers of ``module`` output for one example, at least one."""
    total = 0

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal total
        total += output.numel() if isinstance(output, Tensor) else 0

    whole = flat.FlatModel(module)
    model = whole.module.eval()
    for layer in model.modules():
        if next(layer.children(), None) is None:
            layer.register_forward_hook(count)
    inputs = input_tensor(data.client(int(data.sizes.argmax())).inputs[:2], task, device=whole.device)
    with torch.no_grad():
        model(inputs if len(inputs) > 1 else inputs.repeat(2, *[1] * (inputs.ndim - 1)))
    return max(1, total // 2)
