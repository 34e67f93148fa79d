"""The first screen, and the first printed page: the verdict, what was audited, what was not, and a line to sign."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from coalmine.drawing import numbers
from coalmine.drawing.html import Html, joined, paragraphs, slug, tag
from coalmine.drawing.sections import finding_list
from coalmine.report.facts import FEW, adversaries, highlights, not_tested, origin
from coalmine.report.sentences import confident, odds, sentence
from coalmine.report.subjects import Subject, subjects
from coalmine.results.claim_test import ClaimTest
from coalmine.results.io import SavedRun
from coalmine.results.result import Result
from coalmine.results.summary import states_noise
from coalmine.results.tables import Group
from coalmine.results.verdict import Verdict

_HEADLINES = {
    Verdict.REFUTED: "Refuted: more leaks than the claim allows.",
    Verdict.SUSPICIOUS: "Suspicious: the evidence points above the claim, but no test refutes it.",
    Verdict.TOO_WEAK: "Too weak to support the claim.",
    Verdict.NOT_REFUTED: "Not refuted. This is not a proof of privacy.",
    Verdict.NO_CLAIM: "No claim was stated, so none was tested.",
}
_BUG = "Refuted: a bug breaks the claimed guarantee."
_NO_MECHANISM = "No privacy mechanism: the training adds no noise."
_ADVICE = {
    Verdict.REFUTED: "Do not release anything under this claim: fix the software, then train and audit again.",
    Verdict.SUSPICIOUS: "Do not sign yet: audit again with more canaries, which decides either way.",
    Verdict.TOO_WEAK: "Do not sign on this audit: it says too little about the claim. Audit again as suggested.",
    Verdict.NOT_REFUTED: "You can accept this, if the mechanism and the adversaries below are those you care about: "
    "nothing found contradicts the claim. That supports the claim against the adversaries listed here, and no others.",
    Verdict.NO_CLAIM: "There is no guarantee to sign: state the claimed ε and δ, and audit again.",
}
_UNPROTECTED = (
    "Do not call it private: nothing limits what the release reveals about a user, and a small lower bound does not "
    "change that."
)


def first_page(run: SavedRun, auditor: str = "") -> Html:
    """Return all that somebody who signs has to know, short enough for one printed page.

    Args:
        run: The run.
        auditor: Who made the audit.
    """
    audited = subjects(run)
    lead = audited[0]
    return joined(
        [
            _verdict_box(lead, highlights(run, lead), alone=len(audited) == 1),
            _tiles(lead.lead),
            _facts(run, audited, auditor),
            _signature(),
        ]
    )


def _verdict_box(subject: Subject, found: Sequence[str], *, alone: bool) -> Html:
    """Return the worst verdict in its color, in words, and what follows from it."""
    group = subject.lead
    headline = _NO_MECHANISM if subject.unprotected else _headline(group)
    scope = f"{group.title}." if alone or subject.name in group.title else f"{_titled(subject)}. {group.title}."
    advice = _UNPROTECTED if subject.unprotected else _ADVICE[group.verdict]
    return tag(
        "div",
        {"class": f"verdict {subject.color}"},
        tag("p", {"class": "headline"}, headline),
        finding_list(group.bugs[:FEW]),
        paragraphs(found),
        tag("p", None, tag("strong", None, scope), " ", sentence(group)),
        paragraphs([odds(group)]),
        tag("p", {"class": "advice"}, advice),
    )


def _headline(group: Group) -> str:
    return _BUG if group.verdict is Verdict.REFUTED and group.bugs else _HEADLINES[group.verdict]


def _tiles(group: Group) -> Html:
    """Return claim, lower bound, best guess and power of the group that decides, large."""
    strongest = group.strongest
    delta = next((e.delta for result in group.results for e in result.estimates if e.valid), None)
    bound = None if strongest is None else strongest.decisive
    guess = None if strongest is None else strongest.best_guess
    test = None if strongest is None else strongest.claim_test
    at_delta = "" if delta is None else f"at δ = {delta:g}, "
    at = "nothing was claimed" if group.claim is None else at_delta.rstrip(", ")
    tiles = [
        ("claim", "Claimed", "–" if group.claim is None else numbers.at_most(group.claim), at),
        (
            "bound",
            "Proven",
            "–" if bound is None else numbers.at_least(bound.epsilon),
            ""
            if strongest is None
            else f"{at_delta}lower bound, {confident(strongest)}, {strongest.method}{_ceiling(strongest)}",
        ),
        (
            "estimate",
            "Best guess",
            "–" if guess is None else numbers.about(guess.epsilon),
            _no_guess(strongest)
            if guess is None
            else f"{_interval(guess.lower, guess.upper)}not a bound ({guess.method})",
        ),
        ("power", "Would notice", *_power(test)),
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


def _ceiling(result: Result) -> str:
    """Return the largest bound that these scores can show, if there is such a limit."""
    if result.ceiling is None or result.bound is None or result.bound.method != "simultaneous":
        return ""
    return f"; at most {numbers.epsilon(result.ceiling)} can be shown"


def _power(test: ClaimTest | None) -> tuple[str, str]:
    """Return what the audit would have noticed, as a number and in words."""
    if test is None:
        return "–", "nothing to test"
    if test.detectable_noise is None:
        return "–", "not known, or too weak to notice anything"
    if test.claim is not None and not states_noise(test.claim):
        epsilon = test.claim.epsilon / test.detectable_noise
        return f"ε\u00a0>\u00a0{numbers.epsilon(epsilon)}", "80% power"
    return f"<\u00a0{test.detectable_noise:.2g}", "of the claimed noise (80% power)"


def _no_guess(result: Result | None) -> str:
    """Return why a result has no best guess, if it is for lack of scores."""
    return "too few scores for one" if result is not None and result.lacks_scores else ""


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{numbers.epsilon(low)} to {numbers.epsilon(high)}, "


def _facts(run: SavedRun, audited: Sequence[Subject], auditor: str) -> Html:
    """Return what was audited, how, by whom and when, and what was not tested, as a list of terms."""
    rows: list[tuple[str, str]] = [(_name(subject, audited), _about(subject, audited)) for subject in audited]
    rows += [("Found", text) for subject in audited[1:] for text in highlights(run, subject)]
    rows += [("Adversaries", adversaries(run.results))]
    rows += [("Not tested", _sentences(not_tested(run, audited)))]
    warnings = _warnings(run.results)
    rows += [("Warnings", warnings)] if warnings else []
    rows += [("Audited by", f"{auditor or 'Not stated'}, {origin(run)}")]
    return tag(
        "dl",
        {"class": "facts", "aria-label": "What was audited"},
        *(tag("div", None, tag("dt", None, name), tag("dd", None, content)) for name, content in rows),
    )


def _name(subject: Subject, audited: Sequence[Subject]) -> str:
    return "Audited" if len(audited) == 1 else _titled(subject)


def _titled(subject: Subject) -> str:
    """Return the name of a training as a title, and that of a method as it is."""
    name = subject.name
    return f"{name[:1].upper()}{name[1:]}".replace("-", " ") if subject.training else name


def _about(subject: Subject, audited: Sequence[Subject]) -> Html:
    """Return data, users, model and mechanism of one subject, with its verdict where there are several."""
    stated = subject.facts.get("utility", "")  # what a run measured is in its own section
    what = ", ".join(filter(None, [subject.data and f"Data {subject.data}", subject.users, subject.model, stated]))
    return joined(
        [
            *([] if len(audited) == 1 else [tag("span", {"class": f"chip {subject.color}"}, subject.verdict), " "]),
            f"{what[:1].upper()}{what[1:]}. " if what else "",
            tag("strong", {"class": "alarm"}, "No privacy mechanism: ")
            if subject.unprotected
            else "Stated mechanism: ",
            f"{subject.mechanism}.",
        ]
    )


def _sentences(texts: Iterator[str]) -> str:
    return " ".join(f"{text}." for text in texts)


def _warnings(results: Sequence[Result]) -> Html:
    """Return the first warnings, each with a link to the section that has all of them."""
    alike: dict[str, tuple[str, str]] = {}
    for result in results:
        for warning in result.warnings:
            # Results often differ only in the numbers of a warning, which are in parentheses.
            alike.setdefault(re.sub(r" \([^)]*\)", "", str(warning)), (str(warning), result.method))
    methods = dict(alike.values())
    items = [
        tag("li", None, f"{text[:1].upper()}{text[1:].rstrip('.')} (", _link(method), ").")
        for text, method in list(methods.items())[:FEW]
    ]
    hidden = list(dict.fromkeys(list(methods.values())[FEW:]))
    if hidden:
        links = [part for method in hidden for part in (", ", _link(method))][1:]
        items.append(tag("li", None, f"{len(methods) - FEW} more: ", *links, "."))
    return tag("ul", None, *items) if items else Html("")


def _link(method: str) -> Html:
    return tag("a", {"href": f"#{slug(method)}"}, method)


def _signature() -> Html:
    """Return the line to sign."""
    fields = ("Decision: ☐\u00a0accepted ☐\u00a0rejected", "Name", "Date", "Signature")
    return tag("div", {"class": "signature"}, *(tag("p", None, text) for text in fields))
