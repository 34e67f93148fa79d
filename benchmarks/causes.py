"""How often the battery names the right cause of noise that is too small, and how often it refutes the claim at all.

    python benchmarks/causes.py

Noise at 0.5 or 0.8 of a claimed noise multiplier of 1, for all calls and coordinates, for a fifth of the coordinates,
for every second call, and for a single call. docs/mechanism.md shows the result.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coalmine.checks.noise_attacks import check_noise
from coalmine.checks.transcript import default_calls
from coalmine.stats.tradeoff import GaussianDP

NOISE_MULTIPLIER = 1.0
DIMENSIONS = (2, 3, 10, 100, 1_000, 10_000)
CAUSES = ("everywhere", "a fifth of the coordinates", "every second call", "one call", "nowhere")
Floats = npt.NDArray[np.float64]


def mechanism(cause: str, share: float, dim: int, calls: int, seed: int) -> Callable[[npt.NDArray[np.float32]], Floats]:
    """Return a Gaussian mechanism with a share of its noise somewhere."""
    rng, call, fifth = np.random.default_rng([seed, dim]), itertools.count(1), max(1, dim // 5)

    def noisy(total: npt.NDArray[np.float32]) -> Floats:
        number, noise = next(call), NOISE_MULTIPLIER * rng.standard_normal(dim)
        weak = {
            "everywhere": slice(None),
            "a fifth of the coordinates": slice(fifth, 2 * fifth),
            "every second call": slice(None) if number % 2 == 0 else slice(0),
            "one call": slice(None) if number == calls // 2 else slice(0),
            "nowhere": slice(0),
        }[cause]
        noise[weak] *= share
        return total + noise

    return noisy


def sentence_of(cause: str, dim: int, calls: int) -> str:
    """Return how the sentence of a right answer starts."""
    fifth = max(1, dim // 5)
    return {
        "everywhere": "The noise is too small everywhere",
        "a fifth of the coordinates": f"Coordinates {fifth:,}–{2 * fifth - 1:,} " if fifth > 1 else "Coordinate 1 ",
        "every second call": "Every second call, from call 2 on,",
        "one call": f"Call {calls // 2} ",
        "nowhere": "never",
    }[cause]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    print("| coordinates | share | cause | refuted | named right | other names |\n|---|---|---|---|---|---|")
    for dim, share, cause in itertools.product(DIMENSIONS, (0.5, 0.8), CAUSES):
        calls = default_calls(dim)
        names = []
        for seed in range(runs):
            claim = GaussianDP(1 / NOISE_MULTIPLIER)
            noisy = mechanism(cause, share, dim, calls, seed)
            names += [f.sentence for f in check_noise(noisy, dim=dim, claim=claim, noise_multiplier=1.0, seed=seed)]
        wrong = [name for name in names if not name.startswith(sentence_of(cause, dim, calls))]
        others = "; ".join(sorted(set(wrong))[:2])
        print(f"| {dim:,} | {share} | {cause} | {len(names)} | {len(names) - len(wrong)} | {others} |", flush=True)


if __name__ == "__main__":
    main()
