"""The first screen: the verdict, three numbers, one picture, one table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.drawing import numbers
from coalmine.drawing.charts import Figure, placed
from coalmine.drawing.html import Html, framed, joined, paragraphs, slug, tag
from coalmine.drawing.sections import finding_list
from coalmine.report.picture import picture
from coalmine.results import words
from coalmine.results.claim_test import ClaimTest
from coalmine.results.groups import Group, joint_confidence
from coalmine.results.result import AuditResult
from coalmine.results.tables import epsilons
from coalmine.results.verdict import Verdict

_HEADLINES = {
    Verdict.REFUTED: "Refuted: more leaks than the claim allows.",
    Verdict.SUSPICIOUS: "Suspicious: the evidence points above the claim, but no test refutes it.",
    Verdict.TOO_WEAK: "Too weak: half the claimed noise could have gone unnoticed.",
    Verdict.NOT_REFUTED: "Not refuted. This is not a proof of privacy.",
    Verdict.NO_CLAIM: "No claim was stated, so none was tested.",
}
_BUG = "Refuted: a bug breaks the claimed guarantee."
_NO_MECHANISM = "No privacy mechanism: the training adds no noise."


def answer(groups: Sequence[Group], warnings: int, *, without_noise: bool = False) -> tuple[Html, Figure]:
    """Return the first screen and its picture.

    Args:
        groups: The results by unit, the worst verdict first.
        warnings: Number of different warnings.
        without_noise: Whether a training without any privacy mechanism was audited.
    """
    figure = picture(groups)
    first, *others = groups
    unprotected = without_noise and first.verdict is Verdict.NO_CLAIM
    kind = "refuted" if unprotected else slug(first.verdict.value)
    parts = [
        tag(
            "div",
            {"class": f"verdict {kind}"},
            tag("p", {"class": "headline"}, _NO_MECHANISM if unprotected else _headline(first)),
            finding_list(first.bugs),
            _titled(first, sentence(first), alone=not others),
            paragraphs([] if first.bugs else [odds(first)]),
        ),
        _tiles(first),
        placed(figure),
        *(_titled(group, in_short(group), alone=False) for group in others),
        _table(groups),
        paragraphs([_why_less_of_more(groups), _confidence(groups), _warnings(warnings)]),
    ]
    return joined(parts), figure


def _headline(group: Group) -> str:
    return _BUG if group.verdict is Verdict.REFUTED and group.bugs else _HEADLINES[group.verdict]


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
    bound = f"{numbers.at_least(strongest.decisive.epsilon)} ({_confident(strongest)})"
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
    bound = f"Lower bound {numbers.at_least(strongest.decisive.epsilon)} ({_confident(strongest)})"
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


def _titled(group: Group, text: str, *, alone: bool) -> Html:
    """Return a sentence under its group's title, where there are several groups."""
    return tag("p", None, *([] if alone else [tag("strong", None, f"{group.title}."), " "]), text)


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


def _confident(result: AuditResult) -> str:
    confidence = 0.0 if result.bound is None else result.bound.confidence or 0.0
    return f"{100 * confidence:g}% confidence"


def _tiles(group: Group) -> Html:
    """Return claim, lower bound and best guess of the first group, large."""
    strongest = group.strongest
    delta = next((e.delta for result in group.results for e in result.estimates if e.valid), None)
    bound = None if strongest is None else strongest.decisive
    guess = None if strongest is None else strongest.best_guess
    at = "" if delta is None else f"at δ = {delta:g}"
    tiles = [
        ("claim", "Claimed", "–" if group.claim is None else numbers.at_most(group.claim), at),
        (
            "bound",
            "Lower bound",
            "–" if bound is None else numbers.at_least(bound.epsilon),
            "" if strongest is None else f"{_confident(strongest)}, {strongest.method}, {strongest.label}",
        ),
        (
            "estimate",
            "Best guess",
            "–" if guess is None else numbers.about(guess.epsilon),
            _no_guess(strongest)
            if guess is None
            else f"{_interval(guess.lower, guess.upper)}not a bound ({guess.method})",
        ),
    ]
    return tag(
        "dl",
        {"class": "tiles", "aria-label": f"ε: {group.title}"},
        *(
            tag(
                "div",
                {"class": kind},
                tag("dt", None, name),
                tag("dd", {"class": "value"}, value),
                tag("dd", {"class": "small"}, small),
            )
            for kind, name, value, small in tiles
        ),
    )


