"""From the scores of phrases to ε, for the audit and to compute it again from stored scores.

`set_aside` chooses users for a reference model. A partition may cut one user into several clients, named ``name#0``,
``name#1``, ….
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.estimates import (
    CanaryEvidence,
    bounds_per_copy,
    canary_evidence,
    claim_test,
    neighbors_apart,
)
from coalmine.results.result import Result
from coalmine.results.verdict import USER
from coalmine.seeds import generator
from coalmine.simulation.data.federated import FederatedData
from coalmine.stats import Design, Estimate, Scores, ceiling
from coalmine.stats.exposure import epsilon_from_exposure

_SCOPE = "ε is that of all users who share a phrase together"


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


def recomputed(result: Result, siblings: Sequence[Result]) -> Result:
    """Return a result with its estimates and claim test computed again from its scores."""
    scores = result.scores
    assert scores is not None
    # The same two functions as in the audit, on stored scores and the terms that the result kept.
    if result.unit is USER:
        # From the stored exposures; a result that was saved alone has only their median.
        exposures = [other.scores.members for other in siblings if other.view == "exposure:user" and other.scores]
        median = float(np.median(exposures[0])) if exposures else result.metrics["median exposure"]
        evidence = user_evidence(scores, median, result.claim, **result.recipe)
    else:
        evidence = phrase_evidence(scores, **result.recipe)
    return replace(result, estimates=evidence.estimates, claim_test=evidence.claim_test, ceiling=evidence.ceiling)


def set_aside(data: FederatedData, share: float, *, seed: int = 0) -> tuple[FederatedData, FederatedData | None]:
    """Split off the clients of a random share of the users, for a reference model that never sees a canary.

    Users are chosen at random because their order may mean something, and the users who remain must be exchangeable
    with the test users.

    Args:
        data: The training clients.
        share: Share of the users to set aside, in [0, 1).
        seed: Seed for the choice.

    Returns:
        The clients to train on, and those set aside (None if there are none). No user is in both.

    Raises:
        InputError: If the share leaves no user to train on.
    """
    # A user may be cut into several clients, which belong together.
    owners = np.array([name.rpartition("#")[0] or name for name in data.names])
    user_of = np.unique(owners, return_inverse=True)[1]
    users = int(user_of.max()) + 1
    count = round(share * users)
    if not count:
        return data, None
    if count == users:
        raise InputError(f"reference_share = {share} leaves none of {users} users to train on: lower it")
    aside = np.isin(user_of, generator(seed, "aside").permutation(users)[:count])
    return data.subset(np.flatnonzero(~aside)), data.subset(np.flatnonzero(aside))
