"""What theory says: the ε that an accountant promises, and the noise that a promised ε needs.

A thin layer over Google's dp-accounting, which is imported where it is used: importing this module costs nothing.

``noise_multiplier`` is always the standard deviation of the Gaussian noise on the sum of a round's updates, divided
by how far one client can move that sum. The accountants are ``pld`` (privacy loss distributions: the tightest),
``rdp`` (Rényi divergences with the conversion of Canonne, Kamath and Steinke 2020) and ``rdp-mironov`` (the same
divergences with the conversion of Mironov 2017, which older papers report). Each gives an upper bound on ε that holds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from coalmine.accounting.sampling import LEAST_NOISE, MOST_NOISE, EveryRound, FixedSize, Poisson, Sampling, Schedule
from coalmine.errors import InputError, check_count, check_delta, check_number, check_positive

ACCOUNTANTS = ("pld", "rdp", "rdp-mironov")

# Up to about this ε a grid of privacy losses can be held in memory; privacy has ended long before.
_WIDEST_PLD = 1e6

# PLD neglects a mass of 1e-15: nearer to it than this, its δ means little.
_LEAST_PLD_DELTA = 1e-14

# So many different noises of estimates are composed as they are.
_MOST_NOISES = 16

# How much coarser the grid of losses may be while searching for noise.
_SEARCH = 8


@dataclass(frozen=True, kw_only=True)
class Theory:
    """An accountant's promise, (``epsilon``, ``delta``)-DP between neighbors of that ``adjacency``, and its terms."""

    epsilon: float
    delta: float
    accountant: str
    noise_multiplier: float | None
    sampling: str
    q: float | None
    rounds: int
    adjacency: str

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON: an infinite number is the string ``"inf"``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: "inf" if value == math.inf else value for name, value in values.items()}


def claimed(epsilon: float, delta: float) -> Theory:
    """A promise as it was made, whoever made it: for a mechanism whose inside is not known."""
    if not check_number("the claimed epsilon", epsilon) >= 0:
        raise InputError(f"the claimed epsilon must be 0 or more, got {epsilon}")
    return Theory(
        epsilon=float(epsilon),
        delta=check_delta(delta),
        accountant="claimed",
        noise_multiplier=None,
        sampling="as claimed",
        q=None,
        rounds=1,
        adjacency="add-or-remove-one",
    )


def theory(
    *, noise_multiplier: float, sampling: Sampling, rounds: int, delta: float, accountant: str | None = None
) -> Theory:
    """The (ε, δ) of ``rounds`` rounds of the Gaussian mechanism, against an adversary who sees every round's sum.

    Without noise ε is infinite, and so it is at δ = 0, unless no client ever takes part. Where no accountant is named
    it is ``pld``, and ``rdp`` for fixed-size sampling, for which there is no ``pld``. ``pld`` neglects a mass of
    1e-15, and has no figure but infinity for a smaller δ.
    """
    _check_at_least_zero("noise_multiplier", noise_multiplier)
    accountant = _checked_accountant(accountant, sampling)
    rounds = check_count("rounds", rounds, least=0)
    return Theory(
        epsilon=_epsilon_of(float(noise_multiplier), sampling, rounds, check_delta(delta), accountant),
        delta=float(delta),
        accountant=accountant,
        noise_multiplier=float(noise_multiplier),
        sampling=str(sampling),
        q=sampling.rate,
        rounds=rounds,
        adjacency=sampling.adjacency,
    )


@lru_cache(maxsize=64)
def _epsilon_of(noise: float, sampling: Sampling, rounds: int, delta: float, accountant: str) -> float:
    # Several audits of one training ask for the same promise, which takes seconds to compute.
    return _epsilon(*sampling.event(noise, rounds), delta, accountant)


