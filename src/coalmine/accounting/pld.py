"""Privacy loss distributions of Gaussian rounds, as dp-accounting composes them but many times faster.

dp-accounting computes the δ of a round for one ε after another. Here all of them are computed at once, from the same
formulas, and so are the δ of the composed rounds; discretization and composition are dp-accounting's own.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from scipy import special

from coalmine.arrays import Floats


class PldAccountant(dp.pld.PLDAccountant):  # type: ignore[misc]
    """dp-accounting's accountant of privacy loss distributions.

    Args:
        neighbors: The neighboring relation.
        extent: An ε that privacy losses hardly ever exceed.
        step: Discretization step of the privacy losses.
    """

    _pld: Any

    def __init__(self, neighbors: Any, extent: float, step: float) -> None:
        super().__init__(neighbors, value_discretization_interval=step)
        self._extent, self._step = extent, step

    def get_epsilon(self, target_delta: float) -> float:
        """Return the least ε at a δ."""
        with np.errstate(over="ignore"):
            epsilon = super().get_epsilon(target_delta)
        if math.isfinite(epsilon):
            return float(epsilon)
        # For ε between 709 and 745 a quotient overflows inside dp-accounting, and ε comes out as infinity. The δ of
        # a given ε does not overflow, so search for ε. (From 745 on the result is up to 1 too large.)
        search = common.BinarySearchParameters(0, self._extent, tolerance=1e-9 * self._extent)
        inverse = common.inverse_monotone_function(self.get_delta, target_delta, search)
        return math.inf if inverse is None else float(inverse)

    def deltas(self, epsilons: Floats) -> Floats:
        """Return the δ at each ε, the larger one of adding and removing a client."""
        return np.maximum(_deltas(self._pld._pmf_remove, epsilons), _deltas(self._pld._pmf_add, epsilons))

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        sampled = isinstance(event, dp.PoissonSampledDpEvent)
        gaussian = event.event if sampled else event
        if do_compose and isinstance(gaussian, dp.GaussianDpEvent) and gaussian.noise_multiplier > 0:
            # Without sampling, rounds compose to a single one with less noise.
            noise, q = gaussian.noise_multiplier, event.sampling_probability if sampled else 1.0
            if self.neighboring_relation is dp.NeighboringRelation.ADD_OR_REMOVE_ONE and q > 0:
                rounds = gaussian_pld(noise if sampled else noise / math.sqrt(count), q, self._step)
                self._pld = self._pld.compose(rounds.self_compose(count) if sampled else rounds)
                return None
        return super()._maybe_compose(event, count, do_compose)


def gaussian_pld(noise_multiplier: float, q: float, step: float) -> Any:
    """Return dp-accounting's ``PrivacyLossDistribution`` of a Gaussian round with Poisson sampling.

    Args:
        noise_multiplier: The noise multiplier.
        q: Sampling probability, in (0, 1].
        step: Discretization step of the privacy losses.
    """
    adjacency = privacy_loss_mechanism.AdjacencyType
    kinds = [adjacency.REMOVE] if q == 1 else [adjacency.REMOVE, adjacency.ADD]
    pmfs = []
    for kind in kinds:
        losses = privacy_loss_mechanism.GaussianPrivacyLoss(noise_multiplier, sampling_prob=q, adjacency_type=kind)
        bounds = losses.connect_dots_bounds()
        lowest, highest = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
        round_deltas = _deltas_of_removing if kind is adjacency.REMOVE else _deltas_of_adding
        deltas = np.clip(round_deltas(np.arange(lowest, highest + 1) * step, noise_multiplier, q), 0, 1)
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, lowest, highest, deltas))
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def _deltas_of_removing(epsilons: Floats, noise: float, q: float) -> Floats:
    """Return the δ between (1−q)·N(0, σ²) + q·N(−1, σ²) and N(0, σ²) at each ε."""
    deltas = -np.expm1(np.minimum(epsilons, 0.0))  # for ε ≤ ln(1 − q), which the privacy loss always exceeds
    reached = epsilons > (np.log1p(-q) if q < 1 else -np.inf)
    epsilon = epsilons[reached]
    x = -0.5 - noise**2 * _loss_without_sampling(epsilon, q)
    above = (1 - q) * special.ndtr(x / noise) + q * special.ndtr((x + 1) / noise)
    deltas[reached] = above - np.exp(epsilon + special.log_ndtr(x / noise))
    return np.asarray(deltas)


def _deltas_of_adding(epsilons: Floats, noise: float, q: float) -> Floats:
    """Return the δ between N(0, σ²) and (1−q)·N(0, σ²) + q·N(1, σ²) at each ε, for q < 1."""
    deltas = np.zeros_like(epsilons)  # for ε ≥ −ln(1 − q), which the privacy loss never exceeds
    reached = epsilons < -np.log1p(-q)
    epsilon = epsilons[reached]
    x = 0.5 + noise**2 * _loss_without_sampling(-epsilon, q)
    log_below = np.logaddexp(np.log1p(-q) + special.log_ndtr(x / noise), np.log(q) + special.log_ndtr((x - 1) / noise))
    deltas[reached] = special.ndtr(x / noise) - np.exp(epsilon + log_below)
    return deltas


def _loss_without_sampling(loss: Floats, q: float) -> Floats:
    """Return ln(1 + (e^loss − 1)/q), without overflow."""
    if q == 1:
        return loss
    raised, subtracted = loss - math.log(q), math.log(1 / q - 1)
    with np.errstate(divide="ignore"):
        return np.asarray(raised + np.log1p(-np.exp(np.minimum(subtracted - raised, 0.0))))


def _deltas(pmf: Any, epsilons: Floats) -> Floats:
    """Return Σ (1 − e^(ε − loss))·P(loss) over the losses above each ε, and the mass at infinity."""
    dense = pmf.to_dense_pmf()
    losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
    matter = losses > epsilons.min()  # for the others e^−loss could overflow
    losses, probabilities = losses[matter], dense._probs[matter]
    # Sums over the k largest losses, for every k.
    masses = np.cumsum(np.append(dense._infinity_mass, probabilities[::-1]))
    weighed = np.cumsum(np.append(0.0, (probabilities * np.exp(-losses))[::-1]))
    above = losses.size - np.searchsorted(losses, epsilons, side="right")
    return np.asarray(masses[above] - np.exp(epsilons) * weighed[above])
