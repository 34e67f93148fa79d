"""Whose privacy an ε is about. Figures for different units are different quantities and are never compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """The unit of privacy of a result.

    Args:
        name: What is protected, such as ``"one user, whole training"``. Results are grouped by it.
        limited: Whether a limit on ε (``check --max-epsilon``) applies to this unit. It does not where the ε covers
            less than a release (a single round) or more than one person (a phrase that several users share).
    """

    name: str
    limited: bool = True

    def __str__(self) -> str:
        return self.name


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
