"""The noise of `make_private` depends on the number of examples, which DP must protect (issues 571 and 819).

Sampling rate and expected batch size follow from the length of the data loader. If one example more makes it longer by
one, both change, and with them the size of the noise. With many parameters a single noisy gradient shows which it was.
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.manual_seed(0)
for parameters in (1_000, 20_000, 500_000):
    for number in (10_000, 10_001):
        model, engine = nn.Linear(1, parameters, bias=False), PrivacyEngine(accountant="prv")
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(torch.zeros(number, 1)), batch_size=100),
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
        (batch,) = next(iter(loader))
        model(batch[:1]).sum().backward()  # all gradients are zero: one example will do
        optimizer.step()
        (size,) = (p.grad.std() for p in model.parameters())
        error = size / (2 * parameters) ** 0.5
        print(f"{parameters:,} parameters, {number:,} examples: noise of {size:.6f} ± {error:.6f}", end="; ")
        print(f"expected batch size {optimizer.expected_batch_size}, ε = {engine.get_epsilon(1e-5):.2f}")
