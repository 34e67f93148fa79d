"""Facts about exposure, its random-guessing baselines, its extrapolation, and ε from it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from coalmine.errors import InputError
from coalmine.stats.exposure import (
    calibrate,
    epsilon_from_exposure,
    exposure,
    exposure_for_epsilon,
    extrapolated_exposure,
    low_fpr_epsilon,
    per_copy_epsilon,
    ranks,
    scores_from_ranks,
)
from coalmine.stats.random_guessing import OrderStatistic, RandomGuessing, random_mean, random_quantile
from coalmine.stats.skew_normal import MAX_SHAPE, SkewNormal
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
    ("canaries", "references", "complaint"),
    [
        ([], [1.0], "canaries must hold at least one number, got none"),
        ([1.0], [], "references must hold at least one number"),
        ([[1.0]], [1.0], r"shape \(1, 1\)"),
        ([math.nan, 0.0], [1.0], "canaries must be finite, got nan among 2 values"),
        ([1.0], [math.inf], "references must be finite, got inf"),
        (["low"], [1.0], r"canaries must be numbers, got \['low'\]"),
    ],
)
def test_ranks_refuse_losses_that_cannot_be_ordered(canaries: Any, references: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ranks(canaries, references)


def test_ranks_refuse_an_unknown_way_with_ties() -> None:
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
def test_exposure_refuses_a_rank_that_no_canary_can_have(rank: float) -> None:
    with pytest.raises(InputError, match=f"got {rank}"):
        exposure([5, rank], 100)


@pytest.mark.parametrize("references", [0, -3, 2.5, math.nan, math.inf, True])
def test_exposure_refuses_a_wrong_number_of_references(references: Any) -> None:
    with pytest.raises(InputError, match=f"references must be a whole number of at least 1, got {references}"):
        exposure([1], references)


# The skew-normal law


def test_skew_normal_density_matches_scipy() -> None:
    x = np.linspace(-9, 9, 50)
    for shape in (-20.0, -1.0, 0.0, 2.5):
        np.testing.assert_allclose(SkewNormal(1, 2, shape).logpdf(x), stats.skewnorm.logpdf(x, shape, 1, 2), rtol=1e-11)


@pytest.mark.parametrize(
    ("shape", "z", "expected"),
    [
        (0, -40, -804.60844201375379),
        (3, -40, -8011.9238805760283),
        (3, -400, -800016.52885830617),
        (-3, -400, -80006.217262149655),
        (100, -12, -720091.93015582158),
        (-100, -0.01, -0.008680969295859792),
        (0.3, -2, -4.5196426197162708),
        (20, 0.05, -3.1420998156258717),
    ],
)
def test_logcdf_matches_quadrature_with_forty_digits(shape: float, z: float, expected: float) -> None:
    assert SkewNormal(5, 2, shape).logcdf(5 + 2 * z) == pytest.approx(expected, rel=1e-13)


def test_logcdf_is_the_normal_one_at_shape_zero_and_its_double_at_shape_one() -> None:
    z = np.concatenate([-np.geomspace(1e-3, 1e6, 60), np.linspace(0, 9, 40)])
    for shape in (0, 1):
        # The cdf at shape 1 is Φ²: the larger of two normals.
        np.testing.assert_allclose(
            SkewNormal(0, 1, shape).logcdf(z), (1 + shape) * special.log_ndtr(z), rtol=1e-13, atol=1e-15
        )


@pytest.mark.parametrize("shape", [-30.0, -2.0, -0.1, 0.1, 2.0, 30.0])
def test_logcdf_matches_owens_t_in_the_middle(shape: float) -> None:
    z = np.linspace(-0.1, 6, 80)
    np.testing.assert_allclose(
        np.exp(SkewNormal(0, 1, shape).logcdf(z)), special.ndtr(z) - 2 * special.owens_t(z, shape), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize("shape", [-7.0, -1.0, 0.5, 4.0, 60.0])
@pytest.mark.parametrize("z", [-2.0, -40.0, -400.0])
def test_logcdf_matches_a_fine_grid_in_the_log_domain(shape: float, z: float) -> None:
    law = SkewNormal(0, 1, shape)
    steepness = -z * (1 + shape**2 if shape > 0 else 1)
    step = np.linspace(0, 50 / steepness, 400_001)
    # Within each cell the log density is taken as straight, so that the cell's integral is closed.
    height = law.logpdf(z - step)
    drop = -np.diff(height)
    expected = special.logsumexp(height[:-1] + np.log(-np.expm1(-drop) / drop)) + math.log(step[1])
    assert law.logcdf(z) == pytest.approx(expected, rel=1e-9)


@given(st.floats(-50, 50), st.floats(-6, 6))
def test_the_mirrored_law_has_the_other_tail(shape: float, z: float) -> None:
    both = np.exp(SkewNormal(0, 1, shape).logcdf(z)) + np.exp(SkewNormal(0, 1, -shape).logcdf(-z))
    assert both == pytest.approx(1, abs=1e-13)


def test_a_law_without_scale_is_refused() -> None:
    with pytest.raises(InputError, match="scale must be a positive number, got 0"):
        SkewNormal(0, 0, 1)
    with pytest.raises(InputError, match="shape must be a finite number, got inf"):
        SkewNormal(0, 1, math.inf)


# The fit


def test_fit_recovers_the_law_that_made_the_references() -> None:
    # Standard errors over 60 other seeds: 0.037, 0.042, 0.091. Six of them: a false alarm in fewer than 1e-7.
    law = SkewNormal.fit(stats.skewnorm.rvs(4, loc=30, scale=6, size=20_000, random_state=1))
    assert law.location == pytest.approx(30, abs=0.22)
    assert law.scale == pytest.approx(6, abs=0.25)
    assert law.shape == pytest.approx(4, abs=0.55)


def samples() -> list[Any]:
    rng = np.random.default_rng(20190814)
    drawn = {
        f"{n} of shape {shape}": stats.skewnorm.rvs(shape, size=n, random_state=rng)
        for n in (50, 500, 5_000, 100_000)
        for shape in (0.0, 1.5, -4.0)
    }
    drawn["exponential"] = -rng.exponential(size=300)
    drawn["heavy tails"] = rng.standard_t(2, size=300)
    drawn["five values"] = rng.integers(0, 5, 200).astype(float)
    drawn["one outlier"] = np.append(np.zeros(99), 1.0)
    return [pytest.param(sample, id=name) for name, sample in drawn.items()]


@pytest.mark.parametrize("sample", samples())
@pytest.mark.parametrize(("location", "scale"), [(0, 1), (-3e5, 1e-2), (2e-9, 1e-12), (0, 1e200)])
def test_fit_is_the_maximum_of_the_likelihood(sample: np.ndarray, location: float, scale: float) -> None:
    references = location + scale * sample
    law = SkewNormal.fit(references)
    best = law.logpdf(references).mean()
    if abs(law.shape) < 0.99 * MAX_SHAPE:
        assert np.mean(((references - law.location) / law.scale) ** 2) == pytest.approx(1, abs=1e-6)
    for shift, stretch, bend in itertools.product((-0.03, 0, 0.03), (0.97, 1, 1.03), (-0.1, 0, 0.1)):
        shape = max(-MAX_SHAPE, min(MAX_SHAPE, law.shape + bend))
        other = SkewNormal(law.location + shift * law.scale, law.scale * stretch, shape)
        assert other.logpdf(references).mean() <= best + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_fit_is_at_least_as_likely_as_scipys(seed: int) -> None:
    references = stats.skewnorm.rvs(2.0, size=400, random_state=seed)
    theirs = max(stats.skewnorm.logpdf(references, *stats.skewnorm.fit(references, start)).sum() for start in (-1, 1))
    assert SkewNormal.fit(references).logpdf(references).sum() >= theirs - 1e-6


def test_fit_mirrors_with_the_references() -> None:
    references = stats.skewnorm.rvs(3, size=200, random_state=5)
    law, mirrored = SkewNormal.fit(references), SkewNormal.fit(-references)
    assert (mirrored.location, mirrored.scale, mirrored.shape) == pytest.approx(
        (-law.location, law.scale, -law.shape), rel=1e-5
    )


def test_fit_stops_at_the_largest_shape_where_the_likelihood_would_go_on() -> None:
    exponential = -np.log((np.arange(100) + 0.5) / 100)
    assert SkewNormal.fit(exponential).shape == pytest.approx(MAX_SHAPE, rel=1e-6)
    assert SkewNormal.fit(-exponential).shape == pytest.approx(-MAX_SHAPE, rel=1e-6)


@pytest.mark.parametrize(
    ("references", "complaint"),
    [
        ([0.1] * 60, "references must differ.* got 60 losses from 0.1 to 0.1"),
        (range(9), "needs at least 10 references, got 9"),
        ([-1.5e308, 1.5e308] * 10, "by a finite amount"),
        ([*range(50), math.nan], "got nan"),
    ],
)
def test_fit_refuses_references_without_a_law(references: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        SkewNormal.fit(references)


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


@settings(max_examples=30, deadline=None)
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


# Random guessing: one canary


@pytest.mark.parametrize(
    ("n", "mean", "median", "upper_quartile"),
    [(100, 1.382240, 0.971431, 1.943416), (1000, 1.434950, 0.997117, 1.994241), (math.inf, 1.442695, 1, 2)],
)
def test_random_guessing_has_its_known_mean_median_and_quartile(
    n: float, mean: float, median: float, upper_quartile: float
) -> None:
    baseline = RandomGuessing(n)
    assert baseline.mean() == random_mean(n) == pytest.approx(mean, abs=5e-7)
    assert baseline.median() == random_quantile(n, 0.5) == pytest.approx(median, abs=5e-7)
    assert baseline.quantile(0.75) == pytest.approx(upper_quartile, abs=5e-7)


@given(counts)
def test_random_mean_is_the_average_over_all_ranks(n: int) -> None:
    assert random_mean(n) == pytest.approx(np.mean(exposure(np.arange(1, n + 2), n)), rel=1e-12, abs=1e-13)


@given(counts, probabilities)
def test_random_quantile_is_the_least_exposure_that_is_probable_enough(n: int, p: float) -> None:
    all_exposures = exposure(np.arange(1, n + 2), n)
    quantile = random_quantile(n, p)
    assert np.mean(all_exposures <= quantile) >= p
    assert np.mean(all_exposures < quantile) < p


@pytest.mark.parametrize("n", [9, 99, 999])
def test_random_quantile_takes_a_probability_that_is_met_exactly(n: int) -> None:
    for k in range(1, n + 1):
        expected = math.log2(n) - math.log2(n + 2 - k)
        assert random_quantile(n, k / (n + 1)) == expected
        assert OrderStatistic(references=n, canaries=1, position=1).quantile(k / (n + 1)) == expected


@pytest.mark.parametrize("probability", [0, 1, -0.1, math.nan])
def test_a_quantile_needs_a_probability_inside_the_unit_interval(probability: float) -> None:
    for quantile in (RandomGuessing(10).quantile, RandomGuessing(10, 3).order_statistic(2).quantile):
        with pytest.raises(InputError, match=rf"probability must be in \(0, 1\), got {probability}"):
            quantile(probability)


# Random guessing: several canaries


def orderings(n: int, m: int) -> np.ndarray:
    """Exposures of the m canaries, most exposed first, in every equally likely order: (choose(n+m, m), m)."""
    places = np.array(list(itertools.combinations(range(n + m), m)))
    return exposure(1 + places - np.arange(m), n)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_order_statistics_match_every_ordering(n: int, m: int) -> None:
    every = orderings(n, m)
    for position in range(1, m + 1):
        law = RandomGuessing(n, m).order_statistic(position)
        column = every[:, position - 1]
        assert law.mean() == pytest.approx(column.mean(), abs=1e-12)
        for p in (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999):
            quantile = law.quantile(p)
            assert np.mean(column <= quantile + 1e-12) >= p - 1e-12
            assert np.mean(column < quantile - 1e-12) < p


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_the_sample_median_of_every_ordering_has_the_stated_mean_and_interval(
    n: int, m: int, confidence: float
) -> None:
    medians = np.median(orderings(n, m), axis=1)
    baseline = RandomGuessing(n, m)
    low, high = baseline.sample_median_interval(confidence)
    assert baseline.sample_median_mean() == pytest.approx(medians.mean(), abs=1e-12)
    assert np.mean(medians < low - 1e-12) <= (1 - confidence) / 2 + 1e-12
    assert np.mean(medians > high + 1e-12) <= (1 - confidence) / 2 + 1e-12


def test_simulated_medians_of_a_hundred_canaries_fall_where_the_baseline_says() -> None:
    # 4,000 medians of 101, an odd number, whose interval is exact up to the weight of two ranks, 0.001 each. Five
    # standard errors, 0.0173 for the share inside: false alarms below 1e-6 apiece.
    rng = np.random.default_rng(41)
    n, m, trials = 1000, 101, 4000
    medians = np.array([np.median(exposure(ranks(rng.random(m), rng.random(n)), n)) for _ in range(trials)])
    baseline = RandomGuessing(n, m)
    low, high = baseline.sample_median_interval(0.95)
    assert medians.mean() == pytest.approx(baseline.sample_median_mean(), abs=5 * medians.std() / math.sqrt(trials))
    inside = np.mean((medians >= low) & (medians <= high))
    assert inside == pytest.approx(0.95, abs=0.0193)


def test_simulated_most_exposed_canary_falls_where_the_baseline_says() -> None:
    # Five standard errors of 20,000 trials: a false alarm in fewer than 1e-6.
    rng = np.random.default_rng(43)
    top = np.array([exposure(ranks(rng.random(20), rng.random(50)), 50).max() for _ in range(20_000)])
    law = RandomGuessing(50, 20).order_statistic(1)
    assert top.mean() == pytest.approx(law.mean(), abs=5 * top.std() / math.sqrt(top.size))


@given(counts, st.integers(1, 12), st.data())
def test_averaging_over_positions_gives_back_the_mean_of_one_canary(n: int, m: int, data: st.DataObject) -> None:
    references = data.draw(st.sampled_from([float(n), math.inf]))
    baseline = RandomGuessing(references, m)
    means = [baseline.order_statistic(position).mean() for position in range(1, m + 1)]
    assert np.mean(means) == pytest.approx(baseline.mean(), abs=1e-11)
    assert all(np.diff(means) < 0)


@pytest.mark.parametrize("position", [1, 3, 7])
def test_many_references_approach_infinitely_many(position: int) -> None:
    many, limit = (RandomGuessing(n, 7).order_statistic(position) for n in (300_000, math.inf))
    assert many.mean() == pytest.approx(limit.mean(), abs=5e-4)
    for p in (0.025, 0.5, 0.975):
        assert many.quantile(p) == pytest.approx(limit.quantile(p), abs=2e-3)


def test_far_quantiles_are_summed_from_their_own_tail() -> None:
    # That even the most exposed canary has k references ahead means that the first k of all are references.
    n, m = 10_000, 1000
    ahead = round(n / 2 ** RandomGuessing(n, m).order_statistic(1).quantile(1e-30)) - 1
    chances = np.cumprod([(n - i) / (n + m - i) for i in range(ahead + 1)])
    assert chances[ahead] < 1e-30 <= chances[ahead - 1]
    # The least exposed canary has k or fewer ahead where the last n - k of all are references.
    ahead = round(n / 2 ** RandomGuessing(n, m).order_statistic(m).quantile(1 - 2**-50)) - 1
    assert chances[n - ahead] <= 2**-50 < chances[n - ahead - 1]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: RandomGuessing(0), "references .* got 0"),
        (lambda: RandomGuessing(math.nan), "references .* got nan"),
        (lambda: RandomGuessing(-math.inf), "references .* got -inf"),
        (lambda: RandomGuessing(10, 0), "canaries .* got 0"),
        (lambda: RandomGuessing(10, 3).order_statistic(4), "position must be at most the 3 canaries, got 4"),
        (lambda: RandomGuessing(10, 3).order_statistic(0), "position .* got 0"),
        (lambda: RandomGuessing(10, 3).sample_median_interval(1.0), "confidence .* got 1.0"),
    ],
)
def test_a_baseline_refuses_what_is_no_experiment(make: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()


# ε from exposure


def test_epsilon_of_a_median_exposure() -> None:
    assert epsilon_from_exposure(5) == pytest.approx(2.772589, abs=5e-7)
    assert epsilon_from_exposure(5, 0.75) == pytest.approx(3 * math.log(2))
    assert epsilon_from_exposure(1) == 0
    assert epsilon_from_exposure(-0.01) == 0


@given(probabilities)
def test_random_guessing_speaks_of_no_epsilon_at_any_quantile(quantile: float) -> None:
    assert epsilon_from_exposure(random_quantile(math.inf, quantile), quantile) == pytest.approx(0, abs=1e-12)


@given(st.floats(0, 50), probabilities)
def test_exposure_for_epsilon_inverts(epsilon: float, quantile: float) -> None:
    assert epsilon_from_exposure(exposure_for_epsilon(epsilon, quantile), quantile) == pytest.approx(epsilon, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: epsilon_from_exposure(math.nan), "exposure must be a finite number, got nan"),
        (lambda: epsilon_from_exposure(2, 1), r"quantile must be in \(0, 1\), got 1"),
        (lambda: exposure_for_epsilon(-1), "epsilon must be a finite number of at least 0, got -1"),
        (lambda: per_copy_epsilon(math.inf, 2), "epsilon .* got inf"),
        (lambda: per_copy_epsilon(1, 0), "copies .* got 0"),
        (lambda: group_parameters(1, 1.5, 2), r"delta must be in \[0, 1\), got 1.5"),
        (lambda: group_parameters(1, 0.1, 2.5), "copies .* got 2.5"),
    ],
)
def test_conversions_refuse_what_they_cannot_convert(call: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
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
    ("fpr", "complaint"),
    [(0.0005, r"at least 1, got 0.0005 \* 1000"), (0, r"fpr must be in \(0, 1\], got 0"), (1.1, "got 1.1")],
)
def test_low_fpr_epsilon_refuses_a_rate_of_no_reference(fpr: float, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        low_fpr_epsilon([1], 1000, fpr)


# Group privacy


def test_pure_epsilon_is_shared_among_the_copies() -> None:
    assert per_copy_epsilon(6, 3) == 2
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
def test_calibration_refuses_losses_of_other_examples(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"must have the shape \(4,\) or \(models, 4\), got \("):
        calibrate(np.zeros(4), np.zeros(shape))


def test_calibration_refuses_a_missing_loss() -> None:
    with pytest.raises(InputError, match="reference_model_losses must be finite, got nan"):
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


def test_scores_refuse_a_rank_between_a_tie_and_a_place() -> None:
    with pytest.raises(InputError, match=r"ranks must be whole or half numbers, got 2.25"):
        scores_from_ranks([1, 2.25], 10)
