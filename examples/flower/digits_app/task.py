"""Model, data and local training in plain PyTorch."""

from functools import lru_cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)


def build() -> nn.Module:
    """Return a small network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images and labels, then 300 test images and labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    return x[:-300], y[:-300], x[-300:], y[-300:]


@lru_cache(maxsize=64)
def partition(number: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the examples of a client."""
    x, y, _, _ = digits()
    indices = np.array_split(np.random.default_rng(0).permutation(len(x)), count)[number]
    return x[indices], y[indices]


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 5) -> float:
    """Take a few steps of gradient descent, and return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def accuracy(model: nn.Module) -> float:
    """Return the accuracy on the test images."""
    _, _, x, y = digits()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())
