"""Training with local privacy: every client randomizes its gradient itself (LDP-SGD, Erlingsson et al., 2020)."""

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
from coalmine.simulation.flat import FlatModel, device_of
from coalmine.simulation.mechanisms.local import LDPServer, LocalMechanism


def train_locally_private(
    module: nn.Module,
    data: FederatedData,
    *,
    mechanism: LocalMechanism,
    server: LDPServer,
    rounds: int,
    clients: int,
    rng: np.random.Generator,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> nn.Module:
    """Train a model from randomized gradient reports (Matsumoto et al., 2022, Algorithm 2, with many clients).

    Each report has the mechanism's ε; a client that takes part in m rounds spends m times that. The paper starts from
    θ₀ = 0, where only the last layer of a network has a gradient; this starts from the given module.

    Args:
        module: The model to start from; it is not changed.
        data: The clients' examples.
        mechanism: How clients randomize their gradients.
        server: What the server does with the mean report.
        rounds: Number of rounds.
        clients: Number of clients per round, drawn without replacement.
        rng: Source of all randomness.
        track: Wraps the iterable of rounds, for instance to show progress.

    Returns:
        A trained copy of the module.

    Raises:
        InputError: If there are fewer clients than a round needs, or a mechanism's report is not usable.

    Example:
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import load
        >>> from coalmine.simulation.mechanisms import LDPSGD, LDPServer
        >>> data = load("digits").train
        >>> trained = train_locally_private(
        ...     models.build("logistic", data.task), data, mechanism=LDPSGD(epsilon=2.0),
        ...     server=LDPServer(learning_rate=0.1), rounds=2, clients=5, rng=np.random.default_rng(0),
        ... )
    """
    rounds, clients = check_count("rounds", rounds, least=0), check_count("clients", clients)
    if clients > len(data):
        raise InputError(f"clients must be at most {len(data)}, the number of clients in the data, got {clients}")
    if device_of(module).type != "cpu":
        raise InputError(f"local mechanisms run on the CPU, but the model is on {device_of(module)}: pass module.cpu()")
    model = FlatModel(module)
    for _ in track(range(rounds)):
        total = np.zeros(model.dim, dtype=np.float64)
        for client in rng.choice(len(data), clients, replace=False):
            loss = loss_of(model.module, data.task, *tensors(data.client(int(client)), data.task))
            gradient = model.flatten(model.gradients(loss)).numpy()
            total += mechanism.drawn(gradient, rng)[0]
        means = (total / clients).astype(np.float32)[None]
        model.load(torch.from_numpy(server.move(model.vector.numpy(), means, mechanism)[0]))
    return copy.deepcopy(model.module)
