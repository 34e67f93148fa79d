"""What a group of results says, in sentences: claim, evidence and odds."""

from __future__ import annotations

import math

from coalmine.drawing import numbers
from coalmine.results import summary as words
from coalmine.results.claim_test import ClaimTest
from coalmine.results.result import Result
from coalmine.results.tables import Group
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
        text += _tested(strongest, strongest.claim_test, group)
    if not strongest.decisive.epsilon:
        return f"{text} No adversary shows any leak."
    bound = f"{numbers.at_least(strongest.decisive.epsilon)} ({confident(strongest)})"
    text += f" Lower bound: an adversary who {strongest.adversary} shows {bound}"
    if len(group.claims) > 1 and strongest.claim is not None:
        text += f", against a claim of {numbers.at_most(strongest.claim.epsilon)}"
    if strongest.verdict is Verdict.REFUTED and not strongest.bugs:
        return f"{text}. Look for missing noise, skipped clipping or an accountant that assumes other sampling."
    return f"{text}."


def _tested(result: Result, test: ClaimTest, group: Group) -> str:
    """Return what the test of the claim says beyond the verdict, with a space before it."""
    if test.verdict is Verdict.REFUTED and test.p_value is not None:
        return f" The scores refute it, {words.p_value_text(test.p_value)}{_whole_curve(result)}.{_noise(test, group)}"
    if test.verdict is Verdict.TOO_WEAK:
        return _weakness(result, test, group)
    return words.power_sentence(test)


def _whole_curve(result: Result) -> str:
    """Explain a refutation by scores whose lower bound is below the claim."""
    bound, claim = result.decisive, result.claim
    if bound is None or claim is None or bound.epsilon > claim.epsilon:
        return ""
    return ", although the lower bound is below it: the test looks at error rates everywhere, not only at this δ"


def _noise(test: ClaimTest, group: Group) -> str:
    """Return how much noise the scores allow and the ε that it means; only the latter beside what a check says."""
    epsilon = test.epsilon_in_effect
    if epsilon is None or test.noise_at_most is None or test.confidence is None:
        return ""
    share = math.ceil(100 * test.noise_at_most) / 100  # rounded up, since it is an upper bound
    sure = f"{100 * test.confidence:g}% confidence"
    if group.bugs:
        return f" For as much noise as they allow, the accountant gives {_equals(epsilon)} ({sure})."
    return f" At most {share:.3g} of the claimed noise is there ({sure}), which means {_equals(epsilon)}."


def _weakness(result: Result, test: ClaimTest, group: Group) -> str:
    """Return what could have gone unnoticed, how many canaries it takes, and what the checks cover all the same."""
    noise = test.claim is None or words.states_noise(test.claim)
    text = f" By the canaries' scores, {'half the claimed noise' if noise else 'twice this ε'} could go unnoticed."
    if not words.lacks_canaries(result):
        side = result.side_names[0]
        has = "inserted" if side == words.INSERTED else "has"
        used = "" if result.scores is None else f" This audit {has} {result.scores.members.size:,}."
        text += words.needed_sentence(test, side) + (used if test.canaries_needed is not None else "")
    checks = list(dict.fromkeys(str(check) for result in group.results for check in result.checks))
    return f"{text} The checks found no bug: {words.listed(checks)}." if checks and not group.bugs else text


def _equals(epsilon: float) -> str:
    return f"ε\u00a0=\u00a0{numbers.epsilon(epsilon)}"


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
    test = None if strongest is None or not strongest.refuted else strongest.claim_test
    if allowed is not None and test is not None and test.epsilon_in_effect is not None:
        actual = words.times(test.epsilon_in_effect)
        return (
            f"In other words, the claim allows an attacker to be {allowed} likelier to flag a member than a "
            f"non-member; so little noise allows {actual} or more."
        )
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
        deltas = {result.claim.delta for result in group.results if result.claim is not None}
        at = f" at δ\u00a0=\u00a0{deltas.pop():g}" if len(deltas) == 1 else ""
        return f"The claim is {numbers.at_most(claims[0])}{at}."
    return f"The claims are {numbers.at_most(claims[0])} to {numbers.at_most(claims[-1])}, by adversary or setting."


def _against(result: Result, group: Group) -> str:
    """Return the claim that a result is compared with, and the range of the others."""
    if result.claim is None:
        return ""
    text = f", claimed {numbers.at_most(result.claim.epsilon)}"
    if len(group.claims) > 1:
        text += f" ({numbers.epsilon(group.claims[0])} to {numbers.epsilon(group.claims[-1])} by adversary or setting)"
    return text


def _notes(group: Group) -> list[str]:
    """Return what an integration has to say about the claim, once."""
    return list(dict.fromkeys(str(result.details["note"]) for result in group.results if result.details.get("note")))


def confident(result: Result) -> str:
    """Return the confidence of a result's bound in words."""
    confidence = 0.0 if result.bound is None else result.bound.confidence or 0.0
    return f"{100 * confidence:g}% confidence"
