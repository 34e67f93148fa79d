"""Audit DP-SGD with Opacus: a plain training script, whose lines of the audit are marked.

    python examples/opacus/train.py                         # scikit-learn's digits; canaries drawn like examples
    python examples/opacus/train.py --every-step            # the worst case: canaries in every step
    python examples/opacus/train.py --samples crafted       # examples in the data as CANIFE designs them
    python examples/opacus/train.py --every-step --bug half-noise       # or no-noise, no-clipping: refuted
    COALMINE_DATA=DIR python examples/opacus/train.py --data mnist      # with mnist.npz in DIR

The result is in runs/opacus: coalmine report runs/opacus, coalmine check runs/opacus --max-epsilon 8.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine.integrations.opacus import SampleCanaries, audit_opacus  # audit
from coalmine.results.files import save  # audit
from coalmine.simulation.data import load

CLIP, NOISE, DELTA = 1.0, 1.0, 1e-5


def tensors(examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels in a row, and classes."""
    pixels = torch.from_numpy(examples.inputs.astype(np.float32)).flatten(1)
    return pixels / pixels.max(), torch.from_numpy(examples.targets.astype(np.int64))


def main() -> None:
    """Train, and say what of it can be seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--every-step", action="store_true", help="canaries in every step, not drawn like examples")
    parser.add_argument("--samples", choices=("mislabeled", "crafted"), default="mislabeled", help="in the data")
    parser.add_argument("--bug", choices=tuple(BUGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/opacus"))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook|Optimal order")
    torch.manual_seed(arguments.seed)

    splits = load(arguments.data)
    images, labels = tensors(splits.train.pooled())
    test_images, test_labels = tensors(splits.test.pooled())
    model = nn.Sequential(nn.Linear(images.shape[1], 128), nn.ReLU(), nn.Linear(128, 10))

    spare = min(len(images) // 8, 400)  # audit: examples that are not trained on, but as canaries or to design some
    if arguments.samples == "crafted":  # audit
        samples = SampleCanaries.crafted(
            model, images[:spare], labels[:spare], classes=10, clip_norm=CLIP, count=100, seed=arguments.seed
        )
    else:
        samples = SampleCanaries.mislabeled(images[:spare], labels[:spare], classes=10, seed=arguments.seed)
    dataset = samples.planted(TensorDataset(images[spare:], labels[spare:]))  # audit

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=64 if arguments.data == "digits" else 600),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
    )
    if arguments.bug:
        optimizer.__class__ = BUGS[arguments.bug]
    audit = audit_opacus(  # audit
        engine, optimizer, loader, steps=arguments.epochs * len(loader), canaries=500, samples=samples, model=model,
        participation="every-round" if arguments.every_step else None, seed=arguments.seed,
    )  # fmt: skip

    for _ in range(arguments.epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()

    accuracy = float((model(test_images).argmax(1) == test_labels).float().mean())
    results = audit.results(delta=DELTA, metrics={"accuracy": accuracy})  # audit
    own = results[0].metrics["own_epsilon"]
    print(f"accuracy {accuracy:.3f}, ε = {engine.get_epsilon(DELTA):.3f} by Opacus, {own:.3f} by coalmine")
    print(f"\n{'':<24}{'promised':>9}{'at least':>10}{'estimate':>10}")
    for result in results:
        shift = result["gaussian-shift"].epsilon
        print(f"{result.view:<24}{result.theory.epsilon:>9.3f}{result.bound.epsilon:>10.3f}{shift:>10.3f}", end="")
        print("   REFUTED" if result.refuted else "")
    for result in results:
        for warning in result.warnings:
            print(f"note on {result.view}: {warning}")
    save(results, arguments.out)  # audit
    print(f"\nresults in {arguments.out}: coalmine report {arguments.out}")


class HalfNoise(DPOptimizer):
    """Adds half of the noise that the accountant is told of."""

    def add_noise(self) -> None:
        """As it should be, but for a factor."""
        self.noise_multiplier /= 2
        super().add_noise()
        self.noise_multiplier *= 2


class NoNoise(DPOptimizer):
    """Forgets the noise."""

    def add_noise(self) -> None:
        """None."""
        for p in self.params:
            p.grad = p.summed_grad.clone()


class NoClipping(DPOptimizer):
    """Adds gradients up as they are."""

    def clip_and_accumulate(self) -> None:
        """Without a bound on any."""
        for p in self.params:
            total = self._get_flat_grad_sample(p).sum(0)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


BUGS = {"half-noise": HalfNoise, "no-noise": NoNoise, "no-clipping": NoClipping}


if __name__ == "__main__":
    main()
