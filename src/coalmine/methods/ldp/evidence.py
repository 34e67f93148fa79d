"""What the trials of an LDP game say: the joint bound and claim test, also computed again from stored trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coalmine.arrays import Array, Bools, Floats
from coalmine.claims import Claim
from coalmine.methods.ldp.claim import LocalClaimTest
from coalmine.methods.ldp.estimates import estimates, shared_bound
from coalmine.methods.ldp.trials import Trials
from coalmine.results.claim_test import ClaimTest
from coalmine.results.result import Result, refutes
from coalmine.results.verdict import Verdict
from coalmine.stats import SequentialBound
from coalmine.stats.sequential import as_estimates


def joint_evidence(
    trials: Sequence[Trials], claim: Claim, *, delta: float, confidence: float
) -> tuple[float, ClaimTest]:
    """Return the bound and the claim test that hold jointly with those of all other results of the audit."""
    bound = shared_bound(trials, delta=delta, confidence=confidence)
    test = LocalClaimTest(trials, claim).result(confidence=confidence)
    if not test.refuted and refutes(bound, delta, claim):
        return bound, replace(test, verdict=Verdict.SUSPICIOUS)  # the tests that were decided on do not refute it
    return bound, test


def judged_at_any_time(
    result: Result, trials: Sequence[Trials], bound: SequentialBound, *, confidence: float, joint: float
) -> Result:
    """Return a result with the bound that allows an early stop first; the others become estimates."""
    test, claim = result.claim_test, result.claim
    if claim is not None and claim.epsilon != math.inf:
        # The bound decides instead of the tests for a fixed number of trials.
        test = LocalClaimTest(trials, claim).result_at_any_time(bound, confidence=joint)
    return replace(
        result,
        estimates=[bound.estimate(confidence), *as_estimates(result.estimates)],
        joint_bound=bound.lower(joint),
        claim_test=test,
    )


def recomputed(result: Result) -> Result:
    """Return a result with its estimates, joint bound and claim test computed again from its trials."""
    recipe, claim = result.recipe, result.claim
    assert claim is not None
    trials = _stored_trials(result)
    delta, confidence, joint = (recipe[name] for name in ("delta", "confidence", "joint"))
    joint_bound, test = joint_evidence(trials, claim, delta=delta, confidence=joint)
    again = replace(
        result,
        estimates=estimates(trials, delta=delta, confidence=confidence),
        joint_bound=joint_bound,
        claim_test=test,
    )
    if "bets_scores" not in result.arrays:
        return again
    bound = SequentialBound(delta=delta, claim=claim.epsilon)
    bound.update(result.arrays["bets_sent_first"], result.arrays["bets_scores"])
    return judged_at_any_time(again, trials, bound, confidence=confidence, joint=joint)


def stored_terms(trials: Sequence[Trials]) -> dict[str, Any]:
    """Return what scores alone do not tell of trials: sizes and guessing thresholds of the measurements."""
    return {"measurements": [[t.scores.size, float(t.upper), float(t.lower)] for t in trials]}


def stored_arrays(trials: Sequence[Trials]) -> dict[str, Array]:
    """Return all trials in order, if there are several measurements; the scores of a single one are stored anyway."""
    if len(trials) == 1:
        return {}
    return {
        "scores": np.concatenate([measurement.scores for measurement in trials]),
        "sent_first": np.concatenate([measurement.sent_first for measurement in trials]),
    }


def _stored_trials(result: Result) -> list[Trials]:
    """Return the trials of each measurement."""
    sent_first: Bools
    scores: Floats
    if "scores" in result.arrays:
        scores, sent_first = result.arrays["scores"], result.arrays["sent_first"]
    else:
        assert result.scores is not None
        members, nonmembers = result.scores.members, result.scores.observed
        scores = np.concatenate([members, nonmembers])
        sent_first = np.arange(scores.size) < members.size
    trials, start = [], 0
    for size, upper, lower in result.recipe["measurements"]:
        part = slice(start, start + size)
        trials.append(Trials(scores[part], sent_first[part], upper, lower))
        start += size
    return trials
