"""All estimators together, and those that published papers use."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import coalmine as cm
from coalmine.errors import InputError
from coalmine.stats import METHODS, CosineNull, NormalNull, Scores
from coalmine.stats.estimators import CAVEATS
from coalmine.stats.gaussian import moments
from coalmine.stats.scores import best_threshold


def sample(n=300, mu=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


def test_every_applicable_estimator_runs_and_the_recommended_is_first():
    estimates = cm.estimate(*sample(), threshold=1.0, design="coin-flips")
    assert [e.method for e in estimates] == [m for m in METHODS if m not in ("exact-null", "plug-in", "gaussian-fit")]
    assert estimates[0].valid
    assert {e.method for e in estimates if e.valid} == {"simultaneous", "one-run", "clopper-pearson"}
    assert all(e.epsilon == e.lower for e in estimates if e.valid)
    assert all(e.delta == 1e-5 and e.confidence == 0.95 for e in estimates)


def test_every_estimator_has_a_caveat():
    assert list(CAVEATS) == [*METHODS, "median-exposure", "anytime", "low-fpr"]


def test_a_known_null_has_its_own_estimators():
    members, _ = sample()
    estimates = cm.estimate(members / 100, null=CosineNull(10_000))
    assert [e.method for e in estimates] == [
        "exact-null",
        "gdp",
        "gaussian-shift",
    ]


def test_estimators_can_be_picked_by_name_in_any_order():
    estimates = cm.estimate(*sample(), methods=["gdp", "simultaneous"])
    assert [e.method for e in estimates] == ["gdp", "simultaneous"]


def test_a_misspelled_name_gets_a_suggestion():
    with pytest.raises(InputError, match=r"'simultanous'.*simultaneous"):
        cm.estimate(*sample(), methods=["simultanous"])
    with pytest.raises(InputError, match=r"clopper-pearson .*threshold"):
        cm.estimate(*sample(), methods=["clopper-pearson"])


def test_one_run_needs_coin_flips():
    assert not {"one-run", "one-run-fdp"} & {e.method for e in cm.estimate(*sample())}
    with pytest.raises(InputError, match=r"one-run .*coin-flips"):
        cm.estimate(*sample(), methods="one-run")
    with pytest.raises(InputError, match="90 members and 10 non-members"):
        cm.estimate(np.arange(90.0), np.arange(10.0), design="coin-flips")


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": math.nan},
        {"threshold": math.inf},
        {"threshold": 1.0, "copies": 2},
        {"delta": "1e-5"},
        {"confidence": 0.3},
        {"copies": 0},
    ],
)
def test_options_that_make_no_sense_raise(options):
    with pytest.raises(InputError):
        cm.estimate(*sample(), **options)


def test_a_null_that_is_not_a_distribution_raises():
    with pytest.raises(InputError, match="CosineNull"):
        cm.estimate([1.0], null="cosine:100")


def test_a_threshold_makes_no_sense_with_a_known_null():
    with pytest.raises(InputError, match="observed non-members"):
        cm.estimate([0.1], null=CosineNull(10), threshold=0.05)


def test_with_copies_only_the_bound_that_accounts_for_them_is_returned():
    assert [e.method for e in cm.estimate(*sample(), copies=5)] == ["simultaneous"]


def test_losses_are_negated_scores_with_thresholds_in_units_of_the_loss():
    members, nonmembers = sample()
    as_scores = cm.estimate(members, nonmembers, threshold=0.5)
    as_losses = cm.estimate(-members, -nonmembers, threshold=-0.5, lower_is_member=True)
    for score, loss in zip(as_scores, as_losses, strict=True):
        assert (score.epsilon, score.lower) == (loss.epsilon, loss.lower)
        assert score.threshold == (None if loss.threshold is None else -loss.threshold)
    with pytest.raises(InputError, match="lower_is_member"):
        cm.estimate(members, null=NormalNull(), lower_is_member=True)


def test_moments_are_those_of_the_scores():
    members, nonmembers = sample()
    (mu0, std0), (mu1, std1) = moments(Scores(members, nonmembers))
    assert (mu0, std0) == pytest.approx((nonmembers.mean(), nonmembers.std(ddof=1)))
    assert (mu1, std1) == pytest.approx((members.mean(), members.std(ddof=1)))


small = hnp.arrays(np.float64, st.integers(1, 12), elements=st.integers(-3, 3).map(float))


@given(small, small, st.sampled_from([0.0, 1e-5, 0.3]))
def test_no_scores_however_few_or_tied_break_anything(members, nonmembers, delta):
    for e in cm.estimate(members, nonmembers, delta=delta, threshold=0.0):
        assert e.epsilon >= 0
        assert e.lower is None or e.lower >= 0
        assert not e.valid or e.lower < math.inf


def test_a_single_score_per_side_shows_nothing():
    assert all(e.lower == 0 for e in cm.estimate([5.0], [0.0]) if e.valid)


def test_a_million_scores_per_side_are_fast_enough():
    members, nonmembers = sample(10**6)
    bound, one_run = cm.estimate(members, nonmembers, methods=["simultaneous", "one-run"], design="coin-flips")
    assert 3.2 < bound.lower < 4.377
    assert one_run.lower < bound.lower


def test_the_best_threshold_is_canifes_maximum():
    # 50 + 50 trials with one error on either side: the ceiling of CANIFE's estimate at δ = 1/n.
    members = np.array([0.0] + [10.0] * 49)
    nonmembers = np.array([0.0] * 49 + [10.0])
    estimate = best_threshold(Scores(members, nonmembers), delta=0.01)
    assert estimate.epsilon == pytest.approx(math.log((0.98 - 0.01) / 0.02))
    assert estimate.epsilon == pytest.approx(3.882, abs=5e-4)
    assert not estimate.valid
    clean = best_threshold(Scores(members, np.zeros(50)), delta=0.01)
    assert clean.epsilon == pytest.approx(3.902, abs=5e-4)


def test_the_best_threshold_is_infinite_only_without_any_error():
    assert best_threshold(Scores([2.0, 3.0], [0.0, 1.0]), delta=0).epsilon == math.inf
    assert best_threshold(Scores([0.5, 3.0], [0.0, 1.0]), delta=0).epsilon == pytest.approx(math.log(2))


def test_estimates_are_json_ready():
    record = best_threshold(Scores([2.0, 3.0], [0.0, 1.0]), delta=0).to_dict()
    assert record["epsilon"] == "inf"
    assert record["valid"] is False


def test_an_estimate_cannot_be_valid_without_a_bound_nor_hold_nan():
    with pytest.raises(ValueError, match="valid bound"):
        cm.stats.Estimate("x", 1.0, valid=True)
    with pytest.raises(ValueError, match="at least 0"):
        cm.stats.Estimate("x", math.nan)


def test_losses_that_are_not_finite_are_named():
    with pytest.raises(InputError, match=r"^members must be finite"):
        cm.estimate([math.nan], [1.0], lower_is_member=True)
    with pytest.raises(InputError, match=r"^nonmembers must be finite"):
        cm.estimate([1.0], [math.inf], lower_is_member=True)
