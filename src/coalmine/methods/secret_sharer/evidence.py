"""From the scores of phrases and users to ε, for the audit and to compute it again from stored scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coalmine.claims import Claim
from coalmine.methods.estimates import (
    CanaryEvidence,
    bounds_per_copy,
    canary_evidence,
    claim_test,
    neighbors_apart,
    with_stricter_bound,
)
from coalmine.results.result import Result
from coalmine.results.verdict import USER
from coalmine.stats import Design, Estimate, Scores, ceiling, estimate
from coalmine.stats.exposure import epsilon_from_exposure

USERS = "users"
"""View of the attack on users."""

_SCOPE = "ε is that of all users who share a phrase together"
_SPLIT = "training and test users were split at random, and each is one person"


def phrase_evidence(scores: Scores, *, delta: float, confidence: float, design: Design) -> CanaryEvidence:
    """Return the evidence about all users who share a phrase together."""
    # Phrases are exchangeable, and nothing is known of their scores' distribution: no null, no claim.
    evidence = canary_evidence(
        scores.members,
        scores.observed,
        null=None,
        signs=False,
        design=design,
        delta=delta,
        confidence=confidence,
        claim=None,
    )
    estimates = [replace(e, assumes=f"{e.assumes}; {_SCOPE}") if e.valid else e for e in evidence.estimates]
    return replace(evidence, estimates=estimates, recipe={"delta": delta, "confidence": confidence, "design": design})


def user_evidence(
    scores: Scores,
    median_exposure: float,
    claim: Claim | None,
    *,
    delta: float,
    confidence: float,
    design: Design,
    most_users: int,
) -> CanaryEvidence:
    """Return the evidence about one user.

    Args:
        scores: Scores of inserted and held-out phrases.
        median_exposure: Median exposure of the inserted phrases, in bits.
        claim: The claim for one user, or None.
        delta: δ at which ε is stated.
        confidence: Confidence of the bounds.
        design: How members were chosen.
        most_users: Largest number of users that could hold a phrase.
    """
    # Data sets with and without the most widespread canary are this many neighbors apart.
    copies = neighbors_apart(max(1, most_users), claim)
    bounds = bounds_per_copy(scores, delta=delta, confidence=confidence, design=design, copies=copies)
    limit = f"no phrase could be shared by more than {most_users} users"
    # Jagielski (2023): ε ≥ ln 2 · (exposure - 1) for the median exposure; an estimate, since its rates are counted.
    estimates = [
        *(replace(bound, assumes=f"{bound.assumes}; {limit}") for bound in bounds),
        Estimate("median-exposure", epsilon_from_exposure(median_exposure) / copies),
    ]
    members, nonmembers = scores.members, scores.observed
    counts = members.size, nonmembers.size
    independent = design == "fixed"  # without coin flips there is no test that does not assume it
    return CanaryEvidence(
        estimates=estimates,
        scores=scores,
        ceiling=ceiling(*counts, delta=delta, confidence=confidence, design=design, copies=copies),
        claim_test=claim_test(
            claim, estimates, members, nonmembers, design=design, copies=copies, independent=independent
        ),
        recipe={"delta": delta, "confidence": confidence, "design": design, "most_users": most_users},
    )


def attack_evidence(
    scores: Scores, claim: Claim | None, *, delta: float, confidence: float, copies: int
) -> CanaryEvidence:
    """Return the evidence of the attack on users, each of whom counts as ``copies`` neighboring steps."""
    estimates = estimate(scores.members, scores.nonmembers, delta=delta, confidence=confidence, copies=copies)
    estimates = with_stricter_bound(estimates, scores.members, scores.observed, copies=copies)
    counts = scores.members.size, scores.observed.size
    # Users were not drawn by coins, so the bounds assume a random split instead.
    return CanaryEvidence(
        estimates=[replace(e, assumes=f"{e.assumes}; {_SPLIT}") if e.valid else e for e in estimates],
        scores=scores,
        ceiling=ceiling(*counts, delta=delta, confidence=confidence, copies=copies),
        claim_test=claim_test(claim, estimates, scores.members, scores.observed, copies=copies),
        recipe={"delta": delta, "confidence": confidence, "copies": copies},
    )


def recomputed(result: Result, siblings: Sequence[Result]) -> Result:
    """Return a result with its estimates and claim test computed again from its scores."""
    scores = result.scores
    assert scores is not None
    # The same three functions as in the audit, on stored scores and the terms that the result kept.
    if result.view == USERS:
        evidence = attack_evidence(scores, result.claim, **result.recipe)
    elif result.unit is USER:
        # From the stored exposures; a result that was saved alone has only their median.
        exposures = [other.scores.members for other in siblings if other.view == "exposure:user" and other.scores]
        median = float(np.median(exposures[0])) if exposures else result.metrics["median exposure"]
        evidence = user_evidence(scores, median, result.claim, **result.recipe)
    else:
        evidence = phrase_evidence(scores, **result.recipe)
    return replace(result, estimates=evidence.estimates, claim_test=evidence.claim_test, ceiling=evidence.ceiling)
