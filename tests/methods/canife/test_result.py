"""The result of extreme scores, its warnings, and the rounds composed as a result of their own."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from canary_models import PRESENT, result_of
from coalmine import claims
from coalmine.claims import EveryRound, Poisson, compose_rounds
from coalmine.claims.claim import noise_from_round_epsilon
from coalmine.errors import InputError
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.result import strongest_period
from coalmine.results.result import Result
from coalmine.results.verdict import ROUND, USER
from coalmine.stats import Scores, epsilon_gdp, gaussian_shift


def epsilon_hat(result, method, inversion="exact"):
    """Return the ε of a training, composed by one estimator."""
    return next(c.epsilon for c in result.composed if (c.method, c.inversion) == (method, inversion))


def test_too_few_scores_for_any_bound_raise_a_warning():
    few, many = result_of([1.0, 0.0, 1.1, 0.1], PRESENT[:4]), result_of(PRESENT + np.linspace(0, 0.5, 100), PRESENT)
    assert (few.ceiling, len([w for w in few.warnings if "could exceed 0" in w])) == (0, 1)
    assert not any("could exceed 0" in warning for warning in many.warnings)


def test_perfectly_separated_scores_reach_the_ceilings():
    result = result_of(PRESENT + np.linspace(0, 0.1, 100), PRESENT, sampling=EveryRound())
    (period,) = result.periods
    assert period.scores.max_accuracy == 1
    assert next(e.epsilon for e in period.estimates if e.valid) == period.ceiling
    assert period.epsilon("best-threshold") == math.inf
    assert period.rate_ceiling == pytest.approx(math.log(50), abs=1e-4)
    assert epsilon_hat(result, "best-threshold") == epsilon_hat(result, "ceiling") < math.inf
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
    assert result.claim.delta == 1e-3
    composed = claims.compose_rounds(
        [(result.periods[0].epsilon("best-threshold"), 10)], sampling=EveryRound(), delta=1e-3
    )
    assert epsilon_hat(result, "best-threshold", "exact") == composed
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=1, every=1)
    claim = claims.Claim(noise_multiplier=1, sampling=Poisson(0.1), rounds=1, delta=1e-5)
    with pytest.raises(InputError, match=r"delta = 0\.01"):
        audit.result(delta=0.01, claim=claim)


def test_a_result_read_from_disk_has_the_same_details_as_the_typed_one():
    result = result_of(PRESENT + np.random.default_rng(0).normal(0, 0.5, 100), sampling=EveryRound())
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    read = replace(Result.from_dict(content), scores=result.scores, arrays=result.arrays)
    assert (read.unit, read.method, read.side_names) == (ROUND, "canife", ("canary present", "canary absent"))
    assert read.details == result.details
    assert read.details["rounds"] == [period.to_dict() for period in result.periods]
    assert [c["epsilon"] for c in read.details["composed"]] == [c.epsilon for c in result.composed]
    assert read.verdict is result.verdict
    assert result.metrics["inserted"] + result.metrics["held_out"] == 100


def test_composed_rounds_are_a_result_about_a_user_and_never_a_bound():
    claim = claims.Claim(noise_multiplier=1, sampling=EveryRound(), rounds=10, delta=1e-5)
    present = np.tile(PRESENT, 2)
    scores = present + np.random.default_rng(0).normal(0, 1, 200)
    result = result_of(scores, present, sampling=EveryRound(), training_claim=claim)
    composed = result.composed_result()
    assert (composed.unit, composed.view, composed.scores) == (USER, "frozen, composed", None)
    (estimate,) = composed.estimates
    assert (estimate.method, estimate.valid, estimate.delta) == ("composed", False, 1e-5)
    assert result.best_guess.method == "gaussian-shift"
    assert estimate.epsilon == epsilon_hat(result, "gaussian-shift") == composed.best_guess.epsilon
    assert composed.claim == claim
    assert composed.bound is None
    assert Result.from_dict(json.loads(json.dumps(composed.to_dict()))).best_guess == estimate
    assert result_of(scores, present).composed_result() is None


def test_a_composed_estimate_has_the_composed_ends_of_its_rounds_as_interval():
    present = np.tile(PRESENT, 2)
    scores = present + np.random.default_rng(1).normal(0, 1, 200)
    result = result_of(scores, present, sampling=EveryRound())
    shift = result.periods[0].scores
    ends = gaussian_shift(shift, delta=1e-5).lower, gaussian_shift(shift, delta=1e-5).upper
    noises = [noise_from_round_epsilon(epsilon, 1e-5) for epsilon in ends]
    (estimate,) = result.composed_result().estimates
    # Without sampling, ten rounds of μ-GDP are √10 μ-GDP.
    expected = [float(epsilon_gdp(math.sqrt(10) / noise, 1e-5)) for noise in noises]
    assert (estimate.lower, estimate.upper) == pytest.approx(expected, rel=1e-6)
    assert estimate.lower < estimate.epsilon < estimate.upper
    assert (estimate.confidence, estimate.valid) == (0.95, False)
    assert result.details["composed"][2]["lower"] == estimate.lower


def test_half_of_the_noise_is_refuted_whether_one_period_or_several_were_audited():
    # The power is above 99% in either case, and a true claim is refuted in at most 5% of audits.
    for rounds, share, verdict in ((1, 0.5, "refuted"), (3, 0.5, "refuted"), (3, 1.0, "not refuted")):
        audit = observed(Canife(canaries=GivenUpdates(np.eye(1, 8)), rounds=rounds, every=1), noise=0.6 * share)
        result = audit.result(claim=claims.Claim(noise_multiplier=0.6, delta=1e-5))
        assert result.verdict.value == verdict
        assert result.claim_test.confidence == 0.95


@pytest.mark.usefixtures("few_draws")
def test_several_periods_rarely_refute_a_true_claim():
    # At a false-alarm rate of at most 20%, 30 audits refute more than 13 once in 1,000 times.
    rng, claim = np.random.default_rng(5), claims.Claim(noise_multiplier=1.0, rounds=1, delta=1e-5)
    refuted = 0
    for _ in range(30):
        present = rng.random((4, 60)) < 0.5
        scores = present + rng.normal(0, 1, (4, 60))
        p_value, _ = strongest_period([Scores(x[p], x[~p]) for x, p in zip(scores, present, strict=True)], claim)
        refuted += p_value <= 0.2
    assert refuted <= 13


def test_the_claim_of_the_training_says_what_is_tested_and_composed():
    audit = observed(Canife(canaries=GivenUpdates(np.eye(1, 8)), rounds=2, every=1, trials=60), noise=1.0)
    claim = claims.Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=2, delta=1e-4)
    result = audit.result(claim=claim)
    assert result.claim.noise_multiplier == 1.0
    assert result.claim.delta == 1e-4
    assert result.composed_result().claim == claim
    ceiling = compose_rounds([(p.rate_ceiling, 1) for p in result.periods], sampling=EveryRound(), delta=1e-4)
    assert epsilon_hat(result, "ceiling") == ceiling
    bare = audit.result(claim=claims.Claim(epsilon=3.0, delta=1e-4))
    assert (bare.claim, bare.composed_result()) == (None, None)


def test_a_claim_for_replacing_a_client_allows_half_the_shift_of_a_canary(monkeypatch):
    monkeypatch.setattr("coalmine.methods.canife.result.compose", lambda *periods, **terms: ([], []))
    audit = observed(Canife(canaries=GivenUpdates(np.eye(1, 8)), rounds=1, every=1, trials=20), noise=1.0)
    claim = claims.Claim(noise_multiplier=0.5, sampling="fixed:10/100", rounds=2, delta=1e-4)
    assert audit.result(claim=claim).claim.noise_multiplier == 1.0


def test_the_live_estimate_is_the_final_one():
    audit = observed(Canife(canaries=GivenUpdates(np.eye(1, 8)), rounds=2, every=1, trials=60), noise=1.0)
    last = audit.figures()
    audit._scores[60:] = np.nan  # the second period has no scores yet
    assert audit.figures() != last
    audit = observed(Canife(canaries=GivenUpdates(np.eye(1, 8)), rounds=2, every=1, trials=60), noise=1.0)
    assert audit.figures() == last
    (estimate,) = [value for name, value in last.items() if name.endswith("epsilon_estimate")]
    assert estimate == pytest.approx(audit.result().periods[-1].epsilon("gaussian-shift"))


def observed(audit, noise):
    """The audit after frozen rounds that add Gaussian noise to what it plants."""
    rng = np.random.default_rng(3)
    for round in range(audit.rounds):
        for trial in range(audit.trials):
            planted = audit.plant(round, clip_norm=1.0, trial=trial)
            total = rng.normal(0, noise, 8) + (0 if planted is None else planted.total)
            audit.observe(round, update=total.astype(np.float32), trial=trial, divisor=1.0)
    return audit
