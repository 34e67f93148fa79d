"""The Anderson–Darling test of normality."""

import warnings

import numpy as np
import pytest
from scipy import stats

from coalmine.errors import NotApplicableError
from coalmine.stats.gaussian import anderson_darling


@pytest.mark.parametrize("size", [8, 50, 1000])
def test_the_statistic_is_that_of_scipy(size):
    values = np.random.default_rng(size).gamma(3.0, size=size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = stats.anderson(values, "norm").statistic
    assert anderson_darling(values).statistic == pytest.approx(expected, rel=1e-9)


def test_p_values_of_normal_scores_are_uniform():
    rng = np.random.default_rng(0)
    p_values = np.array([anderson_darling(rng.normal(3, 2, 200)).p_value for _ in range(4000)])
    for level in (0.01, 0.05, 0.15, 0.5):
        # Five binomial standard errors, and a few percent of the level for the approximation.
        assert abs(np.mean(p_values < level) - level) < 5 * np.sqrt(level * (1 - level) / 4000) + 0.06 * level


def test_levels_are_about_those_of_the_one_shot_paper():
    # With 1,000 scores it rejects at 1% above 1.088 and at 15% above 0.574, by a table of 1974; that of 1986, which the
    # p-values follow, has 1.035 and 0.561.
    rng, n = np.random.default_rng(1), 1000
    drawn = [anderson_darling(rng.standard_normal(n)) for _ in range(300)]
    for statistic, level in ((1.088, 0.01), (0.574, 0.15)):
        above = [test for test in drawn if test.statistic > statistic]
        below = [test for test in drawn if test.statistic <= statistic]
        assert max((t.p_value for t in above), default=0) < level
        assert min(t.p_value for t in below) > level * 0.7


def test_affine_changes_change_nothing():
    values = np.random.default_rng(0).standard_normal(100)
    assert anderson_darling(1e-6 * values + 5e-4).statistic == pytest.approx(anderson_darling(values).statistic)


@pytest.mark.parametrize("values", [[1.0] * 20, [1.0, 2.0, 3.0], [1.0]])
def test_too_few_values_or_equal_ones_raise_without_a_warning(values):
    with warnings.catch_warnings(action="error"), pytest.raises(NotApplicableError, match="at least 8 values"):
        anderson_darling(values)


# Lower end of the range, then ln p or ln(1 − p) as a polynomial: D'Agostino and Stephens (1986), table 4.9.
TABLE = [
    (0.6, (0.0186, -5.709, 1.2937), False),
    (0.34, (-1.38, -4.279, 0.9177), False),
    (0.2, (-59.938, 42.796, -8.318), True),
    (0.0, (-223.73, 101.14, -13.436), True),
]


def test_p_values_follow_the_published_table_with_its_correction_for_few_values():
    ranges = set()
    for seed in range(60):
        rng, size = np.random.default_rng(seed), (8, 9, 30)[seed % 3]
        outcome = anderson_darling(rng.gamma((0.5, 2.0, 50.0)[seed % 2], size=size))
        a = outcome.statistic * (1 + 0.75 / size + 2.25 / size**2)
        least, coefficients, mirrored = next(row for row in TABLE if a >= row[0])
        published = np.exp(np.polyval(coefficients, a))
        assert outcome.p_value == pytest.approx(1 - published if mirrored else published, rel=1e-9)
        ranges.add(least)
    assert len(ranges) == 4


def test_far_statistics_have_p_value_0():
    # Where the parabola would rise again.
    outcome = anderson_darling(np.random.default_rng(0).exponential(size=500))
    assert outcome.statistic > 13
    assert outcome.p_value == 0
