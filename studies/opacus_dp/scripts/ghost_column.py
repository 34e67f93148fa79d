"""Ghost clipping does not clip if the loss has the shape (batch, 1), as MSELoss and BCEWithLogitsLoss return it.

The clipping factors, (batch,), times these losses are a (batch, batch) matrix, whose sum is (sum of factors) × (sum of
losses): every example counts in full, times the batch size.
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


def total(x, shape):
    """Return the sum of clipped gradients behind `make_private`, without noise."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    model, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), criterion=nn.MSELoss(),
        data_loader=DataLoader(TensorDataset(x), batch_size=len(x)), noise_multiplier=0.0, max_grad_norm=1.0,
        grad_sample_mode="ghost", poisson_sampling=False,
    )  # fmt: skip
    criterion(model(x).reshape(shape), torch.zeros(len(x)).reshape(shape)).backward()
    optimizer.step()
    (gradient,) = (p.grad.flatten() for p in model.parameters())
    return gradient * optimizer.expected_batch_size


x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
without = x * (torch.arange(8) < 7)[:, None]
with_outlier = torch.cat([x[:7], 1000 * x[7:]])
for shape in ((-1,), (-1, 1)):
    moved = (total(with_outlier, shape) - total(without, shape)).norm()
    print(f"loss of shape {tuple(torch.zeros(8).reshape(shape).shape)}: one example moves the sum by {moved:,.1f} × C")
