"""Small Opacus trainings, correct and broken, that tests put under audit."""

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine.integrations.opacus import SampleCanaries, audit_opacus

CLIP, NOISE, DIM, BATCHES = 0.5, 2.0, 4510, 8


class HalfNoise(DPOptimizer):
    def add_noise(self):
        self.noise_multiplier /= 2
        super().add_noise()
        self.noise_multiplier *= 2  # what the accountant records


class NoNoise(DPOptimizer):
    def add_noise(self):
        for p in self.params:
            p.grad = p.summed_grad.clone()


class NoClipping(DPOptimizer):
    def clip_and_accumulate(self):
        for p in self.params:
            total = self._get_flat_grad_sample(p).sum(0)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


def data(count=200, shape=(64,)):
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(count, *shape, generator=draw), torch.randint(10, (count,), generator=draw))


def network():
    return nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))


def unusual_samples(count=120):
    """Inputs unlike the data's, so that a model that trains on one remembers it."""
    draw = torch.Generator().manual_seed(7)
    return SampleCanaries(
        inputs=5 * torch.randn(count, 64, generator=draw), targets=torch.randint(10, (count,), generator=draw)
    )


class Private:
    """An ordinary training, with what make_private returned."""

    def __init__(self, *, noise=NOISE, batch=25, dataset=None, kind=None, accountant="rdp", clip=CLIP, **options):
        torch.manual_seed(3)
        self.engine = PrivacyEngine(accountant=accountant)
        module = network()
        self.criterion = nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
        self.model, self.optimizer, *criterion, self.loader = self.engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data() if dataset is None else dataset, batch_size=batch, shuffle=True),
            noise_multiplier=noise,
            max_grad_norm=clip,
            criterion=self.criterion,
            **options,
        )
        if criterion:  # ghost clipping wraps it
            self.criterion = criterion[0]
        if kind is not None:
            self.optimizer.__class__ = kind

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        self.criterion(self.model(inputs), targets).backward()
        self.optimizer.step()

    def step_without_gradients(self):
        self.optimizer.zero_grad()
        (0.0 * self.model(torch.rand(5, 64)).sum()).backward()
        self.optimizer.step()

    def train(self, epochs=1, physical=None):
        for _ in range(epochs):
            if physical is None:
                for batch in self.loader:
                    self.step(*batch)
            else:
                with BatchMemoryManager(
                    data_loader=self.loader, max_physical_batch_size=physical, optimizer=self.optimizer
                ) as loader:
                    for batch in loader:
                        self.step(*batch)
        return self

    def train_accumulating(self, every):
        """Train one epoch with a step after every so many batches."""
        self.optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(self.loader):
            self.criterion(self.model(inputs), targets).backward()
            if (i + 1) % every == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

    def audit(self, steps, **settings):
        # Canaries in every step show in a few steps what those that are sampled like examples show in many.
        settings = {"participation": "every-round"} | settings
        return audit_opacus(self.engine, self.optimizer, self.loader, steps=steps, **settings)
