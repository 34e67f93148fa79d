"""Models and pools for tests of canaries."""

import torch
from torch import nn

from coalmine.methods.canife.design_pool import Pool


def random_pool(module, count=7, clip_norm=0.8, dtype=torch.float32, seed=0):
    """Dense updates, and the pool that they make."""
    shapes = [p.shape for p in module.parameters() if p.requires_grad]
    dim = sum(shape.numel() for shape in shapes)
    rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    rows = rows * (clip_norm * 0.9 / rows.norm(dim=1, keepdim=True))
    pool = Pool.of(rows, shapes, clip_norm=clip_norm)
    if dtype == torch.float64:
        rows = rows.double()
        pool = Pool(blocks=[type(b)(b.shape, b.index, b.rows.double()) for b in pool.blocks], clip_norm=clip_norm)
    return rows, pool


def small_resnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
        nn.GroupNorm(4, 8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, stride=2, padding=1, bias=False),
        nn.GELU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
