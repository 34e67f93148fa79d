"""Models, pools, small audited trainings and results for tests of CANIFE."""

import numpy as np
import torch
from torch import nn

from coalmine.claims import Poisson
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.designed_canaries import DesignedCanaries
from coalmine.methods.canife.epsilon import Period
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.result import canife_result
from coalmine.simulation import SGD, LocalTraining, Mechanism, Training, models
from coalmine.simulation.data.federated import FederatedData, Task
from federations import federation, mlp, word_model

SHAPE, CLIP = (1, 4, 4), 0.5
CLIENT = LocalTraining(optimizer=SGD(learning_rate=0.5))
DATA = federation([2] * 12, shape=SHAPE, learnable=True)
POOL = federation([2] * 8, shape=SHAPE, seed=5, learnable=True)
PRESENT = np.arange(100) % 2 == 0
LABELED = Task(input_shape=(6,), classes=2, tokens=13)


def random_pool(module, count=7, clip_norm=0.8, dtype=torch.float32, seed=0):
    """Dense updates, and the pool made of them."""
    dim = sum(p.numel() for p in module.parameters() if p.requires_grad)
    rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    rows = rows * (clip_norm * 0.9 / rows.norm(dim=1, keepdim=True))
    rows = rows.to(dtype)
    return rows, Pool(rows=rows, clip_norm=clip_norm)


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


def small_mlp():
    return mlp(shape=SHAPE)


def designed(count=1, iterations=4, **changes):
    """Canaries designed for `small_mlp` against `POOL`."""
    settings = {
        "model": small_mlp(),
        "pool": POOL,
        "client": CLIENT,
        "noise_multiplier": 0.5,
        "cohort": 6,
        "clients": DATA,
        "count": count,
        "settings": DesignSettings(iterations=iterations),
    }
    return DesignedCanaries(**(settings | changes))


def training(audits=(), rounds=6, noise=0.5, data=DATA, module=None, seed=0):
    """A training of `small_mlp` on `DATA`."""
    return Training(
        model=module or small_mlp(),
        data=data,
        rounds=rounds,
        sampling=Poisson(0.5),
        client=CLIENT,
        mechanism=Mechanism(clip_norm=CLIP, noise_multiplier=noise),
        audits=audits,
        seed=seed,
    )


def silent():
    """Clients whose first pixel is dark: the first weight never moves, and is free for a perfect canary."""
    inputs = DATA.inputs.copy()
    inputs[:, 0, 0, 0] = 0
    return FederatedData(inputs=inputs, targets=DATA.targets, bounds=DATA.bounds, names=DATA.names, task=DATA.task)


def first_axis(count=1):
    """The update that only moves the first weight (of each of the first ``count`` hidden units)."""
    dim = sum(p.numel() for p in small_mlp().parameters())
    updates = np.zeros((count, dim))
    updates[np.arange(count), np.arange(count) * 16] = 1
    return updates


def result_of(scores, present=PRESENT, **changes):
    """The result of one canary's scores in a single period of ten rounds."""
    values = np.asarray(scores, dtype=float)[:, None]
    period = Period(0, 10, values, np.asarray(present)[:, None], np.full_like(values, np.nan))
    arguments = {
        "independent": True, "view": "frozen", "seed": 0, "delta": 1e-5, "confidence": 0.95, "noise_multiplier": 1.0,
        "sampling": None, "training_claim": None, "designs": {}, "canaries": [],
    }  # fmt: skip
    return canife_result([period], **(arguments | changes))


class CausalAttention(nn.Module):
    """A language model with one layer of attention, which no hand-written derivative covers."""

    def __init__(self, *, tokens, width):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(tokens, width)
        self.attention = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens):
        return self.forward_embedded(self.embedding(tokens))

    def forward_embedded(self, embedded):
        query, key, value = self.attention(embedded).chunk(3, 2)
        future = torch.ones(embedded.shape[1], embedded.shape[1], dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(1, 2)).masked_fill(future, -torch.inf)
        return self.head(self.norm(embedded + scores.softmax(2) @ value))


def lstm(seed=0, task=LABELED):
    return models.build("sent140-lstm", task, seed=seed, embedding=5, hidden=4, layers=2)


def model_and_texts(name):
    if name == "labeled":
        return lstm(), LABELED
    task = Task(input_shape=(6,), classes=13, tokens=13, per_position=True, ignored=0)
    if name == "characters":
        return models.build("shakespeare-lstm", task, embedding=3, hidden=4), task
    if name == "linear":
        return word_model(tokens=13), task
    if name == "tied":
        return models.build("word-lstm", task, embedding=4, units=5), task
    return CausalAttention(tokens=13, width=8), task
