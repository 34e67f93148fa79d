"""From the scores of inserted and held-out canaries to all estimates that apply, in the order to read them.

Shared by the methods whose canaries are exchangeable; see docs/estimators.md for what each estimate is worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.errors import NotApplicableError
from coalmine.results.claim_test import ClaimTest, check_claim
from coalmine.results.result import Result
from coalmine.results.verdict import Verdict
from coalmine.stats import (
    METHODS,
    CosineNull,
    Estimate,
    NormalNull,
    Null,
    Scores,
    ceiling,
    epsilon_gdp,
    estimate,
    gaussian_shift,
    simultaneous,
)
from coalmine.stats.gaussian import anderson_darling
from coalmine.stats.nulls import null_text, parse_null
from coalmine.stats.one_run import one_run
from coalmine.stats.rank_tests import Design
from coalmine.stats.scores import FEW, INDEPENDENT

# The bound from a closed-form null is the tightest, so it comes first; the one-run bound assumes least.
_ORDER = ("exact-null", "one-run", *(name for name in METHODS if name not in ("exact-null", "one-run")))
_BOUNDED_NULL = f"{INDEPENDENT}; their null distribution is bounded from above"
SIGNS = "; random signs are as good as uniform directions (docs/one-shot.md)"

# Significance at which the Anderson–Darling test marks Gaussian fits as doubtful.
_DOUBTFUL = 0.01


@dataclass(frozen=True, kw_only=True)
class CanaryEvidence:
    """Estimates and claim test from the scores of exchangeable canaries.

    Args:
        estimates: Estimates, the recommended one first.
        scores: The scores behind them.
        ceiling: Largest bound that counting these held-out scores can show.
        claim_test: The test of the claim, or None if no guarantee was stated.
        recipe: The arguments that reproduce this evidence (`recomputed_from_canaries`); empty for a custom null.
    """

    estimates: list[Estimate]
    scores: Scores
    ceiling: float | None
    claim_test: ClaimTest | None
    recipe: Mapping[str, Any] = field(default_factory=dict)


def canary_evidence(
    members: Floats,
    nonmembers: Floats,
    *,
    null: Null | None,
    signs: bool,
    design: Design,
    delta: float,
    confidence: float,
    claim: Claim | None,
    independent: bool = True,
    expected: float | None = None,
    checks_detect: float | None = None,
    needed: int | None = None,
) -> CanaryEvidence:
    """Return every estimate that applies, and the test of the claim.

    If the null distribution is known, its bound comes first and the paper's estimates use it; held-out canaries serve
    the others. Gaussian fits to scores that are not normal are marked as doubtful.

    Args:
        members: Scores of the inserted canaries, higher means more likely inserted.
        nonmembers: Scores of the held-out canaries.
        null: Null distribution of the scores, or an upper bound on its tails, or None if neither is known.
        signs: Whether the canaries are made of random signs, for which the null distribution is approximate.
        design: How members were chosen.
        delta: The δ at which ε is stated.
        confidence: Confidence of bounds and intervals.
        claim: The claimed guarantee, or None.
        independent: Whether the claim test may assume that canaries do not influence one another's scores, as random
            directions hardly do. The quoted bound assumes it only where a null distribution is known.
        expected: How far members' scores are expected to be from the null distribution (see `check_claim`), or None.
        checks_detect: Detectable share of the noise to state if the scores alone are too weak: that of checks which
            found nothing and would have noticed half of the noise with a power of 80%; None if there are none.
        needed: Number of canaries to advise if the scores are too weak, 0 for none; None to derive it from the scores.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> evidence = canary_evidence(
        ...     rng.normal(2, 1, 100), rng.normal(0, 1, 100), null=NormalNull(), signs=False, design="fixed",
        ...     delta=1e-5, confidence=0.95, claim=None,
        ... )
        >>> evidence.estimates[0].method, evidence.scores.members.size
        ('exact-null', 100)
    """
    scores = Scores(members, nonmembers)
    counted = estimate(members, nonmembers, delta=delta, confidence=confidence, design=design)
    estimates = {e.method: e for e in counted}
    if null is not None:
        known = Scores(members, null=null)
        exact = isinstance(null, CosineNull | NormalNull)
        # The bound is computed from the null, and so is the paper's estimate where the null is not only an upper limit.
        from_null = [simultaneous(known, delta=delta, confidence=confidence)]
        if exact and "gaussian-shift" in estimates:
            from_null.append(gaussian_shift(known, delta=delta, confidence=confidence))
        for e in from_null:
            estimates[e.method] = replace(e, assumes=(e.assumes if exact else _BOUNDED_NULL) + SIGNS * signs)
    metrics, _ = normality(members, "inserted")
    if metrics.get("anderson_darling_p", 1.0) < _DOUBTFUL and "gaussian-shift" in estimates:
        estimates["gaussian-shift"] = replace(estimates["gaussian-shift"], doubtful=True)
    top = ceiling(members.size, nonmembers.size, delta=delta, confidence=confidence, design=design)
    ordered = [estimates[name] for name in _ORDER if name in estimates]
    estimates_at_levels = with_stricter_bound(ordered, members, nonmembers, null=null, design=design)
    test = claim_test(
        claim,
        estimates_at_levels,
        members,
        nonmembers,
        null=null,
        design=design,
        independent=independent,
        expected=expected,
    )
    if test is not None and test.verdict is Verdict.TOO_WEAK and checks_detect is not None:
        # The scores alone say too little, and the checks enough.
        test = replace(test, verdict=Verdict.NOT_REFUTED, detectable_noise=checks_detect, canaries_needed=None)
    if test is not None and test.verdict is Verdict.TOO_WEAK and needed is not None:
        test = replace(test, canaries_needed=needed or None)
    name = None if null is None else null_text(null)
    recipe: dict[str, Any] = {}
    if name is not None or null is None:  # a custom null has no text to make it again from
        recipe = {"null": name, "signs": signs, "design": design, "delta": delta, "confidence": confidence}
        recipe |= {"independent": independent, "expected": expected, "checks_detect": checks_detect, "needed": needed}
    return CanaryEvidence(estimates=estimates_at_levels, scores=scores, ceiling=top, claim_test=test, recipe=recipe)


def recomputed_from_canaries(result: Result) -> Result:
    """Return a result with its estimates and claim test computed again from its scores, by `canary_evidence`.

    Args:
        result: A result whose ``recipe`` is that of a `CanaryEvidence`, with its scores.
    """
    assert result.scores is not None
    terms = {**result.recipe, "null": parse_null(result.recipe["null"])}
    evidence = canary_evidence(result.scores.members, result.scores.observed, claim=result.tested, **terms)
    return replace(result, estimates=evidence.estimates, claim_test=evidence.claim_test, ceiling=evidence.ceiling)


def claim_test(
    claim: Claim | None,
    estimates: Sequence[Estimate],
    members: Floats,
    nonmembers: Floats,
    *,
    null: Null | None = None,
    design: Design = "fixed",
    copies: int = 1,
    independent: bool = True,
    expected: float | None = None,
) -> ClaimTest | None:
    """Return the test of a claim, with the null distribution if the quoted bound uses one.

    Args:
        claim: The claimed guarantee, or None.
        estimates: Estimates from these scores, the recommended one first.
        members: Scores of the inserted canaries.
        nonmembers: Scores of the held-out canaries.
        null: Null distribution of the scores, if it is known.
        design: How members were chosen.
        copies: How often each canary was inserted.
        independent: Whether canaries do not influence one another's scores.
        expected: See `check_claim`.

    Returns:
        The test, or None without a claim or a bound.
    """
    quoted = next((e for e in estimates if e.valid), None)
    if claim is None or quoted is None or quoted.confidence is None:
        return None
    uses_null = quoted.method == "exact-null"
    return check_claim(
        members,
        None if uses_null else nonmembers,
        claim,
        null=null if uses_null else None,
        confidence=quoted.confidence,
        design="fixed" if uses_null else design,
        dependent=not (independent or uses_null),
        copies=copies,
        expected=expected,
    )


def with_stricter_bound(
    estimates: list[Estimate],
    members: Floats,
    nonmembers: Floats,
    *,
    null: Null | None = None,
    design: Design = "fixed",
    copies: int = 1,
) -> list[Estimate]:
    """Return the estimates, the quoted bound (the first valid one) with its values at higher confidences.

    The gate needs these to judge many results jointly. See `canary_evidence` for the arguments.

    Args:
        estimates: Estimates from these scores, the recommended one first.
        members: Scores of the inserted canaries.
        nonmembers: Scores of the held-out canaries.
        null: Null distribution of the scores, if the quoted bound uses one.
        design: How members were chosen.
        copies: How often each canary was inserted.
    """
    quoted = next((e for e in estimates if e.valid), None)
    if quoted is None:
        return estimates
    # The scores are sorted once for all levels.
    if quoted.method == "exact-null":
        scores, design = Scores(members, null=null), "fixed"
    else:
        scores = Scores(members, nonmembers)
    bound = partial(simultaneous, scores, delta=quoted.delta, copies=copies, design=design)
    if quoted.method == "one-run":
        bound = partial(one_run, scores, delta=quoted.delta, copies=copies)
    stricter = quoted.with_stricter(lambda confidence: bound(confidence=confidence).lower)
    return [stricter if e is quoted else e for e in estimates]


def bounds_per_copy(scores: Scores, *, delta: float, confidence: float, design: Design, copies: int) -> list[Estimate]:
    """Return the lower bounds on the ε of one copy, the one that assumes least first, with its stricter values.

    With coin flips that is ``one-run``, which holds however canaries influence one another; ``simultaneous`` needs
    independent scores. See `with_stricter_bound` for the arguments.
    """
    methods = ["one-run", "simultaneous"] if design == "coin-flips" else ["simultaneous"]
    bounds = estimate(
        scores.members,
        scores.observed,
        delta=delta,
        confidence=confidence,
        methods=methods,
        design=design,
        copies=copies,
    )
    return with_stricter_bound(bounds, scores.members, scores.observed, design=design, copies=copies)


def simultaneous_bound(
    scores: Scores, *, delta: float, confidence: float, design: Design = "fixed", copies: int = 1
) -> tuple[Estimate, float | None]:
    """Return the ``simultaneous`` bound with its values at higher confidences, and its ceiling for this many scores.

    See `with_stricter_bound` for the arguments.
    """
    terms: dict[str, Any] = {"delta": delta, "design": design, "copies": copies}
    bound = simultaneous(scores, confidence=confidence, **terms)
    bound = bound.with_stricter(lambda level: simultaneous(scores, confidence=level, **terms).lower)
    counts = scores.members.size, scores.observed.size
    return bound, ceiling(*counts, confidence=confidence, **terms)


def rough_epsilon(members: Floats, nonmembers: Floats, delta: float = 1e-5) -> float | None:
    """Return ε of a Gaussian fit of equal widths to the scores so far, for a progress bar."""
    if min(len(members), len(nonmembers)) < 2:
        return None
    width = float(np.sqrt((members.var(ddof=1) + nonmembers.var(ddof=1)) / 2))
    shift = float(members.mean() - nonmembers.mean())
    return float(epsilon_gdp(max(0.0, shift) / width, delta)) if width > 0 else None


def neighbors_apart(clients: int, claim: Claim | None) -> int:
    """Return the number of neighboring steps that change the data of ``clients`` clients, for group privacy.

    One step per client if the claim is for replacing a client or if there is none; two if it is for adding or removing.
    """
    return clients if claim is None or claim.adjacency == "replace-one" else 2 * clients


def normality(scores: Floats, side: str) -> tuple[dict[str, float], list[str]]:
    """Return the Anderson–Darling test of scores as metrics, and a warning if they are not normal or too few to tell.

    Args:
        scores: Scores of one side.
        side: Name of the side, such as "inserted".
    """
    try:
        statistic, p_value = anderson_darling(scores)
    except NotApplicableError:  # too few scores for the test
        statistic, p_value = math.nan, math.nan
    metrics = {} if math.isnan(p_value) else {"anderson_darling": statistic, "anderson_darling_p": p_value}
    if p_value < _DOUBTFUL:
        return metrics, [
            f"the scores of the {side} canaries are not normal (Anderson–Darling {statistic:.3g}, p = {p_value:.2g}): "
            "do not rely on gaussian-shift"
        ]
    if scores.size < FEW:
        return metrics, [
            f"{scores.size:,} scores of {side} canaries are too few to check whether they are normal: do not rely on "
            "gaussian-shift"
        ]
    return metrics, []
