"""From rates and counts to ε at one threshold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import Counts, Estimate
from coalmine.stats.scores import epsilon_from_counts, epsilon_from_rates, plug_in, rate_bounds

rate = st.floats(0, 1)


def test_the_example_of_the_ldp_paper_is_ln_8():
    assert epsilon_from_rates(0.8, 0.1) == pytest.approx(math.log(8), abs=1e-12)


def test_the_larger_of_the_two_ratios_wins():
    assert epsilon_from_rates(0.9, 0.5) == pytest.approx(math.log(0.5 / 0.1))
    assert epsilon_from_rates(0.5, 0.1) == pytest.approx(math.log(0.5 / 0.1))


@given(tpr=rate, fpr=rate, delta=st.floats(0, 0.999))
def test_epsilon_is_never_negative_nor_nan_and_infinite_only_where_true(tpr, fpr, delta):
    epsilon = float(epsilon_from_rates(tpr, fpr, delta))
    assert epsilon >= 0
    if math.isinf(epsilon):
        assert (fpr == 0 and tpr > delta) or (tpr == 1 and 1 - fpr > delta)


exact_rate = st.integers(0, 64).map(lambda k: k / 64)  # 1 − rate has no rounding error


@given(tpr=exact_rate, fpr=exact_rate, delta=st.floats(0, 0.999))
def test_swapping_the_roles_of_the_errors_changes_nothing(tpr, fpr, delta):
    swapped = epsilon_from_rates(1 - fpr, 1 - tpr, delta)
    assert float(epsilon_from_rates(tpr, fpr, delta)) == pytest.approx(float(swapped), rel=1e-9, abs=1e-9)


@given(tpr=rate, fpr=rate, low=st.floats(0, 0.999), high=st.floats(0, 0.999))
def test_epsilon_falls_with_delta(tpr, fpr, low, high):
    low, high = sorted((low, high))
    assert epsilon_from_rates(tpr, fpr, low) >= epsilon_from_rates(tpr, fpr, high)


def test_clopper_pearson_bounds_invert_the_binomial_tails():
    lower, upper = rate_bounds(np.arange(11), 10, 0.025)
    for k in range(11):
        assert (stats.binom.sf(k - 1, 10, lower[k]) if k else 0.025) == pytest.approx(0.025)
        assert (stats.binom.cdf(k, 10, upper[k]) if k < 10 else 0.025) == pytest.approx(0.025)
    assert (lower[0], upper[10]) == (0, 1)


def test_clopper_pearson_covers_every_rate():
    # Exact coverage, by enumeration: the lower bound exceeds p with probability at most 5% for every p.
    lower, upper = rate_bounds(np.arange(31), 30, 0.05)
    for p in np.linspace(0.001, 0.999, 97):
        mass = stats.binom.pmf(np.arange(31), 30, p)
        assert mass[lower > p].sum() <= 0.05
        assert mass[upper < p].sum() <= 0.05


def test_a_valid_bound_cannot_carry_another_epsilon():
    with pytest.raises(ValueError, match="lower end"):
        Estimate("x", 2.0, lower=1.0, confidence=0.95, valid=True)


def test_rounding_does_not_make_a_rate_exceed_delta():
    assert float(epsilon_from_rates(1.0, 0.7, 0.3)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("cells", [(0, 0, 1, 1), (1, 1, 0, 0), (-1, 2, 1, 1), (1.5, 1, 1, 1)])
def test_impossible_counts_raise(cells):
    with pytest.raises(InputError):
        Counts(*cells)


@pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
def test_delta_out_of_range_raises(delta):
    with pytest.raises(InputError, match=rf"delta .* got {delta}"):
        epsilon_from_rates(0.5, 0.1, delta)


def test_the_lower_bound_from_counts_has_its_known_value():
    counts = Counts(tp=300, fn=700, fp=50, tn=950)
    assert epsilon_from_counts(counts).lower == pytest.approx(1.4243994, abs=5e-8)


def test_the_plug_in_is_the_log_ratio_of_the_observed_rates():
    assert plug_in(Counts(tp=300, fn=700, fp=50, tn=950)).epsilon == pytest.approx(math.log(6), rel=1e-12)
    assert plug_in(Counts(tp=7, fn=3, fp=4, tn=16), delta=0.1).epsilon == pytest.approx(math.log(3), rel=1e-12)


@given(st.tuples(*[st.integers(0, 60)] * 4).filter(lambda c: c[0] + c[1] > 0 and c[2] + c[3] > 0))
def test_the_plug_in_lies_between_lower_and_upper(cells):
    estimate = epsilon_from_counts(Counts(*cells), delta=1e-3)
    assert estimate.epsilon == estimate.lower <= plug_in(Counts(*cells), delta=1e-3).epsilon + 1e-9
    assert estimate.lower <= estimate.upper
