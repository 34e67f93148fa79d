"""The power of a one-shot audit's test of the claim, by share of the noise and number of canaries.

Scores are taken to be those of the strongest attack on a view. docs/one-shot.md explains the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy import stats

from coalmine.arrays import Floats
from coalmine.claims import AtMost, Claim, Epochs, FixedSize, Poisson, Sampling
from coalmine.errors import check_confidence, check_probability
from coalmine.methods.one_shot.strata import IN_TENSORS
from coalmine.stats.claim_tests import RANK_SUM_SHARE, RankSum, known_null_power
from coalmine.stats.tradeoff import Curve, GaussianDP

# Numbers of canaries that are tried: a tenth apart, which is about as exact as the simulated power is.
_DIGITS = (10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91)
_TRIED: tuple[int, ...] = (5, 6, 7, 8, 9, *(digits * 10**decade for decade in range(4) for digits in _DIGITS))
MOST_TRIED = _TRIED[-1]
"""The largest number of canaries that is tried."""

_STEP = 8  # of these numbers
_DRAWS = 1_999
_QUANTILES, _ALWAYS_ENOUGH = 11, 50
_FEWEST_SCORES, _MOST_SCORES, _MOST_NUMBERS = 2_000, 20_000, 10_000_000


def participation_rate(sampling: Sampling, rounds: int) -> float:
    """Return the share of the rounds that a client takes part in.

    Example:
        >>> participation_rate(AtMost(5), rounds=20)
        0.25
    """
    match sampling:
        case Epochs():
            return min(1.0, sampling.epochs / rounds)
        case AtMost():
            return min(1.0, sampling.times / rounds)
        case _:
            return 1.0 if sampling.rate is None else sampling.rate


def numbers_inserted(canaries: int) -> list[int]:
    """Return evenly likely numbers of inserted canaries if a coin decides on each of twice as many.

    Example:
        >>> numbers_inserted(5)
        [2, 3, 4, 4, 5, 5, 5, 6, 6, 7, 8]
    """
    if canaries > _ALWAYS_ENOUGH:  # the number hardly varies
        return [canaries]
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    numbers = stats.binom.ppf(quantiles, 2 * canaries, 0.5)
    return [int(number) for number in np.clip(numbers, 1, 2 * canaries - 1)]


class AuditPower:
    """The power of an audit's test of a claim, by share of the noise and number of canaries.

    Args:
        claim: The claim, with a noise multiplier.
        view: What the adversary sees.
        rate: Share of the rounds that a canary takes part in.
        confidence: One minus the false-alarm rate of the test.
        dim: Number of parameters, a fifth of the canaries being in single tensors; None if all of them have random
            directions and do not disturb each other.

    Example:
        >>> from coalmine.claims import Claim, EveryRound
        >>> claim = Claim(noise_multiplier=3.0, sampling=EveryRound(), rounds=10, delta=1e-5)
        >>> power = AuditPower(claim=claim, view="updates", rate=1.0)
        >>> power.exact_null(0.5, 50) > 0.95, power.exact_null(1.0, 50) < 0.05
        (True, True)
    """

    def __init__(
        self, *, claim: Claim, view: str, rate: float, confidence: float = 0.95, dim: int | None = None
    ) -> None:
        self.claim, self.view, self.rate, self.dim = claim, view, rate, dim
        self._alpha, self._sampling = 1 - check_confidence(confidence), claim.sampling
        self._curve = cache(claim.curve)
        self.exact_null, self.counted = cache(self._exact_null), cache(self._counted)
        self._secret_rounds = cache(
            lambda noise: secret_rounds_curve(noise * (claim.noise_multiplier or 0.0), rate, claim.rounds or 0)
        )
        self._rank_sum = cache(_rank_sum)

    @property
    def due(self) -> float:
        """Expected share of the canaries in a round that has any: all of them, if they share a few rounds."""
        return 1.0 if isinstance(self._sampling, AtMost) else self.rate

    @property
    def test(self) -> str:
        """Whether `OneShot` knows the null distribution: not where canaries have several rounds of their own."""
        match self._sampling:
            case Poisson() | FixedSize():
                secret = True
            case Epochs():
                secret = self._sampling.epochs > 1
            case _:
                secret = False
        return "counted" if self.view == "updates" and secret else "exact-null"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the power does not cover."""
        notes = []
        if self.view == "updates" and isinstance(self._sampling, Epochs):
            notes.append('This is for an adversary who knows the rounds of each canary: use score "sum".')
        if self.view.startswith(("every", "rounds")):
            notes.append(
                f"The numbers are for final-change; {self.view} is scored by its largest cosine, and needs more."
            )
        if self.view == "final":
            notes.append("The initial weights hide canaries in the final model: final-change needs fewer.")
        return tuple(notes)

    def truth(self, noise: float) -> Curve:
        """Return the trade-off curve that the attack reaches if this share of the noise is there."""
        if self.view == "updates" and isinstance(self._sampling, Poisson | FixedSize):
            # The accountant's curve covers both directions of adding or removing a client, and the attack has only one.
            return self._secret_rounds(noise)
        if self.view == "updates":
            return self._curve(noise)
        # The model's change holds a canary's updates of K rounds and the noise of all of them: its score is shifted by
        # K / (σ √rounds) standard deviations. With Poisson sampling K varies by rounds · q · (1 − q), which widens the
        # members' scores; √(2 / (2 + variance)) keeps the area under the ROC curve.
        sigma, variance = noise * (self.claim.noise_multiplier or 0.0), 0.0
        if isinstance(self._sampling, Poisson):
            variance = self.rate * (1 - self.rate) / sigma**2
        return GaussianDP(self.rate * math.sqrt(self.claim.rounds or 0) / sigma * math.sqrt(2 / (2 + variance)))

    def needed(self, of: Callable[[float, int], float], noise: float, power: float) -> int | None:
        """Return the smallest number of canaries with which ``of`` reaches a power, or None if none does."""
        check_probability("power", power)
        # Upwards in steps, since power decreases again where canaries disturb each other, then by bisection.
        steps = [*range(_STEP - 1, len(_TRIED) - 1, _STEP), len(_TRIED) - 1]
        high: int | None = next((step for step in steps if of(noise, _TRIED[step]) >= power), None)
        if high is None:
            return None
        low = max(-1, high - _STEP)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if of(noise, _TRIED[middle]) >= power else (middle, high)
        needed: int = _TRIED[high]
        return needed

    def _exact_null(self, noise: float, canaries: int) -> float:
        claim, truth = self._curve(1.0), self._disturbed(noise, canaries)

        def power(inserted: int) -> float:
            return known_null_power(self._rank_sum(inserted, None), claim, truth, self._alpha, by_signs=True)

        return float(np.mean([power(inserted) for inserted in numbers_inserted(self._scored(canaries))]))

    def _counted(self, noise: float, canaries: int) -> float:
        claim, truth, level = self._curve(1.0), self._disturbed(noise, canaries), self._alpha * RANK_SUM_SHARE

        def power(inserted: int) -> float:
            return self._rank_sum(inserted, 2 * self._scored(canaries) - inserted).power(claim, truth, level)

        return float(np.mean([power(inserted) for inserted in numbers_inserted(self._scored(canaries))]))

    def _scored(self, canaries: int) -> int:
        """Return how many canaries the test of the claim is about: those in single tensors have one of their own."""
        return canaries if self.dim is None else canaries - canaries // IN_TENSORS

    def _disturbed(self, noise: float, canaries: int) -> Curve:
        """Return `truth` for so many canaries that disturb each other."""
        truth = self.truth(noise)
        if self.dim is None or not isinstance(truth, GaussianDP):
            return truth
        # Those in single tensors are not orthogonal to the others: each adds 1/dim of a canary's square to the variance
        # of their scores, in the same direction every round.
        return GaussianDP((truth.mu**-2 + canaries / IN_TENSORS / self.dim) ** -0.5)


