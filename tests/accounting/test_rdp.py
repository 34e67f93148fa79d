"""Rényi divergences computed at once, against dp-accounting's own and against numerical integration."""

import dp_accounting as dp
import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.accounting.accountants import quiet
from coalmine.accounting.rdp import RdpAccountant, sampled_gaussian_rdp
from coalmine.accounting.sampling import Poisson

RELATION = dp.NeighboringRelation.ADD_OR_REMOVE_ONE


# At (1.0, 0.5) some series take up to 1000 terms, and at noise 0.05 those of fractional orders never end.
@pytest.mark.parametrize("noise", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 0.999])
def test_the_divergences_are_dp_accountings(noise, q):
    event, neighbors = Poisson(q).event(noise, rounds=1)
    with quiet():
        ours, theirs = (
            kind(neighboring_relation=neighbors).compose(event) for kind in (RdpAccountant, dp.rdp.RdpAccountant)
        )
    finite = np.isfinite(theirs._rdp)
    assert np.array_equal(np.isfinite(ours._rdp), finite)
    # Their sums lose the digits of ln A that 1 + (A − 1) loses.
    assert ours._rdp[finite] == pytest.approx(theirs._rdp[finite], rel=1e-11, abs=1e-14)
    with quiet():
        assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize(("noise", "q"), [(0.7, 0.2), (2.0, 0.9)])
def test_whole_orders_are_those_of_the_densities(noise, q):
    x, width = np.linspace(-30 * noise, 40 * noise, 400_001, retstep=True)
    without = stats.norm.pdf(x, 0, noise)
    ratio = (1 - q) + q * np.exp((2 * x - 1) / (2 * noise**2))
    for order in (2, 3, 8):
        exact = np.log(integrate.simpson(without * ratio**order, dx=width)) / (order - 1)
        assert sampled_gaussian_rdp(noise, q, np.array([float(order)])) == pytest.approx(exact, rel=1e-9)


def test_a_divergence_that_rounding_would_hide_is_kept():
    # Order 2 has the closed form ln(1 + q²(e^(1/σ²) − 1)).
    q, noise = 1e-9, 20.0
    exact = np.log1p(q**2 * np.expm1(1 / noise**2))
    assert sampled_gaussian_rdp(noise, q, np.array([2.0])) == pytest.approx(exact, rel=1e-9)
    assert exact < 1e-20


@pytest.mark.parametrize(
    "event",
    [
        dp.NonPrivateDpEvent(),
        dp.GaussianDpEvent(2.0),
        dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(2.0)),
        dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(2.0)),
        dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(0.0)),
    ],
)
def test_other_events_are_composed_by_dp_accounting(event):
    ours, theirs = (
        kind(neighboring_relation=RELATION).compose(event) for kind in (RdpAccountant, dp.rdp.RdpAccountant)
    )
    assert ours.get_epsilon(1e-5) == theirs.get_epsilon(1e-5)
