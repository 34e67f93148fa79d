"""Rényi divergences of Gaussian rounds with Poisson sampling, as dp-accounting computes them but many times faster.

dp-accounting adds up the series of one order after another, term by term. Here the terms are arrays.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.arrays import Floats

_TERMS = (32, 180, 1000)  # tried in turn: most series are short, and dp-accounting gives up after 1000 terms too
_NEGLIGIBLE = 30.0  # terms below e^−30 of the sum end a series, as in dp-accounting


class RdpAccountant(dp.rdp.RdpAccountant):  # type: ignore[misc]
    """dp-accounting's accountant of Rényi divergences."""

    _orders: Floats
    _rdp: Floats

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if (
            do_compose
            and isinstance(event, dp.PoissonSampledDpEvent)
            and isinstance(event.event, dp.GaussianDpEvent)
            and self.neighboring_relation is dp.NeighboringRelation.ADD_OR_REMOVE_ONE
        ):
            q, noise = event.sampling_probability, event.event.noise_multiplier
            if 0 < q < 1 and noise > 0:
                self._rdp += count * sampled_gaussian_rdp(noise, q, self._orders)
                return None
        return super()._maybe_compose(event, count, do_compose)


def sampled_gaussian_rdp(noise_multiplier: float, q: float, orders: Floats) -> Floats:
    """Return the Rényi divergences of a Gaussian round with Poisson sampling (Mironov, Talwar & Zhang, 2019).

    Args:
        noise_multiplier: The noise multiplier, positive.
        q: Sampling probability, in (0, 1).
        orders: Orders above 1, shape (k,).

    Returns:
        The divergence of each order, shape (k,); infinite where the series does not converge.
    """
    whole = orders == np.floor(orders)
    log_moments = np.empty(orders.size)
    log_moments[whole] = [_log_moment_of_whole_order(noise_multiplier, q, int(order)) for order in orders[whole]]
    log_moments[~whole] = _log_moments_of_fractional_orders(noise_multiplier, q, orders[~whole])
    return np.asarray(log_moments / (orders - 1))


def _log_moment_of_whole_order(noise: float, q: float, order: int) -> float:
    """Return ln A(α) for a whole α, Section 3.3 of the paper.

    A = Σ C(α, i) qⁱ (1−q)^(α−i) e^((i²−i)/2σ²). The binomial weights add up to 1, so that A − 1 is the same sum of
    e^(…) − 1: none of its terms is negative, and a small ln A is not lost to rounding.
    """
    i = np.arange(2, order + 1)
    exponents = (i * i - i) / (2 * noise**2)
    log_terms = (
        _log_binomial(order, i) + i * math.log(q) + (order - i) * math.log1p(-q)
        + exponents + np.log(-np.expm1(-exponents))
    )  # fmt: skip
    return float(np.logaddexp.reduce(log_terms, initial=0.0))


def _log_moments_of_fractional_orders(noise: float, q: float, orders: Floats) -> Floats:
    """Return ln A(α) for fractional α: two infinite series, Section 3.3 of the paper; infinity if they are too long."""
    log_moments = np.full(orders.size, np.inf)
    left = np.arange(orders.size)
    for terms in _TERMS:
        sums, ended = _fractional_sums(noise, q, orders[left], terms)
        log_moments[left[ended]] = sums[ended]
        left = left[~ended]
    return log_moments


def _fractional_sums(noise: float, q: float, orders: Floats, terms: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return ln A(α) up to the first negligible terms, and whether such terms are among the first ``terms``."""
    z0 = noise**2 * math.log(1 / q - 1) + 0.5
    i = np.arange(terms)
    j = orders[:, None] - i
    log_binomials = _log_binomial(orders[:, None], i)
    below = log_binomials + i * math.log(q) + j * math.log1p(-q)
    below += (i * i - i) / (2 * noise**2) + special.log_ndtr((z0 - i) / noise)
    above = log_binomials + j * math.log(q) + i * math.log1p(-q)
    above += (j * j - j) / (2 * noise**2) + special.log_ndtr((j - z0) / noise)
    sums = np.logaddexp(np.logaddexp.accumulate(below, axis=1), np.logaddexp.accumulate(above, axis=1))
    last = (
        (np.diff(below, axis=1) < 0)
        & (np.diff(above, axis=1) < 0)
        & (np.maximum(below, above)[:, 1:] < sums[:, 1:] - _NEGLIGIBLE)
    )
    return sums[np.arange(orders.size), 1 + last.argmax(axis=1)], last.any(axis=1)


def _log_binomial(n: Any, k: Any) -> Any:
    """Return ln |C(n, k)|: for fractional n the signs of a series alternate, and all terms are added to be safe."""
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
