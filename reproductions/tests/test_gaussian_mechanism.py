"""Simulated audits of the Gaussian mechanism: cosines drawn without their vectors."""

import numpy as np
import pytest
from scipy import stats

from coalmine.errors import InputError
from coalmine.methods.mechanism.audit import check_mechanism, gaussian_mechanism
from coalmine.stats import CosineNull, Scores, gaussian_shift, sigma_gaussian
from coalmine_reproductions.gaussian_mechanism import canary_cosines, table_1
from coalmine_reproductions.table import Context

pytestmark = pytest.mark.slow


def cosines_of_vectors(dim, canaries, sigma, rng):
    """The same audit with all its vectors."""
    c = rng.standard_normal((canaries, dim))
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    released = c.sum(axis=0) + sigma * rng.standard_normal(dim)
    return c @ released / np.linalg.norm(released)


def shift(result):
    return next(e.epsilon for e in result.estimates if e.method == "gaussian-shift")


@pytest.mark.parametrize(("dim", "canaries", "sigma"), [(20, 5, 0.7), (12, 12, 0.3), (50, 8, 0.0)])
def test_cosines_without_vectors_have_the_distribution_of_those_with(dim, canaries, sigma):
    # Two-sample tests of one cosine, of the largest, and of their mean; each fails by chance once in 1,000 runs.
    rng = np.random.default_rng([dim, canaries])
    fast = np.array([canary_cosines(dim=dim, canaries=canaries, noise_multiplier=sigma, rng=rng) for _ in range(3000)])
    slow = np.array([cosines_of_vectors(dim, canaries, sigma, rng) for _ in range(3000)])
    for statistic in (lambda g: g[:, 0], lambda g: g[:, -1], lambda g: g.max(axis=1), lambda g: g.mean(axis=1)):
        assert stats.ks_2samp(statistic(fast), statistic(slow)).pvalue > 1e-3


def test_vectors_agree_with_the_simulation_without_vectors():
    sigma, dim, canaries, delta = sigma_gaussian(3.0, 1e-6), 20_000, 300, 1e-6
    vectors = [
        shift(check_mechanism(gaussian_mechanism(sigma, seed), dim=dim, canaries=canaries, delta=delta, seed=seed))
        for seed in range(12)
    ]
    simulated = []
    for seed in range(100):
        cosines = canary_cosines(dim=dim, canaries=canaries, noise_multiplier=sigma, rng=np.random.default_rng(seed))
        simulated.append(gaussian_shift(Scores(cosines, null=CosineNull(dim)), delta=delta).epsilon)
    error = np.hypot(np.std(vectors, ddof=1) / np.sqrt(12), np.std(simulated, ddof=1) / 10)
    assert abs(np.mean(vectors) - np.mean(simulated)) < 4 * error
    # Twelve draws: their standard deviation is within a factor of 2.6 in all but one case of a thousand.
    assert 1 / 2.6 < np.std(vectors, ddof=1) / np.std(simulated, ddof=1) < 2.6


def test_table_1_of_the_one_shot_paper_comes_out():
    # Independent simulations have 1.015 ± 0.169, 2.985 ± 0.168 and 9.970 ± 0.194; 50 of ours, 5 standard errors.
    rows = table_1(Context(seed=1)).rows
    for row, mean, std in zip(rows, (1.015, 2.985, 9.970), (0.169, 0.168, 0.194), strict=True):
        ours = float(row[3].split(" ± ")[0])
        assert ours == pytest.approx(mean, abs=5 * std / np.sqrt(50))
        # Fitting the standard deviation as well is biased upward.
        assert float(row[4].split(" ± ")[0]) > ours


def test_more_canaries_than_dimensions_are_refused():
    with pytest.raises(InputError, match="at most dim"):
        canary_cosines(dim=5, canaries=6, noise_multiplier=1.0, rng=np.random.default_rng(0))
