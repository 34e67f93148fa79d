"""What canaries send in a round, and the interface for making them. NumPy only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_positive
from coalmine.protocol import Contribution, Vector

# What is recorded about each design. ``norm`` is the norm of the update before clipping, in clip norms; ``not_finite``
# is the iteration in which the design met NaN or infinity, 0 if it stayed finite.
FACTS = ("health", "norm", "effective_sigma", "iterations", "not_finite")

# Relative to a canary's update: a smaller part outside the span of the others is rounding error.
_SPAN_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class CraftedUpdates:
    """What k canaries send from one model, and the direction along which each is scored.

    Args:
        updates: (k, d), none longer than the clip norm.
        directions: (k, d) unit vectors. The score of canary i is ⟨sum, directionᵢ⟩ / signalᵢ, so that the canary's
            presence shifts its score by 1.
        signals: (k,), ⟨updateᵢ, directionᵢ⟩.
        effective_sigma: (k,), expected standard deviation of the score without the canary; NaN where unknown.
    """

    updates: npt.NDArray[np.float32]
    directions: npt.NDArray[np.float32]
    signals: Floats
    effective_sigma: Floats

    def scores(self, total: Vector) -> Floats:
        """Return the score (k,) of each canary in a round's noisy sum."""
        dots = np.einsum("kd,d->k", self.directions, total, dtype=np.float64)
        return np.asarray(dots / self.signals)


@dataclass(frozen=True)
class InsertedUpdates(Contribution):
    """The updates of the canaries that take part in a round, as a sum or one by one."""

    crafted: CraftedUpdates | None = None
    members: tuple[int, ...] = ()

    def one_by_one(self, length: float = 1.0) -> Iterator[tuple[int, Vector]]:
        """Yield each update, so many times as long, with its canary's number."""
        assert self.crafted is not None
        return ((i, self.crafted.updates[i] * np.float32(length)) for i in self.members)


class CanaryMaker(Protocol):
    """An adversary: makes canaries for the model it sees, and knows what their clients would send from it.

    The last three methods are for canaries that are samples and change along the training; others inherit them.
    """

    count: int

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """Make new canaries for ``model`` (None: the initial one) and return their FACTS, (count, facts)."""

    def crafted(self, model: Vector | None, *, clip_norm: float) -> CraftedUpdates:
        """Return what the canaries of the last design send from ``model``."""

    def described(self) -> list[dict[str, Any]]:
        """Describe the last canaries, ready for JSON: kind (numbers, text), shape, range, target, text."""
        return []

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return what a checkpoint must keep."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        return


class GivenUpdates(CanaryMaker):
    """Canaries that are update vectors rather than samples.

    Each is scaled to the clip norm and scored along itself. A vector that is orthogonal to everything clients send is
    the perfect canary: its scores are N(0, σ²) and N(1, σ²), those of the Gaussian mechanism itself.

    Args:
        vectors: (count, parameters), finite and nonzero.

    Raises:
        InputError: If a vector is zero or not finite.

    Example:
        >>> canaries = GivenUpdates([[3.0, 0.0, 4.0]])
        >>> canaries.crafted(None, clip_norm=1.0).updates.round(3).tolist()
        [[0.6000000238418579, 0.0, 0.800000011920929]]
    """

    def __init__(self, vectors: npt.ArrayLike) -> None:
        rows = np.atleast_2d(np.asarray(vectors, dtype=np.float64))
        lengths = np.linalg.norm(rows, axis=1)
        if rows.ndim != 2 or not len(rows) or not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise InputError(
                f"vectors must be finite, not zero, and of shape (count, parameters), got shape {rows.shape} with "
                f"norms {lengths}"
            )
        self._units = rows / lengths[:, None]
        self.count = len(rows)

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """Return the facts; there is nothing to design."""
        return np.tile([math.nan, 1.0, math.nan, 0.0, 0.0], (self.count, 1))

    def crafted(self, model: Vector | None, *, clip_norm: float) -> CraftedUpdates:
        """Return the vectors at the clip norm, a rounding error shorter."""
        check_positive("the clip norm", clip_norm)
        # Slightly shorter, so that float32 rounding never exceeds the clip norm.
        updates = (self._units * clip_norm * (1 - 1e-6)).astype(np.float32)
        return orthogonalize_directions(updates, self._units, np.full(self.count, math.nan))

    def __repr__(self) -> str:
        return f"GivenUpdates({self._units.shape}, {hashlib.blake2b(self._units.tobytes(), digest_size=6).hexdigest()})"


def orthogonalize_directions(
    updates: npt.NDArray[np.float32], directions: Floats, effective_sigma: Floats
) -> CraftedUpdates:
    """Make each direction orthogonal to the other canaries' updates, so that canaries do not shift others' scores.

    Args:
        updates: (k, d), what the canaries send.
        directions: (k, d), the direction of each canary by itself.
        effective_sigma: (k,), standard deviation of each score along that direction. It grows with the signal lost.

    Raises:
        InputError: If a canary's update lies in the span of the others.
    """
    rows, orthogonal = updates.astype(np.float64), np.array(directions, dtype=np.float64)
    sigma = np.array(effective_sigma, dtype=np.float64)
    for i in range(len(rows)):
        before = float(orthogonal[i] @ rows[i])
        others = np.delete(rows, i, axis=0)
        if len(others):
            basis, _ = np.linalg.qr(others.T)
            # Project twice: the second pass removes the rounding error of the first.
            orthogonal[i] -= basis @ (basis.T @ orthogonal[i])
            orthogonal[i] -= basis @ (basis.T @ orthogonal[i])
        size, signal = float(np.linalg.norm(orthogonal[i])), float(orthogonal[i] @ rows[i])
        if size <= _SPAN_TOLERANCE or signal <= _SPAN_TOLERANCE * before:
            raise InputError(
                f"canary {i} of {len(rows)} lies in the span of the others' updates, so its score cannot be separated "
                "from theirs: use fewer canaries"
            )
        orthogonal[i] /= size
        sigma[i] *= before / (signal / size)
    vectors = orthogonal.astype(np.float32)
    signals = np.einsum("kd,kd->k", vectors, rows)
    return CraftedUpdates(updates=updates, directions=vectors, signals=signals, effective_sigma=sigma)
