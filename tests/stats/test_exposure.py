"""Facts about exposure, its random-guessing baselines, its extrapolation, and ε from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats.exposure import (
    RandomGuessing,
    SkewNormal,
    calibrate,
    epsilon_from_exposure,
    exposure,
    extrapolated_exposure,
    low_fpr_epsilon,
    ranks,
    scores_from_ranks,
)
from coalmine.stats.tradeoff import group_parameters

# Few distinct values, so that ties abound.
losses = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=20)
counts = st.integers(1, 300)
probabilities = st.floats(0.001, 0.999)


# Ranks


def test_rank_is_one_more_than_the_references_below() -> None:
    np.testing.assert_array_equal(ranks([0.5, 2.5, 9.0], [3.0, 1.0, 2.0]), [1, 3, 4])


def test_ties_count_half_all_or_nothing() -> None:
    references = [1.0, 2.0, 2.0, 2.0, 3.0]
    assert ranks([2.0], references) == 1 + 1 + 1.5
    assert ranks([2.0], references, ties="worst") == 1 + 1 + 3
    assert ranks([2.0], references, ties="best") == 1 + 1


@pytest.mark.parametrize("n", [2, 100, 1000])
def test_a_constant_loss_has_the_median_exposure_of_random_guessing(n: int) -> None:
    constant = exposure(ranks(np.zeros(7), np.zeros(n)), n)
    np.testing.assert_allclose(constant, RandomGuessing(n, 7).median(), rtol=1e-15)


@given(losses, losses)
def test_ranks_equal_a_count_over_all_pairs(canaries: list[float], references: list[float]) -> None:
    below = np.array([sum(r < c for r in references) for c in canaries])
    equal = np.array([sum(r == c for r in references) for c in canaries])
    np.testing.assert_array_equal(ranks(canaries, references), 1 + below + equal / 2)
    np.testing.assert_array_equal(ranks(canaries, references, ties="worst"), 1 + below + equal)
    np.testing.assert_array_equal(ranks(canaries, references, ties="best"), 1 + below)


@given(losses, losses, st.sampled_from(["middle", "worst", "best"]))
def test_rank_never_falls_as_the_loss_grows(canaries: list[float], references: list[float], ties: Any) -> None:
    assert np.all(np.diff(ranks(sorted(canaries), references, ties=ties)) >= 0)


@given(losses, losses, st.randoms(use_true_random=False))
def test_ranks_ignore_the_order_of_references_and_follow_that_of_canaries(
    canaries: list[float], references: list[float], random: Any
) -> None:
    shuffled = random.sample(references, len(references))
    order = random.sample(range(len(canaries)), len(canaries))
    expected = ranks(canaries, references)[order]
    np.testing.assert_array_equal(ranks(np.array(canaries)[order], shuffled), expected)


@pytest.mark.parametrize(
    ("canaries", "references", "message"),
    [
        ([], [1.0], "canaries .* got none"),
        ([1.0], [], "references .* got none"),
        ([[1.0]], [1.0], r"shape \(1, 1\)"),
        ([math.nan, 0.0], [1.0], "canaries .* got nan"),
        ([1.0], [math.inf], "references .* got inf"),
        (["low"], [1.0], r"canaries .* got \['low'\]"),
    ],
)
def test_losses_that_cannot_be_ordered_raise(canaries: Any, references: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ranks(canaries, references)


def test_an_unknown_tie_rule_raises() -> None:
    with pytest.raises(InputError, match="got 'random'"):
        ranks([1.0], [1.0], ties="random")  # type: ignore[arg-type]


# Exposure


@given(counts, st.data())
def test_exposure_lies_between_that_of_the_last_and_the_first_rank(n: int, data: st.DataObject) -> None:
    rank = data.draw(st.floats(1, n + 1))
    assert math.log2(n / (n + 1)) - 1e-12 <= exposure(rank, n) <= math.log2(n)


def test_exposure_halves_the_references_ahead_with_every_bit() -> None:
    np.testing.assert_allclose(exposure([1, 2, 4, 512, 1024, 1025], 1024), [10, 9, 8, 1, 0, -math.log2(1025 / 1024)])


@pytest.mark.parametrize("rank", [0, 0.5, 102, math.nan])
def test_an_impossible_rank_raises(rank: float) -> None:
    with pytest.raises(InputError, match=f"got {rank}"):
        exposure([5, rank], 100)


@pytest.mark.parametrize("references", [0, -3, 2.5, math.nan, math.inf, True])
def test_an_impossible_number_of_references_raises(references: Any) -> None:
    with pytest.raises(InputError, match=f"references .* got {references}"):
        exposure([1], references)


# Extrapolated exposure


def test_extrapolated_exposure_is_finite_and_quadratic_far_below_the_references() -> None:
    references = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    law = SkewNormal.fit(references)
    assert abs(law.shape) < 0.1
    far = extrapolated_exposure([-40.0, -400.0], references)
    assert np.all(np.isfinite(far))
    np.testing.assert_allclose(far, [804.6 / math.log(2), 80006.9 / math.log(2)], rtol=0.02)


def test_extrapolated_exposure_agrees_with_exposure_among_the_references() -> None:
    # The rank at a tail of 0.05 is 500 ± 22: five standard deviations are 0.33 bits, a false alarm in 3e-6.
    references = stats.skewnorm.rvs(-3, loc=2, size=10_000, random_state=11)
    canaries = stats.skewnorm.ppf([0.05, 0.2, 0.5, 0.9], -3, loc=2)
    counted = exposure(ranks(canaries, references), 10_000)
    np.testing.assert_allclose(extrapolated_exposure(canaries, references), counted, atol=0.33)


@settings(max_examples=12)
@given(st.integers(0, 1000), st.floats(-100, 100), st.floats(-6, 6))
def test_extrapolated_exposure_ignores_the_location_and_scale_of_losses(
    seed: int, location: float, magnitude: float
) -> None:
    references = np.random.default_rng(seed).gamma(5, size=60)
    canaries = np.array([-20.0, 0.5, 3.0, 8.0])
    scale = 10**magnitude
    moved = extrapolated_exposure(scale * (location + canaries), scale * (location + references))
    np.testing.assert_allclose(moved, extrapolated_exposure(canaries, references), rtol=1e-4)


def test_extrapolated_exposure_falls_strictly_as_the_loss_grows() -> None:
    references = np.random.default_rng(2).gumbel(size=300)
    assert np.all(np.diff(extrapolated_exposure(np.linspace(-50, 5, 400), references)) < 0)


# ε from exposure


def test_epsilon_of_a_median_exposure() -> None:
    assert epsilon_from_exposure(5) == pytest.approx(2.772589, abs=5e-7)
    assert epsilon_from_exposure(5, 0.75) == pytest.approx(3 * math.log(2))
    assert epsilon_from_exposure(1) == 0
    assert epsilon_from_exposure(-0.01) == 0


@given(probabilities)
def test_random_guessing_suggests_no_epsilon_at_any_quantile(quantile: float) -> None:
    assert epsilon_from_exposure(RandomGuessing(math.inf).quantile(quantile), quantile) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon_from_exposure(2, 1), "quantile .* got 1"),
        (lambda: group_parameters(1, 1.5, 2), "delta .* got 1.5"),
        (lambda: group_parameters(1, 0.1, 2.5), "copies .* got 2.5"),
    ],
)
def test_conversions_of_impossible_values_raise(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_low_fpr_epsilon_is_the_quotient_of_the_rates() -> None:
    # Two of four canaries have at most 10 of the 1,000 references ahead.
    estimate = low_fpr_epsilon([1, 11, 12, 900], 1000, 0.01)
    assert estimate.epsilon == pytest.approx(math.log(0.5 / 0.01))
    assert estimate.threshold == 11
    assert not estimate.valid
    assert estimate.lower is None


def test_low_fpr_epsilon_is_zero_without_a_true_positive_or_below_chance() -> None:
    assert low_fpr_epsilon([500, 900], 1000, 0.01).epsilon == 0
    assert low_fpr_epsilon([1, *[1001] * 99], 1000, 0.1).epsilon == 0


def test_low_fpr_epsilon_does_not_lose_a_reference_to_rounding() -> None:
    assert 0.29 * 100 < 29
    assert low_fpr_epsilon([30], 100, 0.29).epsilon == pytest.approx(math.log(1 / 0.29))


@pytest.mark.parametrize(
    ("fpr", "message"),
    [(0.0005, "1000 references, got 0.0005"), (0, "fpr .* got 0"), (1.1, "got 1.1")],
)
def test_a_false_positive_rate_below_one_reference_raises(fpr: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        low_fpr_epsilon([1], 1000, fpr)


# Group privacy


def test_pure_epsilon_is_shared_among_the_copies() -> None:
    assert group_parameters(2, 0, 3) == (6, 0)


@given(st.floats(1e-3, 3), st.floats(0, 1e-6), st.integers(1, 4))
def test_group_delta_is_a_geometric_sum(epsilon: float, delta: float, copies: int) -> None:
    group = group_parameters(epsilon, delta, copies)
    terms = sum(math.exp(i * epsilon) for i in range(copies))
    assert group == pytest.approx((copies * epsilon, delta * terms), rel=1e-12)


@given(st.floats(0, 2), st.floats(0, 1e-3), st.integers(1, 6), st.integers(1, 6))
def test_a_group_of_groups_is_a_group(epsilon: float, delta: float, few: int, times: int) -> None:
    inner = group_parameters(epsilon, delta, few)
    outer = group_parameters(*inner, times) if inner[1] < 1 else (times * inner[0], 1.0)
    assert outer == pytest.approx(group_parameters(epsilon, delta, few * times), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 5e-324, 1e-300, 1e-12])
def test_group_delta_without_epsilon_multiplies(epsilon: float) -> None:
    assert group_parameters(epsilon, 1e-5, 7)[1] == pytest.approx(7e-5, rel=1e-10)


def test_group_delta_is_capped_where_it_would_overflow() -> None:
    assert group_parameters(1000, 1e-5, 1000) == (1e6, 1)
    assert group_parameters(1e308, 1e-5, 1000) == (math.inf, 1)
    assert group_parameters(1000, 1e-5, 1) == (1000, 1e-5)
    assert group_parameters(700, 1e-307, 2)[1] == pytest.approx(1e-307 * math.exp(700))


# Calibration


def test_calibration_takes_off_the_mean_over_reference_models() -> None:
    np.testing.assert_array_equal(calibrate([5.0, 1.0], [[4.0, 1.0], [2.0, 3.0]]), [2, -1])
    np.testing.assert_array_equal(calibrate([5.0, 1.0], [4.0, 1.0]), [1, 0])


def test_calibration_exposes_a_canary_that_is_hard_in_itself() -> None:
    difficulty = np.arange(100.0)
    trained = difficulty - np.where(np.arange(100) == 80, 3.0, 0.0)
    raw, calibrated = trained, calibrate(trained, difficulty)
    rest = np.arange(100) != 80
    assert ranks(raw[[80]], raw[rest]) > 70
    assert ranks(calibrated[[80]], calibrated[rest]) == 1


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2), (1, 2, 4), (0, 4), ()])
def test_calibration_with_losses_of_other_examples_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"reference_model_losses .*\(4,\) .* got \("):
        calibrate(np.zeros(4), np.zeros(shape))


def test_calibration_with_a_missing_loss_raises() -> None:
    with pytest.raises(InputError, match=r"reference_model_losses .* got nan"):
        calibrate([1.0, 2.0], [math.nan, 1.0])


# Scores


@given(losses, losses)
def test_scores_from_worst_ranks_put_a_canary_ahead_only_of_higher_losses(
    canaries: list[float], references: list[float]
) -> None:
    members, nonmembers = scores_from_ranks(ranks(canaries, references, ties="worst"), len(references))
    ahead = np.array(canaries)[:, None] < np.sort(references)
    np.testing.assert_array_equal(members[:, None] > nonmembers, ahead)
    assert not np.any(np.equal(members[:, None], nonmembers))


@given(st.sets(st.integers(), min_size=1, max_size=20), st.data())
def test_scores_from_ranks_reproduce_ties_with_one_reference(references: set[int], data: st.DataObject) -> None:
    ordered = np.array(sorted(references), dtype=float)
    canaries = data.draw(st.lists(st.sampled_from([*ordered, *(ordered - 0.5)]), min_size=1))
    members, nonmembers = scores_from_ranks(ranks(canaries, ordered), ordered.size)
    order_of_losses = np.sign(ordered - np.array(canaries)[:, None])
    np.testing.assert_array_equal(np.sign(members[:, None] - nonmembers), order_of_losses)


@given(losses, losses)
def test_scores_from_middle_ranks_keep_the_area_under_the_curve(canaries: list[float], references: list[float]) -> None:
    members, nonmembers = scores_from_ranks(ranks(canaries, references), len(references))
    by_scores = np.mean(np.sign(members[:, None] - nonmembers))
    by_losses = np.mean(np.sign(np.array(references) - np.array(canaries)[:, None]))
    assert by_scores == pytest.approx(by_losses, abs=1e-12)


def test_a_constant_loss_shows_nothing_through_worst_ranks_and_too_much_through_middle_ones() -> None:
    canaries, references = np.zeros(20), np.zeros(10)
    worst, nonmembers = scores_from_ranks(ranks(canaries, references, ties="worst"), 10)
    assert worst.max() < nonmembers.min()
    middle, nonmembers = scores_from_ranks(ranks(canaries, references), 10)
    threshold = middle.min()
    assert np.mean(middle >= threshold) == 1
    assert np.mean(nonmembers >= threshold) == 0.5


def test_a_rank_that_is_not_a_multiple_of_one_half_raises() -> None:
    with pytest.raises(InputError, match=r"ranks .* got 2.25"):
        scores_from_ranks([1, 2.25], 10)
