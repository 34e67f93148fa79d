"""The report: one HTML file that opens offline and leads with the verdict.

It is drawn from a run directory alone: no training, no torch, the same bytes for the same run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from coalmine import __version__
from coalmine.errors import InputError, did_you_mean
from coalmine.files import write_text
from coalmine.methods import registry
from coalmine.report import charts, subjects
from coalmine.results import summary as words
from coalmine.results.directory import REPORT
from coalmine.results.io import SavedRun, read_run_directory, refusing_damage, save
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import (
    Table,
    epsilons,
    grouped,
    inline_markdown,
    joint_confidence,
    results_markdown,
    score_counts,
)
from coalmine.results.verdict import Verdict
from coalmine.stats.estimators import CAVEATS

PLOTS = ("epsilon", "roc", "scores", "rounds")
"""The charts that `plot` draws."""

_TEMPLATES = Path(__file__).parent / "templates"


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
        InputError: If there are no results.
    """
    if not results:
        raise InputError("there are no results to report")
    methods = " and ".join(dict.fromkeys(result.method for result in results))
    name = title or (methods if path.stem == "report" else path.stem)
    with unsaved(results, name, facts) as run:
        return write_text(path, report(run))


@contextmanager
def unsaved(results: Sequence[Result], title: str, facts: Mapping[str, object] | None = None) -> Iterator[SavedRun]:
    """Yield results as the run that saving them now would give, with its date and fingerprint."""
    # Saved and read back, so that there is one place that knows what a saved run holds.
    with tempfile.TemporaryDirectory() as directory:
        save(results, directory, facts=facts)
        run = read_run_directory(directory)
        yield replace(run, content={**run.content, "title": title}, results=results)


def write_figures(directory: Path, out: Path) -> list[Path]:
    """Write every figure of a run's report as PNG and return the paths."""
    with refusing_damage(directory):
        page = _Page(read_run_directory(directory, scores=True))
        page.sections("")  # templates decide which figures there are, so they have to be rendered
    written = []
    for name, (title, spec) in page.figures.items():
        written.append(charts.save(charts.as_altair({title: spec}), out / f"{name}.png"))
    return written


