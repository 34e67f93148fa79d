"""Audit DP-SGD in a loop of Hugging Face's accelerate (pip install accelerate).

    python examples/opacus/with_accelerate.py

Call make_private and audit_opacus first, then let accelerate prepare model, optimizer and loader.
"""

from __future__ import annotations

import warnings

import torch
from accelerate import Accelerator
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine import Result
from coalmine.integrations.opacus import audit_opacus

EPOCHS, DELTA = 2, 1e-5


def audited_training(seed: int = 0) -> list[Result]:
    """Train with DP-SGD on the digits, on the device that accelerate finds, and return the results."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(accelerator.device)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    audit = audit_opacus(engine, optimizer, loader, steps=EPOCHS * len(loader), participation="every-round", seed=seed)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for batch, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(batch), targets))
            optimizer.step()
    return audit.results(delta=DELTA)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook|Optimal order")
    for result in audited_training():
        print(f"{result.view}: {result.summary}")
