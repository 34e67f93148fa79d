"""Gaussian fits of scores."""

import numpy as np
import pytest
from scipy import special, stats

from coalmine.errors import InputError
from coalmine.stats import CosineNull, NormalNull, Scores, gaussian_shift, sigma_gaussian
from coalmine.stats.gaussian import epsilon_gdp, gaussian_fit, threshold_epsilon
from coalmine.stats.scores import best_threshold


def cosines_of_vectors(dim, canaries, sigma, rng):
    """Cosines of random canaries with their sum, released by the Gaussian mechanism."""
    c = rng.standard_normal((canaries, dim))
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    released = c.sum(axis=0) + sigma * rng.standard_normal(dim)
    return c @ released / np.linalg.norm(released)


def test_the_section_3_estimate_is_the_gaussian_mechanisms_calibration():
    dim = 10_000
    cosines = cosines_of_vectors(dim, 200, 1.5, np.random.default_rng(0))
    sigma = 1 / (cosines.mean() * np.sqrt(dim))
    estimate = gaussian_shift(Scores(cosines, null=CosineNull(dim)), delta=1e-6)
    assert estimate.epsilon == pytest.approx(float(epsilon_gdp(1 / sigma, 1e-6)), rel=1e-9)
    assert not estimate.valid
    assert estimate.lower < estimate.epsilon < estimate.upper


def test_the_fit_uses_both_sides_moments():
    rng = np.random.default_rng(2)
    members, nonmembers = rng.normal(2, 1.3, 500), rng.normal(0, 1, 400)
    expected = threshold_epsilon(nonmembers.mean(), nonmembers.std(ddof=1), members.mean(), members.std(ddof=1), 1e-5)
    assert gaussian_fit(Scores(members, nonmembers), delta=1e-5).epsilon == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("known", "n", "spread"), [(True, 20, 1.0), pytest.param(False, 20, 1.0, marks=pytest.mark.slow), (False, 50, 1.4)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(known, n, spread):
    # Each end of a 90% interval misses in 5% of audits: 3.3 standard errors, a false alarm in 1,000 for each.
    truth, audits, rng = 10.0, 600, np.random.default_rng(n)
    shift = 1 / sigma_gaussian(truth, 1e-5)
    missed = np.zeros(2)
    for _ in range(audits):
        members = rng.normal(shift, spread, n)
        scores = Scores(members, null=NormalNull()) if known else Scores(members, rng.normal(0, 1, n))
        estimate = gaussian_shift(scores, delta=1e-5, confidence=0.9)
        missed += estimate.lower > truth, estimate.upper < truth
    assert missed / audits == pytest.approx(0.05, abs=3.3 * np.sqrt(0.05 * 0.95 / audits))


def test_the_interval_with_a_known_null_is_students():
    members = np.random.default_rng(1).normal(2, 1.5, 30)
    estimate = gaussian_shift(Scores(members, null=NormalNull()), delta=1e-5)
    ends = stats.t.interval(0.95, 29, members.mean(), stats.sem(members))
    # 2,000 draws: the quantiles of the shift have a standard error of 2% of its width, here of 0.03.
    assert [1 / sigma_gaussian(e, 1e-5) for e in (estimate.lower, estimate.upper)] == pytest.approx(ends, abs=0.1)


def test_the_interval_with_counted_nonmembers_is_that_of_the_noncentral_t():
    rng = np.random.default_rng(2)
    members, nonmembers = rng.normal(2, 1, 200), rng.normal(0, 1, 25)
    estimate = gaussian_shift(Scores(members, nonmembers), delta=1e-5)
    scale = np.sqrt(1 / 200 + 1 / 25)
    observed = (members.mean() - nonmembers.mean()) / nonmembers.std(ddof=1) / scale
    ends = [special.nctdtrinc(24, level, observed) * scale for level in (0.975, 0.025)]
    assert [1 / sigma_gaussian(e, 1e-5) for e in (estimate.lower, estimate.upper)] == pytest.approx(ends, abs=0.15)


def test_the_fit_has_no_interval_since_its_value_is_smallest_at_equal_spreads():
    rng = np.random.default_rng(3)
    estimate = gaussian_fit(Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000)), delta=1e-5)
    assert (estimate.lower, estimate.upper, estimate.confidence) == (None, None, None)
    equal, more, less = (float(threshold_epsilon(0, 1, 1, s, 1e-5)) for s in (1.0, 1.02, 0.98))
    assert equal < min(more, less)


def test_estimates_from_few_scores_say_so():
    rng = np.random.default_rng(4)
    for members, nonmembers, few in ((79, 200, True), (200, 79, True), (80, 80, False)):
        scores = Scores(rng.normal(1, 1, members), rng.normal(0, 1, nonmembers))
        for estimator in (gaussian_shift, gaussian_fit, best_threshold):
            estimate = estimator(scores, delta=1e-5)
            assert estimate.few_scores is few
            assert estimate.to_dict().get("few_scores", False) is few
    assert not gaussian_shift(Scores(rng.normal(1, 1, 80), null=NormalNull()), delta=1e-5).few_scores


def test_scores_alike_cannot_be_fitted():
    with pytest.raises(InputError, match=r"members.*distinct scores"):
        gaussian_fit(Scores([1.0, 1.0], [0.0, 1.0]), delta=1e-5)
