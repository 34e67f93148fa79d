"""What a result says: the five verdicts on a claim, whose privacy an ε is about, and what checks found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from coalmine.claims import Claim
    from coalmine.stats import Estimate


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


def verdict_on(
    claim: Claim | None, *, rejected: bool, exceeded: bool, detects_half: bool, bugs: Sequence[Finding] = ()
) -> Verdict:
    """Return the verdict on a claim. No other code turns evidence into a verdict: tests, results and the gate ask here.

    Args:
        claim: The claimed guarantee, or None.
        rejected: Whether its test rejects it, at the significance that this test has among all that are judged
            together. Where a claim has no test, the lower bound exceeds it.
        exceeded: Whether evidence exceeds it that is no such test: the whole interval of a calibrated estimate, a lower
            bound although the test does not reject, or a test that rejects by itself but not among the others.
        detects_half: Whether the audit would have detected half of the claimed noise with a power of 80%.
        bugs: The findings of checks that refute it, which have a false-alarm rate of their own.
    """
    if claim is not None and (rejected or bugs):
        return Verdict.REFUTED
    if claim is None or claim.epsilon == math.inf:
        return Verdict.NO_CLAIM
    if exceeded:
        return Verdict.SUSPICIOUS
    return Verdict.NOT_REFUTED if detects_half else Verdict.TOO_WEAK


def exceeds(bound: Estimate | None, claim: Claim | None) -> bool:
    """Whether a lower bound exceeds a claim: (ε, δ)-DP implies (ε, δ')-DP only for δ' ≥ δ."""
    if bound is None or claim is None:
        return False
    return bound.epsilon > claim.epsilon and bound.delta >= claim.delta


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
        turn: What a round of its training is called.
    """

    name: str
    limited: bool = True
    turn: str = "round"


USER = Unit("one user, whole training")
EXAMPLE = Unit("one example, whole training", turn="step")
ROUND = Unit("one user, one round", limited=False)
REPORT = Unit("one report")
PHRASE = Unit("one phrase, all its users together", limited=False)
APPLICATION = Unit("one user, one application of the mechanism")
SCORES = Unit("one canary of a score file")

# By name, as results are stored; the unit of a method of your own counts as limited.
UNITS = {unit.name: unit for unit in (USER, EXAMPLE, ROUND, REPORT, PHRASE, APPLICATION, SCORES)}

# How often a correct training or mechanism gets any finding, at most, over all checks of one result together. They look
# for bugs that are plain once one looks at the right place, so they can afford to be this strict.
CHECK_RATE = 1e-3


class Check(StrEnum):
    """Checks, in the order in which their findings are listed: what is structural, then sizes, then consequences.

    A check is named by the property that it looks for, the same in the battery, in trainings and in replay. A method of
    your own may have checks of other names.

    Attributes:
        fault: What is wrong where the property is missing, which is how findings are labeled.
        about: What it is a property of. Findings about the same thing usually have one cause.

    Example:
        >>> str(Check.FRESH), Check.FRESH.fault
        ('fresh noise', 'noise reused')
    """

    fault: str
    about: str

    def __new__(cls, name: str, fault: str, about: str) -> Self:
        """Return the member whose value is its name."""
        check = str.__new__(cls, name)
        check._value_, check.fault, check.about = name, fault, about
        return check

    # Is the noise independent between coordinates?
    INDEPENDENT = ("independent noise", "noise shared", "noise")
    # Is it drawn anew in every round or call?
    FRESH = ("fresh noise", "noise reused", "noise")
    # Does it avoid exact values that occurred before?
    VALUES = ("values of the noise", "values exposed", "noise")
    # Does its distribution protect, whatever its size?
    SHAPE = ("shape of the noise", "wrong kind of noise", "noise")
    # Is there enough noise on every tensor, block and coordinate?
    PLACES = ("noise on every tensor", "noise missing", "noise")
    # Is there enough noise in every call of a mechanism?
    CALLS = ("noise in every call", "noise missing in some calls", "noise")
    # Is there enough noise on the whole?
    SIZE = ("size of the noise", "too little noise", "noise")
    # Are updates clipped that lie in one array?
    ARRAY = ("one array", "array not clipped", "clipping")
    # Also those that lie in one coordinate?
    COORDINATE = ("one coordinate", "coordinate not clipped", "clipping")
    # Also arrays of integers?
    INTEGERS = ("integers", "integers not clipped", "clipping")
    # And others, of every size and form?
    CLIPPING = ("clipping", "clipping skipped", "clipping")
    # Does no client move a release by more than the noise covers?
    SENSITIVITY = ("sensitivity", "client moves the release too far", "clipping")
    # Does the noise cover each client of an ordinary round?
    GIVEN = ("given clients", "ordinary client moves the release too far", "clipping")
    # Does a client count the same, whatever number of examples it reports?
    EXAMPLES = ("examples", "clients weighted by examples", "examples")
    # Does a client count the same, whatever others send?
    OTHERS = ("other clients", "client counts by what others send", "others")
    # Does a client count the same if others drop out?
    DROPOUTS = ("dropouts", "client counts more after dropouts", "others")
    # Do later rounds show nothing of a client without fresh noise?
    MEMORY = ("memory", "earlier clients remembered", "memory")
    # Also arrays in another order?
    ORDER = ("order", "order of arrays trusted", "order")
    # Does no client make a release NaN or infinite?
    NOT_FINITE = ("not finite", "NaN let through", "not finite")
    # Does the aggregation cope with every honest client?
    REFUSED = ("refused", "aggregation fails", "refused")
    # Does the claimed ε follow from noise, sampling and rounds, and are these the training's?
    ACCOUNTING = ("accounting", "wrong accounting", "accounting")
    # Do the clients that take part agree with the claimed sampling?
    PARTICIPATION = ("participation", "other sampling than claimed", "participation")
    # Do the releases contain the canaries that were inserted?
    CANARIES_SHOW = ("canaries in the releases", "canaries missing", "canaries")


_CHECKS = {str(check): check for check in Check}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A bug that a check found.

    Args:
        check: Name of the check, such as ``"fresh noise"``: one of `Check`, or another in a method of your own.
        sentence: What is wrong, in plain words and with numbers. The final full stop is optional.
        refutes: True if this refutes the claimed guarantee; False for a warning.
        p_value: Probability that a correct training or mechanism shows such evidence, or an upper limit on it, all
            checks of the result taken into account; 0 for what was seen to happen and needs no statistics.
        example: The smallest input that shows it, in words or code.
        where: The tensor that it is about, if it is about one.

    Attributes:
        fault: What is wrong, in a few words: that of the check, or its name if it is not one of `Check`.
        label: The fault and where it is, such as ``noise missing in conv1.weight``.
        about: What it is about. Findings of one training about the same thing usually have one cause.
        rank: Where it is listed.

    Example:
        >>> finding = Finding(check="fresh noise", sentence="The noise of call 3 equals that of call 1.", p_value=1e-9)
        >>> str(finding)
        'The noise of call 3 equals that of call 1 (p = 1e-09).'
    """

    check: str
    sentence: str
    refutes: bool = True
    p_value: float = 0.0
    example: str = ""
    where: str = ""

    @property
    def fault(self) -> str:
        """What is wrong, in a few words."""
        return _CHECKS[self.check].fault if self.check in _CHECKS else self.check

    @property
    def label(self) -> str:
        """The fault and where it is."""
        return f"{self.fault} in {self.where}" if self.where else self.fault

    @property
    def about(self) -> str:
        """What it is about."""
        return _CHECKS[self.check].about if self.check in _CHECKS else self.check

    @property
    def rank(self) -> tuple[bool, int]:
        """Where it is listed: bugs before warnings, then in the order of the checks."""
        return not self.refutes, [*_CHECKS, self.check].index(self.check)

    def __str__(self) -> str:
        """The sentence, with the p-value if there is one."""
        from coalmine.results.summary import p_value_text

        text = self.sentence.rstrip(".")
        if self.p_value > 0:
            text += f" ({p_value_text(self.p_value)})"
        return text if text.endswith("?") else f"{text}."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON; ``Finding(**content)`` reads them back."""
        return {**vars(self), "check": str(self.check)}
