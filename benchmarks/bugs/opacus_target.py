"""Target: DP-SGD with Opacus, audited by `audit_opacus` as in docs/opacus.md, with canaries in every step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from cases import Answer, Case, from_results
from noise import CORRECT_NOISE, CORRELATED, NOISE_BUGS, Noise, Place, noise_of
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine.integrations.opacus import audit_opacus

CLIP, NOISE, BATCH, DELTA, DIM = 1.0, 1.5, 100, 1e-5, 9_610
TARGET = "opacus"

Factors = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class Buggy(DPOptimizer):
    """An optimizer whose noise and clipping can be replaced."""

    draw: Noise | None = None
    factors: Factors | None = None
    drawn = 0

    def add_noise(self) -> None:
        """Add the noise of the bug."""
        if self.draw is None:
            super().add_noise()
            return
        noise = torch.from_numpy(self.max_grad_norm * np.asarray(self.draw(self.drawn), dtype=np.float32))
        self.drawn += 1
        for p, part in zip(self.params, noise.split([p.numel() for p in self.params]), strict=True):
            p.grad = (p.summed_grad + part.view_as(p.summed_grad)).view_as(p)
            p.summed_grad._processed = True

    def clip_and_accumulate(self) -> None:
        """Multiply the gradients of each example by the factors of the bug, one per tensor."""
        if self.factors is None or not len(self.grad_samples[0]):
            super().clip_and_accumulate()
            return
        samples = [self._get_flat_grad_sample(p) for p in self.params]
        norms = [sample.flatten(1).norm(dim=1) for sample in samples]
        for p, sample, factor in zip(self.params, samples, self.factors(norms), strict=True):
            total = torch.einsum("i,i...", factor, sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True


def _factor(norms: list[torch.Tensor], clip: float = CLIP) -> torch.Tensor:
    return (clip / (torch.stack(norms).norm(dim=0) + 1e-6)).clamp(max=1.0)


CLIPPING: dict[str, Factors] = {
    "no clipping": lambda norms: [torch.ones_like(norm) for norm in norms],
    "clips at twice the clip norm": lambda norms: [_factor(norms, 2 * CLIP)] * len(norms),
    "clips each tensor by itself": lambda norms: [_factor([norm]) for norm in norms],
    "leaves out a bias": lambda norms: [
        torch.ones_like(norm) if i == 1 else _factor([norms[0], *norms[2:]]) for i, norm in enumerate(norms)
    ],
    "clips by the norm of the first tensor": lambda norms: [_factor(norms[2:3])] * len(norms),
}


@cache
def _data() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


@dataclass(frozen=True, kw_only=True)
class Training:
    """One epoch with Opacus, with bugs to switch on.

    Args:
        noise: Name of the noise, or that of Opacus if empty.
        clipping: Function from norms of tensors to factors.
        claimed_noise: Noise multiplier that the accountant hears, over the one that is used.
        options: Further options of ``make_private``.
        sampler: Function from the private loader to the one that is used.
        participation: Participation of canaries.
    """

    noise: str = ""
    clipping: Factors | None = None
    claimed_noise: float = 1.0
    poisson: bool = True
    other_loader: Callable[[], DataLoader] | None = None
    participation: str | None = "every-round"

    def audited(self, seed: int) -> Answer:
        """Train, and return what the audit says."""
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(_data(), batch_size=BATCH, shuffle=True),
            noise_multiplier=NOISE * self.claimed_noise, max_grad_norm=CLIP, poisson_sampling=self.poisson,
        )  # fmt: skip
        optimizer.__class__ = Buggy
        optimizer.factors = self.clipping
        steps = len(loader)
        if self.noise or self.claimed_noise != 1:
            place = Place(DIM, NOISE, steps, np.random.default_rng([seed, 6]))
            optimizer.draw = noise_of(self.noise or "Gaussian", place)
        used = self.other_loader() if self.other_loader else loader
        audit = audit_opacus(engine, optimizer, loader, steps=len(used), participation=self.participation, seed=seed)
        for batch, targets in used:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()
        results = audit.results(delta=DELTA)
        answer = from_results(results)
        if answer.check:
            return answer
        # What the audit says about the accountant is a warning, since no canary shows it.
        named = [note for result in results for note in result.warnings if "Opacus" in note or "sampling" in note]
        return Answer("warning", named[0]) if named else answer


def _same_batches() -> DataLoader:
    images, labels = _data()[:BATCH]
    return DataLoader(TensorDataset(images.repeat(18, 1), labels.repeat(18)), batch_size=BATCH)


BUGS: dict[str, tuple[str, Training]] = {
    **{name: ("clipping", Training(clipping=factors)) for name, factors in CLIPPING.items()},
    "shuffles in place of Poisson": ("sampling", Training(poisson=False)),
    "always the same cohort": ("sampling", Training(other_loader=_same_batches, participation=None)),
    "twice the claimed rate": (
        "sampling",
        Training(other_loader=lambda: DataLoader(_data(), batch_size=2 * BATCH, shuffle=True), participation=None),
    ),
    "ε for the squared noise multiplier": ("accounting", Training(claimed_noise=NOISE)),
}


def _correct() -> dict[str, Training]:
    trainings = {name: Training(noise=name) for name in CORRECT_NOISE if name not in CORRELATED}
    return trainings | {"Opacus itself": Training(), "sampled like examples": Training(participation=None)}


def cases() -> list[Case]:
    """Return all bugs of this target, and correct trainings."""
    trainings = [(kind, name, Training(noise=name)) for name, (kind, _) in NOISE_BUGS.items()]
    trainings += [(kind, name, training) for name, (kind, training) in BUGS.items()]
    trainings += [("correct", name, training) for name, training in _correct().items()]
    return [Case(target=TARGET, kind=kind, name=name, run=run.audited) for kind, name, run in trainings]
