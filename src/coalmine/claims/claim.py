"""`Claim`: the guarantee that an audit tests, and everything that follows from it.

``noise_multiplier`` is always the standard deviation of the Gaussian noise on the sum of a round's updates, divided by
how far one client can move that sum. Read more in docs/claims.md.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self

import numpy as np

from coalmine.arrays import Floats
from coalmine.claims.accountants import (
    ACCOUNTANTS,
    MAX_PLD_EPSILON,
    check_accountant,
    event_epsilon,
    extent_of,
    gaussian_shift_of,
    new_accountant,
    pld_step,
    quiet,
)
from coalmine.claims.sampling import EveryRound, Poisson, Sampling, Schedule, parse_sampling
from coalmine.errors import InputError, check_count, check_delta, check_kind, check_nonnegative
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, PrivacyProfile

_SPACING = 0.04  # of ε in a profile; its curve is then within 0.1% of the accountant's
_FEWEST, _MOST = 500, 20_000  # points of a profile
_LARGEST = 700.0  # e^ε overflows beyond
_COARSER = 16  # makes PLD ten times faster, and its δ at most 1% larger


class Claim:
    """What is claimed: (ε, δ)-DP between neighboring data sets, and the terms that ε follows from.

    State the noise, and ε follows by an accountant; or state an ε that somebody else computed, or both. An audit fills
    in its own number of rounds. ``epsilon`` at ``delta`` is one point of the guarantee, `curve` is all of it.

    Args:
        noise_multiplier: Standard deviation of the noise on a round's sum, over how far one client can move that sum.
        epsilon: The claimed ε, at least 0, if somebody else computed it.
        delta: The δ at which ε is claimed, in [0, 1).
        sampling: How clients take part in rounds, a `Sampling` or its text. Every round by default; None if nothing is
            known, so that nothing is guaranteed from noise.
        rounds: Number of rounds, or None if the audit knows.
        accountant: ``"pld"``, ``"rdp"`` or ``"rdp-mironov"``, by default the tightest that supports ``sampling``; or
            the name of whoever computed ``epsilon``.
        noise_schedule: Instead of one noise multiplier, pairs (noise multiplier, number of rounds with it), in the
            order of the rounds.
        local_epsilon: ε of each of ``rounds`` reports, if every report has pure ε-LDP by itself.
        adjacency: ``"add-or-remove-one"`` or ``"replace-one"`` client; by default that of ``sampling``.

    Raises:
        InputError: If an argument is out of range, or neither noise nor an ε is stated.

    Example:
        >>> claim = Claim(noise_multiplier=1.0, sampling=Poisson(0.01), rounds=100, delta=1e-5, accountant="rdp")
        >>> round(claim.epsilon, 2)
        1.21
        >>> Claim(epsilon=8.0, delta=1e-5).accountant
        'claimed'
    """

    def __init__(
        self,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float,
        sampling: Sampling | str | None = EveryRound(),  # noqa: B008 (frozen)
        rounds: int | None = None,
        accountant: str | None = None,
        noise_schedule: Schedule = (),
        local_epsilon: float | None = None,
        adjacency: str | None = None,
    ) -> None:
        if isinstance(sampling, str):
            sampling = parse_sampling(sampling)
        if sampling is not None:
            check_kind("sampling", sampling, Sampling, "a sampling such as Poisson(0.01)")
        schedule = tuple((float(noise), int(count)) for noise, count in noise_schedule)
        if schedule:
            rounds = sum(count for _, count in schedule)
            if len({noise for noise, _ in schedule}) == 1:  # one noise multiplier in all rounds is not a schedule
                noise_multiplier, schedule = schedule[0][0], ()
        if noise_multiplier is None and not schedule and epsilon is None and local_epsilon is None:
            raise InputError("a claim needs a noise_multiplier or an epsilon")
        # In the order of the arguments: `vars` is what a claim is compared by, and made again from.
        self.noise_multiplier = _optional("noise_multiplier", noise_multiplier)
        self.stated = _optional("the claimed epsilon", epsilon)
        self.delta = check_delta(delta)
        self.sampling = sampling
        self.rounds = None if rounds is None else check_count("rounds", rounds, least=0)
        self.accountant = accountant or "none"
        self.noise_schedule = schedule
        self.local_epsilon = _optional("epsilon", local_epsilon)
        self.adjacency = adjacency or (sampling or EveryRound()).adjacency
        if self.local_epsilon is not None:
            self.accountant = accountant or ("pld" if self.delta > 0 else "pure")
            self.adjacency = adjacency or "replace-one"
        elif self.stated is not None:
            self.accountant = accountant or "claimed"
        elif sampling is not None:
            self.accountant = check_accountant(accountant, sampling)

    @property
    def epsilon(self) -> float:
        """The claimed ε at ``delta``; infinite without noise, or if nothing is known about the sampling.

        Raises:
            InputError: If it follows from the number of rounds, and that is not known yet.
        """
        if self.stated is not None:
            return float(self.stated)
        if self.rounds is None:
            raise InputError("the claim has no number of rounds: state rounds=, or pass it to an audit's result")
        if self.local_epsilon is not None:
            # At δ = 0 the ε of the reports add up; at δ > 0 the optimal composition of pure DP (Kairouz, Oh &
            # Viswanath, 2015) is smaller.
            total = self.rounds * self.local_epsilon if self.rounds else 0.0
            if self.delta == 0 or total == 0 or self.local_epsilon >= _LARGEST:
                return total
            reports = _randomized_response(self.local_epsilon, self.rounds)
            return min(total, float(reports.get_epsilon_for_delta(self.delta)))
        if self.sampling is None:
            return math.inf
        return _epsilon(self._schedule(1.0), self.sampling, self.delta, self.accountant)

    @property
    def has_noise(self) -> bool:
        """Whether the claim follows from Gaussian noise, so that `curve` can be computed for less of it.

        False if a noise multiplier is stated but nothing is proved from it: by an accountant or for a sampling that is
        not one of ours, or where no client ever takes part.
        """
        return isinstance(self._noise_curve(1.0), GaussianDP | PrivacyProfile)

    @property
    def least_noise(self) -> float | None:
        """The smallest noise multiplier of all rounds, or None if none is stated."""
        return min((noise for noise, _ in self.noise_schedule), default=self.noise_multiplier)

    def replace(self, **changes: Any) -> Claim:
        """Return the claim with other terms, such as ``rounds=10``.

        Example:
            >>> round(Claim(noise_multiplier=4.0, delta=1e-5).replace(rounds=10).epsilon, 2)
            3.34
        """
        terms = {**self._terms(), **changes}
        if "noise_multiplier" in changes or "noise_schedule" in changes or "sampling" in changes:
            # The accountant and the adjacency follow from the new terms, and an ε that was computed from others does
            # not hold for them.
            terms |= {name: changes.get(name) for name in ("epsilon", "accountant", "adjacency")}
        return Claim(**terms)

    def curve(self, noise: float = 1.0) -> Curve:
        """Return the claimed trade-off curve: the highest TPR at each FPR, for both directions of the adjacency.

        As much as the accountant proves: the curve of the composed privacy losses for ``pld``, of the composed Rényi
        divergences for ``rdp``, and the single point (ε, δ) where nothing else is known.

        Args:
            noise: Share of the claimed noise, for the curve of the same rounds with more or less noise. Without a
                noise multiplier ε is divided by it, as for Laplace noise.

        Returns:
            A curve of `coalmine.stats.tradeoff`.

        Example:
            >>> import numpy as np
            >>> claim = Claim(noise_multiplier=1.0, rounds=1, delta=1e-5)
            >>> claim.curve().tpr(np.array(0.01)).round(3), claim.curve(noise=0.5).tpr(np.array(0.01)).round(3)
            (np.float64(0.092), np.float64(0.372))
        """
        curve = self._noise_curve(noise)
        if curve is not None:
            return curve
        if self.local_epsilon is not None and self.rounds is not None:
            return _local_curve(self.local_epsilon / noise, self.rounds)
        return ApproximateDP(self.epsilon / noise, self.delta)

    def _schedule(self, noise: float) -> tuple[tuple[float, int], ...]:
        """Return pairs (noise multiplier, rounds), with a share of the noise."""
        schedule = self.noise_schedule
        if not schedule and self.noise_multiplier is not None and self.rounds is not None:
            schedule = ((self.noise_multiplier, self.rounds),)
        return tuple((sigma * noise, count) for sigma, count in schedule)

    def _noise_curve(self, noise: float) -> Curve | None:
        """Return the curve that follows from a share of the stated noise, or None if none does."""
        schedule = self._schedule(noise)
        if not schedule or self.sampling is None:
            return None
        return _rounds_curve(schedule, self.sampling, self.accountant)

    def _terms(self) -> dict[str, Any]:
        """Return the arguments that make this claim again."""
        return {"epsilon" if name == "stated" else name: value for name, value in vars(self).items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claim) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        terms = ", ".join(f"{name}={value!r}" for name, value in self._terms().items() if value not in (None, ()))
        return f"Claim({terms})"

    def to_dict(self) -> dict[str, Any]:
        """Return the terms and the ε ready for JSON, in which an infinite number is the string ``"inf"``."""
        values = self._terms() | {
            "epsilon": self.epsilon,
            "sampling": "unknown" if self.sampling is None else str(self.sampling),
            "noise_schedule": [list(stretch) for stretch in self.noise_schedule],
            "stated": self.stated is not None,
        }
        return {name: "inf" if value == math.inf else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the claim that `to_dict` wrote. Its ε is computed again unless somebody else had stated it."""
        known = inspect.signature(cls).parameters
        terms: dict[str, Any] = {"sampling": None}
        for name in known.keys() & content.keys() - {"sampling"}:
            terms[name] = math.inf if content[name] == "inf" else content[name]
        with suppress(InputError):  # one that has no text form, or that nothing is known about
            terms["sampling"] = parse_sampling(content.get("sampling", "unknown"))
        if terms["sampling"] is not None and not content.get("stated", True):
            del terms["epsilon"]
        return cls(**terms)


