"""The report: one HTML file that opens offline and leads with the verdict.

It is drawn from a run directory alone: no training, no torch, the same bytes for the same run.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from coalmine import __version__
from coalmine.drawing.charts import COLORS, Figure, theme, write_png
from coalmine.drawing.html import Html, data, definitions, folded, joined, table, tag
from coalmine.drawing.sections import Section
from coalmine.errors import InputError
from coalmine.files import write_text
from coalmine.methods import registry
from coalmine.report.evidence import evidence_section
from coalmine.report.first_screen import first_page
from coalmine.report.glossary import GLOSSARY
from coalmine.report.training import training_section
from coalmine.results.directory import REPORT
from coalmine.results.io import SavedRun, read_run_directory, refusing_damage, save
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import grouped, score_counts
from coalmine.stats.estimators import CAVEATS

_FOOTER = (
    f"Written by coalmine {__version__} from the results of the run. Details that are folded in the HTML file are not "
    "printed."
)


def write_report(directory: Path, *, auditor: str = "") -> Path:
    """Write ``report.html`` into a run directory and return its path.

    Args:
        directory: The run directory.
        auditor: Who made the audit, if not as the run's settings say.
    """
    with refusing_damage(directory):
        run = read_run_directory(directory, scores=True)
        page = report(run, auditor=auditor)
    return write_text(run.path / REPORT, page)


def write_results(
    results: Sequence[Result], path: Path, title: str = "", facts: Mapping[str, object] | None = None
) -> Path:
    """Write the report of results that belong to no run directory, and return its path.

    Args:
        results: The results.
        path: The HTML file.
        title: Title of the report; by default the file's name, or the methods' if that is ``report``.
        facts: What it should say of the training, by the names in `coalmine.results.io.FACTS`.

    Raises:
        InputError: If there are no results, or the file is meant to be a PDF.
    """
    if not results:
        raise InputError("there are no results to report")
    if path.suffix.lower() == ".pdf":
        raise InputError(f"{path} would be HTML: save the results and use `coalmine report DIRECTORY --pdf`")
    methods = " and ".join(dict.fromkeys(result.method for result in results))
    name = title or (methods if path.stem == "report" else path.stem)
    with unsaved(results, name, facts) as run:
        return write_text(path, report(run))


@contextmanager
def unsaved(results: Sequence[Result], title: str, facts: Mapping[str, object] | None = None) -> Iterator[SavedRun]:
    """Yield results as the run that saving them now would give, with its date and fingerprint.

    Args:
        results: The results.
        title: Title of the report.
        facts: What it should say of the training, by the names in `coalmine.results.io.FACTS`.
    """
    with tempfile.TemporaryDirectory() as directory:
        save(results, directory, facts=facts)
        run = read_run_directory(directory)
        yield replace(run, content={**run.content, "title": title}, results=results)


def write_figures(directory: Path, out: Path) -> list[Path]:
    """Write every figure of a run's report as PNG and return the paths."""
    with refusing_damage(directory):
        figures = _figures(_sections(read_run_directory(directory, scores=True)))
    return [write_png(figure, out) for figure in figures]


def report(run: SavedRun, *, auditor: str = "") -> str:
    """Return the whole page of a run that was read with its scores.

    Args:
        run: The run.
        auditor: Who made the audit, if not as the run's settings say.
    """
    sections = _sections(run, auditor)
    figures = _figures(sections)
    explorers = {explorer.name: explorer.to_dict() for section in sections for explorer in section.explorers}
    style, library, script = _style(), _library(), _file("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("meta", {"name": "generator", "content": f"coalmine {__version__}"}),
        tag("title", None, f"{run.title}: privacy audit"),
        Html(f"<style>{style}</style>"),
    ]
    body = [
        tag("a", {"class": "skip", "href": "#answer"}, "Skip to the answer"),
        tag(
            "header",
            None,
            tag("p", {"class": "kind"}, "coalmine privacy audit"),
            tag("h1", None, run.title),
            tag(
                "nav",
                {"aria-label": "Contents"},
                tag(
                    "ul",
                    None,
                    *(tag("li", None, tag("a", {"href": f"#{s.key}"}, s.short or s.title)) for s in sections),
                ),
                tag("button", {"type": "button", "id": "unfold"}, "Unfold all details"),
            ),
        ),
        tag("main", None, *map(_laid_out, sections)),
        tag("footer", None, tag("p", None, _FOOTER)),
        data("figures", {"theme": theme(), "specs": {figure.name: figure.spec for figure in figures}}),
        data("explorers", explorers),
        Html(f'<script type="module">{library}</script>'),
        Html(f'<script type="module">{script}</script>'),
    ]
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", None, *head)}{tag("body", None, *body)}</html>\n'


