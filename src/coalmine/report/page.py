"""The report: one HTML file that opens without a network and answers first how private it is.

It is made from what a run wrote, and from nothing else: no training, no torch, the same bytes for the same run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from coalmine import __version__
from coalmine.drawing.charts import DARK, LIGHT, Figure, theme, write_png
from coalmine.drawing.html import Html, data, definitions, folded, joined, paragraphs, table, tag
from coalmine.drawing.sections import Section, audits, trainings
from coalmine.files import write_text
from coalmine.report import caveats
from coalmine.report.first_screen import answer
from coalmine.results.groups import groups_of
from coalmine.results.saved import SavedRun, read_run_directory, refusing_damage

NAME = "report.html"


def write_report(directory: Path) -> Path:
    """Write ``report.html`` beside the results in ``directory``."""
    with refusing_damage(directory):
        run = read_run_directory(directory)
        page = report(run)
    return write_text(run.path / NAME, page)


def write_figures(directory: Path, out: Path) -> list[Path]:
    """Write every figure of a run's report as a PNG."""
    with refusing_damage(directory):
        figures = _figures(_sections(read_run_directory(directory)))
    return [write_png(figure, out) for figure in figures]


def report(run: SavedRun) -> str:
    """The whole page."""
    sections = _sections(run)
    figures = _figures(sections)
    explorers = {found.name: found.to_dict() for section in sections for found in section.explorers}
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
            ),
        ),
        tag("main", None, *map(_laid_out, sections)),
        tag("footer", None, tag("p", None, f"Written by coalmine {__version__} from the results of the run alone.")),
        data("figures", {"theme": theme(), "specs": {figure.name: figure.spec for figure in figures}}),
        data("explorers", explorers),
        Html(f'<script type="module">{library}</script>'),
        Html(f'<script type="module">{script}</script>'),
    ]
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", None, *head)}{tag("body", None, *body)}</html>\n'


def _sections(run: SavedRun) -> list[Section]:
    found = groups_of(run)
    warnings = len({warning for result in run.results for warning in result["warnings"]})
    first, picture = answer(found, warnings)
    sections = [
        Section(key="answer", title="How private is it?", short="Answer", body=first, figures=[picture]),
        *audits(run),
    ]
    return [
        *sections,
        *trainings(run),
        Section(key="method", title="How it was measured", short="Method", body=_method(run)),
        Section(key="caveats", title="What each figure is worth", short="Caveats", body=_caveats(run)),
        Section(key="settings", title="Settings and environment", short="Settings", body=_settings(run)),
        Section(key="glossary", title="Glossary", body=definitions(caveats.GLOSSARY)),
    ]


def _laid_out(section: Section) -> Html:
    heading = f"heading-{section.key}"
    return tag(
        "section",
        {"id": section.key, "aria-labelledby": heading},
        tag("h2", {"id": heading}, section.title),
        section.body,
    )


def _method(run: SavedRun) -> Html:
    rows = []
    for result in run.results:
        config, bound = result["config"], next((e for e in result["estimates"] if e["valid"]), None)
        local = result["audit"] == "ldp"
        row = [
            f"{result['audit']}: {result['view']}",
            caveats.adversary(result),
            str(config.get("score", "–")),
            "–" if bound is None else str(bound["method"]),
            f"{config.get('trials')} trials" if local else _canaries(result),
        ]
        if row not in rows:
            rows.append(row)
    return joined(
        [
            paragraphs(
                [
                    "Canaries were planted; others like them were held out. Each adversary saw what its view allows "
                    "and nothing else, and gave every canary a score, the higher the more it looks planted. An "
                    "estimator turned the two sets of scores into an ε. Canaries that cannot be told apart show "
                    "nothing; canaries that can be told apart better than the promise allows refute it."
                ]
            ),
            table("Who looked at what", ["audit: view", "an adversary who", "score", "bound by", "canaries"], rows),
            paragraphs(
                [
                    "No audit can show that a training is private: a better adversary may exist. What limits ε from "
                    "above is the promise of theory, and it holds only if the software does what the theory assumes. "
                    "An audit that finds no contradiction raises the trust in both."
                ]
            ),
        ]
    )


def _canaries(result: Mapping[str, Any]) -> str:
    planted, held_out = (result["metrics"].get(name) for name in ("planted", "held_out"))
    if not isinstance(planted, int | float) or not isinstance(held_out, int | float):
        return "–"
    first, second = caveats.kinds(result)
    return f"{planted:,.0f} {first}, {held_out:,.0f} {second}"


def _caveats(run: SavedRun) -> Html:
    methods = dict.fromkeys(str(e["method"]) for result in run.results for e in result["estimates"])
    extra = [m for m, there in (
        ("ε_empirical", any("empirical" in result["metrics"] for result in run.results)),
        ("composed", any(result.get("composed") for result in run.results)),
    ) if there]  # fmt: skip
    rows = [[method, caveats.caveat(method)] for method in [*methods, *extra]]
    return table("Estimators in plain words", ["method", "what it is worth"], rows)


def _settings(run: SavedRun) -> Html:
    config = run.config
    environment = dict(run.results[0].get("environment") or {})
    rows = [[str(name), str(value)] for name, value in environment.items()]
    written = str(run.content.get("coalmine", "unknown"))
    return joined(
        [
            paragraphs(
                ["The file below gives the same run again, to the same bits on the same versions."] if config else []
            ),
            folded("Settings (config.toml)", tag("pre", {"tabindex": "0"}, tag("code", None, config)))
            if config
            else "",
            folded("Environment", table("Environment", ["what", "version"], [["coalmine", written], *rows])),
        ]
    )


def _figures(sections: list[Section]) -> list[Figure]:
    return [figure for section in sections for figure in section.figures]


def _style() -> str:
    def variables(colors: dict[str, str]) -> str:
        return "".join(f"{name}:{value};" for name, value in colors.items())

    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{variables(DARK)}}}}}"
    return f":root{{{variables(LIGHT)}}}\n{dark}\n{_file('page.css')}"


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, once."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _file(name: str) -> str:
    return (resources.files("coalmine.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names this very script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
