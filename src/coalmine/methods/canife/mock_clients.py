"""What mock clients, and the canaries' own clients, send from a given model (steps 1, 2 and 9 of Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from torch import Tensor, nn

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_positive
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.pool_storage import POOL_MEMORY
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.choice import choose_kernel
from coalmine.simulation.kernels.kernel import Kernel
from coalmine.simulation.kernels.lean import LeanLoop
from coalmine.simulation.mechanisms.central import EqualWeights, Weighting


def pool_updates(
    model: nn.Module,
    pool: FederatedData,
    client: LocalTraining,
    clip_norm: float,
    *,
    clients: FederatedData | None = None,
    weighting: Weighting | None = None,
    pool_memory: float = POOL_MEMORY,
    seed: int = 0,
) -> Pool:
    """Return what mock clients would send from a model.

    Args:
        model: The model at its current parameters.
        pool: Data of the mock clients.
        client: What a client does with its data.
        clip_norm: Norm that updates are clipped to.
        clients: The clients under audit, if known. The pool must not share examples with them: a canary designed
            against the very clients of the rounds says nothing about an adversary without their data.
        weighting: How the mechanism weights clients by their size; equal weights if not given.
        pool_memory: GiB of memory that the updates may take. A larger pool is kept in temporary files.
        seed: Seed of the clients' batches.

    Returns:
        The clipped and weighted updates.

    Raises:
        InputError: If the pool shares examples with the clients, or an update is not finite.
    """
    if clients is not None:
        check_disjoint(pool, clients)
    senders = ClientUpdates(model, pool.task, client, weighting=weighting, pool_memory=pool_memory, seed=seed)
    return senders.pool(flat.parameter_vector(model), pool, clip_norm)


def updates(
    model: nn.Module, data: FederatedData, client: LocalTraining, clip_norm: float, *, seed: int = 0
) -> Iterator[Tensor]:
    """Yield the clipped update (d,) of each client of ``data`` in turn, as a training would compute it."""
    return ClientUpdates(model, data.task, client, seed=seed).of(flat.parameter_vector(model), data, clip_norm)


class ClientUpdates:
    """Computes what clients send from any parameters of a module: all local epochs, clipped.

    Args:
        module: The module; it is not changed.
        task: What it learns.
        client: What a client does with its data.
        mock: Clients whose updates will be needed repeatedly, for which the fastest kernel is chosen.
        weighting: How the mechanism weights mock clients by their size; equal weights if not given.
        pool_memory: GiB of memory that a pool may take. A larger one is kept in temporary files.
        seed: Seed of the clients' batches.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        client: LocalTraining,
        *,
        mock: FederatedData | None = None,
        weighting: Weighting | None = None,
        pool_memory: float = POOL_MEMORY,
        seed: int = 0,
    ) -> None:
        flat.check_module(module, private=True)
        self._memory = check_positive("pool_memory", pool_memory)
        self._weighting, self._seed = weighting or EqualWeights(), check_count("seed", seed, least=0)
        self._loop = LeanLoop(module, task, client)
        self._mock_kernel = self._loop if mock is None else choose_kernel(module, mock, client)

    def of(self, weights: Tensor, data: FederatedData, clip_norm: float) -> Iterator[Tensor]:
        """Yield the clipped update (d,) of each client of ``data`` from the parameters ``weights``."""
        return self._updates(self._loop, weights, data, clip_norm, EqualWeights())

    def pool(self, weights: Tensor, data: FederatedData, clip_norm: float) -> Pool:
        """Return the clipped and weighted updates of all clients of ``data`` from the parameters ``weights``."""
        rows = self._updates(self._mock_kernel, weights, data, clip_norm, self._weighting)
        return Pool.of(rows, self._loop.model.shapes, clip_norm=clip_norm, pool_memory=self._memory)

    def _updates(
        self, kernel: Kernel, weights: Tensor, data: FederatedData, clip_norm: float, weighting: Weighting
    ) -> Iterator[Tensor]:
        """Yield the update of each client."""
        check_positive("clip_norm", clip_norm)
        clients = self._clients(data, weighting)
        number = 0
        for part in kernel.clipped_updates(weights, clients, clip_norm):
            for row, norm in zip(part.rows, part.norms, strict=True):
                if not math.isfinite(norm):
                    raise InputError(
                        f"the update of client {data.names[number]!r} has norm {norm}: lower the clients' learning rate"
                    )
                yield row
                number += 1

    def _clients(self, data: FederatedData, weighting: Weighting) -> list[Participant]:
        """Return each client with its weight and the stream of its batches."""
        return [
            Participant(data.client(i), float(weight), partial(generator, self._seed, "batches", i))
            for i, weight in enumerate(weighting.weights(data.sizes))
        ]


def check_disjoint(pool: FederatedData, clients: FederatedData) -> None:
    """Raise an error if a pool shares examples with ``clients``, that is, rows of the same array in memory."""
    if not np.shares_memory(pool.inputs, clients.inputs):
        return
    shared = len(np.intersect1d(_addresses(pool), _addresses(clients)))
    if shared:
        raise InputError(
            f"{shared:,} of {len(pool.indices):,} examples of the design pool belong to clients under audit: set users "
            "aside for the pool, for example with pool_fraction of coalmine.simulation.data.load"
        )


def _addresses(data: FederatedData) -> Ints:
    """Return the memory address of each example."""
    start = data.inputs.__array_interface__["data"][0]
    return np.asarray(start + data.indices * data.inputs.strides[0])
