"""Replay of Opacus optimizers: those of Opacus pass, those with a bug do not, and nothing is changed."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")

from opacus import PrivacyEngine
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from torch.utils.data import DataLoader, TensorDataset

from coalmine.checks import ReplayOptions
from coalmine.errors import InputError
from coalmine.integrations.opacus import replay_optimizer

NOISE, CLIP = 1.5, 0.5


def optimizer(kind=DPOptimizer, clip=CLIP, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 4))
    return kind(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), noise_multiplier=NOISE, max_grad_norm=clip,
        expected_batch_size=6, **more,
    )  # fmt: skip


def adaptive(count_noise):
    return optimizer(
        AdaClipDPOptimizer, target_unclipped_quantile=0.5, clipbound_learning_rate=0.2, max_clipbound=10.0,
        min_clipbound=0.01, unclipped_num_std=count_noise,
    )  # fmt: skip


def checks(result):
    return {finding.check for finding in result.findings if finding.refutes}


@pytest.mark.parametrize(
    "make",
    [
        optimizer,
        pytest.param(lambda: optimizer(DPPerLayerOptimizer, [0.1, 0.2, 0.3, 0.4]), marks=pytest.mark.slow),
        pytest.param(lambda: adaptive(20.0), marks=pytest.mark.slow),
    ],
    ids=["one clip norm", "one for each layer", "adaptive"],
)
def test_an_optimizer_of_opacus_is_not_refuted(make):
    """False-alarm probability at most 0.1% each, once for this seed."""
    result = replay_optimizer(make(), 5)
    assert result.ok, str(result)
    assert result.worst == pytest.approx(1.0, abs=0.15)


class _Unclipped(DPOptimizer):
    def clip_and_accumulate(self):
        for p in self.params:
            p.summed_grad = p.grad_sample.sum(dim=0)


class _ClippedByBatch(DPOptimizer):
    """Clips the sum of gradients instead of each."""

    def clip_and_accumulate(self):
        for p in self.params:
            total = p.grad_sample.sum(dim=0)
            p.summed_grad = total * min(1.0, len(p.grad_sample) * self.max_grad_norm / float(total.norm() + 1e-6))


class _BareBiases(DPOptimizer):
    """Adds no noise to vectors."""

    def add_noise(self):
        sums = [p.summed_grad.clone() for p in self.params]
        super().add_noise()
        for p, total in zip(self.params, sums, strict=True):
            if p.dim() == 1:
                p.grad = total


class _NoiseTooSmall(DPOptimizer):
    """Divides the noise by the batch size twice."""

    def add_noise(self):
        noise, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / self.expected_batch_size
        super().add_noise()
        self.noise_multiplier = noise


class _ByLayer(DPPerLayerOptimizer):
    """Clips each layer to the norm of all layers."""

    def clip_and_accumulate(self):
        self.max_grad_norms = [self.max_grad_norm] * len(self.params)
        super().clip_and_accumulate()


class _Remembers(DPOptimizer):
    """Adds the clipped sum of the step before, without new noise for it."""

    def clip_and_accumulate(self):
        super().clip_and_accumulate()
        before = getattr(self, "before", [0.0] * len(self.params))
        self.before = [p.summed_grad.clone() for p in self.params]
        for p, total in zip(self.params, before, strict=True):
            p.summed_grad += total


BUGS = {
    "gradients are not clipped": (_Unclipped, "clipping"),
    "the sum is clipped": (_ClippedByBatch, "clipping"),
    "biases without noise": (_BareBiases, "noise on every tensor"),
    "too little noise": (_NoiseTooSmall, "size of the noise"),
    "the last step again": (_Remembers, "memory"),
}


@pytest.mark.parametrize(
    "name", [next(iter(BUGS)), *(pytest.param(bug, marks=pytest.mark.slow) for bug in list(BUGS)[1:])]
)
def test_an_optimizer_with_a_bug_is_refuted(name):
    kind, check = BUGS[name]
    assert check in checks(replay_optimizer(optimizer(kind), 5)), name


@pytest.mark.slow
def test_layers_clipped_to_the_norm_of_all_are_refuted():
    result = replay_optimizer(optimizer(_ByLayer, [0.1, 0.2, 0.3, 0.4]), 5)
    assert checks(result) & {"clipping", "one array"}, str(result)


@pytest.mark.slow
def test_the_count_of_adaptive_clipping_moves_by_one():
    """An example that is clipped where it was not moves the count by 1, and Opacus's noise is for 1/2.

    The excess is then √(1 + ¾ (z / count noise)²), since z⁻² = z_gradients⁻² + (2 · count noise)⁻². The count is one
    number, whose noise is measured with 34 degrees of freedom: 5 errors are 60%.
    """
    result = replay_optimizer(adaptive(0.8), 5, options=ReplayOptions(rounds=1))
    assert result.worst == pytest.approx(math.sqrt(1 + 0.75 * (NOISE / 0.8) ** 2), rel=0.6)
    assert result.worst > 1.3


def test_a_replay_leaves_model_optimizer_and_accountant_as_they_were():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 20), torch.randint(0, 4, (24,)))
    module, engine = nn.Linear(20, 4), PrivacyEngine()
    model, private, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
    )
    batch, targets = next(iter(loader))
    nn.functional.cross_entropy(model(batch), targets).backward()
    before = [p.detach().clone() for p in private.params], [p.grad_sample.clone() for p in private.params]
    state = torch.get_rng_state()
    result = replay_optimizer(private)
    assert result.ok
    norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in private.params]).norm(dim=0)
    rows = [row.clip_norms for row in result.moved if row.check == "given clients"]
    assert rows == pytest.approx([min(1.0, float(norm) / CLIP) for norm in norms[: len(rows)]], rel=1e-3)
    assert all(torch.equal(p, old) for p, old in zip(private.params, before[0], strict=True))
    assert all(torch.equal(p.grad_sample, old) for p, old in zip(private.params, before[1], strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(engine.accountant) == 0
    private.step()
    assert len(engine.accountant) == 1


def test_optimizers_without_gradients_of_examples_get_a_sentence():
    with pytest.raises(InputError, match="clips in the backward pass"):
        replay_optimizer(optimizer(DPOptimizerFastGradientClipping))
    with pytest.raises(InputError, match="DPOptimizer"):
        replay_optimizer(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1))
