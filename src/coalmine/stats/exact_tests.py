"""Is what a check saw possible under the claim? Exact p-values of noise, its seed, who took part, and single guesses.

The tests for missing, repeated and copied noise rest on a lemma of docs/checks.md. Let x = s + g, where g has
independent normal entries of variance at least 1 and is independent of s. In a subspace of k dimensions that is fixed
before g is drawn, |x|² is stochastically at least χ² with k degrees of freedom; and an entry lies within ``width`` of
any fixed number with a probability of at most that of a standard normal variable to lie within ``width`` of 0.

Each test of participation is a bet that is fair, or worse than fair, if the claim is true: the bettor's capital is then
at least 1/p with a probability of at most p, however long one watches (Ville's inequality), so p is one over the
capital. No simulation is needed, and memory does not grow with the number of rounds.

Tests that count right guesses are for canaries and trials that need not be alike. Each may have scores of its own
distribution, so order statistics are out of place: guesses are settled before the coins are looked at. A guess about a
trial is right with a probability that the claim limits, whatever the other trials showed. docs/checks.md and
docs/ldp.md have the proofs.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.seeds import default_rng
from coalmine.stats.rank_tests import tail_guesses
from coalmine.stats.simultaneous_bound import JointBoundary, joint_boundary
from coalmine.stats.tradeoff import ApproximateDP, Curve

LEAST_P_VALUE = 1e-300
"""Smallest p-value that is returned: 0 would stand for a fact."""


def energy_p_value(energy: ArrayLike, dimensions: ArrayLike) -> Floats:
    """Return the probability, or an upper limit on it, that noise of the claimed size has so little energy.

    Args:
        energy: Squared lengths in the subspace, in units of the claimed variance per coordinate, any shape.
        dimensions: Dimensions of the subspace; the p-value is 1 where it has none.

    Example:
        >>> float(energy_p_value(4.0, 10).round(3))  # P(χ² ≤ 4) with ten degrees of freedom
        0.053
    """
    degrees = np.asarray(dimensions, dtype=np.float64)
    squares = np.maximum(np.asarray(energy, dtype=np.float64), 0.0)
    p_values = special.gammainc(np.maximum(degrees, 1) / 2, squares / 2)
    return np.where(degrees > 0, np.maximum(p_values, LEAST_P_VALUE), 1.0)


def noise_at_most(energy: float, dimensions: float, alpha: float) -> float:
    """Return an upper bound on the share of the claimed noise that is there, at confidence ``1 - alpha``.

    Args:
        energy: Squared length in the subspace, in units of the claimed variance per coordinate.
        dimensions: Dimensions of the subspace.
        alpha: One minus the confidence.

    Example:
        >>> round(noise_at_most(0.09 * 1000, 1000, 0.05), 3)
        0.311
    """
    return float(np.sqrt(energy / (2 * special.gammaincinv(dimensions / 2, alpha))))


def near_zero_p_value(count: ArrayLike, total: ArrayLike, width: float) -> Floats:
    """Return the probability, or an upper limit on it, that noise leaves so many of ``total`` numbers near zero.

    Args:
        count: How many numbers lie within ``width`` of zero.
        total: How many numbers there are.
        width: Width in standard deviations of the claimed noise.

    Example:
        >>> float(near_zero_p_value(2, 3, width=0.1).round(4))  # 3 p² (1 - p) + p³ with p = 0.0797
        0.018
    """
    hits, trials = np.asarray(count, dtype=np.float64), np.asarray(total, dtype=np.float64)
    chance = float(special.erf(width / np.sqrt(2)))
    tails = special.betainc(np.maximum(hits, 1), np.maximum(trials - hits + 1, 1e-9), chance)
    return np.where(hits > 0, np.maximum(tails, LEAST_P_VALUE), 1.0)


# Share of the capital that bets on a round as large as the one before; the rest is kept.
_STAKE = 0.9


def rate_p_value(hits: int, trials: int, rate: float) -> float:
    """Return a p-value for clients who took part in ``hits`` of ``trials`` opportunities: too often for a rate?

    Valid if each opportunity, given all that happened in earlier rounds, is taken with a probability of at most
    ``rate``, and those of one round either independently (Poisson sampling) or as a draw without replacement (fixed
    size). Which clients are watched may depend on earlier rounds, and some of them may have left. The bet is a
    likelihood ratio, averaged over larger rates with the Beta(½, ½) distribution.

    Args:
        hits: How many opportunities were taken.
        trials: How many there were.
        rate: The largest probability that is claimed.

    Example:
        >>> rate_p_value(20, 120, rate=0.25), rate_p_value(30, 30, rate=0.25) < 1e-15
        (1.0, True)
    """
    misses = trials - hits
    if not hits or rate >= 1:
        return 1.0
    if rate <= 0:
        return LEAST_P_VALUE
    with np.errstate(divide="ignore"):
        larger = np.log(special.betaincc([hits + 0.5, 0.5], [misses + 0.5, 0.5], rate))
    capital = special.betaln(hits + 0.5, misses + 0.5) + larger[0] - special.betaln(0.5, 0.5) - larger[1]
    capital -= hits * math.log(rate) + misses * math.log1p(-rate)
    return float(max(LEAST_P_VALUE, math.exp(min(0.0, -capital))))


def repeated_size_gain(size: int, before: int, population: int, rate: float) -> float:
    """Return the log of what a bet on a cohort as large as the one before wins, or loses, in a round.

    If each client takes part independently with a probability of its own of at most ``rate``, as under Poisson sampling
    with clients who drop out or have left, the expected factor is at most 1. The p-value for rounds whose sizes are too
    much alike is exp(−Σ gains), at most 1.

    Args:
        size: Clients in this round.
        before: Clients in the round before.
        population: Number of clients overall.
        rate: The largest probability to take part that is claimed.

    Example:
        >>> gains = [repeated_size_gain(30, 30, population=120, rate=0.25)] * 5
        >>> math.exp(-sum(gains)) < 1e-4
        True
    """
    if size != before or not 0 < rate < 1:
        return math.log(1 - _STAKE)
    # The chance of a size is linear in each client's probability, so it is largest if each has 0 or the whole rate; of
    # the numbers of clients with the whole rate, at this one.
    clients = min(population, math.floor(size / rate + 1e-9))
    log_choose = -math.log(clients + 1) - special.betaln(clients - size + 1, size + 1)
    log_chance = log_choose + size * math.log(rate) + (clients - size) * math.log1p(-rate)
    return float(math.log(1 - _STAKE + _STAKE * math.exp(min(-log_chance, 600.0))))


THRESHOLDS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0])
"""Log-likelihood ratios at which `CoinGuesses` guesses, in both tails."""

_LEVELS = np.logspace(-30, 0, 241)  # significances at which rates are bounded, 33% apart
_BOUNDARY_LEVEL = 1e-4  # the joint boundary is sharpest around this significance; it is valid at any
_TAIL_RATIO = 2**0.25  # between neighboring numbers of guesses about the largest and smallest scores


@dataclass(frozen=True)
class CoinGuesses:
    """Numbers of right guesses about fair coins: all that the tests of a claim need to know of the scores.

    Args:
        canaries: Number of coins.
        accurate: How many are guessed right by the sign of the score.
        right: Right guesses at each of the `THRESHOLDS`: "inserted" above it, then "not inserted" below its negative.
        wrong: Wrong guesses at the same places.
        extremes: Numbers of guesses about the largest and the smallest scores, half of them each; none if all coins
            fell on one side.
        among_extremes: How many of these are right.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> inserted = rng.random(1000) < 0.5
        >>> guesses = CoinGuesses.count(rng.normal(np.where(inserted, 1.0, -1.0), 1.0), inserted)
        >>> guesses.p_value(ApproximateDP(0.5, 1e-5)) < 1e-6, guesses.p_value(ApproximateDP(8.0, 1e-5))
        (True, 1.0)
    """

    canaries: int
    accurate: int
    right: Sequence[int]
    wrong: Sequence[int]
    extremes: Sequence[int]
    among_extremes: Sequence[int]

    @classmethod
    def count(cls, scores: Floats, inserted: Bools) -> Self:
        """Count the guesses.

        Args:
            scores: Log-likelihood ratios, shape (n,).
            inserted: Outcomes of the fair coins, shape (n,).
        """
        members, others = np.sort(scores[inserted]), np.sort(scores[~inserted])
        above, below = (side.size - np.searchsorted(side, THRESHOLDS, side="right") for side in (members, others))
        low_members, low_others = (np.searchsorted(side, -THRESHOLDS) for side in (members, others))
        extremes = among = np.zeros(0, dtype=np.int64)
        if members.size and others.size:
            _, extremes, among = tail_guesses(members, others, scores.size // 2, _TAIL_RATIO)
        return cls(
            canaries=scores.size,
            accurate=int(above[0]) + int(np.searchsorted(others, 0.0, side="right")),
            right=np.concatenate([above, low_others]).tolist(),
            wrong=np.concatenate([below, low_members]).tolist(),
            extremes=extremes.tolist(),
            among_extremes=among.tolist(),
        )

    def p_value(self, claim: Curve) -> float:
        """Return the joint p-value of the joint boundary, the accuracy and the thresholds; 1 without scores."""
        if not self.canaries:
            return 1.0
        by_side = min(self.thresholds_p_value(claim), self.accuracy_p_value(claim))
        if not isinstance(claim, ApproximateDP):
            return min(1.0, by_side / 0.5)
        # Against a single (ε, δ) the evidence is in the tails, where the joint boundary looks. Other curves give way in
        # the middle.
        return min(1.0, self.boundary_p_value(claim) / 0.6, by_side / 0.2)

    def accuracy_p_value(self, claim: Curve) -> float:
        """Return the p-value of a claim from guessing "inserted" for every positive score.

        Under the claim each guess is right with a probability of at most 1 − x, where f(x) = 1 − x on its curve f, so
        the number of right guesses is at most Bin(N, 1 − x), for canaries of any kind (docs/checks.md, Theorem 1).

        Example:
            >>> scores = np.array([2.0, -1.0] * 20)
            >>> CoinGuesses.count(scores, scores > 0).accuracy_p_value(ApproximateDP(0.0, 0.0)) == 0.5**40
            True
        """
        return TrialGuesses(guesses=self.canaries, right=self.accurate).p_value(claim)

    def thresholds_p_value(self, claim: Curve) -> float:
        """Return the p-value of a claim from the guesses at fixed thresholds, in both tails, rounded up to a grid.

        The rates of right and wrong guesses are bounded one by one, which holds for sums of coins that differ too
        (docs/checks.md, Theorem 2).
        """
        # The fair coin is part of the event, so that all canaries count: its rate is half of the TPR or FPR.
        right, wrong, n = np.array(self.right), np.array(self.wrong), self.canaries

        def refuted(level: Floats) -> Bools:
            # One right guess is never evidence: for sums of different coins, P(at least 1) can exceed the binomial one.
            low = np.where(right > 1, special.betaincinv(np.maximum(right, 1), n - right + 1, level / 2), 0.0)
            high = np.where(wrong < n, special.betainccinv(wrong + 1, np.maximum(n - wrong, 1), level / 2), 1.0)
            return np.asarray(np.minimum(1, 2 * low) > claim.tpr(np.minimum(1.0, 2 * high)))

        # Bounds get tighter as the level grows, so a test rejects at all levels from some first one on: a bisection.
        first, after = np.zeros(right.size, dtype=np.int64), np.full(right.size, _LEVELS.size - 1)
        while np.any(is_open := first < after):
            middle = (first + after) // 2
            rejects = refuted(_LEVELS[middle])
            first, after = np.where(is_open & ~rejects, middle + 1, first), np.where(is_open & rejects, middle, after)
        return float(min(1.0, _LEVELS[first].min() * right.size))

    def boundary_p_value(self, claim: Curve) -> float:
        """Return the p-value of (ε, δ)-DP from guesses in both tails of the scores; 1 for other claims.

        Theorem 2 of docs/proofs.md: with coin flips its proof takes each canary by itself, so they may differ.
        """
        if not isinstance(claim, ApproximateDP) or not self.extremes:
            return 1.0
        guesses, right = np.array(self.extremes), np.array(self.among_extremes)
        boundary = joint_boundary(guesses, right, self.canaries, _BOUNDARY_LEVEL, claim.delta)
        return float(JointBoundary(np.zeros(1), guesses, boundary, self.canaries, "coin-flips").p_values(claim)[0])


def value_p_value(hits: int, guesses: int, chance: float, claim: Curve) -> float:
    """Return the p-value of a claim from guessing the secret values of inserted canaries.

    A guess that knows nothing of the canary hits its value with probability ``chance``, so under the claim a guess hits
    with probability at most f(chance), whatever ε: a few exact hits refute any of them (docs/checks.md, Theorem 3).

    Args:
        hits: Number of values guessed right.
        guesses: Number of values guessed.
        chance: Largest probability to guess a value right without having seen it.
        claim: The claimed trade-off curve.

    Example:
        >>> value_p_value(10, 10, 1e-6, ApproximateDP(epsilon=10.0, delta=1e-5)) < 1e-15
        True
    """
    if hits == 0:
        return 1.0
    return float(special.betainc(hits, guesses - hits + 1, float(claim.tpr(np.array(chance)))))


@dataclass(frozen=True)
class TrialGuesses:
    """Right guesses about trials.

    Args:
        guesses: Number of trials that were guessed about.
        right: Number of right guesses.

    Example:
        >>> guesses = TrialGuesses(guesses=100, right=88)
        >>> guesses.p_value(ApproximateDP(1.0, 0.0)) < 0.01 < guesses.p_value(ApproximateDP(2.0, 0.0))
        True
    """

    guesses: int
    right: int

    def p_value(self, claim: Curve) -> float:
        """Return P(Binomial(guesses, a) ≥ right), with the highest accuracy a that the claim allows."""
        return _tail(self.guesses, self.right, highest_accuracy(claim))

    def accuracy_under(self, truth: Curve, claim: Curve) -> float:
        """Return the accuracy of this attack if ``truth`` held instead of ``claim``.

        It reaches the same share of the log-odds that the curve allows.
        """
        allowed = float(special.logit(highest_accuracy(claim)))
        # Half a guess on either side keeps the log-odds finite if all guesses are right.
        observed = float(special.logit((self.right + 0.5) / (self.guesses + 1)))
        strength = min(1.0, observed / allowed) if allowed > 0 else 0.0
        if strength <= 0:  # no better than a coin, whatever the curve allows
            return 0.5
        return float(special.expit(strength * special.logit(highest_accuracy(truth))))

    def power(self, claim: Curve, truth: Curve, alpha: float, factor: float = 1.0) -> float:
        """Return the probability to reject ``claim`` at significance ``alpha`` with this attack if ``truth`` held.

        Args:
            claim: The claim.
            truth: The curve that holds instead.
            alpha: Significance of the test.
            factor: How many times as many trials there are.
        """
        guesses = round(self.guesses * factor)
        low, high, accuracy = 0, guesses + 1, highest_accuracy(claim)
        while high - low > 1:  # the smallest number of right guesses that rejects
            middle = (low + high) // 2
            low, high = (low, middle) if _tail(guesses, middle, accuracy) <= alpha else (middle, high)
        return _tail(guesses, high, self.accuracy_under(truth, claim)) if high <= guesses else 0.0


def highest_accuracy(claim: Curve) -> float:
    """Return the largest probability of a right guess about a fair coin: where TPR = 1 − FPR on a symmetric curve."""
    if isinstance(claim, ApproximateDP) and claim.delta == 0:
        return float(special.expit(claim.epsilon))
    return 1 - claim.kink


def _tail(trials: int, least: int, probability: float) -> float:
    """Return P(Binomial(trials, probability) ≥ least)."""
    return float(special.betainc(least, trials - least + 1, probability)) if least > 0 else 1.0


# Nobody can tell noise from a secret seed and noise from a public one by its distribution. But a seed below 4,096, such
# as the number of a round, is found by trying: the noise then is, up to its size, what the same generator gives again.
NUMBERS = 256
"""How many of the first numbers of a noise vector are compared."""

_SEEDS = (*range(4096), 12_345, 123_456, 1_234_567, 2**31 - 1, 2**32 - 1)
_FEWEST = 8  # numbers that must be known
_EQUAL = 2e-6  # share of the squares that rounding may leave of equal vectors; eight other numbers do with p = 1e-20


@dataclass(frozen=True, eq=False)
class SeedGuess:
    """The generator whose first normal numbers are most like a noise vector.

    Args:
        name: The generator with its seed, as code.
        noise: Its first `NUMBERS` numbers, at the size of the vector.
        rest: Squared length of what is left of the vector without them.
        length: Length of the vector.
        compared: How many numbers were compared.
        tries: How many generators were tried.
    """

    name: str
    noise: Floats
    rest: float
    length: float
    compared: int
    tries: int

    @property
    def is_equal(self) -> bool:
        """Whether the vector is that of the generator, but for rounding."""
        return self.rest <= _EQUAL * self.length**2

    def p_value(self, size: float) -> float:
        """Return a p-value of the claim that the vector holds secret noise of this standard deviation, at least.

        Whatever else is in the vector, each guess leaves at least χ² of it (`energy_p_value`), and all were tried.

        Example:
            >>> noise, signal = np.random.default_rng(7).standard_normal(1000), 0.3 * np.sin(np.arange(1000))
            >>> best_seed(noise + signal).p_value(1.0) < 1e-30, best_seed(2 * signal).p_value(0.1)
            (True, 1.0)
        """
        return min(1.0, self.tries * float(energy_p_value(self.rest / size**2, self.compared - 1)))


def best_seed(noise: Floats, places: Ints | None = None) -> SeedGuess | None:
    """Return which small seed of the usual generators gives the numbers most like these, up to a factor.

    None if there are too few numbers.

    Args:
        noise: Numbers of a noise vector, shape (n,).
        places: Their indices in it, shape (n,); 0 to n − 1 by default. Those from `NUMBERS` on are not compared.

    Example:
        >>> guess = best_seed(3.0 * np.random.default_rng(7).standard_normal(100))
        >>> guess.name, guess.is_equal
        ('numpy.random.default_rng(7)', True)
        >>> best_seed(np.random.default_rng([7, 1]).standard_normal(100)).is_equal
        False
    """
    places = np.arange(noise.size) if places is None else places
    noise, places = noise[places < NUMBERS], places[places < NUMBERS]
    length = float(np.linalg.norm(noise))
    if noise.size < _FEWEST or not 0 < length < np.inf:
        return None
    likest, tables = 0.0, _tables("torch" in sys.modules)
    for generator, table in tables.items():
        drawn = table if places.size == NUMBERS else table[:, places]
        likeness = drawn @ (noise / length).astype(np.float32) / np.linalg.norm(drawn, axis=1)
        best = int(np.argmax(np.abs(likeness)))
        if abs(likeness[best]) > likest:
            likest, name, numbers = abs(likeness[best]), f"{generator}({_SEEDS[best]})", table[best].astype(np.float64)
    # In double precision, since little is left of equal vectors.
    slope = float(noise @ numbers[places]) / float(numbers[places] @ numbers[places])
    rest = float(np.sum((noise - slope * numbers[places]) ** 2))
    return SeedGuess(
        name=name, noise=slope * numbers, rest=rest, length=length, compared=noise.size,
        tries=len(tables) * len(_SEEDS),
    )  # fmt: skip


@functools.cache
def _tables(with_torch: bool) -> dict[str, Array]:
    """Return the first normal numbers of each generator, (seeds, numbers)."""
    tables = {
        "numpy.random.default_rng": [default_rng(seed).standard_normal(NUMBERS) for seed in _SEEDS],
        "numpy.random.RandomState": [np.random.RandomState(seed).standard_normal(NUMBERS) for seed in _SEEDS],
    }
    if with_torch:
        import torch

        generator = torch.Generator()
        # A few more are drawn, since torch draws the last 16 numbers of a vector in another order.
        tables["torch.manual_seed"] = [
            torch.randn(NUMBERS + 16, generator=generator.manual_seed(seed))[:NUMBERS].numpy() for seed in _SEEDS
        ]
    return {name: np.asarray(rows, dtype=np.float32) for name, rows in tables.items()}
