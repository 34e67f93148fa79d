"""Building blocks for a method's section of the report: one part per result, with its figures and estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coalmine.drawing import numbers
from coalmine.drawing.charts import Figure, placed
from coalmine.drawing.html import NOTHING, Html, folded, joined, paragraphs, slug, table, tag
from coalmine.drawing.score_figures import Explorer, explorer
from coalmine.results import summary as words
from coalmine.results.finding import Finding
from coalmine.results.result import MethodResults, Result
from coalmine.stats import Estimate

if TYPE_CHECKING:
    from coalmine.methods.method import Method


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with a heading.

    Args:
        key: Anchor of the section.
        title: Heading.
        lead: HTML below the heading.
        body: HTML below that, folded until a reader opens it.
        short: Name in the table of contents, if not the title.
        figures: Figures that the page's script draws.
        explorers: Scores whose threshold can be moved.
    """

    key: str
    title: str
    lead: Html = NOTHING
    body: Html = NOTHING
    short: str = ""
    figures: Sequence[Figure] = ()
    explorers: Sequence[Explorer] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a section: HTML, and the figures in it."""

    html: Html
    figures: Sequence[Figure] = ()
    explorers: Sequence[Explorer] = ()


def method_section(method: type[Method], parts: Sequence[Part]) -> Section:
    """Return a method's section: its description, then the parts."""
    return Section(
        key=slug(method.name),
        title=f"{method.title} ({method.name})" if method.title != method.name else method.name,
        short=method.name,
        lead=paragraphs([method.description]),
        body=joined([part.html for part in parts]),
        figures=[figure for part in parts for figure in part.figures],
        explorers=[explorer for part in parts for explorer in part.explorers],
    )


def plain_section(method: type[Method], results: MethodResults) -> Section:
    """Return the section of a method without figures of its own: one part per result."""
    lead = [Part(html=paragraphs([results.summary]))] if results.summary else []
    return method_section(method, [*lead, *(result_part(result, i) for i, result in enumerate(results.results))])


def result_part(
    result: Result, place: int, figures: Sequence[Figure] = (), more: Sequence[Html] = (), *, note: str = ""
) -> Part:
    """Return what there is to show of one result.

    Args:
        result: The result, with its scores.
        place: Its number among the results of the method, for anchors.
        figures: The method's own figures, shown before those of the scores.
        more: Further HTML, shown after the figures.
        note: A sentence to add to the summary.
    """
    name = f"{slug(result.method)}-{place + 1}"
    scores = explorer(name, result)
    html = tag(
        "section",
        {"class": "view", "aria-labelledby": f"view-{name}"},
        tag("h3", {"id": f"view-{name}"}, f"{result.label}: an adversary who {result.adversary}"),
        finding_list(result.findings),
        paragraphs([result.summary, note]),
        warning_list(result.warnings),
        *map(placed, figures),
        *([] if scores is None else [_explored(scores)]),
        *more,
        folded("All estimates", estimate_table(result)),
        folded("Other metrics", _metrics(result.metrics)),
    )
    drawn = [*figures, *(() if scores is None else scores.figures)]
    return Part(html=html, figures=drawn, explorers=[] if scores is None else [scores])


def finding_list(findings: Sequence[Finding]) -> Html:
    """Return what checks found as a list, or nothing if they found nothing."""
    if not findings:
        return Html("")
    items = [tag("li", None, tag("strong", None, f"{finding.check}: "), str(finding)) for finding in findings]
    return tag("ul", {"class": "findings"}, *items)


def warning_list(warnings: Sequence[str]) -> Html:
    """Return warnings as a box, or nothing if there are none."""
    if not warnings:
        return Html("")
    items = [tag("li", None, f"{text[:1].upper()}{text[1:].rstrip('.')}.") for text in map(str, warnings)]
    return tag("div", {"class": "warning"}, tag("p", None, tag("strong", None, "Warnings")), tag("ul", None, *items))


def estimate_table(result: Result) -> Html:
    """Return all estimates of a result with their intervals and assumptions."""
    rows = [
        [
            estimate.method,
            words.kind(estimate),
            numbers.epsilon(estimate.epsilon),
            _interval(estimate),
            "–" if estimate.threshold is None else numbers.metric(estimate.threshold),
            estimate.assumes or "–",
        ]
        for estimate in result.estimates
    ]
    columns = ["method", "what it is", "ε", "interval", "threshold", "valid if"]
    return table(
        f"All estimates, {result.method}, {result.label} (the first lower bound is the one reported)", columns, rows
    )


def _explored(scores: Explorer) -> Html:
    """Return three figures and a slider that moves the threshold through them."""
    control = f"threshold-{scores.name}"
    slider = {
        "type": "range",
        "id": control,
        "min": "0",
        "max": str(len(scores.places) - 1),
        "value": str(scores.start),
        "autocomplete": "off",
    }
    return joined(
        [
            tag("div", {"class": "panels"}, *map(placed, scores.figures)),
            tag(
                "div",
                {"class": "explorer", "data-explorer": scores.name},
                tag("label", {"for": control}, "Move the threshold"),
                tag("input", slider),
                tag("output", {"for": control}, _at_start(scores)),
            ),
        ]
    )


def _at_start(scores: Explorer) -> str:
    """Return what the page says of the first threshold, in the words its script uses for the others."""
    place = scores.places[scores.start]
    epsilon = "no finite ε" if place.epsilon is None else f"ε ≈ {place.epsilon:.2f}"
    return (
        f"Threshold {place.threshold:.4g} flags {place.tp} of {scores.members} {scores.sides[0]} "
        f"(TPR {100 * place.tp / scores.members:.1f}%) and {place.fp} of {scores.nonmembers} {scores.sides[1]} "
        f"(FPR {100 * place.fp / scores.nonmembers:.1f}%). {epsilon} here: an estimate, not a bound."
    )


def _interval(estimate: Estimate) -> str:
    """Format an interval; a lower end alone is shown only of valid bounds."""
    low, high = estimate.lower, estimate.upper
    if low is None or (high is None and not estimate.valid):
        return "–"
    first = numbers.epsilon(low)
    return f"at least {first}" if high is None else f"{first} to {numbers.epsilon(high)}"


def _metrics(metrics: Mapping[str, float]) -> Html:
    rows = [[str(name), numbers.metric(value)] for name, value in metrics.items()]
    return table("Other metrics", ["metric", "value"], rows) if rows else paragraphs(["None."])
