"""Client work in this process or in several: the same sums, to the bit.

Clients are cut into chunks by the kernel; each chunk's sum is computed by whoever is free, and the sums are added in
the chunks' order. So the number of workers changes nothing but the time.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
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
from coalmine.simulation.client import Client
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels.partial_sum import Kernel, PartialSum
from coalmine.simulation.pieces import Threads

# When glibc's malloc gives memory back to the system: blocks of so many bytes, so many free bytes at the end; and how
# many blocks it may take from the system each by itself. With the usual limits every step of a training fetches and
# clears the same pages again, a third of a small net's time, and so does every new model of over 32 MB. The usual bytes
# grow to those given here by themselves, in a process that uses large blocks.
_KEPT_MEMORY, _USUAL_MEMORY = (1 << 25, 1 << 29, 0), (1 << 25, 1 << 26, 1 << 16)
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _MMAP_MAX = -3, -1, -4


@dataclass(frozen=True)
class Job:
    """Some clients' part in a round."""

    round: int
    trial: int
    clients: Ints
    weights: Floats
    clip_norm: float


@dataclass(frozen=True)
class ClientWork:
    """All that is needed to do a job but the global model."""

    data: FederatedData
    kernel: Kernel
    seed: int

    def do(self, model: Tensor, job: Job, out: Tensor) -> PartialSum:
        """The clipped sum of the job's clients from ``model``, in ``out``."""
        clients = [
            Client(
                self.data.client(i), float(weight), partial(generator, self.seed, "batches", i, job.round, job.trial)
            )
            for i, weight in zip(job.clients.tolist(), job.weights, strict=True)
        ]
        return self.kernel.clipped_sum(model, clients, job.clip_norm, out)

    def jobs(self, round: int, trial: int, clients: Ints, weights: Floats, clip_norm: float) -> list[Job]:
        """A cohort cut into jobs: largest clients first, so that those in a chunk are alike and none comes last."""
        order = np.argsort(-self.data.sizes[clients], kind="stable")
        clients, weights = clients[order], weights[order]
        found, start = [], 0
        for count in self.kernel.chunks(self.data.sizes[clients].tolist()):
            some = slice(start, start + count)
            found.append(Job(round, trial, clients[some], weights[some], clip_norm))
            start += count
        return found


class Workers:
    """Does jobs; with ``count`` above 1 in as many processes, started at the first use and ended by ``close``.

    While the processes rest, as many ``threads`` of this one may work on its vectors.
    """

    def __init__(self, work: ClientWork, count: int) -> None:
        self._work, self._count = work, check_count("workers", count)
        self.threads = Threads(count)
        self._processes: list[_Process] = []
        self._sums: list[Tensor] = []  # the first job's and another's, for all rounds: fresh memory is slow

    def sum(self, model: Tensor, jobs: Sequence[Job]) -> PartialSum:
        """The sum of the jobs' sums, added in their order, for use until the next; norms and losses in their order."""
        norms, losses = [np.empty(0)], [np.empty(0)]
        total: Tensor | None = None
        for part in self._parts(model, jobs):
            if total is None:
                total = part.total
            else:
                self.threads.each(len(total), partial(_add, total, part.total))
            norms.append(part.norms)
            losses.append(part.losses)
        if total is None:
            total = torch.zeros_like(model)
        return PartialSum(total, np.concatenate(norms), np.concatenate(losses))

    def _parts(self, model: Tensor, jobs: Sequence[Job]) -> Iterator[PartialSum]:
        """The jobs' sums in their order: the first for good, each other one until the next."""
        if self._count == 1:
            for number, job in enumerate(jobs):
                yield self._work.do(model, job, self._own(min(number, 1), model))
            return
        if not self._processes:
            self._model = torch.empty_like(model).share_memory_()
            self._processes = [_Process(self._work, self._model) for _ in range(self._count)]
        self.threads.each(len(model), lambda piece: self._model[piece].copy_(model[piece]))
        finished = False
        try:
            yield from self._shared_out(jobs)
            finished = True
        finally:
            if not finished:  # answers may be under way that nobody waits for
                self.close()

    def _own(self, number: int, like: Tensor) -> Tensor:
        while len(self._sums) <= number:
            self._sums.append(torch.empty_like(like))
        return self._sums[number]

    def _shared_out(self, jobs: Sequence[Job]) -> Iterator[PartialSum]:
        idle, busy = list(self._processes), {}
        waiting: dict[int, PartialSum] = {}
        given = taken = 0
        while taken < len(jobs):
            # Nobody runs far ahead of the sum that is needed next: what waits stays a few vectors.
            while idle and given < min(len(jobs), taken + 3 * self._count):
                process = idle.pop()
                process.send(jobs[given])
                busy[process.connection] = (process, given)
                given += 1
            for connection in wait(list(busy)):
                process, number = busy.pop(connection)
                found = process.receive()
                if given < len(jobs) and (number == 0 or number != taken):  # its worker may soon write the next
                    kept = self._own(0, found.total).copy_(found.total) if number == 0 else found.total.clone()
                    found = PartialSum(kept, found.norms, found.losses)
                if number == taken:
                    yield found
                    taken += 1
                else:
                    waiting[number] = found
                idle.append(process)
            while taken in waiting:
                yield waiting.pop(taken)
                taken += 1

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.stop()
        self._processes = []
        self.threads.close()