def noise_for(*, epsilon: float, sampling: Sampling, rounds: int, delta: float, accountant: str | None = None) -> float:
    """The least noise multiplier, to 3 digits (fewer near ε = 0), for which ``theory`` promises at most ``epsilon``."""
    import dp_accounting as dp

    _check_at_least_zero("epsilon", epsilon)
    accountant = _checked_accountant(accountant, sampling)
    rounds = check_count("rounds", rounds, least=0)
    if epsilon == math.inf or isinstance(sampling.event(1.0, rounds)[0], dp.NoOpDpEvent):
        return 0.0
    if check_delta(delta) == 0:
        raise InputError(f"no Gaussian noise gives an epsilon of {epsilon} at delta 0: delta must be in (0, 1)")

    def grid(noise: float) -> tuple[float, float]:
        return _grid(*sampling.event(noise, rounds), _SEARCH) if accountant == "pld" else (0.0, 0.0)

    def promised(noise: float) -> float:
        return _epsilon(*sampling.event(noise, rounds), delta, accountant, _SEARCH)

    # RDP is fast and asks for a little more noise than PLD: the place to start from.
    high = 1.0
    if accountant == "pld":
        high = noise_for(epsilon=epsilon, sampling=sampling, rounds=rounds, delta=delta, accountant="rdp")
    while promised(high) > epsilon:
        high *= 2
        if high > MOST_NOISE:
            raise InputError(
                f"epsilon {epsilon} at delta {delta} is out of reach of the {accountant} accountant with any noise "
                f"multiplier up to {MOST_NOISE:g}: give a larger epsilon or delta, or fewer rounds"
            )
    low = high / 2
    while low >= LEAST_NOISE and grid(low)[0] <= _WIDEST_PLD and promised(low) <= epsilon:
        low, high = low / 2, low
    if low < LEAST_NOISE or grid(low)[0] > _WIDEST_PLD:
        return high  # almost any noise will do, as where δ exceeds the chance of ever taking part
    low *= 0.9  # on the finer grid of high, low itself might just be enough
    neighbors, extent, step = sampling.event(high, rounds)[1], grid(low)[0], grid(high)[1]
    with _quiet():
        noise = float(
            dp.calibrate_dp_mechanism(
                lambda: _accountant(accountant, neighbors, extent, step),
                lambda noise: sampling.event(noise, rounds)[0],
                max(epsilon, 1e-9),  # at 0 the search would stop at any noise that is enough, not at the least
                delta,
                dp.ExplicitBracketInterval(low, high),
                tol=1e-5 * low,
            )
        )
    # ``theory`` takes a finer grid, and the one that fits: its last digits may differ.
    while _epsilon(*sampling.event(noise, rounds), delta, accountant) > epsilon:
        noise *= 1 + 1e-5
    return noise


def all_theories(
    *,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    sampling: Sampling,
    rounds: int,
    delta: float,
) -> list[Theory]:
    """What each accountant that fits ``sampling`` says of a noise multiplier, or of the noise ``epsilon`` needs.

    An accountant that cannot tell (an ε out of its reach) is left out; where none can, the first one's reason is given.
    """
    if (noise_multiplier is None) == (epsilon is None):
        raise InputError("give either a noise multiplier or the epsilon to reach")
    found: list[Theory] = []
    reasons: list[InputError] = []
    for name in ACCOUNTANTS:
        if name == "pld" and (isinstance(sampling, FixedSize) or delta < _LEAST_PLD_DELTA):
            continue
        try:
            noise = noise_multiplier
            if epsilon is not None:
                noise = noise_for(epsilon=epsilon, sampling=sampling, rounds=rounds, delta=delta, accountant=name)
            assert noise is not None
            found.append(theory(noise_multiplier=noise, sampling=sampling, rounds=rounds, delta=delta, accountant=name))
        except InputError as reason:
            reasons.append(reason)
    if not found:
        raise reasons[0]
    return found


def round_epsilon(*, noise_multiplier: float, delta: float, accountant: str = "exact") -> float:
    """ε of one round for a client known to take part in it: CANIFE's εᵣ.

    ``exact`` is the Gaussian mechanism's own curve (Balle and Wang 2018), ``rdp`` what CANIFE reports; the other
    accountants of ``theory`` may be named as well.
    """
    if accountant == "exact":
        import dp_accounting as dp

        _check_at_least_zero("noise_multiplier", noise_multiplier)
        return float(dp.get_epsilon_gaussian(noise_multiplier, check_delta(delta)))
    once = EveryRound()
    terms = theory(noise_multiplier=noise_multiplier, sampling=once, rounds=1, delta=delta, accountant=accountant)
    return terms.epsilon


def noise_from_round_epsilon(epsilon: float, delta: float, inversion: str = "exact") -> float:
    """The noise multiplier whose single round is (``epsilon``, ``delta``)-DP: CANIFE's GetNoise, ε̂ᵣ to σ̂ᵣ.

    ``rdp`` is the paper's way: it over-estimates the noise, and what is composed mostly comes out low. ``exact``
    is the inverse of the Gaussian mechanism's own curve. An ε of 0 stands for infinite noise, an infinite one for none.
    """
    _check_at_least_zero("epsilon", epsilon)
    if check_delta(delta) == 0:
        raise InputError("delta must be in (0, 1) to turn an epsilon into Gaussian noise, got 0")
    if inversion not in ("exact", "rdp"):
        raise InputError(f"inversion must be exact or rdp, got {inversion!r}")
    if epsilon == 0:
        return math.inf
    if inversion == "rdp":
        return noise_for(epsilon=epsilon, sampling=EveryRound(), rounds=1, delta=delta, accountant="rdp")
    import dp_accounting as dp

    return float(dp.get_sigma_gaussian(epsilon, delta))


