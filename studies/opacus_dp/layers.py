"""How much one example contributes through each layer that Opacus supports, in each mode of per-sample gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM, DPMultiheadAttention
from table import Outcome, compared
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEEP = 1e3  # slope of the loss, so that every gradient is clipped


class Summed(nn.Module):
    """A layer and the sum of its outputs over everything but the examples."""

    def __init__(self, layer: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.layer, self._times = layer, times

    def forward(self, x: Any) -> Any:
        """Return one output per example."""
        for _ in range(self._times):
            out = self.layer(x, x, x) if isinstance(self.layer, DPMultiheadAttention) else self.layer(x)
            x = out[0] if isinstance(out, tuple) else out
        return STEEP * x.flatten(1).square().sum(1)


class Loss(nn.Module):
    """A loss that is the output itself."""

    reduction = "mean"

    def forward(self, outputs: Any, _: Any = None) -> Any:
        """Return the mean, or the losses."""
        return outputs.mean() if self.reduction == "mean" else outputs


def _after(norm: nn.Module, layer: nn.Module) -> nn.Module:
    return nn.Sequential(norm, Summed(layer))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Summed(nn.Linear(6, 3)), (6,)),
    "linear on sequences": (lambda: Summed(nn.Linear(6, 3)), (5, 6)),
    "conv1d": (lambda: Summed(nn.Conv1d(2, 3, 3)), (2, 8)),
    "conv2d": (lambda: Summed(nn.Conv2d(2, 3, 3)), (2, 8, 8)),
    "conv2d, groups and stride": (lambda: Summed(nn.Conv2d(4, 4, 3, groups=2, stride=2, padding=1)), (4, 8, 8)),
    "conv3d": (lambda: Summed(nn.Conv3d(2, 3, 2)), (2, 4, 4, 4)),
    "embedding": (lambda: Summed(nn.Embedding(10, 4)), (5, 0)),
    "embedding with padding": (lambda: Summed(nn.Embedding(10, 4, padding_idx=0)), (5, 0)),
    "layer norm": (lambda: _after(nn.LayerNorm(6), nn.Linear(6, 2)), (6,)),
    "RMS norm": (lambda: _after(nn.RMSNorm(6), nn.Linear(6, 2)), (6,)),
    "group norm": (lambda: _after(nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 2)), (4, 5, 5)),
    "instance norm": (lambda: _after(nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 2, 2)), (4, 5, 5)),
    "attention": (lambda: Summed(DPMultiheadAttention(8, 2, batch_first=True)), (5, 8)),
    "LSTM": (lambda: Summed(DPLSTM(4, 5, batch_first=True)), (5, 4)),
    "linear, applied twice": (lambda: Summed(nn.Linear(6, 6), times=2), (6,)),
}
"""Layers and the shape of an example; a last size of 0 means token numbers."""


def _examples(shape: tuple[int, ...], number: int) -> Any:
    if shape[-1] == 0:
        return torch.randint(0, 10, (number, *shape[:-1]))
    return torch.randn(number, *shape)


def _summed(make: Callable[[], nn.Module], batch: Any, mode: str) -> Any:
    """Return the sum of clipped gradients of a batch, without noise."""
    torch.manual_seed(1)
    module = make()
    private = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.0), criterion=Loss(),
        data_loader=DataLoader(TensorDataset(batch), batch_size=len(batch)), noise_multiplier=0.0, max_grad_norm=1.0,
        poisson_sampling=False, grad_sample_mode=mode,
    )  # fmt: skip
    criterion = private[2] if mode == "ghost" else Loss()
    criterion(private[0](batch), None).backward()
    private[1].step()
    return torch.cat([p.grad.flatten() for p in private[1].params]) * private[1].expected_batch_size


def largest_contribution() -> Outcome:
    """Leave out each of three examples, in all modes, and measure how far the sum moves."""
    torch.manual_seed(0)
    moved, refused = [0.0], []
    for (name, (make, shape)), mode in itertools.product(LAYERS.items(), ("hooks", "functorch", "ghost")):
        batch = _examples(shape, 3)
        try:
            everyone = _summed(make, batch, mode)
            others = (_summed(make, batch[torch.arange(3) != left_out], mode) for left_out in range(3))
            moved += [float((everyone - rest).norm()) for rest in others]
        except NotImplementedError:
            refused.append(f"{name} ({mode})")
    sentence = f"{max(moved):.4f} × C; refused: {', '.join(refused) or 'none'}"
    return compared("one example left out", max(moved), 1.0, sentence)
