import math

import numpy as np
import pytest
from scipy import stats

from coalmine.accounting.sampling import AtMost, FixedSize, OncePerEpoch, Poisson
from coalmine.errors import InputError
from coalmine.simulation import (
    FixedSizeCohorts,
    PoissonCohorts,
    ScheduledCohorts,
    ShuffledCohorts,
    WithReplacementCohorts,
)

ALL = [PoissonCohorts(0.3), FixedSizeCohorts(7), WithReplacementCohorts(7), ShuffledCohorts(4)]


@pytest.mark.parametrize("cohorts", ALL, ids=lambda rule: type(rule).__name__)
def test_a_cohort_is_a_function_of_seed_and_round(cohorts):
    first = cohorts.cohort(20, seed=1, round=3)
    np.testing.assert_array_equal(first, cohorts.cohort(20, seed=1, round=3))
    others = [cohorts.cohort(20, 2, 3), cohorts.cohort(20, 1, 4), cohorts.cohort(20, 1, 3, trial=1)]
    assert any(not np.array_equal(first, other) for other in others[:1])
    assert not np.array_equal(first, others[1])
    assert not np.array_equal(first, others[2])


def test_poisson_cohorts_have_a_binomial_size_and_every_client_the_same_chance():
    cohorts = [PoissonCohorts(0.3).cohort(50, 0, round) for round in range(2000)]
    seen = np.bincount(np.concatenate(cohorts), minlength=50)
    # false alarm: 1e-4 each
    assert stats.binomtest(int(seen.sum()), 50 * 2000, 0.3).pvalue > 1e-4
    assert stats.chisquare(seen).pvalue > 1e-4
    assert np.var([len(cohort) for cohort in cohorts]) == pytest.approx(50 * 0.3 * 0.7, rel=0.15)


def test_fixed_cohorts_are_without_replacement():
    for round in range(50):
        cohort = FixedSizeCohorts(7).cohort(20, 0, round)
        assert len(set(cohort.tolist())) == len(cohort) == 7


def test_with_replacement_a_client_can_be_drawn_twice():
    cohorts = [WithReplacementCohorts(10).cohort(12, 0, round) for round in range(20)]
    assert any(len(set(cohort.tolist())) < 10 for cohort in cohorts)
    assert all(len(cohort) == 10 for cohort in cohorts)


def test_every_client_takes_part_once_per_epoch():
    rule = ShuffledCohorts(4)
    for epoch in range(3):
        parts = [rule.cohort(22, 0, 4 * epoch + i) for i in range(4)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(22))
        assert [len(part) for part in parts] == [rule.expected(22, 4 * epoch + i) for i in range(4)] == [6, 6, 5, 5]
    assert not np.array_equal(rule.cohort(22, 0, 0), rule.cohort(22, 0, 4))


def test_each_rule_names_its_accounting():
    assert PoissonCohorts(0.3).sampling(20, 5, 0) == Poisson(0.3)
    assert FixedSizeCohorts(7).sampling(20, 5, 0) == FixedSize(7, 20)
    assert ShuffledCohorts(4).sampling(20, 5, 0) == OncePerEpoch(4)
    assert ScheduledCohorts([[0, 1], [1], [2]]).sampling(20, 3, 0) == AtMost(2)
    assert ScheduledCohorts([[0, 1], [1], [2]]).sampling(20, 1, 0) == AtMost(1)
    # three times in one round count as nine rounds
    assert ScheduledCohorts([[0, 0, 0], [1], [0]]).sampling(20, 3, 0) == AtMost(10)


def test_accounting_for_replacement_raises_with_an_upper_bound():
    rule = WithReplacementCohorts(10)
    counts = sum(np.bincount(rule.cohort(12, 0, round), minlength=12) ** 2 for round in range(5))
    with pytest.raises(InputError, match=rf"AtMost\(times={counts.max()}\)"):
        rule.sampling(12, 5, 0)


@pytest.mark.parametrize("q", [0, -0.1, 1.01, math.nan, "half"])
def test_a_probability_outside_of_0_to_1_raises(q):
    with pytest.raises(InputError, match=r"the sampling probability q must be"):
        PoissonCohorts(q)


def test_cohorts_that_do_not_fit_the_population_raise():
    with pytest.raises(InputError, match="population of 5, got 7"):
        FixedSizeCohorts(7).check(5, 1)
    with pytest.raises(InputError, match="at most the population of 5"):
        ShuffledCohorts(6).check(5, 1)
    with pytest.raises(InputError, match=r"round 1 .* client 9"):
        ScheduledCohorts([[0], [9]]).check(5, 2)
    with pytest.raises(InputError, match=r"2 rounds.*3"):
        ScheduledCohorts([[0], [1]]).check(5, 3)
    with pytest.raises(InputError, match="whole number of at least 1, got 0"):
        FixedSizeCohorts(0)
