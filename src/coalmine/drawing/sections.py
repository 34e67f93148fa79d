"""A section of the page for each audit: what was done, what was found in each view, its figures.

Every audit has one function here, which takes the saved run and gives a :class:`Section`. The figures that are an
audit's own are called for in one place of its function; those of scores are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coalmine.drawing import numbers, simple_figures
from coalmine.drawing.charts import Figure, placed
from coalmine.drawing.html import Html, folded, joined, paragraphs, slug, table, tag
from coalmine.drawing.score_figures import Explorer, explorer
from coalmine.methods.canife import figures as canife_figures
from coalmine.report.caveats import AUDITS, adversary
from coalmine.results import words
from coalmine.results.groups import crafter
from coalmine.results.saved import SavedRun
from coalmine.results.summary import line, number
from coalmine.stats import Estimate

Result = Mapping[str, Any]

_WITHOUT = " without canaries"
_PICTURES, _PHRASES = 8, 12


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with a heading, and what its script has to draw."""

    key: str
    title: str
    body: Html
    short: str = ""
    """What the contents call it, where that is not the title."""
    figures: Sequence[Figure] = ()
    explorers: Sequence[Explorer] = field(default_factory=list)


def audits(run: SavedRun) -> list[Section]:
    """A section for each audit of the run, in the run's order."""
    names = dict.fromkeys(str(result["audit"]) for result in run.results)
    return [_SECTIONS.get(name, _plain)(run, name) for name in names]


def _plain(run: SavedRun, audit: str) -> Section:
    """Views one after the other: scores, ROC, ε by threshold, all estimates."""
    return _section(audit, [_view(run, result, i) for i, result in enumerate(run.of(audit))])


def _canife(run: SavedRun, audit: str) -> Section:
    """ε of single rounds along the training, what rounds come to when composed, the crafted samples."""
    parts = []
    for i, result in enumerate(run.of(audit)):
        trials = run.trials(result)
        own = [simple_figures.rounds(result, f"canife-{i + 1}-rounds")] if result.get("rounds") else []
        parts.append(_view(run, result, i, own, [_composed(result), _crafted(result, trials)]))
    return _section(audit, parts)


def _secret_sharer(run: SavedRun, audit: str) -> Section:
    """Heat map and phrases, then every view."""
    memorization = run.memorization
    own = [] if memorization is None else [simple_figures.memorized(memorization, "secret-sharer-memorized")]
    why = paragraphs([run.meanings.get(audit, "")])
    drawn = tag("div", {"class": "narrow"}, *map(placed, own))
    lead = _Part(html=joined([why, drawn, _phrases(memorization)]), figures=own)
    return _section(audit, [lead, *(_view(run, result, i) for i, result in enumerate(run.of(audit)))])


def _ldp(run: SavedRun, audit: str) -> Section:
    """A panel for each adversary, and the bounds as a table."""
    results = run.of(audit)
    own = simple_figures.adversaries(results, "ldp")
    body = joined(
        [
            paragraphs([str(run.meanings.get(audit) or results[0]["meaning"])]),
            tag("div", {"class": "panels"}, *map(placed, own)),
            _ldp_table(results),
            _warnings(list(dict.fromkeys(w for result in results for w in result["warnings"]))),
        ]
    )
    return _section(audit, [_Part(html=body, figures=own)])


_SECTIONS: dict[str, Callable[[SavedRun, str], Section]] = {
    "canife": _canife,
    "secret-sharer": _secret_sharer,
    "ldp": _ldp,
}


@dataclass(frozen=True, kw_only=True)
class _Part:
    html: Html
    figures: Sequence[Figure] = ()
    explorers: Sequence[Explorer] = ()


def _section(audit: str, parts: Sequence[_Part]) -> Section:
    title, what = AUDITS.get(audit, (audit, ""))
    return Section(
        key=slug(audit),
        title=f"{title} ({audit})" if title != audit else audit,
        short=audit,
        body=joined([paragraphs([what]), *(part.html for part in parts)]),
        figures=[figure for part in parts for figure in part.figures],
        explorers=[found for part in parts for found in part.explorers],
    )


