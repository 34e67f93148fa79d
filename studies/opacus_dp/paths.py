"""Opacus' optimizers, engine and accountants, each with a check that it keeps its claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld
from layers import largest_contribution
from opacus import PrivacyEngine
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from steps import CLIP, NOISE, engine_step, examples, released, step
from table import AS_DOCUMENTED, REFUTED, Outcome, Path, compared, private, private_scores, replayed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

CLAIM = {"clip_norm": CLIP, "noise_multiplier": NOISE, "adjacency": "add-remove"}


def _noise(secure: bool = False) -> Outcome:
    """Let the battery attack the noise that DPOptimizer adds to a sum of clipped gradients."""
    weights = nn.Parameter(torch.zeros(2000))
    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": 1, "secure_mode": secure}
    optimizer = DPOptimizer(torch.optim.SGD([weights], lr=0.1), **settings)

    def noisy_sum(total: Any) -> Any:
        weights.summed_grad = torch.from_numpy(total)
        optimizer.add_noise()
        return weights.grad.numpy()

    return private(noisy_sum, noise_multiplier=NOISE, dim=2000)


def _optimizer(kind: Any, **settings: Any) -> Outcome:
    return replayed(lambda batch: released(step(kind, batch, **settings)), examples(), who="example", **CLAIM)


def _adaptive(deviation: float) -> Outcome:
    """Replay adaptive clipping, of which the clip norm is visible too, with a claimed noise multiplier of 1."""
    settings = {
        "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 1e3, "min_clipbound": 1e-3,
        "unclipped_num_std": deviation, "noise_multiplier": 1.0,
    }  # fmt: skip

    def release(batch: Sequence[Any]) -> Any:
        optimizer = step(AdaClipDPOptimizer, batch, **settings)
        # Times the public batch size, the logarithm of the clip norm is the noisy count, but for a constant.
        count = np.array([len(batch) * (np.log(float(optimizer.max_grad_norm)) - 0.2 * 0.5)])
        return {"gradient": released(optimizer), "clip norm": count}

    claim = {"clip_norm": CLIP, "noise_multiplier": 1.0, "adjacency": "add-remove", "dropouts": False, "rounds": 1}
    return replayed(release, examples(), who="example", draws=128, **claim)  # many, since the count is one number


def _engine(**settings: Any) -> Outcome:
    """Replay a step behind `make_private` with a fixed batch, so that the number of examples is public."""
    claim = {**CLAIM, "adjacency": "zero-out", "rounds": 1, "dropouts": False}
    return replayed(
        lambda batch: engine_step(batch, poisson_sampling=False, **settings), examples(), who="example", **claim
    )


def _participation(number: int = 100_000, epochs: int = 4) -> Outcome:
    """Compare how often examples take part behind a WeightedRandomSampler with the rate that is accounted for."""
    data = TensorDataset(torch.zeros(number, 1))
    sampler = WeightedRandomSampler(torch.rand(number), num_samples=128)
    module = nn.Linear(1, 1)
    _, _, loader = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(data, batch_size=16, sampler=sampler),
    )  # fmt: skip
    drawn = [len(batch) for _ in range(epochs) for (batch,) in loader]
    rate, accounted = np.mean(drawn) / number, 1 / len(loader)
    doubt = 4 * np.sqrt(accounted * (1 - accounted) / (number * len(drawn)))  # false-alarm rate: 3e-5
    sentence = f"accounts for a rate of {accounted:.4f}; {rate:.4f} took part, {np.mean(drawn):,.0f} examples a batch"
    return compared("participation", rate, accounted + doubt, sentence)


def _weighted() -> Outcome:
    """Replay a batch drawn with a class-balancing sampler from 20 examples, the last of which is a class of its own."""

    def release(batch: Sequence[Any]) -> Any:
        weights = [1 / (len(batch) - 1)] * (len(batch) - 1) + [1.0]
        return engine_step(batch, weights=weights, batch_size=10, poisson_sampling=False)

    claim = {**CLAIM, "adjacency": "zero-out", "rounds": 1, "dropouts": False}
    return replayed(release, examples(20), who="example", **claim)


def _gradient_sizes(number: int, steps: int, dim: int) -> tuple[Any, float]:
    """Train on examples without a gradient; return the size of each noisy gradient, and ε of one step."""
    module = nn.Linear(1, dim, bias=False)
    engine = PrivacyEngine(accountant="prv")
    loader = DataLoader(TensorDataset(torch.zeros(number, 1)), batch_size=100)
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.0), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    sizes: list[float] = []
    while len(sizes) < steps:
        for (batch,) in loader:
            optimizer.zero_grad()
            module(batch).sum().backward()
            optimizer.step()
            sizes.append(float(released(optimizer).std()))
    engine.accountant.history = [(1.0, 1 / len(loader), 1)]
    return np.array(sizes[:steps]), float(engine.get_epsilon(1e-5))


def _one_more(number: int, dim: int, steps: int = 100) -> Outcome:
    """Compare trainings with and without one example more, by the size of the noise."""
    (without, claim), (sizes, other) = (_gradient_sizes(n, steps, dim) for n in (number, number + 1))
    outcome = private_scores(sizes, without, epsilon=max(claim, other), delta=1e-5)
    return Outcome(outcome.check, outcome.refuted, f"claims ε = {max(claim, other):.2f} a step: {outcome.sentence}")


def _accountant(kind: Any, steps: int = 1000) -> Outcome:
    """Compare an accountant with the upper bound of dp-accounting's PLD accountant, which is exact to 0.1%."""
    shortest = np.inf
    for noise, rate in ((0.7, 0.01), (1.0, 0.02), (1.0, 0.2), (3.0, 0.1)):
        exact = pld.PLDAccountant().compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
        accountant = kind()
        accountant.history = [(noise, rate, steps)]
        shortest = min(shortest, float(accountant.get_epsilon(1e-5)) / exact.get_epsilon(1e-5))
    return compared("PLD", 1 / shortest, 1.0, f"reports at least {shortest:.3f} of ε over {steps:,} steps")


