"""Exposure of losses and of ranks, beside random guessing, and the ε it implies."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.files import ScoreTable
from coalmine.methods.exposure.audit import Exposure
from coalmine.methods.exposure.method import ExposureMethod
from coalmine.results.verdict import SCORES


def of_table(source, columns, **settings):
    return Exposure.from_table(ScoreTable(source, columns), **settings).result()


def ranked(ranks, **settings):
    return of_table("ranks.csv", {"rank": ranks}, **settings)


def lost(canaries, others, **settings):
    return of_table("losses.csv", {"canaries": canaries, "references": others}, **settings)


def test_losses_and_their_ranks_give_the_same_evidence():
    rng = np.random.default_rng(1)
    canaries, references = rng.normal(-3, 1, 50), rng.normal(0, 1, 1000)
    by_loss = lost(canaries, references)
    by_rank = ranked(1 + np.sum(references[None, :] < canaries[:, None], axis=1), references=1000)
    assert by_rank.details["exposures"] == pytest.approx(by_loss.details["exposures"])
    for first, second in zip(by_rank.estimates, by_loss.estimates, strict=True):
        assert (first.epsilon, first.threshold) == (second.epsilon, second.threshold)
    assert "ties were ranked against the canary" in by_rank.bound.assumes


def test_summaries_stand_beside_random_guessing():
    rng = np.random.default_rng(1)
    result = lost(rng.normal(-3, 1, 50), rng.normal(0, 1, 1000))
    assert (result.details["canaries"], result.details["references"]) == (50, 1000)
    chance = {row["summary"]: row["random_guessing"] for row in result.details["rows"]}
    # The exact baselines for 1,000 references (Jagielski 2023, Section 2.1).
    assert chance["mean"] == pytest.approx(1.434950, abs=1e-6)
    assert chance["median"] == pytest.approx(0.997117, abs=1e-6)
    assert chance["75th percentile"] == pytest.approx(1.994241, abs=1e-6)
    extrapolated = result.details["rows"][-1]
    assert extrapolated["summary"] == "largest, extrapolated"
    assert extrapolated["canaries"] > np.log2(1000)


def test_a_median_exposure_of_5_is_an_epsilon_of_4_ln_2():
    assert ranked([32] * 11, references=1024)["median-exposure"].epsilon == pytest.approx(2.772589, abs=1e-6)


def test_the_result_says_what_it_is_about():
    result = ranked([1, 2, 3], references=100)
    assert (result.method, result.view, result.unit) == ("exposure", "ranks", SCORES)
    assert result.side_names == ("canaries", "references")
    assert result.scores.members.tolist() == [-2.5, -1.5, -0.5]
    assert result.metrics == {"inserted": 3.0, "held_out": 100.0}


def test_calibration_subtracts_the_reference_models_loss():
    pairs = [(5.0 + i, 6.0 + i, 1) for i in range(30)] + [(5.0 + i, 5.0 + i, 0) for i in range(30)]
    columns = dict(zip(("loss", "reference_loss", "canary"), map(list, zip(*pairs, strict=True)), strict=True))
    plain, calibrated = (of_table("c.csv", columns, calibrate=c) for c in (False, True))
    assert min(calibrated.details["exposures"]) > max(plain.details["exposures"]) - 1e-9


def test_a_constant_loss_shows_nothing():
    assert lost([1.0] * 100, [1.0] * 1000).bound.lower == 0


def test_copies_lower_epsilon():
    bounds = [ranked([1] * 50, references=1000, copies=copies).bound.lower for copies in (1, 5)]
    assert bounds[1] == pytest.approx(bounds[0] / 5, rel=1e-6)


@pytest.mark.slow
def test_bounds_hold_when_nothing_was_memorized():
    rng = np.random.default_rng(0)
    wrong = sum(lost(*np.split(rng.normal(size=240), [40])).bound.epsilon > 0 for _ in range(200))
    assert wrong <= 21  # nominal 5%: more would be seen once in 1,000 times at exactly 5%


def test_arrays_and_tables_give_the_same_result():
    rng = np.random.default_rng(2)
    canaries, references = rng.normal(-1, 1, 20), rng.normal(0, 1, 100)
    direct = Exposure(canaries, references, copies=2).result(delta=1e-5, confidence=0.9)
    assert direct.estimates[1:] == lost(canaries, references, copies=2).estimates[1:]
    assert (direct.bound.delta, direct.bound.confidence) == (1e-5, 0.9)
    again = ExposureMethod.recompute(direct, ())
    assert (again.estimates, again.ceiling) == (direct.estimates, direct.ceiling)


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: ranked([500, 500.5], references=1000), "whole number.* 500.5"),
        (lambda: ranked([1, 2]), "--references.*None for ranks.csv"),
        (lambda: ranked([1, 2], references=10, calibrate=True), "no column 'loss'"),
        (lambda: ranked([1, 12], references=10), "12"),
        (lambda: lost([1.0], [2.0], references=5), "references = 5"),
        (lambda: of_table("l.csv", {"loss": [1], "canary": [1]}), "1 canaries and 0 references"),
        (lambda: of_table("l.csv", {"a": [1]}), "no column 'loss'"),
    ],
)
def test_wrong_tables_are_refused(call, fact):
    with pytest.raises(InputError, match=fact):
        call()
