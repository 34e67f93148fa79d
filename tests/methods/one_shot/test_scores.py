"""Scores are pluggable: everything that one needs is in its class."""

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.methods.one_shot.scores import SCORES, Max, Score, find_score
from coalmine.methods.one_shot.views import parse_view
from coalmine.protocol import Release


@pytest.mark.parametrize(
    ("view", "names"),
    [
        ("final", ["cosine"]),
        ("final-change", ["cosine"]),
        ("updates", ["likelihood-ratio", "max", "sum"]),
        ("every:2", ["max", "sum"]),
        ("rounds:1", ["max", "sum"]),
    ],
)
def test_a_view_has_its_scores_the_default_first(view, names):
    assert [name for name, score in SCORES.items() if score.fits(parse_view(view))] == names
    assert find_score(None, parse_view(view), view) == names[0]


class Last(Score):
    """Cosine with the last release."""

    name = "last"
    arrays = ("last",)

    def __init__(self, history):
        super().__init__(history)
        self.last = np.zeros(history.count)

    @classmethod
    def fits(cls, view):
        return Max.fits(view)

    def add(self, observation):
        self.last = observation.cosines

    def values(self):
        return self.last

    def null(self):
        return self.history.cosine


def test_a_new_score_needs_nothing_but_its_class(monkeypatch):
    monkeypatch.setitem(SCORES, "last", Last)
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((3, 300)).astype(np.float32)
    audit, resumed = (
        OneShot(
            dim=300, rounds=3, canaries=20, view="updates", score="last", participation="every-round", family="gaussian"
        )
        for _ in range(2)
    )
    for t, update in enumerate(updates):
        audit.plant(t, clip_norm=1.0)
        audit.observe(Release(t, "update", update, divisor=1.0))
    resumed.restore(audit.state())
    cosines = np.array([audit._canaries.updates.canary(i) @ updates[-1] for i in range(40)]) / np.linalg.norm(
        updates[-1]
    )
    np.testing.assert_allclose(resumed.scores()[0], cosines[audit.members], atol=1e-6)
    result = resumed.result()
    assert (result.score_name, result.null) == ("last", "cosine:300")
    assert result.estimates[0].method == "exact-null"
