"""Evidence: what the releases so far say about every canary, inserted and held out.

Orthogonal canaries do not disturb each other: each is compared with what is left of a release once its projections on
all *other* canaries are removed (`comparable_lengths`). To a held-out canary this remainder is a fixed vector, and the
canary a random direction of the dimensions that are left. Scores never use which canaries are inserted, so that those
of a release that ignores the canaries are exchangeable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.claims.sampling import Sampling
from coalmine.errors import InputError
from coalmine.methods.one_shot.scores import History, Observation, Score
from coalmine.methods.one_shot.updates import UpdateCanaries
from coalmine.protocol import Vector
from coalmine.stats import CosineNull, Null, OrthogonalCosineNull
from coalmine.vectors import device_of, like, norm, pieces, to_numpy

# Smallest squared remainder relative to the release. The error e of all dot products in float32 has a length of up to
# about 4e-7 of the release's, so the sum of their squares is off by 2⟨dots, e⟩, up to 1e-6 of its square. A smaller
# remainder may be nothing but rounding. It also limits the ε that scores can show, to about 1e6 · dim / (2 · canaries).
_SMALLEST_REMAINDER = 1e-6


class Evidence:
    """The running score of all canaries.

    Args:
        score: The score.
        canaries: The canaries, inserted and held out.
        participation: When they take part.
        shared_rounds: Whether all take part in the same rounds, known to the adversary.
    """

    def __init__(
        self,
        score: type[Score],
        canaries: UpdateCanaries,
        *,
        participation: Sampling,
        shared_rounds: bool,
    ) -> None:
        self._canaries = canaries
        self.history = History(
            count=canaries.count,
            cosine=cosine_null(canaries),
            participation=participation,
            shared_rounds=shared_rounds,
        )
        self._score = score(self.history)
        self.least_noise = math.inf  # smallest squared share of a release that no canary explains
        # For canaries with the same rounds the sum of their log-likelihood ratios is a dot product with one vector, the
        # matched filter Σ shift · u / |u|². Its weights depend on the releases alone, so its cosine with a held-out
        # canary has the null distribution of any cosine.
        self.direction = np.zeros(canaries.dim if shared_rounds else 0, dtype=np.float32)
        self.gain = 0.0  # what an inserted canary adds to its dot product with the direction; NaN if unknown

    @property
    def is_noiseless(self) -> bool:
        """Whether a release was nothing but canaries, as far as its precision shows."""
        return self.least_noise < _SMALLEST_REMAINDER

    @property
    def is_silent(self) -> bool:
        """Whether no canary was due for any release: all scores are then alike, and no bound exceeds 0."""
        return not self.history.times.any()

    def add(
        self, change: Vector, length: float, *, due: Ints, shift: float | None, rate: float, ends_epoch: bool
    ) -> None:
        """Process a release of length ``length``; see `Observation` for the other arguments."""
        self.history.releases += 1
        if not self._score.uses_direction:  # which is compared with the canaries once, at the end
            dots, lengths = self._compared(change, length)
            self._score.add(
                Observation(dots=dots, lengths=lengths, due=due, shift=shift, rate=rate, ends_epoch=ends_epoch)
            )
        self.history.times += due > 0
        if self.history.shared_rounds and np.count_nonzero(due):
            # If the shift is unknown, all releases get the same weight.
            weight = length if shift is None else shift
            self.gain += math.nan if shift is None else (shift / length) ** 2
            self.direction = like(self.direction, change)
            with np.errstate(over="ignore", under="ignore"):
                factor = np.float32(weight / length**2)
            if not np.finfo(np.float32).tiny <= factor < math.inf:
                raise InputError(
                    f"a canary adds {weight:.2g} to a release of length {length:.2g}, a ratio that float32 cannot "
                    "hold: check the divisor and the clip norm of the release"
                )
            for part in pieces(len(change), device_of(change)):  # in pieces, since a product needs memory
                self.direction[part] += factor * change[part]

    def _compared(self, release: Vector, length: float) -> tuple[Floats, Floats]:
        """Return the dot product of each canary with a release, and the length to compare it with."""
        dots = self._canaries.dots(release)
        own = np.sum(dots**2) if self._canaries.orthonormal else np.max(dots**2)
        self.least_noise = min(self.least_noise, 1 - float(own) / length**2)
        return dots, comparable_lengths(dots, length, orthonormal=self._canaries.orthonormal)

    def add_nothing(self, *, ends_epoch: bool) -> None:
        """Process a release that did not change, after rounds without canaries."""
        if ends_epoch:
            self._score.end_epoch()

    def scores(self) -> Floats:
        """Return the score of each canary, NaN for canaries that took part in no visible release."""
        if self.is_silent:
            return np.zeros(self.history.count)
        if self._score.uses_direction:
            dots, lengths = self._compared(self.direction, norm(self.direction))
            return dots / lengths
        return self._score.values()

    def expected_separation(self) -> float | None:
        """Return how many standard deviations from its null an inserted canary's score is expected; None if unknown.

        The length of the releases tells how much noise, clients and other canaries there are, more exactly than the
        scores do.
        """
        if not self._score.uses_direction or not self.gain > 0:
            return None
        dots, lengths = self._compared(self.direction, norm(self.direction))
        if self._canaries.orthonormal:  # of its own component, lengths contain what chance made of it
            lengths = np.sqrt(lengths**2 - dots**2 + self.gain**2)
        cosine = min(self.gain / float(lengths.mean()), 1 - 2**-53)  # without noise, rounding may push it above 1
        return float(-special.ndtri_exp(self.history.cosine.log_sf(cosine)))

    def null(self) -> Null | None:
        """Return the null distribution of the score, or an upper bound on its tails, or None."""
        return None if self.is_silent else self._score.null()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        arrays = {
            "releases": self.history.releases,
            "times": self.history.times,
            "direction": to_numpy(self.direction),
            "least_noise": self.least_noise,
            "gain": self.gain,
        }
        return {name: np.array(value) for name, value in arrays.items()} | self._score.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        self.history.releases, self.history.times = int(state["releases"]), np.array(state["times"])
        self.direction, self.least_noise = np.array(state["direction"]), float(state["least_noise"])
        self.gain = float(state["gain"])
        self._score.restore(state)


def cosine_null(canaries: UpdateCanaries) -> CosineNull:
    """Return the distribution of a held-out canary's cosine with what it is compared with."""
    if canaries.orthonormal:
        return OrthogonalCosineNull(canaries.dim - canaries.count + 1)
    return CosineNull(canaries.dim)


def cosines(canaries: UpdateCanaries, release: Vector, length: float) -> Floats:
    """Return the cosine of each canary with a release of length ``length``, other canaries removed, (count,)."""
    dots = canaries.dots(release)
    return dots / comparable_lengths(dots, length, orthonormal=canaries.orthonormal)


def comparable_lengths(dots: Floats, length: float, *, orthonormal: bool) -> Floats:
    """Return the length of the release that each canary is compared with, (count,).

    Args:
        dots: Dot product of each canary with the release, (count,).
        length: Length of the release.
        orthonormal: Whether the canaries are orthonormal. If so, the release's components along all canaries but a
            canary's own are removed.
    """
    squares = np.full(dots.shape, length**2)
    if orthonormal:
        squares += dots**2 - float(np.sum(dots**2))
    # What is left beside a canary's own component counts as no smaller than the rounding error: cosines stay within
    # (-1, 1).
    lengths: Floats = np.sqrt(np.maximum(squares, dots**2 + _SMALLEST_REMAINDER * length**2))
    return lengths
