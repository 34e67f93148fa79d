"""A NaN or infinite gradient of one example makes the whole release NaN: the model is lost, and that shows the example.

DPOptimizer fails closed: nothing else is revealed. Set such gradients to zero before the step to keep the guarantee.
"""

import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

warnings.simplefilter("ignore")

for value in (1e30, float("inf"), float("nan")):
    module = GradSampleModule(nn.Linear(3, 1, bias=False))
    wrapped = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = DPOptimizer(wrapped, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
    batch = torch.ones(4, 3)
    batch[3, 0] = value
    module(batch).mean().backward()
    optimizer.step()
    (released,) = (p.grad for p in module.parameters())
    print(f"an example with a gradient of {value}: released {[round(x, 2) for x in released.flatten().tolist()]}")
