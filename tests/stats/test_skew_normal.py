"""The skew-normal distribution: its tails, and its maximum likelihood fit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from coalmine.errors import InputError
from coalmine.stats.exposure import MAX_SHAPE, SkewNormal


def logpdf(law: SkewNormal, x: np.ndarray) -> np.ndarray:
    """The log density by scipy."""
    return np.asarray(stats.skewnorm.logpdf(x, law.shape, law.location, law.scale))


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
    height = logpdf(law, z - step)
    drop = -np.diff(height)
    expected = special.logsumexp(height[:-1] + np.log(-np.expm1(-drop) / drop)) + math.log(step[1])
    assert law.logcdf(z) == pytest.approx(expected, rel=1e-9)


@given(st.floats(-50, 50), st.floats(-6, 6))
def test_the_mirrored_distribution_has_the_other_tail(shape: float, z: float) -> None:
    both = np.exp(SkewNormal(0, 1, shape).logcdf(z)) + np.exp(SkewNormal(0, 1, -shape).logcdf(-z))
    assert both == pytest.approx(1, abs=1e-13)


# The fit


def test_fit_recovers_the_distribution_of_the_references() -> None:
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
    best = logpdf(law, references).mean()
    if abs(law.shape) < 0.99 * MAX_SHAPE:
        assert np.mean(((references - law.location) / law.scale) ** 2) == pytest.approx(1, abs=1e-6)
    for shift, stretch, bend in itertools.product((-0.03, 0, 0.03), (0.97, 1, 1.03), (-0.1, 0, 0.1)):
        shape = max(-MAX_SHAPE, min(MAX_SHAPE, law.shape + bend))
        other = SkewNormal(law.location + shift * law.scale, law.scale * stretch, shape)
        assert logpdf(other, references).mean() <= best + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_fit_is_at_least_as_likely_as_scipys(seed: int) -> None:
    references = stats.skewnorm.rvs(2.0, size=400, random_state=seed)
    theirs = max(stats.skewnorm.logpdf(references, *stats.skewnorm.fit(references, start)).sum() for start in (-1, 1))
    assert logpdf(SkewNormal.fit(references), references).sum() >= theirs - 1e-6


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
    ("references", "message"),
    [
        ([0.1] * 60, "references .* got 60 losses from 0.1 to 0.1"),
        (range(9), "needs at least 10 references.* got 9"),
        ([-1.5e308, 1.5e308] * 10, "references .* got 20 losses"),
        ([*range(50), math.nan], "got nan"),
    ],
)
def test_references_that_cannot_be_fitted_raise(references: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SkewNormal.fit(references)
