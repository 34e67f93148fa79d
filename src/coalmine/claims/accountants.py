"""Privacy accountants: a thin layer over Google's dp-accounting, which is imported only when used.

Each accountant gives a proven upper bound on ε:

* ``pld`` composes privacy loss distributions numerically, or in closed form without random sampling: the tightest, and
  the default.
* ``rdp`` composes Rényi divergences and converts them as in Canonne, Kamath & Steinke (2020).
* ``rdp-mironov`` converts the same divergences as in Mironov (2017), which older papers report.

`noise_for` inverts them: the least noise multiplier that reaches an ε.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.claims.sampling import MAX_NOISE, MIN_NOISE, Sampling, Schedule
from coalmine.errors import InputError, check_count, check_nonnegative, check_probability

# Largest ε for which the grid of privacy losses fits into memory; there is no privacy left long before.
MAX_PLD_EPSILON = 1e6

_WHOLE_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512)
_COARSER = 8  # how much coarser PLD's grid may be during a search for noise


def check_accountant(accountant: str | None, sampling: Sampling) -> str:
    """Return the requested accountant, or the tightest one that supports the sampling if none is named."""
    supported = sampling.accountants
    if accountant not in (None, *supported):
        raise InputError(f"the accountant of {sampling} must be one of {', '.join(supported)}, got {accountant!r}")
    return accountant or supported[0]


@lru_cache(maxsize=1024)
def gaussian_epsilon(schedule: Schedule, sampling: Sampling, delta: float, accountant: str, coarser: int = 1) -> float:
    """Return the ε of Gaussian rounds at δ; kept, since it takes seconds and several audits ask for the same claim.

    ``coarser`` is passed to `pld_step`.
    """
    import dp_accounting as dp

    event, neighbors = sampling.event(schedule)
    if isinstance(event, dp.NoOpDpEvent):
        return 0.0
    if isinstance(event, dp.NonPrivateDpEvent) or delta == 0:
        return math.inf
    if accountant == "pld":
        shift = gaussian_shift_of(event)
        if shift is not None:
            return float(dp.get_epsilon_gaussian(1 / shift, delta))  # exact, and much faster than a grid of losses
        extent = extent_of(event, neighbors)
        if extent > MAX_PLD_EPSILON:
            raise InputError(
                f"the pld accountant supports epsilon up to about {MAX_PLD_EPSILON:g}, and RDP gives {extent:.3g}: "
                "use the accountant rdp, or more noise"
            )
        return float(sampled_losses(event, pld_step(event, extent, coarser)).get_epsilon_for_delta(delta))
    return best_order_epsilon(event, neighbors, delta, dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, accountant)


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

    if quickly:
        with quiet():
            return float(new_accountant("rdp", neighbors, orders=_WHOLE_ORDERS).compose(event).get_epsilon(1e-15))
    # dp-accounting's default orders begin at 1.1, too far from 1 for an ε of several hundred.
    orders = [1.02, 1.05, *dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS]
    return best_order_epsilon(event, neighbors, 1e-15, orders, "rdp")


def best_order_epsilon(event: Any, neighbors: Any, delta: float, orders: Sequence[float], accountant: str) -> float:
    """Return the least ε of ``event`` at δ over all Rényi orders, by ``rdp`` or ``rdp-mironov``.

    (α - 1) times the divergence is convex in the order α, so ε first falls and then rises in α: the best of all orders
    lies next to the best whole one. Fractional orders take most of the time, so only those are tried.
    """
    with quiet():
        whole = new_accountant(accountant, neighbors, orders=_WHOLE_ORDERS).compose(event)
        _, best = whole.get_epsilon_and_optimal_order(delta)
        low = max((order for order in _WHOLE_ORDERS if order < best), default=1)
        high = min((order for order in _WHOLE_ORDERS if order > best), default=math.inf)
        # The first order has the smallest divergence; one below δ² makes ε zero whatever the others say.
        nearby = [order for order in orders if low <= order <= high or order == orders[0]]
        return float(new_accountant(accountant, neighbors, orders=nearby).compose(event).get_epsilon(delta))


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


def sampled_losses(event: Any, step: float) -> Any:
    """Return the privacy loss distribution of Poisson-sampled Gaussian rounds, on a grid of ``step``.

    It is that of dp-accounting's accountant, which inverts one loss at a time and takes much longer.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    composed = privacy_loss_distribution.identity(value_discretization_interval=step)
    for part in event.events:
        noise, q = part.event.event.noise_multiplier, part.event.sampling_probability
        directions = []
        for adjacency, sign in ((AdjacencyType.REMOVE, 1), (AdjacencyType.ADD, -1)):
            loss = GaussianPrivacyLoss(noise, sampling_prob=q, adjacency_type=adjacency)
            ends = loss.connect_dots_bounds()
            low, high = math.floor(ends.epsilon_lower / step), math.ceil(ends.epsilon_upper / step)
            epsilons = step * np.arange(low, high + 1)
            # The loss without sampling is ±ln(1 + (exp(±ε) - 1) / q) where the sampled one is ε. Removing a client
            # never has a loss below ln(1 - q), and adding one never one above -ln(1 - q): infinite here.
            scaled = sign * epsilons - math.log(q)
            with np.errstate(divide="ignore", over="ignore"):
                unsampled = scaled + np.log1p(np.maximum(-np.exp(math.log(1 / q - 1) - scaled), -1))
            output = -sign * (0.5 + unsampled * noise**2)  # smaller outputs have larger losses
            deltas = loss.mu_upper_cdf(output) - np.exp(epsilons + loss.mu_lower_log_cdf(output))
            dots = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, np.clip(deltas, 0, 1))
            directions.append(dots)
        losses = privacy_loss_distribution.PrivacyLossDistribution(*directions)
        composed = composed.compose(losses.self_compose(part.count))
    return composed


