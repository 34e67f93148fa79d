"""Small federations for tests."""

import copy
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant, tensors
from coalmine.simulation.data.federated import FederatedData, Task


def federation(sizes, shape=(1, 8, 8), classes=3, seed=0, learnable=False):
    """Random examples for clients of these sizes; ``learnable`` ones have labels that follow from the inputs."""
    draw = np.random.default_rng(seed)
    count = sum(sizes)
    inputs = draw.random((count, *shape), dtype=np.float32) - np.float32(0.5)
    targets = draw.integers(0, classes, count)
    if learnable:
        directions = np.random.default_rng(1).standard_normal((int(np.prod(shape)), classes))
        targets = (inputs.reshape(count, -1) @ directions).argmax(1)
    return _federated(inputs, targets, sizes, Task(input_shape=shape, classes=classes))


def texts(sizes, positions=5, tokens=11, seed=0):
    """Random sentences with padding at their ends."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(3, tokens, (sum(sizes), positions + 1))
    lengths = draw.integers(2, positions + 2, len(ids))
    ids[np.arange(positions + 1) >= lengths[:, None]] = 0
    task = Task(input_shape=(positions,), classes=tokens, tokens=tokens, per_position=True, ignored=0)
    return _federated(ids[:, :-1], ids[:, 1:], sizes, task)


def _federated(inputs, targets, sizes, task):
    stops = np.cumsum(sizes)
    bounds = np.stack([stops - sizes, stops], axis=1)
    names = [f"user-{i}" for i in range(len(sizes))]
    return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=task)


def parts(data):
    """Every client's part in a round."""
    return [Participant(data.client(i), partial(np.random.default_rng, i)) for i in range(len(data))]


def mlp(shape=(1, 8, 8), classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 16), nn.ReLU(), nn.Linear(16, classes))


def cnn(classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.Tanh(),
        nn.Conv2d(6, 12, 3, stride=3),
        nn.Flatten(),
        nn.Linear(12, classes),
    )


def word_model(tokens=11, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(tokens, 6), nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, tokens))


def naive_sum(module, data, training: LocalTraining, optimizer, clip_norm, dtype=torch.float64):
    """The textbook: copy the module, make an optimizer, train, subtract, clip, add."""
    start = flat.parameter_vector(module).to(dtype)
    total, norms = torch.zeros_like(start), []
    for client in parts(data):
        local = copy.deepcopy(module).to(dtype).train()
        stepper = optimizer(local.parameters())
        inputs, targets = tensors(client.examples, data.task, dtype)
        for batch in training.batches(len(targets), client.stream):
            rows = slice(None) if batch is None else torch.from_numpy(batch)
            stepper.zero_grad()
            if hasattr(type(local), "loss"):
                loss = local.loss(inputs[rows].clone(), targets[rows])
            else:
                logits, labels = local(inputs[rows].clone()).flatten(0, -2), targets[rows].flatten()
                loss = F.cross_entropy(logits, labels, ignore_index=data.task.ignored)
            loss.backward()
            stepper.step()
        update = torch.cat([p.detach().flatten() for p in local.parameters()]) - start
        norms.append(float(update.norm()))
        total += min(1.0, clip_norm / norms[-1]) * update
    return total, np.array(norms)
