"""The test of a local claim by trials: its p-value, and what it would have detected."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.ldp.estimates import ASSUMES, SHARES, split_scores, total_counts, total_guesses
from coalmine.methods.ldp.trials import Trials
from coalmine.results.claim_test import (
    HALF_THE_NOISE,
    POWER,
    RATIO,
    ClaimTest,
    detectable_share,
    exponent_of,
    number_needed,
    rejected_share,
)
from coalmine.results.verdict import Verdict
from coalmine.stats import Counts, SequentialBound, epsilon_from_counts, p_value
from coalmine.stats.sequential import ANYTIME
from coalmine.stats.sequential_power import reaches_power
from coalmine.stats.simultaneous_bound import joint_p_value
from coalmine.stats.single_run import guess_families
from coalmine.stats.tradeoff import ApproximateDP, Curve
from coalmine.stats.trial_guesses import TrialGuesses

_LEAST_P_VALUE = 1e-15
_MOST_TRIALS = 10**8


class LocalClaimTest:
    """Tests the claim for one report by trials of one or several measurements.

    The tests are those of the quoted bound, with the same shares of the significance: the number of right guesses, the
    rates at the fixed threshold, and the extreme scores. Where more than (ε, δ) is claimed, guesses and scores are
    compared with the whole curve.

    Args:
        trials: One per measurement.
        claim: The claim.
    """

    def __init__(self, trials: Sequence[Trials], claim: Claim) -> None:
        self._trials, self._claim = trials, claim
        guesses, counts = total_guesses(trials), total_counts(trials)
        # For pure ε, abstaining from a guess tells nothing about the others. Otherwise every trial must be guessed,
        # because δ, or the steepest part of a curve, can be spent on the few trials that are.
        pure = claim.delta == 0 and isinstance(claim.curve(), ApproximateDP)
        right = guesses.correct if pure else counts.tp + counts.tn
        self._guesses = TrialGuesses(guesses.guesses if pure else guesses.canaries, right)
        self._counts = counts

    def result(self, *, confidence: float) -> ClaimTest:
        """Return the verdict at a confidence, with the p-value and the power of the guesses."""
        claim, alpha = self._claim, 1 - confidence
        if claim.epsilon == math.inf:
            return ClaimTest(verdict=Verdict.NO_CLAIM, claim=claim)
        p = self.p_value(1.0)
        detectable = detectable_share(lambda exponent: self._power(exponent, alpha))
        if p <= alpha:
            verdict = Verdict.REFUTED
        elif detectable is None or detectable < HALF_THE_NOISE:
            verdict = Verdict.TOO_WEAK
        else:
            verdict = Verdict.NOT_REFUTED
        return ClaimTest(
            verdict=verdict,
            p_value=p,
            confidence=confidence,
            assumes=ASSUMES,
            noise_at_most=rejected_share(lambda i: self.p_value(RATIO**i), alpha) if claim.has_noise else None,
            detectable_noise=detectable,
            claim=claim,
        )

    def result_at_any_time(self, bound: SequentialBound, *, confidence: float) -> ClaimTest:
        """Return the verdict by a bound that held at every moment, for trials that could stop at any time."""
        claim = self._claim
        if bound.refuted(confidence):
            verdict = Verdict.REFUTED
        else:
            accuracy = self._guesses.accuracy_under(claim.curve(HALF_THE_NOISE), claim.curve())
            strong = reaches_power(
                lambda: SequentialBound(delta=claim.delta, claim=claim.epsilon),
                lambda coins, rng: (coins == (rng.random(coins.size) < accuracy)).astype(np.float64),
                trials=bound.trials,
                power=POWER,
                confidence=confidence,
            )
            verdict = Verdict.NOT_REFUTED if strong else Verdict.TOO_WEAK
        return ClaimTest(verdict=verdict, p_value=bound.p_value, confidence=confidence, assumes=ANYTIME, claim=claim)

    def p_value(self, share: float) -> float:
        """Return the p-value of the claim for a share of its noise."""
        curve = self._claim.curve(share)
        p_values = {
            "one-run": self._guesses.p_value(curve),
            # Rates test a single (ε, δ). Where the claim is a curve, they cannot say what share of the noise is there.
            "clopper-pearson": 1.0 if self._claim.has_noise else _rates_p_value(self._counts, self._claim),
            "ranks": self._ranks_p_value(curve),
        }
        return min(1.0, *(p / SHARES[name] for name, p in p_values.items()))

    def trials_needed(self, confidence: float) -> int | None:
        """Return how many trials detect half of the noise with 80% power, to two digits; None if far too many."""
        half, trials = exponent_of(HALF_THE_NOISE), sum(t.scores.size for t in self._trials)
        return number_needed(trials, lambda factor: self._power(half, 1 - confidence, factor), most=_MOST_TRIALS)

    def _power(self, exponent: int, alpha: float, factor: float = 1.0) -> float:
        """Return the probability to detect a share of the noise by the number of right guesses."""
        claim, truth = self._claim.curve(), self._claim.curve(RATIO**exponent)
        return self._guesses.power(claim, truth, alpha * SHARES["one-run"], factor)

    def _ranks_p_value(self, curve: Curve) -> float:
        """Return the p-value of the highest and lowest scores; measurements may differ (docs/claim-test.md)."""
        try:
            scores = split_scores(self._trials)
            if self._claim.delta > 0:
                return p_value(scores, curve, design="coin-flips")
            return joint_p_value(guess_families(scores), curve)
        except InputError:
            return 1.0  # too uneven coins


def _rates_p_value(counts: Counts, claim: Claim) -> float:
    """Return the smallest significance at which the bound from both rates exceeds the claim."""
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