def _no_guess(result: AuditResult | None) -> str:
    """Return why a result has no best guess, if it is for lack of scores."""
    few = result is not None and any(e.few_scores for e in result.estimates)
    return "too few scores for one" if few else ""


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{numbers.epsilon(low)} to {numbers.epsilon(high)}, "


def _why_less_of_more(groups: Sequence[Group]) -> str:
    """Explain why rows need not grow with what is seen, where there are several bounds."""
    if all(len(group.bounded) < 2 for group in groups):
        return ""
    return (
        "An adversary who sees more does not always get a larger bound: each uses its own test and number of "
        "canaries. A bound is what was shown, not the most there is."
    )


def _table(groups: Sequence[Group]) -> Html:
    """Return every result in numbers, under its unit."""
    columns = ["method: view", "an adversary who", "claimed", "lower bound", "best guess", "estimator", "p-value"]
    columns += ["verdict"]
    numeric = {"claimed", "lower bound", "best guess", "p-value"}

    def attributes(column: str) -> dict[str, str]:
        return {"class": "number"} if column in numeric else {"class": "who"} if column == columns[1] else {}

    def row(result: AuditResult) -> Html:
        signed = zip("≤≥≈", epsilons(result), strict=True)
        cells = [
            result.adversary,
            *("–" if value is None else f"{sign} {numbers.epsilon(value)}" for sign, value in signed),
            "–" if result.best_guess is None else result.best_guess.method,
            _p_value(result),
            result.verdict.value,
        ]
        return tag(
            "tr",
            {"class": "refuting"} if result.verdict is Verdict.REFUTED else None,
            tag("th", {"scope": "row"}, f"{result.method}: {result.label}"),
            *(tag("td", attributes(column), cell) for column, cell in zip(columns[1:], cells, strict=True)),
        )

    head = tag("tr", None, *(tag("th", {"scope": "col", **attributes(column)}, column) for column in columns))
    bodies = [
        tag(
            "tbody",
            None,
            tag("tr", None, tag("th", {"scope": "rowgroup", "colspan": str(len(columns))}, group.title)),
            *map(row, group.results),
        )
        for group in groups
    ]
    return framed("Every adversary in numbers", tag("thead", None, head), *bodies)


def _p_value(result: AuditResult) -> str:
    p_value = None if result.claim_test is None else result.claim_test.p_value
    return "–" if p_value is None else f"{p_value:.2g}"


def _confidence(groups: Sequence[Group]) -> str:
    """Return with which confidence all bounds hold together: the largest of several is a selection."""
    bounded = [result for group in groups for result in group.bounded]
    single = [result for result in bounded if result.joint_bound is None]
    sentences = []
    if len(single) > 1:
        confidences = {result.bound.confidence for result in single if result.bound is not None}
        each = _confident(single[0]) if len(confidences) == 1 else "its own confidence"
        sentences.append(
            f"Each lower bound holds individually with {each}; all {len(single)} hold jointly with at least "
            f"{100 * joint_confidence(single):.0f}% confidence."
        )
    if len(single) < len(bounded):
        sentences.append(
            "Where a method tests many variants, its bounds hold jointly, and the one closest to its claim is shown."
        )
    return " ".join(sentences)


def _warnings(count: int) -> str:
    if not count:
        return ""
    counted = "is one warning" if count == 1 else f"are {count} warnings"
    return f"There {counted} about these results; see the sections below."
