"""Clients with different numbers of examples in one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coalmine.data.federated import Examples, Task
from coalmine.fl.client import ignored_index, input_tensor


def padded(clients: Sequence[Examples], task: Task, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and what each target counts towards its client's mean loss: (clients, most examples, …).

    Short clients are filled up with examples that count nothing. A client without examples counts nothing at all.
    """
    first, ignored = clients[0], ignored_index(task)
    shape = (len(clients), max(map(len, clients)))
    inputs = np.zeros((*shape, *first.inputs.shape[1:]), dtype=first.inputs.dtype)
    targets = np.full((*shape, *first.targets.shape[1:]), ignored, dtype=np.int64)
    for i, examples in enumerate(clients):
        inputs[i, : len(examples)] = examples.inputs
        targets[i, : len(examples)] = examples.targets
    labels = torch.from_numpy(targets)
    counts = (labels != ignored).to(dtype)
    counts /= counts.flatten(1).sum(1).clamp_(min=1).view(-1, *[1] * (counts.ndim - 1))
    return input_tensor(inputs, task, dtype), labels.clamp_(min=0), counts
