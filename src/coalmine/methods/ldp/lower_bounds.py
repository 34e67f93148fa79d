"""Lower bounds on ε of LDP as a hypothesis test, and the test of the claim (Matsumoto et al. 2022, Section 3.1).

The paper reports ε_empirical (Eq. 3), the log-ratio of observed error rates. It is an estimate; the bounds here hold
with a stated confidence. docs/ldp.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.ldp.distinguishers import Trials
from coalmine.results.claim_test import (
    HALF_EXPONENT,
    HALF_THE_NOISE,
    RATIO,
    ClaimTest,
    detectable_share,
    number_needed,
    rejected_share,
)
from coalmine.results.result import Result
from coalmine.results.verdict import Verdict, verdict_on
from coalmine.stats import Counts, Estimate, Guesses, Scores, simultaneous
from coalmine.stats.exact_tests import TrialGuesses
from coalmine.stats.one_run import guess_families, one_run
from coalmine.stats.scores import epsilon_from_counts, plug_in
from coalmine.stats.simultaneous_bound import joint_p_value, p_value
from coalmine.stats.tradeoff import ApproximateDP

# How the tests of a bound, and of the claim, share the significance: most cells are decided by the guesses.
SHARES = {"one-run": 0.5, "clopper-pearson": 0.25, "ranks": 0.25}

ASSUMES = "a fair coin chose the gradient of each trial, and the guessing thresholds were fixed before the first trial"
_SINGLE_THRESHOLD = "a guess at a single threshold shows all that the adversary learns"

_LEAST_P_VALUE = 1e-15  # smaller ones are lost to rounding in one minus a level
_MOST_TRIALS = 10**8


def evidence(
    trials: Sequence[Trials], claim: Claim, *, delta: float, confidence: float, joint: float
) -> dict[str, Any]:
    """Return the fields of a `Result` that follow from its trials: estimates, joint bound and claim test.

    Args:
        trials: One per measurement, with thresholds fixed before it.
        claim: The claim for one report.
        delta: δ at which ε is stated.
        confidence: Confidence of each bound by itself.
        joint: Confidence of the joint bound and of the claim test, which hold together with those of other results.
    """
    joint_bound = shared_bound(trials, delta=delta, confidence=joint)
    test = check_local_claim(trials, claim, confidence=joint)
    estimated = estimates(trials, delta=delta, confidence=confidence)
    return {"estimates": estimated, "joint_bound": joint_bound, "claim_test": test}


def recomputed(result: Result) -> Result:
    """Return a result with its evidence computed again from its stored trials."""
    assert result.claim is not None
    terms = {name: result.recipe[name] for name in ("delta", "confidence", "joint")}
    return replace(result, **evidence(stored_trials(result), result.claim, **terms))


def stored_trials(result: Result) -> list[Trials]:
    """Return the trials of each measurement that are stored with a result."""
    if "scores" in result.arrays:
        scores, sent_first = result.arrays["scores"], result.arrays["sent_first"]
    else:  # a single measurement, whose order does not matter
        assert result.scores is not None
        scores = np.concatenate([result.scores.members, result.scores.observed])
        sent_first = np.arange(scores.size) < result.scores.members.size
    trials, start = [], 0
    for size, upper, lower in result.recipe["measurements"]:
        rows = slice(start, start + size)
        trials.append(Trials(scores[rows], sent_first[rows], upper, lower))
        start += size
    return trials


def estimates(trials: Sequence[Trials], *, delta: float, confidence: float) -> list[Estimate]:
    """Return lower bounds on ε from trials of one or several measurements, then the estimates.

    * ``ldp``, the bound to quote: the largest of the next three, which share the significance. The guesses get half of
      it, the rates and the ranks a quarter each.
    * ``one-run``: from the number of right guesses (Steinke, Nasr and Jagielski 2023). Under ε-LDP a guess is right
      with probability at most e^ε/(1+e^ε), whatever the other trials showed. Best if both errors are about equal.
    * ``clopper-pearson``: exact bounds on both error rates; best if they are unequal. Where measurements differ, the
      rates are means over all of their trials, and the bounds hold for reports that are independent given the coins,
      although the number of members of each is random (docs/proofs.md, Theorem 6).
    * ``ranks``: the highest and lowest scores, at numbers of guesses fixed in advance, for mechanisms whose extreme
      reports reveal more. `stats.one_run`; for a single measurement at δ > 0 `stats.simultaneous`, which is sharper
      there but needs identically distributed trials.
    * ``plug-in``, not a bound: ε_empirical (Eq. 3) of all trials together.
    * ``empirical``, not a bound: the mean ε_empirical of the measurements, as the paper reports it, ± their standard
      deviation. It is marked as doubtful where the quoted bound exceeds it, since one threshold then shows too little.

    Args:
        trials: One per measurement, with thresholds fixed before it.
        delta: δ at which ε is stated.
        confidence: Confidence of each bound by itself.
    """
    lower = shared_bound(trials, delta=delta, confidence=confidence)
    quoted = Estimate("ldp", lower, lower, delta=delta, confidence=confidence, valid=True, assumes=ASSUMES)
    quoted = quoted.with_stricter(lambda level: shared_bound(trials, delta=delta, confidence=level))
    bounds = _bounds(trials, delta, dict.fromkeys(SHARES, 1 - confidence))
    together = replace(plug_in(total_counts(trials), delta=delta), assumes=ASSUMES)
    epsilons = empirical_epsilons(trials, delta)
    mean, deviation = float(epsilons.mean()), spread(epsilons)
    interval: dict[str, Any] = {}
    if len(trials) > 1 and math.isfinite(deviation):
        interval = {"lower": max(0.0, mean - deviation), "upper": mean + deviation}
    empirical = Estimate(
        "empirical",
        mean,
        **interval,
        delta=delta,
        assumes=_SINGLE_THRESHOLD,
        doubtful=mean < quoted.epsilon,
    )
    return [quoted, *bounds, together, empirical]


def shared_bound(trials: Sequence[Trials], *, delta: float, confidence: float) -> float:
    """Return the bound to quote: the largest of three that share the significance."""
    # A union bound: the shares add up to 1, so all three hold together.
    shared = {name: (1 - confidence) * share for name, share in SHARES.items()}
    return max(estimate.lower or 0.0 for estimate in _bounds(trials, delta, shared))


def _bounds(trials: Sequence[Trials], delta: float, significance: dict[str, float]) -> list[Estimate]:
    """Return the three bounds, each at its own significance."""
    guesses = one_run(total_guesses(trials), delta=delta, confidence=1 - significance["one-run"])
    rates = epsilon_from_counts(total_counts(trials), delta=delta, confidence=1 - significance["clopper-pearson"])
    bounds = [replace(guesses, assumes=ASSUMES), replace(rates, assumes=ASSUMES)]
    scores, confidence = split_scores(trials), 1 - significance["ranks"]
    try:
        if delta > 0 and len(trials) == 1:
            ranks = simultaneous(scores, delta=delta, confidence=confidence, design="coin-flips")
        else:
            ranks = one_run(scores, delta=delta, confidence=confidence)
        bounds.append(replace(ranks, method="ranks", assumes=ASSUMES, threshold=None))
    except InputError:
        pass  # too few trials for any rank, or too uneven coins
    return bounds


def check_local_claim(trials: Sequence[Trials], claim: Claim, *, confidence: float) -> ClaimTest:
    """Test the claim for one report by trials of one or several measurements.

    The tests are those of the quoted bound, with the same shares of the significance: the number of right guesses, the
    rates at the fixed threshold, and the extreme scores. Where more than (ε, δ) is claimed, guesses and scores are
    compared with the whole curve.

    Args:
        trials: One per measurement.
        claim: The claim, such as ``Claim(local_epsilon=1.0, rounds=1, delta=0.0)``.
        confidence: One minus the false-alarm rate.

    Returns:
        The verdict, with the p-value and the power of the guesses.
    """
    alpha = 1 - confidence
    # A mechanism without noise claims nothing that trials could refute.
    if claim.epsilon == math.inf:
        return ClaimTest(verdict=Verdict.NO_CLAIM, claim=claim)
    p = local_p_value(trials, claim)
    guesses = _tested_guesses(trials, claim)
    detectable = detectable_share(lambda exponent: _power(guesses, claim, exponent, alpha))
    verdict = verdict_on(
        claim,
        rejected=p <= alpha,
        exceeded=False,  # there is no calibrated estimate
        detects_half=detectable is not None and detectable >= HALF_THE_NOISE,
    )
    # Only a curve that follows from noise says what less noise would allow.
    noise_at_most = None
    if claim.has_noise:
        noise_at_most = rejected_share(lambda exponent: local_p_value(trials, claim, RATIO**exponent), alpha)
    return ClaimTest(
        verdict=verdict,
        p_value=p,
        confidence=confidence,
        assumes=ASSUMES,
        noise_at_most=noise_at_most,
        detectable_noise=detectable,
        claim=claim,
    )


def local_p_value(trials: Sequence[Trials], claim: Claim, noise: float = 1.0) -> float:
    """Return the p-value of a claim for one report, or of the same claim with a share of its noise."""
    curve = claim.curve(noise)
    p_values = {"one-run": _tested_guesses(trials, claim).p_value(curve)}
    # Rates test a single (ε, δ). Where the claim is a curve, they cannot say what share of the noise is there.
    if not claim.has_noise:
        p_values["clopper-pearson"] = _rates_p_value(total_counts(trials), claim)
    try:
        scores = split_scores(trials)
        if claim.delta > 0:
            p_values["ranks"] = p_value(scores, curve, design="coin-flips")
        else:  # measurements may differ (docs/proofs.md)
            p_values["ranks"] = joint_p_value(guess_families(scores), curve)
    except InputError:
        pass  # too uneven coins
    # A union bound over the tests, weighted by their shares.
    return min(1.0, *(p / SHARES[name] for name, p in p_values.items()))


def trials_needed(trials: Sequence[Trials], claim: Claim, confidence: float) -> int | None:
    """Return how many trials detect half of the noise with 80% power, to two digits; None if far too many."""
    guesses, half = _tested_guesses(trials, claim), HALF_EXPONENT
    made = sum(measurement.scores.size for measurement in trials)
    return number_needed(made, lambda factor: _power(guesses, claim, half, 1 - confidence, factor), most=_MOST_TRIALS)


def _tested_guesses(trials: Sequence[Trials], claim: Claim) -> TrialGuesses:
    """Return the guesses that the claim limits."""
    # For pure ε, abstaining from a guess tells nothing about the others. Otherwise every trial must be guessed, because
    # δ, or the steepest part of a curve, can be spent on the few trials that are.
    if claim.delta == 0 and isinstance(claim.curve(), ApproximateDP):
        guesses = total_guesses(trials)
        return TrialGuesses(guesses.guesses, guesses.correct)
    return every_guess(trials)


def every_guess(trials: Sequence[Trials]) -> TrialGuesses:
    """Return the guesses at the threshold, of every trial."""
    counts = total_counts(trials)
    return TrialGuesses(counts.members + counts.nonmembers, counts.tp + counts.tn)


def _power(guesses: TrialGuesses, claim: Claim, exponent: int, alpha: float, factor: float = 1.0) -> float:
    """Return the probability to detect a share of the noise by the number of right guesses."""
    return guesses.power(claim.curve(), claim.curve(RATIO**exponent), alpha * SHARES["one-run"], factor)


def _rates_p_value(counts: Counts, claim: Claim) -> float:
    """Return the smallest significance at which the bound from both rates exceeds the claim."""
    # The bound has no closed form of its level, so search for the level by bisection, on a logarithmic scale.
    low, high = math.log(_LEAST_P_VALUE), math.log(0.5)

    def exceeds(log_level: float) -> bool:
        level = 1 - math.exp(log_level)
        return epsilon_from_counts(counts, delta=claim.delta, confidence=level).epsilon > claim.epsilon

    if not exceeds(high):
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return float(np.exp(high))


def empirical_epsilons(trials: Sequence[Trials], delta: float) -> Floats:
    """Return the paper's ε_empirical (Eq. 3) of each measurement."""
    return np.array([plug_in(measurement.counts, delta=delta).epsilon for measurement in trials])


def spread(epsilons: Floats) -> float:
    """Return the standard deviation over measurements: 0 for a single one, infinite if one of them is."""
    if not np.isfinite(epsilons).all():
        return math.inf
    return float(epsilons.std(ddof=1)) if len(epsilons) > 1 else 0.0


def split_scores(trials: Sequence[Trials]) -> Scores:
    """Return the scores of all trials that sent g₁, and of all that sent g₂."""
    return Scores(
        np.concatenate([measurement.scores[measurement.sent_first] for measurement in trials]),
        np.concatenate([measurement.scores[~measurement.sent_first] for measurement in trials]),
    )


def total_counts(trials: Sequence[Trials]) -> Counts:
    """Return the confusion matrix of all measurements together."""
    matrices = np.array([astuple(measurement.counts) for measurement in trials])
    return Counts(*matrices.sum(axis=0).tolist())


def total_guesses(trials: Sequence[Trials]) -> Guesses:
    """Return the guesses of all measurements together."""
    numbers = np.array([astuple(measurement.guesses) for measurement in trials])
    return Guesses(*numbers.sum(axis=0).tolist())
