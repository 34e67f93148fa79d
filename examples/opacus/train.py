"""Audit DP-SGD with Opacus: an ordinary training script, in which the lines of the audit are marked.

    python examples/opacus/train.py                         # scikit-learn's digits; canaries drawn like examples
    python examples/opacus/train.py --worst-case            # canaries in each of the last 25 steps
    python examples/opacus/train.py --bug half-noise        # or no-noise, no-clipping: refuted
    COALMINE_DATA=DIR python examples/opacus/train.py --data mnist      # with mnist.npz in DIR

Results go to runs/opacus: coalmine report runs/opacus, coalmine check runs/opacus --max-epsilon 8.
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
from coalmine.results import Results  # audit
from coalmine.simulation.data import load

CLIP, NOISE, DELTA = 1.0, 1.0, 1e-5


def main() -> None:
    """Train, and print what the audit shows."""
    arguments = parse_arguments()
    warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook|Optimal order")
    torch.manual_seed(arguments.seed)
    splits = load(arguments.data)
    images, labels = tensors(splits.train.pooled())
    test_images, test_labels = tensors(splits.test.pooled())
    model = nn.Sequential(nn.Linear(images.shape[1], 128), nn.ReLU(), nn.Linear(128, 10))

    spare = min(len(images) // 8, 400)  # audit: examples that become canaries
    samples = SampleCanaries.mislabeled(images[:spare], labels[:spare], classes=10, seed=arguments.seed)  # audit
    dataset = samples.insert_into(TensorDataset(images[spare:], labels[spare:]))  # audit

    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(dataset, batch_size=64 if arguments.data == "digits" else 600),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
    )
    if arguments.bug:
        optimizer.__class__ = BUGS[arguments.bug]
    audit = audit_opacus(  # audit
        engine, optimizer, loader, steps=arguments.epochs * len(loader), samples=samples, model=model,
        participation="last:25" if arguments.worst_case else None, seed=arguments.seed,
    )  # fmt: skip

    for _ in range(arguments.epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()

    accuracy = float((model(test_images).argmax(1) == test_labels).float().mean())
    results = audit.results(delta=DELTA, metrics={"accuracy": accuracy})  # audit
    report(results, engine.get_epsilon(DELTA), accuracy)
    results.save(arguments.out, overwrite=True)  # audit
    print(f"\nresults in {arguments.out}: coalmine report {arguments.out}")


def report(results: Results, opacus_epsilon: float, accuracy: float) -> None:
    """Print a row per adversary, and what to be careful with."""
    own_epsilon = results[0].metrics["own_epsilon"]
    print(f"accuracy {accuracy:.3f}, ε = {opacus_epsilon:.3f} by Opacus, {own_epsilon:.3f} by coalmine")
    print(f"\n{'':<24}{'claimed':>9}{'at least':>10}{'estimate':>10}  verdict")
    for result in results:
        figures = (result.claim.epsilon, result.bound.epsilon, result["gaussian-shift"].epsilon)
        row = "".join(f"{figure:>{width}.3f}" for figure, width in zip(figures, (9, 10, 10), strict=True))
        print(f"{f'{result.method} {result.view}':<24}{row}  {result.verdict}")
    for result in results:
        for sentence in result.warnings:
            print(f"note on {result.method} {result.view}: {sentence}")


def tensors(examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels as rows, and classes."""
    pixels = torch.from_numpy(examples.inputs.astype(np.float32)).flatten(1)
    return pixels / pixels.max(), torch.from_numpy(examples.targets.astype(np.int64))


class HalfNoise(DPOptimizer):
    """Adds half of the noise that the accountant records."""

    def add_noise(self) -> None:
        """Add noise with half the noise multiplier."""
        self.noise_multiplier /= 2
        super().add_noise()
        self.noise_multiplier *= 2


class NoNoise(DPOptimizer):
    """Forgets the noise."""

    def add_noise(self) -> None:
        """Add nothing."""
        for p in self.params:
            p.grad = p.summed_grad.clone()


class NoClipping(DPOptimizer):
    """Forgets to clip."""

    def clip_and_accumulate(self) -> None:
        """Sum gradients as they are."""
        for p in self.params:
            total = self._get_flat_grad_sample(p).sum(0)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


BUGS = {"half-noise": HalfNoise, "no-noise": NoNoise, "no-clipping": NoClipping}


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--worst-case", action="store_true", help="canaries in each of the last 25 steps")
    parser.add_argument("--bug", choices=tuple(BUGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/opacus"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
