"""Which bugs are caught, by which check: bugs by the dozen, and correct mechanisms for false alarms.

    python benchmarks/bugs.py                    # every bug and every correct mechanism, three seeds each
    python benchmarks/bugs.py --only fixed       # those whose name contains a text
    python benchmarks/bugs.py --correct 210 --dim 1000   # only correct mechanisms, so many runs in all

A bug is a small function that makes a mechanism for a dimension, a noise multiplier and a generator. Settings are the
defaults of `coalmine.testing.assert_private` everywhere: ε = 1 at δ = 1e-5 in 10,000 dimensions, with the noise
multiplier stated or not. docs/mechanism.md shows the table.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from coalmine.stats import sigma_gaussian
from coalmine.testing import assert_private

EPSILON, DELTA, DIM = 1.0, 1e-5, 10_000

Array = NDArray[np.float64]
Mechanism = Callable[[NDArray[np.float32]], object]
Make = Callable[[int, float, np.random.Generator], Mechanism]

BUGS: dict[str, dict[str, Make]] = {}
"""Makers of buggy mechanisms, by kind and name."""

CORRECT: dict[str, Make] = {}
"""Makers of correct mechanisms, by name."""


def bug(kind: str, name: str) -> Callable[[Make], Make]:
    """Register a bug."""

    def register(make: Make) -> Make:
        BUGS.setdefault(kind, {})[name] = make
        return make

    return register


def correct(name: str) -> Callable[[Make], Make]:
    """Register a correct mechanism."""

    def register(make: Make) -> Make:
        CORRECT[name] = make
        return make

    return register


def adds(noise: Callable[[], object]) -> Mechanism:
    """Return the mechanism that adds what a function returns."""
    return lambda total: total + noise()


def scaled(name: str, factor: float, kind: str = "size") -> None:
    """Register noise of a wrong size."""
    bug(kind, name)(lambda d, s, rng: adds(lambda: factor * s * rng.standard_normal(d)))


def weighted(kind: str, name: str, weights: Callable[[int, np.random.Generator], Array]) -> None:
    """Register noise that is multiplied with fixed weights."""

    def make(d: int, s: float, rng: np.random.Generator) -> Mechanism:
        weight = weights(d, rng)
        return adds(lambda: weight * s * rng.standard_normal(d))

    bug(kind, name)(make)


def scheduled(name: str, factor: Callable[[int], float]) -> None:
    """Register noise whose size depends on the number of the call."""

    def make(d: int, s: float, rng: np.random.Generator) -> Mechanism:
        calls = itertools.count()
        return adds(lambda: factor(next(calls)) * s * rng.standard_normal(d))

    bug("schedule", name)(make)


scaled("0.7 of the noise", 0.7)
scaled("0.5 of the noise", 0.5)
scaled("no noise", 0.0)
scaled("variance for standard deviation (√σ)", sigma_gaussian(EPSILON, DELTA) ** -0.5)
weighted("support", "half of the coordinates, at random", lambda d, rng: (rng.random(d) < 0.5).astype(float))
weighted("support", "first half only", lambda d, rng: (np.arange(d) < d // 2).astype(float))
weighted("support", "every second coordinate", lambda d, rng: (np.arange(d) % 2 == 0).astype(float))
weighted("support", "every second has half", lambda d, rng: np.where(np.arange(d) % 2 == 0, 0.5, 1.0))
weighted("support", "none on a bias of 10", lambda d, rng: np.r_[np.ones(d - 10), np.zeros(10)])
weighted("support", "none on a block of 64", lambda d, rng: np.where((np.arange(d) // 64) == 64, 0.0, 1.0))
weighted("support", "none on one coordinate", lambda d, rng: np.where(np.arange(d) == 77, 0.0, 1.0))
weighted("support", "0.3 on a layer of 2,000", lambda d, rng: np.where(np.arange(d) < d // 5, 0.3, 1.0))


@bug("support", "a random half in each call")
def _random_half(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: (rng.random(d) < 0.5) * s * rng.standard_normal(d))


@bug("support", "a random block missing in each call")
def _random_block(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    block = np.arange(d) // (d // 20)
    return adds(lambda: (block != rng.integers(20)) * s * rng.standard_normal(d))


@bug("freshness", "hard-coded noise")
def _hard_coded(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    noise = s * rng.standard_normal(d)
    return adds(lambda: noise)


@bug("freshness", "pool of 50 vectors")
def _pool(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    vectors = s * rng.standard_normal((50, d))
    return adds(lambda: vectors[rng.integers(50)])


@bug("freshness", "kept for two calls")
def _cached(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    state = {"calls": 0, "noise": np.zeros(d)}

    def noise() -> object:
        if state["calls"] % 2 == 0:
            state["noise"] = s * rng.standard_normal(d)
        state["calls"] += 1
        return state["noise"]

    return adds(noise)


@bug("freshness", "sign alternates")
def _alternating(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    noise, sign = s * rng.standard_normal(d), itertools.cycle((1, -1))
    return adds(lambda: next(sign) * noise)


@bug("freshness", "one vector, shuffled")
def _shuffled(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    noise = s * rng.standard_normal(d)
    return adds(lambda: rng.permutation(noise))


@bug("freshness", "one vector, rotated by a random step")
def _rolled(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    noise = s * rng.standard_normal(d)
    return adds(lambda: np.roll(noise, rng.integers(d)))


@bug("freshness", "momentum: 0.9 of the last noise")
def _momentum(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    state = {"noise": s * rng.standard_normal(d)}

    def noise() -> object:
        state["noise"] = 0.9 * state["noise"] + np.sqrt(1 - 0.81) * s * rng.standard_normal(d)
        return state["noise"]

    return adds(noise)


@bug("freshness", "seed of 8 bits")
def _small_seed(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: s * np.random.default_rng(rng.integers(256)).standard_normal(d))


@bug("correlation", "one draw for all coordinates")
def _one_draw(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: s * rng.standard_normal())


@bug("correlation", "one draw per row of 100")
def _per_row(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.repeat(s * rng.standard_normal(d // 100), 100))


@bug("correlation", "a tile of 2,500, four times")
def _tile(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.tile(s * rng.standard_normal(d // 4), 4))


@bug("correlation", "mirrored second half")
def _mirrored(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    def noise() -> object:
        half = s * rng.standard_normal(d // 2)
        return np.r_[half, -half[::-1]]

    return adds(noise)


@bug("correlation", "rank 5")
def _low_rank(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    factors = s * rng.standard_normal((5, d)) / np.sqrt(5)
    return adds(lambda: rng.standard_normal(5) @ factors)


@bug("correlation", "averaged over 5 neighbors")
def _smoothed(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.sqrt(5) * ndimage.uniform_filter1d(s * rng.standard_normal(d), 5, mode="wrap"))


@bug("correlation", "cumulated along the vector")
def _cumulated(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: s * np.cumsum(rng.standard_normal(d)) / np.sqrt(np.arange(1, d + 1)))


@bug("correlation", "adds up to zero")
def _zero_sum(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    def noise() -> object:
        draw = s * rng.standard_normal(d)
        return draw - draw.mean()

    return adds(noise)


@bug("shape", "uniform")
def _uniform(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: rng.uniform(-np.sqrt(3) * s, np.sqrt(3) * s, d))


@bug("shape", "truncated at 2 standard deviations")
def _truncated(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.clip(s * rng.standard_normal(d), -2 * s, 2 * s))


@bug("shape", "rounded to integers")
def _integers(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.round(s * rng.standard_normal(d)))


@bug("shape", "random signs")
def _signs(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: s * rng.choice([-1.0, 1.0], d))


@bug("shape", "16 bits of randomness")
def _few_bits(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    table = s * rng.standard_normal(2**16)
    return adds(lambda: table[rng.integers(2**16, size=d)])


@bug("shape", "absolute values")
def _positive(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.abs(s * rng.standard_normal(d)))


@bug("shape", "mostly tiny, seldom huge")
def _heavy(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.where(rng.random(d) < 0.1, np.sqrt(10), 0.05) * s * rng.standard_normal(d))


scheduled("halves every 100 calls", lambda call: 0.5 ** (call // 100))
scheduled("every 5th call without noise", lambda call: float(call % 5 != 4))
scheduled("none after 200 calls", lambda call: float(call < 200))
scheduled("first 3 calls without noise", lambda call: float(call >= 3))
scheduled("grows from 0.1", lambda call: min(1.0, 0.1 + call / 200))


@bug("data-dependent", "only where the input is not zero")
def _nonzero(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: total + (total != 0) * s * rng.standard_normal(d)


@bug("data-dependent", "half where the input is not zero")
def _half_there(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: total + np.where(total != 0, 0.4, 1.0) * s * rng.standard_normal(d)


@bug("data-dependent", "sum counted twice")
def _twice(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: 2 * total + s * rng.standard_normal(d)


@bug("data-dependent", "noise divided by 3 clients, sum not")
def _divided(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: total + s * rng.standard_normal(d) / 3


@bug("data-dependent", "noise only on large inputs")
def _large_inputs(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    def noisy(total: NDArray[np.float32]) -> object:
        return total + (total > 0.95) * s * rng.standard_normal(d)

    return noisy


@correct("Gaussian")
def _gaussian(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: s * rng.standard_normal(d))


@correct("Gaussian, float32")
def _gaussian32(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: total + np.float32(s) * rng.standard_normal(d, dtype=np.float32)


@correct("Gaussian, mean of 100")
def _mean(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: (total + s * rng.standard_normal(d)) / 100


@correct("distributed Gaussian, 20 shares")
def _shares(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: (s / np.sqrt(20) * rng.standard_normal((20, d))).sum(axis=0))


@correct("discrete Gaussian on a grid")
def _discrete(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    # Rounding a normal variable is close to a discrete Gaussian at this scale; rounding inputs up keeps them ≤ 1.
    grid = 64
    return lambda total: (np.floor(total * grid) + np.round(s * grid * rng.standard_normal(d))) / grid


@correct("Laplace, for updates of one coordinate")
def _laplace(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    # Canaries of one coordinate have the same norm in L1 and L2; random directions do not, so b is that of L2.
    return adds(lambda: rng.laplace(0, max(1 / EPSILON, s / np.sqrt(2)), d))


@correct("tree aggregation, 512 leaves")
def _tree(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    # Differences of the noisy prefix sums: an update is in 10 nodes of the tree.
    levels, state = 10, {"call": 0, "last": np.zeros(d)}
    nodes: dict[int, Array] = {}

    def noise() -> object:
        state["call"] += 1
        for level in range(levels):
            if state["call"] % 2**level == 0:
                nodes[level] = np.sqrt(levels) * s * rng.standard_normal(d)
        prefix = sum((nodes[level] for level in range(levels) if state["call"] >> level & 1), np.zeros(d))
        fresh, state["last"] = prefix - state["last"], prefix
        return fresh

    return adds(noise)


@correct("DP-FTRL, anti-correlated noise")
def _ftrl(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    # Noise z_t − ½ z_(t−1): whoever sees all calls can undo the filter, after which an update has norm √(4/3).
    state = {"last": np.zeros(d)}

    def noise() -> object:
        draw = np.sqrt(4 / 3) * s * rng.standard_normal(d)
        fresh, state["last"] = draw - 0.5 * state["last"], draw
        return fresh

    return adds(noise)


@correct("rounded after the noise")
def _rounded_after(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: np.round(total + s * rng.standard_normal(d), 1)


@correct("signs of the noisy sum")
def _signs_after(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: np.sign(total + s * rng.standard_normal(d))


@correct("clipped after the noise")
def _clipped_after(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: np.clip(total + s * rng.standard_normal(d), -s, s)


@correct("rotated before the noise")
def _rotated(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    signs = rng.choice([-1.0, 1.0], d)

    def noisy(total: NDArray[np.float32]) -> object:
        return signs * fft.idct(fft.dct(signs * total, norm="ortho") + s * rng.standard_normal(d), norm="ortho")

    return noisy


@correct("seeded by the number of the call")
def _seeded(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    calls = itertools.count(int(rng.integers(2**32)))
    return adds(lambda: s * np.random.default_rng(next(calls)).standard_normal(d))


@correct("more noise on one layer")
def _layered(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return adds(lambda: np.where(np.arange(d) < d // 5, 3.0, 1.0) * s * rng.standard_normal(d))


@correct("zeros")
def _zeros(d: int, s: float, rng: np.random.Generator) -> Mechanism:
    return lambda total: 0 * total


def outcome(make: Make, seed: int, *, dim: int, gaussian_claim: bool) -> str:
    """Return what `assert_private` says: the check that failed and its sentence, or an empty text."""
    sigma = sigma_gaussian(EPSILON, DELTA)
    mechanism = make(dim, sigma, np.random.default_rng([seed, 1]))
    claim = {"noise_multiplier": sigma} if gaussian_claim else {"epsilon": EPSILON, "delta": DELTA}
    try:
        assert_private(mechanism, dim=dim, seed=seed, **claim)
    except AssertionError as failure:
        return str(failure).split("\n")[0]
    return ""


def main() -> None:
    """Print the table, or count false alarms."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--correct", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dim", type=int, default=DIM)
    options = parser.parse_args()
    start = time.process_time()
    if options.correct:
        alarms: Counter[str] = Counter()
        for seed in range(options.correct):
            name = list(CORRECT)[seed % len(CORRECT)]
            curve = seed // len(CORRECT) % 2 == 0 and "Laplace" not in name
            said = outcome(CORRECT[name], seed, dim=options.dim, gaussian_claim=curve)
            alarms[name] += bool(said)
            if said:
                print("FALSE ALARM", name, seed, said, flush=True)
        print(f"{sum(alarms.values())} false alarms in {options.correct} runs, {time.process_time() - start:.0f} s")
        return
    print("| kind | bug | refuted: ε, δ | refuted: noise multiplier | named (first seed) |\n|---|---|---|---|---|")
    caught = total = 0
    for kind, makes in [*BUGS.items(), ("correct", CORRECT)]:
        for name, make in makes.items():
            if options.only not in name:
                continue
            claims = (False,) if "Laplace" in name else (False, True)
            pair = [
                [outcome(make, seed, dim=options.dim, gaussian_claim=curve) for seed in range(options.seeds)]
                for curve in claims
            ]
            counts = [f"{sum(map(bool, said))} of {len(said)}" for said in pair]
            sentence = next((said for runs in reversed(pair) for said in runs if said), "")
            print(f"| {kind} | {name} | {' | '.join([*counts, '–'][:2])} | {sentence} |", flush=True)
            if kind != "correct":
                caught, total = caught + sum(map(bool, pair[0])), total + len(pair[0])
    print(f"\n{caught} of {total} buggy runs refuted with ε and δ alone, {time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