def _view(run: SavedRun, result: Result, place: int, own: Sequence[Figure] = (), more: Sequence[Html] = ()) -> _Part:
    """One adversary: what it means, figures of the audit, figures of the scores, all estimates."""
    name = f"{slug(str(result['audit']))}-{place + 1}"
    scores, note = None, ""
    if str(result["view"]).endswith(":user"):
        note = "Its scores are those of the phrases; the ε of one user is the phrases' ε divided by group privacy."
    elif (arrays := run.scores(result)) is not None:
        scores = explorer(name, result, arrays)
    figures = [*own, *(() if scores is None else scores.figures)]
    html = tag(
        "section",
        {"class": "view", "aria-labelledby": f"view-{name}"},
        tag("h3", {"id": f"view-{name}"}, f"{result['view']}: an adversary who {adversary(result)}"),
        paragraphs([str(result["meaning"]), note]),
        _warnings(result["warnings"]),
        *map(placed, own),
        *([] if scores is None else [_explored(scores)]),
        *more,
        folded("All estimates of this view", _estimates(result)),
        folded("Other numbers of this view", _metrics(result["metrics"])),
    )
    return _Part(html=html, figures=figures, explorers=[] if scores is None else [scores])


def _explored(found: Explorer) -> Html:
    """Three figures and the threshold that moves through them."""
    control = f"threshold-{found.name}"
    return joined(
        [
            tag("div", {"class": "panels"}, *map(placed, found.figures)),
            tag(
                "div",
                {"class": "explorer", "data-explorer": found.name},
                tag("label", {"for": control}, "Move the threshold"),
                tag(
                    "input",
                    {
                        "type": "range",
                        "id": control,
                        "min": "0",
                        "max": str(len(found.places) - 1),
                        "value": str(found.start),
                        "autocomplete": "off",
                    },
                ),
                tag("output", {"for": control}, _at(found)),
            ),
        ]
    )


def _at(found: Explorer) -> str:
    """What the page says of the first threshold, as its script will of the others."""
    place = found.places[found.start]
    shown = "no finite ε" if place.epsilon is None else f"ε ≈ {place.epsilon:.2f}"
    return (
        f"Accusing whoever scores {place.threshold:.4g} or more: {place.tp} of {found.members} {found.kinds[0]} "
        f"({100 * place.tp / found.members:.1f}%) and {place.fp} of {found.nonmembers} {found.kinds[1]} "
        f"({100 * place.fp / found.nonmembers:.1f}%). {shown} here: an estimate, not a bound."
    )


def _estimates(result: Result) -> Html:
    rows = []
    for given in result["estimates"]:
        kind = words.kind(_estimate(given))
        rows.append(
            [
                str(given["method"]),
                kind,
                numbers.epsilon(number(given["epsilon"])),
                _interval(given),
                "–" if given.get("threshold") is None else numbers.metric(given["threshold"]),
                str(given.get("assumes") or "–"),
            ]
        )
    columns = ["method", "what it is", "ε", "interval", "threshold", "holds if"]
    caption = f"All estimates, {result['audit']}, {result['view']}; the first valid bound is quoted, fixed in advance"
    return table(caption, columns, rows)


def _estimate(given: Mapping[str, Any]) -> Estimate:
    """What sort of figure it is, as an object; its numbers are read elsewhere."""
    doubtful = bool(given.get("doubtful"))
    return Estimate(given["method"], 0, 0, confidence=0.5, valid=given["valid"], doubtful=doubtful)


def _interval(given: Mapping[str, Any]) -> str:
    """The ends of an interval; a lower end alone is told of bounds that hold, and of nothing else."""
    low, high = given.get("lower"), given.get("upper")
    if low is None or (high is None and not given["valid"]):
        return "–"
    first = numbers.epsilon(number(low))
    return f"at least {first}" if high is None else f"{first} to {numbers.epsilon(number(high))}"


def _metrics(metrics: Mapping[str, Any]) -> Html:
    rows = [[str(name), numbers.metric(value)] for name, value in metrics.items()]
    return table("Other numbers", ["what", "value"], rows) if rows else paragraphs(["There are none."])


def _warnings(given: Sequence[str]) -> Html:
    if not given:
        return Html("")
    items = [tag("li", None, f"{text[:1].upper()}{text[1:]}.") for text in map(str, given)]
    return tag("div", {"class": "warning"}, tag("p", None, tag("strong", None, "Be careful")), tag("ul", None, *items))


def _composed(result: Result) -> Html:
    """What the rounds come to when composed: estimates."""
    found: dict[str, dict[str, str]] = {}
    for one in result.get("composed", []):
        found.setdefault(str(one["method"]), {})[str(one["inversion"])] = numbers.epsilon(number(one["epsilon"]))
    if not found:
        return Html("")
    ceiling = "ceiling: the most that rates of so many trials can compose to"
    rows = [
        [ceiling if method == "ceiling" else f"from {method}", by.get("exact", "–"), by.get("paper", "–")]
        for method, by in found.items()
    ]
    return table(
        "All rounds composed to one ε of the training: estimates, none of them a bound",
        ["rounds' ε", "exact", "as in the paper"],
        rows,
    )


