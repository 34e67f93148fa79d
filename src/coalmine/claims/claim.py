"""`Claim`: the guarantee that an audit tests, and everything that follows from it.

``noise_multiplier`` is always the standard deviation of the Gaussian noise on the sum of a round's updates, divided by
how far one client can move that sum. Read more in docs/claims.md. CANIFE's accounting of single rounds is at the end:
Maddock, Sablayrolles & Stock (2023), Algorithm 2.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self

import numpy as np

from coalmine.claims.accountants import (
    MAX_PLD_EPSILON,
    check_accountant,
    deltas_of,
    extent_of,
    gaussian_epsilon,
    gaussian_shift_of,
    new_accountant,
    noise_for,
    pld_step,
    quiet,
    sampled_losses,
)
from coalmine.claims.sampling import SENSITIVITY, EveryRound, FixedSize, Poisson, Sampling, Schedule, parse_sampling
from coalmine.errors import (
    InputError,
    check_count,
    check_delta,
    check_kind,
    check_nonnegative,
    check_positive,
    check_probability,
)
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, PrivacyProfile

_SPACING = 0.04  # of ε in a profile; its curve is then within 0.1% of the accountant's
_FEWEST, _MOST = 500, 20_000  # points of a profile
_LARGEST = 700.0  # e^ε overflows beyond
_COARSER = 16  # makes PLD ten times faster, and its δ at most 1% larger
_SAME_AS = {"exact": "pld", "opacus-prv": "pld", "opacus-rdp": "rdp"}  # accountants by other names
_MAX_NOISE_LEVELS = 16  # of which CANIFE's rounds are composed, since accounting time is linear in them


class Claim:
    """What is claimed: (ε, δ)-DP between neighboring data sets, and the terms that ε follows from.

    State the noise, and ε follows by an accountant; or state an ε that somebody else computed. With both, an audit asks
    whether that ε follows from the noise, and tests the noise. It fills in its own number of rounds. ``epsilon`` at
    ``delta`` is one point of the guarantee, `curve` is all of it.

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
        if len(dict(schedule)) == 1:  # one noise multiplier in all rounds is not a schedule
            noise_multiplier, schedule = schedule[0][0], ()
        numbers = {"noise_multiplier": noise_multiplier, "epsilon": epsilon, "local_epsilon": local_epsilon}
        stated = {name: check_nonnegative(name, value) for name, value in numbers.items() if value is not None}
        if not stated and not schedule:
            raise InputError("a claim needs a noise_multiplier or an epsilon")
        # In the order of the arguments: `vars` is what a claim is compared by, and made again from.
        self.noise_multiplier = stated.get("noise_multiplier")
        self.stated = stated.get("epsilon")
        self.delta = check_delta(delta)
        self.sampling = sampling
        self.rounds = None if rounds is None else check_count("rounds", rounds, least=0)
        self.accountant = accountant or "none"
        self.noise_schedule = schedule
        self.local_epsilon = stated.get("local_epsilon")
        self.adjacency = adjacency or (sampling or EveryRound()).adjacency
        if self.local_epsilon is not None:
            self.accountant = accountant or ("pld" if self.delta > 0 else "pure")
            self.adjacency = adjacency or "replace-one"
        elif self.stated is not None:
            self.accountant = accountant or "claimed"
        elif sampling is not None:
            self.accountant = check_accountant(accountant, sampling)
        if self.adjacency not in SENSITIVITY:
            raise InputError(f"adjacency must be {' or '.join(SENSITIVITY)}, got {self.adjacency!r}")

    @property
    def epsilon(self) -> float:
        """The claimed ε at ``delta``; infinite without noise, or if nothing is known about the sampling.

        Raises:
            InputError: If it follows from the number of rounds, and that is not known yet.
        """
        if self.stated is not None:
            return self.stated
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
        return gaussian_epsilon(self._schedule(1.0), self.sampling, self.delta, self.accountant)

    @property
    def has_noise(self) -> bool:
        """Whether the claim follows from Gaussian noise, so that `curve` can be computed for less of it.

        False if a noise multiplier is stated but nothing is proved from it: for a sampling that is not one of ours, or
        where no client ever takes part.
        """
        curve = _rounds_curve(self._schedule(1.0), self.sampling, self.accountant)
        return isinstance(curve, GaussianDP | PrivacyProfile)

    @property
    def least_noise(self) -> float | None:
        """The smallest noise multiplier of all rounds, or None if none is stated."""
        return min((noise for noise, _ in self.noise_schedule), default=self.noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """How far one client can move a round's sum, in clip norms: the noise multiplier is per so much.

        A canary is added, which moves the sum by one clip norm, whatever the claim says of clients.
        """
        return SENSITIVITY[self.adjacency]

    def replace(self, **changes: Any) -> Claim:
        """Return the claim with other terms, such as ``rounds=10``.

        Example:
            >>> round(Claim(noise_multiplier=4.0, delta=1e-5).replace(rounds=10).epsilon, 2)
            3.34
        """
        terms = {**self._terms(), **changes}
        if changes.keys() & {"noise_multiplier", "noise_schedule", "sampling"}:
            # The accountant and the adjacency follow from the new terms, and an ε that was computed from others does
            # not hold for them.
            terms |= {name: changes.get(name) for name in ("epsilon", "accountant", "adjacency")}
        return Claim(**terms)

    def tests(self, other: Claim) -> bool:
        """Whether refuting this claim refutes another: both are the same, or about the same noise."""
        least, claimed = self.least_noise, other.least_noise
        if least is None or claimed is None:
            return self == other or self.epsilon == math.inf  # which is never refuted
        # As standard deviations over one clip norm; a replaced client moves the sum by two of them.
        noise = least * self.sensitivity
        return math.isclose(noise, claimed) or math.isclose(noise, claimed * other.sensitivity)

    def curve(self, noise: float = 1.0) -> Curve:
        """Return the claimed trade-off curve: the highest TPR at each FPR, for both directions of the adjacency.

        As much as the accountant proves from the noise: the curve of the composed privacy losses for ``pld``, of the
        composed Rényi divergences for ``rdp``, and the single point (ε, δ) where nothing else is known. An accountant
        that is not ours counts as the tightest.

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
        curve = _rounds_curve(self._schedule(noise), self.sampling, self.accountant)
        if curve is None and self.local_epsilon is not None and self.rounds is not None:
            curve = _local_curve(self.local_epsilon / noise, self.rounds)
        if curve is None and noise != 1 and self.has_noise:
            # No accountant says what so little noise allows. ε over the share may be far less, since ε grows faster.
            return ApproximateDP(0.0, 1.0)
        return curve or ApproximateDP(self.epsilon / noise, self.delta)

    def _schedule(self, noise: float) -> tuple[tuple[float, int], ...]:
        """Return pairs (noise multiplier, rounds), with a share of the noise."""
        schedule = self.noise_schedule
        if not schedule and self.noise_multiplier is not None and self.rounds is not None:
            schedule = ((self.noise_multiplier, self.rounds),)
        return tuple((sigma * noise, count) for sigma, count in schedule)

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


@lru_cache(maxsize=256)
def _rounds_curve(schedule: Schedule, sampling: Sampling | None, accountant: str) -> Curve | None:
    """Return the curve that an accountant proves for Gaussian rounds, or None if it does not give one.

    Both directions of adding or removing a client are covered: each δ is the larger one of the two. Where they differ,
    as for sampled rounds, they are the `directions` of the curve.
    """
    import dp_accounting as dp

    if not schedule or sampling is None:
        return None
    event, neighbors = sampling.event(schedule)
    kind = _SAME_AS.get(accountant, accountant)
    if kind not in sampling.accountants:
        kind = sampling.accountants[0]
    if isinstance(event, dp.NoOpDpEvent):
        return ApproximateDP(0.0, 0.0)
    if isinstance(event, dp.NonPrivateDpEvent):
        return None
    shift = gaussian_shift_of(event)
    if kind == "pld" and shift is not None:
        return GaussianDP(shift)
    extent = extent_of(event, neighbors, quickly=True)
    if not 0 < extent <= MAX_PLD_EPSILON:
        return None
    largest = min(extent, _LARGEST)
    epsilons = np.linspace(0, largest, int(np.clip(largest / _SPACING, _FEWEST, _MOST)))
    if kind == "pld":
        losses = sampled_losses(event, pld_step(event, extent, _COARSER))
        return PrivacyProfile.of_both(epsilons, *deltas_of(losses, epsilons))
    with quiet():
        composed = new_accountant(kind, neighbors).compose(event)
    # The least δ over the Rényi orders: Mironov (2017), Proposition 3, or Canonne, Kamath & Steinke (2020), Prop. 12.
    orders = np.asarray(composed._orders)[:, None]
    log_deltas = (orders - 1) * (np.asarray(composed._rdp)[:, None] - epsilons)
    if kind == "rdp":
        log_deltas += (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    return PrivacyProfile(epsilons, np.exp(np.minimum(log_deltas.min(axis=0), 0.0)))


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
    return PrivacyProfile(epsilons, np.asarray(_randomized_response(epsilon, reports).get_delta_for_epsilon(epsilons)))


def parse_claim(text: str, *, delta: float) -> Claim:
    """Read a claim from text.

    Args:
        text: The terms, ``"noise=1.0,sampling=poisson:0.01,rounds=800"``, optionally with ``accountant=rdp`` or with
            the ε that somebody computed from them, ``epsilon=2``; or just an ε, ``"epsilon=8"`` or ``"8"``. Sampling
            is ``every-round`` and rounds 1 unless stated.
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
    terms, numbers = dict(pairs), dict[str, float]()
    allowed = {"noise", "epsilon", "sampling", "rounds", "accountant"} if "noise" in terms else {"epsilon"}
    with suppress(ValueError):
        numbers = {name: float(terms[name]) for name in ("noise", "epsilon", "rounds") if name in terms}
    finite = numbers and all(map(math.isfinite, numbers.values()))
    if len(terms) < len(pairs) or not terms.keys() <= allowed or not finite:
        raise InputError(
            "a claim must look like noise=1.0,sampling=poisson:0.01,rounds=800 or epsilon=8, with finite numbers, "
            f"got {text!r}"
        )
    if "noise" not in numbers:
        return Claim(epsilon=numbers["epsilon"], delta=delta)
    return Claim(
        noise_multiplier=numbers["noise"],
        epsilon=numbers.get("epsilon"),
        sampling=terms.get("sampling", EveryRound.name),
        rounds=check_count("rounds of a claim", numbers.get("rounds", 1)),
        delta=delta,
        accountant=terms.get("accountant"),
    )


def round_epsilon(*, noise_multiplier: float, delta: float, accountant: str = "pld") -> float:
    """Compute the ε of a single round for a client known to take part in it: CANIFE's εᵣ.

    Args:
        noise_multiplier: Standard deviation of the noise on the sum over the clip norm, at least 0.
        delta: The δ at which ε is stated, in [0, 1).
        accountant: ``"pld"``, for one round the Gaussian mechanism's own curve (Balle & Wang, 2018), ``"rdp"`` for the
            value that CANIFE reports, or another of `ACCOUNTANTS`.

    Returns:
        The ε of the round.

    Raises:
        InputError: If an argument is out of range or the accountant is unknown.

    Example:
        >>> round(round_epsilon(noise_multiplier=1.0, delta=0.01), 4)
        2.3178
    """
    return Claim(noise_multiplier=noise_multiplier, rounds=1, delta=delta, accountant=accountant).epsilon


def noise_from_round_epsilon(epsilon: float, delta: float, inversion: str = "exact") -> float:
    """Compute the noise multiplier at which a single round is (ε, δ)-DP: CANIFE's GetNoise, from ε̂ᵣ to σ̂ᵣ.

    Args:
        epsilon: The ε of one round, at least 0; 0 means infinite noise, infinity none.
        delta: The δ of one round, in (0, 1).
        inversion: ``"exact"`` inverts the Gaussian mechanism's own curve. ``"rdp"`` is the paper's way, which
            overestimates the noise, so that the composed ε̂ is usually too low.

    Returns:
        The noise multiplier.

    Raises:
        InputError: If an argument is out of range or the inversion is unknown.

    Example:
        >>> round(noise_from_round_epsilon(1.0, 0.01), 4)
        1.8779
    """
    check_nonnegative("epsilon", epsilon)
    check_probability("delta", delta)  # no Gaussian noise gives a finite ε at δ = 0
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
    """Compose estimates of single rounds into an ε̂ of the training: CANIFE's GetPrivacy (Algorithm 2).

    An estimate, not a bound, even if the per-round values are bounds: it assumes Gaussian noise and is as good as they
    are. Above 16 distinct noise levels under random sampling, neighboring ones are merged.

    Args:
        rounds_epsilon: Pairs (ε̂ᵣ, number of rounds it stands for), in the order of the training.
        sampling: How clients take part in rounds.
        delta: The δ at which the composed ε̂ is stated, in [0, 1).
        round_delta: The δ of the ε̂ᵣ, by default ``delta``; the paper uses 1/n for n attack scores.
        inversion: How ε̂ᵣ becomes noise, see `noise_from_round_epsilon`.
        accountant: One of `ACCOUNTANTS`; by default the tightest that supports ``sampling``.
        sensitivity: How far the neighbors of ``sampling`` move the sum, if those of ε̂ᵣ move it by 1: 2 if the former
            replace a client (`FixedSize`) and the latter add one.

    Returns:
        The composed ε̂.

    Raises:
        InputError: If there are no pairs, or an argument is out of range.

    Example:
        >>> from coalmine.claims.sampling import Epochs
        >>> round(compose_rounds([(1.0, 10), (2.0, 10)], sampling=Epochs(2), delta=1e-5), 2)
        2.3
    """
    if len(rounds_epsilon) == 0:
        raise InputError("rounds_epsilon must hold at least one pair (epsilon, rounds), got none")
    check_positive("sensitivity", sensitivity)
    at = check_delta(delta) if round_delta is None else round_delta
    noise = {epsilon: noise_from_round_epsilon(epsilon, at, inversion) / sensitivity for epsilon, _ in rounds_epsilon}
    schedule = [(noise[epsilon], check_count("rounds", rounds, least=0)) for epsilon, rounds in rounds_epsilon]
    if isinstance(sampling, Poisson | FixedSize):
        schedule = _grouped(schedule)
    return Claim(noise_schedule=schedule, sampling=sampling, delta=delta, accountant=accountant).epsilon


def _grouped(schedule: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the schedule, regardless of order, with at most 16 noise levels: accounting time is linear in them."""
    rounds: Counter[float] = Counter()
    for noise, count in schedule:
        rounds[noise] += count
    levels = sorted(noise for noise in rounds if rounds[noise] and 0 < noise < math.inf)
    if len(levels) <= _MAX_NOISE_LEVELS:
        return list(rounds.items())
    grouped = [(noise, rounds[noise]) for noise in (0.0, math.inf) if rounds[noise]]
    for group in np.split(np.array(levels), range(0, len(levels), -(-len(levels) // _MAX_NOISE_LEVELS))[1:]):
        counts = np.array([rounds[noise] for noise in group])
        # The noise with the same mean 1/σ² composes to the same ε without sampling. With sampling the error is of
        # second order in how much the levels of the group differ.
        grouped.append((math.sqrt(counts.sum() / np.sum(counts / group**2)), int(counts.sum())))
    return grouped
