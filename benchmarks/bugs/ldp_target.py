"""Target: a client's randomizer, tested by `assert_locally_private` and, as in docs/ldp.md, by `Ldp`.

The claim is ε = 1, with δ = 1e-5 for Gaussian noise, for gradients that the randomizer clips to norm 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from cases import Answer, Case, from_failure, from_results
from noise import Array

from coalmine import Ldp
from coalmine.methods.ldp.crafters import DummyGradient, GradientFlip
from coalmine.simulation import models
from coalmine.simulation.data import load
from coalmine.simulation.mechanisms.local import OwnMechanism
from coalmine.stats import sigma_gaussian
from coalmine.testing import assert_locally_private

EPSILON, DELTA = 1.0, 1e-5
SIGMA = 2 * sigma_gaussian(EPSILON, DELTA)  # replacing a gradient of norm 1 moves it by 2

Randomize = Callable[[Array, np.random.Generator], Array]
Make = Callable[[np.random.Generator], Randomize]

RANDOMIZERS: dict[str, tuple[str, float, Make]] = {}
"""Kind, claimed δ and maker of each randomizer, by name. Makers get a generator for what all reports share."""


def randomizer(kind: str, name: str, delta: float = DELTA) -> Callable[[Make], Make]:
    """Register a maker of a randomizer."""

    def register(make: Make) -> Make:
        RANDOMIZERS[name] = (kind, delta, make)
        return make

    return register


def simple(kind: str, name: str, randomize: Randomize, delta: float = DELTA) -> None:
    """Register a randomizer that keeps nothing between reports."""
    randomizer(kind, name, delta)(lambda shared: randomize)


def norm_of(gradient: Array) -> float:
    """Return the length of a gradient."""
    return float(np.linalg.norm(gradient))


def clipped(gradient: Array, norm: float = 1.0) -> Array:
    """Scale a gradient down to the clip norm."""
    return gradient * min(1.0, norm / max(np.linalg.norm(gradient), 1e-12))


def gaussian(gradient: Array, rng: np.random.Generator, sigma: float = SIGMA) -> Array:
    """Add Gaussian noise to the clipped gradient."""
    return clipped(gradient) + rng.normal(0, sigma, gradient.size)


def direction(gradient: Array, rng: np.random.Generator, epsilon: float = EPSILON) -> Array:
    """Report a random direction, which is on the gradient's side with probability e^ε/(1 + e^ε) (LDP-SGD)."""
    draw = rng.standard_normal(gradient.size)
    same = rng.random() < 1 / (1 + np.exp(-epsilon))
    return draw / np.linalg.norm(draw) * (1 if (draw @ gradient > 0) == same else -1)


def coordinate(gradient: Array, rng: np.random.Generator, epsilon: float = EPSILON) -> Array:
    """Report the sign of one random coordinate, rounded to ±1 at random, by randomized response (Duchi et al.)."""
    place = rng.integers(gradient.size)
    value = np.clip(clipped(gradient)[place] * np.sqrt(gradient.size) / 3, -1, 1)
    sign = 1 if rng.random() < (1 + value) / 2 else -1
    report = np.zeros(gradient.size)
    report[place] = sign if rng.random() < 1 / (1 + np.exp(-epsilon)) else -sign
    return report


def every_coordinate(gradient: Array, rng: np.random.Generator, epsilon: float) -> Array:
    """Report the sign of every coordinate by randomized response."""
    keeps = rng.random(gradient.size) < 1 / (1 + np.exp(-epsilon))
    return np.where(keeps, 1, -1) * np.where(gradient > 0, 1, -1)


def one_bit(gradient: Array, rng: np.random.Generator, epsilon: float = EPSILON) -> Array:
    """Report the sign of the sum by randomized response."""
    keeps = rng.random() < 1 / (1 + np.exp(-epsilon))
    return np.full(gradient.size, 1.0 if (gradient.sum() > 0) == keeps else -1.0)


