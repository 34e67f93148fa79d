"""Lower bounds on ε that hold for all their thresholds at once. The mathematics is in docs/simultaneous-bound.md.

A claim (a trade-off curve) is put to a small family of tests that were fixed before the scores were seen: at which
ranks to look. Each test has an exact p-value under the least favorable pair of score distributions that the claim
allows; the significance is shared out among the tests, and the bound is the largest claim that any of them rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coalmine.errors import (
    InputError,
    NotApplicableError,
    check_confidence,
    check_count,
    check_delta,
    check_number,
)
from coalmine.stats.epsilon import COIN_FLIPS, GAUSSIAN, INDEPENDENT, Estimate
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import Design, Tests, threshold_tests, two_tailed_tests
from coalmine.stats.ranks import halves
from coalmine.stats.scores import Scores
from coalmine.stats.search import largest
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, group_parameters

_ASSUMES: dict[Design, str] = {"fixed": INDEPENDENT, "coin-flips": f"{INDEPENDENT}; {COIN_FLIPS}"}


def simultaneous(
    scores: Scores,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    design: Design = "fixed",
    copies: int = 1,
) -> Estimate:
    """Lower bound on ε at ``delta``, valid for every threshold it looked at.

    Coverage is at least ``confidence`` for every mechanism, provided that the scores are independent of one another.
    With ``design="fixed"`` nothing is assumed of how the numbers of members and non-members came about; with
    ``"coin-flips"`` each canary was planted by its own fair coin flip, which makes the two-tailed tests slightly
    sharper. ``copies`` is the number of times that each member was planted, divided out by group privacy.
    """
    check_delta(delta)
    check_count("copies", copies)
    alpha = 1 - check_confidence(confidence)
    families = _families(scores, design)

    def claim(epsilon: float) -> Curve:
        return ApproximateDP(*group_parameters(epsilon, delta, copies))

    lower, threshold = largest_rejected(families, alpha, claim)
    return Estimate.bound(
        "simultaneous" if scores.null is None else "exact-null",
        lower,
        delta=delta,
        confidence=confidence,
        assumes=_ASSUMES[design] if scores.null is None else f"{INDEPENDENT}; their null distribution is exact",
        threshold=threshold,
    )


def refutes(
    scores: Scores, epsilon: float, *, delta: float = 0.0, confidence: float = 0.95, design: Design = "fixed"
) -> bool:
    """Whether the scores refute a claim of (ε, δ)-DP: whether `simultaneous` is at least ε, at a tenth of its cost."""
    claim = ApproximateDP(check_number("epsilon", epsilon), check_delta(delta))
    return any_rejects(_families(scores, design), 1 - check_confidence(confidence), claim)


def ceiling(
    members: int,
    nonmembers: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    design: Design = "fixed",
    copies: int = 1,
) -> float:
    """The largest bound that `simultaneous` can give with so many scores: that of scores which separate perfectly.

    An ε beyond it cannot be shown, however leaky the mechanism.
    """
    m, n = check_count("members", members), check_count("nonmembers", nonmembers)
    apart = Scores(np.arange(n, n + m, dtype=float), np.arange(n, dtype=float))
    return simultaneous(apart, delta=delta, confidence=confidence, design=design, copies=copies).epsilon


def gdp(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Lower bound on ε(δ) of a mechanism that is μ-GDP: the largest rejected μ, converted exactly.

    The same simultaneous tests at single thresholds, against the Gaussian trade-off curve. It extrapolates along that
    curve far beyond the rates that were seen, and is wrong for mechanisms that are not Gaussian.
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    mu, threshold = largest_rejected([threshold_tests(scores)], alpha, GaussianDP)
    lower = float(epsilon_gdp(mu, delta))
    return Estimate.bound(
        "gdp",
        lower,
        delta=delta,
        confidence=confidence,
        assumes=f"{INDEPENDENT}; {GAUSSIAN}",
        threshold=threshold,
        valid=False,
    )


def split(scores: Scores, *, delta: float = 0.0, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Lower bound on ε from one test: chosen on a random half of the scores, carried out on the other half."""
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    if min(scores.members.size, scores.observed.size) < 2:
        raise NotApplicableError("split needs at least two scores a side")
    first, second = halves(scores.members, scores.observed, seed)

    def claim(epsilon: float) -> Curve:
        return ApproximateDP(epsilon, delta)

    chosen = _families(Scores(*first), "fixed")
    _, best = search(chosen, [alpha] * len(chosen), claim, relative=1e-3)
    lower, threshold = 0.0, None
    if best is not None:
        family = _families(Scores(*second), "fixed")[best[0]]
        # The halves differ by one score at most, and their grids by one test.
        i = min(best[1], family.thresholds.size - 1)
        lower = largest(lambda epsilon: bool(family.rejects(claim(epsilon), np.array([i]), alpha)[0]))
        threshold = float(family.thresholds[i])
    return Estimate.bound("split", lower, delta=delta, confidence=confidence, assumes=INDEPENDENT, threshold=threshold)


def largest_rejected(
    families: Sequence[Tests], alpha: float, claim: Callable[[float], Curve]
) -> tuple[float, float | None]:
    """The largest claim that some test rejects, and the threshold of that test (None where none rejects anything).

    With probability at least 1 − ``alpha`` it is not above the truth: the tests' significances sum to ``alpha``.
    """
    bound, best = search(families, test_levels(families, alpha), claim)
    return bound, None if best is None else float(families[best[0]].thresholds[best[1]])


def any_rejects(families: Sequence[Tests], alpha: float, claim: Curve) -> bool:
    """Whether some test rejects the claim, at significance ``alpha`` for all of them together."""
    return any(
        bool(np.any(family.rejects(claim, np.arange(family.thresholds.size), level)))
        for family, level in zip(families, test_levels(families, alpha), strict=True)
        if family.thresholds.size
    )


def search(
    families: Sequence[Tests], levels: Sequence[float], claim: Callable[[float], Curve], *, relative: float = 1e-10
) -> tuple[float, tuple[int, int] | None]:
    """The largest claim that some test rejects at its family's level, and that test: (family, index in it)."""
    bound, best = 0.0, None
    for f, (family, level) in enumerate(zip(families, levels, strict=True)):
        live = np.arange(family.thresholds.size)

        def rejects(parameter: float, family: Tests = family, level: float = level) -> bool:
            nonlocal live
            rejecting = live[family.rejects(claim(parameter), live, level)] if live.size else live
            if rejecting.size:
                # A test that does not reject a weak claim will not reject a stronger one: no need to ask it again.
                live = rejecting
            return bool(rejecting.size)

        # What no test of this family rejects at the bound so far, it cannot raise.
        reached = largest(rejects, floor=bound, relative=relative)
        if reached > bound:
            bound, best = reached, (f, int(live[0]))
    return bound, best


def _families(scores: Scores, design: Design) -> list[Tests]:
    if design not in ("fixed", "coin-flips"):
        raise InputError(f"design must be 'fixed' or 'coin-flips', got {design!r}")
    if scores.null is not None:
        return [threshold_tests(scores)]
    return [two_tailed_tests(scores, design), threshold_tests(scores)]


def test_levels(families: Sequence[Tests], alpha: float) -> list[float]:
    """The significance of one test of each family: ``alpha`` is shared by weight, and evenly within a family."""
    sizes = [family.thresholds.size for family in families]
    total = sum(family.weight for family, size in zip(families, sizes, strict=True) if size)
    return [alpha * family.weight / total / size if size else 0.0 for family, size in zip(families, sizes, strict=True)]
