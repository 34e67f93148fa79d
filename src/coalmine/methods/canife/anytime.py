"""What CANIFE's trials show so far, valid at every moment (docs/anytime.md).

Each trial has its own coin, and given everything before it a round's sum is as private as the claim says. So trials of
different periods can be used together although the model moved between them, and may stop at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.claims import Claim
from coalmine.methods.canife.round_estimates import Period
from coalmine.results.claim_test import HALF_THE_NOISE, POWER, ClaimTest, with_less_noise
from coalmine.results.verdict import Verdict
from coalmine.stats import GaussianDP, Scores, SequentialBound, SequentialTest
from coalmine.stats.claim_tests import ClaimTests
from coalmine.stats.sequential import reaches_power


class AnytimeEvidence:
    """A lower bound on ε of one round, and the test of its claim, after any number of trials.

    Args:
        delta: The δ of the bound.
        noise_multiplier: The claimed noise multiplier, or None.
    """

    def __init__(self, *, delta: float, noise_multiplier: float | None = None) -> None:
        self.bound = SequentialBound(delta=delta)
        self.test = SequentialTest(GaussianDP(1 / noise_multiplier)) if noise_multiplier else None

    @classmethod
    def of(cls, periods: Sequence[Period], *, delta: float, noise_multiplier: float | None) -> AnytimeEvidence:
        """Return the evidence of all trials of these periods, which are in the order in which they were played."""
        evidence = cls(delta=delta, noise_multiplier=noise_multiplier)
        for period in periods:
            evidence.update(period.scores, period.present, period.sigma)
        return evidence

    def update(self, scores: Floats, present: Bools, sigma: Floats) -> None:
        """Add trials; all arrays have shape (trials, canaries), as in `Period`."""
        # The log-likelihood ratio of N(1, σ²) and N(0, σ²) makes trials with different σ comparable, and needs none of
        # the later trials.
        known = np.isfinite(sigma) & (sigma > 0)
        ratios = np.where(known, (scores - 0.5) / np.where(known, sigma, 1.0) ** 2, scores)
        self.bound.update(present, ratios)
        if self.test is not None:
            self.test.update(present, ratios)

    def refuted(self, confidence: float) -> bool:
        """Return whether the claim is refuted."""
        return self.test is not None and self.test.refuted(confidence)

    def claim_test(self, claim: Claim | None, scores: Scores, confidence: float) -> ClaimTest | None:
        """Return the test of the claim for one round, or None without a claim."""
        if claim is None or self.test is None:
            return None
        if self.test.refuted(confidence):
            verdict = Verdict.REFUTED
        else:
            verdict = Verdict.NOT_REFUTED if self._is_strong(claim, scores, confidence) else Verdict.TOO_WEAK
        return ClaimTest(verdict=verdict, p_value=self.test.p_value, confidence=confidence)

    def _is_strong(self, claim: Claim, scores: Scores, confidence: float) -> bool:
        """Return whether this attack would have refuted the claim at half of the claimed noise."""
        assert claim.noise_multiplier is not None
        allowed = 1 / claim.noise_multiplier
        separation = with_less_noise(ClaimTests(scores).separation, allowed, allowed / HALF_THE_NOISE)
        return reaches_power(
            lambda: SequentialTest(GaussianDP(allowed)),
            lambda coins, rng: rng.normal(separation * coins, 1.0),
            trials=self.bound.trials,
            power=POWER,
            confidence=confidence,
        )


def ceiling(periods: Sequence[Period], *, delta: float, confidence: float) -> float:
    """Return the largest bound that these coins could show: that of perfectly separated scores."""
    bound = SequentialBound(delta=delta)
    for period in periods:
        bound.update(period.present, period.present.astype(np.float64))
    return bound.lower(confidence)
