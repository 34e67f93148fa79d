"""Aggregations to replay: correct ones, and ones with a bug each. Clip norm 0.5, noise multiplier 2."""

import numpy as np

C, Z, DIM = 0.5, 2.0, 400


def clip(update, norm=C):
    return update / max(1.0, float(np.linalg.norm(update)) / norm)


def clients(count=6, dim=DIM, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.1, dim) for _ in range(count)]


def weighted(count=6, examples=20, **more):
    return [(update, examples) for update in clients(count, **more)]


def layered(count=6, seed=1):
    rng = np.random.default_rng(seed)
    return [
        {"weight": rng.normal(0, 0.1, (30, 12)), "bias": rng.normal(0, 0.1, 30), "scale": np.array(rng.normal(0, 0.1))}
        for _ in range(count)
    ]


def norm_of(update):
    return float(np.sqrt(sum(float(np.sum(np.square(part, dtype=np.float64))) for part in update.values())))


class Mean:
    """Clipped sum over a fixed number, with a generator of its own."""

    def __init__(self, divisor=6, noise=Z, norm=C):
        self.rng, self.divisor, self.noise, self.norm = np.random.default_rng(0), divisor, noise, norm

    def __call__(self, updates):
        total = sum(clip(update, self.norm) for update in updates)
        return (total + self.rng.normal(0, self.noise * C, DIM)) / self.divisor


def layered_sum(updates, rng, *, clipped=None, noised=None, per_array=False):
    """Sum of clipped updates by key, with noise; ``clipped`` and ``noised`` name the arrays that get them."""
    total = {}
    for update in updates:
        factor = 1 / max(1.0, norm_of(update) / C)
        for key, part in update.items():
            own = 1 / max(1.0, float(np.linalg.norm(part)) / C) if per_array else factor
            scaled = part * (own if clipped is None or key in clipped else 1.0)
            total[key] = total.get(key, 0.0) + scaled
    noise = {key: rng.normal(0, Z * C, np.shape(part)) for key, part in total.items()}
    return {key: part + (noise[key] if noised is None or key in noised else 0.0) for key, part in total.items()}
