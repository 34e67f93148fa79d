"""Guesses about trials that are decided by a fair coin each: how many are right, if a claim is true?

Unlike the canaries of one training, trials are played one by one, so a guess is right with a probability that the claim
limits, whatever the other trials showed. docs/ldp.md has the proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy import special

from coalmine.stats.tradeoff import ApproximateDP, Curve


@dataclass(frozen=True)
class TrialGuesses:
    """Right guesses about trials.

    Args:
        guesses: Number of trials that were guessed about.
        right: Number of right guesses.

    Example:
        >>> guesses = TrialGuesses(guesses=100, right=88)
        >>> guesses.p_value(ApproximateDP(1.0, 0.0)) < 0.01 < guesses.p_value(ApproximateDP(2.0, 0.0))
        True
    """

    guesses: int
    right: int

    def p_value(self, claim: Curve) -> float:
        """Return P(Binomial(guesses, a) ≥ right), with the highest accuracy a that the claim allows."""
        return _tail(self.guesses, self.right, highest_accuracy(claim))

    def accuracy_under(self, truth: Curve, claim: Curve) -> float:
        """Return the accuracy of this attack if ``truth`` held instead of ``claim``.

        It reaches the same share of the log-odds that the curve allows.
        """
        allowed = float(special.logit(highest_accuracy(claim)))
        # Half a guess on either side keeps the log-odds finite if all guesses are right.
        observed = float(special.logit((self.right + 0.5) / (self.guesses + 1)))
        strength = min(1.0, observed / allowed) if allowed > 0 else 0.0
        if strength <= 0:  # no better than a coin, whatever the curve allows
            return 0.5
        return float(special.expit(strength * special.logit(highest_accuracy(truth))))

    def power(self, claim: Curve, truth: Curve, alpha: float, factor: float = 1.0) -> float:
        """Return the probability to reject ``claim`` at significance ``alpha`` with this attack if ``truth`` held.

        Args:
            claim: The claim.
            truth: The curve that holds instead.
            alpha: Significance of the test.
            factor: How many times as many trials there are.
        """
        guesses = round(self.guesses * factor)
        low, high, accuracy = 0, guesses + 1, highest_accuracy(claim)
        while high - low > 1:  # the smallest number of right guesses that rejects
            middle = (low + high) // 2
            low, high = (low, middle) if _tail(guesses, middle, accuracy) <= alpha else (middle, high)
        return _tail(guesses, high, self.accuracy_under(truth, claim)) if high <= guesses else 0.0


def highest_accuracy(claim: Curve) -> float:
    """Return the largest probability of a right guess about a fair coin: where TPR = 1 − FPR on a symmetric curve."""
    if isinstance(claim, ApproximateDP) and claim.delta == 0:
        return float(special.expit(claim.epsilon))
    return 1 - claim.kink


def _tail(trials: int, least: int, probability: float) -> float:
    """Return P(Binomial(trials, probability) ≥ least)."""
    return float(special.betainc(least, trials - least + 1, probability)) if least > 0 else 1.0
