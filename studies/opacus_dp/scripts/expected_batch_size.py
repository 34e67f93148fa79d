"""The expected batch size is rounded down after a division in floating point: 49 · (1 / 49) is just below 1.

With 49 examples and a batch size of 1 it is 0, and every gradient becomes infinite. No privacy is lost by this.
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
for number, batch_size in ((48, 1), (49, 1), (98, 2), (1960, 40)):
    model = nn.Linear(1, 1)
    _, optimizer, _ = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(torch.zeros(number, 1)), batch_size=batch_size),
    )  # fmt: skip
    print(f"{number} examples, batch size {batch_size}: expected batch size {optimizer.expected_batch_size}")