def report(run: SavedRun, *, auditor: str = "") -> str:
    """Return the whole page of a run that was read with its scores.

    Args:
        run: The run.
        auditor: Who made the audit, if not as the run's settings say.
    """
    page = _Page(run)
    sections = page.sections(auditor)
    light = "".join(f"--{name}:{colors[0]};" for name, colors in charts.COLORS.items())
    dark = "".join(f"--{name}:{colors[1]};" for name, colors in charts.COLORS.items())
    css = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    style = f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{css}"
    library, script = _library(), (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    hashes = []
    for text in (library, script, style):
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
    # Nothing but the two scripts and the style below can run or load, whatever the results contain.
    policy = (
        f"default-src 'none'; script-src {hashes[0]} {hashes[1]}; style-src {hashes[2]}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    figures = {"theme": charts.theme(), "specs": {name: spec for name, (_, spec) in page.figures.items()}}
    return _environment().get_template("page.html.j2").render(
        run=run,
        sections=sections,
        policy=policy,
        style=Markup(style),
        library=Markup(library),
        script=Markup(script),
        figures=figures,
        explorers=page.explorers,
    )  # fmt: skip


def model_card(run: SavedRun, *, auditor: str = "") -> str:
    """Return a section for a model card in Markdown: the statement of differential privacy, and the audit's evidence.

    The fields are those that NIST SP 800-226 asks of a guarantee and that the Differential Privacy Deployments Registry
    records. What a run does not know is "not stated", for its owner to fill in.

    Args:
        run: The run.
        auditor: Who made the audit, if not as the run's settings say.
    """
    template = _environment().get_template("model_card.md.j2")
    by = auditor or str(run.content.get("auditor") or "")
    audited, markdown = subjects.subjects(run), results_markdown(run.results)
    return template.render(run=run, audited=audited, auditor=by, markdown=markdown) + "\n"


def as_html(results: Sequence[Result]) -> str:
    """Return what notebooks show of results: the verdict in color and a table, without scripts."""
    verdict = grouped(results)[0].verdict if results else Verdict.NO_CLAIM
    template = _environment().get_template("notebook.html.j2")
    return template.render(results=results, verdict=verdict.value, table=Table.of_results(results, ""))


def plot(results: Sequence[Result], kind: str = "epsilon") -> Any:
    """Return an altair chart of results.

    Args:
        results: One result or more.
        kind: One of `PLOTS`.

    Raises:
        InputError: If there is no such kind, or no result has what it shows.
    """
    if kind not in PLOTS:
        raise InputError(f"there is no plot {kind!r}. {did_you_mean(kind, PLOTS)}")
    if not results:
        raise InputError("there are no results to plot")
    if kind == "epsilon":
        return charts.as_altair({"ε: claimed, lower bound and best guess": charts.evidence(grouped(results))})
    specs = {}
    for i, result in enumerate(results):
        # The chart that the report of this result would have.
        page = _Page(SavedRun(path=Path(), content={}, results=[result]))
        page.method_section(MethodResults(method=result.method, results=[result]))
        for name, (title, spec) in page.figures.items():
            if name.endswith(f"-{kind}"):
                about = f"{title.rstrip('.')}: {result.method}, {result.label}"
                specs[about if about not in specs else f"{about} ({i + 1})"] = spec
    if not specs:
        needs = "scores of inserted and held-out canaries"
        if kind == "rounds":
            needs = "estimates along the training, which only CANIFE makes"
        raise InputError(f"there is nothing to plot: {kind} needs {needs}")
    return charts.as_altair(specs)


class _Page:
    """A page in the making: templates add the figures that they place, and the thresholds that readers can move."""

    def __init__(self, run: SavedRun) -> None:
        self.run = run
        self.figures: dict[str, tuple[str, charts.Spec]] = {}
        self.explorers: dict[str, Any] = {}
        self.ui = _environment().get_template("ui.html.j2").make_module({"page": self})

    def sections(self, auditor: str) -> list[dict[str, str]]:
        """Return anchor, title, short title and HTML of every section."""
        run = self.run
        shared = {"page": self, "ui": self.ui, "run": run}
        answer, evidence, training, appendix = (
            _environment().get_template(f"{name}.html.j2") for name in ("answer", "evidence", "training", "appendix")
        )
        by = auditor or str(run.content.get("auditor") or "")
        # Key, title, short title, HTML.
        sections = [
            (
                "answer",
                "How private is it?",
                "Answer",
                answer.render(shared, audited=subjects.subjects(run), auditor=by),
            ),
            ("evidence", "The evidence", "Evidence", evidence.render(shared, groups=grouped(run.results))),
        ]
        caveats = dict(CAVEATS)
        for name in run.methods:
            method = registry.find(name)
            caveats |= method.caveats
            title = f"{method.title} ({name})" if method.title != name else name
            sections.append((slug(name), title, name, self.method_section(run.of(name, method.extras))))
        for name, recorded in run.training_runs.items():
            title = "Model and training" if len(run.training_runs) == 1 else f"Model and training: {name}"
            html = training.render(shared, training_name=name, training=recorded)
            sections.append((slug(name), title, name.replace("-", " "), html))
        meanings = {}
        for result in run.results:
            for estimate in result.estimates:
                family = "low-fpr" if estimate.method.startswith("low-fpr") else estimate.method
                meanings[estimate.method] = caveats.get(family, "An estimate.")
        sections.append(("appendix", "How it was measured", "Method", appendix.render(shared, caveats=meanings)))
        # The templates have escaped whatever comes from outside, and must not be escaped again.
        return [
            {"key": key, "title": title, "short": short, "html": Markup(html)} for key, title, short, html in sections
        ]

    def method_section(self, results: MethodResults) -> str:
        """Return the section of a method by its own template; a method that is not installed gets the default one."""
        method = registry.find(results.method)
        template = _environment().get_template("section.html.j2")
        if method.template is not None:  # in the package of the method, which may be a third party's
            template = _environment().from_string(method.template.read_text(encoding="utf-8"))
        return template.render(page=self, ui=self.ui, method=method, results=results, **method.section(results))


@cache
def _environment() -> jinja2.Environment:
    """Return the templates. Everything is escaped, unless it goes into Markdown, and unknown names are errors."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # NaN is no JSON, and a browser would refuse all figures because of one.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    environment.globals |= {
        "CAVEATS": CAVEATS,
        "Table": Table,
        "Verdict": Verdict,
        "charts": charts,
        "epsilons": epsilons,
        "joint_confidence": joint_confidence,
        "score_counts": score_counts,
        "subjects": subjects,
        "version": __version__,
        "words": words,
    }
    environment.filters |= {
        "eps": words.number,
        "markdown": inline_markdown,
        "metric": metric,
        "slug": slug,
        "sentence": lambda text: f"{text[:1].upper()}{text[1:].rstrip('.')}.",
    }
    # A cell that is right-aligned: a number, with a sign of comparison or a percent sign.
    number = re.compile(r"[≥≤≈ –-]*([\d.,]+(e[+-]?\d+)?|∞)?%?( \(≈ [^)]*\))?")
    environment.tests["numeric"] = number.fullmatch
    return environment


def slug(name: str) -> str:
    """Return a name as letters, digits and hyphens, for anchors and file names."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "unnamed"


def metric(value: object) -> str:
    """Format any number of a result with four significant digits."""
    if value == "inf":  # as JSON files spell it
        return "∞"
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed in one script.

    Bundling them takes two or three seconds, so the bundle is kept in the user's cache directory, by version. A cache
    that cannot be read or written is only slower.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA", Path.home()))
    path = caches / "coalmine" / f"vega-{metadata.version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
        digest, _, bundle = text.partition("\n")
        if digest == hashlib.sha256(bundle.encode()).hexdigest():  # not cut short, nor changed by accident
            return bundle
    import vl_convert

    # Inside a page, the end of a script that is part of a text would end the script itself.
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with suppress(InputError):
        write_text(path, f"{hashlib.sha256(bundle.encode()).hexdigest()}\n{bundle}")
    return bundle