def _crafted(result: Result, trials: Mapping[str, Any] | None) -> Html:
    """The last canaries that were crafted: pictures, texts, or what they were to be taken for."""
    if trials is None or not result.get("canaries"):
        return Html("")
    shown = []
    for one in canife_figures.canaries(result, trials)[:_PICTURES]:
        if one["kind"] == "image":
            picture = tag(
                "img", {"src": one["png"], "alt": f"Crafted {one['caption']}", "width": "112", "height": "112"}
            )
            shown.append(tag("figure", None, picture, tag("figcaption", None, one["caption"])))
        elif one["kind"] == "text":
            shown.append(tag("p", None, tag("code", None, str(one["text"])), f" ({one['caption']})"))
    if not shown:
        return Html("")
    return tag("div", {"class": "canaries"}, tag("p", None, "The last crafted samples:"), *shown)


def _phrases(memorization: Mapping[str, Any] | None) -> Html:
    """The planted phrases that the model remembers best."""
    if memorization is None or not memorization.get("canaries"):
        return Html("")
    planted = [c for c in memorization["canaries"] if c["planted"]]
    planted.sort(key=lambda c: -number(c["exposure"] if c["exposure"] is not None else 0.0))
    rows = [
        [
            str(c["phrase"]),
            f"{c['p_u']:g}",
            f"{c['p_e']:g}",
            numbers.metric(c.get("users", "–")),
            numbers.metric(c.get("copies", "–")),
            "–" if c["exposure"] is None else f"{number(c['exposure']):.1f}",
            "yes" if c.get("rank") == 1 and c.get("among") == memorization.get("references") else "no",
            "yes" if c.get("extracted") else "no",
        ]
        for c in planted[:_PHRASES]
    ]
    columns = ["phrase", "p_u", "p_e", "users", "copies", "exposure (bits)", "memorized", "extracted"]
    return table(f"The planted phrases that are best remembered ({len(rows)} of {len(planted)})", columns, rows)


def _ldp_table(results: Sequence[Result]) -> Html:
    views = list(dict.fromkeys(str(result["view"]) for result in results))
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        bound = line(result).bound
        text = "–" if bound is None else f"≥ {numbers.epsilon(bound)}"
        text += (
            f" (≈ {numbers.epsilon(number(result['metrics']['empirical']))})"
            if "empirical" in result["metrics"]
            else ""
        )
        cells.setdefault(crafter(result), {})[str(result["view"])] = text + (
            " REFUTED" if result.get("refuted") else ""
        )
    rows = [[who, *(by.get(view, "–") for view in views)] for who, by in cells.items()]
    return table("Valid bounds, which hold all together; in brackets the paper's estimate", ["adversary", *views], rows)


def trainings(run: SavedRun) -> list[Section]:
    """How good each model is, with canaries and without, and how it got there."""
    titles = {"training": "The model and its training", "text-training": "The language model and its training"}
    return [_training(name, title, run.content[name]) for name, title in titles.items() if run.content.get(name)]


def _training(key: str, title: str, found: Mapping[str, Any]) -> Section:
    metrics = found.get("metrics") or {}
    figures = simple_figures.training_curve(found.get("history") or [], key)
    facts = (
        f"{numbers.count(found['clients'])} clients, {numbers.count(found['parameters'])} parameters, "
        f"{numbers.count(found['rounds'])} rounds, {'with' if found.get('private') else 'without'} a privacy mechanism."
    )
    names = [name for name in metrics if not str(name).endswith(_WITHOUT)]
    plain = any(str(name).endswith(_WITHOUT) for name in metrics)
    without = [[numbers.metric(metrics.get(f"{name}{_WITHOUT}", "–"))] if plain else [] for name in names]
    rows = [[str(name), numbers.metric(metrics[name]), *cell] for name, cell in zip(names, without, strict=True)]
    columns = ["on test data", "with canaries", *(["without canaries"] if plain else [])]
    unknown = "What canaries cost the model was not measured: the setting baseline of the table [run] does."
    note = "Canaries cost a model some of its quality; this is how much." if plain else unknown
    body = joined(
        [
            paragraphs([facts, note]),
            table("How good the model is", columns, rows) if rows else "",
            tag("div", {"class": "panels"}, *map(placed, figures)),
        ]
    )
    short = key.replace("-", " ")
    return Section(key=key, title=title, short=short, body=body, figures=figures)