PATHS = {
    "noise": Path("DPOptimizer, noise", _noise),
    "secure": Path("DPOptimizer, noise in secure mode", lambda: _noise(secure=True)),
    "flat": Path("DPOptimizer, one step", lambda: _optimizer(DPOptimizer)),
    "per-layer": Path(
        "DPPerLayerOptimizer, one step", lambda: _optimizer(DPPerLayerOptimizer, max_grad_norm=[0.6, 0.8])
    ),
    "memory": Path("DPOptimizer, physical batches of 2", lambda: _optimizer(DPOptimizer, physical=2)),
    "adaptive": Path(
        "AdaClipDPOptimizer and its clip norm, unclipped_num_std=0.6", lambda: _adaptive(0.6), found=REFUTED
    ),
    "adaptive-large": Path("the same, unclipped_num_std=20", lambda: _adaptive(20.0)),
    "hooks": Path("make_private", _engine),
    "functorch": Path('make_private, grad_sample_mode="functorch"', lambda: _engine(mode="functorch")),
    "ghost": Path('make_private, "ghost", a loss of shape (batch,)', lambda: _engine(mode="ghost")),
    "ghost-column": Path(
        'make_private, "ghost", a loss of shape (batch, 1)', lambda: _engine(mode="ghost", column=True), found=REFUTED
    ),
    "layers": Path("15 layers in 3 modes: largest contribution of an example", largest_contribution),
    "one-more": Path(
        "make_private, 10,001 examples or 10,000 (#571, #819), 20,000 parameters",
        lambda: _one_more(10_000, 20_000),
        found=REFUTED,
    ),
    "one-more-inside": Path("the same, 10,051 examples or 10,050", lambda: _one_more(10_050, 20_000)),
    "weighted": Path("make_private, WeightedRandomSampler (#813)", _participation),
    "weighted-kept": Path(
        "the same, poisson_sampling=False, which keeps the sampler: a batch of 10", _weighted, found=REFUTED
    ),
    "rdp": Path("RDPAccountant", lambda: _accountant(RDPAccountant)),
    "prv": Path("PRVAccountant", lambda: _accountant(PRVAccountant)),
    "gdp": Path("GaussianAccountant", lambda: _accountant(GaussianAccountant), found=AS_DOCUMENTED),
}  # fmt: skip
"""What is tested, by a short name."""
