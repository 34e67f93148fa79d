"""The choice of a kernel, from the shapes of the work alone: the same training always takes the same kernel."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from coalmine.simulation import flat
from coalmine.simulation.client import SGD, LocalTraining, Participant, has_other_loss
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels.kernel import Kernel
from coalmine.simulation.kernels.layerwise import Layerwise
from coalmine.simulation.kernels.lean import LeanLoop
from coalmine.simulation.kernels.stacked import Stacked
from coalmine.simulation.kernels.word_lstm import WordLSTMClients

# The first that suits the work is taken.
_FAST = (WordLSTMClients, Layerwise, Stacked)


def choose_kernel(module: nn.Module, data: FederatedData, training: LocalTraining) -> Kernel:
    """The fastest kernel for this work that reproduces the plain loop.

    A module may do things that a fast kernel does not expect: use a layer's weight elsewhere, mix the examples of a
    batch, draw random numbers, keep state. A fast kernel is therefore tried on a few clients and used only if it agrees
    with the loop there.
    """
    loop = LeanLoop(module, data.task, training)
    plain_sgd = isinstance(training.optimizer, SGD) and not training.optimizer.momentum
    if not plain_sgd or has_other_loss(module):
        return loop
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return loop  # padding would enter the batch statistics
    for kind in _FAST:
        if kind.suits(module, data, training):
            kernel = kind(module, data.task, training)
            return kernel if _agree(kernel, loop, module, data, training.batch_size) else loop
    return loop


def _agree(kernel: Kernel, loop: LeanLoop, module: nn.Module, data: FederatedData, batch_size: int | None) -> bool:
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


def _trial_clients(data: FederatedData, batch_size: int | None) -> list[Participant]:
    """The first, smallest and largest clients, one with a short last batch, and four at random."""
    draw = np.random.default_rng(0)
    chosen = [*range(min(2, len(data))), int(data.sizes.argmin()), int(data.sizes.argmax())]
    if batch_size is not None:
        chosen.append(int(((data.sizes - 1) % batch_size).argmin()))
    chosen += draw.integers(len(data), size=4).tolist()
    return [Participant(data.client(i), partial(np.random.default_rng, i)) for i in dict.fromkeys(chosen)]
