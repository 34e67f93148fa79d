"""WeightedRandomSampler (issue 813): replaced with Poisson sampling at a correct rate, or kept and not accounted for.

By default the weights are ignored, and batches are as large as the length of the data loader implies. With
poisson_sampling=False the sampler stays: an example of a rare class is drawn many times into each batch, and clipped
each time, while noise and accounting are for one.
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

warnings.simplefilter("ignore")
torch.manual_seed(0)
numbers = torch.arange(100)  # the last example is a class of its own, which the sampler balances
weights = torch.where(numbers < 99, 1 / 99, 1.0)
for poisson in (True, False):
    loader = DataLoader(TensorDataset(numbers), batch_size=10, sampler=WeightedRandomSampler(weights, 100))
    model = nn.Linear(1, 1)
    _, _, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=poisson,
    )  # fmt: skip
    drawn = torch.tensor([float((batch == 99).sum()) for _ in range(50) for (batch,) in loader])
    print(f"poisson_sampling={poisson}: accounted for with a rate of {1 / len(loader):.2f};", end=" ")
    print(f"the rare example is drawn {drawn.mean():.2f} times a batch, at most {drawn.max():.0f} times")
