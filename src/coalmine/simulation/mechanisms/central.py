"""Central differential privacy: clipping, the noise on the sum of updates, and bugs planted into it.

`Mechanism.noise` draws the noise that `Training` adds (see simulation/training.py). The clipping itself happens where
the updates are computed, in `coalmine.simulation.kernels.kernel.clip_factors`, with the clip norm that this module
sets.

The noise is float32 Gaussian from a counter-based generator. That is enough to simulate and audit a mechanism; a
deployment needs a cryptographic source of randomness and protection of the low bits of floats (Mironov, 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import (
    InputError,
    check_count,
    check_nonnegative,
    check_positive,
    check_probability,
    parse_kind,
)
from coalmine.layers import Layers, LayerSpec
from coalmine.protocol import Vector
from coalmine.seeds import generator

# The range in which squares of float32 numbers neither vanish nor overflow.
_LEAST_NORM, _MOST_NORM = 1e-10, 1e10

_NOISE_PIECE = 1 << 21  # numbers drawn from one stream


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The Gaussian mechanism on the sum of clipped updates (DP-FedAvg; McMahan et al., 2018).

    Each client's update is clipped, so one client moves the sum by at most the clip norm. All clients count alike. The
    noise is N(0, (noise_multiplier · clip norm)²) per coordinate. A private training then divides by the *expected*
    number of clients, which is fixed in advance; without noise, by the number of those who took part. The size of the
    population is assumed to be public.

    With ``quantile``, the clip norm tracks a quantile of the updates' norms (Andrew, Thakkar, McMahan and Ramaswamy,
    2021): after each round it is multiplied by exp(−rate · (b − quantile)), where b is the fraction of updates within
    it. A private training adds noise to b, and raises the noise on the updates so that the two releases together cost
    what the noise multiplier says.

    Args:
        clip_norm: Clip norm of the first round: longer updates are scaled down to this ℓ₂ norm. Infinite (the default)
            does not clip, and allows no noise.
        noise_multiplier: Standard deviation of the noise on the sum, over the clip norm; 0 adds none.
        quantile: The quantile that the clip norm tracks, in (0, 1); None keeps the same clip norm in every round.
        rate: Step size of the logarithm of the clip norm.
        private: Whether noise is added, which follows from the noise multiplier.

    Raises:
        InputError: If an argument is out of range, or if there is noise without clipping.

    Example:
        >>> mechanism = Mechanism(clip_norm=0.5, noise_multiplier=2.0)
        >>> noise = mechanism.noise(10_000, seed=0, clip_norm=0.5, expected_clients=100, round=0)
        >>> bool(0.97 < noise.std() < 1.03)
        True
        >>> adaptive, norms = Mechanism(clip_norm=1.0, quantile=0.5), np.full(10, 0.5)
        >>> round(adaptive.next_clip_norm(1.0, norms, 10, seed=0, round=0), 3)  # all updates are shorter: it shrinks
        0.905
    """

    clip_norm: float = math.inf
    noise_multiplier: float = 0.0
    quantile: float | None = None
    rate: float = 0.2
    private: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_nonnegative("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "private", self.noise_multiplier > 0)
        if self.clip_norm != math.inf:
            check_positive("the clip norm", self.clip_norm)
        elif self.private or self.quantile is not None:
            raise InputError(
                f"noise_multiplier is {self.noise_multiplier} and quantile {self.quantile}, but there is no clip norm "
                "to scale the noise by or to start from: set one"
            )
        if self.quantile is not None:
            check_probability("quantile", self.quantile)

    def noise_on_count(self, expected_clients: float) -> float:
        """The standard deviation of the noise on the number of updates within a clip norm that tracks a quantile."""
        # A twentieth of the cohort is what Andrew et al. recommend; twice z keeps the noise on updates below 1.04 z.
        return max(2 * self.noise_multiplier, expected_clients / 20)

    def update_noise(self, expected_clients: float) -> float:
        """The noise multiplier on the updates themselves, larger than ``noise_multiplier`` if counts are released too.

        One client moves the centered count by 1/2, so z⁻² = z_updates⁻² + (2 · count noise)⁻² (Andrew et al., 2021,
        Theorem 1).
        """
        if self.quantile is None:
            return self.noise_multiplier
        share = self.noise_multiplier / (2 * self.noise_on_count(expected_clients))
        return self.noise_multiplier / math.sqrt(1 - share**2)

    def noise(
        self, dim: int, seed: int, clip_norm: float, expected_clients: float, round: int, trial: int = 0
    ) -> Vector:
        """Draw the noise that is added to the sum of a round.

        Args:
            dim: Number of parameters.
            seed: Seed of the training.
            clip_norm: Clip norm of the round.
            expected_clients: Expected number of clients in the round.
            round: Number of the round, from 0.
            trial: 0 for the training's own round, otherwise the stream of a frozen round.

        Returns:
            Independent N(0, (z · clip_norm)²), shape (dim,), with z from `update_noise`.
        """
        scale, noise = np.float32(self.update_noise(expected_clients) * clip_norm), np.empty(dim, dtype=np.float32)
        # Every piece has its own stream, so no noise depends on how much was drawn before it.
        for start in range(0, dim, _NOISE_PIECE):
            stream = generator(seed, "noise", round, trial, start // _NOISE_PIECE)
            stream.standard_normal(dtype=np.float32, out=noise[start : start + _NOISE_PIECE])
        return np.multiply(noise, scale, out=noise)

    def next_clip_norm(self, clip_norm: float, norms: Floats, expected_clients: float, seed: int, round: int) -> float:
        """The clip norm of the next round, from the norms of this round's updates."""
        clients = expected_clients if self.private else len(norms)
        if self.quantile is None or not clients:
            return clip_norm
        # Centering by 1/2 per client halves the sensitivity of the count (Andrew et al., 2021, section 2.2).
        centered = float(np.sum(norms <= clip_norm) - len(norms) / 2)
        if self.private:
            drawn = float(generator(seed, "clip-count", round).standard_normal())
            centered += self.noise_on_count(expected_clients) * drawn
        share = centered / clients + 0.5
        following = clip_norm * math.exp(-self.rate * (share - self.quantile))
        return min(max(following, _LEAST_NORM), _MOST_NORM)


@dataclass(frozen=True, kw_only=True)
class BuggyMechanism(Mechanism):
    """A Gaussian mechanism with a bug; the claimed guarantee is that of the correct one.

    Args:
        share: Share of the noise that is really added.
        bare: Coordinates without noise.
        period: Number of rounds after which the noise repeats itself; never if None.

    Example:
        >>> mechanism = BuggyMechanism(clip_norm=1.0, noise_multiplier=2.0, bare=slice(3, 5))
        >>> (mechanism.noise(6, seed=0, clip_norm=1.0, expected_clients=10, round=0) == 0).tolist()
        [False, False, False, True, True, False]
    """

    share: float = 1.0
    bare: slice = field(default_factory=lambda: slice(0))
    period: int | None = None

    def noise(
        self, dim: int, seed: int, clip_norm: float, expected_clients: float, round: int, trial: int = 0
    ) -> Vector:
        """Draw the noise, with the bug."""
        repeated = round if self.period is None else round % self.period
        noise = super().noise(dim, seed, clip_norm, expected_clients, repeated, trial)
        noise *= self.share
        noise[self.bare] = 0
        return noise


def with_bug(mechanism: Mechanism, bug: str, model: LayerSpec) -> Mechanism:
    """Return the mechanism with a bug planted into it.

    Args:
        mechanism: A correct mechanism.
        bug: ``"noise:0.5"``, ``"bare:2.bias"`` or ``"repeat:3"``.
        model: The module, or the shapes of its tensors by name.

    Raises:
        InputError: If there is no such bug or tensor, or no noise to spoil.

    Example:
        >>> correct = Mechanism(clip_norm=1.0, noise_multiplier=2.0)
        >>> with_bug(correct, "bare:bias", {"weight": (3, 2), "bias": (3,)}).bare
        slice(6, 9, None)
    """
    if not mechanism.private:
        raise InputError(f"the bug {bug} needs noise: set noise_multiplier")
    planted: dict[str, Any] = parse_kind(
        bug,
        {
            "noise:": lambda share: {"share": check_positive("share", float(share))},
            "bare:": lambda tensor: {"bare": Layers.of(model).slice_of(tensor)},
            "repeat:": lambda rounds: {"period": check_count("rounds", int(rounds))},
        },
        "bug must be noise:SHARE (only this share of the noise), bare:TENSOR (no noise on one tensor) or repeat:N (the "
        f"same noise again after N rounds), got {bug!r}",
    )
    settings = {f.name: getattr(mechanism, f.name) for f in fields(mechanism) if f.init}
    return BuggyMechanism(**settings, **planted)