@dataclass(frozen=True, eq=False)
class SimulatedCurve(Curve):
    """The trade-off curve of an attack, from simulated scores.

    Args:
        members: Scores of inserted canaries, shape (m,).
        nonmembers: Scores of held-out canaries, shape (n,).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> curve = SimulatedCurve(rng.normal(1, 1, 10_000), rng.normal(0, 1, 10_000))
        >>> round(float(curve.tpr(np.array(0.1))), 1), round(float(curve.fpr(np.array(0.5))), 2)
        (0.4, 0.16)
    """

    members: Floats
    nonmembers: Floats

    @cached_property
    def _points(self) -> tuple[Floats, Floats]:
        """TPR and FPR at the score of each member, ascending."""
        size = self.members.size
        above = np.searchsorted(np.sort(self.nonmembers), np.sort(self.members), side="left")[::-1]
        return (np.arange(size) + 0.5) / size, 1 - above / self.nonmembers.size

    def tpr(self, fpr: Floats) -> Floats:
        """Return the TPR at each ``fpr``."""
        tprs, fprs = self._points
        return np.asarray(np.interp(fpr, fprs, tprs))

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the TPR from ln FPR."""
        return self.tpr(np.exp(log_fpr))

    def fpr(self, tpr: Floats) -> Floats:
        """Return the FPR at each ``tpr``."""
        return np.asarray(np.interp(tpr, *self._points))

    @property
    def kink(self) -> float:
        """FPR of the median member."""
        return float(self.fpr(np.array(0.5)))


def secret_rounds_curve(noise_multiplier: float, rate: float, rounds: int) -> SimulatedCurve:
    """Return the curve of the likelihood-ratio score for canaries that take part in each round with a probability.

    Args:
        noise_multiplier: Noise standard deviation on the sum over the clip norm.
        rate: The probability.
        rounds: Number of rounds, all of which the adversary sees.

    Example:
        >>> curve = secret_rounds_curve(1.0, rate=1.0, rounds=1)  # the Gaussian mechanism: Φ(−1) = 0.1587
        >>> round(float(curve.fpr(np.array(0.5))), 2)
        0.16
    """
    rng = np.random.default_rng(0)
    draws = int(np.clip(_MOST_NUMBERS / rounds, _FEWEST_SCORES, _MOST_SCORES))
    sides = np.zeros((2, draws))
    # Seen from one canary, a round releases N(0, σ²), or N(1, σ²) if it takes part (`LikelihoodRatio`).
    for _ in range(rounds):
        observed = rng.normal(0.0, noise_multiplier, (2, draws))
        observed[0] += rng.random(draws) < rate
        with np.errstate(divide="ignore"):
            sides += np.logaddexp(np.log1p(-rate), np.log(rate) + (observed - 0.5) / noise_multiplier**2)
    return SimulatedCurve(*sides)


def _rank_sum(members: int, nonmembers: int | None) -> RankSum:
    return RankSum(members, nonmembers, np.random.default_rng(0), draws=_DRAWS)
