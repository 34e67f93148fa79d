"""Target: a function from a sum of updates to a noisy sum, tested by `assert_private` with its default settings.

The claim is ε = 1 at δ = 1e-5, without the noise multiplier, which is the harder one to refute.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cases import Answer, Case, from_failure
from noise import CORRECT_NOISE, NOISE_BUGS, Place, counted, noise_of
from numpy.typing import NDArray
from scipy import fft

from coalmine.stats import sigma_gaussian
from coalmine.testing import assert_private

EPSILON, DELTA, DIM, CALLS = 1.0, 1e-5, 10_000, 401
TARGET = "mechanism"

Mechanism = Callable[[NDArray[np.float32]], object]
Make = Callable[[Place], Mechanism]

DATA_BUGS: dict[str, Make] = {}
"""Makers of mechanisms whose noise depends on the data, by name."""

CORRECT: dict[str, Make] = {}
"""Makers of correct mechanisms that do more than add noise, by name."""


def bug(name: str) -> Callable[[Make], Make]:
    """Register a bug that the noise alone does not have."""

    def register(make: Make) -> Make:
        DATA_BUGS[name] = make
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


@bug("only where the input is not zero")
def _nonzero(place: Place) -> Mechanism:
    return lambda total: total + (total != 0) * place.normal()


@bug("none where the sum is zero")
def _none_at_zero(place: Place) -> Mechanism:
    return lambda total: total + place.normal() * total.any()


@bug("in proportion to the length of the sum")
def _proportional(place: Place) -> Mechanism:
    return lambda total: total + place.normal() * np.linalg.norm(total) / np.sqrt(place.dim)


@bug("0.3 of the noise in sums longer than 10")
def _less_for_long_sums(place: Place) -> Mechanism:
    return lambda total: total + place.normal() * (0.3 if np.linalg.norm(total) > 10 else 1.0)


@bug("half where the input is not zero")
def _half_there(place: Place) -> Mechanism:
    return lambda total: total + np.where(total != 0, 0.4, 1.0) * place.normal()


@bug("sum counted twice")
def _twice(place: Place) -> Mechanism:
    return lambda total: 2 * total + place.normal()


@bug("noise divided by 3 clients, sum not")
def _divided(place: Place) -> Mechanism:
    return lambda total: total + place.normal() / 3


@bug("noise only on large inputs")
def _large_inputs(place: Place) -> Mechanism:
    def noisy(total: NDArray[np.float32]) -> object:
        return total + (total > 0.95) * place.normal()

    return noisy


@correct("Gaussian, mean of 100")
def _mean(place: Place) -> Mechanism:
    return lambda total: (total + place.normal()) / 100


@correct("discrete Gaussian on a grid")
def _discrete(place: Place) -> Mechanism:
    # Rounding a normal variable is close to a discrete Gaussian at this scale; rounding inputs up keeps them ≤ 1.
    grid = 64
    return lambda total: (np.floor(total * grid) + np.round(grid * place.normal())) / grid


@correct("Laplace, for updates of one coordinate")
def _laplace(place: Place) -> Mechanism:
    # Canaries of one coordinate have the same norm in L1 and L2; random directions do not, so b is that of L2.
    return adds(lambda: place.rng.laplace(0, max(1 / EPSILON, place.sigma / np.sqrt(2)), place.dim))


@correct("rounded after the noise")
def _rounded_after(place: Place) -> Mechanism:
    return lambda total: np.round(total + place.normal(), 1)


@correct("signs of the noisy sum")
def _signs_after(place: Place) -> Mechanism:
    return lambda total: np.sign(total + place.normal())


@correct("clipped after the noise")
def _clipped_after(place: Place) -> Mechanism:
    return lambda total: np.clip(total + place.normal(), -place.sigma, place.sigma)


@correct("rotated before the noise")
def _rotated(place: Place) -> Mechanism:
    signs = place.rng.choice([-1.0, 1.0], place.dim)

    def noisy(total: NDArray[np.float32]) -> object:
        return signs * fft.idct(fft.dct(signs * total, norm="ortho") + place.normal(), norm="ortho")

    return noisy


@correct("zeros")
def _zeros(place: Place) -> Mechanism:
    return lambda total: 0 * total


def answer(make: Make, seed: int, *, dim: int = DIM, noise_multiplier: bool = False) -> Answer:
    """Return what `assert_private` says about a mechanism."""
    sigma = sigma_gaussian(EPSILON, DELTA)
    mechanism = make(Place(dim, sigma, CALLS, np.random.default_rng([seed, 1])))
    try:
        if noise_multiplier:
            assert_private(mechanism, noise_multiplier=sigma, dim=dim, seed=seed)
        else:
            assert_private(mechanism, epsilon=EPSILON, delta=DELTA, dim=dim, seed=seed)
    except AssertionError as failure:
        return from_failure(failure)
    return Answer()


def _with_noise(name: str) -> Make:
    """Return the maker of a mechanism with a bug of the noise."""
    return lambda place: adds(counted(noise_of(name, place)))


def cases() -> list[Case]:
    """Return all bugs of this target, and correct mechanisms with either kind of claim."""
    makes = {name: (kind, _with_noise(name)) for name, (kind, _) in NOISE_BUGS.items()}
    sound = {name: _with_noise(name) for name in CORRECT_NOISE} | CORRECT
    makes |= {name: ("data-dependent", make) for name, make in DATA_BUGS.items()}
    buggy = [
        Case(target=TARGET, kind=kind, name=name, run=lambda seed, make=make: answer(make, seed))
        for name, (kind, make) in makes.items()
    ]
    return buggy + [
        Case(
            target=TARGET,
            kind="correct",
            name=name,
            # Laplace noise has no noise multiplier.
            run=lambda seed, make=make, name=name: answer(
                make, seed, noise_multiplier=seed % 2 == 1 and "Laplace" not in name
            ),
        )
        for name, make in sound.items()
    ]
