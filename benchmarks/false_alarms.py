"""How often the checks of a training find a bug in correct ones: simulated trainings of many kinds.

    python benchmarks/false_alarms.py [TRAININGS]

All checks of a result together have a false-alarm rate of at most 0.1%. Each kind of training is repeated, by default
300 times, with clients that learn, canaries and noise. The table shows how many trainings were refuted by a check, and
how many got a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine import OneShot
from coalmine.arrays import Floats
from coalmine.claims import Claim, EveryRound, Poisson

ROUNDS, CLIENTS, RATE = 10, 60, 0.5
LAYERS = {"fc1.weight": (32, 48), "fc1.bias": 32, "fc2.weight": (10, 32), "fc2.bias": 10, "scale": ()}
CLIP_NORMS = {"fc1.weight": 0.8, "fc1.bias": 0.2, "fc2.weight": 0.5, "fc2.bias": 0.2, "scale": 0.05}
Draw = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of correct training.

    Args:
        layers: The model's tensors.
        noise: Noise on the sum for a clip norm of 1 and each round, (dim,), with a standard deviation of 1.
        release: What is done to the noisy average before it is released.
        tails: Adds to each client's update, before clipping, heavy-tailed numbers of this size.
        server: Step of the server: from the noisy average, the round and a memory to the model's change.
        adaptive: Whether the clip norm follows the clients' norms.
        grid: Step of the grid that sums are rounded to before the noise, in clip norms.
        by_layer: Whether each tensor has its own clip norm and noise.
        canaries: Number of inserted canaries.
        claim: The claim, if it is not that of Gaussian noise.
    """

    layers: dict[str, Any] = None  # type: ignore[assignment]
    noise: Callable[[Draw, int, int, dict[str, Any]], Floats] = lambda rng, dim, t, memory: rng.normal(size=dim)
    release: Callable[[Floats], Any] = lambda update: update.astype(np.float32)
    tails: float = 0.0
    server: Callable[[Floats, int, dict[str, Any]], Floats] = lambda update, t, memory: update
    adaptive: bool = False
    grid: float = 0.0
    by_layer: bool = False
    canaries: int = 50
    claim: Claim | None = None


def shares(rng: Draw, dim: int, t: int, memory: dict[str, Any]) -> Floats:
    """Noise that 30 clients add together."""
    return np.asarray(rng.normal(0, 30**-0.5, (30, dim)).sum(axis=0))


def tree(rng: Draw, dim: int, t: int, memory: dict[str, Any]) -> Floats:
    """Difference of the tree-aggregated noise of two rounds: nodes of a binary tree, reused while they are open."""

    def total(steps: int) -> Floats:
        nodes, start = np.zeros(dim), 0
        for level in range(steps.bit_length() - 1, -1, -1):
            if steps & (1 << level):
                key = (start, level)
                nodes += memory.setdefault(key, rng.normal(size=dim))
                start += 1 << level
        return nodes

    return np.asarray(total(t + 1) - total(t))


def discrete(step: float) -> Callable[[Draw, int, int, dict[str, Any]], Floats]:
    """Discrete Gaussian noise on a grid; beyond 3 steps rounding a normal variable is the same to 1e-38."""
    return lambda rng, dim, t, memory: step * np.round(rng.normal(size=dim) / step)


def momentum(update: Floats, t: int, memory: dict[str, Any]) -> Floats:
    """Momentum of 0.9."""
    memory["m"] = 0.9 * memory.get("m", 0.0) + update
    return np.asarray(memory["m"])


def adam(update: Floats, t: int, memory: dict[str, Any]) -> Floats:
    """Adam."""
    memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * update
    memory["v"] = 0.99 * memory.get("v", 0.0) + 0.01 * update**2
    return np.asarray(0.05 * memory["m"] / (np.sqrt(memory["v"]) + 1e-3))


def bfloat16(update: Floats) -> Any:
    """Round to the nearest number of 8 significant bits."""
    bits = update.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


