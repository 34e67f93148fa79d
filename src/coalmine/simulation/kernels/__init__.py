"""Kernels: interchangeable ways to compute the clipped sum of the clients' updates.

**The interface** is `kernel.Kernel`. Given the global model and some clients, ``updates`` yields what they send before
clipping; ``clipped_sum`` returns Σ clip(updateᵢ), every client's norm before clipping, and its first loss. All kernels
clip through the same function, `kernel.clip_factors`. No kernel adds noise: that is
`coalmine.simulation.mechanisms.central`.

| kernel | how | chosen when |
|---|---|---|
| `kernel.LeanLoop` | one client after another: **the plain reference path** | no other kernel applies |
| `kernel.Stacked` | many clients at once with ``torch.func.vmap`` | SGD without momentum on a small network |
| `layerwise.Layerwise` | one forward and backward pass for many clients | each takes one such step; common layers |
| `layerwise.WordLSTMClients` | the same for the word LSTM, without padding | each takes one such step; short texts |

`choose_kernel` decides from the shapes of the model and the data alone, so that a training always takes the same
kernel. A fast kernel must also reproduce the loop's result on a few clients before it is used; a module with dropout or
batch statistics therefore ends up in the loop.

`ClientWork` runs a cohort through a kernel, in this process or in several. ``tests/simulation/test_kernels.py``
compares every kernel with a textbook loop in float64, and ``benchmarks/clients.py`` measures what each one gains.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Array, Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.parallel import end_with
from coalmine.seeds import default_rng, generator
from coalmine.simulation import flat
from coalmine.simulation.client import SGD, LocalTraining, Participant
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels.kernel import Kernel, LeanLoop, PartialSum, Stacked
from coalmine.simulation.kernels.layerwise import Layerwise, WordLSTMClients

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
    suitable = [kind for kind in _FAST if kind.suits(module, data, training)]
    if not plain_sgd or other_loss or normalizes or not suitable:
        return loop
    kernel = suitable[0](module, data.task, training)
    # The first, smallest and largest clients, one with a short last batch, and four at random.
    chosen = [0, min(1, len(data) - 1), int(data.sizes.argmin()), int(data.sizes.argmax())]
    chosen.append(int(((data.sizes - 1) % (training.batch_size or data.sizes.max())).argmin()))
    chosen += default_rng(0).integers(len(data), size=4).tolist()
    clients = [Participant(data.client(i), partial(np.random.default_rng, i)) for i in dict.fromkeys(chosen)]
    start = flat.parameter_vector(module)
    # Try perturbed weights as well: weights that start at zero would hide whatever depends on them.
    perturbed = torch.randn(len(start), generator=torch.Generator().manual_seed(0)).mul_(0.05)
    rng_state = torch.get_rng_state()
    buffers = [(buffer, buffer.clone()) for buffer in kernel.model.module.buffers()]
    for weights in (start, perturbed.to(start).add_(start)):
        try:
            actual = kernel.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            return loop
        drew = not torch.equal(rng_state, torch.get_rng_state())
        torch.set_rng_state(rng_state)
        now = zip(kernel.model.module.buffers(), buffers, strict=True)
        kept = all(buffer is before and torch.equal(buffer, value) for buffer, (before, value) in now)
        expected = loop.clipped_sum(weights, clients, 1.0, torch.empty_like(weights))
        tolerance = 1e-3 * float(flat.norms(expected.total[None]))
        # Written so that NaN on either side counts as a difference.
        same_sum = bool((actual.total - expected.total).abs().max() <= tolerance)
        if drew or not kept or not same_sum or not np.allclose(actual.norms, expected.norms, rtol=1e-3):
            return loop
    return kernel


class ClientWork:
    """Trains cohorts with a kernel, in this process or in several, with the same results to the last bit.

    The kernel cuts a cohort into chunks. Whichever worker is free computes the next chunk, and the results come in the
    order of the chunks. The number of workers therefore changes the running time and nothing else.
    """

    def __init__(self, data: FederatedData, kernel: Kernel, *, seed: int, workers: int) -> None:
        self.data, self.kernel, self._seed = data, kernel, seed
        self._workers = check_count("workers", workers)
        self._pool: ProcessPoolExecutor | None = None

    def parts(
        self, model: Tensor, clients: Ints, clip_norm: float, *, round: int, trial: int, one_by_one: bool = False
    ) -> Iterator[tuple[Ints, PartialSum]]:
        """Train clients from ``model``; yield the numbers of a chunk of them with its clipped sum, or its updates.

        ``one_by_one`` asks for each clipped update, (clients, d), instead of their sum.
        """
        # Largest clients first: chunks then hold clients of similar size, and no large one is left for the end.
        clients = clients[np.argsort(-self.data.sizes[clients], kind="stable")]
        chunks = []
        if len(clients):
            chunks = np.split(clients, np.cumsum(self.kernel.chunks(self.data.sizes[clients].tolist()))[:-1])
        jobs = [(chunk, clip_norm, round, trial, one_by_one) for chunk in chunks]
        results: Iterator[PartialSum] = (self.compute(model, *job) for job in jobs)
        if self._workers > 1:
            results = self._in_processes(model, jobs)
        yield from zip(chunks, results, strict=True)

    def compute(
        self, model: Tensor, clients: Ints, clip_norm: float, round: int, trial: int, one_by_one: bool
    ) -> PartialSum:
        """The clipped updates of a chunk, trained from ``model``: their sum, or one by one (clients, d)."""
        participants = []
        for client in clients.tolist():
            # Each client has its own random stream, so its update does not depend on who computes it.
            stream = partial(generator, self._seed, "batches", client, round, trial)
            participants.append(Participant(self.data.client(client), stream))
        if not one_by_one:
            return self.kernel.clipped_sum(model, participants, clip_norm, torch.empty_like(model))
        parts = list(self.kernel.clipped_updates(model, participants, clip_norm))
        return PartialSum(
            torch.cat([part.total for part in parts]),
            np.concatenate([part.norms for part in parts]),
            np.concatenate([part.losses for part in parts]),
        )

    def _in_processes(self, model: Tensor, jobs: Sequence[tuple[Any, ...]]) -> Iterator[PartialSum]:
        """The result of each chunk, in order. Processes are started at the first use and ended by ``close``."""
        if self._pool is None:
            # In shared memory, so that a round sends its model to all processes by one copy.
            self._shared = torch.empty_like(model).share_memory_()
            # fork shares the data without copying it; on systems without fork the work is pickled
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            arguments = (self.data, self.kernel, self._seed, self._shared, os.getpid())
            context = multiprocessing.get_context(method)
            self._pool = ProcessPoolExecutor(self._workers, context, initializer=_start_worker, initargs=arguments)
        self._shared.copy_(model)
        try:
            for total, norms, losses in self._pool.map(_in_worker, jobs):
                yield PartialSum(torch.from_numpy(total), norms, losses)
        except BaseException as error:
            self.close()  # jobs may still be at work, and the next round's model must not reach them
            if not isinstance(error, BrokenProcessPool):
                raise
            raise InputError(
                "a worker process died, perhaps out of memory. The current round was aborted; run again to continue "
                "from the last checkpoint, with fewer workers if memory is short"
            ) from None

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


_in_process: tuple[ClientWork, Tensor] | None = None  # in a worker: its work, and the model in shared memory


def _start_worker(data: FederatedData, kernel: Kernel, seed: int, model: Tensor, parent: int) -> None:
    """Prepare a worker process."""
    global _in_process  # noqa: PLW0603
    _in_process = ClientWork(data, kernel, seed=seed, workers=1), model
    # Ctrl-C goes to all processes of a terminal, and the parent decides when to stop. If one worker is killed, the pool
    # ends the others by SIGTERM: they may wait for a lock that it held.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    end_with(parent)  # its death closes no pipe, because sibling processes hold the other end too


def _in_worker(job: tuple[Any, ...]) -> tuple[Array, Floats, Floats]:
    """Compute a chunk in a worker process."""
    assert _in_process is not None
    work, model = _in_process
    part = work.compute(model, *job)
    # NumPy arrays are pickled. A tensor would be passed as a file descriptor, of which a process may have few.
    return part.total.numpy(), part.norms, part.losses
