"""How private is it? In words, in three numbers, in one picture, in one table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.accounting.sampling import EveryRound
from coalmine.drawing import numbers
from coalmine.drawing.charts import Figure, placed
from coalmine.drawing.html import Html, framed, joined, paragraphs, tag
from coalmine.report.picture import picture
from coalmine.results import words
from coalmine.results.groups import Group, Row, in_order, together

_WHOM = {
    "training": "somebody who took part as against somebody who did not",
    "text-training": "somebody who took part as against somebody who did not",
    "example": "an example that was trained on as against one that was not",
    "round": "a client who took part in the round as against one who did not",
    "report": "a client who sent the one gradient as against a client who sent the other",
    "phrase": "a phrase that was planted as against one that was not",
}
"""Whom an accusation tells from whom."""


def answer(found: Sequence[Group], warnings: int) -> tuple[Html, Figure]:
    """The first screen, and its picture. What is refuted is told first."""
    figure = picture(found)
    first, *others = in_order(found)
    promised = any(row.promise is not None for group in found for row in group.rows)
    kind = "refuted" if any(row.refuted for row in first.rows) else "kept" if promised else "open"
    parts = [
        tag(
            "div",
            {"class": f"verdict {kind}"},
            tag("p", {"class": "headline"}, headline(found)),
            _named(first, sentence(first), alone=not others),
            paragraphs([odds(first)]),
        ),
        _tiles(first),
        placed(figure),
        *(_named(group, in_short(group), alone=False) for group in others),
        _table(found),
        paragraphs([_less_of_more(found), _confidence(found), _carefully(warnings)]),
    ]
    return joined(parts), figure


def headline(found: Sequence[Group]) -> str:
    """The verdict in one line."""
    refuted = [row for group in found for row in group.rows if row.refuted]
    if refuted:
        return "Promise refuted: more leaks than was promised."
    judged = [group for group in found if any(row.promise is not None for row in group.bounds)]
    if judged:
        return f"Nothing found contradicts the promise{'' if len(judged) == 1 else 's'}."
    return "No promise was checked: read what is proved, and what is estimated."


def sentence(group: Group) -> str:
    """What is promised and what is proved of one thing, in words."""
    best, promises = group.strongest, _promises(group)
    text = " ".join([_promised(promises, group), *_beside(group)])
    if best is None:
        return f"{text} No bound was computed; there are estimates only."
    if not best.bound:
        return f"{text} No adversary proves any leak."
    where = f", where {numbers.at_most(best.promise)} was promised" if len(promises) > 1 and best.promise else ""
    proved = f"{numbers.at_least(best.bound)} ({_confident(best)}){where}"
    text += f" The strongest evidence found: an adversary who {best.adversary} proves {proved}."
    if best.refuted:
        return f"{text} That refutes the promise: the noise, the clipping or the accounting has a bug."
    if promises:
        return f"{text} Nothing contradicts {'that promise' if len(promises) == 1 else 'these promises'}."
    return text


def in_short(group: Group) -> str:
    """The same in one line."""
    best = group.strongest
    if best is None:
        return "Estimates only."
    text = f"Proved {numbers.at_least(best.bound)} with {_confident(best)}" if best.bound else "No leak is proved"
    text += f", {_promised_there(best, _promises(group))}"
    text += f": by an adversary who {best.adversary}." if best.bound else "."
    return f"{text} That refutes the promise." if best.refuted else text


def _named(group: Group, text: str, *, alone: bool) -> Html:
    """A sentence under the name of what it is about, where there are several."""
    return tag("p", None, *([] if alone else [tag("strong", None, f"{group.title}."), " "]), text)


def _promises(group: Group) -> list[float]:
    return sorted({row.promise for row in group.rows if row.promise is not None})


def _promised(promises: Sequence[float], group: Group) -> str:
    if not promises:
        return "Theory promises nothing."
    who = "The mechanism" if group.key == "report" else "The accountant"
    if math.isinf(promises[-1]):
        return f"{who} gives no finite promise."
    if len(promises) == 1:
        return f"{who} promises {numbers.at_most(promises[0])}."
    return f"{who} promises {numbers.at_most(promises[0])} to {numbers.at_most(promises[-1])}, by adversary or setting."


def _beside(group: Group) -> list[str]:
    """What Opacus says of its examples, where canaries came otherwise: which figure is for what."""
    row = next((row for row in group.rows if row.opacus is not None), None)
    if row is None or row.promise is None or math.isinf(row.promise):
        return []
    every = row.sampling == EveryRound.name
    when = "in every step, without amplification by sampling" if every else f"that come by {row.sampling}"
    which = "That" if len(_promises(group)) == 1 else numbers.at_most(row.promise)
    return [
        f"{which} is for canaries {when}, and what their bound is compared with; Opacus says "
        f"{numbers.equal(row.opacus)} for an example drawn at random."
    ]


def _promised_there(row: Row, promises: Sequence[float]) -> str:
    """The promise to one of several adversaries, and what is promised to the others."""
    if row.promise is None:
        return "nothing promised"
    if len(promises) == 1:
        return f"promised {numbers.at_most(row.promise)}"
    return (
        f"where {numbers.at_most(row.promise)} was promised "
        f"({numbers.epsilon(promises[0])} to {numbers.epsilon(promises[-1])}, by adversary or setting)"
    )


def _confident(row: Row) -> str:
    return f"{100 * (row.confidence or 0):g}% confidence"


def _tiles(group: Group) -> Html:
    """Promise, proof and guess of the first group, large."""
    best = group.strongest
    delta = next((row.delta for row in group.rows if row.delta is not None), None)
    at = "" if delta is None else f" (δ = {delta:g})"
    opacus = next((row.opacus for row in group.rows if row.opacus is not None), None)
    own = "" if opacus is None else f"; by Opacus {numbers.equal(opacus)} for an example drawn at random"
    guessed = best if best is not None and best.estimate is not None else None
    interval = (
        f", interval {numbers.epsilon(guessed.low)} to {numbers.epsilon(guessed.high)}"
        if guessed is not None and guessed.low is not None and guessed.high is not None
        else ""
    )
    tiles = [
        (
            "promise",
            "Promised",
            "–" if group.promise is None else numbers.at_most(group.promise),
            f"by theory{at}{own}",
        ),
        (
            "bound",
            "Proved",
            "–" if best is None else numbers.at_least(best.bound),
            "" if best is None else f"valid bound, {_confident(best)}, {best.audit}, {best.view}",
        ),
        (
            "estimate",
            "Estimated",
            "–" if guessed is None else numbers.about(guessed.estimate),
            "" if guessed is None else f"no bound: {guessed.estimate_method}, the same adversary{interval}",
        ),
    ]
    return tag(
        "dl",
        {"class": "tiles", "aria-label": f"ε of {group.about}"},
        *(
            tag(
                "div",
                {"class": kind},
                tag("dt", None, name),
                tag("dd", {"class": "value"}, value),
                tag("dd", {"class": "small"}, words),
            )
            for kind, name, value, words in tiles
        ),
    )


def odds(group: Group) -> str:
    """What the strongest bound and the promise come to, without a logarithm."""
    best, promise = group.strongest, group.promise
    whom = _WHOM.get(group.key, "a canary that was planted as against one that was not")
    allowed = None if promise is None or math.isinf(promise) else words.times_at_most(promise)
    if best is not None and best.bound:
        likely = f"makes some accusation {words.times_at_least(best.bound)} as likely against {whom}"
        more = "" if allowed is None else f" The promise allows {allowed}."
        none = "If both were equally likely, nothing would be given away."
        return f"In odds: what that adversary sees {likely}.{more} {none}"
    if allowed is None:
        return ""
    return f"In odds: the promise allows some accusation to be {allowed} as likely against {whom}."


def _less_of_more(found: Sequence[Group]) -> str:
    """Why the rows of a group need not grow with what is seen, where there are several bounds."""
    if all(len(group.bounds) < 2 for group in found):
        return ""
    return (
        "Who sees more may prove less: each adversary is judged by a method of its own, with a ceiling of its own on "
        "what so many canaries can show. A bound says what was shown, not what could be."
    )


def _table(found: Sequence[Group]) -> Html:
    """Every adversary in numbers, under what its ε is about."""
    columns = ["audit: view", "an adversary who", "promised", "proved", "estimated", "by", "verdict"]
    numeric = {"promised", "proved", "estimated"}

    def attributes(column: str) -> dict[str, str]:
        return {"class": "number"} if column in numeric else {"class": "who"} if column == columns[1] else {}

    def told(row: Row) -> Html:
        cells = [
            row.adversary,
            "–" if row.promise is None else f"≤ {numbers.epsilon(row.promise)}",
            "–" if row.bound is None else f"≥ {numbers.epsilon(row.bound)}",
            "–" if row.estimate is None else f"≈ {numbers.epsilon(row.estimate)}",
            "–" if row.estimate is None else str(row.estimate_method),
            row.verdict,
        ]
        return tag(
            "tr",
            {"class": "refuting"} if row.refuted else None,
            tag("th", {"scope": "row"}, f"{row.audit}: {row.view}"),
            *(tag("td", attributes(column), cell) for column, cell in zip(columns[1:], cells, strict=True)),
        )

    head = tag("tr", None, *(tag("th", {"scope": "col", **attributes(column)}, column) for column in columns))
    bodies = [
        tag(
            "tbody",
            None,
            tag("tr", None, tag("th", {"scope": "rowgroup", "colspan": str(len(columns))}, group.title)),
            *map(told, group.rows),
        )
        for group in found
    ]
    return framed("Every adversary in numbers", tag("thead", None, head), *bodies)


def _confidence(found: Sequence[Group]) -> str:
    """What the confidence of each bound comes to for all: the largest of several is a selection."""
    bounds = [row for group in found if group.key != "report" for row in group.bounds]
    text = ""
    if len(bounds) > 1:
        each = {row.confidence for row in bounds}
        own = f"{100 * (bounds[0].confidence or 0):g}%" if len(each) == 1 else "its own"
        text = (
            f"Each bound holds with {own} confidence by itself. Here are {len(bounds)}: all of them hold together "
            f"with at least {100 * together(bounds):.0f}%, so read the largest with that in mind."
        )
    if any(group.key == "report" for group in found):
        text += (
            " Bounds on local reports hold for all adversaries and promises of that audit together; for each view the "
            "one that comes closest to its promise is shown."
        )
    return text.strip()


def _carefully(warnings: int) -> str:
    if not warnings:
        return ""
    many = "is one warning" if warnings == 1 else f"are {warnings} warnings"
    return f"There {many} on how these figures came about: see the audits."
