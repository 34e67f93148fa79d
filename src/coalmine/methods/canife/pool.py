"""The design pool: what mock clients send (steps 1 and 2 of Algorithm 1), as a matrix U (m × d)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_positive
from coalmine.parallel import single_thread
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant, tensors
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels import choose_kernel
from coalmine.simulation.kernels.kernel import Kernel, LeanLoop
from coalmine.simulation.kernels.layerwise import crop_convolutions

# Columns that are converted to float64 at a time: a whole copy would be twice as large as the pool.
_FLOAT64_COLUMNS = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Updates of m mock clients, none longer than ``clip_norm``.

    Args:
        rows: Their coordinates that are not zero in all of them, (m, used) in float32, on the CPU.
        clip_norm: The norm that updates were clipped to.
        used: Which coordinates these are, (d,) booleans; all if None.
    """

    rows: Tensor
    clip_norm: float
    used: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        if not len(self.used):
            object.__setattr__(self, "used", torch.ones(self.rows.shape[1], dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, used: Tensor) -> Tensor:
        """Return the coordinates where ``used`` (d,) is true: without a copy if the pool holds just those."""
        if torch.equal(used, self.used):
            return self.rows
        whole = self.rows.new_zeros(len(self), len(used))
        whole[:, self.used] = self.rows
        return whole[:, used]

    def dots(self, vectors: Tensor) -> Tensor:
        """Return (k, m) in float64: the product of each of ``vectors`` (k, d) with each update."""
        products = torch.zeros(len(vectors), len(self), dtype=torch.float64)
        pieces = vectors[:, self.used].split(_FLOAT64_COLUMNS, 1)
        for vector, rows in zip(pieces, self.rows.split(_FLOAT64_COLUMNS, 1), strict=True):
            products += vector.double() @ rows.double().T
        return products

    def combined(self, weights: Tensor) -> Tensor:
        """Return (k, d) in float64: Σ weightᵢ · updateᵢ for each row of ``weights`` (k, m)."""
        combined = torch.zeros(len(weights), len(self.used), dtype=torch.float64)
        pieces = self.rows.split(_FLOAT64_COLUMNS, 1)
        combined[:, self.used] = torch.cat([weights.double() @ rows.double() for rows in pieces], 1)
        return combined

    @cached_property
    def gram(self) -> Tensor:
        """U Uᵀ, (m, m) in float64."""
        gram = torch.zeros(len(self), len(self), dtype=torch.float64)
        for rows in self.rows.split(_FLOAT64_COLUMNS, 1):
            columns = rows.double()
            gram.addmm_(columns, columns.T)
        return gram

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (m,), at least 0, and eigenvectors (m, m) of `gram` in squared clip norms."""
        values, vectors = torch.linalg.eigh(self.gram / self.clip_norm**2)
        return values.clamp(min=0), vectors  # rounding makes the smallest slightly negative


class MockClients:
    """Computes the design pool for any parameters of a model.

    Args:
        model: The model; it is not changed.
        data: Data of the mock clients.
        client: What a client does with its data.
        clients: The clients under audit, if known. The pool must not share examples with them: a canary designed
            against the very clients of the rounds says nothing about an adversary without their data.
        seed: Seed of the clients' batches.

    Raises:
        InputError: If the pool shares examples with the clients.
    """

    def __init__(
        self,
        model: nn.Module,
        data: FederatedData,
        client: LocalTraining,
        *,
        clients: FederatedData | None = None,
        seed: int = 0,
    ) -> None:
        flat.check_module(model, private=True)
        if clients is not None:
            check_disjoint(data, clients)
        self._data, self._seed = data, seed
        self._kernel, self._weights = choose_kernel(model, data, client), flat.parameter_vector(model)
        # Weights that only multiply padding stay where they are. Of ResNet18 on small images that is more than half.
        example, _ = tensors(data.client(0)[:1], data.task, device=flat.device_of(model))
        self._used = crop_convolutions(flat.FlatModel(model).module.eval(), example)

    def pool(self, clip_norm: float, weights: Tensor | None = None) -> Pool:
        """Return the clipped updates of all mock clients from ``weights``, by default the model's own.

        Raises:
            InputError: If an update is not finite, or if all are zero.
        """
        weights = self._weights if weights is None else weights
        # On the CPU, since canaries may be designed elsewhere than clients train. Filled part by part: joining parts at
        # the end would need twice the memory.
        rows, first = torch.empty(len(self._data), int(self._used.sum())), 0
        with single_thread():
            for part in client_updates(self._kernel, weights, self._data, clip_norm, seed=self._seed):
                updates = part.cpu()
                if updates[:, ~self._used].any():  # the module uses a kernel elsewhere, so keep all weights
                    self._used = torch.ones_like(self._used)
                    return self.pool(clip_norm, weights)
                rows[first : first + len(updates)] = updates[:, self._used]
                first += len(updates)
        if not bool(rows.any()):
            raise InputError("every update of the design pool is zero: its clients learn nothing from their data")
        return Pool(rows=rows, clip_norm=clip_norm, used=self._used)


def updates(model: nn.Module, data: FederatedData, client: LocalTraining, clip_norm: float, *, seed: int = 0) -> Tensor:
    """Return the clipped updates (clients, d) of the clients of ``data``, as a training would compute them."""
    # By the plain reference path: tests and reproductions compare with it.
    kernel, weights = LeanLoop(model, data.task, client), flat.parameter_vector(model)
    with single_thread():
        return torch.cat(list(client_updates(kernel, weights, data, clip_norm, seed=seed)))


def client_updates(
    kernel: Kernel,
    weights: Tensor,
    data: FederatedData,
    clip_norm: float,
    *,
    seed: int,
) -> Iterator[Tensor]:
    """Yield the clipped updates (n, d) of clients from the parameters ``weights``, a few at a time.

    Raises:
        InputError: If an update is not finite.
    """
    check_positive("clip_norm", clip_norm)
    clients = [Participant(data.client(i), partial(generator, seed, "batches", i)) for i in range(len(data))]
    first = 0
    for part in kernel.clipped_updates(weights, clients, clip_norm):
        infinite = np.flatnonzero(~np.isfinite(part.norms))
        if len(infinite):
            name, norm = data.names[first + infinite[0]], part.norms[infinite[0]]
            raise InputError(f"the update of client {name!r} has norm {norm}: lower the clients' learning rate")
        first += len(part.norms)
        yield part.total


def check_disjoint(pool: FederatedData, clients: FederatedData) -> None:
    """Raise an error if a pool shares examples with ``clients``, that is, rows of the same array in memory."""
    # Subsets of one data set share its arrays, so equal addresses are the same examples.
    if not np.shares_memory(pool.inputs, clients.inputs):
        return
    addresses = []
    for data in (pool, clients):
        start = data.inputs.__array_interface__["data"][0]
        addresses.append(start + data.indices * data.inputs.strides[0])
    shared = len(np.intersect1d(*addresses))
    if shared:
        raise InputError(
            f"{shared:,} of {len(pool.indices):,} examples of the design pool belong to clients under audit: set users "
            "aside for the pool, for example with pool_fraction of coalmine.simulation.data.load"
        )
