"""The count of unclipped examples in AdaClipDPOptimizer has sensitivity 1, but its noise is accounted for as for ½.

In Theorem 1 of Andrew et al. (2021), which it cites, each client contributes its bit minus ½. Here the bit itself is
counted, and divided by the size of the batch as it was drawn.
"""

import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer
from torch import nn

warnings.simplefilter("ignore")


def count(examples, seed):
    """Return the noisy count after a step on examples with gradients far below the clip norm, beside five far above."""
    torch.manual_seed(seed)
    module = GradSampleModule(nn.Linear(1, 1, bias=False))
    optimizer = AdaClipDPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=5,
        target_unclipped_quantile=0.5, clipbound_learning_rate=0.2, max_clipbound=1e9, min_clipbound=1e-9,
        unclipped_num_std=0.6,
    )  # fmt: skip
    module(torch.tensor([[100.0]] * 5 + [[1e-6]] * examples)).mean().backward()
    optimizer.step()
    return float(optimizer.unclipped_num)


moved = count(1, seed=0) - count(0, seed=0)  # the same noise
print(f"one example moves the count by {moved:.2f}; noise of 0.6 is accounted for as if by 0.5:", end=" ")
print(f"{moved / 0.6:.2f} standard deviations, where the claimed noise multiplier of 1 allows 1 in all")
