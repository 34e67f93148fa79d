"""How much ε do scores prove that may influence one another? Lower bounds from one run's coin flips, and their tests.

The scores may depend on one another in any way, since only the coin flips need to be independent (Steinke, Nasr &
Jagielski, 2023; Mahloujifar, Melis & Chaudhuri, 2024). docs/proofs.md has the proof of the test of a claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_confidence, check_count, check_delta
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import TWO_TAILS_WEIGHT, Tests, curve_tail_probability, guessing_scores, tail_guesses
from coalmine.stats.scores import COIN_FLIPS, GAUSSIAN, Estimate, Scores
from coalmine.stats.simultaneous_bound import largest_rejected, significance_levels
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, GroupCurve, group_parameters

# These bounds lose much more from dividing the significance than those for independent scores, so their grids have
# fewer numbers of guesses: half of the canaries, an eighth, and so on.
_MAX_SHARE, _RATIO = 0.5, 4
# A curve is tested at levels between these p-values, then at as many between the two that enclose its own.
_LEAST_P_VALUE, _LEVELS = 1e-9, 65
_FIXED_NUMBER = f"{COIN_FLIPS}; the number of guesses was fixed"
_NO_SCORE = np.array([np.nan])  # guesses that somebody counted come without a threshold


@dataclass(frozen=True)
class Guesses:
    """Outcome of guessing which canaries were inserted, with the option to abstain.

    Args:
        canaries: Number of canaries, each inserted by its own fair coin flip.
        guesses: Number of canaries guessed about; the attacker abstained on the rest.
        correct: Number of right guesses.

    Raises:
        InputError: If a number is negative or not whole, or they are not in decreasing order.

    Example:
        >>> Guesses(canaries=1000, guesses=100, correct=80)
        Guesses(canaries=1000, guesses=100, correct=80)
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        check_count("canaries", self.canaries)
        check_count("guesses", self.guesses, least=0)
        check_count("correct", self.correct, least=0)
        if not self.correct <= self.guesses <= self.canaries:
            raise InputError(
                "there cannot be more correct guesses than guesses, nor more guesses than canaries, got "
                f"{self.correct} correct of {self.guesses} guesses about {self.canaries} canaries"
            )


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Compute the p-value of an (ε, δ)-DP claim from guesses about one run (Steinke et al., 2023, Theorem 5.2).

    β + 2mδ·max over i of P(v − i ≤ W < v)/i, where W ~ Binomial(r, e^ε/(1+e^ε)) and β = P(W ≥ v), for m canaries, r
    guesses and v right ones. Valid for any dependence between the scores if each canary was inserted by its own fair
    coin flip and the number of guesses was fixed in advance.

    Args:
        guesses: The guesses.
        epsilon: The claimed ε.
        delta: The claimed δ.

    Returns:
        An upper bound on the probability of at least this many right guesses if the claim is true.

    Example:
        >>> round(one_run_p_value(Guesses(100, 10, 9), 0.0, 0.0), 4)  # P(Binomial(10, ½) ≥ 9)
        0.0107
    """
    r, v = guesses.guesses, guesses.correct
    if v == 0:
        return 1.0
    q = float(special.expit(epsilon))
    beta = float(special.betainc(v, r - v + 1, q))
    if delta == 0:
        return beta
    # P(v − i ≤ W < v)/i is the mean of the i probabilities of W just below v. W is unimodal, so the mean grows until
    # the next probability falls below it, within a few standard deviations left of the mode: stop there.
    mode, spread = r * q, math.sqrt(r * q * (1 - q))
    k = np.arange(v - 1, max(-1, min(v, math.floor(mode)) - math.ceil(12 * spread) - 12), -1.0)
    log_choose = special.gammaln(r + 1) - special.gammaln(k + 1) - special.gammaln(r - k + 1)
    mass = np.exp(log_choose + special.xlogy(k, q) + special.xlogy(r - k, special.expit(-epsilon)))
    alpha = float(np.max(np.cumsum(mass) / np.arange(1, k.size + 1)))
    return min(1.0, beta + 2 * guesses.canaries * delta * alpha)


def one_run_curve_rejects(canaries: int, guesses: Ints, correct: Ints, levels: Floats, claim: Curve) -> Bools:
    """Return whether so many right guesses are less likely than ``levels`` if a trade-off curve holds, elementwise.

    The recursion of Mahloujifar, Melis & Chaudhuri (2024): if P(right ≥ v) were the level, how much probability would
    fewer right guesses need? A level is rejected if they need more than there is.
    """
    total, i = guesses.astype(np.float64), correct.astype(np.float64)
    right, wrong = levels * i / canaries, levels * (total - i) / canaries
    goal = total / canaries
    possible = correct > 0
    for _ in range(int(correct.max(initial=0))):
        i = i - 1
        reached = right + wrong >= goal
        reachable = claim.fpr(right)
        # A level is settled as soon as its sums reach the goal, or can no longer grow.
        possible = possible & (reached | (reachable > wrong))
        growing = possible & ~reached & (i >= 0)
        if not growing.any():
            break
        right = np.where(growing, np.minimum(1.0, right + i / (total - i) * (reachable - wrong)), right)
        wrong = np.where(growing, reachable, wrong)
    rejected: Bools = possible & (right + wrong >= goal)
    return rejected


def one_run_curve_p_value(guesses: Guesses, claim: Curve) -> float:
    """Return an upper limit on the probability of so many right guesses if a trade-off curve holds.

    The smallest level that `one_run_curve_rejects` rejects at, rounded up by at most 0.5%.
    """
    low, high = _LEAST_P_VALUE, 1.0
    for _ in range(2):
        levels = np.geomspace(low, high, _LEVELS)
        total, correct = np.full(_LEVELS, guesses.guesses), np.full(_LEVELS, guesses.correct)
        rejected = one_run_curve_rejects(guesses.canaries, total, correct, levels, claim)
        if not rejected.any():
            return 1.0
        first = int(np.argmax(rejected))
        if first == 0:
            return float(levels[0])
        low, high = levels[first - 1 : first + 1].tolist()
    return high


def one_run(scores: Scores | Guesses, *, delta: float = 0.0, confidence: float = 0.95, copies: int = 1) -> Estimate:
    """Compute a lower bound on ε from one run, whatever the dependence between the scores.

    Steinke, Nasr & Jagielski (2023), at a grid of numbers of guesses that is fixed in advance, in both tails and in the
    upper one alone; the significance is divided among them. Valid for every mechanism if each canary was inserted by
    its own fair coin flip. Its cost for δ grows with the number of canaries.

    Args:
        scores: Scores of members and of observed non-members; or the guesses, if their number was fixed in advance.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the bound, in [0.5, 1).
        copies: How often a member was inserted, at most; the bound is for one copy, by group privacy.

    Returns:
        A valid bound.

    Raises:
        InputError: If an argument is out of range, or the numbers of scores contradict fair coin flips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> bound = one_run(scores, delta=1e-5)
        >>> bound.valid, 1 < bound.lower < 4.377  # the true ε
        (True, True)
        >>> round(one_run(Guesses(canaries=1000, guesses=100, correct=90), delta=1e-5).lower, 2)
        1.63
    """
    check_delta(delta)
    check_count("copies", copies)
    families = guess_families(scores)
    levels = significance_levels(families, 1 - check_confidence(confidence))
    lower, threshold = largest_rejected(families, levels, lambda e: ApproximateDP(*group_parameters(e, delta, copies)))
    if copies > 1:
        # The curve of several copies limits the same guesses, so the better bound may be taken. It is the smaller
        # claim, but its recursion is less sharp than the test of a single pair, which is all there is for one copy.
        by_curve = largest_rejected(families, levels, lambda e: GroupCurve(ApproximateDP(e, delta), copies))
        if by_curve[0] > lower:
            lower, threshold = by_curve
    assumes = COIN_FLIPS if isinstance(scores, Scores) else _FIXED_NUMBER
    return Estimate(
        "one-run", lower, lower, delta=delta, confidence=confidence, assumes=assumes, threshold=threshold, valid=True
    )


def one_run_fdp(scores: Scores | Guesses, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Compute a lower bound on the ε of a Gaussian mechanism from one run, whatever the dependence between the scores.

    Mahloujifar, Melis & Chaudhuri (2024) with the Gaussian trade-off curve, at a grid of numbers of guesses that is
    fixed in advance. A bound for Gaussian mechanisms only, if each canary was inserted by its own fair coin flip.

    Args:
        scores: Scores of members and of observed non-members; or the guesses, if their number was fixed in advance.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the bound, in [0.5, 1).

    Returns:
        The bound, valid only if the mechanism is Gaussian.

    Raises:
        InputError: If an argument is out of range, or the numbers of scores contradict fair coin flips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 300), rng.normal(0, 1, 300))
        >>> 1 < one_run_fdp(scores, delta=1e-5).lower < 4.377  # the true ε
        True
        >>> round(one_run_fdp(Guesses(canaries=1000, guesses=100, correct=90), delta=1e-5).lower, 2)
        2.46
    """
    # Two-tailed guesses only: Gaussian mechanisms are symmetric.
    families = guess_families(scores)[:1]
    levels = significance_levels(families, 1 - check_confidence(confidence))
    mu, threshold = largest_rejected(families, levels, GaussianDP)
    assumes = f"{COIN_FLIPS if isinstance(scores, Scores) else _FIXED_NUMBER}; {GAUSSIAN}"
    lower = float(epsilon_gdp(mu, delta))
    return Estimate(
        "one-run-fdp", lower, lower, delta=delta, confidence=confidence, assumes=assumes, threshold=threshold
    )


