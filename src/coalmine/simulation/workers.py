"""Client work in one process or in several, with the same results to the last bit.

The kernel cuts a cohort into chunks. Whichever worker is free computes the next chunk, and the results are added in the
order of the chunks. The number of workers therefore changes the running time and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Array, Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.parallel import end_with
from coalmine.seeds import generator
from coalmine.simulation.client import Participant
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels.kernel import Kernel, PartialSum


@dataclass(frozen=True)
class WorkItem:
    """A chunk of a round's cohort: which clients, the clip norm, and whether each update is wanted or only the sum."""

    round: int
    trial: int
    clients: Ints
    clip_norm: float
    one_by_one: bool = False


@dataclass(frozen=True)
class ClientWork:
    """Everything a work item needs except the global model."""

    data: FederatedData
    kernel: Kernel
    seed: int

    def items(
        self, round: int, trial: int, clients: Ints, clip_norm: float, *, one_by_one: bool = False
    ) -> list[WorkItem]:
        """Cut a cohort into work items."""
        if not len(clients):
            return []
        # Largest clients first: chunks then hold clients of similar size, and no large one is left for the end.
        clients = clients[np.argsort(-self.data.sizes[clients], kind="stable")]
        stops = np.cumsum(self.kernel.chunks(self.data.sizes[clients].tolist()))[:-1]
        return [WorkItem(round, trial, chunk, clip_norm, one_by_one) for chunk in np.split(clients, stops)]

    def compute(self, model: Tensor, item: WorkItem) -> PartialSum:
        """The clipped updates of the item's clients, trained from ``model``: their sum, or one by one (clients, d)."""
        participants = []
        for client in item.clients.tolist():
            # Each client has its own random stream, so its update does not depend on who computes it.
            stream = partial(generator, self.seed, "batches", client, item.round, item.trial)
            participants.append(Participant(self.data.client(client), stream))
        if not item.one_by_one:
            return self.kernel.clipped_sum(model, participants, item.clip_norm, torch.empty_like(model))
        parts = list(self.kernel.clipped_updates(model, participants, item.clip_norm))
        return PartialSum(
            torch.cat([part.total for part in parts]),
            np.concatenate([part.norms for part in parts]),
            np.concatenate([part.losses for part in parts]),
        )


class Workers:
    """Computes work items in this process or, with a ``count`` above 1, in ``count`` worker processes.

    Processes are started at the first use and ended by ``close``.
    """

    def __init__(self, work: ClientWork, count: int) -> None:
        self._work, self._count = work, check_count("workers", count)
        self._pool: ProcessPoolExecutor | None = None

    def sum(self, model: Tensor, items: Sequence[WorkItem]) -> PartialSum:
        """The sum of the items' sums, and their clients' norms and losses, all in the order of the items."""
        norms, losses = [np.empty(0)], [np.empty(0)]
        # Float addition is not associative: parts are added in the order of the items, whoever finished first.
        total = torch.zeros_like(model)
        for part in self.each(model, items):
            total += part.total
            norms.append(part.norms)
            losses.append(part.losses)
        return PartialSum(total, np.concatenate(norms), np.concatenate(losses))

    def each(self, model: Tensor, items: Sequence[WorkItem]) -> Iterator[PartialSum]:
        """The result of each item, in the order of the items."""
        if self._count == 1:
            for item in items:
                yield self._work.compute(model, item)
            return
        if self._pool is None:
            # In shared memory, so that a round sends its model to all processes by one copy.
            self._model = torch.empty_like(model).share_memory_()
            # fork shares the data without copying it; on systems without fork the work is pickled
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(method)
            arguments = (self._work, self._model, os.getpid())
            self._pool = ProcessPoolExecutor(self._count, context, initializer=_start_worker, initargs=arguments)
        self._model.copy_(model)
        finished = False
        try:
            for total, norms, losses in self._pool.map(_in_worker, items):
                yield PartialSum(torch.from_numpy(total), norms, losses)
            finished = True
        except BrokenProcessPool:
            raise InputError(
                "a worker process died, perhaps out of memory. The current round was aborted; run again to continue "
                "from the last checkpoint, with fewer workers if memory is short"
            ) from None
        finally:
            if not finished:  # items may still be at work, and the next round's model must not reach them
                self.close()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


_in_process: tuple[ClientWork, Tensor] | None = None  # in a worker: its work, and the model in shared memory


def _start_worker(work: ClientWork, model: Tensor, parent: int) -> None:
    """Prepare a worker process."""
    global _in_process  # noqa: PLW0603
    _in_process = (work, model)
    # A terminal or a batch system may send these to all processes: the parent decides when to stop.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    end_with(parent)  # its death closes no pipe, because sibling processes hold the other end too


def _in_worker(item: WorkItem) -> tuple[Array, Floats, Floats]:
    """Compute an item in a worker process."""
    assert _in_process is not None
    work, model = _in_process
    part = work.compute(model, item)
    # NumPy arrays are pickled. A tensor would be passed as a file descriptor, of which a process may have few.
    return part.total.numpy(), part.norms, part.losses
