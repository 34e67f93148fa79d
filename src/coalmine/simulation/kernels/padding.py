"""Clients with different numbers of examples in one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coalmine.simulation.client import ignored_index, input_tensor
from coalmine.simulation.data.federated import Examples, Task


def padded(clients: Sequence[Examples], task: Task, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and what each target counts towards its client's mean loss: (clients, most examples, …).

    Short clients are filled up with copies of an example, which count nothing: zeros might be inputs that a module
    cannot take. A client without examples counts nothing at all.
    """
    first, ignored = next(examples for examples in clients if len(examples)), ignored_index(task)
    shape = (len(clients), max(map(len, clients)))
    inputs = np.empty((*shape, *first.inputs.shape[1:]), dtype=first.inputs.dtype)
    targets = np.full((*shape, *first.targets.shape[1:]), ignored, dtype=np.int64)
    for i, examples in enumerate(clients):
        inputs[i, : len(examples)] = examples.inputs
        inputs[i, len(examples) :] = examples.inputs[0] if len(examples) else first.inputs[0]
        targets[i, : len(examples)] = examples.targets
    labels = torch.from_numpy(targets)
    counted = labels != ignored
    counts = counted.to(dtype)
    counts /= counts.flatten(1).sum(1).clamp_(min=1).view(-1, *[1] * (counts.ndim - 1))
    return input_tensor(inputs, task, dtype), labels.mul_(counted), counts
