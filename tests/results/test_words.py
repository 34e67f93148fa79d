"""What figures mean in words, and which of them stand in the first line."""

import numpy as np
import pytest

from coalmine.methods.estimates import canary_estimates
from coalmine.results import words
from coalmine.results.groups import groups
from coalmine.results.result import AuditResult
from coalmine.results.summary import line
from coalmine.stats import Estimate, NormalNull


def bound(method, epsilon):
    return Estimate.bound(method, epsilon, delta=1e-5, confidence=0.95, assumes="all is well")


def test_a_bound_of_0_beside_a_larger_valid_one_says_which_was_fixed_in_advance():
    said = words.meaning([bound("exact-null", 0.0), bound("one-run", 0.31), bound("split", 0.1)])
    assert said.startswith("No leak is shown")
    assert "fixed in advance: exact-null. By itself the 0.31 of one-run is a valid bound too" in said
    assert "fixed in advance" not in words.meaning([bound("exact-null", 0.0), bound("one-run", 0.0)])
    assert "fixed in advance" not in words.meaning([bound("exact-null", 0.2), bound("one-run", 0.31)])


@pytest.mark.parametrize(
    ("epsilon", "said"), [(1.0, "at least 2.72 times"), (8.0, "at least 2,980 times"), (900.0, "more than a million")]
)
def test_odds_are_numbers_that_people_can_picture(epsilon, said):
    assert said in words.meaning([bound("split", epsilon)])


def result(members):
    rng = np.random.default_rng(0)
    held_out = rng.normal(0, 1, 100)
    estimates, scores, _ = canary_estimates(
        members, held_out, null=NormalNull(), signs=False, design="fixed", delta=1e-5, confidence=0.95
    )
    return AuditResult(audit="one-shot", view="final", seed=0, estimates=estimates, scores=scores)


def test_an_estimate_whose_check_failed_is_marked_and_not_in_the_first_line():
    rng = np.random.default_rng(1)
    skewed, normal = result(3 + rng.exponential(2, 100)), result(rng.normal(2, 1, 100))
    assert line(normal.to_dict()).estimate_method == "gaussian-shift"
    assert line(skewed.to_dict()).estimate_method not in ("gaussian-shift", "gaussian-fit")
    assert words.kind(skewed["gaussian-shift"]) == "estimate, doubtful"
    assert words.kind(skewed["best-threshold"]) == words.kind(normal["gaussian-shift"]) == "estimate"
    ((row,),) = [group.rows for group in groups([skewed.to_dict()])]
    assert row.estimate == skewed["best-threshold"].epsilon


def test_composed_rounds_are_estimated_as_the_single_round_is():
    rng = np.random.default_rng(2)
    found = result(rng.normal(2, 1, 100)).to_dict() | {"audit": "canife"}
    ways = [
        {"method": m, "inversion": "exact", "epsilon": e} for m, e in (("best-threshold", 3), ("gaussian-shift", 5))
    ]
    training, one_round = groups([found | {"composed": ways}])
    assert (training.rows[0].estimate, training.rows[0].estimate_method) == (5, "composed from gaussian-shift")
    assert one_round.rows[0].estimate_method == "gaussian-shift"
