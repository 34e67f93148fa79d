"""The interface of all kernels, with the clipping and the padding that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import Participant, ignored_index, input_tensor
from coalmine.simulation.data.federated import Examples, Task

# Float32 rounding could push a clipped update just above the clip norm. Clipping to slightly less makes the sensitivity
# bound, and with it the privacy guarantee, hold exactly.
_SLACK = 1 - 2.0**-16


@dataclass(frozen=True)
class PartialSum:
    """The sum of some clients' clipped updates, or its terms.

    Attributes:
        total: Σ clip(updateᵢ), shape (d,); or each clip(updateᵢ), shape (clients, d).
        norms: Norm of each client's update before clipping, shape (clients,).
        losses: Each client's loss before its first step, shape (clients,).
    """

    total: Tensor
    norms: Floats
    losses: Floats


class Kernel(ABC):
    """A way to train many clients from the global model. All kernels agree up to rounding; they differ in speed."""

    model: flat.FlatModel
    """The kernel's private copy of the module."""

    @abstractmethod
    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """Train clients from the parameters ``weights`` (d,) and yield a few at a time, in their order.

        Yields:
            The updates before clipping, (n, d), and the losses before the first step, (n,), of the next n clients.
        """

    @abstractmethod
    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """How many clients to pass per call, in order, for clients with ``sizes`` examples, such as [3, 3, 2]."""

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Train every client from the global model and sum the clipped updates.

        Args:
            weights: Parameters of the global model, shape (d,).
            clients: The clients to train: one of `chunks`.
            clip_norm: Longer updates are scaled down to this ℓ₂ norm; ``math.inf`` disables clipping.
            out: Where to write the sum, shape (d,).
        """
        norms, losses, first = np.empty(len(clients)), np.empty(len(clients)), 0
        out.zero_()
        for rows, first_losses in self.updates(weights, clients):
            now = slice(first, first + len(rows))
            norms[now], losses[now] = flat.norms(rows).numpy(), first_losses
            factors = clip_factors(norms[now], clip_norm)
            out.addmv_(rows.t(), torch.from_numpy(factors).to(rows))
            first = now.stop
        return PartialSum(out, norms, losses)

    def clipped_updates(
        self, weights: Tensor, clients: Sequence[Participant], clip_norm: float
    ) -> Iterator[PartialSum]:
        """Yield the terms of the sum a few clients at a time, for any number of clients."""
        first = 0
        for count in self.chunks([len(client.examples) for client in clients]):
            for rows, losses in self.updates(weights, clients[first : first + count]):
                norms = flat.norms(rows).numpy()
                factors = clip_factors(norms, clip_norm)
                yield PartialSum(rows.mul_(torch.from_numpy(factors).to(rows)[:, None]), norms, losses)
                first += len(rows)


def clip_factors(norms: Floats, clip_norm: float) -> Floats:
    """The factor for each update: clip_norm / norm if the update is longer than the clip norm, else 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(norms > clip_norm * _SLACK, clip_norm * _SLACK / norms, 1.0)


def group_sizes(sizes: Sequence[int], *, clients: int, rows: int) -> list[int]:
    """Cut clients into even groups of at most ``clients`` clients and ``rows`` examples (one client may exceed this).

    With 32 clients or more there are at least two groups, so that two workers can share them.
    """
    groups: list[int] = []
    if not sizes:
        return groups
    pieces = max(-(-len(sizes) // clients), -(-sum(sizes) // rows), min(2, len(sizes) // 16), 1)
    clients = min(clients, -(-len(sizes) // pieces))
    count = taken = 0
    for size in sizes:
        if count and (count == clients or taken + size > rows):
            groups.append(count)
            count = taken = 0
        count, taken = count + 1, taken + size
    return [*groups, count]


def padded(
    clients: Sequence[Examples], task: Task, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and loss weights of all clients, each of shape (clients, most examples, …).

    The loss weights of a client's targets sum to one, so that the weighted sum of losses is its mean loss; padding and
    ignored targets have weight zero.
    """
    first, ignored = next(examples for examples in clients if len(examples)), ignored_index(task)
    shape = (len(clients), max(map(len, clients)))
    inputs = np.empty((*shape, *first.inputs.shape[1:]), dtype=first.inputs.dtype)
    targets = np.full((*shape, *first.targets.shape[1:]), ignored, dtype=np.int64)
    for i, examples in enumerate(clients):
        inputs[i, : len(examples)] = examples.inputs
        # Pad with copies of a real example: a module may fail on zeros, for instance when it normalizes its inputs.
        inputs[i, len(examples) :] = examples.inputs[0] if len(examples) else first.inputs[0]
        targets[i, : len(examples)] = examples.targets
    labels = torch.from_numpy(targets).to(device)
    counted = labels != ignored
    loss_weights = counted.to(dtype)
    loss_weights /= loss_weights.flatten(1).sum(1).clamp_(min=1).view(-1, *[1] * (loss_weights.ndim - 1))
    return input_tensor(inputs, task, dtype, device), labels.mul_(counted), loss_weights
