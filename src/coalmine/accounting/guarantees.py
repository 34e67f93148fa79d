"""Claimed guarantees: the ε that an accountant proves for a training, and claims taken from elsewhere.

``noise_multiplier`` is always the standard deviation of the Gaussian noise on the sum of a round's updates, divided by
how far one client can move that sum. Read more in docs/theory.md.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from coalmine.accounting.accountants import ACCOUNTANTS, MIN_PLD_DELTA, check_accountant, event_epsilon
from coalmine.accounting.calibration import noise_for
from coalmine.accounting.curves import local_curve, training_curve
from coalmine.accounting.sampling import EveryRound, FixedSize, Sampling, Schedule, parse_sampling
from coalmine.errors import InputError, check_count, check_delta, check_nonnegative, check_number
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, PrivacyProfile


@dataclass(frozen=True, kw_only=True)
class Theory:
    """The claimed guarantee: (ε, δ)-DP between neighbors of an adjacency, and what it was computed from.

    An audit tests this claim. It is a theorem about the training as described by ``noise_multiplier``, ``sampling`` and
    ``rounds``, so evidence against it means that the software does something else.

    ``epsilon`` at ``delta`` is one point of the guarantee; `curve` is all of it.

    Attributes:
        epsilon: The claimed ε; infinite without noise.
        delta: The δ at which ε is claimed.
        accountant: How ε was computed: one of `ACCOUNTANTS`, ``"pure"``, or ``"claimed"`` if stated by someone else.
        noise_multiplier: Noise over sensitivity, or None if the mechanism is not a Gaussian one.
        sampling: How clients take part in rounds, as text; `parse_sampling` reads it.
        q: Probability that a client takes part in a given round, if the sampling fixes one.
        rounds: Number of rounds.
        adjacency: Which datasets are neighbors: ``"add-or-remove-one"`` or ``"replace-one"`` client.
        noise_schedule: Pairs (noise multiplier, rounds with it), if the noise changes during the training.
        local_epsilon: ε of each of ``rounds`` reports, if every report has pure ε-LDP by itself.

    Example:
        >>> from coalmine.accounting import EveryRound, theory
        >>> claim = theory(noise_multiplier=2.0, sampling=EveryRound(), rounds=1, delta=1e-5, accountant="rdp")
        >>> claim.adjacency, claim.sampling, round(claim.epsilon, 2)
        ('add-or-remove-one', 'every-round', 2.17)
    """

    epsilon: float
    delta: float
    accountant: str
    noise_multiplier: float | None
    sampling: str
    q: float | None
    rounds: int
    adjacency: str
    noise_schedule: Schedule = ()
    local_epsilon: float | None = None

    @property
    def has_noise(self) -> bool:
        """Whether the claim follows from Gaussian noise, so that `curve` can be computed for less of it.

        False if a noise multiplier is stated but nothing is proved from it: by an accountant or for a sampling that is
        not one of ours, or where no client ever takes part.
        """
        return isinstance(self._noise_curve(1.0), GaussianDP | PrivacyProfile)

    def curve(self, noise: float = 1.0) -> Curve:
        """Return the claimed trade-off curve: the highest TPR at each FPR, for both directions of the adjacency.

        As much as the accountant proves: the curve of the composed privacy losses for ``pld``, of the composed Rényi
        divergences for ``rdp``, and the single point (ε, δ) where nothing else is known.

        Args:
            noise: Share of the claimed noise, for the curve of the same training with more or less noise. Without a
                noise multiplier ε is divided by it, as for Laplace noise.

        Returns:
            A curve of `coalmine.stats.tradeoff`.

        Example:
            >>> import numpy as np
            >>> from coalmine.accounting import EveryRound, theory
            >>> claim = theory(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)
            >>> claim.curve().tpr(np.array(0.01)).round(3), claim.curve(noise=0.5).tpr(np.array(0.01)).round(3)
            (np.float64(0.092), np.float64(0.372))
        """
        curve = self._noise_curve(noise)
        if curve is None and self.noise_multiplier is None and self.local_epsilon is not None:
            curve = local_curve(self.local_epsilon / noise, self.rounds)
        return curve or ApproximateDP(self.epsilon / noise, self.delta)

    def _noise_curve(self, noise: float) -> Curve | None:
        """Return the curve that follows from a share of the stated noise, or None if none does."""
        schedule = self.noise_schedule
        if not schedule and self.noise_multiplier is not None:
            schedule = [(self.noise_multiplier, self.rounds)]
        if not schedule:
            return None
        with suppress(InputError):  # sampling that is not one of ours
            sampling = parse_sampling(self.sampling)
            return training_curve([(sigma * noise, count) for sigma, count in schedule], sampling, self.accountant)
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields ready for JSON, in which an infinite number is the string ``"inf"``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["noise_schedule"] = [list(stretch) for stretch in self.noise_schedule]
        return {name: "inf" if value == math.inf else value for name, value in values.items()}


def claimed(epsilon: float, delta: float) -> Theory:
    """Wrap an (ε, δ)-DP claim that someone else made, for a mechanism whose internals are unknown.

    Args:
        epsilon: The claimed ε, at least 0.
        delta: The claimed δ, in [0, 1).

    Returns:
        The claim, for adding or removing one client, with the accountant ``"claimed"``.

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> claimed(8.0, 1e-5).accountant
        'claimed'
    """
    if not check_number("the claimed epsilon", epsilon) >= 0:
        raise InputError(f"the claimed epsilon must be at least 0, got {epsilon}")
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
    """Compute the guarantee of training with the Gaussian mechanism in every round.

    A proven upper bound on ε, against an adversary who sees the noisy sum of every round, provided that the training
    adds this noise, clips as the noise multiplier assumes, and chooses clients as ``sampling`` says.

    Args:
        noise_multiplier: Standard deviation of the noise on a round's sum, over how far one client can move that sum.
        sampling: How clients take part in rounds.
        rounds: Number of training rounds.
        delta: The δ at which ε is claimed, in [0, 1). ``pld`` truncates a mass of 1e-15, and gives an infinite ε for
            a smaller δ.
        accountant: One of `ACCOUNTANTS`. By default ``"pld"``; ``"rdp"`` for fixed-size sampling, which ``pld`` does
            not support.

    Returns:
        The claim. Its ε is infinite without noise or at δ = 0, unless no client ever takes part.

    Raises:
        InputError: If an argument is out of range, or the accountant does not support the sampling or so large an ε.

    Example:
        >>> from coalmine.accounting import Poisson, theory
        >>> claim = theory(noise_multiplier=1.0, sampling=Poisson(0.01), rounds=100, delta=1e-5, accountant="rdp")
        >>> round(claim.epsilon, 2)
        1.21
    """
    check_nonnegative("noise_multiplier", noise_multiplier)
    accountant = check_accountant(accountant, sampling)
    rounds = check_count("rounds", rounds, least=0)
    return Theory(
        epsilon=_epsilon(float(noise_multiplier), sampling, rounds, check_delta(delta), accountant),
        delta=float(delta),
        accountant=accountant,
        noise_multiplier=float(noise_multiplier),
        sampling=str(sampling),
        q=sampling.rate,
        rounds=rounds,
        adjacency=sampling.adjacency,
    )


@lru_cache(maxsize=64)
def _epsilon(noise: float, sampling: Sampling, rounds: int, delta: float, accountant: str) -> float:
    """Return the ε of a training; cached, since it takes seconds and several audits ask for the same claim."""
    return event_epsilon(*sampling.event(noise, rounds), delta, accountant)


def scheduled_epsilon(schedule: Schedule, *, sampling: Sampling, delta: float, accountant: str | None = None) -> float:
    """Compute the ε of a training whose noise multiplier changes over time.

    Args:
        schedule: Pairs (noise multiplier, number of rounds with it), in the order of the training.
        sampling: How clients take part in rounds.
        delta: The δ at which ε is claimed, in [0, 1).
        accountant: One of `ACCOUNTANTS`; by default the tightest that supports ``sampling``.

    Returns:
        A proven upper bound on ε, under the assumptions of `theory`.

    Raises:
        InputError: If ``delta`` is out of range or the accountant does not support the sampling.

    Example:
        >>> from coalmine.accounting import AtMost
        >>> round(scheduled_epsilon([(1.0, 5), (2.0, 5)], sampling=AtMost(1), delta=1e-5), 3)  # as for noise 1.0
        4.377
    """
    accountant = check_accountant(accountant, sampling)
    return _scheduled_epsilon(tuple(map(tuple, schedule)), sampling, check_delta(delta), accountant)


@lru_cache(maxsize=1024)
def _scheduled_epsilon(schedule: Schedule, sampling: Sampling, delta: float, accountant: str) -> float:
    return event_epsilon(*sampling.schedule_event(schedule), delta, accountant)


def all_theories(
    *,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    sampling: Sampling,
    rounds: int,
    delta: float,
) -> list[Theory]:
    """Compute the guarantee with every accountant that supports the sampling.

    Args:
        noise_multiplier: The noise to account for; or
        epsilon: the ε to reach, with the least noise that each accountant needs for it.
        sampling: How clients take part in rounds.
        rounds: Number of training rounds.
        delta: The δ at which ε is claimed, in [0, 1).

    Returns:
        One claim per accountant; those that cannot reach the ε are left out.

    Raises:
        InputError: If not exactly one of ``noise_multiplier`` and ``epsilon`` is given, or every accountant fails.

    Example:
        >>> from coalmine.accounting import FixedSize
        >>> claims = all_theories(noise_multiplier=2.0, sampling=FixedSize(10, 1000), rounds=10, delta=1e-5)
        >>> [claim.accountant for claim in claims]
        ['rdp', 'rdp-mironov']
    """
    if (noise_multiplier is None) == (epsilon is None):
        raise InputError("either a noise multiplier or the epsilon to reach is needed, and not both")
    claims: list[Theory] = []
    errors: list[InputError] = []
    for name in ACCOUNTANTS:
        if name == "pld" and (isinstance(sampling, FixedSize) or delta < MIN_PLD_DELTA):
            continue
        try:
            noise = noise_multiplier
            if epsilon is not None:
                noise = noise_for(epsilon=epsilon, sampling=sampling, rounds=rounds, delta=delta, accountant=name)
            assert noise is not None
            claims.append(
                theory(noise_multiplier=noise, sampling=sampling, rounds=rounds, delta=delta, accountant=name)
            )
        except InputError as error:
            errors.append(error)
    if not claims:
        raise errors[0]
    return claims


def local_theory(*, epsilon: float, rounds: int = 1, delta: float = 0.0) -> Theory:
    """Compute the guarantee of several reports of one client, each randomized on the device with pure ε-LDP.

    The guarantee is for replacing everything that the client reports on. At δ = 0 the ε of the reports add up
    (accountant ``"pure"``); at δ > 0 the optimal composition of pure DP (Kairouz, Oh & Viswanath, 2015) is smaller
    (accountant ``"pld"``).

    Args:
        epsilon: The ε of one report, at least 0.
        rounds: Number of reports.
        delta: The δ at which the total is claimed, in [0, 1).

    Returns:
        The claim for all reports together.

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> local_theory(epsilon=0.5, rounds=7).epsilon
        3.5
    """
    check_nonnegative("epsilon", epsilon)
    rounds = check_count("rounds", rounds, least=0)
    total, accountant = (rounds * float(epsilon) if rounds else 0.0), "pure"
    # Above 700 e^ε overflows, and composition has nothing left to gain.
    if check_delta(delta) > 0 and total > 0 and epsilon < 700:
        import dp_accounting as dp

        # Randomized response, the worst case of pure DP, has losses ±ε: a grid of that step holds all sums exactly.
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
        local_epsilon=float(epsilon),
    )
