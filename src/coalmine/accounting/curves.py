"""Trade-off curves of claims: everything that an accountant proves, of which ε at one δ is a single point."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from coalmine.accounting.accountants import (
    MAX_PLD_EPSILON,
    extent_of,
    gaussian_shift_of,
    new_accountant,
    pld_step,
    quiet,
)
from coalmine.accounting.sampling import Poisson, Sampling, Schedule
from coalmine.arrays import Floats
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, PrivacyProfile

_SPACING = 0.04  # of ε in a profile; its curve is then within 0.1% of the accountant's
_FEWEST, _MOST = 500, 20_000
_LARGEST = 700.0  # e^ε overflows beyond
_COARSER = 16  # makes PLD ten times faster, and its δ at most 1% larger


def training_curve(schedule: Schedule, sampling: Sampling, accountant: str) -> Curve | None:
    """Return the trade-off curve that an accountant proves for Gaussian rounds, or None if it does not give one.

    Both directions of adding or removing a client are covered: each δ is the larger one of the two.

    Args:
        schedule: Pairs (noise multiplier, number of rounds with it), in the order of the training.
        sampling: How clients take part in rounds.
        accountant: One of `ACCOUNTANTS`, ``"exact"`` for rounds without random sampling, or an accountant of Opacus.
    """
    return _cached(tuple((float(noise), int(rounds)) for noise, rounds in schedule), sampling, accountant)


@lru_cache(maxsize=256)
def _cached(schedule: tuple[tuple[float, int], ...], sampling: Sampling, accountant: str) -> Curve | None:
    import dp_accounting as dp

    event, neighbors = sampling.schedule_event(schedule)
    if isinstance(event, dp.NoOpDpEvent):
        return ApproximateDP(0.0, 0.0)
    if isinstance(event, dp.NonPrivateDpEvent):
        return None
    kind = accountant.removeprefix("opacus-")
    if kind in ("pld", "prv", "exact"):
        if (shift := gaussian_shift_of(event)) is not None:
            return GaussianDP(shift)
        return _profile(event, neighbors, "pld") if isinstance(sampling, Poisson) else None
    return _profile(event, neighbors, kind) if kind in ("rdp", "rdp-mironov") else None


def _profile(event: Any, neighbors: Any, accountant: str) -> Curve | None:
    """Return δ at many ε by an accountant."""
    extent = extent_of(event, neighbors, quickly=True)
    if not 0 < extent <= MAX_PLD_EPSILON:
        return None
    largest = min(extent, _LARGEST)
    epsilons = np.linspace(0, largest, int(np.clip(largest / _SPACING, _FEWEST, _MOST)))
    step = pld_step(event, extent, _COARSER) if accountant == "pld" else 0.0
    with quiet():
        composed = new_accountant(accountant, neighbors, extent, step).compose(event)
        if accountant == "pld":
            return _falling(epsilons, composed.deltas(epsilons))
    return _falling(epsilons, _rdp_deltas(composed, epsilons, improved=accountant == "rdp"))


def _rdp_deltas(accountant: Any, epsilons: Floats, *, improved: bool) -> Floats:
    """Return the least δ over the Rényi orders, by the conversion of the accountant."""
    orders = np.asarray(accountant._orders)[:, None]
    log_deltas = (orders - 1) * (np.asarray(accountant._rdp)[:, None] - epsilons)  # Mironov (2017), Proposition 3
    if improved:
        # Canonne, Kamath & Steinke (2020), Proposition 12.
        log_deltas += (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    deltas: Floats = np.exp(np.minimum(log_deltas.min(axis=0), 0.0))
    return deltas


def _falling(epsilons: Floats, deltas: Floats) -> PrivacyProfile:
    """Return a profile; where rounding disturbs the fall of δ, the larger neighbor is the safe one."""
    return PrivacyProfile(epsilons, np.clip(np.maximum.accumulate(deltas[::-1])[::-1], 0, 1))


def local_curve(epsilon: float, reports: int) -> Curve:
    """Return the trade-off curve of several reports, each with pure ε-LDP: the worst case is randomized response.

    Args:
        epsilon: The ε of one report.
        reports: Number of reports.
    """
    total = epsilon * reports
    if reports == 1 or not 0 < total <= MAX_PLD_EPSILON or epsilon >= 700:
        return ApproximateDP(total, 0.0)
    # Randomized response has the privacy loss ±ε, so k of n reports that speak for a member have (2k − n)·ε. The lines
    # of these losses are the curve itself: between two of them δ is linear in e^ε.
    import dp_accounting as dp

    pure = dp.pld.common.DifferentialPrivacyParameters(float(epsilon), 0)
    pld = dp.pld.privacy_loss_distribution.from_privacy_parameters(pure, value_discretization_interval=epsilon)
    epsilons = epsilon * np.arange(reports % 2, reports + 1, 2, dtype=np.float64)
    deltas = np.asarray(pld.self_compose(reports).get_delta_for_epsilon(epsilons))
    return _falling(epsilons, deltas)
