"""What a group of results says, in sentences: claim, evidence and odds."""

from __future__ import annotations

import math

from coalmine.drawing import numbers
from coalmine.results import words
from coalmine.results.claim_test import ClaimTest
from coalmine.results.groups import Group
from coalmine.results.result import AuditResult
from coalmine.results.verdict import Verdict


def sentence(group: Group) -> str:
    """Return claim and evidence of one group in words."""
    strongest = group.strongest
    text = " ".join([_claimed(group), *_notes(group)])
    if strongest is None or strongest.decisive is None:
        return f"{text} No lower bound is available, only estimates."
    if strongest.bugs and strongest.claim_test is not None and not strongest.claim_test.refuted:
        return f"{text} The scores of the canaries alone do not show the bug; the checks do."
    if strongest.claim_test is not None:
        text += _tested(strongest.claim_test, advice=not words.lacks_canaries(strongest))
    if not strongest.decisive.epsilon:
        return f"{text} No adversary shows any leak."
    bound = f"{numbers.at_least(strongest.decisive.epsilon)} ({confident(strongest)})"
    text += f" Strongest evidence: an adversary who {strongest.adversary} shows {bound}"
    if len(group.claims) > 1 and strongest.theory is not None:
        text += f", against a claim of {numbers.at_most(strongest.theory.epsilon)}"
    if strongest.verdict is Verdict.REFUTED and not strongest.bugs:
        return f"{text}. Look for missing noise, skipped clipping or an accountant that assumes other sampling."
    return f"{text}."


def _tested(test: ClaimTest, *, advice: bool) -> str:
    """Return what the test of the claim says beyond the verdict, with a space before it."""
    if test.verdict is Verdict.REFUTED and test.p_value is not None:
        return f" The scores refute it, {words.p_value_text(test.p_value)}.{words.noise_sentence(test)}"
    if test.verdict is Verdict.TOO_WEAK:
        return words.needed_sentence(test) if advice else ""
    return words.power_sentence(test)


def in_short(group: Group) -> str:
    """Return verdict and evidence of one group in one line."""
    strongest = group.strongest
    if strongest is None or strongest.decisive is None:
        return "Estimates only."
    verdict = group.verdict.value
    text = f"{verdict[:1].upper()}{verdict[1:]}. "
    if not strongest.decisive.epsilon:
        return f"{text}No leak shown{_against(strongest, group)}."
    bound = f"Lower bound {numbers.at_least(strongest.decisive.epsilon)} ({confident(strongest)})"
    return f"{text}{bound}{_against(strongest, group)}, by an adversary who {strongest.adversary}."


def odds(group: Group) -> str:
    """Return what the strongest bound and the claim mean in odds."""
    strongest, claim = group.strongest, group.claim
    flagging = words.FLAGGING if strongest is None else strongest.odds
    allowed = None if claim is None or math.isinf(claim) else words.times_at_most(claim)
    if strongest is not None and strongest.decisive is not None and strongest.decisive.epsilon:
        shown = flagging.format(times=words.times_at_least(strongest.decisive.epsilon))
        limit = "" if allowed is None else f" The claim allows {allowed}."
        return f"In other words, {shown}.{limit} With no leak, both would be equally likely to be flagged."
    if allowed is None:
        return ""
    return f"In other words, the claim allows an attacker to be {allowed} likelier to flag a member."


def _claimed(group: Group) -> str:
    claims = group.claims
    if not claims:
        return "No guarantee was claimed."
    if math.isinf(claims[-1]):
        return "The accountant gives no finite guarantee."
    if len(claims) == 1:
        return f"The claim is {numbers.at_most(claims[0])}."
    return f"The claims are {numbers.at_most(claims[0])} to {numbers.at_most(claims[-1])}, by adversary or setting."


def _against(result: AuditResult, group: Group) -> str:
    """Return the claim that a result is compared with, and the range of the others."""
    if result.theory is None:
        return ""
    text = f", claimed {numbers.at_most(result.theory.epsilon)}"
    if len(group.claims) > 1:
        text += f" ({numbers.epsilon(group.claims[0])} to {numbers.epsilon(group.claims[-1])} by adversary or setting)"
    return text


def _notes(group: Group) -> list[str]:
    """Return what an integration has to say about the claim, once."""
    return list(dict.fromkeys(str(result.details["note"]) for result in group.results if result.details.get("note")))


def confident(result: AuditResult) -> str:
    """Return the confidence of a result's bound in words."""
    confidence = 0.0 if result.bound is None else result.bound.confidence or 0.0
    return f"{100 * confidence:g}% confidence"
