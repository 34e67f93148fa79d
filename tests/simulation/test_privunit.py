"""PrivUnit: cosines of reports against their exact distribution, in odd and even dimensions and far out in the tail."""

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.simulation.mechanisms.local import PrivUnit2, cosine_quantile, cosine_tail


def exact_tail(cosine, dim):
    """P(T ≥ cosine) for a coordinate T of a uniform direction, from its density with 40 digits."""
    with mpmath.workdps(40):
        t = mpmath.mpf(float(cosine))
        upper = mpmath.betainc(mpmath.mpf(dim - 1) / 2, 0.5, 0, 1 - t**2, regularized=True) / 2
        return float(upper if t >= 0 else 1 - upper)


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 30, 31, 1001])
def test_tails_of_cosines_are_exact_far_out_as_well(dim):
    # The exact tail against closed forms where there are any, then everything else against the exact tail.
    closed_forms = {
        2: lambda t: math.acos(t) / math.pi,
        3: lambda t: (1 - t) / 2,
        4: lambda t: (math.acos(t) - t * math.sqrt(1 - t * t)) / math.pi,
        5: lambda t: (2 - 3 * t + t**3) / 4,
    }
    scale = min(1.0, 8 / math.sqrt(dim))
    for cosine in (-0.95, -0.4, -0.001, 0.0, 0.1, 0.6, 0.97):
        tail = exact_tail(cosine * scale, dim)
        if dim in closed_forms:
            assert tail == pytest.approx(closed_forms[dim](cosine * scale), rel=1e-9)
        assert float(cosine_tail(cosine * scale, dim)) == pytest.approx(tail, rel=1e-9)
    for tail in (1e-30, 1e-12, 1e-3, 0.2, 0.5, 0.7, 1 - 1e-6):
        assert exact_tail(cosine_quantile(tail, dim), dim) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("dim", [2, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (3, 4, 30)), 5, 31])
@pytest.mark.parametrize(("epsilon", "length"), [(0.5, 1.0), (2.0, 0.4), (9.0, 1.0)])
def test_cosines_of_reports_have_the_exact_distribution_of_the_cap(dim, epsilon, length):
    # Kolmogorov–Smirnov over all cosines, and among the largest fiftieth. 54 tests at 1e-5 each: a false alarm in one
    # of 1,850 runs with other seeds.
    mechanism, rng = PrivUnit2(epsilon=epsilon), np.random.default_rng([dim, int(10 * epsilon)])
    least, share, chance = mechanism.cap(dim)
    assert share == pytest.approx(exact_tail(least, dim), rel=1e-6)
    assert chance * (1 - share) / (share * (1 - chance)) == pytest.approx(math.exp(epsilon), rel=1e-6)

    def one_sided(cosine):
        """P(report's cosine ≥ cosine) if the sign is positive: e^ε times as dense in the cap as outside."""
        inside, anywhere = cosine_tail(np.maximum(cosine, least), dim), cosine_tail(cosine, dim)
        return chance * inside / share + (1 - chance) * (anywhere - inside) / (1 - share)

    def cdf(cosine):
        return (1 + length) / 2 * (1 - one_sided(cosine)) + (1 - length) / 2 * one_sided(-cosine)

    gradient = np.zeros(dim)
    gradient[0] = length
    whole = mechanism.randomize(gradient, rng, 5000)[:, 0].astype(float)
    assert stats.kstest(whole, cdf).pvalue > 1e-5
    cosines = mechanism.projections(gradient[:1], dim, rng, 20_000)[:, 0]
    assert stats.kstest(cosines, cdf).pvalue > 1e-5
    edge = np.quantile(cosines, 0.98)
    upper = cosines[cosines > edge]
    assert stats.kstest(upper, lambda t: (cdf(t) - cdf(edge)) / (1 - cdf(edge))).pvalue > 1e-5


@pytest.mark.parametrize("dim", [2, 5, 30])
def test_mean_cosines_are_those_of_the_exact_density(dim):
    # E[T; T ≥ γ] and E[T; T < γ] by integrating the quantile over the tail probability.
    mechanism = PrivUnit2(epsilon=3.0, norm=2.0)
    _, share, chance = mechanism.cap(dim)
    inside = integrate.quad(lambda s: float(cosine_quantile(s, dim)), 0, share)[0] / share
    outside = integrate.quad(lambda s: float(cosine_quantile(s, dim)), share, 1)[0] / (1 - share)
    mean = chance * inside + (1 - chance) * outside
    assert mechanism.server_factor(dim) == pytest.approx(2.0 / mean, rel=1e-6)
