"""Training with local privacy: every client randomizes its gradient itself (LDP-SGD, Erlingsson et al. 2020)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from coalmine.errors import InputError, check_count
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.flat import FlatModel
from coalmine.simulation.mechanisms.local import LocalMechanism, Server


def train_locally_private(
    module: nn.Module,
    data: FederatedData,
    *,
    mechanism: LocalMechanism,
    server: Server,
    rounds: int,
    clients: int,
    rng: np.random.Generator,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> nn.Module:
    """Algorithm 2 for many clients: in each round ``clients`` of them report the gradient of their own examples.

    Algorithm 2 starts from θ₀ = 0, where a network's gradient is zero but for its last layer; this starts from the
    module as it is. A copy is returned. Every report is ``mechanism``'s, so a client who comes in m rounds has m times
    its ε.
    """
    rounds, clients = check_count("rounds", rounds, least=0), check_count("clients", clients)
    if clients > len(data):
        raise InputError(f"there are {len(data)} clients, so a round cannot have {clients}")
    model = FlatModel(module)
    for _ in track(range(rounds)):
        total = np.zeros(model.dim, dtype=np.float64)
        for client in rng.choice(len(data), clients, replace=False):
            loss = loss_of(model.module, data.task, *tensors(data.client(int(client)), data.task))
            gradient = torch.cat([g.reshape(-1) for g in model.gradients(loss)]).numpy()
            total += mechanism.drawn(gradient, rng)[0]
        means = (total / clients).astype(np.float32)[None]
        model.vector.copy_(torch.from_numpy(server.move(model.vector.numpy().copy(), means, mechanism)[0]))
    return copy.deepcopy(model.module)
