"""`assert_private_scores`: scores of members and non-members, as a unit test."""

from __future__ import annotations

from numpy.typing import ArrayLike

from coalmine.stats import Estimate, Scores, ceiling, simultaneous
from coalmine.stats.rank_tests import Design
from coalmine.testing.claims import FALSE_ALARM_RATE, check_can_fail, checked_claim, judged


def assert_private_scores(
    members: ArrayLike,
    nonmembers: ArrayLike,
    *,
    epsilon: float,
    delta: float = 1e-5,
    design: Design = "fixed",
    false_alarm_rate: float = FALSE_ALARM_RATE,
) -> Estimate:
    """Assert that scores do not refute (ε, δ)-DP.

    Valid if members were chosen at random among exchangeable canaries, and the scores are independent (see
    `coalmine.stats.simultaneous`). Scores of one release depend on each other through what it reveals to all of them: a
    mechanism that reveals everything with probability δ is (0, δ)-DP and fails with that probability.

    Args:
        members: Scores of inserted canaries; higher means more likely a member.
        nonmembers: Scores of held-out canaries.
        epsilon: Claimed ε.
        delta: Claimed δ.
        design: How members were chosen: ``"fixed"`` (a fixed number) or ``"coin-flips"`` (each by a fair coin).
        false_alarm_rate: Largest probability that correct scores fail.

    Returns:
        The lower bound that was compared with the claim.

    Raises:
        AssertionError: If the lower bound exceeds the claim.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> assert_private_scores(rng.normal(0.5, 1, 500), rng.normal(0, 1, 500), epsilon=3.0).valid
        True
    """
    __tracebackhide__ = True
    claim, confidence = checked_claim(epsilon, delta, false_alarm_rate)
    scores = Scores(members, nonmembers)  # type: ignore[arg-type]
    sizes = scores.members.size, scores.observed.size
    top = ceiling(*sizes, delta=delta, confidence=confidence, design=design)
    check_can_fail(top, claim, f"{sizes[0]:,} members and {sizes[1]:,} non-members")
    bound = simultaneous(scores, delta=delta, confidence=confidence, design=design)
    return judged(bound, claim, false_alarm_rate, f"{sizes[0]:,} members, {sizes[1]:,} non-members")
