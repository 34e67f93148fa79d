"""The five verdicts on a claimed guarantee, and the test behind each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What an audit says about the claimed guarantee, in the words used everywhere: terminal, JSON, report, gate."""

    REFUTED = "refuted"
    """A valid test rejects the claim."""
    SUSPICIOUS = "suspicious"
    """Not rejected, but an estimate's interval lies entirely above the claim."""
    TOO_WEAK = "too weak"
    """Nothing found, by an audit that could hardly have found anything."""
    NOT_REFUTED = "not refuted"
    """Nothing found. This is not a proof of privacy."""
    NO_CLAIM = "no claim"
    """No guarantee was stated."""

    @property
    def fails(self) -> bool:
        """Whether a gate always stops at this verdict."""
        return self is Verdict.REFUTED

    @property
    def fails_strictly(self) -> bool:
        """Whether a strict gate stops at this verdict."""
        return self in (Verdict.REFUTED, Verdict.SUSPICIOUS, Verdict.TOO_WEAK)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict to lead with: the first of the enumeration's order that occurs."""
    occurring = set(verdicts)
    return next((verdict for verdict in Verdict if verdict in occurring), Verdict.NO_CLAIM)


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """The test of a claimed guarantee.

    Args:
        verdict: One of the five verdicts.
        method: The estimator whose lower bound was compared with the claim, or None if there was no bound.
        confidence: One minus the false-alarm rate of the test.
        p_value: p-value of the claim, where the test has one.
        noise_share: Largest share of the claimed noise multiplier that is not rejected, where the test gives one.
        power: Probability that the test rejects half the claimed noise, where it is known.
    """

    verdict: Verdict
    method: str | None = None
    confidence: float | None = None
    p_value: float | None = None
    noise_share: float | None = None
    power: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "verdict": self.verdict.value}
