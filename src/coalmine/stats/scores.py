"""Canary scores: sorted once, counted exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Floats, Ints, finite_list
from coalmine.errors import InputError
from coalmine.stats.nulls import Null
from coalmine.stats.rates import Counts


def _sorted(name: str, values: ArrayLike) -> Floats:
    scores = np.sort(finite_list(name, values))
    scores.flags.writeable = False
    return scores


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of members and of non-members (higher = more likely a member).

    Non-members are either observed, or replaced by the closed-form distribution ``null`` of their scores. The arrays
    are kept sorted in ascending order.
    """

    members: Floats
    nonmembers: Floats | None = None
    null: Null | None = None

    def __post_init__(self) -> None:
        if (self.nonmembers is None) == (self.null is None):
            raise InputError("scores need either non-members or a null distribution, and not both")
        if self.null is not None and not hasattr(self.null, "log_sf"):
            raise InputError(f"null must be a distribution such as CosineNull(1000) or NormalNull(), got {self.null!r}")
        object.__setattr__(self, "members", _sorted("members", self.members))
        if self.nonmembers is not None:
            object.__setattr__(self, "nonmembers", _sorted("nonmembers", self.nonmembers))

    @property
    def observed(self) -> Floats:
        """The observed non-members; refused where there is a closed-form null instead."""
        if self.nonmembers is None:
            raise InputError("this needs observed non-members, but the scores have a closed-form null")
        return self.nonmembers

    def counts(self, threshold: float) -> Counts:
        """What the guess "member if score ≥ threshold" gets right and wrong."""
        tp = self.members.size - int(np.searchsorted(self.members, threshold, side="left"))
        fp = self.observed.size - int(np.searchsorted(self.observed, threshold, side="left"))
        return Counts(tp=tp, fn=self.members.size - tp, fp=fp, tn=self.observed.size - fp)

    @cached_property
    def all_counts(self) -> tuple[Floats, Ints, Ints]:
        """Every distinct threshold from the highest down, with TP and FP for "score ≥ threshold".

        Equal scores share a threshold, so no count ever splits a tie.
        """
        pooled = np.concatenate([self.members, self.observed])
        # Two sorted runs: a stable sort merges them in linear time.
        order = np.argsort(pooled, kind="stable")[::-1]
        pooled = pooled[order]
        tp = np.cumsum(order < self.members.size, dtype=np.int64)
        last_of_tie = np.flatnonzero(np.append(pooled[1:] != pooled[:-1], True))
        tp = tp[last_of_tie]
        return pooled[last_of_tie], tp, last_of_tie + 1 - tp

    @cached_property
    def hull_counts(self) -> tuple[Floats, Ints, Ints]:
        """Thresholds, TP and FP at the corners of the ROC curve's upper hull, from no guess at all (+∞) to all.

        The hull is what guesses that randomize between two thresholds can reach.
        """
        thresholds, tp, fp = self.all_counts
        thresholds, tp, fp = np.append(np.inf, thresholds), np.append(0, tp), np.append(0, fp)
        while True:
            dx, dy = np.diff(fp), np.diff(tp)
            keep = np.concatenate([[True], dy[:-1] * dx[1:] > dy[1:] * dx[:-1], [True]])
            if keep.all():
                return thresholds, tp, fp
            thresholds, tp, fp = thresholds[keep], tp[keep], fp[keep]

    @property
    def roc(self) -> tuple[Floats, Floats]:
        """(FPR, TPR) at the corners of the ROC curve's upper hull, from (0, 0) to (1, 1)."""
        _, tp, fp = self.hull_counts
        return fp / self.observed.size, tp / self.members.size

    @property
    def auroc(self) -> float:
        """Area under the ROC curve's hull."""
        fpr, tpr = self.roc
        return float(np.trapezoid(tpr, fpr))

    def tpr_at(self, fpr: ArrayLike) -> Floats:
        """The highest TPR at a given FPR, on the ROC curve's hull."""
        corners = self.roc
        # At FPR 0 the hull may rise at once: its last corner there counts.
        first = np.searchsorted(corners[0], 0.0, side="right") - 1
        return np.asarray(np.interp(np.asarray(fpr, dtype=float), corners[0][first:], corners[1][first:]))

    @property
    def max_accuracy(self) -> float:
        """The best share of right guesses over all thresholds, members and non-members weighted by their numbers."""
        _, tp, fp = self.all_counts
        right = np.append(0, tp - fp).max() + self.observed.size
        return float(right / (self.members.size + self.observed.size))
