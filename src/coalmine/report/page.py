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
    with tempfile.TemporaryDirectory() as directory:
        save(results, directory, facts=facts)
        run = read_run_directory(directory)
        yield replace(run, content={**run.content, "title": title}, results=results)


def write_figures(directory: Path, out: Path) -> list[Path]:
    """Write every figure of a run's report as PNG and return the paths."""
    with refusing_damage(directory):
        page = _Page(read_run_directory(directory, scores=True))
        page.sections("")
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
    style, library, script = _style(), _library(), (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    # Nothing but the two scripts and the style below can run or load, whatever the results contain.
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src {_hash(style)}; img-src data:; "
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
    colors = {
        Verdict.REFUTED: "refuted",
        Verdict.SUSPICIOUS: "estimate",
        Verdict.TOO_WEAK: "muted",
        Verdict.NOT_REFUTED: "inserted",
        Verdict.NO_CLAIM: "muted",
    }
    template = _environment().get_template("notebook.html.j2")
    table = Table.of_results(results, "")
    return template.render(results=results, verdict=verdict, color=charts.COLORS[colors[verdict]][0], table=table)


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
    """A page in the making: templates add the figures that they place."""

    def __init__(self, run: SavedRun) -> None:
        self.run = run
        self.figures: dict[str, tuple[str, charts.Spec]] = {}
        self.explorers: dict[str, Any] = {}
        self.ui = _environment().get_template("ui.html.j2").make_module({"page": self})

    def add_figure(self, name: str, title: str, spec: charts.Spec) -> str:
        """Let the page draw a figure; returns nothing to show, since the template has its place."""
        self.figures[name] = title, spec
        return ""

    def add_explorer(self, name: str, scores: charts.ScoreCharts) -> str:
        """Let the reader move the threshold of scores."""
        figures = [f"{name}-{which}" for which in ("scores", "roc", "threshold")]
        self.explorers[name] = {**scores.data(), "figures": figures}
        return ""

    def sections(self, auditor: str) -> list[dict[str, str]]:
        """Return anchor, title, short title and HTML of every section."""
        run = self.run
        audited = subjects.subjects(run)
        by = auditor or str(run.content.get("auditor") or "")
        groups = grouped(run.results)
        sections = [
            self._section("answer", "How private is it?", "Answer", audited=audited, auditor=by),
            self._section("evidence", "The evidence", "Evidence", groups=groups),
        ]
        for name in run.methods:
            method = registry.find(name)
            html = self.method_section(run.of(name, method.extras))
            title = f"{method.title} ({name})" if method.title != name else name
            sections.append({"key": slug(name), "title": title, "short": name, "html": html})
        for name, training in run.trainings.items():
            title = "Model and training" if len(run.trainings) == 1 else f"Model and training: {name}"
            section = self._section("training", title, name.replace("-", " "), training_name=name, training=training)
            sections.append({**section, "key": slug(name)})
        special = {name: text for method in run.methods for name, text in registry.find(method).caveats.items()}
        estimators = dict.fromkeys(estimate.method for result in run.results for estimate in result.estimates)
        caveats = {name: special.get(name) or CAVEATS.get(_family(name), "An estimate.") for name in estimators}
        sections.append(self._section("appendix", "How it was measured", "Method", caveats=caveats))
        return sections

    def method_section(self, results: MethodResults) -> str:
        """Return the section of a method by its own template; a method that is not installed gets the default one."""
        method = registry.find(results.method)
        template = _environment().get_template("section.html.j2")
        if method.template is not None:
            template = _environment().from_string(method.template.read_text(encoding="utf-8"))
        html = template.render(page=self, ui=self.ui, method=method, results=results, **method.section(results))
        return Markup(html)

    def _section(self, name: str, title: str, short: str, **more: Any) -> dict[str, str]:
        template = _environment().get_template(f"{name}.html.j2")
        html = template.render(page=self, ui=self.ui, run=self.run, **more)
        return {"key": name, "title": title, "short": short, "html": Markup(html)}


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
    environment.tests["numeric"] = _is_number
    return environment


def slug(name: str) -> str:
    """Return a name as letters, digits and hyphens, for anchors and file names."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "unnamed"


def metric(value: object) -> str:
    """Format any number of a result with four significant digits."""
    if value == "inf":
        return "∞"
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _is_number(cell: str) -> bool:
    """Whether a cell of a table is right-aligned: a number, with a sign of comparison or a percent sign."""
    return re.fullmatch(r"[≥≤≈ –-]*([\d.,]+(e[+-]?\d+)?|∞)?%?( \(≈ [^)]*\))?", cell) is not None


def _family(estimator: str) -> str:
    """Return the name in `CAVEATS`: ``low-fpr-0.01`` and the like share one text."""
    return "low-fpr" if estimator.startswith("low-fpr") else estimator


def _style() -> str:
    light, dark = ("".join(f"--{name}:{colors[i]};" for name, colors in charts.COLORS.items()) for i in (0, 1))
    css = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{css}"


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed in one script.

    Bundling them takes two or three seconds, so the bundle is kept in the user's cache directory, by version. A cache
    that cannot be read or written is only slower.
    """
    path = _cache_directory() / f"vega-{metadata.version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
        digest, _, bundle = text.partition("\n")
        if digest == hashlib.sha256(bundle.encode()).hexdigest():  # not cut short, nor changed by accident
            return bundle
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with suppress(InputError):
        write_text(path, f"{hashlib.sha256(bundle.encode()).hexdigest()}\n{bundle}")
    return bundle


def _cache_directory() -> Path:
    """Return where caches go on this operating system."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "coalmine"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "coalmine"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "coalmine"


def _hash(text: str) -> str:
    """Return how a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
