"""The distribution of exposures if nothing was memorized."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.stats.exposure import RandomGuessing, exposure, ranks

counts = st.integers(1, 300)
probabilities = st.floats(0.001, 0.999)


# One canary


@pytest.mark.parametrize(
    ("n", "mean", "median", "upper_quartile"),
    [(100, 1.382240, 0.971431, 1.943416), (1000, 1.434950, 0.997117, 1.994241), (math.inf, 1.442695, 1, 2)],
)
def test_random_guessing_has_its_known_mean_median_and_quartile(
    n: float, mean: float, median: float, upper_quartile: float
) -> None:
    baseline = RandomGuessing(n)
    assert baseline.mean() == pytest.approx(mean, abs=5e-7)
    assert baseline.median() == pytest.approx(median, abs=5e-7)
    assert baseline.quantile(0.75) == pytest.approx(upper_quartile, abs=5e-7)


@given(counts)
def test_random_mean_is_the_average_over_all_ranks(n: int) -> None:
    assert RandomGuessing(n).mean() == pytest.approx(np.mean(exposure(np.arange(1, n + 2), n)), rel=1e-12, abs=1e-13)


@given(counts, probabilities)
def test_random_quantile_is_the_least_exposure_that_is_probable_enough(n: int, p: float) -> None:
    all_exposures = exposure(np.arange(1, n + 2), n)
    quantile = RandomGuessing(n).quantile(p)
    assert np.mean(all_exposures <= quantile) >= p
    assert np.mean(all_exposures < quantile) < p


@pytest.mark.parametrize("n", [9, 99, 999])
def test_random_quantile_takes_a_probability_that_is_met_exactly(n: int) -> None:
    for k in range(1, n + 1):
        expected = math.log2(n) - math.log2(n + 2 - k)
        assert RandomGuessing(n).quantile(k / (n + 1)) == expected
        assert RandomGuessing(n, 1).quantile(k / (n + 1), position=1) == expected


@pytest.mark.parametrize("probability", [0, 1, -0.1, math.nan])
def test_a_quantile_needs_a_probability_inside_the_unit_interval(probability: float) -> None:
    with pytest.raises(InputError, match=f"probability .* got {probability}"):
        RandomGuessing(10).quantile(probability)


# Several canaries


def orderings(n: int, m: int) -> np.ndarray:
    """Exposures of the m canaries, most exposed first, in every equally likely order: (choose(n+m, m), m)."""
    places = np.array(list(itertools.combinations(range(n + m), m)))
    return exposure(1 + places - np.arange(m), n)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_order_statistics_match_every_ordering(n: int, m: int) -> None:
    every = orderings(n, m)
    for position in range(1, m + 1):
        law = RandomGuessing(n, m)
        column = every[:, position - 1]
        assert law.mean(position) == pytest.approx(column.mean(), abs=1e-12)
        for p in (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999):
            quantile = law.quantile(p, position)
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
    law = RandomGuessing(50, 20)
    assert top.mean() == pytest.approx(law.mean(position=1), abs=5 * top.std() / math.sqrt(top.size))


@given(counts, st.integers(1, 12), st.data())
def test_averaging_over_positions_gives_back_the_mean_of_one_canary(n: int, m: int, data: st.DataObject) -> None:
    references = data.draw(st.sampled_from([float(n), math.inf]))
    baseline = RandomGuessing(references, m)
    means = [baseline.mean(position) for position in range(1, m + 1)]
    assert np.mean(means) == pytest.approx(baseline.mean(), abs=1e-11)
    assert all(np.diff(means) < 0)


@pytest.mark.parametrize("position", [1, 3, 7])
def test_many_references_approach_infinitely_many(position: int) -> None:
    many, limit = (RandomGuessing(n, 7) for n in (300_000, math.inf))
    assert many.mean(position) == pytest.approx(limit.mean(position), abs=5e-4)
    for p in (0.025, 0.5, 0.975):
        assert many.quantile(p, position) == pytest.approx(limit.quantile(p, position), abs=2e-3)


def test_far_quantiles_are_summed_from_their_own_tail() -> None:
    # That even the most exposed canary has k references ahead means that the first k of all are references.
    n, m = 10_000, 1000
    ahead = round(n / 2 ** RandomGuessing(n, m).quantile(1e-30, 1)) - 1
    chances = np.cumprod([(n - i) / (n + m - i) for i in range(ahead + 1)])
    assert chances[ahead] < 1e-30 <= chances[ahead - 1]
    # The least exposed canary has k or fewer ahead where the last n - k of all are references.
    ahead = round(n / 2 ** RandomGuessing(n, m).quantile(1 - 2**-50, m)) - 1
    assert chances[n - ahead] <= 2**-50 < chances[n - ahead - 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomGuessing(0), "references .* got 0"),
        (lambda: RandomGuessing(math.nan), "references .* got nan"),
        (lambda: RandomGuessing(-math.inf), "references .* got -inf"),
        (lambda: RandomGuessing(10, 0), "canaries .* got 0"),
        (lambda: RandomGuessing(10, 3).sample_median_interval(1.0), "confidence .* got 1.0"),
    ],
)
def test_impossible_baselines_raise(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
