"""The result of extreme scores, its warnings, and the rounds composed as a result of their own."""

import json
import math

import numpy as np
import pytest

from canary_models import PRESENT, result_of
from coalmine import accounting
from coalmine.accounting.sampling import EveryRound, Poisson
from coalmine.errors import InputError
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.results.result import AuditResult
from coalmine.results.units import ROUND, USER


def test_too_few_scores_for_any_bound_raise_a_warning():
    few, many = result_of([1.0, 0.0, 1.1, 0.1], PRESENT[:4]), result_of(PRESENT + np.linspace(0, 0.5, 100), PRESENT)
    assert (few.ceiling, len([w for w in few.warnings if "could exceed 0" in w])) == (0, 1)
    assert not any("could exceed 0" in warning for warning in many.warnings)


def test_perfectly_separated_scores_reach_the_ceilings():
    result = result_of(PRESENT + np.linspace(0, 0.1, 100), PRESENT, sampling=EveryRound())
    (period,) = result.periods
    assert period.accuracy == 1
    assert period.bound.epsilon == period.ceiling
    assert period.epsilon("best-threshold") == math.inf
    assert period.rate_ceiling == pytest.approx(math.log(50), abs=1e-4)
    assert result.epsilon_hat("best-threshold") == result.epsilon_hat("ceiling") < math.inf
    assert any("separate perfectly" in warning for warning in result.warnings)
    assert "cannot exceed" in result.summary
    assert result.details["rounds"][0]["estimates"][-1]["epsilon"] == "inf"


def test_reversed_constant_and_few_scores_have_results():
    backwards = result_of(-1.0 * PRESENT + np.linspace(0, 0.1, 100), PRESENT)
    assert backwards.bound.epsilon == backwards.periods[0].epsilon("gaussian-shift") == 0
    constant = result_of(np.zeros(100), PRESENT)
    assert constant.bound.epsilon == 0
    assert constant.periods[0].epsilon("gaussian-fit") is None
    pair = result_of([0.0, 1.0], [False, True])
    assert pair.bound.epsilon == 0
    assert "NaN" not in str(pair.to_dict())
    with pytest.raises(InputError, match="every round or in none"):
        result_of([0.0, 1.0], [True, True])


def test_all_estimates_have_the_same_delta():
    result = result_of(
        PRESENT + np.random.default_rng(0).normal(0, 0.5, 100), PRESENT, delta=1e-3, sampling=EveryRound()
    )
    assert {e.delta for e in (*result.estimates, *result.periods[0].estimates)} == {1e-3}
    assert result.theory.delta == 1e-3
    composed = accounting.compose_rounds(
        [(result.periods[0].epsilon("best-threshold"), 10)], sampling=EveryRound(), delta=1e-3
    )
    assert result.epsilon_hat("best-threshold", "exact") == composed
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=1, every=1)
    claim = accounting.theory(noise_multiplier=1, sampling=Poisson(0.1), rounds=1, delta=1e-5)
    with pytest.raises(InputError, match=r"delta = 0\.01"):
        audit.result(delta=0.01, theory=claim)


def test_a_result_read_from_disk_has_the_same_details_as_the_typed_one():
    result = result_of(PRESENT + np.random.default_rng(0).normal(0, 0.5, 100), sampling=EveryRound())
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    read = AuditResult.from_dict(content, scores=result.scores, arrays=result.arrays)
    assert (read.unit, read.method, read.side_names) == (ROUND, "canife", ("canary present", "canary absent"))
    assert read.details == result.details
    assert read.details["rounds"] == [period.to_dict() for period in result.periods]
    assert [c["epsilon"] for c in read.details["composed"]] == [c.epsilon for c in result.composed]
    assert read.verdict is result.verdict
    assert result.metrics["inserted"] + result.metrics["held_out"] == 100


def test_composed_rounds_are_a_result_about_a_user_and_never_a_bound():
    claim = accounting.theory(noise_multiplier=1, sampling=EveryRound(), rounds=10, delta=1e-5)
    scores = PRESENT + np.random.default_rng(0).normal(0, 1, 100)
    result = result_of(scores, sampling=EveryRound(), training_theory=claim)
    composed = result.composed_result()
    assert (composed.unit, composed.view, composed.scores) == (USER, "frozen, composed", None)
    (estimate,) = composed.estimates
    assert (estimate.method, estimate.valid, estimate.delta) == ("composed", False, 1e-5)
    assert result.best_guess.method == "gaussian-shift"
    assert estimate.epsilon == result.epsilon_hat("gaussian-shift") == composed.best_guess.epsilon
    assert composed.theory == claim
    assert composed.bound is None
    assert AuditResult.from_dict(json.loads(json.dumps(composed.to_dict()))).best_guess == estimate
    assert result_of(scores).composed_result() is None


def test_an_unknown_way_of_composing_lists_those_there_are():
    result = result_of(PRESENT + np.random.default_rng(0).normal(0, 1, 100), sampling=EveryRound())
    with pytest.raises(InputError, match=r"gaussian-fit/exact.*best-threshold/exact"):
        result.epsilon_hat("gaussian-fit")
