"""The evidence behind the verdict: one picture, one table, and with what confidence all bounds hold."""

from __future__ import annotations

from collections.abc import Sequence

from coalmine.drawing import numbers
from coalmine.drawing.charts import placed
from coalmine.drawing.html import Html, framed, joined, paragraphs, slug, tag
from coalmine.drawing.sections import Section
from coalmine.report.picture import picture
from coalmine.report.sentences import confident, in_short
from coalmine.results.result import Result
from coalmine.results.tables import Group, epsilons, joint_confidence


def evidence_section(groups: Sequence[Group]) -> Section:
    """Return the section with the picture and the table of all results.

    Args:
        groups: The results by unit.
    """
    figure = picture(groups)
    parts = [
        placed(figure),
        *(tag("p", None, tag("strong", None, f"{group.title}."), " ", in_short(group)) for group in groups),
        _table(groups),
        paragraphs([_why_less_of_more(groups), _confidence(groups)]),
    ]
    return Section(key="evidence", title="The evidence", short="Evidence", lead=joined(parts), figures=[figure])


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

    def row(result: Result) -> Html:
        signed = zip("≤≥≈", epsilons(result), strict=True)
        cells = [
            result.adversary,
            *("–" if value is None else f"{sign} {numbers.epsilon(value)}" for sign, value in signed),
            "–" if result.best_guess is None else result.best_guess.method,
            _p_value(result),
            tag("span", {"class": f"chip {slug(result.verdict.value)}"}, result.verdict.value),
        ]
        return tag(
            "tr",
            None,
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


def _p_value(result: Result) -> str:
    p_value = None if result.claim_test is None else result.claim_test.p_value
    return "–" if p_value is None else f"{p_value:.2g}"


def _confidence(groups: Sequence[Group]) -> str:
    """Return with which confidence all bounds hold together: the largest of several is a selection."""
    bounded = [result for group in groups for result in group.bounded]
    single = [result for result in bounded if result.joint_bound is None]
    sentences = []
    if len(single) > 1:
        confidences = {result.bound.confidence for result in single if result.bound is not None}
        each = confident(single[0]) if len(confidences) == 1 else "its own confidence"
        sentences.append(
            f"Each lower bound holds individually with {each}; all {len(single)} hold jointly with at least "
            f"{100 * joint_confidence(single):.0f}% confidence."
        )
    if len(single) < len(bounded):
        sentences.append(
            "Where a method tests many variants, its bounds hold jointly, and the one closest to its claim is shown."
        )
    return " ".join(sentences)
