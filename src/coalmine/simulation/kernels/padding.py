"""Batches of several clients, padded to the same number of examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coalmine.simulation.client import ignored_index, input_tensor
from coalmine.simulation.data.federated import Examples, Task


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