def _optional(name: str, value: float | None) -> float | None:
    return None if value is None else check_nonnegative(name, value)


@lru_cache(maxsize=1024)
def _epsilon(schedule: Schedule, sampling: Sampling, delta: float, accountant: str) -> float:
    """Return the ε of Gaussian rounds; cached, since it takes seconds and several audits ask for the same claim."""
    return event_epsilon(*sampling.event(schedule), delta, accountant)


@lru_cache(maxsize=256)
def _rounds_curve(schedule: Schedule, sampling: Sampling, accountant: str) -> Curve | None:
    """Return the curve that an accountant proves for Gaussian rounds, or None if it does not give one.

    Both directions of adding or removing a client are covered: each δ is the larger one of the two.
    """
    import dp_accounting as dp

    event, neighbors = sampling.event(schedule)
    kind = accountant.removeprefix("opacus-")
    if isinstance(event, dp.NoOpDpEvent):
        return ApproximateDP(0.0, 0.0)
    if isinstance(event, dp.NonPrivateDpEvent):
        return None
    if kind in ("pld", "prv", "exact"):
        if (shift := gaussian_shift_of(event)) is not None:
            return GaussianDP(shift)
        kind = "pld" if isinstance(sampling, Poisson) else "none"
    if kind not in ACCOUNTANTS:
        return None
    extent = extent_of(event, neighbors, quickly=True)
    if not 0 < extent <= MAX_PLD_EPSILON:
        return None
    largest = min(extent, _LARGEST)
    epsilons = np.linspace(0, largest, int(np.clip(largest / _SPACING, _FEWEST, _MOST)))
    with quiet():
        composed = new_accountant(kind, neighbors, pld_step(event, extent, _COARSER)).compose(event)
        if kind == "pld":
            return _falling(epsilons, np.asarray(composed._pld.get_delta_for_epsilon(epsilons)))
    # The least δ over the Rényi orders: Mironov (2017), Proposition 3, or Canonne, Kamath & Steinke (2020), Prop. 12.
    orders = np.asarray(composed._orders)[:, None]
    log_deltas = (orders - 1) * (np.asarray(composed._rdp)[:, None] - epsilons)
    if kind == "rdp":
        log_deltas += (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    return _falling(epsilons, np.exp(np.minimum(log_deltas.min(axis=0), 0.0)))


def _falling(epsilons: Floats, deltas: Floats) -> PrivacyProfile:
    """Return a profile; where rounding disturbs the fall of δ, the larger neighbor is the safe one."""
    return PrivacyProfile(epsilons, np.clip(np.maximum.accumulate(deltas[::-1])[::-1], 0, 1))


def _randomized_response(epsilon: float, reports: int) -> Any:
    """Return the privacy losses of several reports with pure ε-LDP, of which randomized response is the worst case."""
    import dp_accounting as dp

    # Its losses are ±ε: a grid of that step holds all sums exactly.
    pure = dp.pld.common.DifferentialPrivacyParameters(float(epsilon), 0)
    pld = dp.pld.privacy_loss_distribution.from_privacy_parameters(pure, value_discretization_interval=epsilon)
    return pld.self_compose(reports)


def _local_curve(epsilon: float, reports: int) -> Curve:
    """Return the trade-off curve of several reports, each with pure ε-LDP."""
    total = epsilon * reports
    if reports == 1 or not 0 < total <= MAX_PLD_EPSILON or epsilon >= _LARGEST:
        return ApproximateDP(total, 0.0)
    # k of n reports that speak for a member have the privacy loss (2k − n)·ε. The lines of these losses are the curve
    # itself: between two of them δ is linear in e^ε.
    epsilons = epsilon * np.arange(reports % 2, reports + 1, 2, dtype=np.float64)
    return _falling(epsilons, np.asarray(_randomized_response(epsilon, reports).get_delta_for_epsilon(epsilons)))


def parse_claim(text: str, *, delta: float) -> Claim:
    """Read a claim from text.

    Args:
        text: The terms, ``"noise=1.0,sampling=poisson:0.01,rounds=800"``, optionally with ``accountant=rdp``; or just
            an ε, ``"epsilon=8"`` or ``"8"``. Sampling is ``every-round`` and rounds 1 unless stated.
        delta: The δ at which ε is claimed.

    Raises:
        InputError: If the text is neither of these.

    Example:
        >>> parse_claim("noise=1.0,sampling=poisson:0.01,rounds=800", delta=1e-5).rounds
        800
        >>> parse_claim("epsilon=8", delta=1e-5).epsilon
        8.0
    """
    with suppress(ValueError):
        text = f"epsilon={float(text)}"
    pairs = [part.strip().partition("=")[::2] for part in text.split(",")]
    terms = dict(pairs)
    by_noise = "noise" in terms and terms.keys() <= {"noise", "sampling", "rounds", "accountant"}
    try:
        numbers = [float(terms[name]) for name in ("epsilon", "noise", "rounds") if name in terms]
        if len(terms) < len(pairs) or not (by_noise or terms.keys() == {"epsilon"}) or not np.isfinite(numbers).all():
            raise ValueError
    except ValueError:
        raise InputError(
            "a claim must look like noise=1.0,sampling=poisson:0.01,rounds=800 or epsilon=8, with finite numbers, "
            f"got {text!r}"
        ) from None
    if not by_noise:
        return Claim(epsilon=float(terms["epsilon"]), delta=delta)
    return Claim(
        noise_multiplier=float(terms["noise"]),
        sampling=parse_sampling(terms.get("sampling", EveryRound.name)),
        rounds=check_count("rounds of a claim", float(terms.get("rounds", "1"))),
        delta=delta,
        accountant=terms.get("accountant"),
    )