def guess_families(scores: Scores | Guesses, planned: int | None = None) -> list[GuessTests]:
    """Return tests of a claim from guesses in both tails and from guesses in the upper tail alone.

    Args:
        scores: Scores of members and of observed non-members; or guesses that somebody counted, which are one test.
        planned: A number of guesses, fixed without looking at who is a member. The only tests are then by so many in
            both tails, and by half as many in the upper tail. By default, a grid of numbers up to half of the canaries.

    Raises:
        InputError: If the numbers of scores contradict fair coin flips.
    """
    if isinstance(scores, Guesses):
        return [GuessTests(_NO_SCORE, [scores])]
    members, nonmembers, _ = guessing_scores(scores, "coin-flips")
    canaries = members.size + nonmembers.size
    most = int(_MAX_SHARE * canaries)
    plans: list[tuple[bool, int, float, float]] = [(False, most, _RATIO, TWO_TAILS_WEIGHT), (True, most, _RATIO, 1.0)]
    if planned is not None:
        plans = [(False, planned, np.inf, _BOTH_TAILS_SHARE), (True, planned // 2, np.inf, 1 - _BOTH_TAILS_SHARE)]
    families = []
    for top_only, number, ratio, weight in plans:
        thresholds, guesses, right = tail_guesses(members, nonmembers, number, ratio, top_only=top_only)
        rows = [Guesses(canaries, int(r), int(v)) for r, v in zip(guesses, right, strict=True)]
        families.append(GuessTests(thresholds, rows, weight))
    return families


@dataclass(frozen=True)
class GuessTests(Tests):
    """Tests of a claim by the numbers of right guesses, at numbers of guesses fixed in advance."""

    thresholds: Floats
    rows: list[Guesses]
    weight: float = 1.0

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-values, or upper limits on them."""
        if isinstance(claim, ApproximateDP):
            return np.array([one_run_p_value(row, claim.epsilon, claim.delta) for row in self.rows])
        return np.array([one_run_curve_p_value(row, claim) for row in self.rows])

    def margins(self, claim: Curve, level: float) -> Floats:
        """Return ln(p/level) for (ε, δ)-DP; for other curves, whose p-values take longer, only its sign, times ∞."""
        if isinstance(claim, ApproximateDP):
            return super().margins(claim, level)
        guesses, correct = np.array([(row.guesses, row.correct) for row in self.rows]).T
        levels = np.full(guesses.size, level)
        rejected = one_run_curve_rejects(self.rows[0].canaries, guesses, correct, levels, claim)
        return np.where(rejected, -np.inf, np.inf)


# Guesses in both tails get nine times the significance of those in the upper tail alone, which see leaks that only
# betray members.
_BOTH_TAILS_SHARE = 0.9
# Numbers of guesses to choose from: 0.95 N, 0.88 N, … down to 16.
_LARGEST_SHARE, _PLANNED_RATIO, _FEWEST = 0.95, 0.93, 16


def most_powerful_guesses(canaries: int, claim: Curve, truth: Curve, alpha: float) -> int:
    """Return the number of guesses that most likely refutes ``claim`` if ``truth`` holds.

    Args:
        canaries: Number of canaries, inserted or held out.
        claim: The claim.
        truth: What really holds, such as the curve for half of the claimed noise.
        alpha: Significance of the test.

    Returns:
        The number of guesses; half of the canaries if no number refutes.

    Example:
        >>> most_powerful_guesses(2000, GaussianDP(1.0), GaussianDP(2.0), 0.05)
        552
    """
    steps = np.arange(max(0, int(np.log(_LARGEST_SHARE * canaries / _FEWEST) / -np.log(_PLANNED_RATIO))) + 1)
    numbers = 2 * np.unique((_LARGEST_SHARE * canaries * _PLANNED_RATIO**steps / 2).astype(np.int64))
    powers = guess_power(canaries, numbers, claim, truth, alpha)
    return int(numbers[np.argmax(powers)]) if powers.any() else canaries // 2


def guess_power(canaries: int, guesses: Ints, claim: Curve, truth: Curve, alpha: float) -> Floats:
    """Return a lower bound on the probability of rejecting ``claim`` with the best attack on ``truth``.

    The attack's scores are independent of one another, so that the distribution of right guesses is that of Theorem 4
    in docs/proofs.md. Only guesses in both tails are counted.

    Args:
        canaries: Number of canaries.
        guesses: Numbers of guesses, less than ``canaries``, shape (k,).
        claim: The claim.
        truth: The curve that the attack really reaches.
        alpha: Significance of the test.

    Example:
        >>> guess_power(400, np.array([200]), GaussianDP(1.0), GaussianDP(4.0), 0.05) > 0.95
        array([ True])
    """
    level = _BOTH_TAILS_SHARE * alpha
    needed = np.array([right_guesses_needed(canaries, int(r), claim, level) for r in guesses])  # type: ignore[arg-type]
    possible, powers = needed <= guesses, np.zeros(guesses.size)
    powers[possible] = curve_tail_probability(guesses[possible], needed[possible], canaries, truth)
    return powers


@lru_cache(maxsize=1024)
def right_guesses_needed(canaries: int, guesses: int, claim: Curve, level: float) -> int:
    """Return the smallest number of right guesses that rejects a claim, or one more than all if none does.

    All curves are frozen, so it can be remembered.
    """
    low, high = 0, guesses + 1  # zero right guesses never reject
    while high - low > 1:
        # Sixteen numbers at once: the cost of the recursion is in its steps, not in the size of its arrays.
        middle = np.unique(np.linspace(low, high, 18).astype(np.int64)[1:-1])
        middle = middle[(middle > low) & (middle < high)]
        if isinstance(claim, ApproximateDP):
            tests = GuessTests(_NO_SCORE, [Guesses(canaries, guesses, int(v)) for v in middle])
            rejecting = tests.p_values(claim) <= level
        else:
            totals, levels = np.full(middle.size, guesses), np.full(middle.size, level)
            rejecting = one_run_curve_rejects(canaries, totals, middle, levels, claim)
        first = int(np.argmax(np.append(rejecting, True)))
        low, high = np.concatenate([[low], middle, [high]])[first : first + 2].tolist()
    return high