def compose_rounds(
    rounds_epsilon: Sequence[tuple[float, int]],
    *,
    sampling: Sampling,
    delta: float,
    round_delta: float | None = None,
    inversion: str = "exact",
    accountant: str | None = None,
    sensitivity: float = 1.0,
) -> float:
    """ε̂ of a training from estimates of single rounds: CANIFE's GetPrivacy (Maddock et al. 2023, Algorithm 2).

    ``rounds_epsilon`` holds, in the order of the training, (ε̂ᵣ, the number of rounds it stands for). Each ε̂ᵣ becomes
    the noise that has it at ``round_delta`` (``delta`` if not given; the paper takes 1/n for n attack scores), and the
    rounds are composed under ``sampling``. ``sensitivity`` is how far its neighbors move a sum that an ε̂ᵣ's move by
    1: 2 where these add a client and those of ``FixedSize`` replace one. An estimate, not a bound: it is as good as the
    ε̂ᵣ are. Of more than 16 different noises of rounds sampled at random, neighbors are taken together.
    """
    if len(rounds_epsilon) == 0:
        raise InputError("rounds_epsilon must hold at least one pair (epsilon, rounds), got none")
    accountant = _checked_accountant(accountant, sampling)
    at = check_delta(delta) if round_delta is None else round_delta
    check_positive("sensitivity", sensitivity)
    noise = {epsilon: noise_from_round_epsilon(epsilon, at, inversion) / sensitivity for epsilon, _ in rounds_epsilon}
    schedule = [(noise[epsilon], check_count("rounds", rounds, least=0)) for epsilon, rounds in rounds_epsilon]
    if isinstance(sampling, Poisson | FixedSize):
        schedule = _grouped(schedule)
    return scheduled_epsilon(schedule, sampling=sampling, delta=delta, accountant=accountant)


def scheduled_epsilon(schedule: Schedule, *, sampling: Sampling, delta: float, accountant: str | None = None) -> float:
    """ε of a training whose noise changes: ``schedule`` holds (noise multiplier, rounds with it) in their order."""
    return _epsilon(*sampling.schedule_event(schedule), check_delta(delta), _checked_accountant(accountant, sampling))


