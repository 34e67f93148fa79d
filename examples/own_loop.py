"""Audit a training loop of one's own: plain PyTorch DP-FedAvg on scikit-learn's digits, with three calls to the audit.

python examples/own_loop.py                      # a correct trainer: its promise is not refuted
python examples/own_loop.py --bug half-noise     # or forgotten-noise, or no-clipping: refuted
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

import coalmine as cm
from coalmine.methods.one_shot.planted import PlantedCanaries

ROUNDS, CLIP, NOISE, RATE = 10, 0.5, 3.16, 0.5
BUGS = ("half-noise", "forgotten-noise", "no-clipping")


def clients(count: int = 40) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The digits, dealt to clients."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return [
        (torch.tensor(images[part] / 16, dtype=torch.float32), torch.tensor(labels[part]))
        for part in np.array_split(order, count)
    ]


def local_update(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """What a client sends: its trained model minus the global one, as a flat vector."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
    optimizer.zero_grad()
    F.cross_entropy(local(images), labels).backward()
    optimizer.step()
    return flat(local) - flat(model)


def flat(model: nn.Module) -> np.ndarray:
    """All parameters in a row."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def planted_sum(planted: PlantedCanaries, clipped: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Canaries ten times as long as they may be, clipped like any update: they are cut to CLIP, if clipping works."""
    return sum(clipped(update) for update in planted.each(norm=10 * CLIP))


def audited_training(seed: int = 0, bug: str | None = None) -> cm.AuditResult:
    """Train, with canaries as extra clients, and compare what they show with what the accountant promises."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    data = clients()

    def clipped(update: np.ndarray) -> np.ndarray:
        return update if bug == "no-clipping" else update * min(1.0, CLIP / np.linalg.norm(update))

    audit = cm.OneShot(
        dim=flat(model).size, rounds=ROUNDS, canaries=1000, view="updates",
        participation="every-round", score="likelihood-ratio", seed=seed,
    )  # fmt: skip
    for t in range(ROUNDS):
        planted = audit.plant(t, clip_norm=CLIP)
        total = planted_sum(planted, clipped).astype(np.float64)
        total += sum(clipped(local_update(model, *client)) for client in data)
        scale = {"half-noise": 0.5, "forgotten-noise": float(t != 4)}.get(bug or "", 1.0)
        total += rng.normal(0, scale * NOISE * CLIP, total.size)
        divisor = len(data) + planted.clients
        average = (total / divisor).astype(np.float32)
        nn.utils.vector_to_parameters(torch.from_numpy(flat(model) + RATE * average), model.parameters())
        audit.observe(cm.Release(round=t, kind="update", vector=average, divisor=divisor))
    return audit.result(delta=1e-5, theory=audit.theory(noise_multiplier=NOISE, delta=1e-5))


def main() -> None:
    """Print what the audit says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", choices=BUGS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = audited_training(arguments.seed, arguments.bug)
    for e in result.estimates:
        print(f"{e.method:<22} {e.epsilon:8.3f}  {'valid bound' if e.valid else 'estimate'}")
    print(f"\n{result.meaning}")


if __name__ == "__main__":
    main()
