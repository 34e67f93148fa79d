"""Privacy accountants: a thin layer over Google's dp-accounting, which is imported only when used.

Each accountant gives a proven upper bound on ε:

* ``pld`` composes privacy loss distributions numerically, or in closed form without random sampling: the tightest, and
  the default.
* ``rdp`` composes Rényi divergences and converts them as in Canonne, Kamath & Steinke (2020).
* ``rdp-mironov`` converts the same divergences as in Mironov (2017), which older papers report.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coalmine.claims.sampling import FixedSize, Sampling
from coalmine.errors import InputError

ACCOUNTANTS = ("pld", "rdp", "rdp-mironov")
"""Names of the accountants, the tightest first."""

# Largest ε for which the grid of privacy losses fits into memory; there is no privacy left long before.
MAX_PLD_EPSILON = 1e6

# PLD truncates a mass of 1e-15, so its results mean little for a δ close to that.
MIN_PLD_DELTA = 1e-14

_WHOLE_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512)


def check_accountant(accountant: str | None, sampling: Sampling) -> str:
    """Return the requested accountant, or the tightest one that supports the sampling if none is named."""
    if accountant is None:
        return "rdp" if isinstance(sampling, FixedSize) else "pld"
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}")
    if accountant == "pld" and isinstance(sampling, FixedSize):
        raise InputError(f"dp-accounting has no pld accountant for fixed-size sampling, got {sampling}: use rdp")
    return accountant


def event_epsilon(event: Any, neighbors: Any, delta: float, accountant: str, coarser: int = 1) -> float:
    """Return the ε of a dp-accounting event at δ; ``coarser`` is passed to `pld_step`."""
    import dp_accounting as dp

    if isinstance(event, dp.NoOpDpEvent):
        return 0.0
    if isinstance(event, dp.NonPrivateDpEvent) or delta == 0:
        return math.inf
    step = 0.0
    if accountant == "pld":
        extent = extent_of(event, neighbors)
        if extent > MAX_PLD_EPSILON:
            raise InputError(
                f"the pld accountant supports epsilon up to about {MAX_PLD_EPSILON:g}, and RDP gives {extent:.3g}: "
                "use the accountant rdp, or more noise"
            )
        if (shift := gaussian_shift_of(event)) is not None:
            return float(dp.get_epsilon_gaussian(1 / shift, delta))  # exact, and much faster than a grid of losses
        step = pld_step(event, extent, coarser)
    with quiet():
        return float(new_accountant(accountant, neighbors, step).compose(event).get_epsilon(delta))


def gaussian_shift_of(event: Any) -> float | None:
    """Return the μ of the Gaussian mechanism that all rounds together are, or None if some are sampled at random."""
    import dp_accounting as dp

    if not all(isinstance(part.event, dp.GaussianDpEvent) for part in event.events):
        return None
    # Rounds of μₜ = 1/σₜ compose to (Σ μₜ²)^½ (Dong, Roth & Su, 2019, Corollary 3.3).
    return math.sqrt(sum(part.count / part.event.noise_multiplier**2 for part in event.events))


def extent_of(event: Any, neighbors: Any, *, quickly: bool = False) -> float:
    """Return an ε at which ``event`` is (ε, 1e-15)-DP: larger privacy losses hardly ever occur.

    Args:
        event: A dp-accounting event.
        neighbors: The neighboring relation it holds for.
        quickly: Whether to leave out fractional Rényi orders, which take most of the time. ε is then up to twice as
            large.
    """
    import dp_accounting as dp

    # dp-accounting's default orders begin at 1.1, too far from 1 for an ε of several hundred.
    orders = [1.02, 1.05, *dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS]
    with quiet():
        accountant = dp.rdp.RdpAccountant(_WHOLE_ORDERS if quickly else orders, neighbors)
        return float(accountant.compose(event).get_epsilon(1e-15))


def pld_step(event: Any, extent: float, coarser: int) -> float:
    """Return PLD's discretization step for privacy losses that extend to ``extent``.

    dp-accounting's default step of 1e-4 suits losses between 2 and 10. Larger losses would take too much memory and
    time (1.6 GB and 45 s at an ε of 1,000), and smaller ones would drown in rounding. So the step follows the extent,
    with about 1e5 points, and is up to 16 times coarser if many grids are needed: in a search, or for many noise
    levels.
    """
    rounds = sum(part.count for part in event.events)
    step = min(max(1e-4, extent / 1e5), extent / 2e4) * min(coarser * len(event.events), 16)
    # Rounding adds up to step²/4 per round; this keeps the total below a thousandth of ε.
    step = max(min(step, math.sqrt(2e-3 * extent / rounds)), extent / 1e6)
    # Powers of two: a finer grid then contains the coarser one, so its ε is not larger, and ε decreases with noise even
    # where the step changes.
    return 1e-4 * 2.0 ** math.floor(math.log2(step / 1e-4))


def new_accountant(name: str, neighbors: Any, step: float) -> Any:
    """Return a new dp-accounting accountant; ``step`` is that of `pld_step`."""
    import dp_accounting as dp

    if name == "pld":
        return dp.pld.PLDAccountant(neighbors, value_discretization_interval=step)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=neighbors)
    if name == "rdp-mironov":
        orders = accountant._orders
        accountant.get_epsilon = lambda delta: float((accountant._rdp - math.log(delta) / (orders - 1)).min())
    return accountant


@contextmanager
def quiet() -> Iterator[None]:
    """Hide dp-accounting's warnings about skipped Rényi orders; without them ε is still an upper bound."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