def _add(total: Tensor, part: Tensor, piece: slice) -> None:
    total[piece] += part[piece]


class _Process:
    """A worker process: it shares two vectors with this one, the model that all read and the sum that it writes."""

    def __init__(self, work: ClientWork, model: Tensor) -> None:
        # fork shares the data without a copy; where there is none the work is pickled
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        self._total = torch.empty_like(model).share_memory_()
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(work, model, self._total, theirs, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    def send(self, job: Job) -> None:
        with self._alive():
            self.connection.send(job)

    def receive(self) -> PartialSum:
        with self._alive():
            answer = self.connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return PartialSum(self._total, *answer)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Say what has happened where nobody is at the other end."""
        try:
            yield
        except (EOFError, ConnectionError):
            self._process.join(5)
            raise InputError(
                f"a worker process ended by itself with exit code {self._process.exitcode} (was memory short?): the "
                "round does not count, and the training can go on from the last checkpoint"
            ) from None

    def stop(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(work: ClientWork, model: Tensor, total: Tensor, connection: Connection[Any, Any], parent: int) -> None:
    torch.set_num_threads(1)
    _keep_memory(_KEPT_MEMORY)
    with suppress(AttributeError, OSError):  # on Linux: do not take the core of the one who is giving out the jobs
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    while True:
        try:
            # Brothers hold the other end open too, so that a parent's death does not close it.
            while not connection.poll(1):
                if os.getppid() != parent:
                    return
            job = connection.recv()
            if job is None:
                return
            found = work.do(model, job, total)
            connection.send((found.norms, found.losses))
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return
        except Exception as error:
            connection.send(error)


_alone = False  # whether the process is within one_thread: both torch's threads and malloc's limits are the process's


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread and kept memory, and leave torch as it was; within another, nothing changes."""
    global _alone  # noqa: PLW0603
    if _alone:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _keep_memory(_KEPT_MEMORY)
    _alone = True
    try:
        yield
    finally:
        _alone = False
        _keep_memory(_USUAL_MEMORY)
        torch.set_num_threads(threads)


def _keep_memory(limits: tuple[int, int, int]) -> None:
    """Tell malloc when to give memory back; where there is no glibc, nothing."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, limit in zip((_MMAP_THRESHOLD, _TRIM_THRESHOLD, _MMAP_MAX), limits, strict=True):
            library.mallopt(option, limit)
        if limits == _USUAL_MEMORY:
            library.malloc_trim(0)