def _sections(run: SavedRun, auditor: str = "") -> list[Section]:
    first = first_page(run, auditor or str(run.content.get("auditor") or ""))
    alone = len(run.trainings) == 1
    return [
        Section(key="answer", title="How private is it?", short="Answer", lead=first),
        evidence_section(grouped(run.results)),
        *(section_of(run.of(name, registry.find(name).extras)) for name in run.methods),
        *(training_section(name, training, alone=alone) for name, training in run.trainings.items()),
        Section(key="method", title="How it was measured", short="Method", body=_method(run)),
        Section(key="caveats", title="How far to trust each number", short="Caveats", body=_caveats(run)),
        Section(key="settings", title="Settings and environment", short="Settings", body=_settings(run)),
        Section(key="glossary", title="Glossary", body=definitions(GLOSSARY)),
    ]


def section_of(results: MethodResults) -> Section:
    """Return a method's section; a method that is not installed gets the plain one."""
    return registry.find(results.method).section(results)


def _laid_out(section: Section) -> Html:
    heading = f"heading-{section.key}"
    return tag(
        "section",
        {"id": section.key, "aria-labelledby": heading},
        tag("h2", {"id": heading}, section.title),
        section.lead,
        *([folded(f"Details: {section.short or section.title}", section.body)] if section.body else []),
    )


def _method(run: SavedRun) -> Html:
    rows = dict.fromkeys(
        (
            f"{result.method}: {result.view}",
            result.adversary,
            result.score_name,
            "–" if result.bound is None else result.bound.method,
            score_counts(result) or "–",
        )
        for result in run.results
    )
    columns = ["method: view", "an adversary who", "score", "lower bound by", "scores"]
    before = (
        "Canaries were inserted into the training, and others drawn in the same way were held out. Each adversary saw "
        "what its view releases and nothing else, and gave every canary a score: higher means more likely inserted. "
        "The two sets of scores are evidence about ε. If inserted canaries stand out more than the claim allows, the "
        "claim is refuted."
    )
    after = (
        "No audit can show that a training is private, since a better adversary may exist. Only the claimed guarantee "
        "limits ε from above, and it holds only if the software does what the analysis assumes. An audit that fails to "
        "refute the claim adds confidence in both."
    )
    return joined(
        [tag("p", None, before), table("What each adversary saw", columns, list(rows)), tag("p", None, after)]
    )


def _caveats(run: SavedRun) -> Html:
    methods = {name: registry.find(name) for name in run.methods}
    rows = []
    for result in run.results:
        special = methods[result.method].caveats
        rows += [[e.method, special.get(e.method) or _caveat(e.method)] for e in result.estimates]
    return table(
        "Estimators in plain words", ["estimator", "what it means"], list({row[0]: row for row in rows}.values())
    )


def _caveat(estimator: str) -> str:
    """Return what an estimator of `coalmine.stats` is worth; ``low-fpr-0.01`` and the like share one text."""
    return CAVEATS.get("low-fpr" if estimator.startswith("low-fpr") else estimator, "An estimate.")


def _settings(run: SavedRun) -> Html:
    versions = {"coalmine": run.content.get("coalmine", "unknown"), **run.results[0].provenance}
    rows = [[name, str(value)] for name, value in versions.items()]
    environment = table("Environment", ["what", "version"], rows)
    if not run.config:
        return environment
    again = tag("p", None, "These settings give the same run again, bit for bit with the same versions.")
    return joined([again, tag("pre", {"tabindex": "0"}, tag("code", None, run.config)), environment])


def _figures(sections: list[Section]) -> list[Figure]:
    return [figure for section in sections for figure in section.figures]


def _style() -> str:
    light, dark = ("".join(f"--{name}:{colors[i]};" for name, colors in COLORS.items()) for i in (0, 1))
    in_the_dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}\n{in_the_dark}\n{_file('page.css')}"


@lru_cache(maxsize=1)
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed in one script."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _file(name: str) -> str:
    return (resources.files("coalmine.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return how a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