def biased_response(gradient: Array, rng: np.random.Generator) -> Array:
    """Answer yes truthfully too often, and no half of the time."""
    yes = gradient.sum() > 0
    answer = rng.random() < (0.95 if yes else 0.5)
    return np.full(gradient.size, 1.0 if answer else -1.0)


def laplace(gradient: Array, rng: np.random.Generator, scale: float) -> Array:
    """Add Laplace noise to the clipped gradient."""
    return clipped(gradient) + rng.laplace(0, scale, gradient.size)


simple("size", "0.7 of the noise", lambda g, rng: gaussian(g, rng, 0.7 * SIGMA))
simple("size", "0.5 of the noise", lambda g, rng: gaussian(g, rng, 0.5 * SIGMA))
simple("size", "no noise", lambda g, rng: clipped(g))
simple("size", "√σ in place of σ", lambda g, rng: gaussian(g, rng, SIGMA**0.5))
simple("size", "ε doubled in LDP-SGD", lambda g, rng: direction(g, rng, 2 * EPSILON), 0.0)
simple("size", "ε doubled in randomized response", lambda g, rng: one_bit(g, rng, 2 * EPSILON), 0.0)
simple(
    "support",
    "none on the second half",
    lambda g, rng: clipped(g) + np.where(np.arange(g.size) < g.size // 2, rng.normal(0, SIGMA, g.size), 0),
)
simple(
    "support",
    "none on one coordinate",
    lambda g, rng: clipped(g) + np.where(np.arange(g.size) != 7, rng.normal(0, SIGMA, g.size), 0),
)
simple("correlation", "one draw for all coordinates", lambda g, rng: clipped(g) + rng.normal(0, SIGMA))
simple(
    "correlation",
    "one randomized response for all coordinates, at ε each",
    lambda g, rng: every_coordinate(g, rng, EPSILON),
    0.0,
)
simple("shape", "uniform", lambda g, rng: clipped(g) + np.sqrt(3) * rng.uniform(-SIGMA, SIGMA, g.size))
simple("shape", "random signs", lambda g, rng: clipped(g) + SIGMA * rng.choice([-1.0, 1.0], g.size))
simple(
    "shape",
    "Laplace noise of scale 2/ε, as if the L1 norm were clipped",
    lambda g, rng: laplace(g, rng, 2 / EPSILON),
    0.0,
)
simple("shape", "biased randomized response", biased_response, 0.0)
simple("shape", "truth in one report of 20", lambda g, rng: clipped(g) if rng.random() < 0.05 else gaussian(g, rng))
simple("data-dependent", "half for a gradient of zero", lambda g, rng: gaussian(g, rng, (0.5 + 0.5 * g.any()) * SIGMA))
simple("data-dependent", "noise in proportion to the norm", lambda g, rng: gaussian(g, rng, SIGMA * min(1, norm_of(g))))
simple("clipping", "no clipping", lambda g, rng: g + rng.normal(0, SIGMA, g.size))
simple("clipping", "clips at twice the clip norm", lambda g, rng: clipped(g, 2.0) + rng.normal(0, SIGMA, g.size))
simple("clipping", "clips each number (L∞)", lambda g, rng: np.clip(g, -1, 1) + rng.normal(0, SIGMA, g.size))
simple(
    "clipping",
    "normalizes with the mean of the numbers",
    lambda g, rng: g / np.mean(np.abs(g)) + rng.normal(0, SIGMA, g.size),
)
simple("accounting", "noise for adding or removing, not replacing", lambda g, rng: gaussian(g, rng, SIGMA / 2))
simple("accounting", "σ for δ = 0.1", lambda g, rng: gaussian(g, rng, 2 * sigma_gaussian(EPSILON, 0.1)))
simple(
    "accounting",
    "δ = 0 claimed for Gaussian noise of ε = 4",
    lambda g, rng: gaussian(g, rng, 2 * sigma_gaussian(4.0, DELTA)),
    0.0,
)
simple(
    "accounting", "ε of one of 10 reports", lambda g, rng: np.mean([direction(g, rng) for _ in range(10)], axis=0), 0.0
)


@randomizer("freshness", "hard-coded noise")
def _hard_coded(shared: np.random.Generator) -> Randomize:
    noise = shared.normal(0, SIGMA, 1 << 20)
    return lambda g, rng: clipped(g) + noise[: g.size]


@randomizer("freshness", "memoized answers", 0.0)
def _memoized(shared: np.random.Generator) -> Randomize:
    answers: dict[bytes, Array] = {}
    return lambda g, rng: answers.setdefault(g.tobytes(), direction(g, rng))


@randomizer("freshness", "a pool of 16 vectors")
def _pool(shared: np.random.Generator) -> Randomize:
    vectors: list[Array] = []

    def randomize(gradient: Array, rng: np.random.Generator) -> Array:
        if not vectors:
            vectors.extend(shared.normal(0, SIGMA, (16, gradient.size)))
        return clipped(gradient) + vectors[rng.integers(16)]

    return randomize


def _scheduled(name: str, factor: Callable[[int], float]) -> None:
    def make(shared: np.random.Generator) -> Randomize:
        calls = itertools.count()
        return lambda g, rng: gaussian(g, rng, factor(next(calls)) * SIGMA)

    randomizer("schedule", name)(make)


_scheduled("every 5th call without noise", lambda call: float(call % 5 != 4))
_scheduled("halves every 500 reports", lambda call: 0.5 ** (call // 500))

simple("correct", "Gaussian", gaussian)
simple("correct", "Gaussian, three times the noise", lambda g, rng: gaussian(g, rng, 3 * SIGMA))
simple("correct", "LDP-SGD", direction, 0.0)
simple("correct", "randomized response of one bit", one_bit, 0.0)
simple("correct", "randomized response of one coordinate", coordinate, 0.0)
simple(
    "correct",
    "randomized response of all coordinates, at ε/d each",
    lambda g, rng: every_coordinate(g, rng, EPSILON / g.size),
    0.0,
)
simple("correct", "Laplace for the L1 norm", lambda g, rng: laplace(g, rng, 2 * g.size**0.5 / EPSILON), 0.0)
simple("correct", "Gaussian, rounded afterwards", lambda g, rng: np.round(gaussian(g, rng), 1))
simple("correct", "signs of the noisy gradient", lambda g, rng: np.sign(gaussian(g, rng)))


def tested(name: str, seed: int) -> Answer:
    """Return what `assert_locally_private` says."""
    kind, delta, make = RANDOMIZERS[name]
    rng = np.random.default_rng([seed, 4])
    randomize = make(rng)
    # Gaussian noise is claimed as such, and gradients are longer than the clip norm where clipping is tested.
    claim = {"noise_multiplier": SIGMA} if delta else {"epsilon": EPSILON}
    norm = 10.0 if kind in ("clipping", "correct") else 1.0
    try:
        assert_locally_private(lambda g: randomize(g, rng), **claim, delta=delta, norm=norm, seed=seed)
    except AssertionError as failure:
        return from_failure(failure)
    return Answer()


def audited(name: str, seed: int) -> Answer:
    """Return what `Ldp` says with its number of trials, for the crafters that show most."""
    _, delta, make = RANDOMIZERS[name]
    mechanism = OwnMechanism(function=make(np.random.default_rng([seed, 4])), epsilon=EPSILON, delta=delta)
    digits = load("digits").train
    audit = Ldp(
        data=digits, model=lambda s: models.build("mlp", digits.task, seed=s), mechanisms=[mechanism],
        crafters=[GradientFlip(), DummyGradient()], views=["likelihood-ratio"], seed=seed,
    )  # fmt: skip
    return from_results(audit.run())


def cases() -> list[Case]:
    """Return all bugs and correct randomizers, for the unit test and for the audit."""
    return [
        Case(target=target, kind=kind, name=name, run=lambda seed, run=run, name=name: run(name, seed))
        for target, run in (("ldp", tested), ("ldp_audit", audited))
        for name, (kind, _, _) in RANDOMIZERS.items()
    ]
