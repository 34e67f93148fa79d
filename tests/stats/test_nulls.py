"""The exact null of a cosine, and the normal one."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy import stats as scipy_stats

from coalmine.errors import InputError, NotApplicableError
from coalmine.stats import CosineNull, NormalNull, Scores
from coalmine.stats.gaussian import gaussian_fit
from coalmine.stats.nulls import LargestOfNull, LikelihoodRatioNull, OrthogonalCosineNull, null_text, parse_null
from coalmine.stats.rank_tests import threshold_tests
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP


@pytest.mark.parametrize(
    ("dim", "cosine", "tail"),
    [
        (3, 1 / math.sqrt(3), 0.211324865405),
        (10, 2 / math.sqrt(10), 0.0183937489399),
        (200, 6 / math.sqrt(200), 1.73155268e-10),
        (50, 6 / math.sqrt(50), 1.8925553e-15),
    ],
)
def test_cosine_tails_have_their_known_values(dim, cosine, tail):
    assert float(np.exp(CosineNull(dim).log_sf(cosine))) == pytest.approx(tail, rel=1e-8)


def test_the_sphere_in_three_dimensions_is_uniform():
    t = np.linspace(-0.99, 0.99, 21)
    np.testing.assert_allclose(np.exp(CosineNull(3).log_sf(t)), (1 - t) / 2, rtol=1e-12)


def test_the_circle_is_the_arcsine_law():
    t = np.linspace(-0.99, 0.99, 21)
    np.testing.assert_allclose(np.exp(CosineNull(2).log_sf(t)), np.arccos(t) / np.pi, rtol=1e-12)


def test_ten_million_dimensions_are_gaussian_in_the_middle():
    dim = 10**7
    t = np.linspace(-3, 3, 13) / math.sqrt(dim)
    np.testing.assert_allclose(CosineNull(dim).log_sf(t), NormalNull(0, dim**-0.5).log_sf(t), rtol=1e-5)


@pytest.mark.parametrize(("dim", "cosine"), [(10**7, 0.011), (10**7, 0.1), (1000, 0.95), (2001, 0.7), (10**6, 0.04)])
def test_tails_beyond_float_underflow_agree_with_high_precision(dim, cosine):
    with mpmath.workdps(50):
        t, exponent = mpmath.mpf(cosine), mpmath.mpf(dim - 3) / 2
        log_front = exponent * mpmath.log1p(-t * t)
        # ∫ over s > t of ((1−s²)/(1−t²))^exponent, whose scale is (1−t²)/(2·exponent·t).
        scale = (1 - t * t) / (2 * exponent * t)

        def integrand(y):
            return mpmath.exp(exponent * (mpmath.log1p(-((t + y) ** 2)) - mpmath.log1p(-t * t)))

        edges = [min(scale * k, 1 - t) for k in (0, 1, 3, 10, 30, 100)]
        area = mpmath.quad(integrand, edges)
        normalizer = mpmath.loggamma(mpmath.mpf(dim) / 2) - mpmath.loggamma(mpmath.mpf(dim - 1) / 2)
        expected = log_front + mpmath.log(area) + normalizer - mpmath.log(mpmath.pi) / 2
    assert float(CosineNull(dim).log_sf(cosine)) == pytest.approx(float(expected), rel=1e-9)


@given(dim=st.integers(2, 10**6), t=st.floats(-1, 1))
def test_upper_and_lower_tail_mirror_each_other_and_sum_to_one(dim, t):
    null = CosineNull(dim)
    assert float(null.log_sf(t)) == float(null.log_cdf(-t))
    assert math.exp(null.log_sf(t)) + math.exp(null.log_cdf(t)) == pytest.approx(1)


@given(dim=st.integers(2, 10**7))
def test_the_tail_falls_with_the_cosine(dim):
    t = np.linspace(0, 0.999, 50)
    assert np.all(np.diff(CosineNull(dim).log_sf(t)) < 0)


def test_the_standard_deviation_is_one_over_root_d():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 7))
    cosines = x[:, 0] / np.linalg.norm(x, axis=1)
    assert np.std(cosines) == pytest.approx(CosineNull(7).std, rel=0.02)


def test_bad_dimensions_and_cosines_raise():
    with pytest.raises(InputError, match="dim"):
        CosineNull(1)
    with pytest.raises(InputError, match=r"\[-1, 1\]"):
        CosineNull(5).log_sf([0.5, 1.5])
    with pytest.raises(InputError, match="std"):
        NormalNull(0, 0)


def test_the_largest_of_several_is_never_larger_than_its_null_says() -> None:
    rng = np.random.default_rng(0)
    for correlation in (0.0, 0.9, -0.2):
        covariance = np.full((5, 5), correlation) + (1 - correlation) * np.eye(5)
        largest = rng.multivariate_normal(np.zeros(5), covariance, 50_000).max(axis=1)
        null = LargestOfNull(NormalNull(), 5)
        for t in (-1.0, 0.0, 1.0, 2.0, 3.0):
            above = float(np.mean(largest >= t))
            assert above <= np.exp(null.log_sf(t)) + 4 * np.sqrt(max(above, 1e-4) / 50_000)


def test_both_tails_of_the_largest_make_up_one() -> None:
    null, t = LargestOfNull(CosineNull(100), 7), np.linspace(-0.9, 0.9, 41)
    np.testing.assert_allclose(np.exp(null.log_sf(t)) + np.exp(null.log_cdf(t)), 1.0, atol=1e-12)


def test_a_likelihood_ratio_exceeds_t_no_more_often_than_its_null_says() -> None:
    rng, null = np.random.default_rng(0), LikelihoodRatioNull()
    x = rng.standard_normal(200_000)
    ratio = np.logaddexp(np.log(0.5) + (x - 0.5), np.log(0.5) + (2 * x - 2))  # a mixture against N(0, 1)
    for t in (-1.0, 0.0, 0.5, 1.0, 2.0):
        assert np.mean(ratio >= t) <= np.exp(null.log_sf(t))
    t = np.array([-3.0, 0.0, 0.1, 5.0, 50.0])
    np.testing.assert_allclose(np.exp(null.log_sf(t)) + np.exp(null.log_cdf(t)), 1.0)
    with pytest.raises(NotApplicableError, match="null with known moments"):
        gaussian_fit(Scores(np.arange(20.0), null=null), delta=1e-5)


def test_the_largest_of_one_is_that_one() -> None:
    t = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(LargestOfNull(NormalNull(), 1).log_sf(t), NormalNull().log_sf(t))


def test_the_largest_of_several_has_no_mean_to_fit() -> None:
    scores = Scores(np.arange(20.0), null=LargestOfNull(NormalNull(), 3))
    with pytest.raises(NotApplicableError, match="null with known moments"):
        gaussian_fit(scores, delta=1e-5)


@pytest.mark.parametrize("claim", [ApproximateDP(0.0, 1e-5), ApproximateDP(1.0, 0.0), GaussianDP(0.5)])
def test_p_values_average_over_the_length_that_orthogonal_canaries_share(claim):
    """Against quadrature over the χ density: never below, and above by at most the difference of two Riemann sums.

    The probability is monotone in the length r. Each interval counts with its worse end, a tenth of a standard
    deviation from the better one, so the p-value exceeds the integral by less than the sums of both ends differ.
    """
    members, freedom = 64, 300
    draw = np.random.default_rng(2)
    normal = draw.standard_normal(members) + 0.3
    scores = Scores(normal / np.sqrt(normal**2 + draw.chisquare(freedom)), null=OrthogonalCosineNull(freedom + 1))
    tests = threshold_tests(scores)
    steps = np.linspace(-8, 8, 161)
    upper_half = scipy_stats.chi.isf(scipy_stats.norm.sf(steps), freedom)
    ends = np.where(steps < 0, scipy_stats.chi.ppf(scipy_stats.norm.cdf(steps), freedom), upper_half)
    shares = np.diff(scipy_stats.norm.cdf(steps))
    obtained = replace(tests, floor=0.0).p_values(claim)
    for rank, threshold, p_value in zip(tests.rank, tests.thresholds, obtained, strict=True):
        needed = threshold / np.sqrt(1 - threshold**2)

        def given_length(r, rank=rank, needed=needed):
            allowed = claim.tpr(np.array(scipy_stats.norm.sf(r * needed)))
            return scipy_stats.beta.cdf(allowed, rank, members - rank + 1)

        def density(r, given_length=given_length):
            return given_length(r) * scipy_stats.chi.pdf(r, freedom)

        expected = integrate.quad(density, 12, 23, points=[17.3], epsabs=0, epsrel=1e-9, limit=200)[0]
        difference = shares @ np.abs(np.diff(given_length(ends)))
        assert expected * (1 - 1e-6) <= p_value <= (expected + difference) * (1 + 1e-6)


def test_given_the_shared_length_tails_add_up_to_those_of_one_cosine():
    null, scores = OrthogonalCosineNull(2000), np.array([-0.5, -0.02, 0.0, 0.02, 0.06, 0.5])
    shares, log_sf, log_cdf = null.given_shared(scores)
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(np.exp(log_sf) + np.exp(log_cdf), 1, rtol=1e-12)
    tails, exact = np.exp(log_sf) @ shares, np.exp(null.log_sf(scores))
    assert (tails[:5] <= 1.02 * exact[:5]).all()
    assert (tails >= exact * (1 - 1e-12)).all()


def test_ranks_of_orthogonal_canaries_raise_false_alarms_at_most_at_the_rate():
    """A quarter of all dimensions inserted: 109 of 1,500 or more have a probability of 1e-4 at 5%."""
    draw, alarms, members = np.random.default_rng(3), 0, 100
    null = OrthogonalCosineNull(201)
    for _ in range(1500):
        normal = draw.standard_normal(members)
        tests = threshold_tests(Scores(normal / np.sqrt(normal**2 + draw.chisquare(200)), null=null))
        p_values = replace(tests, floor=0.0).p_values(ApproximateDP(0.0, 0.0))
        alarms += p_values.min() <= 0.05 / tests.rank.size
    assert alarms < 109


def test_every_null_is_made_again_from_its_text():
    for text in ("likelihood-ratio", "normal:0.5,2.0", "cosine:500", "orthogonal-cosine:60"):
        assert null_text(parse_null(text)) == text
