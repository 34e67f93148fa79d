"""Steps of DP-SGD in which an example's gradient is the example itself, so that a canary can be any gradient.

The model is linear and its loss is the output: the gradient of the weights is then the input, in two tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule, PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

CLIP, NOISE, SIZES = 1.0, 2.0, (160, 40)


class Linear(nn.Module):
    """Two weight vectors, each times its part of the input."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.parts = nn.ModuleList(nn.Linear(size, 1, bias=False) for size in sizes)

    def forward(self, x: Any) -> Any:
        """Return the outputs, (examples, 1)."""
        return sum(part(piece) for part, piece in zip(self.parts, x.split(self.sizes, 1), strict=True))


class Output(nn.Module):
    """A loss that is the output itself."""

    def __init__(self, column: bool = False) -> None:
        super().__init__()
        self.reduction, self._column = "mean", column

    def forward(self, outputs: Any, _: Any = None) -> Any:
        """Return the mean, or one loss per example: shape (examples,), or (examples, 1) as MSELoss returns it."""
        losses = outputs if self._column else outputs.flatten()
        return losses.mean() if self.reduction == "mean" else losses


def tensor(examples: Sequence[Any]) -> Any:
    """Return the examples as a batch."""
    return torch.as_tensor(np.stack(examples), dtype=torch.float32)


def released(optimizer: Any) -> Any:
    """Return the noisy gradient that the wrapped optimizer receives."""
    return np.concatenate([p.grad.detach().numpy().ravel() for p in optimizer.params])


def examples(number: int = 5) -> list[Any]:
    """Return ordinary gradients, of half the clip norm on average."""
    rng = np.random.default_rng(0)
    return list((rng.normal(size=(number, sum(SIZES))) * 0.5 * CLIP / sum(SIZES) ** 0.5).astype(np.float32))


def step(kind: Any, batch: Sequence[Any], *, physical: int = 0, **settings: Any) -> Any:
    """Take one step with an optimizer class, in physical batches of a size if it is given, and return the optimizer."""
    module = GradSampleModule(Linear())
    wrapped = torch.optim.SGD(module.parameters(), lr=0.1)
    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": 5, **settings}
    optimizer = kind(wrapped, **settings)
    chunks = tensor(batch).split(physical or len(batch))
    for number, chunk in enumerate(chunks, start=1):
        optimizer.signal_skip_step(do_skip=number < len(chunks))  # as BatchMemoryManager does
        module(chunk).mean().backward()
        optimizer.step()
        if number < len(chunks):
            optimizer.zero_grad()
    return optimizer


def engine_step(batch: Sequence[Any], *, weights: Any = None, mode: str = "hooks", **settings: Any) -> Any:
    """Take one step behind `make_private`, and return its noisy gradient times the expected batch size."""
    column = settings.pop("column", False)
    data, module = tensor(batch), Linear()
    sampler = None if weights is None else WeightedRandomSampler(weights, len(data))
    loader = DataLoader(TensorDataset(data), batch_size=settings.pop("batch_size", len(data)), sampler=sampler)
    private = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), criterion=Output(column),
        data_loader=loader, noise_multiplier=NOISE, max_grad_norm=CLIP, grad_sample_mode=mode, **settings,
    )  # fmt: skip
    criterion = private[2] if mode == "ghost" else Output()
    model, optimizer = private[:2]
    (drawn,) = next(iter(private[-1]))
    criterion(model(drawn), torch.zeros(len(drawn), 1)).backward()
    optimizer.step()
    return released(optimizer) * optimizer.expected_batch_size