def deltas_of(losses: Any, epsilons: Floats) -> list[Floats]:
    """Return the δ of `sampled_losses` at each ε ≥ 0, as dp-accounting does in a loop over all losses.

    First for removing a client, then for adding one.
    """
    deltas = []
    for pmf in (losses._pmf_remove.to_dense_pmf(), losses._pmf_add.to_dense_pmf()):
        grid = pmf._discretization * (pmf._lower_loss + np.arange(pmf.size))
        # δ(ε) is the sum of p · (1 - exp(ε - loss)) over all losses above ε; here both parts are summed from the top.
        lower = np.exp(-np.maximum(grid, 0)) * pmf._probs
        above = np.cumsum([pmf._infinity_mass, *pmf._probs[::-1]])
        below = np.cumsum([0.0, *lower[::-1]])
        count = pmf.size - np.searchsorted(grid, epsilons, side="right")
        deltas.append(above[count] - np.exp(epsilons) * below[count])
    return deltas


def new_accountant(name: str, neighbors: Any, orders: Sequence[float] | None = None) -> Any:
    """Return a new dp-accounting accountant of Rényi divergences, ``rdp`` or ``rdp-mironov``, of these orders."""
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(orders, neighbors)
    if name == "rdp-mironov":

        def best(delta: float) -> tuple[float, float]:
            epsilons = accountant._rdp - math.log(delta) / (accountant._orders - 1)
            return float(epsilons.min()), float(accountant._orders[epsilons.argmin()])

        accountant.get_epsilon_and_optimal_order = best
        accountant.get_epsilon = lambda delta: best(delta)[0]
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


def noise_for(*, epsilon: float, sampling: Sampling, rounds: int, delta: float, accountant: str | None = None) -> float:
    """Compute the least noise multiplier for which a `Claim` claims at most ``epsilon``.

    Args:
        epsilon: The ε to reach, at least 0; infinity needs no noise.
        sampling: How clients take part in rounds.
        rounds: Number of training rounds.
        delta: The δ to reach, in (0, 1).
        accountant: One of the accountants above; by default the tightest that supports ``sampling``.

    Returns:
        The noise multiplier, to about 3 digits (fewer near ε = 0); a `Claim` never claims more than ``epsilon`` for it.

    Raises:
        InputError: If an argument is out of range, or no noise multiplier up to 10⁶ reaches ``epsilon``.

    Example:
        >>> from coalmine.claims import EveryRound
        >>> round(noise_for(epsilon=1.0, sampling=EveryRound(), rounds=1, delta=1e-5, accountant="rdp"), 2)
        4.05
    """
    import dp_accounting as dp
    from scipy import optimize  # slow to import

    check_nonnegative("epsilon", epsilon)
    accountant = check_accountant(accountant, sampling)
    rounds = check_count("rounds", rounds, least=0)
    if epsilon == math.inf or isinstance(sampling.event([(1.0, rounds)])[0], dp.NoOpDpEvent):
        return 0.0
    check_probability("delta", delta)  # no Gaussian noise gives a finite ε at δ = 0

    def claimed(noise: float, coarser: int = _COARSER) -> float:
        return gaussian_epsilon(((noise, rounds),), sampling, delta, accountant, coarser)

    def fits(noise: float) -> bool:
        """Whether an accountant can tell the ε of so little noise."""
        event = sampling.event([(noise, rounds)])
        return noise >= MIN_NOISE and (accountant != "pld" or extent_of(*event) <= MAX_PLD_EPSILON)

    # RDP is fast and asks for slightly more noise than PLD, so it gives PLD's search its starting point.
    high = 1.0
    if accountant == "pld":
        high = noise_for(epsilon=epsilon, sampling=sampling, rounds=rounds, delta=delta, accountant="rdp")
    while claimed(high) > epsilon:
        high *= 2
        if high > MAX_NOISE:
            raise InputError(
                f"epsilon {epsilon} at delta {delta} cannot be reached by the {accountant} accountant with a noise "
                f"multiplier up to {MAX_NOISE:g}: use a larger epsilon or delta, or fewer rounds"
            )
    low, wanted = high / 2, max(epsilon, 1e-9)  # at 0 any sufficient noise would do, not only the least
    while fits(low) and claimed(low) <= wanted:
        low, high = low / 2, low
    if not fits(low):
        return high  # almost any noise suffices, for example because δ exceeds the probability of ever taking part
    noise: float = optimize.brentq(lambda noise: claimed(noise) - wanted, low, high, xtol=1e-5 * low)
    # A `Claim` uses a finer grid fitted to this noise, so its last digits may differ.
    while claimed(noise, coarser=1) > epsilon:
        noise *= 1 + 1e-5
    return noise
