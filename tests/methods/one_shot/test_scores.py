"""Scores are pluggable: everything that one needs is in its class."""

from typing import ClassVar

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.errors import InputError
from coalmine.methods.one_shot.scores import SCORES, Score, find_score, parse_view


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
    assert find_score(None, parse_view(view), view) == names[0]
    for name in SCORES:
        if name in names:
            assert find_score(name, parse_view(view), view) == name
        else:
            with pytest.raises(InputError, match=f"{name} does not support the view {view}"):
                find_score(name, parse_view(view), view)


class Last(Score):
    """Cosine with the last release."""

    name = "last"
    views = "several releases"
    arrays: ClassVar = {"last": 0.0}

    def process(self, observation):
        self.last = observation.dots / observation.lengths

    def values(self):
        return self.last, self.cosine


def test_a_new_score_needs_nothing_but_its_class(monkeypatch):
    monkeypatch.setitem(SCORES, "last", Last)
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((3, 300)).astype(np.float32)
    audit, resumed = (
        OneShot(
            300, rounds=3, canaries=20, view="updates", score="last", participation="every-round", family="gaussian"
        )
        for _ in range(2)
    )
    for t, update in enumerate(updates):
        audit.plant(t, clip_norm=1.0)
        audit.observe(t, update=update, divisor=1.0)
    resumed.restore(audit.state())
    cosines = np.array([canary @ updates[-1] for canary in audit._canaries.each(range(40))]) / np.linalg.norm(
        updates[-1]
    )
    np.testing.assert_allclose(resumed.scores()[0], cosines[audit.members], atol=1e-6)
    result = resumed.result()
    assert (result.score_name, result.null) == ("last", "cosine:300")
    assert result.estimates[0].method == "exact-null"


@pytest.mark.parametrize(("dim", "family"), [(100, "orthogonal"), (5_000, "hadamard"), (100_000, "hadamard")])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.1])
def test_a_release_of_canaries_alone_shows_what_its_precision_can(dim, family, noise):
    """Of m canaries, remainders² ≥ 1e-6: tan² of a cosine ≤ 1e6/m, and ε is near 1e6 · dim/(2m)."""
    audit = OneShot(dim, rounds=1, canaries=10, view="updates", participation="every-round", family=family)
    planted = audit.plant(0, clip_norm=1.0)
    total = planted.total + np.random.default_rng(0).normal(0, noise / dim**0.5, dim)
    audit.observe(0, update=total.astype(np.float32), divisor=1.0)
    result = audit.result(delta=1e-5)
    members, limit = len(planted.members), 1e6 * dim / 2
    said = any("no noise detected" in warning for warning in result.warnings)
    assert said == (noise < 1e-3)
    bound = result.estimates[0].lower
    assert bound <= limit / members
    assert bound >= 0.1 * limit / members if said else bound < 1e-2 * limit
