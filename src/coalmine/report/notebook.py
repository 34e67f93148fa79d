"""Results in a notebook: the verdict in color, and one row per result."""

from __future__ import annotations

from collections.abc import Sequence

from coalmine.drawing.charts import COLORS
from coalmine.drawing.html import Html, joined, tag
from coalmine.results import summary as words
from coalmine.results.result import Result
from coalmine.results.tables import Table, grouped
from coalmine.results.verdict import Verdict

_COLORS = {
    Verdict.REFUTED: COLORS["refuted"][0],
    Verdict.SUSPICIOUS: COLORS["estimate"][0],
    Verdict.TOO_WEAK: COLORS["muted"][0],
    Verdict.NOT_REFUTED: COLORS["inserted"][0],
    Verdict.NO_CLAIM: COLORS["muted"][0],
}
_CELL = "text-align: left; padding: 0.2em 0.8em"


def as_html(results: Sequence[Result]) -> str:
    """Return results as HTML without scripts.

    Args:
        results: One result or more.
    """
    if not results:
        return tag("p", None, "No results.")
    verdict = grouped(results)[0].verdict
    style = f"background: {_COLORS[verdict]}; color: #fff; padding: 0.15em 0.6em; border-radius: 0.3em"
    shown = Table.of_results(results, "")
    findings = words.finding_sentences(results)
    return joined(
        [
            tag("p", None, tag("strong", {"style": style}, verdict.value)),
            tag("ul", None, *(tag("li", None, finding) for finding in findings)) if findings else Html(""),
            tag("table", None, _row("th", shown.columns), *(_row("td", row) for row in shown.rows)),
            tag("p", None, words.verdict_sentence(results[0])) if len(results) == 1 else Html(""),
        ]
    )


def _row(name: str, cells: Sequence[str]) -> Html:
    return tag("tr", None, *(tag(name, {"style": _CELL}, cell) for cell in cells))
