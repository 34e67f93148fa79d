"""Client work in one process or in several, with the same results to the last bit.

The kernel cuts a cohort into chunks. Whichever worker is free computes the next chunk's sum, and the sums are added in
the order of the chunks. The number of workers therefore changes the running time and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.seeds import generator
from coalmine.simulation.client import Participant
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels.kernel import Kernel, PartialSum
from coalmine.simulation.memory import keep_freed_memory
from coalmine.threads import single_thread
from coalmine.usercode import blamed, describe_error


@dataclass(frozen=True)
class WorkItem:
    """A chunk of a round's cohort: which clients, their weights in the sum, and the clip norm."""

    round: int
    trial: int
    clients: Ints
    weights: Floats
    clip_norm: float


@dataclass(frozen=True)
class ClientWork:
    """Everything a work item needs except the global model."""

    data: FederatedData
    kernel: Kernel
    seed: int

    def do(self, model: Tensor, item: WorkItem, out: Tensor) -> PartialSum:
        """The clipped sum of the item's clients, trained from ``model`` and written to ``out``."""
        clients = [
            Participant(
                self.data.client(i), float(weight), partial(generator, self.seed, "batches", i, item.round, item.trial)
            )
            for i, weight in zip(item.clients.tolist(), item.weights, strict=True)
        ]
        return self.kernel.clipped_sum(model, clients, item.clip_norm, out)

    def items(self, round: int, trial: int, clients: Ints, weights: Floats, clip_norm: float) -> list[WorkItem]:
        """Cut a cohort into work items."""
        if not len(clients):
            return []
        # Largest clients first: chunks then hold clients of similar size, and no large one is left for the end.
        order = np.argsort(-self.data.sizes[clients], kind="stable")
        clients, weights = clients[order], weights[order]
        stops = np.cumsum(self.kernel.chunks(self.data.sizes[clients].tolist()))[:-1]
        chunks = zip(np.split(clients, stops), np.split(weights, stops), strict=True)
        return [WorkItem(round, trial, chunk, chunk_weights, clip_norm) for chunk, chunk_weights in chunks]


class Workers:
    """Computes work items in this process or, with a ``count`` above 1, in ``count`` worker processes.

    Processes are started at the first use and ended by ``close``.
    """

    def __init__(self, work: ClientWork, count: int) -> None:
        self._work, self._count = work, check_count("workers", count)
        self._processes: list[_Process] = []

    def sum(self, model: Tensor, items: Sequence[WorkItem]) -> PartialSum:
        """The sum of the items' sums, and their clients' norms and losses, all in the order of the items."""
        norms, losses = [np.empty(0)], [np.empty(0)]
        total: Tensor | None = None
        for part in self.parts(model, items):
            total = part.total if total is None else total.add_(part.total)
            norms.append(part.norms)
            losses.append(part.losses)
        if total is None:
            total = torch.zeros_like(model)
        return PartialSum(total, np.concatenate(norms), np.concatenate(losses))

    def parts(self, model: Tensor, items: Sequence[WorkItem]) -> Iterator[PartialSum]:
        """The items' sums in their order; only the first stays valid when the next is asked for."""
        if self._count == 1:
            for item in items:
                yield self._work.do(model, item, torch.empty_like(model))
            return
        if not self._processes:
            self._model = torch.empty_like(model).share_memory_()
            self._processes = [_Process(self._work, self._model) for _ in range(self._count)]
        self._model.copy_(model)
        finished = False
        try:
            yield from self._distribute(items)
            finished = True
        finally:
            if not finished:  # replies may still be on their way that the next round must not read
                self.close()

    def _distribute(self, items: Sequence[WorkItem]) -> Iterator[PartialSum]:
        """Hand work items to idle processes, and yield their sums in the order of the items."""
        idle, busy = list(self._processes), {}
        waiting: dict[int, PartialSum] = {}
        started = yielded = 0
        while yielded < len(items):
            # Nobody runs far ahead of the sum that is needed next, so that only a few vectors are waiting.
            while idle and started < min(len(items), yielded + 3 * self._count):
                process = idle.pop()
                process.send(items[started])
                busy[process.connection] = (process, started)
                started += 1
            for connection in wait(list(busy)):
                process, number = busy.pop(connection)
                part = process.receive()
                # The process writes its next sum to the same shared memory: copy what must outlive that.
                if number == 0 or (started < len(items) and number != yielded):
                    part = PartialSum(part.total.clone(), part.norms, part.losses)
                if number == yielded:
                    yield part
                    yielded += 1
                else:
                    waiting[number] = part
                idle.append(process)
            while yielded in waiting:
                yield waiting.pop(yielded)
                yielded += 1

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.stop()
        self._processes = []


class _Process:
    """A worker process, which shares two vectors with its parent: the model, to read, and its sum, to write."""

    def __init__(self, work: ClientWork, model: Tensor) -> None:
        # fork shares the data without copying it; on systems without fork the work is pickled
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        self._total = torch.empty_like(model).share_memory_()
        self.connection, child_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(work, model, self._total, child_end, os.getpid()), daemon=True
        )
        self._process.start()
        child_end.close()

    def send(self, item: WorkItem) -> None:
        """Start a work item."""
        with self._explain_death():
            self.connection.send(item)

    def receive(self) -> PartialSum:
        """The result of the work item, or its exception."""
        with self._explain_death():
            answer = self.connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return PartialSum(self._total, *answer)

    @contextmanager
    def _explain_death(self) -> Iterator[None]:
        """Turn a broken connection into an error that says what happened."""
        try:
            yield
        except (EOFError, ConnectionError):
            self._process.join(5)
            raise InputError(
                f"a worker process died with exit code {self._process.exitcode}, perhaps out of memory. The "
                "current round was aborted; run again to continue from the last checkpoint, with fewer workers if "
                "memory is short"
            ) from None

    def stop(self) -> None:
        """End the process, by force if it does not end by itself."""
        with suppress(OSError):
            self.connection.send(None)
        self.connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(work: ClientWork, model: Tensor, total: Tensor, connection: Connection[Any, Any], parent: int) -> None:
    """The main loop of a worker process: compute work items until asked to stop or until the parent is gone."""
    # A batch system may send SIGTERM to all processes: the parent decides when to stop.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory(True)
    while True:
        try:
            # Sibling processes inherit the other end of the pipe, so the parent's death does not close it.
            while not connection.poll(1):
                if os.getppid() != parent:
                    return
            item = connection.recv()
            if item is None:
                return
            part = work.do(model, item, total)
            connection.send((part.norms, part.losses))
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return
        except BaseException as error:
            # Tracebacks do not cross processes, so an error of the user's file is put into words here.
            ours = isinstance(error, Exception) and (isinstance(error, InputError) or not blamed(error))
            connection.send(error if ours else InputError(f"your code failed: {describe_error(error)}"))


_in_one_thread = False  # whether this process is inside `one_thread`: its settings are those of the whole process


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with a single thread and keep freed memory; nested uses change nothing."""
    global _in_one_thread  # noqa: PLW0603
    if _in_one_thread:
        yield
        return
    keep_freed_memory(True)
    _in_one_thread = True
    try:
        with single_thread():
            yield
    finally:
        _in_one_thread = False
        keep_freed_memory(False)