KINDS = {
    "Gaussian": Kind(layers=LAYERS),
    "shares of the noise from clients": Kind(layers=LAYERS, noise=shares),
    "discrete Gaussian, σ = 50 steps": Kind(layers=LAYERS, noise=discrete(0.02), grid=0.02),
    "discrete Gaussian, σ = 10 steps": Kind(layers=LAYERS, noise=discrete(0.1), grid=0.1),
    "discrete Gaussian, σ = 5 steps": Kind(layers=LAYERS, noise=discrete(0.2), grid=0.2),
    "discrete Gaussian, σ = 3 steps": Kind(layers=LAYERS, noise=discrete(1 / 3), grid=1 / 3),
    "tree-aggregated, claim (ε, δ)": Kind(layers=LAYERS, noise=tree, claim=Claim(epsilon=40.0, delta=1e-5)),
    "server momentum": Kind(layers=LAYERS, server=momentum),
    "server Adam": Kind(layers=LAYERS, server=adam),
    "adaptive clipping": Kind(layers=LAYERS, adaptive=True),
    "a clip norm and noise per tensor": Kind(layers=LAYERS, by_layer=True),
    "heavy-tailed updates": Kind(layers=LAYERS, tails=1.0),
    "10 parameters": Kind(layers={"weight": 8, "bias": 2}, canaries=4),
    "50 parameters": Kind(layers={"weight": (5, 9), "bias": 5}, canaries=12),
    "bfloat16 releases": Kind(layers=LAYERS, release=bfloat16),
    "float16 releases": Kind(layers=LAYERS, release=lambda update: update.astype(np.float16)),
}


def train(kind: Kind, seed: int) -> tuple[list[str], list[str]]:
    """Return the bugs and the warnings that the checks find in one training."""
    rng, memory = np.random.default_rng([seed, 7]), {}
    sizes = {name: int(np.prod(shape)) for name, shape in kind.layers.items()}
    dim = sum(sizes.values())
    scale, options, clip = np.ones(dim), {}, 1.0
    if kind.by_layer:
        clip = float(np.sqrt(sum(norm**2 for norm in CLIP_NORMS.values())))
        # σ = √5 · C of each tensor: a noise multiplier of 1 for all five together.
        noise = {name: 5**0.5 * norm / clip for name, norm in CLIP_NORMS.items()}
        scale, options = np.repeat([noise[name] for name in sizes], list(sizes.values())), {"noise_per_layer": noise}
    audit = OneShot(
        dim, rounds=ROUNDS, canaries=kind.canaries, view="updates", participation="every-round", layers=kind.layers,
        seed=seed, design="fixed", **options,  # type: ignore[arg-type]
    )  # fmt: skip
    audit.describe(sampling=Poisson(RATE))
    optimum, model = rng.normal(0, 0.3, dim) + rng.normal(0, 0.1, (CLIENTS, dim)), np.zeros(dim)
    parts = np.cumsum(list(sizes.values()))[:-1]
    for t in range(ROUNDS):
        cohort = np.flatnonzero(rng.random(CLIENTS) < RATE)
        updates = 0.5 * (optimum[cohort] - model)
        if kind.tails:
            updates += kind.tails * rng.standard_t(1.5, updates.shape)
        if kind.by_layer:
            clipped = [
                part / np.maximum(1, np.linalg.norm(part, axis=1) / norm)[:, None]
                for part, norm in zip(np.split(updates, parts, axis=1), CLIP_NORMS.values(), strict=True)
            ]
            total = np.concatenate(clipped, axis=1).sum(axis=0)
        else:
            norms = np.linalg.norm(updates, axis=1)
            total = (updates / np.maximum(1, norms / clip)[:, None]).sum(axis=0)
        planted = audit.plant(t, clip_norm=clip)
        assert planted is not None
        audit.cohort(t, clients=cohort.tolist(), available=CLIENTS)
        total = total + planted.total
        if kind.grid:
            total = kind.grid * clip * np.round(total / (kind.grid * clip))
        divisor = planted.clients + RATE * CLIENTS
        update = (total + clip * scale * kind.noise(rng, dim, t, memory)) / divisor
        released = kind.release(update)
        audit.observe(t, update=released, divisor=divisor)
        model = model + kind.server(np.asarray(released, dtype=np.float64), t, memory)
        if kind.adaptive and len(cohort):
            clip *= float(np.exp(-0.3 * (np.mean(norms <= clip) - 0.5)))
    # Only the findings: the claim test, which takes most of the time of `result`, is none of them.
    _, findings = audit._inspection.findings(kind.claim or _THEORY, audit._record.in_tensors, audit.members)
    return [f.sentence for f in findings if f.refutes], [f.sentence for f in findings if not f.refutes]


_THEORY = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=ROUNDS, delta=1e-5)


def main(trainings: int) -> None:
    """Print how many trainings of each kind have a finding; a second argument picks kinds by a part of their name."""
    warnings.simplefilter("ignore")
    print(f"{'training':<34} {'refuted':>8} {'warned':>7} of {trainings}")
    for name, kind in KINDS.items():
        if len(sys.argv) > 2 and sys.argv[2] not in name:
            continue
        results = [train(kind, seed) for seed in range(trainings)]
        refuted, warned = (sum(bool(result[side]) for result in results) for side in (0, 1))
        example = next((sentences[0] for result in results for sentences in result if sentences), "")
        print(f"{name:<34} {refuted:>8} {warned:>7}  {example}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