def _grouped(schedule: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The schedule without its order, in at most 16 noises: each costs the accountant about as much as the next.

    Noises that are alike are replaced by the one with the same mean of 1/σ², which without sampling composes to the
    same, and with it nearly: what is lost is of second order in how much they differ.
    """
    rounds: dict[float, int] = {}
    for noise, count in schedule:
        rounds[noise] = rounds.get(noise, 0) + count
    usual = sorted(noise for noise, count in rounds.items() if count and 0 < noise < math.inf)
    if len(usual) <= _MOST_NOISES:
        return list(rounds.items())
    found = [(noise, count) for noise, count in rounds.items() if count and noise in (0, math.inf)]
    size = -(-len(usual) // _MOST_NOISES)
    for start in range(0, len(usual), size):
        some = usual[start : start + size]
        count = sum(rounds[noise] for noise in some)
        found.append((math.sqrt(count / sum(rounds[noise] / noise**2 for noise in some)), count))
    return found


def local_theory(*, epsilon: float, rounds: int = 1, delta: float = 0.0) -> Theory:
    """The (ε, δ) of ``rounds`` reports of one client, each randomized on its device with pure ``epsilon``-LDP.

    The guarantee is for replacing everything the client reports on. At δ = 0 the reports' ε add up (accountant
    ``pure``); at δ > 0 the optimal composition of pure DP (Kairouz, Oh and Viswanath 2015; ``pld``) gives less.
    """
    _check_at_least_zero("epsilon", epsilon)
    rounds = check_count("rounds", rounds, least=0)
    total, accountant = (rounds * float(epsilon) if rounds else 0.0), "pure"
    # Above 700 e^ε overflows, and there is nothing left to gain.
    if check_delta(delta) > 0 and total > 0 and epsilon < 700:
        import dp_accounting as dp

        # Randomized response loses ±ε: a grid of that step holds every sum of losses without rounding.
        pure = dp.pld.common.DifferentialPrivacyParameters(float(epsilon), 0)
        pld = dp.pld.privacy_loss_distribution.from_privacy_parameters(pure, value_discretization_interval=epsilon)
        composed = float(pld.self_compose(rounds).get_epsilon_for_delta(delta))
        if composed < total:
            total, accountant = composed, "pld"
    return Theory(
        epsilon=total,
        delta=float(delta),
        accountant=accountant,
        noise_multiplier=None,
        sampling=str(EveryRound()),
        q=1.0,
        rounds=rounds,
        adjacency="replace-one",
    )


def _epsilon(event: Any, neighbors: Any, delta: float, accountant: str, coarser: int = 1) -> float:
    import dp_accounting as dp

    if isinstance(event, dp.NoOpDpEvent):
        return 0.0
    if isinstance(event, dp.NonPrivateDpEvent) or delta == 0:
        return math.inf
    extent, step = _grid(event, neighbors, coarser) if accountant == "pld" else (0.0, 0.0)
    if extent > _WIDEST_PLD:
        raise InputError(
            f"the pld accountant reaches to an epsilon of about {_WIDEST_PLD:g}, and here RDP says {extent:.3g}: use "
            "the accountant rdp, or more noise"
        )
    with _quiet():
        return float(_accountant(accountant, neighbors, extent, step).compose(event).get_epsilon(delta))


def _grid(event: Any, neighbors: Any, coarser: int) -> tuple[float, float]:
    """How far the privacy losses of ``event`` reach, but for a mass of 1e-15, and the step in which PLD counts them.

    dp-accounting's own step of 1e-4 suits losses between 2 and 10. Larger ones would take more memory and time (1.6 GB
    and 45 s at an ε of 1,000), smaller ones would drown in the rounding: so the step follows the extent, for some 1e5
    points. Where many grids are needed (a search, many different noises) it is up to 16 times coarser. Rounding adds
    up to step² / 4 a round, which is kept below a thousandth of ε. The step goes by powers of two: a finer grid then
    contains the coarser, so its ε is not larger, and ε falls with noise also where the step changes.
    """
    import dp_accounting as dp

    # dp-accounting's own orders begin at 1.1, too far from 1 for an ε of some hundreds.
    orders = [1.02, 1.05, *dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS]
    with _quiet():
        extent = float(dp.rdp.RdpAccountant(orders, neighbors).compose(event).get_epsilon(1e-15))
    rounds = sum(part.count for part in event.events)
    step = min(max(1e-4, extent / 1e5), extent / 2e4) * min(coarser * len(event.events), 16)
    step = max(min(step, math.sqrt(2e-3 * extent / rounds)), extent / 1e6)
    return extent, 1e-4 * 2.0 ** math.floor(math.log2(step / 1e-4))


def _accountant(name: str, neighbors: Any, extent: float, step: float) -> Any:
    """A fresh dp-accounting accountant; ``extent`` and ``step`` are PLD's."""
    import dp_accounting as dp
    import numpy as np

    class MironovAccountant(dp.rdp.RdpAccountant):  # type: ignore[misc]
        def get_epsilon(self, target_delta: float) -> float:
            return float(np.min(self._rdp - math.log(target_delta) / (self._orders - 1)))

    class PldAccountant(dp.pld.PLDAccountant):  # type: ignore[misc]
        def get_epsilon(self, target_delta: float) -> float:
            with np.errstate(over="ignore"):
                epsilon = super().get_epsilon(target_delta)
            if math.isfinite(epsilon):
                return float(epsilon)
            # Where ε lies between 709 and 745 a quotient in there overflows to a false infinity. The δ of a given ε
            # does not. (From 745 on, what comes out is up to 1 too large.)
            search = dp.pld.common.BinarySearchParameters(0, extent, tolerance=1e-9 * extent)
            found = dp.pld.common.inverse_monotone_function(self.get_delta, target_delta, search)
            return math.inf if found is None else float(found)

    if name == "rdp":
        return dp.rdp.RdpAccountant(neighboring_relation=neighbors)
    if name == "rdp-mironov":
        return MironovAccountant(neighboring_relation=neighbors)
    return PldAccountant(neighbors, value_discretization_interval=step)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide dp-accounting's warnings about Rényi orders that it leaves out: ε is a bound without them too."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_at_least_zero(name: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"{name} must be at least 0, got {value}")


def _checked_accountant(accountant: str | None, sampling: Sampling) -> str:
    """The accountant asked for, or the tightest that fits the sampling."""
    if not isinstance(sampling, Sampling):
        raise InputError(f"sampling must be one such as Poisson(0.01), got {sampling!r}: parse_sampling reads text")
    if accountant is None:
        return "rdp" if isinstance(sampling, FixedSize) else "pld"
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}")
    if accountant == "pld" and isinstance(sampling, FixedSize):
        raise InputError(f"dp-accounting has no pld accountant for fixed-size sampling, got {sampling}: use rdp")
    return accountant
