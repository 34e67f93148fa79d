"""What makes a sum of updates private: clipping, weights, noise.

The noise is float32 Gaussian from a counter-based generator: fit for simulating and auditing a mechanism. A deployment
needs a cryptographic source, and care for the low bits of floating-point numbers (Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_count, check_kind, check_number, check_positive, check_probability
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.simulation.pieces import Threads

# Where squares of float32 numbers neither vanish nor overflow.
_LEAST_NORM, _MOST_NORM = 1e-10, 1e10

_NOISE_PIECE = 1 << 21  # numbers drawn from one stream


@dataclass(frozen=True)
class NoClipping:
    """Updates are summed as they are."""

    def start(self) -> float:
        """No bound."""
        return math.inf


@dataclass(frozen=True)
class FixedClipping:
    """Updates longer than ``norm`` are scaled to it."""

    norm: float

    def __post_init__(self) -> None:
        _check_norm("the clip norm", self.norm)

    def start(self) -> float:
        """Always ``norm``."""
        return float(self.norm)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """A clip norm that follows a quantile of the updates' norms (Andrew, Thakkar, McMahan and Ramaswamy 2021).

    After each round the norm is multiplied by exp(−``rate`` · (b − ``quantile``)), where b is the share of updates
    within it. In a private training b is noisy: ``count_noise`` is the standard deviation on the count (a twentieth of
    the expected cohort if not given, and at least twice the noise multiplier), and the noise on the updates is raised
    so that both together are covered by the mechanism's noise multiplier.
    """

    initial: float
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        _check_norm("the initial clip norm", self.initial)
        check_probability("quantile", self.quantile)
        check_positive("rate", self.rate)
        if self.count_noise is not None:
            check_positive("count_noise", self.count_noise)

    def start(self) -> float:
        """The first round's."""
        return float(self.initial)

    def next(self, clip_norm: float, share: float) -> float:
        """The next round's, from the (noisy) share of updates within this one's."""
        return min(max(clip_norm * math.exp(-self.rate * (share - self.quantile)), _LEAST_NORM), _MOST_NORM)


Clipping = NoClipping | FixedClipping | AdaptiveClipping


@dataclass(frozen=True)
class EqualWeights:
    """Every client counts the same."""

    def weights(self, sizes: Ints) -> Floats:
        """One for each."""
        return np.ones(len(sizes))


@dataclass(frozen=True)
class WeightsBySize:
    """A client counts by its number of examples, up to ``cap``: min(n, cap) / cap, so that none counts more than 1.

    A private training needs ``cap``: the largest client's size is a fact about that client. Without one it is used.
    Since sizes are private, a private training divides by the number of clients expected and not by their weight:
    updates come out smaller by the mean weight.
    """

    cap: int | None = None

    def __post_init__(self) -> None:
        if self.cap is not None:
            check_count("cap", self.cap)

    def weights(self, sizes: Ints) -> Floats:
        """In (0, 1]."""
        cap = int(sizes.max()) if self.cap is None else self.cap
        return np.minimum(sizes, cap) / cap


Weighting = EqualWeights | WeightsBySize


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Clip each client's update, weigh it by at most 1, sum, add N(0, (``noise_multiplier`` · clip norm)²), divide.

    One client moves the sum by at most the clip norm. The divisor of a private training is the number of clients
    expected in a round, fixed in advance; otherwise it is the weight of those who came. How many clients there are is
    taken to be public.
    """

    clipping: Clipping = field(default_factory=NoClipping)
    noise_multiplier: float = 0.0
    weighting: Weighting = field(default_factory=EqualWeights)

    def __post_init__(self) -> None:
        check_kind(
            "clipping", self.clipping, (NoClipping, FixedClipping, AdaptiveClipping), "such as FixedClipping(1.0)"
        )
        check_kind("weighting", self.weighting, (EqualWeights, WeightsBySize), "EqualWeights() or WeightsBySize(cap)")
        if not (check_number("noise_multiplier", self.noise_multiplier) >= 0 and math.isfinite(self.noise_multiplier)):
            raise InputError(f"noise_multiplier must be 0 or more, got {self.noise_multiplier}")
        if self.private and isinstance(self.clipping, NoClipping):
            raise InputError("noise needs a clip norm to be measured by: give FixedClipping or AdaptiveClipping")
        if self.private and isinstance(self.weighting, WeightsBySize) and self.weighting.cap is None:
            raise InputError("weights by size need a cap in a private training: the largest size is private too")

    @property
    def private(self) -> bool:
        """Whether it adds noise."""
        return self.noise_multiplier > 0

    def check(self, expected_clients: float) -> None:
        """Refuse a count noise that leaves nothing for the updates."""
        self.update_noise(expected_clients)

    def count_noise(self, expected_clients: float) -> float:
        """The standard deviation of the noise on how many updates are within the clip norm; 0 if nothing is private."""
        if not self.private or not isinstance(self.clipping, AdaptiveClipping):
            return 0.0
        given = self.clipping.count_noise
        return max(2 * self.noise_multiplier, expected_clients / 20) if given is None else given

    def update_noise(self, expected_clients: float) -> float:
        """The noise multiplier on the updates themselves: above ``noise_multiplier`` where counts are released too.

        A client moves the centered count by 1/2, so z⁻² = z_updates⁻² + (2 · count noise)⁻² (Andrew et al. 2021).
        """
        count_noise = self.count_noise(expected_clients)
        if not count_noise:
            return self.noise_multiplier
        if 2 * count_noise <= self.noise_multiplier:
            raise InputError(
                f"count_noise must exceed half the noise multiplier of {self.noise_multiplier}, got {count_noise:g}"
            )
        return self.noise_multiplier / math.sqrt(1 - (self.noise_multiplier / (2 * count_noise)) ** 2)

    def noise(
        self,
        dim: int,
        seed: int,
        clip_norm: float,
        expected_clients: float,
        round: int,
        trial: int = 0,
        threads: Threads | None = None,
    ) -> Vector:
        """The noise on the sum of one round, (dim,): each two million numbers from a stream of their own."""
        scale, drawn = np.float32(self.update_noise(expected_clients) * clip_norm), np.empty(dim, dtype=np.float32)

        def draw(piece: slice) -> None:
            stream = generator(seed, "noise", round, trial, piece.start // _NOISE_PIECE)
            stream.standard_normal(dtype=np.float32, out=drawn[piece])
            drawn[piece] *= scale

        (threads or Threads()).each(dim, draw, piece=_NOISE_PIECE)
        return drawn

    def next_clip_norm(self, clip_norm: float, norms: Floats, expected_clients: float, seed: int, round: int) -> float:
        """The clip norm of the next round, from the norms of this one's updates."""
        if not isinstance(self.clipping, AdaptiveClipping) or not expected_clients:
            return clip_norm
        count_noise = self.count_noise(expected_clients)
        if count_noise:
            centered = float(np.sum(norms <= clip_norm) - len(norms) / 2)
            noisy = centered + count_noise * float(generator(seed, "clip-count", round).standard_normal())
            return self.clipping.next(clip_norm, noisy / expected_clients + 0.5)
        return self.clipping.next(clip_norm, float(np.mean(norms <= clip_norm))) if len(norms) else clip_norm


def _check_norm(name: str, norm: float) -> None:
    if not _LEAST_NORM <= check_number(name, norm) <= _MOST_NORM:
        raise InputError(f"{name} must be a positive number from {_LEAST_NORM:g} to {_MOST_NORM:g}, got {norm}")
