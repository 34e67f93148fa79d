"""Privacy loss distributions computed at once, against dp-accounting's own and against numerical integration."""

import dp_accounting as dp
import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.accounting.pld import PldAccountant, gaussian_pld
from coalmine.accounting.sampling import EveryRound, Poisson

RELATION = dp.NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize(
    ("noise", "q", "rounds", "step"),
    [
        (0.8, 0.1, 50, 2e-3),
        (0.8, 0.01, 1000, 1e-3),
        (0.3, 0.9, 3, 5e-3),
        (10.0, 0.001, 100_000, 1e-4),  # few losses: dp-accounting keeps them as a dictionary
        (0.03, 0.01, 2, 0.1),  # losses beyond e^700
        (1.0, 1.0, 20, 2e-3),
    ],
)
def test_the_deltas_and_epsilons_are_dp_accountings(noise, q, rounds, step):
    event, neighbors = (EveryRound() if q == 1 else Poisson(q)).event(noise, rounds)
    ours = PldAccountant(neighbors, 100.0, step).compose(event)
    theirs = dp.pld.PLDAccountant(neighbors, value_discretization_interval=step).compose(event)
    assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-8)
    epsilons = np.linspace(0, 50, 200)
    assert ours.deltas(epsilons) == pytest.approx(theirs.get_delta(epsilons), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("noise", "q"), [(0.7, 0.2), (2.0, 0.9), (1.0, 1.0)])
def test_one_round_has_the_deltas_of_its_densities(noise, q):
    x, width = np.linspace(-12 * noise - 1, 12 * noise + 1, 400_001, retstep=True)
    without = stats.norm.pdf(x, 0, noise)
    inserted = (1 - q) * without + q * stats.norm.pdf(x, 1, noise)
    pld = gaussian_pld(noise, q, 1e-4)
    for epsilon in (0.0, 0.1, 0.5, 1.5):
        exact = max(
            integrate.simpson(np.maximum(above - np.exp(epsilon) * below, 0), dx=width)
            for above, below in ((without, inserted), (inserted, without))
        )
        # The discretization rounds up, by up to step²/4.
        assert exact - 1e-9 <= pld.get_delta_for_epsilon(epsilon) <= exact + 1e-7


@pytest.mark.parametrize("event", [dp.NonPrivateDpEvent(), dp.GaussianDpEvent(0.0), dp.LaplaceDpEvent(1.0)])
def test_other_events_are_composed_by_dp_accounting(event):
    ours = PldAccountant(RELATION, 10.0, 1e-3).compose(event)
    theirs = dp.pld.PLDAccountant(RELATION, value_discretization_interval=1e-3).compose(event)
    assert ours.get_epsilon(1e-5) == theirs.get_epsilon(1e-5)
