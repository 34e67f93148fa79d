"""Scores: sorted once, counted exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special

from coalmine.errors import InputError
from coalmine.stats import NormalNull, Scores
from coalmine.stats.scores import epsilon_from_counts

tied = hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 5))


@given(tied, tied)
def test_counts_at_every_threshold_are_those_of_counting(members, nonmembers):
    scores = Scores(members, nonmembers)
    thresholds, tp, fp = scores.all_counts
    assert sorted(set(members) | set(nonmembers), reverse=True) == list(thresholds)
    for t, a, b in zip(thresholds, tp, fp, strict=True):
        assert (a, b) == (np.sum(members >= t), np.sum(nonmembers >= t))
        assert (scores.counts(t).tp, scores.counts(t).fp) == (a, b)


@given(tied, tied)
def test_the_roc_hull_lies_above_every_threshold(members, nonmembers):
    scores = Scores(members, nonmembers)
    fpr, tpr = scores.roc
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    _, tp, fp = scores.all_counts
    assert np.all(np.interp(fp / nonmembers.size, fpr, tpr) >= tp / members.size - 1e-12)


@given(tied, tied)
def test_the_roc_hull_has_the_corners_of_a_search_over_all_pairs(members, nonmembers):
    _, tp, fp = Scores(members, nonmembers).all_counts
    points = [(0, 0), *zip(fp.tolist(), tp.tolist(), strict=True)]

    def is_corner(point):
        """Whether no chord of two other points lies on or above it."""
        x, y = point
        left, right = (
            [q for q in points if q != point and keep(q[0])] for keep in (lambda a: a <= x, lambda a: a >= x)
        )
        return not any(
            (b[0] - a[0]) * (y - a[1]) <= (b[1] - a[1]) * (x - a[0])
            for a in left
            for b in right
            if a[0] < b[0] or (a[1] - y) * (b[1] - y) < 0
        )

    ends = (points[0], points[-1])
    fpr, tpr = Scores(members, nonmembers).roc
    hull_fp, hull_tp = np.round(fpr * nonmembers.size).astype(int), np.round(tpr * members.size).astype(int)
    corners = list(zip(hull_fp.tolist(), hull_tp.tolist(), strict=True))
    assert corners == [point for point in points if point in ends or is_corner(point)]


def test_a_deterministic_shift_has_its_known_metrics():
    x = special.ndtri((np.arange(10**4) + 0.5) / 10**4)
    scores = Scores(x + 1, x)
    assert scores.auroc == pytest.approx(0.76034318, abs=5e-9)
    assert scores.max_accuracy == pytest.approx(0.6915)
    assert epsilon_from_counts(scores.counts(1.0), delta=1e-6).lower == pytest.approx(1.0826592, abs=5e-8)


def test_the_input_is_neither_changed_nor_shared():
    members = np.array([3.0, 1.0, 2.0])
    scores = Scores(members, [0.0])
    members[0] = 99
    assert list(scores.members) == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        scores.members[0] = 5


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "members .* got none"),
        ([1.0, float("nan")], "members .* got nan"),
        ([1.0, float("inf")], "got inf"),
        ([[1.0]], "shape"),
        (["a"], "numbers"),
    ],
)
def test_bad_scores_raise(members, message):
    with pytest.raises(InputError, match=message):
        Scores(members, [0.0])


def test_scores_need_nonmembers_or_a_null_but_not_both():
    with pytest.raises(InputError, match="either"):
        Scores([1.0])
    with pytest.raises(InputError, match="not both"):
        Scores([1.0], [0.0], NormalNull())
    with pytest.raises(InputError, match="observed"):
        Scores([1.0], null=NormalNull()).counts(0.0)


def test_a_useless_score_has_area_one_half():
    assert Scores(np.ones(5), np.ones(7)).auroc == 0.5
