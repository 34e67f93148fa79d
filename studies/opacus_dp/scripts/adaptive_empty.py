"""An empty batch, which Poisson sampling draws now and then, ends a training with AdaClipDPOptimizer.

DPOptimizer handles it. Whoever sees the training stop knows that nobody took part in that step.
"""

import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from torch import nn

warnings.simplefilter("ignore")

adaptive = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "unclipped_num_std": 1.0}
limits = {"max_clipbound": 10.0, "min_clipbound": 0.1}
for kind, settings in ((DPOptimizer, {}), (AdaClipDPOptimizer, {**adaptive, **limits})):
    module = GradSampleModule(nn.Linear(3, 1))
    wrapped = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = kind(wrapped, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=2, **settings)
    module(torch.zeros(0, 3)).sum().backward()
    try:
        optimizer.step()
        print(f"{kind.__name__}: takes a step of noise only")
    except RuntimeError as error:
        print(f"{kind.__name__}: {type(error).__name__}: {str(error)[:70]}…")
