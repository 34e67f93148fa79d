"""Scores are pluggable: everything that one needs is in its class."""

from typing import ClassVar

import numpy as np
import pytest

from coalmine import Claim, OneShot
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
    assert find_score(None, parse_view(view), view).name == names[0]
    for name in SCORES:
        if name in names:
            assert find_score(name, parse_view(view), view).name == name
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


def trained_with(score, *, noise, seed=0, view="updates", **terms):
    rng = np.random.default_rng(seed)
    audit = OneShot(300, rounds=3, canaries=40, view=view, score=score, participation="every-round", seed=seed, **terms)
    model = np.zeros(300)
    for t in range(3):
        planted = audit.plant(t, clip_norm=1.0)
        update = (planted.total + rng.normal(0, noise, 300)).astype(np.float32)
        model = model + update
        if view == "updates":
            audit.observe(t, update=update)
        elif t == 2:
            audit.observe(t, model=model.astype(np.float32))
    return audit


def signs(release, canary):
    return float(np.sign(release) @ canary)


def test_a_function_of_release_and_canary_is_a_score(tmp_path, run):
    audit = trained_with(signs, noise=0.2, layers=[200, 100])
    again = trained_with(signs, noise=0.2, layers=[200, 100])
    again.restore(audit.state())
    inserted, held_out = again.scores()
    assert inserted.mean() > held_out.mean() + 3 * held_out.std() / len(held_out) ** 0.5
    result = audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))
    assert (result.score_name, result.null) == ("signs", None)
    assert (result.bound.method, result.refuted) == ("one-run", True)
    result.save(tmp_path / "mine")
    code, out, _ = run("verify", tmp_path / "mine")
    assert (code, "The recomputed numbers match the stored ones" in out) == (1, True)  # a verdict says no


def test_a_function_scores_the_sum_of_releases_or_the_model():
    audit = trained_with(lambda release, canary: release @ canary, noise=1.0, view="final")
    plain = trained_with(None, noise=1.0, view="final")
    for own, cosines in zip(audit.scores(), plain.scores(), strict=True):
        assert np.corrcoef(own, cosines)[0, 1] > 0.9
    with pytest.raises(InputError, match="score that <lambda> returns must be a number, got nan"):
        trained_with(lambda release, canary: np.nan, noise=1.0)


def test_a_functions_scores_of_a_correct_training_are_refuted_no_more_often_than_stated():
    """The test has a level of 5%: more than 9 of 60 have a probability of 0.1%."""
    claim = Claim(noise_multiplier=3.0, delta=1e-5)
    refuted = sum(trained_with(signs, noise=3.0, seed=seed).result(claim=claim).refuted for seed in range(60))
    assert refuted <= 9


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
