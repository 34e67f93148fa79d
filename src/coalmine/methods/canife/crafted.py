"""What canaries send in a round, and the directions that a round's sum is looked at along. NumPy only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.protocol import Vector

FACTS = ("health", "norm", "effective_sigma", "iterations", "not_finite")
"""What is kept of each design. ``norm`` is the update's before clipping over the clip norm; ``not_finite`` is the
iteration in which the design met NaN, 0 where none did."""

# Of a canary's update, so small a share outside the others' span is rounding.
_SPANNED = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Crafted:
    """What k canaries send from one model: ``updates`` (k, d), none longer than the clip norm.

    ``directions`` (k, d) are unit vectors; the score of canary i is ⟨sum, directionᵢ⟩ / ``signals``ᵢ, which its own
    update moves by 1. ``effective_sigma`` (k,) is the standard deviation that such a score is expected to have without
    it; NaN where nothing is known.
    """

    updates: npt.NDArray[np.float32]
    directions: npt.NDArray[np.float32]
    signals: Floats
    effective_sigma: Floats

    def total(self, present: npt.NDArray[np.bool_]) -> Vector:
        """The sum of the updates of those present."""
        return np.asarray(self.updates[present].sum(axis=0, dtype=np.float64).astype(np.float32))

    def scores(self, total: Vector) -> Floats:
        """(k,): the score of each canary in a round's (noisy) sum."""
        dots = np.einsum("kd,d->k", self.directions, total, dtype=np.float64)
        return np.asarray(dots / self.signals)


class CanaryMaker(Protocol):
    """An adversary: makes canaries for the model it sees, and knows what their clients would send from it."""

    count: int

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """Make new canaries for ``model`` (None: the first one); returns FACTS of each, (count, facts)."""

    def crafted(self, model: Vector | None, *, clip_norm: float) -> Crafted:
        """What the canaries as last designed send from ``model``."""

    def described(self) -> list[dict[str, Any]]:
        """The canaries as last designed, JSON-ready: kind (numbers, text), shape, range, target, text."""

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """What a checkpoint must keep."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""


class GivenUpdates:
    """Canaries that are update vectors (k, d), not samples: as long as the clip norm, scored along themselves.

    One that is orthogonal to whatever clients send is the perfect canary: its scores are N(0, σ²) and N(1, σ²), those
    of the Gaussian mechanism itself.
    """

    def __init__(self, vectors: npt.ArrayLike) -> None:
        rows = np.atleast_2d(np.asarray(vectors, dtype=np.float64))
        lengths = np.linalg.norm(rows, axis=1)
        if rows.ndim != 2 or not len(rows) or not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise InputError("given updates must be finite vectors (count, parameters) that are not zero")
        self._units = rows / lengths[:, None]
        self.count = len(rows)

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """They are what they are."""
        return np.tile([math.nan, 1.0, math.nan, 0.0, 0.0], (self.count, 1))

    def crafted(self, model: Vector | None, *, clip_norm: float) -> Crafted:
        """Each as long as the clip norm (but for a rounding, by which it is shorter)."""
        check_clipped(clip_norm)
        updates = (self._units * clip_norm * (1 - 1e-6)).astype(np.float32)
        return looked_at_apart(updates, self._units, np.full(self.count, math.nan))

    def described(self) -> list[dict[str, Any]]:
        """No samples: there is nothing to show."""
        return []

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Nothing changes."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Nothing changes."""

    def __repr__(self) -> str:
        return f"GivenUpdates({self._units.shape}, {hashlib.blake2b(self._units.tobytes(), digest_size=6).hexdigest()})"


def looked_at_apart(updates: npt.NDArray[np.float32], directions: Floats, effective_sigma: Floats) -> Crafted:
    """Keep canaries out of one another's way: each direction less its components along the others' updates."""
    rows, found = updates.astype(np.float64), np.array(directions, dtype=np.float64)
    sigma = np.array(effective_sigma, dtype=np.float64)
    for i in range(len(rows)):
        before = float(found[i] @ rows[i])
        others = np.delete(rows, i, axis=0)
        if len(others):
            basis, _ = np.linalg.qr(others.T)
            found[i] -= basis @ (basis.T @ found[i])
            found[i] -= basis @ (basis.T @ found[i])  # once more for what rounding left
        size, signal = float(np.linalg.norm(found[i])), float(found[i] @ rows[i])
        if size <= _SPANNED or signal <= _SPANNED * before:
            raise InputError(
                f"canary {i} of {len(rows)} cannot be told from the others: their updates span its own; take fewer"
            )
        found[i] /= size
        sigma[i] *= before / (signal / size)
    vectors = found.astype(np.float32)
    signals = np.einsum("kd,kd->k", vectors, rows)
    return Crafted(updates=updates, directions=vectors, signals=signals, effective_sigma=sigma)


def check_clipped(clip_norm: float) -> None:
    """Refuse rounds in which nothing is clipped."""
    if not (clip_norm > 0 and math.isfinite(clip_norm)):
        raise InputError(
            f"CANIFE's canaries are as long as the clip norm, which is {clip_norm}: give the training a clip norm"
        )
