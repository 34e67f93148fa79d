"""Whose privacy an ε is about, and the five verdicts on a claimed guarantee."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What an audit says about the claimed guarantee, in the words used everywhere: terminal, JSON, report, gate."""

    # A valid test rejects the claim.
    REFUTED = "refuted"
    # Not rejected, but an estimate's interval lies entirely above the claim.
    SUSPICIOUS = "suspicious"
    # Nothing found, by an audit with less than 80% power against half the claimed noise.
    TOO_WEAK = "too weak"
    # Nothing found, with that power. This is not a proof of privacy.
    NOT_REFUTED = "not refuted"
    # No guarantee was stated.
    NO_CLAIM = "no claim"


# The order in which verdicts lead a page: alarms first, and adversaries that were too weak after one that was not.
LEADING = (Verdict.REFUTED, Verdict.SUSPICIOUS, Verdict.NOT_REFUTED, Verdict.TOO_WEAK, Verdict.NO_CLAIM)

# The order of different claims: unlike an adversary, a claim that was tested well does not make up for another.
WORST_FIRST = (Verdict.REFUTED, Verdict.SUSPICIOUS, Verdict.TOO_WEAK, Verdict.NO_CLAIM, Verdict.NOT_REFUTED)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict to lead with if several adversaries tested the same claim.

    The worst one; but adversaries that were too weak do not matter beside one that was not.
    """
    return min(verdicts, key=LEADING.index, default=Verdict.NO_CLAIM)


@dataclass(frozen=True)
class Unit:
    """The unit of privacy of a result. Figures for different units are different quantities and are never compared.

    Args:
        name: What is protected, such as ``"one user, whole training"``. Results are grouped by it.
        limited: Whether a limit on ε (``check --max-epsilon``) applies to this unit. It does not where the ε covers
            less than a release (a single round) or more than one person (a phrase that several users share).
    """

    name: str
    limited: bool = True


USER = Unit("one user, whole training")
EXAMPLE = Unit("one example, whole training")
ROUND = Unit("one user, one round", limited=False)
REPORT = Unit("one report")
PHRASE = Unit("one phrase, all its users together", limited=False)
APPLICATION = Unit("one user, one application of the mechanism")
SCORES = Unit("one canary of a score file")

_KNOWN = {unit.name: unit for unit in (USER, EXAMPLE, ROUND, REPORT, PHRASE, APPLICATION, SCORES)}


def unit_named(name: str) -> Unit:
    """Return the unit of that name; one that is not among ours counts as limited."""
    return _KNOWN.get(name, Unit(name))
