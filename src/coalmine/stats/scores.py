"""Canary scores, sorted once, and the exact counts and rates derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coalmine.arrays import Floats, Ints, finite_list
from coalmine.errors import InputError
from coalmine.stats.nulls import Null
from coalmine.stats.rates import Counts

FEW = 80
"""Fewer scores than this are too few for estimates and for tests of normality.

About 100: fair coins that insert 100 canaries on average insert fewer than 80 in two audits of a thousand.
"""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of members and of non-members, or of members and a known null; higher means more likely a member.

    The arrays are copied, sorted in ascending order and read-only.

    Args:
        members: Scores of inserted canaries, shape (m,).
        nonmembers: Scores of held-out canaries, shape (n,). Omit them if ``null`` is given.
        null: Known distribution of a held-out canary's score, instead of ``nonmembers``.

    Raises:
        InputError: If a score is not finite, a side is empty, or ``nonmembers`` and ``null`` are both given or both
            missing.

    Example:
        >>> scores = Scores([3.0, 1.0, 2.0], [0.0, 1.5])
        >>> scores.counts(threshold=1.2)
        Counts(tp=2, fn=1, fp=1, tn=1)
        >>> round(scores.auroc, 3)
        0.917
    """

    members: Floats
    nonmembers: Floats | None = None
    null: Null | None = None

    def __post_init__(self) -> None:
        if (self.nonmembers is None) == (self.null is None):
            raise InputError("scores need either non-members or a null distribution, and not both")
        if self.null is not None and not hasattr(self.null, "log_sf"):
            raise InputError(f"null must be a distribution such as CosineNull(1000) or NormalNull(), got {self.null!r}")
        for name in ("members", "nonmembers"):
            if getattr(self, name) is not None:
                ascending = np.sort(finite_list(name, getattr(self, name)))
                ascending.flags.writeable = False
                object.__setattr__(self, name, ascending)

    @property
    def observed(self) -> Floats:
        """Scores of the non-members; raises `InputError` if a known null replaces them."""
        if self.nonmembers is None:
            raise InputError("this needs observed non-members, but the scores have a known null distribution")
        return self.nonmembers

    @property
    def few(self) -> bool:
        """Whether a side has fewer than `FEW` scores.

        An estimate from so few stands for nothing: tests of normality have little power, and ε is far out in the tail.
        """
        return self.members.size < FEW or (self.nonmembers is not None and self.nonmembers.size < FEW)

    def counts(self, threshold: float) -> Counts:
        """Return the confusion matrix of guessing "member" for every score ≥ threshold."""
        tp = self.members.size - int(np.searchsorted(self.members, threshold, side="left"))
        fp = self.observed.size - int(np.searchsorted(self.observed, threshold, side="left"))
        return Counts(tp=tp, fn=self.members.size - tp, fp=fp, tn=self.observed.size - fp)

    @cached_property
    def all_counts(self) -> tuple[Floats, Ints, Ints]:
        """Every distinct threshold from the highest down, with TP and FP of "score ≥ threshold".

        Equal scores share a threshold, so no count splits a tie.
        """
        pooled = np.concatenate([self.members, self.observed])
        # Two sorted runs: a stable sort merges them in linear time.
        order = np.argsort(pooled, kind="stable")[::-1]
        pooled, is_member = pooled[order], order < self.members.size
        last_of_tie = np.flatnonzero(np.append(pooled[1:] != pooled[:-1], True))
        tp = np.cumsum(is_member, dtype=np.int64)[last_of_tie]
        return pooled[last_of_tie], tp, last_of_tie + 1 - tp

    @cached_property
    def roc(self) -> tuple[Floats, Floats]:
        """(FPR, TPR) at the corners of the ROC curve's convex hull, from (0, 0) to (1, 1).

        The hull is what an attacker reaches by randomizing between two thresholds.
        """
        _, tp, fp = self.all_counts
        tp, fp = np.append(0, tp), np.append(0, fp)
        corners = np.arange(tp.size)
        # Drop every point at which the curve does not turn right, for all of them at once, until none is left.
        while True:
            dx, dy = np.diff(fp[corners]), np.diff(tp[corners])
            turns = dy[:-1] * dx[1:] > dy[1:] * dx[:-1]
            if turns.all():
                return fp[corners] / self.observed.size, tp[corners] / self.members.size
            corners = corners[np.concatenate([[True], turns, [True]])]

    @property
    def auroc(self) -> float:
        """Area under the convex hull of the ROC curve."""
        fpr, tpr = self.roc
        return float(np.trapezoid(tpr, fpr))

    @property
    def max_accuracy(self) -> float:
        """Highest share of right guesses over all thresholds, among members and non-members together."""
        _, tp, fp = self.all_counts
        right = np.append(0, tp - fp).max() + self.observed.size
        return float(right / (self.members.size + self.observed.size))
