"""Test of a claim on scores that may depend on one another: right guesses about as many canaries as tell most.

Only the number of guesses is free, and it must not depend on who is a member. Few guesses are all right even if the
claim is true, and among many some are wrong even if it is not. docs/claim-test.md has the proof and the limits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coalmine.arrays import Ints
from coalmine.stats.rank_tests import check_coin_flips, curve_tail_probability
from coalmine.stats.ranks import both_tails, top_ranks
from coalmine.stats.scores import Scores
from coalmine.stats.single_run import Guesses, GuessTests, guesses_p_value, one_run_curve_rejects
from coalmine.stats.tradeoff import ApproximateDP, Curve

# Guesses in both tails get nine times the significance of those in the upper tail alone, which see leaks that only
# betray members.
_BOTH_TAILS_SHARE = 0.9
_LARGEST_SHARE, _RATIO, _FEWEST = 0.95, 0.93, 16  # numbers of guesses to choose from: 0.95 N, 0.88 N, … down to 16


def planned_tests(scores: Scores, guesses: int) -> list[GuessTests]:
    """Return the tests of a claim by guesses in both tails, and by half as many in the upper tail.

    Args:
        scores: Scores of members and of observed non-members.
        guesses: Number of guesses, fixed without looking at who is a member.

    Raises:
        InputError: If the numbers of scores contradict fair coin flips.
    """
    check_coin_flips(scores.members.size, scores.observed.size)
    return [
        GuessTests.at(scores, both_tails(scores.members, scores.observed, guesses, np.inf), _BOTH_TAILS_SHARE),
        GuessTests.at(scores, top_ranks(scores.members, scores.observed, guesses // 2, np.inf), 1 - _BOTH_TAILS_SHARE),
    ]


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
        >>> from coalmine.stats.tradeoff import GaussianDP
        >>> most_powerful_guesses(2000, GaussianDP(1.0), GaussianDP(2.0), 0.05)
        552
    """
    steps = np.arange(max(0, int(np.log(_LARGEST_SHARE * canaries / _FEWEST) / -np.log(_RATIO))) + 1)
    numbers = 2 * np.unique((_LARGEST_SHARE * canaries * _RATIO**steps / 2).astype(np.int64))
    powers = np.array([guess_power(canaries, int(number), claim, truth, alpha) for number in numbers])
    return int(numbers[np.argmax(powers)]) if powers.any() else canaries // 2


def guess_power(canaries: int, guesses: int, claim: Curve, truth: Curve, alpha: float) -> float:
    """Return a lower limit on the probability to reject ``claim`` with the best attack on ``truth``.

    The attack's scores are independent of one another, so that the distribution of right guesses is that of Theorem 4
    in docs/simultaneous-bound.md. Only guesses in both tails are counted.

    Args:
        canaries: Number of canaries.
        guesses: Number of guesses, less than ``canaries``.
        claim: The claim.
        truth: The curve that the attack really reaches.
        alpha: Significance of the test.

    Example:
        >>> from coalmine.stats.tradeoff import GaussianDP
        >>> guess_power(400, 200, GaussianDP(1.0), GaussianDP(4.0), 0.05) > 0.95
        True
    """
    needed = right_guesses_needed(canaries, guesses, claim, _BOTH_TAILS_SHARE * alpha)  # type: ignore[arg-type]
    if needed > guesses:
        return 0.0
    return float(curve_tail_probability(np.array([guesses]), np.array([needed]), canaries, truth)[0])


@lru_cache(maxsize=1024)
def right_guesses_needed(canaries: int, guesses: int, claim: Curve, level: float) -> int:
    """Return the smallest number of right guesses that rejects a claim, or one more than all if none does.

    All curves are frozen, so it can be remembered.
    """
    low, high = 0, guesses + 1  # no right guesses never reject
    while high - low > 1:
        # Sixteen numbers at once: the cost of the recursion is in its steps, not in the size of its arrays.
        middle = np.unique(np.linspace(low, high, 18).astype(np.int64)[1:-1])
        middle = middle[(middle > low) & (middle < high)]
        rejecting = _rejecting(canaries, guesses, middle, claim, level)
        first = int(np.argmax(rejecting)) if rejecting.any() else middle.size
        low, high = int(middle[first - 1]) if first else low, int(middle[first]) if first < middle.size else high
    return high


def _rejecting(canaries: int, guesses: int, right: Ints, claim: Curve, level: float) -> np.ndarray:
    if isinstance(claim, ApproximateDP):
        return np.array([guesses_p_value(Guesses(canaries, guesses, int(v)), claim) <= level for v in right])
    shape = right.shape
    return one_run_curve_rejects(canaries, np.full(shape, guesses), right, np.full(shape, level), claim)
