"""Bugs of the noise, for every target that adds some: each makes a function from the number of a call to its noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[np.float64]
Noise = Callable[[int], Array]


@dataclass(frozen=True)
class Place:
    """Where noise is needed.

    Args:
        dim: Number of coordinates.
        sigma: Standard deviation that the claim needs, for updates of norm 1.
        calls: How often noise will be drawn.
        rng: Source of randomness.
    """

    dim: int
    sigma: float
    calls: int
    rng: np.random.Generator

    def normal(self, *shape: int) -> Array:
        """Return correct noise, of ``dim`` coordinates by default."""
        return self.sigma * self.rng.standard_normal(shape or self.dim)


Make = Callable[[Place], Noise]

NOISE_BUGS: dict[str, tuple[str, Make]] = {}
"""Kind and maker of each bug, by name."""


def bug(kind: str, name: str) -> Callable[[Make], Make]:
    """Register a bug."""

    def register(make: Make) -> Make:
        NOISE_BUGS[name] = (kind, make)
        return make

    return register


def scaled(name: str, factor: Callable[[Place], float]) -> None:
    """Register noise of a wrong size."""
    bug("size", name)(lambda place: lambda call: factor(place) * place.normal())


def weighted(name: str, weights: Callable[[int, np.random.Generator], Array]) -> None:
    """Register noise that is multiplied with fixed weights."""

    def make(place: Place) -> Noise:
        weight = weights(place.dim, place.rng)
        return lambda call: weight * place.normal()

    bug("support", name)(make)


def scheduled(name: str, factor: Callable[[int, int], float]) -> None:
    """Register noise whose size depends on the number of the call, and of all calls."""
    bug("schedule", name)(lambda place: lambda call: factor(call, place.calls) * place.normal())


def each(kind: str, name: str, draw: Callable[[Place], Array]) -> None:
    """Register noise that is drawn in the same way in each call."""
    bug(kind, name)(lambda place: lambda call: draw(place))


scaled("0.7 of the noise", lambda place: 0.7)
scaled("0.5 of the noise", lambda place: 0.5)
scaled("no noise", lambda place: 0.0)
scaled("√σ in place of σ", lambda place: place.sigma**-0.5)
scaled("divided by 50 clients once too often", lambda place: 1 / 50)
weighted("none on a random half", lambda d, rng: (rng.random(d) < 0.5).astype(float))
weighted("none on the second half", lambda d, rng: (np.arange(d) < d // 2).astype(float))
weighted("none on every second coordinate", lambda d, rng: (np.arange(d) % 2 == 0).astype(float))
weighted("half on every second coordinate", lambda d, rng: np.where(np.arange(d) % 2 == 0, 0.5, 1.0))
weighted("none on the last 10 coordinates", lambda d, rng: np.r_[np.ones(d - 10), np.zeros(10)])
weighted("none on a block of 64", lambda d, rng: np.where((np.arange(d) // 64) == d // 128, 0.0, 1.0))
weighted("none on one coordinate", lambda d, rng: np.where(np.arange(d) == 77, 0.0, 1.0))
weighted("0.3 on the first fifth", lambda d, rng: np.where(np.arange(d) < d // 5, 0.3, 1.0))
each("support", "a random half in each call", lambda p: (p.rng.random(p.dim) < 0.5) * p.normal())


@bug("support", "a random twentieth missing in each call")
def _random_block(place: Place) -> Noise:
    block = 20 * np.arange(place.dim) // place.dim
    return lambda call: (block != place.rng.integers(20)) * place.normal()


@bug("freshness", "hard-coded noise")
def _hard_coded(place: Place) -> Noise:
    noise = place.normal()
    return lambda call: noise


@bug("freshness", "a pool of vectors, an eighth of the calls")
def _pool(place: Place) -> Noise:
    vectors = place.normal(max(4, place.calls // 8), place.dim)
    return lambda call: vectors[place.rng.integers(len(vectors))]


@bug("freshness", "kept for two calls")
def _cached(place: Place) -> Noise:
    kept = {0: place.normal()}

    def noise(call: int) -> Array:
        if call // 2 not in kept:
            kept.clear()
            kept[call // 2] = place.normal()
        return kept[call // 2]

    return noise


@bug("freshness", "sign alternates")
def _alternating(place: Place) -> Noise:
    noise = place.normal()
    return lambda call: (-1) ** call * noise


@bug("freshness", "one vector, shuffled")
def _shuffled(place: Place) -> Noise:
    noise = place.normal()
    return lambda call: place.rng.permutation(noise)


@bug("freshness", "one vector, rotated by a random step")
def _rolled(place: Place) -> Noise:
    noise = place.normal()
    return lambda call: np.roll(noise, place.rng.integers(place.dim))


@bug("freshness", "momentum: 0.9 of the last noise")
def _momentum(place: Place) -> Noise:
    last = [place.normal()]

    def noise(call: int) -> Array:
        last[0] = 0.9 * last[0] + np.sqrt(1 - 0.81) * place.normal()
        return last[0]

    return noise


@bug("freshness", "overlaps with the last: (nₜ + nₜ₋₁)/√2")
def _overlapping(place: Place) -> Noise:
    last = [place.normal()]

    def noise(call: int) -> Array:
        before, last[0] = last[0], place.normal()
        return (before + last[0]) / np.sqrt(2)

    return noise


@bug("freshness", "a seed of 8 bits")
def _small_seed(place: Place) -> Noise:
    return lambda call: place.sigma * np.random.default_rng(place.rng.integers(256)).standard_normal(place.dim)


@bug("freshness", "seeded by the number of the call, from 0 on")
def _counted_seed(place: Place) -> Noise:
    return lambda call: place.sigma * np.random.default_rng(call).standard_normal(place.dim)


def _repeated(draw: Array, count: int) -> Array:
    return np.repeat(draw, -(-count // draw.size))[:count]


def _tiled(draw: Array, count: int) -> Array:
    return np.resize(draw, count)


def _mirrored(half: Array, count: int) -> Array:
    return np.r_[half, -half[::-1]][:count]


def _smoothed(place: Place) -> Array:
    return np.sqrt(5) * ndimage.uniform_filter1d(place.normal(), 5, mode="wrap")


def _zero_sum(place: Place) -> Array:
    draw = place.normal()
    return draw - draw.mean()


each("correlation", "one draw for all coordinates", lambda p: np.full(p.dim, p.normal(1)[0]))
each("correlation", "one draw per 100 coordinates", lambda p: _repeated(p.normal(-(-p.dim // 100)), p.dim))
each("correlation", "a quarter, four times", lambda p: _tiled(p.normal(-(-p.dim // 4)), p.dim))
each("correlation", "mirrored second half", lambda p: _mirrored(p.normal(-(-p.dim // 2)), p.dim))
each("correlation", "averaged over 5 neighbors", _smoothed)
each("correlation", "cumulated along the vector", lambda p: np.cumsum(p.normal()) / np.sqrt(np.arange(1, p.dim + 1)))
each("correlation", "adds up to zero", _zero_sum)


def low_rank(name: str, rank: Callable[[Place], int]) -> None:
    """Register noise that lies in a subspace of few dimensions."""

    def make(place: Place) -> Noise:
        factors = place.normal(rank(place), place.dim) / np.sqrt(rank(place))
        return lambda call: place.rng.standard_normal(rank(place)) @ factors

    bug("correlation", name)(make)


low_rank("rank 5", lambda place: 5)
low_rank("rank of half the calls", lambda place: place.calls // 2)


def _heavy(place: Place) -> Array:
    return np.where(place.rng.random(place.dim) < 0.1, np.sqrt(10), 0.05) * place.normal()


each("shape", "uniform", lambda p: np.sqrt(3) * p.rng.uniform(-p.sigma, p.sigma, p.dim))
each("shape", "truncated at 2 standard deviations", lambda p: np.clip(p.normal(), -2 * p.sigma, 2 * p.sigma))
each("shape", "clamped at 3 standard deviations", lambda p: np.clip(p.normal(), -3 * p.sigma, 3 * p.sigma))
each("shape", "rounded to multiples of the clip norm", lambda p: np.round(p.normal()))
each("shape", "random signs", lambda p: p.sigma * p.rng.choice([-1.0, 1.0], p.dim))
each("shape", "absolute values", lambda p: np.abs(p.normal()))
each("shape", "mostly tiny, seldom huge", _heavy)


@bug("shape", "16 bits of randomness")
def _few_bits(place: Place) -> Noise:
    table = place.normal(2**16)
    return lambda call: table[place.rng.integers(2**16, size=place.dim)]


scheduled("halves every quarter of the calls", lambda call, calls: 0.5 ** (4 * call // calls))
scheduled("every 5th call without noise", lambda call, calls: float(call % 5 != 4))
scheduled("none in the second half", lambda call, calls: float(2 * call < calls))
scheduled("none in the first 3 calls", lambda call, calls: float(call >= 3))
scheduled("none in the last call", lambda call, calls: float(call < calls - 1))
scheduled("only in even calls", lambda call, calls: float(call % 2 == 0))
scheduled("grows from 0.1 over half of the calls", lambda call, calls: min(1.0, 0.1 + 1.8 * call / calls))
scheduled("clip norm doubles halfway, noise does not", lambda call, calls: 1.0 if 2 * call < calls else 0.5)


CORRECT_NOISE: dict[str, Make] = {
    "Gaussian": lambda place: lambda call: place.normal(),
    "Gaussian, float32": lambda place: lambda call: place.normal().astype(np.float32),
    "distributed Gaussian, 20 shares": lambda p: lambda call: p.normal(20, p.dim).sum(axis=0) / np.sqrt(20),
    "more noise on one layer": lambda p: lambda call: np.where(np.arange(p.dim) < p.dim // 5, 3.0, 1.0) * p.normal(),
}
"""Makers of correct noise, by name."""


def correct(name: str) -> Callable[[Make], Make]:
    """Register correct noise."""

    def register(make: Make) -> Make:
        CORRECT_NOISE[name] = make
        return make

    return register


@correct("seeded by the number of the call")
def _seeded(place: Place) -> Noise:
    first = int(place.rng.integers(2**32))
    return lambda call: place.sigma * np.random.default_rng(first + call).standard_normal(place.dim)


@correct("tree aggregation")
def _tree(place: Place) -> Noise:
    # Differences of noisy prefix sums: an update is in one node of each level of the tree.
    levels, last = place.calls.bit_length() + 1, [np.zeros(place.dim)]
    nodes: dict[int, Array] = {}

    def noise(call: int) -> Array:
        leaf = call + 1
        for level in range(levels):
            if leaf % 2**level == 0:
                nodes[level] = np.sqrt(levels) * place.normal()
        prefix = sum((nodes[level] for level in range(levels) if leaf >> level & 1), np.zeros(place.dim))
        fresh, last[0] = prefix - last[0], prefix
        return fresh

    return noise


@correct("DP-FTRL, anti-correlated noise")
def _ftrl(place: Place) -> Noise:
    # Noise z_t − ½ z_(t−1): whoever sees all calls can undo the filter, after which an update has norm √(4/3).
    last = [np.zeros(place.dim)]

    def noise(call: int) -> Array:
        draw = np.sqrt(4 / 3) * place.normal()
        fresh, last[0] = draw - 0.5 * last[0], draw
        return fresh

    return noise


CORRELATED = ("tree aggregation", "DP-FTRL, anti-correlated noise")
"""Correct noise that is not independent between calls, for claims of ε and δ."""


def noise_of(name: str, place: Place) -> Noise:
    """Return the noise of a bug, or correct noise."""
    return (NOISE_BUGS[name][1] if name in NOISE_BUGS else CORRECT_NOISE[name])(place)


def counted(noise: Noise) -> Callable[[], Array]:
    """Return noise that counts its calls by itself."""
    calls = itertools.count()
    return lambda: noise(next(calls))
