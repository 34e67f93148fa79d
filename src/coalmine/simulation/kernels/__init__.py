"""Kernels: interchangeable ways to compute the clipped sum of the clients' updates.

**The interface** is `kernel.Kernel`. Given the global model and some clients, ``updates`` yields what they send before
clipping; ``clipped_sum`` returns Σ weightᵢ · clip(updateᵢ), every client's norm before clipping, and its first loss.
All kernels clip through the same function, `kernel.clip_factors`. No kernel adds noise: that is
`coalmine.simulation.mechanisms.central`.

| module | how | chosen when |
|---|---|---|
| `lean` | one client after another: **the plain reference path** | no other kernel applies |
| `stacked` | many clients at once with ``torch.func.vmap`` | SGD without momentum on a small network |
| `layerwise` | one forward and backward pass for many clients | each takes one such step, with common layers |
| `word_lstm` | the same for the word LSTM, without padding | each takes one such step on few sentences |

`choose_kernel` decides from the shapes of the model and the data alone, so that a training always takes the same
kernel. A fast kernel must also reproduce the loop's result on a few clients before it is used; a module with dropout or
batch statistics therefore ends up in the loop.

``tests/simulation/test_kernels.py`` compares every kernel with a textbook loop in float64, and
``benchmarks/clients.py`` measures what each one gains.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from coalmine.simulation import flat
from coalmine.simulation.client import SGD, LocalTraining, Participant
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
    # Classes whose ``loss`` is only a faster way to compute the mean cross-entropy say so by an attribute.
    other_loss = hasattr(type(module), "loss") and not getattr(type(module), "loss_is_cross_entropy", False)
    # Padding would enter the statistics of a batch norm.
    normalizes = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
    if not plain_sgd or other_loss or normalizes:
        return loop
    for kind in _FAST:
        if kind.suits(module, data, training):
            kernel = kind(module, data.task, training)
            return kernel if _agree(kernel, loop, module, data, training.batch_size) else loop
    return loop


def _agree(kernel: Kernel, loop: LeanLoop, module: nn.Module, data: FederatedData, batch_size: int | None) -> bool:
    """Whether a kernel reproduces the loop on a few clients, without drawing random numbers or changing buffers."""
    # The first, smallest and largest clients, one with a short last batch, and four at random.
    chosen = [0, min(1, len(data) - 1), int(data.sizes.argmin()), int(data.sizes.argmax())]
    if batch_size is not None:
        chosen.append(int(((data.sizes - 1) % batch_size).argmin()))
    chosen += np.random.default_rng(0).integers(len(data), size=4).tolist()
    clients = [Participant(data.client(i), partial(np.random.default_rng, i)) for i in dict.fromkeys(chosen)]
    start = flat.parameter_vector(module)
    # Try perturbed weights as well: weights that start at zero would hide whatever depends on them.
    perturbed = torch.randn(len(start), generator=torch.Generator().manual_seed(0)).mul_(0.05)
    perturbed = perturbed.to(start).add_(start)
    rng_state = torch.get_rng_state()
    buffers = [(buffer, buffer.clone()) for buffer in kernel.model.module.buffers()]
    for weights in (start, perturbed):
        try:
            actual = kernel.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            return False
        drew = not torch.equal(rng_state, torch.get_rng_state())
        torch.set_rng_state(rng_state)
        if drew:
            return False
        for buffer, (before, value) in zip(kernel.model.module.buffers(), buffers, strict=True):
            if buffer is not before or not torch.equal(buffer, value):
                return False
        expected = loop.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        tolerance = 1e-3 * float(flat.norms(expected.total[None]))
        # Written so that NaN on either side counts as a difference.
        same_sum = bool((actual.total - expected.total).abs().max() <= tolerance)
        if not (same_sum and np.allclose(actual.norms, expected.norms, rtol=1e-3)):
            return False
    return True
