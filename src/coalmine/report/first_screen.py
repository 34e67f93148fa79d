"""How private is it? In words, in three numbers, in one picture, in one table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.report import numbers
from coalmine.report.drawing import Figure, placed
from coalmine.report.html import Html, framed, joined, paragraphs, tag
from coalmine.report.picture import picture
from coalmine.report.promises import Group, Row, together


def answer(found: Sequence[Group], warnings: int) -> tuple[Html, Figure]:
    """The first screen, and its picture."""
    figure = picture(found)
    refuted = any(row.refuted for group in found for row in group.rows)
    promised = any(row.promise is not None for group in found for row in group.rows)
    kind = "refuted" if refuted else "kept" if promised else "open"
    parts = [
        tag(
            "div",
            {"class": f"verdict {kind}"},
            tag("p", {"class": "headline"}, headline(found)),
            *(
                tag(
                    "p",
                    None,
                    *([tag("strong", None, f"{group.title}."), " "] if len(found) > 1 else []),
                    sentence(group),
                )
                for group in found
            ),
        ),
        _tiles(found[0]),
        placed(figure),
        _table(found),
        paragraphs([_confidence(found), _carefully(warnings)]),
    ]
    return joined(parts), figure


def headline(found: Sequence[Group]) -> str:
    """The verdict in one line."""
    refuted = [row for group in found for row in group.rows if row.refuted]
    if refuted:
        return "Promise refuted: more leaks than was promised."
    judged = [row for group in found for row in group.bounds if row.promise is not None]
    if judged:
        return (
            "Nothing found contradicts the promise." if len(found) == 1 else "Nothing found contradicts the promises."
        )
    return "No promise was made: read what is proved, and what is estimated."


def sentence(group: Group) -> str:
    """What is promised and what is proved of one thing, in words."""
    best = group.strongest
    promises = sorted({row.promise for row in group.rows if row.promise is not None})
    text = _promised(promises, group)
    if best is None:
        return f"{text} No bound was computed; there are estimates only."
    if not best.bound:
        return f"{text} No adversary proves any leak."
    at = f" of the ε ≤ {numbers.epsilon(best.promise)} promised to it" if len(promises) > 1 and best.promise else ""
    text += (
        f" The strongest evidence found: an adversary who {best.adversary} proves ε ≥ "
        f"{numbers.epsilon(best.bound)}{at} ({_confident(best)})."
    )
    if best.refuted:
        return f"{text} That refutes the promise: the noise, the clipping or the accounting has a bug."
    if promises:
        return f"{text} Nothing contradicts {'that promise' if len(promises) == 1 else 'these promises'}."
    return text


def _promised(promises: Sequence[float], group: Group) -> str:
    if not promises:
        return "Theory promises nothing."
    who = "The mechanism" if group.key == "report" else "The accountant"
    if math.isinf(promises[-1]):
        return f"{who} gives no finite promise."
    if len(promises) == 1:
        return f"{who} promises ε ≤ {numbers.epsilon(promises[0])}."
    return (
        f"{who} promises ε ≤ {numbers.epsilon(promises[0])} to ε ≤ {numbers.epsilon(promises[-1])}, each adversary or "
        "setting its own."
    )


def _confident(row: Row) -> str:
    return f"{100 * (row.confidence or 0):g}% confidence"


def _tiles(group: Group) -> Html:
    """Promise, proof and guess of the first group, large."""
    best = group.strongest
    promises = [row.promise for row in group.rows if row.promise is not None]
    promise = best.promise if best is not None and best.promise is not None else max(promises, default=None)
    delta = next((row.delta for row in group.rows if row.delta is not None), None)
    at = "" if delta is None else f" (δ = {delta:g})"
    guessed = best if best is not None and best.estimate is not None else None
    interval = (
        f", interval {numbers.epsilon(guessed.low)} to {numbers.epsilon(guessed.high)}"
        if guessed is not None and guessed.low is not None and guessed.high is not None
        else ""
    )
    tiles = [
        ("promise", "Promised", "–" if promise is None else f"ε ≤ {numbers.epsilon(promise)}", f"by theory{at}"),
        (
            "bound",
            "Proved",
            "–" if best is None else f"ε ≥ {numbers.epsilon(best.bound)}",
            "" if best is None else f"valid bound, {_confident(best)}, {best.audit}, {best.view}",
        ),
        (
            "estimate",
            "Estimated",
            "–" if guessed is None else f"ε ≈ {numbers.epsilon(guessed.estimate)}",
            "" if guessed is None else f"no bound: {guessed.estimate_method}, the same adversary{interval}",
        ),
    ]
    odds = []
    if best is not None and best.bound:
        odds = [
            tag(
                "p",
                None,
                f"In odds: what this adversary sees makes some accusation at least {numbers.times(best.bound)} times "
                "as likely against somebody who took part as against somebody who did not"
                + (
                    f"; the promise allows {numbers.times(promise)} times."
                    if promise is not None and math.isfinite(promise)
                    else "."
                ),
            )
        ]
    return joined(
        [
            tag(
                "dl",
                {"class": "tiles", "aria-label": f"Of {group.about}"},
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
            ),
            *odds,
        ]
    )


def _table(found: Sequence[Group]) -> Html:
    """Every adversary in numbers, under what its ε is about."""
    columns = ["audit: view", "an adversary who", "promised", "proved", "estimated", "verdict"]
    numeric = {"promised", "proved", "estimated"}

    def attributes(column: str) -> dict[str, str]:
        return {"class": "number"} if column in numeric else {}

    def told(row: Row) -> Html:
        cells = [
            row.adversary,
            "–" if row.promise is None else f"≤ {numbers.epsilon(row.promise)}",
            "–" if row.bound is None else f"≥ {numbers.epsilon(row.bound)}",
            "–" if row.estimate is None else f"≈ {numbers.epsilon(row.estimate)}",
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
            " Bounds on local reports are shown for each view where they come closest to their promise; a promise "
            "counts as refuted only by bounds that hold for all reports together."
        )
    return text.strip()


def _carefully(warnings: int) -> str:
    if not warnings:
        return ""
    many = "is one warning" if warnings == 1 else f"are {warnings} warnings"
    return f"There {many} on how these figures came about: see the audits."
