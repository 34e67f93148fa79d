"""Audit your own training loop with three calls: DP-FedAvg in plain PyTorch on scikit-learn's digits.

python examples/own_loop.py                      # a correct trainer: its claim is not refuted
python examples/own_loop.py --bug half-noise     # or forgotten-noise, no-clipping: refuted
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from coalmine import Claim, OneShot, Result
from coalmine.protocol import Contribution

ROUNDS, CLIP, NOISE, LEARNING_RATE, DELTA = 10, 0.5, 3.16, 0.5, 1e-5
BUGS = ("half-noise", "forgotten-noise", "no-clipping")


def audited_training(seed: int = 0, bug: str | None = None) -> Result:
    """Train with canaries as extra clients, and compare what they show with the claimed ε."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    clients = partitions()

    def clip(update: np.ndarray) -> np.ndarray:
        return update if bug == "no-clipping" else update * min(1.0, CLIP / np.linalg.norm(update))

    audit = OneShot(
        flat(model).size, rounds=ROUNDS, canaries=1000, view="updates",
        participation="every-round", score="likelihood-ratio", seed=seed,
    )  # fmt: skip
    for t in range(ROUNDS):
        planted = audit.plant(t, clip_norm=CLIP)  # 1. canaries join the round
        total = planted_sum(planted, clip).astype(np.float64)
        total += sum(clip(local_update(model, *client)) for client in clients)
        noise = {"half-noise": 0.5, "forgotten-noise": float(t != 4)}.get(bug or "", 1.0) * NOISE
        total += rng.normal(0, noise * CLIP, total.size)
        divisor = len(clients) + planted.clients
        average = (total / divisor).astype(np.float32)
        nn.utils.vector_to_parameters(torch.from_numpy(flat(model) + LEARNING_RATE * average), model.parameters())
        audit.observe(t, update=average, divisor=divisor)  # 2. the adversary's view
    return audit.result(claim=Claim(noise_multiplier=NOISE, delta=DELTA))  # 3. the verdict


def planted_sum(planted: Contribution, clip: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the sum of canaries that have ten times the clip norm before the trainer clips them.

    With ``planted.total`` in its place, canaries have the clip norm already, and missing clipping goes unnoticed.
    """
    return sum(clip(update) for update in planted.each(norm=10 * CLIP))


def local_update(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Return what a client sends: its trained model minus the global one."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
    optimizer.zero_grad()
    F.cross_entropy(local(images), labels).backward()
    optimizer.step()
    return flat(local) - flat(model)


def flat(model: nn.Module) -> np.ndarray:
    """Return all parameters as one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def partitions(count: int = 40) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the digits, split at random among clients."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return [
        (torch.tensor(images[part] / 16, dtype=torch.float32), torch.tensor(labels[part]))
        for part in np.array_split(order, count)
    ]


def main() -> None:
    """Train and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", choices=BUGS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = audited_training(arguments.seed, arguments.bug)
    for e in result.estimates:
        print(f"{e.method:<22} {e.epsilon:8.3f}  {'lower bound' if e.valid else 'estimate'}")
    print(f"\n{result.summary}")


if __name__ == "__main__":
    main()
